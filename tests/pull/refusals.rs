//! Models that cannot be downloaded or served. Each reason is one line, and no weights are downloaded in vain.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::{ID, Place, check_answers};
use crate::support::{
    Access, Files, MEMBER_TOKEN, OUTSIDER_TOKEN, ServerBuilder, TempFolder, program,
};

#[test]
fn gated_models_name_the_page_and_the_variable() {
    let place = Place::with(&Files::golden("llama"));
    place.hub.set_access(ID, Access::Gated);
    place.check_refused(
        place.serve(ID),
        "`acme/tiny` is gated: accept its licence at <hub>/acme/tiny, then set HF_TOKEN to a token of the account that did",
    );
    place.check_refused(
        place.serve(ID).env("HF_TOKEN", OUTSIDER_TOKEN),
        "`acme/tiny` is gated and the account of the token from HF_TOKEN has no access: ask for it at <hub>/acme/tiny",
    );
    check_answers(&place.serve(ID).env("HF_TOKEN", MEMBER_TOKEN).start(), ID);
}

#[test]
fn private_and_missing_models_look_the_same() {
    let place = Place::with(&Files::golden("llama"));
    place.hub.set_access(ID, Access::Private);
    for id in [ID, "acme/missing"] {
        place.check_refused(
            place.serve(id),
            &format!(
                "there is no model at <hub>/{id}, or it is private: check the name, or set HF_TOKEN to a token that may read it"
            ),
        );
        place.check_refused(
            place.serve(id).env("HF_TOKEN", OUTSIDER_TOKEN),
            &format!(
                "there is no model at <hub>/{id} that the token from HF_TOKEN may read: check the name, or use another token"
            ),
        );
    }
    check_answers(&place.serve(ID).env("HF_TOKEN", MEMBER_TOKEN).start(), ID);
}

#[test]
fn a_token_that_the_hub_does_not_know_is_named_by_its_place() {
    let place = Place::with(&Files::golden("llama"));
    place.check_refused(
        place.serve(ID).env("HF_TOKEN", "hf_expired"),
        "the hub refuses the token from HF_TOKEN: it is wrong or has expired; make a new one at <hub>/settings/tokens",
    );
    let file = place.home.write("token", "hf_expired");
    place.check_refused(
        place.serve(ID),
        &format!(
            "the hub refuses the token from {}: it is wrong or has expired; make a new one at <hub>/settings/tokens",
            file.display()
        ),
    );
    std::fs::remove_file(file).unwrap();
    place.check_served();
}

#[test]
fn a_revision_that_is_not_there_is_named() {
    let place = Place::with(&Files::golden("llama"));
    place.check_refused(
        place.serve(ID).flags("--revision v9"),
        "`acme/tiny` has no revision `v9`: its branches and tags are listed at <hub>/acme/tiny",
    );
    place.check_refused(
        place.serve(ID).flags("--revision ../main"),
        "`../main` cannot be a revision: give a branch, a tag or a commit",
    );
    place.check_served();
}

#[test]
fn models_without_safetensors_or_configuration_are_refused() {
    let files = Files::golden("llama");
    let bare = files.clone().without("model.safetensors");
    let place = Place::with(&bare.clone().with("pytorch_model.bin", "pickle"));
    place.check_refused(
        place.serve(ID),
        "`acme/tiny` has no safetensors weights, only pytorch_model.bin: choose a variant of it that has, see <hub>/acme/tiny",
    );
    place.hub.publish("acme/strange", &files.clone().without("config.json"));
    place.check_refused(
        place.serve("acme/strange"),
        "`acme/strange` has no config.json: it is no model in the form that transformers saves, see <hub>/acme/strange",
    );
    // Random weights need no token.
    check_answers(&place.serve(ID).flags("--load-format dummy").start(), ID);
    place.hub.publish(ID, &files);
    place.check_served();
}

