//! Tests of the manifests. The end-to-end tests compare them with `configs/k8s` and validate those.

use super::*;
use crate::BlazeParams;
use crate::backend::Backend;
use crate::check::Plan;
use crate::params::Params;

/// The plan of some parameters, its placement, and the description.
struct Made {
    plan: Plan,
    placement: Placement,
    description: Description,
    timeout: u64,
}

fn made(params: impl Into<Params>) -> Made {
    let params = params.into();
    let kubernetes: Backend = "kubernetes".parse().unwrap();
    let plan = Plan::new(&params, &kubernetes).unwrap();
    let placement = Placement::new(&plan.spec, None, &mut Vec::new()).unwrap();
    let description =
        Description { spec: plan.spec.clone(), gpus: placement.gpus, warnings: Vec::new() };
    Made { plan, placement, description, timeout: params.timeout }
}

impl Made {
    fn manifests(&self) -> Manifests<'_> {
        Manifests {
            description: &self.description,
            placement: &self.placement,
            secrets: &self.plan.secrets,
            namespace: Some("models"),
            timeout: self.timeout,
        }
    }
}

/// A Deployment on GPUs with every parameter set.
fn full() -> Made {
    made(
        BlazeParams::new("chat", "Qwen/Qwen3-8B")
            .gpu_count(2)
            .gpu_models(["NVIDIA-H100-80GB-HBM3"])
            .min_gpu_memory_gb(80)
            .image("registry.example/candlepower:1")
            .hub_cache("models")
            .replicas(3)
            // This is no multiple of the startup probe's period, so the count must be rounded up.
            .timeout(601)
            .env("BLAZE_MAX_NUM_SEQS", "32")
            .env("MY_SECRET", "canary-1"),
    )
}

#[test]
fn no_field_is_lost_for_being_misspelt() {
    let made = full();
    let manifests = made.manifests();
    let deployment = serde_json::to_value(manifests.deployment().unwrap()).unwrap();
    // The round trip through the typed object loses no field.
    assert_eq!(deployment["spec"]["template"]["spec"], manifests.pod().unwrap());
    let service = serde_json::to_value(manifests.service(None)).unwrap();
    assert_eq!(service["spec"]["ports"][0]["protocol"], "TCP");
}

#[test]
fn gpus_memory_probes_and_volumes_are_as_asked_for() {
    let made = full();
    let deployment = serde_json::to_value(made.manifests().deployment().unwrap()).unwrap();
    let (spec, pod) = (&deployment["spec"], &deployment["spec"]["template"]["spec"]);
    let rolling =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    assert_eq!((&spec["replicas"], &spec["strategy"]), (&json!(3), &rolling));
    let server = &pod["containers"][0];
    assert_eq!(server["resources"]["limits"], json!({"memory": "16Gi", "nvidia.com/gpu": "2"}));
    assert_eq!(server["resources"]["limits"], server["resources"]["requests"]);
    assert_eq!(server["startupProbe"]["failureThreshold"], 121);
    assert!(spec["progressDeadlineSeconds"].as_u64().unwrap() > 601);
    let requirements =
        &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        requirements["nodeSelectorTerms"][0]["matchExpressions"],
        json!([
            {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]},
            {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["70953"]},
        ])
    );
    assert_eq!(
        pod["volumes"][0],
        json!({"name": "hub-cache", "persistentVolumeClaim": {"claimName": "models"}})
    );
    assert_eq!(pod["volumes"][1]["emptyDir"], json!({"medium": "Memory", "sizeLimit": "4Gi"}));
    let args: Vec<&str> =
        server["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        args.contains(&"--device=cuda") && args.contains(&"--tensor-parallel-size=2"),
        "{args:?}"
    );
    assert_eq!(Description::of(&made.manifests().deployment().unwrap()), Some(made.description));
}

#[test]
fn probes_speak_what_the_server_speaks() {
    let probe = |params: BlazeParams| {
        let deployment = made(params.gpu_count(0)).manifests().deployment().unwrap();
        let deployment = serde_json::to_value(deployment).unwrap();
        let server = &deployment["spec"]["template"]["spec"]["containers"][0];
        for other in ["startupProbe", "readinessProbe"] {
            assert_eq!(server[other]["httpGet"], server["livenessProbe"]["httpGet"]);
        }
        server["livenessProbe"].clone()
    };
    let plain = BlazeParams::new("chat", "demo");
    assert_eq!(probe(plain.clone())["httpGet"], json!({"path": "/health", "port": "http"}));
    let tls =
        plain.env("BLAZE_SSL_CERTFILE", "/data/cert.pem").env("BLAZE_SSL_KEYFILE", "/data/key.pem");
    let get = json!({"path": "/health", "port": "http", "scheme": "HTTPS"});
    assert_eq!(probe(tls.clone())["httpGet"], get);
    let guarded = probe(tls.env("BLAZE_SSL_CA_CERTS", "/data/clients.pem"));
    assert_eq!(guarded["exec"]["command"], json!(["candlepower", "health"]));
    assert!(guarded["httpGet"].is_null() && guarded["periodSeconds"] == 10, "{guarded}");
}

