//! What happens to deployments whose processes are killed, or whose clients are in each other's way.

use std::collections::BTreeSet;
use std::net::TcpStream;

use super::{Home, address, check_answers, demo, is_alive, kill, text};
use crate::support::{Fault, Files, Hub, Spot, TempFolder, Times, wait_for};

#[test]
fn a_server_that_is_killed_is_started_again_until_its_budget_is_spent() {
    let home = Home::new();
    let deployed = home.deploy_demo("chat", "");
    for restarts in 1..=6 {
        kill(home.pid("chat", "server").unwrap());
        let status = home.wait_for_status("chat", |status| {
            status["state"] == "Failed"
                || (status["restarts"] == restarts && status["is_ready"] == true)
        });
        if restarts <= 5 {
            assert_eq!(status["state"], "Running", "{status}");
            assert_eq!(status["url"], deployed["url"]);
            check_answers(&status);
        } else {
            assert_eq!(
                status["message"],
                "the server was killed (SIGKILL); it was started again 5 times within 10 min"
            );
        }
    }
    assert!(TcpStream::connect(address(&deployed)).is_err());
    // Whoever asks for it gets it back.
    check_answers(&home.json("restart chat"));
}

#[test]
fn a_server_ends_with_its_supervisor_and_can_be_started_again() {
    let home = Home::new();
    let deployed = home.deploy_demo("chat", "");
    let server = home.pid("chat", "server").unwrap();
    kill(home.pid("chat", "supervisor").unwrap());
    wait_for("the server to end with its supervisor", || (!is_alive(server)).then_some(()));
    let status = home.json("status chat");
    assert_eq!((&status["state"], &status["is_ready"]), (&"Failed".into(), &false.into()));
    assert_eq!(
        status["message"],
        "its supervisor was killed, and its server with it; `candlepower restart chat` starts it again, `candlepower delete chat` removes it"
    );
    let restarted = home.json("restart chat");
    check_answers(&restarted);
    assert_eq!(restarted["created_at"], deployed["created_at"]);
    kill(home.pid("chat", "supervisor").unwrap());
    home.json("delete chat");
    assert!(!home.folder("chat").exists());
}

/// A hub that stops in the midst of the weights, and a home that uses it.
fn slow() -> (Hub, TempFolder, Home) {
    let (hub, cache) = (Hub::start(), TempFolder::new());
    hub.publish("acme/slow", &Files::golden("llama"));
    hub.inject(
        "acme/slow",
        Spot::content("model.safetensors"),
        Fault::StallAfter(1000),
        Times::Always,
    );
    let home = Home::new()
        .with_env("HF_ENDPOINT", &hub.endpoint())
        .with_env("HF_HOME", cache.path().to_str().unwrap())
        .with_env("HF_HUB_DOWNLOAD_TIMEOUT", "600");
    (hub, cache, home)
}

#[test]
fn a_deployment_outlives_a_client_that_is_killed() {
    let (hub, _cache, home) = slow();
    let args = "deploy acme/slow --name slow --env BLAZE_KV_CACHE_MEMORY=64Mi";
    let mut client = home.command(args).spawn().unwrap();
    wait_for("the download", || {
        let output = home.run("status slow --json");
        text(&output).contains("\"pulling\"").then_some(())
    });
    client.kill().unwrap();
    client.wait().unwrap();
    let status = home.json("status slow");
    assert_eq!((&status["state"], &status["is_ready"]), (&"Provisioning".into(), &false.into()));
    hub.heal("acme/slow");
    hub.release();
    home.wait_for_status("slow", |status| status["is_ready"] == true);
}

#[test]
fn a_deployment_that_is_not_ready_in_time_says_where_it_was_and_leaves_nothing() {
    let (_hub, _cache, home) = slow();
    let error = home.error("deploy acme/slow --name slow --timeout 4", 5);
    assert_eq!((&error["code"], &error["seconds"]), (&"TIMEOUT".into(), &4.into()));
    assert_eq!(error["retryable"], true);
    let phase = error["phase"].as_str().unwrap();
    assert_eq!(
        error["message"],
        format!(
            "`slow` was not ready after 4 s, its last phase was {phase}; nothing is left running"
        )
    );
    assert!(error["log"].is_array());
    assert!(!home.folder("slow").exists());
}

#[test]
fn a_full_disk_ends_the_log_and_not_the_server() {
    let home = Home::new();
    home.deploy_demo("chat", "");
    let log = home.folder("chat").join("log");
    std::fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let restarted = home.json("restart chat");
    check_answers(&restarted);
    let trouble = "the log cannot be written: No space left on device (os error 28)";
    home.wait_for_status("chat", |status| status["message"].as_str().unwrap().contains(trouble));
}

#[test]
fn many_deployments_at_once_each_have_a_server() {
    let home = Home::new();
    let start = |i| home.command(&demo(&format!("chat-{i}"), "--json")).spawn().unwrap();
    let clients: Vec<_> = (0..20).map(start).collect();
    let outputs = clients.into_iter().map(|client| client.wait_with_output().unwrap());
    let urls: BTreeSet<String> = outputs
        .map(|output| {
            assert!(output.status.success(), "{}", text(&output));
            let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            shown["url"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(urls.len(), 20);
    let listed = home.json("ls");
    assert!(listed.as_array().unwrap().iter().all(|found| found["state"] == "Running"), "{listed}");
    assert_eq!(listed.as_array().unwrap().len(), 20);
}

#[test]
fn of_two_clients_at_once_one_wins() {
    let home = Home::new();
    let start =
        |flags: &str| home.command(&demo("chat", &format!("{flags} --json"))).spawn().unwrap();
    let different = [start("--max-model-len 512"), start("--max-model-len 256")];
    let outputs = different.map(|client| client.wait_with_output().unwrap());
    let mut codes: Vec<_> = outputs.iter().map(|output| output.status.code().unwrap()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 4], "{}\n{}", text(&outputs[0]), text(&outputs[1]));
    home.json("delete chat");

    let outputs = [start(""), start("")].map(|client| client.wait_with_output().unwrap());
    let urls = outputs.map(|output| {
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        shown["url"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned()
    });
    assert_eq!(urls[0], urls[1]);
}
