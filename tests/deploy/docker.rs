//! The docker backend with a fake engine on this machine. Its containers are processes.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;

use serde_json::{Value, json};

use super::{Home, address, check_answers, text};
use crate::support::{Engine, IMAGE, Manner, Request, TempFolder};

/// A home folder that uses this container engine.
pub(super) fn home(engine: &Engine) -> Home {
    Home::new().with_env("DOCKER_HOST", &engine.host())
}

pub(super) fn boxed(name: &str, flags: &str) -> String {
    format!(
        "deploy demo --name {name} --backend docker --image {IMAGE} --env BLAZE_KV_CACHE_MEMORY=64Mi {flags}"
    )
}

#[test]
fn a_container_answers_until_it_is_deleted_and_leaves_nothing() {
    for manner in [Manner::Docker, Manner::OldPodman] {
        let engine = Engine::start(manner);
        let home = home(&engine);
        let deployed = home.json(&boxed("chat", "--memory 2Gi"));
        assert_eq!((&deployed["state"], &deployed["is_ready"]), (&"Running".into(), &true.into()));
        assert_eq!(deployed["image"], IMAGE);
        check_answers(&deployed);
        // The client keeps no record on this machine, so any client of the engine finds the deployment.
        assert!(!home.state.path().join("candlepower").exists());
        let other = self::home(&engine);
        assert_eq!(other.json("ls")[0]["name"], "chat");
        // The lines of the server's start are more than five.
        assert_eq!(other.json("logs chat --tail 5").as_array().unwrap().len(), 5);
        assert_eq!(other.json("events chat")[1]["phase"], "initializing");

        let restarted = other.json("restart chat --backend docker");
        assert_eq!(restarted["url"], deployed["url"]);
        check_answers(&restarted);
        assert_eq!(other.json("delete chat")["state"], "Deleted");
        assert_eq!(engine.bodies(), Vec::<Value>::new());
        assert_eq!(home.error("status chat", 3)["code"], "NOT_FOUND");
        assert_eq!(home.json("ls"), json!([]));
    }
}

#[test]
fn the_engine_is_asked_for_what_was_asked_for() {
    let engine = Engine::start(Manner::Docker);
    let model = TempFolder::new();
    copy_golden(&model);
    let home = home(&engine);
    let folder = model.path().to_str().unwrap();
    // The folder does not exist at the container's path, so the server cannot start. The request is what this test
    // checks.
    let flags = "--memory 2Gi --keep-on-failure --framework prism --env PRISM_KV_CACHE_MEMORY=64Mi --hub-cache models";
    let args = format!("deploy {folder} --name tree --backend docker --image {IMAGE} {flags}");
    assert_eq!(home.error(&args, 1)["code"], "FAILED");
    let body = &engine.bodies()[0];
    let host = &body["HostConfig"];
    // 512 MiB are for the ranks' shared memory.
    assert_eq!((&host["Memory"], &host["ShmSize"]), (&json!(2u64 << 30), &json!(512 << 20)));
    assert_eq!(host["PortBindings"]["30000/tcp"][0]["HostIp"], "127.0.0.1");
    assert_eq!(host["Binds"], json!(["models:/data", format!("{folder}:/model:ro")]));
    // The number is the budget of the process backend, too.
    assert_eq!(host["RestartPolicy"], json!({"Name": "on-failure", "MaximumRetryCount": 5}));
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["DeviceRequests"], json!([]));
    assert_eq!(body["Env"], json!(["PRISM_KV_CACHE_MEMORY=64Mi"]));
    assert_eq!(body["Labels"]["candlepower.deployment"], "tree");
    let name = model.path().file_name().unwrap().to_str().unwrap();
    let command: Vec<&str> =
        body["Cmd"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(command[..2], ["serve", "/model"]);
    for flag in [
        format!("--served-model-name={name}").as_str(),
        "--device=cpu",
        "--host=0.0.0.0",
        "--port=30000",
    ] {
        assert!(command.contains(&flag), "{flag}: {command:?}");
    }
}

