//! Updates of deployments. The new server is ready before the old one ends, and a failure changes nothing.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::docker::{boxed, home as engine_home};
use super::{Home, address, check_answers, is_alive};
use crate::support::{Engine, Manner, Request, TempFolder, wait_for};

/// The longest context of a server's model.
fn context(deployment: &serde_json::Value) -> u64 {
    let models = Request::get("/v1/models").send(address(deployment)).unwrap().ok();
    models["data"][0]["max_model_len"].as_u64().unwrap()
}

#[test]
fn another_server_takes_over_while_the_old_one_answers() {
    let home = Home::new();
    let before = home.deploy_demo("chat", "--env NOTE=a --memory 4Gi");
    let old = home.pid("chat", "server").unwrap();
    let (at, ended) = (address(&before), Arc::new(AtomicBool::new(false)));
    let asking = {
        let ended = Arc::clone(&ended);
        std::thread::spawn(move || {
            let mut answers = 0;
            while !ended.load(Ordering::Relaxed) {
                // The old server ends only after the deployment's address has changed. So a failed connection ends
                // this check.
                let Ok(response) = Request::get("/health").send(at) else { break };
                answers += u32::from(response.status == 200);
            }
            answers
        })
    };
    let after = home.json("update chat --max-model-len 512 --env BLAZE_MAX_NUM_SEQS=8");
    ended.store(true, Ordering::Relaxed);
    assert!(asking.join().unwrap() > 0);
    assert_ne!(after["url"], before["url"]);
    assert_eq!((&after["state"], &after["is_ready"]), (&json!("Running"), &json!(true)));
    assert_eq!(after["created_at"], before["created_at"]);
    assert_eq!(context(&after), 512);
    check_answers(&after);
    wait_for("the old server to end", || (!is_alive(old)).then_some(()));
    // All other parameters stay.
    let spec = std::fs::read_to_string(home.folder("chat").join("spec.json")).unwrap();
    // 4 GiB in bytes.
    assert!(spec.contains("\"NOTE\": \"a\"") && spec.contains("4294967296"), "{spec}");
    let events = home.json("events chat").to_string();
    assert!(events.contains("updated: max_model_len: it has none, 512 is asked for"), "{events}");

    // A restart uses the current parameters, and the same update again changes nothing.
    let restarted = home.json("restart chat");
    assert_eq!((&restarted["url"], context(&restarted)), (&after["url"], 512));
    let server = home.pid("chat", "server");
    home.json("update chat --max-model-len 512");
    assert_eq!(home.pid("chat", "server"), server);
    let again = home.json("update chat --max-model-len 256");
    assert_eq!(context(&again), 256);
    home.json("delete chat");
    assert!(!home.folder("chat").exists());
}

#[test]
fn a_failed_update_leaves_what_ran_before() {
    let home = Home::new();
    let before = home.deploy_demo("chat", "");
    let old = home.pid("chat", "server");
    // The variable's last letter is missing, so the new server refuses it and suggests the right one.
    let failed = home.error("update chat --env BLAZE_MAX_NUM_SEQ=8", 1);
    assert_eq!(failed["code"], "FAILED");
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("BLAZE_MAX_NUM_SEQS"), "{message}");
    assert!(message.ends_with("the server before the update runs on"), "{message}");
    for refused in ["--max-model-len 999999", "--quantization awq", "--cpu lots", "--gpu-count 64"]
    {
        assert!(!home.run(&format!("update chat {refused} --json")).status.success(), "{refused}");
    }
    // The server reports its failure two seconds before it ends.
    let late = home.error("update chat --timeout 1 --env BLAZE_TOKENIZER=/dev/full/none", 5);
    assert_eq!(late["code"], "TIMEOUT", "{late}");
    let now = home.json("status chat");
    assert_eq!((&now["url"], &now["is_ready"]), (&before["url"], &json!(true)));
    assert_eq!(home.pid("chat", "server"), old);
    check_answers(&now);
    assert_eq!(home.error("update other --max-model-len 8", 3)["code"], "NOT_FOUND");
}

