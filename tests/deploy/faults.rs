//! Deployments whose processes are killed, and clients that interfere with each other.

use std::collections::BTreeSet;
use std::net::TcpStream;

use super::{Home, address, check_answers, demo, is_alive, kill, signal, text};
use crate::support::{Fault, Files, Hub, Spot, TempFolder, Times, wait_for};

#[test]
fn a_server_that_is_killed_is_started_again_until_its_budget_is_spent() {
    let home = Home::new();
    let deployed = home.deploy_demo("chat", "");
    // The budget is five restarts within ten minutes, so the sixth end is final.
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
    // A failed deployment leaves nothing that listens.
    assert!(TcpStream::connect(address(&deployed)).is_err());
    // A restart brings it back.
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
    assert_eq!(restarted["url"], deployed["url"]);
    kill(home.pid("chat", "supervisor").unwrap());
    home.json("delete chat");
    assert!(!home.folder("chat").exists());
}

/// A hub that stalls within the weights, and a home folder that uses it.
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
        // The hub stalls on purpose, and the client must not give up by itself.
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
    // The server is at the weights within four seconds, and they never arrive.
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
fn a_hub_that_does_not_answer_is_not_waited_for_longer_than_was_said() {
    let (hub, _cache, home) = slow();
    // Without `config.json` the client does not even know what to start.
    hub.inject("acme/slow", Spot::content("config.json"), Fault::StallAfter(1), Times::Always);
    let error = home.error("deploy acme/slow --name slow --timeout 2", 5);
    assert_eq!((&error["code"], &error["phase"]), (&"TIMEOUT".into(), &"scheduling".into()));
    assert_eq!(
        error["message"],
        "`slow` was not ready after 2 s, its last phase was scheduling: the hub has not yet said what the model is; nothing is left running"
    );
    assert!(!home.folder("slow").exists());
}

#[test]
fn a_client_that_waits_lets_another_ones_deployment_of_the_name_be() {
    let (hub, _cache, home) = slow();
    let first = "deploy acme/slow --name slow --timeout 600 --json";
    let first = home.command(first).spawn().unwrap();
    wait_for("a deployment", || home.run("status slow").status.success().then_some(()));
    // The stopped client does not notice that its deployment is gone before another one exists.
    signal("-STOP", first.id().into());
    home.json("delete slow");
    let second = home.deploy_demo("slow", "");
    signal("-CONT", first.id().into());
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("NOT_FOUND"), "{}", text(&output));
    check_answers(&second);
    drop(hub);
}

#[test]
fn one_that_cannot_be_read_is_seen_and_can_be_deleted() {
    // A file that was cut short, and one of another program.
    for damage in ["", r#"{"state": "Running"}"#] {
        let home = Home::new();
        home.deploy_demo("chat", "");
        let pids = ["supervisor", "server"].map(|who| home.pid("chat", who).unwrap());
        std::fs::write(home.folder("chat").join("state.json"), damage).unwrap();
        let found = home.json("ls")[0].clone();
        assert_eq!((&found["state"], &found["model"]), (&"Unknown".into(), &"demo".into()));
        let message = found["message"].as_str().unwrap();
        assert!(message.contains("state.json: ") && message.contains("`candlepower delete chat`"));
        let error = home.error(&demo("chat", ""), 11);
        assert_eq!(error["code"], "BACKEND_ERROR");
        assert!(
            error["message"].as_str().unwrap().contains("`candlepower delete chat`"),
            "{error}"
        );
        home.json("delete chat");
        assert!(!home.folder("chat").exists());
        for pid in pids {
            wait_for("the processes to end", || (!is_alive(pid)).then_some(()));
        }
    }
    let home = Home::new();
    std::fs::create_dir_all(home.state.path().join("candlepower")).unwrap();
    // A file where the folder of all deployments should be makes every command fail.
    std::fs::write(home.folder("chat").parent().unwrap(), "").unwrap();
    let error = home.error("ls", 11);
    assert!(error["message"].as_str().unwrap().contains("cannot be read"), "{error}");
    std::fs::remove_file(home.folder("chat").parent().unwrap()).unwrap();
}

#[test]
fn a_state_that_cannot_be_written_is_written_as_soon_as_it_can() {
    let home = Home::new();
    let deployed = home.deploy_demo("chat", "");
    let server = home.pid("chat", "server").unwrap();
    // A folder at the path of the temporary file makes every write fail, as a full disk would.
    let new = home.folder("chat").join("state.json.new");
    std::fs::create_dir(&new).unwrap();
    kill(server);
    wait_for("the server to be started again", || {
        TcpStream::connect(address(&deployed)).is_ok().then_some(())
    });
    assert_eq!(home.pid("chat", "server"), Some(server));
    // The events show that the supervisor has noticed it. Nothing changes after that, but the record is not written
    // yet.
    wait_for("the supervisor to see that it is ready", || {
        let events = home.json("events chat");
        let ready = events.as_array().unwrap().iter().filter(|event| event["phase"] == "ready");
        (ready.count() == 2).then_some(())
    });
    std::fs::remove_dir(&new).unwrap();
    let status = home.wait_for_status("chat", |status| status["restarts"] == 1);
    assert_eq!(status["is_ready"], true);
    assert_ne!(home.pid("chat", "server"), Some(server));
    let trouble = "until now its state could not be written: Is a directory (os error 21)";
    assert!(home.json("events chat").to_string().contains(trouble));
}

#[test]
fn a_relative_folder_of_the_hub_is_the_clients() {
    let (hub, folder) = (Hub::start(), TempFolder::new());
    hub.publish("acme/tiny", &Files::golden("llama"));
    let home = Home::new().with_env("HF_ENDPOINT", &hub.endpoint()).with_env("HF_HOME", "cache");
    let args = "deploy acme/tiny --name tiny --env BLAZE_KV_CACHE_MEMORY=64Mi --json";
    let output = home.command(args).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let snapshots = folder.path().join("cache/hub/models--acme--tiny/snapshots");
    let snapshot = std::fs::read_dir(snapshots).unwrap().next().unwrap().unwrap().path();
    assert!(snapshot.join("model.safetensors").exists());
}

#[test]
fn a_full_disk_ends_the_log_and_not_the_server() {
    let home = Home::new();
    home.deploy_demo("chat", "");
    let log = home.folder("chat").join("log");
    std::fs::remove_file(&log).unwrap();
    // Every write to this device fails as on a full disk.
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    // The log is opened anew by the restart.
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
    // Different parameters, so the two cannot share a deployment.
    let different = [start("--max-model-len 512"), start("--max-model-len 256")];
    let outputs = different.map(|client| client.wait_with_output().unwrap());
    let mut codes: Vec<_> = outputs.iter().map(|output| output.status.code().unwrap()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 4], "{}\n{}", text(&outputs[0]), text(&outputs[1]));
    home.json("delete chat");

    // Equal parameters, so the second client finds the deployment of the first.
    let outputs = [start(""), start("")].map(|client| client.wait_with_output().unwrap());
    let urls = outputs.map(|output| {
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        shown["url"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned()
    });
    assert_eq!(urls[0], urls[1]);
}
