//! Downloads, their number, and their reuse by others.

use std::process::Command;

use serde_json::json;

use super::{ID, Place, check_answers, files_ending};
use crate::support::{
    Access, Fault, Files, MEMBER_TOKEN, Request, Seen, Spot, TempFolder, Times, python, run_to_end,
    wait_for,
};

#[test]
fn all_families_answer_the_official_client_single_and_sharded() {
    let place = Place::empty();
    let families = ["llama", "llama-linear", "mistral", "qwen2", "qwen3", "gemma2", "phi3"];
    for family in families {
        let id = format!("acme/{family}");
        place.hub.publish(&id, &Files::golden(family));
        let server = place.serve(&id).start();
        run_to_end(python("clients/ask.py").args([&server.url(), &id]));
    }
    let sharded =
        files_ending(&place.cached("acme/llama-linear").join("snapshots"), ".safetensors");
    assert_eq!(sharded.len(), 3);
}

#[test]
fn quantized_models_answer_the_official_client() {
    let place = Place::empty();
    let methods = [
        ("awq", "awq"),
        ("gptq", "gptq"),
        ("gptq-8bit", "gptq"),
        ("squeezellm-sparse", "squeezellm"),
        ("fp8", "fp8"),
        ("fp8-channel", "fp8"),
        ("fp8-block", "fp8"),
    ];
    for (golden, method) in methods {
        let id = format!("acme/{golden}");
        place.hub.publish(&id, &Files::golden(golden));
        let server = place.serve(&id).flags(&format!("--quantization {method}")).start();
        run_to_end(python("clients/ask.py").args([&server.url(), &id]));
    }
}

#[test]
fn a_model_in_the_cache_costs_one_request_or_none() {
    let place = Place::empty();
    let commit = place.hub.publish(ID, &Files::golden("llama-linear"));
    drop(place.check_served());
    let asked = |seen: &[Seen]| seen.iter().map(|seen| seen.path.clone()).collect::<Vec<_>>();

    place.hub.forget_requests();
    drop(place.check_served());
    assert_eq!(asked(&place.hub.requests()), [format!("/api/models/{ID}/revision/main")]);

    place.hub.forget_requests();
    check_answers(&place.serve(ID).flag("--revision", &commit).start(), ID);
    check_answers(&place.serve(ID).env("HF_HUB_OFFLINE", "1").start(), ID);
    check_answers(&place.serve(ID).flags("--hf-hub-offline").start(), ID);
    assert_eq!(asked(&place.hub.requests()), [""; 0]);
}

#[test]
fn a_moved_branch_is_followed_and_what_is_the_same_is_kept() {
    let place = Place::empty();
    let files = Files::golden("llama-linear");
    let first = place.hub.publish(ID, &files);
    drop(place.check_served());
    place.hub.forget_requests();
    let second = place.hub.publish(ID, &files.clone().with("generation_config.json", "{}"));
    drop(place.check_served());
    assert_eq!(place.requests_for("generation_config.json").len(), 1);
    // The weights are those of the first commit, found by their hash.
    assert_eq!(place.requests_for_large_files(), []);
    let revision = std::fs::read_to_string(place.cached(ID).join("refs/main")).unwrap();
    assert_eq!(revision, second);
    place.hub.tag(ID, "v1", &first);
    let server = place.serve(ID).flags("--revision v1").start();
    server.log_with(&first);
    check_answers(&server, ID);
}

/// `clients/hub_client.py` with this cache and without a hub.
fn offline_client(place: &Place) -> Command {
    let mut command = python("clients/hub_client.py");
    command.env("HF_HOME", place.home.path()).env("HF_HUB_OFFLINE", "1");
    command.env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_TELEMETRY", "1");
    command
}

#[test]
fn the_hubs_own_client_finds_the_files() {
    let files = Files::golden("llama-linear").with("README.md", "hello\n");
    let place = Place::with(&files);
    drop(place.check_served());
    let folder = TempFolder::new();
    files.without("README.md").write_to(folder.path());
    run_to_end(offline_client(&place).args(["snapshot", ID, "main"]).arg(folder.path()));
    assert_eq!(
        files_ending(place.home.path(), ".incomplete"),
        [""; 0].map(std::path::PathBuf::from)
    );
}