/// A golden model with changes in its config.json.
fn with_config(golden: &str, change: impl FnOnce(&mut serde_json::Value)) -> Files {
    let files = Files::golden(golden);
    let mut config = serde_json::from_slice(files.contents("config.json")).unwrap();
    change(&mut config);
    files.with("config.json", config.to_string())
}

#[test]
fn what_cannot_run_here_is_refused_before_its_weights_are_asked_for() {
    let place = Place::empty();
    let publish = |change: fn(&mut serde_json::Value)| {
        place.hub.publish(ID, &with_config("llama", change));
    };
    publish(|config| config["architectures"] = serde_json::json!(["LlamaForCausalLN"]));
    place.check_refused(
        place.serve(ID),
        "architecture `LlamaForCausalLN` is not supported (the nearest is `LlamaForCausalLM`); supported: LlamaForCausalLM, <any>",
    );

    publish(|config| {
        config["quantization_config"] = serde_json::json!({"quant_method": "quip", "bits": 4});
    });
    place.check_refused(
        place.serve(ID),
        "the weights are quantized with quip, which is not supported; use a checkpoint quantized with one of awq, gptq, squeezellm, fp8, mxfp4, nvfp4 and compressed-tensors' integers, or the float16 or bfloat16 original",
    );
    place.check_refused(
        place.serve(ID).flags("--quantization gptq"),
        "--quantization gptq does not match the weights: config.json says `quip`; leave the flag out",
    );
    place.hub.publish(ID, &Files::golden("fp8-channel"));
    place.check_refused(
        place.serve(ID).flags("--quantization awq"),
        "--quantization awq does not match the weights: config.json says `fp8`; leave the flag out",
    );
    // The refusals above needed the configuration alone.
    assert_eq!(place.requests_for_large_files(), []);
    place.hub.publish(ID, &Files::golden("llama"));
    place.check_refused(
        place.serve(ID).flags("--quantization gptq"),
        "--quantization gptq does not match the weights: config.json says that they are not quantized; leave the flag out",
    );
    assert_eq!(place.requests_for_large_files(), []);
    place.check_served();
}

#[test]
fn what_does_not_fit_this_machine_is_refused_before_its_weights_are_asked_for() {
    let place = Place::empty();
    let huge = |config: &mut serde_json::Value| {
        config["hidden_size"] = (1 << 17).into();
        config["intermediate_size"] = (1 << 19).into();
        config["num_hidden_layers"] = 100.into();
    };
    place.hub.publish(ID, &with_config("llama", huge));
    place.check_refused(
        place.serve(ID),
        "out of memory: 76814.3 GiB are needed (weights 76810.3 GiB, keys and values 64.0 MiB, activations 4.0 GiB) and <any>iB are free; take a smaller or a quantized model, or more memory",
    );

    place.hub.publish(ID, &Files::golden("llama"));
    place.check_refused(
        place.serve(ID).flags("--max-model-len 100000"),
        "max_model_len 100000 is beyond the model's 256 positions; ask for at most 256",
    );
    place.check_refused(
        place.serve(ID).flags("--tensor-parallel-size 3"),
        "tensor_parallel_size 3 does not divide the model's 4 attention heads; choose one of 1, 2, 4",
    );
    assert_eq!(place.requests_for_large_files(), []);
    place.check_served();
}

#[test]
fn doctor_looks_at_a_model_with_its_configuration_alone() {
    let place = Place::with(&Files::golden("qwen2"));
    let doctor = |id: &str| {
        let mut command = program();
        command.env("HF_HOME", place.home.path()).env("HF_ENDPOINT", place.hub.endpoint());
        command.args(["doctor", id, "--json"]).output().unwrap()
    };
    let report: serde_json::Value = serde_json::from_slice(&doctor(ID).stdout).unwrap();
    assert_eq!(report["fits"], true, "{report}");
    assert!(report["weights_bytes"].as_u64() > Some(100_000), "{report}");
    let asked: Vec<String> = place.hub.requests().into_iter().map(|seen| seen.path).collect();
    assert!(
        asked.len() <= 3 && asked.iter().all(|path| !path.contains("safetensors")),
        "{asked:?}"
    );
    let missing = doctor("acme/missing");
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&missing.stdout).contains("there is no model at"),
        "{missing:?}"
    );
}

