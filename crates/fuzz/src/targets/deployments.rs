//! Mutates the state files of a deployment's supervisor.

use std::path::{Path, PathBuf};

use candlepower_client::blocking::Client;
use candlepower_client::{DeploymentStatus, Result, State};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::{Round, Verdict, change};

const NAME: &str = "one";
/// Limit of a file with repeated lines, in bytes. Writing much more would take the time of the round itself.
const MAX_REPEATED_BYTES: usize = 8 << 20;
const LOG: &str = "2026-01-01T00:00:00Z INFO listening on 127.0.0.1:8000\nready\n";

pub(super) fn open() -> Round {
    // The parent process has set the variable to a folder for this target alone.
    let state = PathBuf::from(std::env::var_os("XDG_STATE_HOME").unwrap());
    let folder = state.join("candlepower/deployments").join(NAME);
    std::fs::create_dir_all(&folder).unwrap();
    let (files, strange) = (files(), strange());
    let client = Client::new().unwrap();
    Box::new(move |random| {
        for (name, content) in &files {
            write(&folder.join(name), content, &strange, random);
        }
        match read(&client) {
            // The status reports unreadable files as a state of its own instead of an error.
            Ok(status) if status.state == State::Unknown => Verdict::Refused(status.message),
            read => Verdict::of(read),
        }
    })
}

fn write(path: &Path, content: &[Value], strange: &[Value], random: &mut Rng) {
    let mut content = content.to_vec();
    let is_changed = random.usize(..3) == 0;
    if is_changed {
        let value = &mut content[0];
        (0..=random.usize(..2)).for_each(|_| change::json(value, strange, random));
    }
    if content.len() > 1 && random.usize(..50) == 0 {
        let again = content[0].clone();
        let times = MAX_REPEATED_BYTES / again.to_string().len().max(1);
        content.extend(std::iter::repeat_n(again, times.min(20_000)));
    }
    let lines = content.iter().map(|value| format!("{value}\n"));
    let mut bytes = lines.collect::<String>().into_bytes();
    if is_changed && random.usize(..4) == 0 {
        let len = bytes.len();
        change::file(&mut bytes, 0..len, random);
    }
    match random.usize(..40) {
        0 => {
            let _ = std::fs::remove_file(path); // it may not exist
        }
        _ => std::fs::write(path, bytes).unwrap(),
    }
}

/// Reads everything about the deployment. Nothing is started, and no process gets a signal.
fn read(client: &Client) -> Result<DeploymentStatus> {
    client.list()?;
    let deployment = client.get(NAME)?;
    client.events(NAME)?;
    client.logs(NAME, Some(10))?;
    deployment.status()
}

/// The files, each with its lines.
fn files() -> Vec<(&'static str, Vec<Value>)> {
    // The pid is above Linux's limit, so no process has it.
    let identity = json!({"pid": 4_194_305, "start_time": 1, "boot_id": "1c8bdebd-6b43-4127-ba9e-658eea856b17"});
    let event = |state: &str, phase: &str| json!({"time": 1_795_750_883.5, "state": state, "phase": phase, "message": "m"});
    vec![
        (
            "spec.json",
            vec![json!({"name": NAME, "framework": "blaze", "model": "demo",
                "argv": ["serve", "demo", "--framework=blaze"], "port": null, "env": {"A": "b"}, "secret_names": ["HF_TOKEN"],
                "gpu_count": null, "gpu_models": [], "min_gpu_memory_gb": null, "memory_bytes": 17_179_869_184_u64,
                "ttl_seconds": null, "image": null, "replicas": 1, "hub_cache": null})],
        ),
        (
            "state.json",
            vec![
                json!({"state": "Running", "phase": "ready", "message": "m", "url": "http://127.0.0.1:1",
                "created_at": 1_795_750_883.1, "updated_at": 1_795_750_883.3, "started_at": 1_795_750_883.1,
                "written_at": 1_795_750_883.3, "bytes_done": 0, "bytes_total": 0, "restarts": 0, "exit_code": null,
                "num_gpus": 0, "supervisor": identity, "server": identity}),
            ],
        ),
        ("report.json", vec![json!({"address": "127.0.0.1:1", "error": null})]),
        ("events", vec![event("Provisioning", "scheduling"), event("Running", "ready")]),
        ("log", vec![json!(LOG)]),
    ]
}

fn strange() -> Vec<Value> {
    vec![
        json!(null),
        json!(false),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("Failed"),
        json!("no such state"),
        json!("../x"),
        json!("http://127.0.0.1:1/"),
        json!("http://[::1]:99999"),
        json!("x\u{1b}[31m\n".repeat(900)),
        json!([]),
        json!([[]]),
        json!({}),
    ]
}
