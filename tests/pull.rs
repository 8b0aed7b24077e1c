//! Models by their hub id: downloaded, verified, refused with one line, and found in the cache.

mod connections;
mod gguf;
mod refusals;
mod serving;

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::{Files, Hub, Seen, Server, ServerBuilder, Side, TempFolder};

/// The repository of most of these tests.
const ID: &str = "acme/tiny";

/// A hub with a golden model, and an empty cache.
struct Place {
    hub: Hub,
    home: TempFolder,
}

impl Place {
    fn empty() -> Self {
        Self { hub: Hub::start(), home: TempFolder::new() }
    }

    fn with(files: &Files) -> Self {
        let place = Self::empty();
        place.hub.publish(ID, files);
        place
    }

    /// `serve ID` with this hub and this cache.
    fn serve(&self, id: &str) -> ServerBuilder {
        ServerBuilder::new(id)
            .env("HF_HOME", self.home.path().to_str().unwrap())
            .env("HF_ENDPOINT", &self.hub.endpoint())
            .env("HF_HUB_DOWNLOAD_TIMEOUT", "20")
    }

    /// Serves [`ID`] and checks that it answers.
    #[track_caller]
    fn check_served(&self) -> Server {
        let server = self.serve(ID).start();
        check_answers(&server, ID);
        server
    }

    /// Expects a start to fail with exactly this error line. `<hub>` stands for the hub's address, and `<any>` for
    /// text that differs between machines.
    #[track_caller]
    fn check_refused(&self, serve: ServerBuilder, expected: &str) {
        let message = serve.refused().message;
        let errors: Vec<&str> = message
            .lines()
            .filter_map(|line| line.split_once("ERROR "))
            .map(|(_, line)| line)
            .collect();
        let expected = expected.replace("<hub>", &self.hub.endpoint());
        assert!(
            matches!(errors[..], [error] if matches_line(error, &expected)),
            "expected: {expected}\n{message}"
        );
    }

    /// The cached folder of a model.
    fn cached(&self, id: &str) -> PathBuf {
        self.home.path().join("hub").join(format!("models--{}", id.replace('/', "--")))
    }

    /// Requests that were answered with bytes of files with this suffix.
    fn requests_for(&self, end: &str) -> Vec<Seen> {
        let is_content = |seen: &Seen| seen.path.ends_with(end) && matches!(seen.status, 200 | 206);
        self.hub.requests().into_iter().filter(is_content).collect()
    }

    /// Requests to the store of large files.
    fn requests_for_large_files(&self) -> Vec<Seen> {
        self.hub.requests().into_iter().filter(|seen| seen.side == Side::Storage).collect()
    }
}

/// Whether a line is the expected one. `<any>` stands for any text in it.
fn matches_line(line: &str, expected: &str) -> bool {
    let parts: Vec<&str> = expected.split("<any>").collect();
    let [first, middle @ .., end] = &parts[..] else { return line == expected };
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(end)
}

#[test]
fn a_line_is_compared_but_for_what_may_differ() {
    for (line, expected, same) in [
        ("a b", "a b", true),
        ("a b c", "a b", false),
        ("needs 3 GiB, 2 are free", "needs <any> GiB, <any> are free", true),
        ("needs 3 GiB, 2 are free: stop", "needs <any> GiB, <any> are free", false),
        ("it needs 3 GiB", "needs <any> GiB", false),
        ("needs 3 MiB", "needs <any> GiB", false),
    ] {
        assert_eq!(matches_line(line, expected), same, "{line} as {expected}");
    }
}

/// Checks that a model generates text.
#[track_caller]
fn check_answers(server: &Server, model: &str) {
    let completion = server.complete(json!({
        "model": model, "prompt": "to be or", "max_tokens": 4, "ignore_eos": true,
    }));
    assert_eq!(completion["usage"]["completion_tokens"], 4, "{completion}");
}

/// The files below a folder with this suffix.
fn files_ending(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_ending(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found
}
