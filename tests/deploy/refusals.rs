//! Deployments that are refused before anything starts, with the exact reason.

use std::net::TcpListener;

use super::{Home, demo};
use crate::support::{Access, Files, Hub, TempFolder};

/// The error of a refused deployment. Nothing of it is left.
#[track_caller]
fn refused(home: &Home, args: &str, status: i32, code: &str) -> serde_json::Value {
    let error = home.error(args, status);
    assert_eq!(error["code"], code);
    assert!(!home.folder("x").exists());
    error
}

#[test]
fn parameters_that_cannot_be_used_are_named_with_their_value() {
    let home = Home::new();
    for (args, field, value, message) in [
        (
            "deploy demo --name Bad_Name",
            "name",
            "Bad_Name",
            "name `Bad_Name`: a name has at most 63 lowercase letters, digits and hyphens, and no hyphen at either end",
        ),
        (
            "deploy demo --name x --memory 16GB",
            "memory",
            "16GB",
            "memory `16GB`: write a Kubernetes quantity such as 16Gi, 512Mi or 2G",
        ),
        (
            "deploy demo --name x --quantization int3",
            "quantization",
            "int3",
            "quantization `int3`: choose one of awq, gptq, squeezellm, fp8",
        ),
        (
            "deploy demo --name x --backend slurm",
            "backend",
            "slurm",
            "backend `slurm`: choose one of process, docker, kubernetes",
        ),
        (
            "deploy nowhere --name x",
            "model",
            "nowhere",
            "model `nowhere`: there is no such folder or file; name a folder with config.json, a GGUF file, a model on the hub as owner/name or owner/name:Q4_K_M, or `demo`",
        ),
        (
            "deploy demo --name x --max-model-len 1000000",
            "max_model_len",
            "1000000",
            "max_model_len `1000000`: max_model_len 1000000 is beyond the model's 2048 positions; ask for at most 2048",
        ),
        (
            "deploy demo --name x --ttl-seconds 9223372036854775807",
            "ttl_seconds",
            "9223372036854775807",
            "ttl_seconds `9223372036854775807`: at most 1000000000 is possible",
        ),
        (
            "deploy demo --name x --dry-run --namespace a_b",
            "namespace",
            "a_b",
            "namespace `a_b`: a namespace has at most 63 lowercase letters, digits and hyphens, and no hyphen at either end",
        ),
        (
            "deploy demo --name x --tensor-parallel-size 2",
            "tensor_parallel_size",
            "2",
            "tensor_parallel_size `2`: it may not exceed gpu_count, which is 1",
        ),
    ] {
        let error = refused(&home, args, 2, "VALIDATION_ERROR");
        assert_eq!((&error["field"], &error["value"]), (&field.into(), &value.into()));
        assert_eq!(error["message"], message);
    }
}

#[test]
fn quantization_memory_and_gpus_are_checked_against_what_there_is() {
    let home = Home::new();
    let error = refused(&home, &demo("x", "--quantization awq"), 9, "QUANTIZATION_MISMATCH");
    assert_eq!(
        error["message"],
        "quantization `awq` does not match the weights: config.json says that they are not quantized; leave quantization out"
    );
    // The demo alone needs more than 64 MiB.
    let error = refused(&home, &demo("x", "--memory 1Mi"), 7, "OUT_OF_MEMORY");
    assert_eq!((&error["free"], &error["max_model_len"]), (&(1 << 20).into(), &0.into()));
    assert!(error["needed"].as_u64().unwrap() > 64 << 20, "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("out of memory: ") && message.contains("1.0 MiB are free"),
        "{message}"
    );
    let flags = "--gpu-models NoSuchGPU --min-gpu-memory-gb 80";
    let error = refused(&home, &demo("x", flags), 6, "RESOURCE_UNAVAILABLE");
    let expected =
        "1 GPU of model NoSuchGPU with at least 80 GB was asked for, but this machine has ";
    assert!(error["message"].as_str().unwrap().starts_with(expected), "{error}");
}

#[test]
fn a_backend_that_the_environment_leaves_empty_is_the_default() {
    let home = Home::new().with_env("CANDLEPOWER_BACKEND", "");
    assert_eq!(home.json("ls"), serde_json::json!([]));
}

#[test]
fn a_gated_model_needs_a_token() {
    let hub = Hub::start();
    hub.publish("acme/tiny", &Files::golden("llama"));
    hub.set_access("acme/tiny", Access::Gated);
    let cache = TempFolder::new();
    let home = Home::new()
        .with_env("HF_ENDPOINT", &hub.endpoint())
        .with_env("HF_HOME", cache.path().to_str().unwrap());
    let error = refused(&home, "deploy acme/tiny --name x", 8, "GATED_MODEL");
    let page = format!("{}/acme/tiny", hub.endpoint());
    assert_eq!(
        error["message"],
        format!(
            "`acme/tiny` is gated: accept its licence at {page}, then set HF_TOKEN to a token of the account that did"
        )
    );
    let error = refused(&home, "deploy acme/missing --name x", 2, "VALIDATION_ERROR");
    assert_eq!(error["field"], "model");
    // The refusal comes before the first byte of weights.
    let weights = hub.requests().into_iter().filter(|seen| seen.path.contains("safetensors"));
    assert_eq!(weights.count(), 0);
}

#[test]
fn a_port_that_is_taken_fails_with_the_servers_own_words() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = refused(&home, &demo("x", &format!("--port {port}")), 1, "FAILED");
    let reason = format!(
        "cannot listen on 127.0.0.1:{port}: Address already in use (os error 98); another server listens on this port: \
         choose another with --port N, or a free one with --port 0"
    );
    assert_eq!(error["reason"], reason);
    assert_eq!(error["message"], format!("`x` failed: {reason}; nothing is left running"));
}

#[test]
fn a_failure_that_is_kept_can_be_looked_at() {
    let home = Home::new();
    let args = demo("x", "--env BLAZE_NONSENSE=1 --keep-on-failure");
    let error = home.error(&args, 1);
    let reason = error["reason"].as_str().unwrap();
    assert!(reason.starts_with("the environment variable BLAZE_NONSENSE is not known"), "{error}");
    let status = home.json("status x");
    assert_eq!((&status["state"], &status["exit_code"]), (&"Failed".into(), &2.into()));
    assert_eq!(status["message"], error["reason"]);
    home.json("delete x");
    assert!(!home.folder("x").exists());
}