#[test]
fn with_one_port_the_old_server_ends_first_and_comes_back_after_a_failure() {
    let home = Home::new();
    // The port was free a moment ago, and only this deployment uses it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let before = home.deploy_demo("chat", &format!("--port {port}"));
    let after = home.json("update chat --max-model-len 512");
    assert_eq!(after["url"], before["url"]);
    assert_eq!(context(&after), 512);
    let message = after["message"].as_str().unwrap();
    assert!(message.contains("the port stays the same"), "{message}");
    let failed = home.error("update chat --env BLAZE_MAX_NUM_SEQ=8", 1);
    assert_eq!(failed["code"], "FAILED");
    let now = home.wait_for_status("chat", |status| status["is_ready"] == true);
    assert_eq!((&now["url"], context(&now)), (&before["url"], 512));
}

#[test]
fn another_model_is_served_in_the_same_mode() {
    let other = TempFolder::of_demo(|_, contents| contents);
    let model = other.path().to_str().unwrap();
    for (framework, prefix) in [("blaze", "BLAZE"), ("prism", "PRISM")] {
        let home = Home::new();
        let env = format!("--env {prefix}_KV_CACHE_MEMORY=64Mi --served-model-name demo");
        home.json(&format!("deploy demo --name chat --framework {framework} {env}"));
        let after = home.json(&format!("update chat --model {model} --max-model-len 512"));
        assert_eq!((&after["framework"], &after["model"]), (&json!(framework), &json!(model)));
        assert_eq!((after["is_ready"].clone(), context(&after)), (json!(true), 512));
        check_answers(&after);
    }
}

#[test]
fn secrets_stay_unless_they_are_given_again() {
    let home = Home::new();
    let before = home.deploy_demo("chat", "--env BLAZE_API_KEY=canary-one");
    let status = |deployment: &serde_json::Value, key: &str| {
        let request = Request::get("/v1/models").header("authorization", &format!("Bearer {key}"));
        request.send(address(deployment)).unwrap().status
    };
    assert_eq!(status(&before, "canary-one"), 200);
    let after = home.json("update chat --max-model-len 512");
    assert_eq!((status(&after, "canary-one"), status(&after, "canary-two")), (200, 401));
    // A changed secret alone is a change.
    let after = home.json("update chat --env BLAZE_API_KEY=canary-two");
    assert_eq!((status(&after, "canary-one"), status(&after, "canary-two")), (401, 200));
    let spec = std::fs::read_to_string(home.folder("chat").join("spec.json")).unwrap();
    assert!(!spec.contains("canary"), "{spec}");
}

#[test]
fn a_deploy_call_may_be_an_update() {
    let home = Home::new();
    let made = home.deploy_demo("chat", "--update");
    let changed = home.deploy_demo("chat", "--update --max-model-len 512");
    assert_eq!((context(&changed), &made["name"]), (512, &json!("chat")));
    // A deployment with --update states all parameters. Those that are left out return to their defaults.
    let back = home.deploy_demo("chat", "--update");
    assert_eq!(context(&back), 2048);
}

#[test]
fn a_container_takes_over_from_another() {
    let engine = Engine::start(Manner::Docker);
    let home = engine_home(&engine);
    let before = home.json(&boxed("chat", "--memory 2Gi --env BLAZE_API_KEY=canary-one"));
    let failed =
        home.error("update chat --backend docker --env BLAZE_MAX_NUM_SEQ=8 --timeout 60", 1);
    let message = failed["message"].as_str().unwrap();
    assert!(message.ends_with("the server before the update runs on"), "{message}");
    // The new container is gone, and the old one runs.
    assert_eq!(engine.bodies().len(), 1);
    assert_eq!(home.json("status chat")["url"], before["url"]);

    let after = home.json("update chat --max-model-len 512");
    assert_ne!(after["url"], before["url"]);
    assert_eq!(engine.bodies().len(), 1, "the old container is left");
    assert_eq!(home.json("ls").as_array().unwrap().len(), 1);
    let models = Request::get("/v1/models").header("authorization", "Bearer canary-one");
    let models = models.send(address(&after)).unwrap().ok();
    assert_eq!(models["data"][0]["max_model_len"], 512);
    home.json("delete chat");
    assert!(engine.bodies().is_empty());
}
