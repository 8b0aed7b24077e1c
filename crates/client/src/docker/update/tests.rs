//! Interrupted and refused updates, with an engine that knows only the names of its containers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;

static NUM_ENGINES: AtomicU32 = AtomicU32::new(0);

/// Names and ids of the containers, and the names that the engine refuses to give.
#[derive(Default)]
struct Names {
    ids: BTreeMap<String, String>,
    refused: BTreeSet<String>,
    /// Whether nothing can be inspected.
    is_blind: bool,
}

struct Fake {
    names: Arc<Mutex<Names>>,
    socket: PathBuf,
}

impl Fake {
    /// An engine with these containers, whose ids are their names at first.
    fn with(names: &[&str]) -> Self {
        let number = NUM_ENGINES.fetch_add(1, Ordering::Relaxed);
        let name = format!("candlepower-engine-{}-{number}", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let ids = names.iter().map(|name| ((*name).to_owned(), format!("id-of-{name}"))).collect();
        let names = Arc::new(Mutex::new(Names { ids, ..Names::default() }));
        let shared = Arc::clone(&names);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&mut stream.unwrap(), &shared);
            }
        });
        Self { names, socket }
    }

    async fn engine(&self) -> Engine {
        Engine::connect(Some(self.socket.to_str().unwrap())).await.unwrap()
    }

    fn refuse(&self, name: &str) {
        self.names.lock().unwrap().refused.insert(name.to_owned());
    }

    /// The containers' names, each with the first name of that container.
    fn found(&self) -> Vec<(String, String)> {
        let names = self.names.lock().unwrap();
        let first = |id: &String| id.strip_prefix("id-of-").unwrap().to_owned();
        names.ids.iter().map(|(name, id)| (name.clone(), first(id))).collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn answer(stream: &mut UnixStream, names: &Mutex<Names>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    let Some(line) = lines.next() else { return };
    // No request of these tests has a body.
    for _ in lines.take_while(|line| !line.is_empty()) {}
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut names = names.lock().unwrap();
    let parts = path.trim_start_matches('/').split('/').collect::<Vec<_>>();
    let (status, body) = match (method, &parts[..]) {
        ("GET", ["version"]) => (200, json!({ "Version": "1" })),
        (_, ["containers", container, rest @ ..]) => {
            let is_it = |(name, id): &(&String, &String)| name == container || id == container;
            let found = names.ids.iter().find(is_it);
            let found = found.map(|(name, id)| (name.clone(), id.clone()));
            match (method, rest, found) {
                ("GET", ["json"], _) if names.is_blind => (500, json!({ "message": "blind" })),
                (_, _, None) => (404, json!({ "message": "No such container" })),
                ("GET", ["json"], Some(_)) => {
                    (200, json!({ "State": { "Status": "running" }, "Config": { "Image": "a" } }))
                }
                ("POST", ["rename"], Some((name, id))) => {
                    let to = query.strip_prefix("name=").unwrap();
                    if names.refused.contains(to) || names.ids.contains_key(to) {
                        (409, json!({ "message": "refused" }))
                    } else {
                        names.ids.remove(&name);
                        names.ids.insert(to.to_owned(), id);
                        (204, json!(null))
                    }
                }
                ("POST", ["stop"], Some(_)) => (204, json!(null)),
                ("DELETE", [], Some((name, _))) => {
                    names.ids.remove(&name);
                    (204, json!(null))
                }
                _ => panic!("{line}"),
            }
        }
        _ => panic!("{line}"),
    };
    let body = if status == 204 { String::new() } else { body.to_string() };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} S\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect()
}

const NAME: &str = "candlepower-a";
const NEXT_NAME: &str = "candlepower-a.next";
const OLD_NAME: &str = "candlepower-a.old";

#[tokio::test]
async fn an_interrupted_change_is_completed() {
    for (before, after) in [
        (&[][..], &[][..]),
        (&[NAME], &[(NAME, NAME)]),
        (&[NAME, OLD_NAME], &[(NAME, NAME)]),
        (&[NEXT_NAME, OLD_NAME], &[(NAME, NEXT_NAME)]),
        // The deployment's last container gets its name back.
        (&[OLD_NAME], &[(NAME, OLD_NAME)]),
    ] {
        let fake = Fake::with(before);
        without_leftovers(&fake.engine().await, "a").await.unwrap();
        assert_eq!(fake.found(), pairs(after), "{before:?}");
    }
}

#[tokio::test]
async fn nothing_is_removed_while_no_container_has_the_name() {
    for before in [&[NEXT_NAME, OLD_NAME][..], &[OLD_NAME]] {
        let fake = Fake::with(before);
        fake.refuse(NAME);
        let error = without_leftovers(&fake.engine().await, "a").await.unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        assert_eq!(
            fake.found(),
            pairs(&before.iter().map(|name| (*name, *name)).collect::<Vec<_>>())
        );
    }
    // The name may be taken although the engine does not say so.
    let fake = Fake::with(&[OLD_NAME]);
    let engine = fake.engine().await;
    fake.names.lock().unwrap().is_blind = true;
    without_leftovers(&engine, "a").await.unwrap_err();
    assert_eq!(fake.found(), pairs(&[(OLD_NAME, OLD_NAME)]));
}

#[tokio::test]
async fn a_refused_change_leaves_the_name_with_the_old_container() {
    let both = pairs(&[(NAME, NAME), (NEXT_NAME, NEXT_NAME)]);
    for refused in [OLD_NAME, NAME] {
        let fake = Fake::with(&[NAME, NEXT_NAME]);
        let engine = fake.engine().await;
        let [old, new] = [NAME, NEXT_NAME].map(|name| format!("id-of-{name}"));
        fake.refuse(refused);
        take_over(&engine, NAME, &old, &new).await.unwrap_err();
        if refused == NAME {
            // The engine refused to give the name back, too. The next update does it.
            assert_eq!(fake.found()[1], (OLD_NAME.to_owned(), NAME.to_owned()));
            container(&engine, &new).remove().await.unwrap();
            assert_eq!(fake.found(), pairs(&[(OLD_NAME, NAME)]));
            fake.names.lock().unwrap().refused.clear();
            without_leftovers(&engine, "a").await.unwrap();
            assert_eq!(fake.found(), pairs(&[(NAME, NAME)]));
        } else {
            assert_eq!(fake.found(), both);
        }
    }
    let fake = Fake::with(&[NAME, NEXT_NAME]);
    let engine = fake.engine().await;
    let [old, new] = [NAME, NEXT_NAME].map(|name| format!("id-of-{name}"));
    take_over(&engine, NAME, &old, &new).await.unwrap();
    assert_eq!(fake.found(), pairs(&[(NAME, NEXT_NAME), (OLD_NAME, NAME)]));
    // A user's command removes everything of the deployment.
    container(&engine, &new).delete().await.unwrap();
    assert_eq!(fake.found(), []);
}

/// The container with this id, of the deployment `a`.
fn container(engine: &Engine, id: &str) -> Container {
    let spec = json!({
        "name": "a", "framework": "blaze", "model": "demo", "argv": ["serve"], "memory_bytes": 1,
    });
    let description = json!({
        "spec": spec, "created_at": 0.0, "port": 1, "gpus": [], "warnings": [],
    });
    let description = serde_json::from_value(description).unwrap();
    Container { engine: engine.clone(), id: id.to_owned(), description }
}