fn copy_golden(folder: &TempFolder) {
    for entry in std::fs::read_dir(candlepower_testing::goldens::folder("llama")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
}

#[test]
fn the_same_container_is_found_again_and_another_one_is_refused() {
    let engine = Engine::start(Manner::OldPodman);
    let home = home(&engine);
    let deployed = home.json(&boxed("chat", ""));
    assert_eq!(home.json(&boxed("chat", "--timeout 500"))["url"], deployed["url"]);
    assert_eq!(home.error(&boxed("chat", "--max-model-len 512"), 4)["code"], "NAME_IN_USE");
    // A container that has ended is started again.
    engine.kill();
    let status = home.wait_for_status("chat", |status| status["state"] == "Failed");
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("the server was killed (SIGKILL)"), "{message}");
    // The status of a process that a signal ended is 128 and the signal: SIGKILL is 9.
    assert_eq!(status["exit_code"], 137);
    let again = home.json(&boxed("chat", ""));
    assert_eq!(again["url"], deployed["url"]);
    check_answers(&again);
    engine.occupy("candlepower-mine");
    let error = home.error(&boxed("mine", ""), 11);
    let expected = "there is a container `candlepower-mine` that is no deployment";
    assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
}

#[test]
fn of_two_clients_one_makes_the_container() {
    let engine = Engine::start(Manner::Docker);
    let home = home(&engine);
    // Four clients are enough for two of them to see no container at the same time.
    let clients: Vec<_> = (0..4)
        .map(|_| home.command(&format!("{} --json", boxed("chat", ""))).spawn().unwrap())
        .collect();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
    assert_eq!(engine.bodies().len(), 1);
    let other = home.json("status chat");
    check_answers(&other);
}

