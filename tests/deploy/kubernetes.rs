//! The kubernetes backend with a fake API server on this machine that plays scripted stories; and the manifests in
//! `configs/k8s`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{Home, address, check_answers, signal, text};
use crate::support::{Cluster, Request, Server, Story, python, run_to_end, wait_for};

fn home(cluster: &Cluster) -> Home {
    Home::new().with_env("KUBECONFIG", &cluster.kubeconfig())
}

/// `deploy demo` to the cluster, on the CPU.
fn demo(name: &str, flags: &str) -> String {
    format!("deploy demo --name {name} --backend kubernetes --gpu-count 0 {flags}")
}

#[test]
fn a_deployment_is_made_found_restarted_and_deleted_with_all_that_is_its_own() {
    let cluster = Cluster::start(Story::Ready);
    let home = home(&cluster);
    let deployed = home.json(&demo("chat", "--env MY_SECRET=canary-1"));
    assert_eq!((&deployed["state"], &deployed["is_ready"]), (&"Running".into(), &true.into()));
    assert_eq!(deployed["url"], "http://chat.models.svc:8000");
    let message = deployed["message"].as_str().unwrap();
    assert!(message.contains("`candlepower forward chat --namespace models`"), "{message}");
    let objects = cluster.objects();
    let kinds: Vec<&str> = objects.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["Deployment", "Secret", "Service"]);
    for kind in ["Secret", "Service"] {
        let owner = &objects[kind]["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["name"]), (&"Deployment".into(), &"chat".into()));
        assert_eq!(owner["uid"], objects["Deployment"]["metadata"]["uid"]);
    }
    // A cluster is searched only if it is named.
    assert_eq!(home.json("ls"), json!([]));
    assert_eq!(home.json("ls --namespace models")[0]["name"], "chat");
    let place = "--backend kubernetes";
    assert_eq!(home.json(&format!("logs chat --tail 2 {place}")), json!(["line 2", "line 3"]));
    assert_eq!(
        home.json(&format!("events chat {place}"))[0]["message"],
        "Started: Started container server"
    );
    home.json(&format!("restart chat {place}"));
    let template = &cluster.objects()["Deployment"]["spec"]["template"];
    assert!(template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"].is_string());
    home.json(&format!("delete chat {place}"));
    assert!(cluster.objects().is_empty());
    assert_eq!(home.error(&format!("status chat {place}"), 3)["code"], "NOT_FOUND");
}

#[test]
fn an_update_replaces_the_objects_and_is_taken_back_where_it_fails() {
    // The story fails for one length of the context only, so the update fails and the rollback succeeds.
    let cluster = Cluster::start(Story::Unless("--max-model-len=13", "crash_loop"));
    let home = home(&cluster);
    home.json(&demo("chat", "--replicas 1 --env MY_SECRET=canary-1 --env NOTE=a"));
    let place = "--backend kubernetes";
    let updated =
        home.json(&format!("update chat {place} --max-model-len 512 --cpu 2 --port 9000"));
    assert_eq!(
        (&updated["is_ready"], &updated["url"]),
        (&json!(true), &json!("http://chat.models.svc:9000"))
    );
    let objects = cluster.objects();
    let server = &objects["Deployment"]["spec"]["template"]["spec"]["containers"][0];
    let args = server["args"].to_string();
    assert!(args.contains("--max-model-len=512") && args.contains("--threads=2"), "{args}");
    assert_eq!(server["resources"]["requests"]["cpu"], "2");
    assert!(server["env"].to_string().contains("NOTE"), "{server}");
    assert_eq!(objects["Service"]["spec"]["ports"][0]["port"], 9000);
    // `canary-1`, which was not given again.
    assert_eq!(objects["Secret"]["data"]["MY_SECRET"], "Y2FuYXJ5LTE=");

    let failed = home.error(&format!("update chat {place} --max-model-len 13 --timeout 5"), 1);
    let message = failed["message"].as_str().unwrap();
    assert!(message.ends_with("the server before the update runs on"), "{message}");
    let objects = cluster.objects();
    assert!(objects["Deployment"]["spec"].to_string().contains("--max-model-len=512"));
    assert_eq!(home.json(&format!("status chat {place}"))["is_ready"], true);
    let error = home.error(&demo("chat", ""), 4);
    assert!(error["difference"].as_str().unwrap().contains("max_model_len: it has 512"), "{error}");
}

#[test]
fn a_port_here_leads_to_a_pod_until_ctrl_c() {
    let (server, cluster) = (Server::demo(), Cluster::start(Story::Ready));
    cluster.lead_to(server.address);
    let home = home(&cluster);
    home.json(&demo("chat", ""));
    let mut forward = home.command("forward chat --namespace models --json").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(forward.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let opened: serde_json::Value = serde_json::from_str(&line).unwrap();
    // Each client has a connection of its own.
    check_answers(&opened);
    check_answers(&opened);
    // The answer is long enough to arrive in many pieces through the tunnel.
    let body = json!({
        "model": "demo", "prompt": "The capital", "max_tokens": 300, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let stream = Request::post("/v1/completions", &body).open(address(&opened)).unwrap();
    assert_eq!(stream.chunks().last().unwrap()["usage"]["completion_tokens"], 300);
    assert!(
        Command::new("kill").args(["-INT", &forward.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(forward.wait().unwrap().code(), Some(0));
    std::net::TcpStream::connect(address(&opened)).unwrap_err();
    // For people it is a sentence.
    let mut forward = home.command("forward chat --namespace models").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(forward.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let url = line.strip_prefix("chat is available at ").unwrap();
    let url = url.strip_suffix("; press Ctrl-C to stop\n").unwrap();
    check_answers(&json!({ "url": url }));
    signal("-INT", forward.id().into());
    assert_eq!(forward.wait().unwrap().code(), Some(0));
}

#[test]
fn a_name_belongs_to_one_spec() {
    let cluster = Cluster::start(Story::Ready);
    let home = home(&cluster);
    home.json(&demo("chat", ""));
    home.json(&demo("chat", "--timeout 500"));
    let error = home.error(&demo("chat", "--max-model-len 512"), 4);
    assert_eq!(error["code"], "NAME_IN_USE");
    cluster.occupy("web");
    let error = home.error(&demo("web", ""), 11);
    assert!(
        error["message"].as_str().unwrap().contains("that candlepower has not made"),
        "{error}"
    );
    assert_eq!(home.error("delete web --backend kubernetes", 3)["code"], "NOT_FOUND");
}

#[test]
fn a_client_that_waits_lets_another_ones_deployment_of_the_name_be() {
    let cluster = Cluster::start(Story::Recorded("starting"));
    let home = home(&cluster);
    let first = home.command(&demo("chat", "--timeout 600 --json")).spawn().unwrap();
    let place = "chat --backend kubernetes";
    // The Deployment and its Service exist; without secrets there is no Secret.
    wait_for("the objects", || (cluster.objects().len() == 2).then_some(()));
    // The stopped client does not notice that its deployment is gone before another one exists.
    signal("-STOP", first.id().into());
    home.json(&format!("delete {place}"));
    home.error(&demo("chat", "--max-model-len 512 --timeout 1 --keep-on-failure"), 5);
    signal("-CONT", first.id().into());
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert_eq!(cluster.objects().len(), 2);
}

#[test]
fn what_fails_or_is_late_says_why_and_is_removed() {
    let cluster = Cluster::start(Story::Recorded("crash_loop"));
    // The recorded pod was started with an unknown variable.
    let error = home(&cluster).error(&demo("chat", ""), 1);
    let reason = error["reason"].as_str().unwrap();
    assert!(
        reason
            .starts_with("the server ended with status 2: the environment variable BLAZE_NONSENSE"),
        "{reason}"
    );
    // The log of the previous run, because the server does not run now.
    assert_eq!(error["log"], json!(["line 1", "line 2", "line 3"]));
    assert!(cluster.objects().is_empty());

    let cluster = Cluster::start(Story::Recorded("starting"));
    let error = home(&cluster).error(&demo("chat", "--timeout 1"), 5);
    // The server's own phase, through the API server.
    assert_eq!((&error["code"], &error["phase"]), (&"TIMEOUT".into(), &"pulling".into()));
    assert!(cluster.objects().is_empty());

    let cluster = Cluster::start(Story::Recorded("unschedulable"));
    let home = home(&cluster);
    home.error(&demo("chat", "--timeout 1 --keep-on-failure"), 5);
    let status = home.json("status chat --backend kubernetes");
    assert_eq!((&status["state"], &status["phase"]), (&"Pending".into(), &"scheduling".into()));
    assert!(status["message"].as_str().unwrap().starts_with("no node can take it"), "{status}");
}

#[test]
fn gpus_are_those_that_the_cluster_has() {
    let cluster = Cluster::start(Story::Ready);
    cluster.show_nodes(vec![
        json!({"metadata": {"name": "a"}, "status": {"allocatable": {"memory": "64Gi"}}}),
    ]);
    let home = home(&cluster);
    let deployed = home.json("deploy demo --name cpu --backend kubernetes");
    let message = deployed["message"].as_str().unwrap();
    assert!(
        message.starts_with("the cluster has no node with GPUs: computing on the CPU"),
        "{message}"
    );
    assert_eq!(
        home.error("deploy demo --name x --backend kubernetes --gpu-count 2", 6)["message"],
        "2 GPUs were asked for, but the cluster has no node with GPUs: set gpu_count to 0 to compute on the CPU"
    );
    cluster.show_nodes(vec![json!({
        "metadata": {"name": "a", "labels": {
            // The labels are those of NVIDIA's GPU feature discovery.
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559",
            "nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0",
        }},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    })]);
    home.json("deploy demo --name gpu --backend kubernetes --gpu-models h100");
    let objects = cluster.objects();
    let pod = &objects["Deployment"]["spec"]["template"]["spec"];
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(pod["containers"][0]["image"], format!("candlepower:{version}-cuda-sm90"));
    assert!(pod["affinity"].to_string().contains("NVIDIA-H100-80GB-HBM3"), "{pod}");
    // Nine are one more than the node has.
    let error = home.error("deploy demo --name x --backend kubernetes --gpu-count 9", 6);
    assert!(error["message"].as_str().unwrap().contains("8 x NVIDIA-H100-80GB-HBM3"), "{error}");
}

#[test]
fn secrets_are_in_the_secret_alone() {
    let cluster = Cluster::start(Story::Ready);
    let home = home(&cluster);
    let mut command =
        home.command(&format!("{} --json", demo("chat", "--env MY_SECRET=canary-other")));
    let output = command
        .env("HF_TOKEN", "hf_canary_token")
        .env("CANDLEPOWER_API_KEY", "canary-key")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let mut objects = cluster.objects();
    let secret = objects.remove("Secret").unwrap();
    let names: Vec<&String> = secret["data"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["BLAZE_API_KEY", "HF_TOKEN", "MY_SECRET"]);
    let shown = [json!(objects).to_string(), text(&output), cluster.requests().concat()];
    // In plain text, and in the Secret's form: base64 of `hf_canary`, of `canary`.
    for canary in ["canary", "aGZfY2FuYXJ5", "Y2FuYXJ5"] {
        assert!(shown.iter().all(|text| !text.contains(canary)), "{canary}: {shown:?}");
    }
    for args in ["status chat", "ls", "events chat"] {
        assert!(
            !text(&home.run(&format!("{args} --backend kubernetes"))).contains("canary"),
            "{args}"
        );
    }
    home.json("delete chat --backend kubernetes");
    assert!(cluster.objects().is_empty());
}

#[test]
fn without_a_cluster_or_a_model_that_it_can_have_nothing_is_tried() {
    let nowhere = Home::new().with_env("KUBECONFIG", "/nowhere/kubeconfig");
    let error = nowhere.error(&demo("x", ""), 11);
    assert!(error["message"].as_str().unwrap().starts_with("no cluster can be used: "), "{error}");
    let folder = candlepower_testing::goldens::folder("llama");
    let folder = folder.display();
    let args = format!("deploy {folder} --name x --backend kubernetes --gpu-count 0 --dry-run");
    assert_eq!(nowhere.error(&args, 2)["field"], "model");
    let error = nowhere.error("deploy demo --name x --backend kubernetes --dry-run", 2);
    assert_eq!(error["field"], "image");
    let error = nowhere.error("deploy demo --name x --backend process --namespace a", 2);
    assert_eq!((&error["field"], &error["value"]), (&"namespace".into(), &"a".into()));
    let error = nowhere.error("deploy demo --name x --dry-run", 2);
    assert_eq!(error["field"], "backend");
}

fn manifests() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/k8s");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_manifests_are_those_that_their_first_line_makes() {
    let home = Home::new().with_env("KUBECONFIG", "/nowhere/kubeconfig");
    assert!(manifests().len() >= 3);
    for file in manifests() {
        let kept = std::fs::read_to_string(&file).unwrap();
        // The first line of each manifest is the command that makes it.
        let (command, rest) = kept.split_once('\n').unwrap();
        let args = command.strip_prefix("# candlepower ").unwrap();
        let made = text(&home.run(args));
        assert_eq!(rest, made, "{}: make it again with `{args}`", file.display());
        assert!(!made.contains("kind: Secret"), "{}", file.display());
    }
}

#[test]
fn the_manifests_are_valid_for_two_versions_of_kubernetes() {
    run_to_end(python("clients/kubernetes_manifests.py").args(["1.34", "1.37"]).args(manifests()));
}

/// A build without features does not compile a Kubernetes client.
#[test]
fn the_usual_build_has_nothing_of_it() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = Command::new(cargo);
    // The tree is resolved from the lock file, so the test needs no network.
    tree.args(
        "tree --package candlepower --edges normal --prefix none --offline --locked".split(' '),
    );
    let tree = text(&tree.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap());
    assert!(tree.contains("candlepower-client "), "{tree}");
    for name in ["kube", "k8s-openapi", "tar", "tokio-tungstenite"] {
        assert!(tree.lines().all(|line| !line.starts_with(&format!("{name} "))), "{name}");
    }
}