#[test]
fn secrets_are_in_the_secret_alone() {
    let made = full();
    let manifests = made.manifests();
    let rest = [
        serde_json::to_string(&manifests.deployment().unwrap()).unwrap(),
        serde_json::to_string(&manifests.service(None)).unwrap(),
        format!("{:?}", made.description),
    ];
    // The value must not occur in base64 either: `Y2FuYXJ5LTE=`.
    assert!(
        rest.iter().all(|text| !text.contains("canary") && !text.contains("Y2FuYXJ5")),
        "{rest:?}"
    );
    let secret = manifests.secret(None).unwrap();
    assert_eq!(secret.data.unwrap()["MY_SECRET"].0, b"canary-1");
    let env =
        &serde_json::to_value(manifests.deployment().unwrap()).unwrap()["spec"]["template"]["spec"];
    let from = json!({"secretKeyRef": {"name": "chat", "key": "MY_SECRET"}});
    let env = env["containers"][0]["env"].as_array().unwrap();
    assert!(env.iter().any(|variable| variable["valueFrom"] == from), "{env:?}");
}

#[test]
fn the_image_is_asked_for_where_the_gpu_is_not_known() {
    let image = |params| made(params).manifests().image().map_err(|error| error.to_string());
    let demo = || BlazeParams::new("chat", "demo");
    assert_eq!(
        image(demo().gpu_count(0)).unwrap(),
        concat!("candlepower:", env!("CARGO_PKG_VERSION"), "-cpu")
    );
    assert!(
        image(demo()).unwrap_err().starts_with("image ``: the cluster's GPUs are not known here")
    );
    assert_eq!(image(demo().image("a:1")).unwrap(), "a:1");
}

#[test]
fn an_old_pod_waits_for_the_new_one_unless_that_would_need_its_gpus() {
    let strategy = |params: BlazeParams| made(params.image("a:1")).manifests().strategy();
    let chat = || BlazeParams::new("chat", "demo");
    let on_cpu = strategy(chat().gpu_count(0));
    assert_eq!(on_cpu["rollingUpdate"], json!({"maxSurge": 1, "maxUnavailable": 0}));
    assert_eq!(strategy(chat().gpu_count(1)), json!({"type": "Recreate"}));
    let several = strategy(chat().gpu_count(0).replicas(2));
    assert_eq!(several["rollingUpdate"], json!({"maxSurge": 0, "maxUnavailable": 1}));
}

#[test]
fn cpus_are_requested_and_threads_follow_them() {
    let container =
        |params: BlazeParams| made(params.gpu_count(0)).manifests().container().unwrap();
    let chat = || BlazeParams::new("chat", "demo");
    let with = container(chat().cpu("2500m"));
    assert_eq!(with["resources"]["requests"], json!({"memory": "16Gi", "cpu": "2500m"}));
    assert_eq!(with["resources"]["limits"], json!({"memory": "16Gi"}));
    let args = |container: &Value| container["args"].to_string();
    assert!(args(&with).contains("--threads=3"), "{with}");
    assert_eq!(container(chat().cpu("4"))["resources"]["requests"]["cpu"], "4");
    let told = container(chat().cpu("4").env("BLAZE_THREADS", "1"));
    assert!(!args(&told).contains("--threads"), "{told}");
    assert!(!args(&container(chat())).contains("--threads"));
}

#[test]
fn a_server_that_ends_is_given_the_time_that_it_takes() {
    let pod = |params: BlazeParams| made(params.gpu_count(0)).manifests().pod().unwrap();
    let seconds = |pod: &Value| pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    let args = |pod: &Value| pod["containers"][0]["args"].to_string();
    let chat = || BlazeParams::new("chat", "demo");
    let usual = pod(chat());
    assert!(args(&usual).contains("--drain-delay=5"), "{usual}");
    assert!(seconds(&usual) > 5 + 30 + 4, "{usual}");
    let told = pod(chat().env("BLAZE_DRAIN_DELAY", "20").env("BLAZE_SHUTDOWN_TIMEOUT", "600"));
    assert!(!args(&told).contains("--drain-delay"), "{told}");
    assert!(seconds(&told) > 620 + 4, "{told}");
}

#[test]
fn quantities_are_as_short_as_they_can_be() {
    for (bytes, text) in
        [(16 << 30, "16Gi"), (512 << 20, "512Mi"), (3 << 10, "3Ki"), (1_000_000_001, "1000000001")]
    {
        assert_eq!(quantity(bytes), text);
    }
}

#[test]
fn a_dollar_is_a_dollar_to_the_kubelet() {
    let made = made(
        BlazeParams::new("chat", "demo")
            .gpu_count(0)
            .env("A", "$(B) $$ $")
            .served_model_name("$(A)"),
    );
    let container = made.manifests().container().unwrap();
    assert_eq!(container["env"], json!([{"name": "A", "value": "$$(B) $$$$ $$"}]));
    let args = container["args"].as_array().unwrap();
    assert!(args.contains(&json!("--served-model-name=$$(A)")), "{args:?}");
}
