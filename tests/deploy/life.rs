//! The life of a deployment, from the first command to the last.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::json;

use super::{Home, address, check_answers, demo, is_alive, signal, text};
use crate::support::wait_for;

#[test]
fn a_deployment_answers_until_it_is_deleted_and_leaves_nothing() {
    let home = Home::new();
    let deployed = home.deploy_demo("chat", "");
    assert_eq!(deployed["state"], "Running");
    assert_eq!(deployed["phase"], "ready");
    assert_eq!(deployed["is_ready"], true);
    assert_eq!(deployed["framework"], "blaze");
    assert_eq!(deployed["model"], "demo");
    check_answers(&deployed);

    assert_eq!(home.json("logs chat --tail 5").as_array().unwrap().len(), 5);
    let all = home.json("logs chat");
    let is_ready = |line: &&serde_json::Value| line.as_str().unwrap().contains("ready: http://");
    // The lines before the server was ready must not be repeated.
    assert_eq!(all.as_array().unwrap().iter().filter(is_ready).count(), 1, "{all}");

    let status = home.json("status chat");
    assert_eq!((&status["replicas_ready"], &status["restarts"]), (&json!(1), &json!(0)));
    assert!(status["message"].as_str().unwrap().contains("computing on the CPU"), "{status}");
    let listed = home.json("ls");
    assert_eq!(listed[0]["name"], "chat");
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert!(text(&home.run("ls")).contains("chat  Running  ready"), "{}", text(&home.run("ls")));

    let server = home.pid("chat", "server").unwrap();
    let restarted = home.json("restart chat");
    assert_eq!(restarted["url"], deployed["url"]);
    assert_ne!(home.pid("chat", "server"), Some(server));
    assert!(!is_alive(server));
    check_answers(&restarted);
    let events = home.json("events chat");
    let times_ready = events.as_array().unwrap().iter().filter(|event| event["phase"] == "ready");
    assert_eq!(times_ready.count(), 2, "{events}");

    let pids = ["supervisor", "server"].map(|who| home.pid("chat", who).unwrap());
    assert_eq!(home.json("delete chat")["state"], "Deleted");
    for pid in pids {
        assert!(!is_alive(pid), "process {pid} is left");
    }
    assert!(!home.folder("chat").exists());
    assert!(TcpStream::connect(address(&deployed)).is_err());
    let error = home.error("status chat", 3);
    assert_eq!(error["code"], "NOT_FOUND");
    assert_eq!(
        error["message"],
        "there is no deployment `chat`: `candlepower ls` shows those that there are"
    );
    assert_eq!(home.json("ls"), json!([]));
}

#[test]
fn the_same_deployment_is_found_again_and_another_one_is_refused() {
    let home = Home::new();
    let deployed = home.deploy_demo("chat", "");
    let supervisor = home.pid("chat", "supervisor");
    let again = home.deploy_demo("chat", "--timeout 500");
    assert_eq!(again["url"], deployed["url"]);
    assert_eq!(home.pid("chat", "supervisor"), supervisor);
    let error = home.error(&demo("chat", "--max-model-len 512"), 4);
    assert_eq!(error["code"], "NAME_IN_USE");
    let difference = "max_model_len: it has none, 512 is asked for";
    assert_eq!(error["difference"], difference);
    assert_eq!(
        error["message"],
        format!(
            "there is a deployment `chat` with other parameters ({difference}): update changes it, or choose another name"
        )
    );
    check_answers(&deployed);
}

#[test]
fn a_log_can_be_followed_until_the_deployment_is_deleted() {
    let home = Home::new();
    let deployed = home.deploy_demo("chat", "");
    let mut followed = home.command("logs chat --follow --tail 1").spawn().unwrap();
    let mut output = BufReader::new(followed.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.contains("ready: http://"), "{line}");
    check_answers(&deployed);
    // A reader that goes away ends the command with the next line.
    let mut left = home.command("logs chat --follow").spawn().unwrap();
    BufReader::new(left.stdout.take().unwrap()).read_line(&mut line).unwrap();
    home.json("restart chat");
    assert_eq!(left.wait().unwrap().code(), Some(0));
    home.json("delete chat");
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("listening on http://"), "{rest}");
    assert_eq!(followed.wait().unwrap().code(), Some(0));
}

#[test]
fn ctrl_c_ends_the_waiting_and_not_the_deployment() {
    let home = Home::new();
    let waiting = home.command(&demo("chat", "")).spawn().unwrap();
    wait_for("the supervisor", || home.pid("chat", "supervisor"));
    signal("-INT", waiting.id().into());
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(text(&output).starts_with("`chat` continues in the background: "), "{}", text(&output));
    let ready = home.wait_for_status("chat", |status| status["is_ready"] == true);
    check_answers(&ready);
}

#[test]
fn prism_is_served_too() {
    let home = Home::new();
    let flags = "--framework prism --env PRISM_KV_CACHE_MEMORY=64Mi --context-length 512";
    let deployed = home.json(&format!("deploy demo --name tree {flags}"));
    assert_eq!(deployed["framework"], "prism");
    check_answers(&deployed);
    let log = home.json("logs tree").to_string();
    assert!(log.contains("framework prism") && log.contains("context of 512 tokens"), "{log}");
}

#[test]
fn a_deployment_with_a_time_to_live_deletes_itself() {
    let home = Home::new();
    // Ten seconds are more than the demo's start takes, so the deployment is ready once.
    let deployed = home.deploy_demo("brief", "--ttl-seconds 10");
    assert_eq!(deployed["phase"], "ready", "{deployed}");
    wait_for("the deployment to delete itself", || (!home.folder("brief").exists()).then_some(()));
}

#[test]
fn shells_can_complete_command_lines() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&home.run(&format!("completions {shell}")));
        assert!(script.contains("candlepower") && script.contains("keep-on-failure"), "{script}");
    }
}
