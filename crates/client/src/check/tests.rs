//! Tests of refused parameters and of the plans made from accepted ones.

use candlepower_machine::ComputeCapability;

use super::*;
use crate::{BlazeParams, PrismParams};

/// The plan for these parameters on this machine.
fn plan(params: impl Into<Params>) -> Plan {
    Plan::new(&params.into(), &Backend::Process).unwrap()
}

fn refused(params: impl Into<Params>) -> (String, String) {
    refused_by(&Backend::Process, params)
}

fn refused_by(backend: &Backend, params: impl Into<Params>) -> (String, String) {
    match Plan::new(&params.into(), backend) {
        Err(Error::Validation { field, value, .. }) => (field.to_owned(), value),
        other => panic!("{other:?}"),
    }
}

fn pair(field: &str, value: &str) -> (String, String) {
    (field.to_owned(), value.to_owned())
}

#[test]
fn names_are_labels() {
    for name in ["a", "chat-1", "0", &"a".repeat(63)] {
        check_name(name).unwrap();
    }
    for name in ["", "A", "a_b", "-a", "a-", "a.b", "../x", &"a".repeat(64)] {
        assert_eq!(refused(BlazeParams::new(name, "demo")), pair("name", name));
    }
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let demo = || BlazeParams::new("a", "demo");
    assert_eq!(refused(demo().quantization("int3")), pair("quantization", "int3"));
    assert_eq!(refused(demo().memory("16GB")), pair("memory", "16GB"));
    assert_eq!(refused(demo().dtype("int8")), pair("dtype", "int8"));
    assert_eq!(refused(demo().replicas(0)), pair("replicas", "0"));
    assert_eq!(refused(demo().hub_cache("models")), pair("hub_cache", "models"));
    assert_eq!(refused(demo().timeout(0)), pair("timeout", "0"));
    assert_eq!(refused(demo().replicas(2)), pair("replicas", "2"));
    let ranks = demo().gpu_count(2).tensor_parallel_size(4);
    assert_eq!(refused(ranks), pair("tensor_parallel_size", "4"));
    assert_eq!(refused(demo().gpu_memory_utilization(1.5)), pair("gpu_memory_utilization", "1.5"));
    let part = PrismParams::new("a", "demo").mem_fraction_static(0.0);
    assert_eq!(refused(part), pair("mem_fraction_static", "0"));
    for names in ["", " ", "a,,b", "a,"] {
        assert_eq!(refused(demo().served_model_name(names)), pair("served_model_name", names));
    }
    let for_ever = i64::MAX as u64;
    assert_eq!(refused(demo().ttl_seconds(for_ever)), pair("ttl_seconds", "9223372036854775807"));
    assert_eq!(refused(demo().timeout(2_147_483_588)), pair("timeout", "2147483588"));
    for model in ["./nowhere", "src/process/none.gguf"] {
        assert_eq!(refused(BlazeParams::new("a", model)), pair("model", model));
    }
}

#[cfg(feature = "full")]
#[test]
fn what_a_backend_cannot_do_is_refused() {
    let docker: Backend = "docker".parse().unwrap();
    let kubernetes: Backend = "kubernetes".parse().unwrap();
    let demo = || BlazeParams::new("a", "demo");
    assert_eq!(refused_by(&docker, demo().replicas(2)), pair("replicas", "2"));
    for backend in [&docker, &kubernetes] {
        assert_eq!(refused_by(backend, demo().ttl_seconds(9)), pair("ttl_seconds", "9"));
        for cache in ["", "a/b", "/a:b", "-a", "a b"] {
            assert_eq!(refused_by(backend, demo().hub_cache(cache)), pair("hub_cache", cache));
        }
        for cache in ["/srv/models", "models"] {
            assert!(Plan::new(&demo().hub_cache(cache).into(), backend).is_ok());
        }
    }
    for backend in [&docker, &kubernetes] {
        for image in ["", "a b"] {
            assert_eq!(refused_by(backend, demo().image(image)), pair("image", image));
        }
        assert_eq!(refused_by(backend, demo().port(0)), pair("port", "0"));
    }
    let many = demo().replicas(1 << 31);
    assert_eq!(refused_by(&kubernetes, many), pair("replicas", "2147483648"));
    let scaled = Plan::new(&demo().replicas(3).image("x:1").into(), &kubernetes).unwrap();
    assert_eq!((scaled.spec.replicas, scaled.spec.image.as_deref()), (3, Some("x:1")));
    assert!(scaled.warnings.is_empty());
}

#[cfg(feature = "kubernetes")]
#[test]
fn names_that_a_cluster_would_refuse_are_refused_here() {
    let kubernetes: Backend = "kubernetes".parse().unwrap();
    assert_eq!(refused_by(&kubernetes, BlazeParams::new("0a", "demo")), pair("name", "0a"));
    let demo = || BlazeParams::new("a", "demo");
    for name in ["1A", "A B", "A/B", "..A", "Ä"] {
        assert_eq!(refused_by(&kubernetes, demo().env(name, "x")), pair("env", name));
    }
    for name in ["A", "_a.b-C", "MY_SECRET"] {
        Plan::new(&demo().env(name, "x").into(), &kubernetes).unwrap();
    }
    let nowhere = Backend::Kubernetes { context: None, namespace: Some("a_b".into()) };
    assert_eq!(refused_by(&nowhere, demo()), pair("namespace", "a_b"));
}

#[test]
fn gpus_that_stay_idle_are_told() {
    let demo = || BlazeParams::new("a", "demo").gpu_count(4);
    assert_eq!(
        plan(demo().tensor_parallel_size(2)).warnings,
        ["2 of 4 GPUs stay idle: tensor_parallel_size is 2; raise it, or lower gpu_count"]
    );
    for params in [demo(), demo().tensor_parallel_size(4)] {
        assert!(plan(params).warnings.is_empty());
    }
}

