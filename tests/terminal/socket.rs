//! `serve --uds`: a server on a Unix socket.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use super::User;
use super::piped::asked;
use crate::support::{TempFolder, self_signed, wait_for};

/// A server that is killed with the test.
struct OnSocket(Child);

impl Drop for OnSocket {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(user: &User, path: &str) -> OnSocket {
    let mut command = user.command(&["serve", "demo", "--uds", path]);
    OnSocket(
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(),
    )
}

#[test]
fn a_server_listens_on_a_socket_of_its_user_alone() {
    let user = User::new();
    let path = user.state.path().join("a.sock");
    let (shown, url) = (path.to_str().unwrap(), format!("unix:{}", path.display()));
    let health = || user.run(&["health", "--url", &url]);
    let absent = health();
    assert!(absent.code == Some(1) && absent.err.contains(&url), "{absent:?}");
    let mut server = serve(&user, shown);
    wait_for("health", || (health().code == Some(0)).then_some(()));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // The environment's settings lead to it too.
    let mut command = user.command(&["health"]);
    assert!(command.env("BLAZE_UDS", shown).output().unwrap().status.success());
    let answer =
        asked(user.command(&["chat", "--url", &url, "--set", "temperature=0"]), "What is 2 + 3?");
    assert_eq!((answer.code, answer.out.as_str()), (Some(0), "2 + 3 = 5.\n"), "{answer:?}");
    let mut command = user.command(&["chat", "--set", "temperature=0"]);
    command.env("BLAZE_UDS", shown);
    assert_eq!(asked(command, "What is 2 + 3?").out, "2 + 3 = 5.\n");
    let bench = user.run(&[
        "bench",
        "serve",
        "--url",
        &url,
        "--requests",
        "1",
        "--concurrency",
        "1",
        "--output-tokens",
        "4",
    ]);
    assert_eq!(bench.code, Some(0), "{bench:?}");
    // A second server does not take it.
    let second = user.run(&["serve", "demo", "--uds", shown]);
    assert!(
        second.code == Some(1) && second.err.contains("another server listens there"),
        "{second:?}"
    );
    let pid = server.0.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(server.0.wait().unwrap().success());
    assert!(!path.exists());
}

#[test]
fn a_socket_has_no_tls_and_replaces_what_a_killed_server_has_left() {
    let user = User::new();
    let path = user.state.path().join("a.sock");
    let shown = path.to_str().unwrap();
    let folder = TempFolder::new();
    let pair = self_signed(&folder);
    let [certificate, key] = [&pair.certificate, &pair.key].map(|path| path.to_str().unwrap());
    let refused = user.run(&[
        "serve",
        "demo",
        "--uds",
        shown,
        "--ssl-certfile",
        certificate,
        "--ssl-keyfile",
        key,
    ]);
    assert!(refused.code == Some(1) && refused.err.contains("--uds has no TLS"), "{refused:?}");
    let url = format!("unix:{shown}");
    for _ in 0..2 {
        let mut server = serve(&user, shown);
        wait_for("health", || (user.run(&["health", "--url", &url]).code == Some(0)).then_some(()));
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        assert!(path.exists());
    }
    let missing = user.run(&["serve", "demo", "--uds", "/nowhere/a.sock"]);
    assert!(missing.err.contains("its folder does not exist"), "{missing:?}");
}
