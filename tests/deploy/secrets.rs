//! Tokens and keys appear in no command line, file, log, output or error.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Home, address, demo, kill, text};
use crate::support::Request;

const KEY: &str = "canary-api-key-71";
const TOKEN: &str = "hf_canary_token_71";
const OTHER: &str = "canary-other-secret-71";

/// The files below a folder that contain a canary.
fn files_with_canary(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with_canary(&path));
        } else if std::fs::read(&path)
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("canary"))
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn secrets_reach_the_server_and_nothing_else() {
    let home = Home::new();
    let mut command = home.command(&demo("chat", &format!("--env MY_SECRET={OTHER} --json")));
    command.env("CANDLEPOWER_API_KEY", KEY).env("HF_TOKEN", TOKEN);
    command.env("HUGGING_FACE_HUB_TOKEN", TOKEN).env("PRISM_API_KEY", KEY);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let deployed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();

    let models = Request::get("/v1/models");
    assert_eq!(models.send(address(&deployed)).unwrap().status, 401);
    let with_key = models.header("Authorization", &format!("Bearer {KEY}"));
    assert_eq!(with_key.send(address(&deployed)).unwrap().status, 200);

    assert_eq!(files_with_canary(home.state.path()), Vec::<std::path::PathBuf>::new());
    for who in ["supervisor", "server"] {
        let pid = home.pid("chat", who).unwrap();
        let argv = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(!argv.is_empty() && !argv.contains("canary"), "{argv}");
    }
    // The server needs the secrets in its environment; the supervisor must not keep them there.
    let supervisor = home.pid("chat", "supervisor").unwrap();
    let env = std::fs::read(format!("/proc/{supervisor}/environ")).unwrap();
    assert!(!env.is_empty() && !String::from_utf8_lossy(&env).contains("canary"));
    for args in ["status chat", "ls", "logs chat", "events chat"] {
        assert!(!text(&home.run(args)).contains("canary"), "{args}");
    }
    assert!(!text(&output).contains("canary"));

    // Secrets of a supervisor disappear with it. Without its key the server is not started.
    kill(supervisor);
    let error = home.error("restart chat", 2);
    assert_eq!(error["value"], "BLAZE_API_KEY");
    assert!(!error.to_string().contains("canary"), "{error}");

    let mut command = home.command("restart chat");
    // The restart is given the secrets again.
    let output = command.env("BLAZE_API_KEY", KEY).env("MY_SECRET", OTHER).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let supervisor = home.pid("chat", "supervisor").unwrap();
    let env = std::fs::read(format!("/proc/{supervisor}/environ")).unwrap();
    assert!(!env.is_empty() && !String::from_utf8_lossy(&env).contains("canary"));
}

#[test]
fn files_of_a_deployment_are_for_their_owner_alone_whatever_the_umask() {
    let home = Home::new();
    let deploy = home.command(&demo("open", ""));
    let mut shell = Command::new("sh");
    // Files that rely on the umask would be readable by everybody here.
    shell.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(deploy.get_program());
    shell.args(deploy.get_args());
    for (name, value) in deploy.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let output = shell.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let files: Vec<_> = home.folder("open").read_dir().unwrap().map(Result::unwrap).collect();
    assert!(files.iter().any(|file| file.file_name() == "report.json"));
    for file in files {
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?} has {mode:o}", file.path());
    }
}