#[test]
fn a_process_and_a_container_do_not_share_a_name() {
    let engine = Engine::start(Manner::Docker);
    let home = home(&engine);
    home.deploy_demo("chat", "");
    assert_eq!(home.error(&boxed("chat", ""), 4)["code"], "NAME_IN_USE");
    home.json(&boxed("boxed", ""));
    let names: Vec<Value> =
        home.json("ls").as_array().unwrap().iter().map(|found| found["name"].clone()).collect();
    assert_eq!(names, ["boxed", "chat"]);
    assert_eq!(home.json("ls --backend process").as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_run_is_refused_in_words_and_leaves_nothing() {
    let engine = Engine::start(Manner::Docker);
    let home = home(&engine);
    let error = home.error("deploy demo --name x --backend docker --image acme/nowhere:1", 2);
    assert_eq!((&error["field"], &error["value"]), (&"image".into(), &"acme/nowhere:1".into()));
    assert_eq!(
        error["message"],
        "image `acme/nowhere:1`: Docker 28.5.1 does not have it: fetch it with `docker pull acme/nowhere:1`, or build it \
         (docs/deploy.md, \"The container image\"), or name another one (image, CANDLEPOWER_IMAGE)"
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = home.error(&boxed("x", &format!("--port {port}")), 1);
    let reason = error["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("port {port} of this machine is taken: ")), "{reason}");
    let error = home.error(&boxed("x", "--env BLAZE_NONSENSE=1"), 1);
    let reason = error["reason"].as_str().unwrap();
    let expected =
        "the server ended with status 2: the environment variable BLAZE_NONSENSE is not known";
    assert!(reason.starts_with(expected), "{reason}");
    let error = home.error(&boxed("x", "--ttl-seconds 9"), 2);
    assert_eq!(error["field"], "ttl_seconds");
    let error = home.error(&boxed("x", "--gpu-models NoSuchGPU"), 6);
    assert_eq!(error["code"], "RESOURCE_UNAVAILABLE");
    assert_eq!(engine.bodies(), Vec::<Value>::new());

    let nowhere = Home::new().with_env("DOCKER_HOST", "unix:///nowhere.sock");
    assert_eq!(
        nowhere.error(&boxed("x", ""), 11)["message"],
        "the container engine at /nowhere.sock cannot be used: there is no such socket"
    );
    // The address is reserved for documentation, RFC 5737, so nothing answers there.
    let elsewhere = Home::new().with_env("DOCKER_HOST", "tcp://192.0.2.1:2375");
    let error = elsewhere.error(&boxed("x", ""), 2);
    assert_eq!(
        (&error["field"], &error["value"]),
        (&"docker_host".into(), &"tcp://192.0.2.1:2375".into())
    );
}

/// A stub of NVIDIA's management library that reports one GPU.
fn driver_with_a_gpu() -> TempFolder {
    let folder = TempFolder::new();
    let source = folder.write(
        "nvml.c",
        "#include <string.h>
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
        int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, \"580.1\", length); return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return 0; }
        int nvmlDeviceGetName(void *device, char *text, unsigned length) { strncpy(text, \"NVIDIA H100\", length); return 0; }
        int nvmlDeviceGetUUID(void *device, char *text, unsigned length) { strncpy(text, \"GPU-1\", length); return 0; }
        struct memory { unsigned version; unsigned long long total, reserved, free, used; };
        int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
            memory->total = 80ull << 30; memory->free = 79ull << 30; return 0;
        }
        int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }",
    );
    for name in ["libnvidia-ml.so", "libnvidia-ml.so.1"] {
        let mut cc = std::process::Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join(name)).arg(&source);
        assert!(cc.status().unwrap().success(), "a C compiler is needed");
    }
    folder
}

#[test]
fn a_gpu_that_the_engine_drops_is_missed() {
    let driver = driver_with_a_gpu();
    let engine = Engine::start(Manner::OldPodman);
    let home = home(&engine).with_env("LD_LIBRARY_PATH", driver.path().to_str().unwrap());
    let error = home.error(&boxed("x", "--gpu-count 1"), 6);
    assert_eq!(error["code"], "RESOURCE_UNAVAILABLE");
    assert!(
        error["available"].as_str().unwrap().starts_with("Podman 4.3.1 drops the GPU request"),
        "{error}"
    );
    assert_eq!(engine.bodies(), Vec::<Value>::new());
    // The image is the one for the GPU.
    let error = home.error("deploy demo --name x --backend docker --gpu-count 1", 2);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(error["value"], format!("candlepower:{version}-cuda-sm90"));

    // An engine that keeps the request gets that GPU. The server on this machine finds none, and reports that.
    let engine = Engine::start(Manner::Docker);
    let home = Home::new()
        .with_env("DOCKER_HOST", &engine.host())
        .with_env("LD_LIBRARY_PATH", driver.path().to_str().unwrap());
    home.error(&boxed("x", "--gpu-count 1 --keep-on-failure"), 1);
    let requests = &engine.bodies()[0]["HostConfig"]["DeviceRequests"];
    assert_eq!(*requests, json!([{"DeviceIDs": ["GPU-1"], "Capabilities": [["gpu"]]}]));
    home.json("delete x");
}

#[test]
fn secrets_are_where_the_engine_does_not_show_them() {
    const KEY: &str = "canary-api-key-72";
    let engine = Engine::start(Manner::Docker);
    let home = home(&engine);
    let mut command = home.command(&boxed("chat", "--env MY_SECRET=canary-other-72 --json"));
    let output = command
        .env("CANDLEPOWER_API_KEY", KEY)
        .env("HF_TOKEN", "hf_canary_token_72")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let deployed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ask = |home: &Value| {
        let models = Request::get("/v1/models");
        let bare = models.send(address(home)).unwrap().status;
        let with_key = models.header("Authorization", &format!("Bearer {KEY}"));
        (bare, with_key.send(address(home)).unwrap().status)
    };
    assert_eq!(ask(&deployed), (401, 200));
    let shown =
        [json!(engine.bodies()).to_string(), engine.command_lines().concat(), text(&output)];
    assert!(shown.iter().all(|text| !text.is_empty() && !text.contains("canary")), "{shown:?}");
    for args in ["status chat", "ls", "logs chat", "events chat"] {
        assert!(!text(&home.run(args)).contains("canary"), "{args}");
    }
    // The container keeps its secrets, whoever restarts it.
    assert_eq!(ask(&home.json("restart chat")), (401, 200));
}

#[test]
fn a_containers_log_can_be_followed_over_a_restart_until_it_is_deleted() {
    let engine = Engine::start(Manner::Docker);
    let home = home(&engine);
    home.json(&boxed("chat", ""));
    let mut followed = home.command("logs chat --follow --tail 1").spawn().unwrap();
    let mut lines = BufReader::new(followed.stdout.take().unwrap()).lines().map(Result::unwrap);
    let is_ready = |line: &String| line.contains("ready: http://");
    assert!(lines.next().is_some_and(|line| is_ready(&line)));
    engine.kill();
    home.wait_for_status("chat", |status| status["state"] == "Failed");
    home.json("restart chat");
    // Lines that were returned before are not returned again, and no line since then is missing.
    let since: Vec<String> = lines.by_ref().take_while(|line| !is_ready(line)).collect();
    assert!(since[0].contains("INFO candlepower "), "{since:?}");
    home.json("delete chat");
    lines.for_each(drop);
    assert!(followed.wait().unwrap().success());
}