#[test]
fn a_disk_that_is_too_small_is_seen_before_the_download() {
    let place = Place::with(&Files::golden("llama"));
    // 2^60 bytes, which no disk has.
    place.hub.claim_size(ID, "model.safetensors", 1 << 60);
    let cache = place.home.path().join("hub");
    place.check_refused(
        place.serve(ID),
        &format!(
            "`acme/tiny` needs 1073741824.0 GiB more in {}, where <any>iB are free: make room, or set HF_HUB_CACHE to a folder on a larger disk",
            cache.display()
        ),
    );
    assert_eq!(place.requests_for_large_files(), []);
    place.hub.publish(ID, &Files::golden("llama"));
    place.check_served();
}

#[test]
fn without_the_hub_only_a_whole_model_is_served() {
    let mut place = Place::with(&Files::golden("llama-linear"));
    let cache = place.home.path().join("hub");
    place.check_refused(
        place.serve(ID).env("HF_HUB_OFFLINE", "1"),
        &format!(
            "HF_HUB_OFFLINE is set, and {} does not have config.json of `acme/tiny`: unset it for one start, or copy the model there",
            cache.display()
        ),
    );
    assert_eq!(place.hub.requests(), []);
    place.hub.refuse_connections();
    place.check_refused(
        place.serve(ID),
        &format!(
            "cannot reach the hub at <hub> (<any>), and {} does not have config.json of `acme/tiny`: check the network, or HF_ENDPOINT",
            cache.display()
        ),
    );

    place.hub.accept_connections();
    drop(place.check_served());
    place.hub.refuse_connections();
    let server = place.check_served();
    server.log_with("is taken from the cache as it was last seen");
    drop(server);

    // `llama-linear` has three shards.
    let shard = place.cached(ID).join("snapshots");
    let shard = super::files_ending(&shard, "00002-of-00003.safetensors").remove(0);
    std::fs::remove_file(shard).unwrap();
    place.check_refused(
        place.serve(ID).env("HF_HUB_OFFLINE", "1"),
        &format!(
            "HF_HUB_OFFLINE is set, and {} does not have model-00002-of-00003.safetensors of `acme/tiny`: unset it for one start, or copy the model there",
            cache.display()
        ),
    );
    place.hub.accept_connections();
    drop(place.check_served());
    check_answers(&place.serve(ID).env("HF_HUB_OFFLINE", "1").start(), ID);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let place = Place::with(&Files::golden("llama"));
    let file = place.home.write("file", "");
    place.check_refused(
        place.serve(ID).flag("--hf-hub-cache", &file),
        &format!(
            "cannot write {}<any>: <any>; set HF_HUB_CACHE to a folder that can be written",
            file.display()
        ),
    );
    place.check_served();
}

#[test]
fn a_list_of_files_without_end_is_given_up_at_a_limit() {
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut client in hub.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            let _ = client.read(&mut request);
            // Without a length, the list ends with the connection.
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"siblings\": [";
            let file = br#"{"rfilename": "a", "size": 1}, "#.repeat(4096);
            let mut sent = client.write_all(head);
            while sent.is_ok() {
                sent = client.write_all(&file);
            }
        }
    });
    let home = TempFolder::new();
    let refused = ServerBuilder::new(ID)
        .env("HF_HOME", home.path().to_str().unwrap())
        .env("HF_ENDPOINT", &endpoint)
        .refused();
    let line = format!(
        "the hub at {endpoint} gives more than 64.0 MiB as the list of files of `{ID}`: use another HF_ENDPOINT"
    );
    assert!(refused.message.contains(&line), "{}", refused.message);
}