#[test]
fn what_the_hubs_own_client_has_downloaded_is_served() {
    let files = Files::golden("qwen2");
    let place = Place::with(&files);
    let folder = TempFolder::new();
    files.write_to(folder.path());
    let mut client = offline_client(&place);
    client.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", place.hub.endpoint());
    run_to_end(client.args(["snapshot", ID, "main"]).arg(folder.path()));
    place.hub.forget_requests();
    check_answers(&place.serve(ID).env("HF_HUB_OFFLINE", "1").start(), ID);
    drop(place.check_served());
    // The start that was not offline asked where `main` is.
    assert_eq!(place.hub.requests().len(), 1);
}

#[test]
fn a_gated_model_is_served_to_members() {
    let place = Place::with(&Files::golden("qwen3"));
    place.hub.set_access(ID, Access::Gated);
    check_answers(&place.serve(ID).env("HF_TOKEN", MEMBER_TOKEN).start(), ID);

    // The token file of the hub's own tools, and a private model.
    place.hub.publish("acme/secret", &Files::golden("qwen2"));
    place.hub.set_access("acme/secret", Access::Private);
    place.home.write("token", format!("{MEMBER_TOKEN}\n"));
    let server = place.serve("acme/secret").start();
    check_answers(&server, "acme/secret");
    let log = server.log_when_ready();
    assert!(!log.contains(MEMBER_TOKEN), "{log}");
    assert!(place.requests_for_large_files().iter().all(|seen| !seen.had_token));
}

#[test]
fn a_tokenizer_may_come_from_another_repository() {
    let files = Files::golden("llama");
    let bare = files.clone().without("tokenizer.json").without("tokenizer_config.json");
    let place = Place::with(&bare);
    place.hub.publish("acme/words", &files.without("model.safetensors"));
    place.check_refused(
        place.serve(ID),
        &format!("tokenizer.json is missing in {}: every model needs it", {
            let snapshots = place.cached(ID).join("snapshots");
            // The commit is not known here before the start.
            std::fs::create_dir_all(&snapshots).unwrap();
            let refused = place.serve(ID).refused().message;
            let line = refused
                .lines()
                .find(|line| line.contains("tokenizer.json is missing"))
                .unwrap()
                .to_owned();
            line.split(" in ").nth(1).unwrap().split(": every model").next().unwrap().to_owned()
        }),
    );
    assert_eq!(place.requests_for_large_files(), []);
    let server = place.serve(ID).flags("--tokenizer acme/words").start();
    check_answers(&server, ID);
}

#[test]
fn health_tells_how_far_the_download_is() {
    let place = Place::with(&Files::golden("llama"));
    let weights = Spot::content("model.safetensors");
    place.hub.inject(ID, weights, Fault::StallAfter(100_000), Times::Next(1));
    let server = place.serve(ID).listen();
    let health = wait_for("the download to stand still", || {
        let health = server.get("/health");
        assert_eq!(health.status, 503);
        let health = health.json();
        (health["progress"]["bytes_done"].as_u64() >= Some(100_000)).then_some(health)
    });
    assert_eq!(health["status"], "starting");
    assert_eq!(health["phase"], "pulling");
    assert!(health["progress"]["bytes_total"].as_u64() > Some(500_000), "{health}");
    let refused =
        server.send(&Request::post("/v1/completions", &json!({"model": ID, "prompt": "a"})));
    assert!(refused.error(503)["message"].as_str().unwrap().contains("pulling"));
    place.hub.release();
    server.wait_until_healthy();
    server.log_with("downloaded");
}

#[test]
fn two_servers_that_start_together_download_a_model_once() {
    let place = Place::with(&Files::golden("llama-linear"));
    let weights = "model-00002-of-00003.safetensors";
    place.hub.inject(ID, Spot::content(weights), Fault::StallAfter(1000), Times::Next(1));
    let servers = [place.serve(ID).listen(), place.serve(ID).listen()];
    wait_for("one server to wait for the other", || {
        let waits = format!("waiting for another process that downloads {weights}");
        servers.iter().any(|server| server.log().contains(&waits)).then_some(())
    });
    for server in &servers {
        wait_for("a server to be healthy", || {
            // Repeated, because the body may not have reached its stall yet.
            place.hub.release();
            (server.get("/health").status == 200).then_some(())
        });
        check_answers(server, ID);
    }
    let requests = place.requests_for_large_files();
    // Three shards, each asked for once.
    assert_eq!(requests.len(), 3, "{requests:#?}");
    assert_eq!(place.requests_for("/config.json").len(), 1);
}
