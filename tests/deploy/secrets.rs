//! Tokens and keys are in no command line, file, log, output or error.

use std::path::Path;

use super::{Home, address, demo, kill, text};
use crate::support::Request;

const KEY: &str = "canary-api-key-71";
const TOKEN: &str = "hf_canary_token_71";
const OTHER: &str = "canary-other-secret-71";

/// The files below a folder that hold a canary.
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
    let output = command.env("CANDLEPOWER_API_KEY", KEY).env("HF_TOKEN", TOKEN).output().unwrap();
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
    let supervisor = home.pid("chat", "supervisor").unwrap();
    let env = std::fs::read(format!("/proc/{supervisor}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&env).contains(TOKEN));
    for args in ["status chat", "ls", "logs chat", "events chat"] {
        assert!(!text(&home.run(args)).contains("canary"), "{args}");
    }
    assert!(!text(&output).contains("canary"));

    // What a supervisor knew is gone with it: the server does not start without its key.
    kill(supervisor);
    let error = home.error("restart chat", 2);
    assert_eq!(error["value"], "BLAZE_API_KEY");
    assert!(!error.to_string().contains("canary"), "{error}");
}