#[cfg(not(feature = "docker"))]
#[test]
fn a_backend_that_is_not_built_says_which_build_has_it() {
    let docker: Backend = "docker".parse().unwrap();
    let params = BlazeParams::new("a", "demo");
    let error = Plan::new(&params.into(), &docker).unwrap_err().to_string();
    assert!(error.starts_with("backend `docker`: this build does not include it"), "{error}");
}

#[test]
fn secrets_stay_out_of_what_is_written() {
    let params = BlazeParams::new("a", "demo")
        .api_key("canary-key")
        .env(HUB_TOKEN, "canary-token")
        .env("BLAZE_MAX_NUM_SEQS", "7");
    let plan = plan(params.clone());
    let written = serde_json::to_string(&plan.spec).unwrap();
    for text in [written, format!("{plan:?}"), format!("{params:?}")] {
        assert!(!text.contains("canary"), "{text}");
    }
    assert_eq!(plan.spec.env["BLAZE_MAX_NUM_SEQS"], "7");
    assert_eq!(plan.secrets.0["BLAZE_API_KEY"], "canary-key");
    assert!(plan.spec.secret_names.contains(HUB_TOKEN));
}

#[test]
fn the_command_line_says_what_was_said() {
    let params = PrismParams::new("a", "demo").context_length(512).enforce_eager(true);
    let plan = plan(params);
    assert_eq!(
        plan.spec.argv,
        ["serve", "demo", "--framework=prism", "--max-model-len=512", "--enforce-eager"]
    );
}

#[test]
fn the_gpus_with_the_most_free_memory_are_taken() {
    let gpu = |name: &str, free_gb: u64| Gpu {
        name: name.into(),
        uuid: format!("GPU-{free_gb}"),
        memory_total_bytes: 79 << 30,
        memory_free_bytes: free_gb << 30,
        compute_capability: ComputeCapability { major: 9, minor: 0 },
    };
    let devices = vec![gpu("NVIDIA H100", 10), gpu("NVIDIA H100", 70), gpu("NVIDIA T4", 78)];
    let found = Gpus { devices, ..Gpus::default() };
    let demo = || BlazeParams::new("a", "demo");
    for (params, device, uuids) in [
        // Without a request the GPU is only offered: the server may not be built for it.
        (demo(), Device::Auto, vec!["GPU-78"]),
        (demo().gpu_count(0), Device::Cpu, vec![]),
        (demo().gpu_models(["h100"]), Device::Cuda, vec!["GPU-70"]),
        (demo().gpu_count(2).min_gpu_memory_gb(80), Device::Cuda, vec!["GPU-78", "GPU-70"]),
    ] {
        let spec = plan(params).spec;
        let chosen = spec.choose_gpus(&found, &mut Vec::new()).unwrap();
        let found: Vec<_> = chosen.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        assert_eq!((chosen.device, found), (device, uuids));
    }
}

#[test]
fn gpus_that_are_not_there_are_told() {
    let none = Gpus { reason: Some("no driver".into()), ..Gpus::default() };
    let spec = |params: BlazeParams| plan(params).spec;
    let demo = || BlazeParams::new("a", "demo");
    let mut warnings = Vec::new();
    let chosen = spec(demo()).choose_gpus(&none, &mut warnings).unwrap();
    assert!(chosen.gpus.is_empty() && chosen.device == Device::Cpu);
    assert_eq!(warnings, ["this machine has no free GPU: computing on the CPU"]);
    for (params, asked) in [
        (demo().gpu_count(2), "2 GPUs were"),
        (demo().gpu_models(["H100", "A100"]), "1 GPU of model H100 or A100 was"),
        (demo().min_gpu_memory_gb(80), "1 GPU with at least 80 GB was"),
    ] {
        let error = spec(params).choose_gpus(&none, &mut warnings).unwrap_err();
        assert_eq!(error.code(), "RESOURCE_UNAVAILABLE");
        assert_eq!(
            error.to_string(),
            format!(
                "{asked} asked for, but this machine has none (no driver): set gpu_count to 0 to compute on the CPU"
            )
        );
    }
}

#[test]
fn a_server_with_a_certificate_is_reached_over_tls() {
    assert_eq!(plan(BlazeParams::new("a", "demo")).spec.scheme(), "http");
    let tls = BlazeParams::new("a", "demo")
        .env("BLAZE_SSL_CERTFILE", "cert.pem")
        .env("BLAZE_SSL_KEYFILE", "/keys/key.pem");
    let spec = plan(tls.clone()).spec;
    assert_eq!((spec.scheme(), spec.identity()), ("https", None));
    // The supervisor runs in another folder and reads these files, too.
    let here = std::env::current_dir().unwrap();
    assert_eq!(spec.env["BLAZE_SSL_CERTFILE"], here.join("cert.pem").to_string_lossy());
    assert_eq!(spec.env["BLAZE_SSL_KEYFILE"], "/keys/key.pem");
    let guarded = tls.env("BLAZE_SSL_CA_CERTS", "clients.pem");
    let spec = plan(guarded.clone()).spec;
    let (certificate, key) = spec.identity().unwrap();
    assert_eq!(certificate, here.join("cert.pem"));
    assert_eq!(key, Path::new("/keys/key.pem"));
    // In a container the files are the container's own, and the client outside cannot present its
    // certificate.
    let docker: Backend = "docker".parse().unwrap();
    if docker.check().is_ok() {
        let error = Plan::new(&guarded.into(), &docker).unwrap_err();
        assert!(error.to_string().contains("BLAZE_SSL_CA_CERTS"), "{error}");
    }
}
