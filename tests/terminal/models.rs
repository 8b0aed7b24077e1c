//! `candlepower models` and `rm`: the list of downloaded models, and their removal.

use std::path::PathBuf;

use serde_json::Value;

use super::User;
use super::pull::{pulled, with_hub};
use crate::support::{Files, Hub, ServerBuilder, TempFolder, Terminal};

const ID: &str = "acme/tiny";

/// A user, and a hub with a model.
fn place() -> (User, Hub) {
    let (user, hub) = (User::new(), Hub::start());
    hub.publish(ID, &Files::golden("llama"));
    (user, hub)
}

fn listed(user: &User) -> Vec<Value> {
    let said = user.run(&["models", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    serde_json::from_str::<Value>(&said.out).unwrap().as_array().unwrap().clone()
}

fn repo(user: &User) -> PathBuf {
    user.state.path().join("hf/hub/models--acme--tiny")
}

fn server(user: &User, hub: &Hub, id: &str) -> ServerBuilder {
    ServerBuilder::new(id)
        .env("HF_HOME", user.state.path().join("hf").to_str().unwrap())
        .env("HF_ENDPOINT", &hub.endpoint())
}

#[test]
fn downloaded_models_are_listed() {
    let (user, hub) = place();
    let empty = user.run(&["models"]);
    assert!(empty.code == Some(0) && empty.out.contains("candlepower pull"), "{empty:?}");
    assert!(listed(&user).is_empty());
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
    let golden = |model| {
        Files::of_folder(candlepower_testing::goldens::folder(model))
            .contents("model.gguf")
            .to_vec()
    };
    hub.publish("acme/gguf", &Files::new().with("tiny-Q8_0.gguf", golden("gguf-phi3")));
    assert_eq!(pulled(&user, &hub, &["acme/gguf:Q8_0"]).code, Some(0));
    hub.publish(
        "acme/other",
        &Files::golden("llama").with("config.json", "{\"architectures\": [\"Nothing\"]}"),
    );
    assert_eq!(pulled(&user, &hub, &["acme/other"]).code, Some(0));
    let models = listed(&user);
    let column = |key: &str| models.iter().map(|model| model[key].to_string()).collect::<Vec<_>>();
    assert_eq!(column("name"), ["\"acme/gguf:Q8_0\"", "\"acme/other\"", "\"acme/tiny\""]);
    assert_eq!(column("format"), ["\"gguf\"", "\"safetensors\"", "\"safetensors\""]);
    assert_eq!(column("quantization"), ["\"Q8_0\"", "null", "null"]);
    assert_eq!(column("fits"), ["true", "null", "true"]);
    assert_eq!(column("last_used"), ["null"; 3]);
    assert!(models[1]["message"].as_str().unwrap().contains("Nothing"), "{models:?}");
    assert!(
        models[2]["context"].as_u64().unwrap() > 0 && models[2]["size_bytes"].as_u64().unwrap() > 0
    );
    // Serving is a use.
    drop(server(&user, &hub, ID).start());
    assert!(listed(&user)[2]["last_used"].is_u64());
    let text = user.run(&["models"]).out;
    let row = text.lines().find(|line| line.starts_with(ID)).unwrap();
    assert!(
        row.contains("main") && row.contains("safetensors") && row.ends_with("just now"),
        "{text}"
    );
    assert!(text.contains("not supported") && !text.contains('\x1b'), "{text}");
    // A file that is missing.
    let weights = repo(&user)
        .join("snapshots")
        .read_dir()
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path()
        .join("model.safetensors");
    std::fs::remove_file(weights).unwrap();
    let models = listed(&user);
    assert_eq!((&models[2]["complete"], &models[2]["fits"]), (&false.into(), &Value::Null));
    assert!(models[2]["message"].as_str().unwrap().contains("candlepower pull acme/tiny"));
}

#[test]
fn a_model_is_removed_after_a_question() {
    let (user, hub) = place();
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
    let blind = user.run(&["rm", ID]);
    assert!(blind.code == Some(1) && blind.err.contains("give --yes"), "{blind:?}");
    for (answer, code) in [("n\r", 1), ("\r", 1), ("y\r", 0)] {
        let mut terminal = Terminal::start(user.command(&["rm", ID]));
        let shown = terminal.expect("Remove it? [y/N] ");
        assert!(shown.contains("acme/tiny: ") && shown.contains("iB, revisions main"), "{shown}");
        terminal.type_in(answer);
        terminal.ends_with(code);
        assert_eq!(repo(&user).exists(), code != 0);
    }
    let gone = user.run(&["rm", ID, "--yes"]);
    assert!(gone.code == Some(1) && gone.err.contains("is not downloaded"), "{gone:?}");
    assert!(user.run(&["rm", "nonsense", "--yes"]).err.contains("is no downloaded model"));
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
    assert_eq!(user.run(&["rm", ID, "--yes"]).code, Some(0));
}

#[test]
fn a_model_is_removed_where_deployments_cannot_be_listed() {
    let (user, hub) = place();
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
    // A file in the place of the folder of deployments.
    user.state.write("state/candlepower/deployments", "");
    let said = user.run(&["rm", ID, "--yes"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.starts_with("note: deployments cannot be listed: "), "{said:?}");
    assert!(!repo(&user).exists());
}

#[test]
fn the_folder_of_models_may_be_named() {
    let user = User::new();
    let elsewhere = user.state.path().join("elsewhere");
    let said = user.run(&["models", "--hf-hub-cache", elsewhere.to_str().unwrap()]);
    let expected = format!(
        "no models in {}; `candlepower pull owner/name` downloads one\n",
        elsewhere.display()
    );
    assert_eq!((said.code, said.out), (Some(0), expected));
    // Settings of `serve` are checked here, too, because they name the folder.
    let mut command = user.command(&["models"]);
    let said = super::Said::of(command.env("BLAZE_NONSENSE", "1").output().unwrap());
    assert!(said.code == Some(1) && said.out.is_empty(), "{said:?}");
    assert!(said.err.starts_with("error: ") && said.err.contains("BLAZE_NONSENSE"), "{said:?}");
}

#[test]
fn a_model_that_is_in_use_is_not_removed() {
    let (user, hub) = place();
    let running = server(&user, &hub, ID).start();
    let refused = user.run(&["rm", ID, "--yes"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let by = format!("error: acme/tiny is in use by candlepower ({})", running.pid());
    assert!(refused.err.contains(&by), "{refused:?}");
    assert_eq!(listed(&user).len(), 1);
    drop(running);
    // Another program that takes no lock.
    let snapshots =
        repo(&user).join("snapshots").read_dir().unwrap().next().unwrap().unwrap().path();
    let open = std::fs::File::open(snapshots.join("model.safetensors")).unwrap();
    let refused = user.run(&["rm", ID, "--yes"]);
    let by = format!("({})", std::process::id());
    assert!(refused.code == Some(1) && refused.err.contains(&by), "{refused:?}");
    drop(open);
    assert_eq!(user.run(&["rm", ID, "--yes"]).code, Some(0));
}

#[test]
fn files_of_other_revisions_and_other_models_stay() {
    let (user, hub) = place();
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
    let changed = Files::golden("llama").with("generation_config.json", "{}");
    hub.publish_branch(ID, "next", &changed);
    assert_eq!(pulled(&user, &hub, &[ID, "--revision", "next"]).code, Some(0));
    let unknown = user.run(&["rm", ID, "--revision", "v9", "--yes"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("is not downloaded"), "{unknown:?}");
    let said = user.run(&["rm", ID, "--revision", "main", "--yes"]);
    assert!(
        said.code == Some(0) && said.out.contains("other files of the repository stay"),
        "{said:?}"
    );
    let models = listed(&user);
    assert_eq!(
        (models.len(), &models[0]["revisions"][0], &models[0]["complete"]),
        (1, &"next".into(), &true.into())
    );
    drop(server(&user, &hub, ID).flags("--revision next").env("HF_HUB_OFFLINE", "1").start());

    let golden = |model| {
        Files::of_folder(candlepower_testing::goldens::folder(model))
            .contents("model.gguf")
            .to_vec()
    };
    hub.publish(
        "acme/gguf",
        &Files::new()
            .with("a-Q4_K_M.gguf", golden("gguf-qwen2"))
            .with("a-Q8_0.gguf", golden("gguf-phi3")),
    );
    for kind in ["Q4_K_M", "Q8_0"] {
        assert_eq!(pulled(&user, &hub, &[&format!("acme/gguf:{kind}")]).code, Some(0));
    }
    let said = user.run(&["rm", "acme/gguf:Q8_0", "--yes"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let names: Vec<Value> = listed(&user).iter().map(|model| model["name"].clone()).collect();
    assert_eq!(names, ["acme/gguf:Q4_K_M", ID]);
}

#[test]
fn nothing_outside_the_cache_is_removed() {
    let (user, hub) = place();
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
    let elsewhere = TempFolder::new();
    let outside = elsewhere.write("mine.txt", "precious");
    let snapshot =
        repo(&user).join("snapshots").read_dir().unwrap().next().unwrap().unwrap().path();
    std::os::unix::fs::symlink(&outside, snapshot.join("mine.txt")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), snapshot.join("folder")).unwrap();
    assert_eq!(user.run(&["rm", ID, "--yes"]).code, Some(0));
    assert!(!repo(&user).exists());
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
    // A repository that is a link as a whole.
    std::os::unix::fs::symlink(elsewhere.path(), repo(&user)).unwrap();
    let refused = user.run(&["rm", ID, "--yes"]);
    assert!(
        refused.code == Some(1) && refused.err.contains("is a link out of the cache"),
        "{refused:?}"
    );
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
}

#[test]
fn deployments_that_name_the_model_are_shown() {
    let (user, hub) = place();
    let mut deploy = with_hub(
        &user,
        &hub,
        &["deploy", ID, "--name", "mine", "--env", "BLAZE_KV_CACHE_MEMORY=64Mi"],
    );
    let deployed = deploy.output().unwrap();
    assert!(deployed.status.success(), "{deployed:?}");
    let said = user.run(&["rm", ID, "--yes"]);
    assert!(said.out.contains("The deployment mine names this model"), "{said:?}");
    assert!(said.code == Some(1) && said.err.contains("is in use"), "{said:?}");
    assert!(user.run(&["delete", "mine"]).code == Some(0));
    assert_eq!(user.run(&["rm", ID, "--yes"]).code, Some(0));
}
