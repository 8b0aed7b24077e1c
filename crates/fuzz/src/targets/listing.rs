//! Mutates a hub's listing of a repository. No file may be written outside the cache.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candlepower_hub::{Hub, HubConfig, HubSettings, ModelName};
use fastrand::Rng;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::Folder;
use crate::{Round, Verdict, change};

/// The content of each file in the repository, and its object id in git.
const FILE: &[u8] = b"{}";
// git hashes the content behind a header, here `blob 2` and a zero byte.
const FILE_SHA1: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";

pub(super) fn open() -> Round {
    let listing = Arc::new(Mutex::new(Vec::new()));
    let endpoint = serve(Arc::clone(&listing));
    let folder = Folder::new();
    let strange = strange(folder.path());
    let cache = folder.path().join("cache");
    let settings = HubSettings {
        cache: Some(cache.clone()),
        endpoint: Some(endpoint),
        ..HubSettings::default()
    };
    let hub = Hub::new(HubConfig::new(settings, |_| None).unwrap()).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let name: ModelName = "owner/name".parse().unwrap();
    Box::new(move |random| {
        *listing.lock().unwrap() = changed(&strange, random);
        let opened = runtime.block_on(hub.open_configuration(&name, "main"));
        let _ = std::fs::remove_dir_all(&cache); // there is none if the listing was refused
        let outside = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(outside, 0, "something was written beside the cache");
        Verdict::of(opened)
    })
}

fn changed(strange: &[Value], random: &mut Rng) -> Vec<u8> {
    let mut listing = json!({"sha": "c".repeat(40), "siblings": [
        {"rfilename": "config.json", "size": FILE.len(), "blobId": FILE_SHA1},
        {"rfilename": "quantize_config.json", "size": FILE.len(), "blobId": FILE_SHA1},
        {"rfilename": "1_Pooling/config.json", "size": FILE.len(), "blobId": FILE_SHA1},
        // The file is far larger than any test may download. Only the configuration is asked for.
        {"rfilename": "model.safetensors", "size": 8_000_000_000_u64,
            "lfs": {"sha256": "d".repeat(64), "size": 8_000_000_000_u64}},
    ]});
    if random.usize(..4) == 0 {
        let files = listing["siblings"].as_array_mut().unwrap();
        for index in 0..1 << random.u32(0..15) {
            let name = format!("{}{index}.safetensors", "a/".repeat(random.usize(..9)));
            files.push(json!({"rfilename": name, "size": index, "blobId": FILE_SHA1}));
        }
    }
    (0..random.usize(..3)).for_each(|_| change::json(&mut listing, strange, random));
    let mut bytes = listing.to_string().into_bytes();
    if random.usize(..4) == 0 {
        let len = bytes.len();
        change::file(&mut bytes, 0..len, random);
    }
    bytes
}

/// A hub on this machine, which serves the listing and files of equal content. Returns its address.
fn serve(listing: Arc<Mutex<Vec<u8>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that has disconnected needs no answer.
            let _ = stream.and_then(|stream| answer(stream, &listing));
        }
    });
    format!("http://{address}")
}

fn answer(mut stream: TcpStream, listing: &Mutex<Vec<u8>>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let body = match head.starts_with(b"GET /api/") {
        true => listing.lock().unwrap().clone(),
        false => FILE.to_vec(),
    };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)
}

/// Replacements for names, sizes and digests. Some names lead out of the cache, which is in `folder`.
fn strange(folder: &Path) -> Vec<Value> {
    vec![
        json!(null),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("."),
        json!("../outside"),
        json!(folder.join("outside")),
        json!("a/../../outside"),
        json!("a\\..\\outside"),
        json!("config.json/inside"),
        json!("a\u{0}b"),
        json!("é".repeat(3_000)),
        json!("x".repeat(40)),
        json!("e".repeat(40)),
        json!("e".repeat(64)),
        json!([]),
        json!({}),
        json!({"rfilename": "config.json", "size": 2, "blobId": FILE_SHA1}),
    ]
}
