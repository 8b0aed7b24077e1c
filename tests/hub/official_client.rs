//! The hub's own Python client, unmodified, downloads from the fake hub.

use std::process::Command;

use super::{ID, files, hub, pattern};
use crate::support::{
    Access, Fault, Files, Hub, MEMBER_TOKEN, OUTSIDER_TOKEN, Side, Spot, TempFolder, Times, python,
    run_to_end,
};

/// `clients/hub_client.py` with a cache of its own.
struct Client {
    home: TempFolder,
    endpoint: String,
}

impl Client {
    fn new(hub: &Hub) -> Self {
        Self { home: TempFolder::new(), endpoint: hub.endpoint() }
    }

    fn command(&self, case: &str) -> Command {
        let mut command = python("clients/hub_client.py");
        // A developer's own settings, such as a token, must not change the test.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("HF_")) {
                command.env_remove(name);
            }
        }
        command.env("HF_ENDPOINT", &self.endpoint).env("HF_HOME", self.home.path());
        // The fake hub has no Xet storage and takes no telemetry.
        for name in ["DISABLE_XET", "DISABLE_TELEMETRY", "DISABLE_PROGRESS_BARS"] {
            command.env(format!("HF_HUB_{name}"), "1");
        }
        command.arg(case);
        command
    }

    /// Downloads the whole repository and compares it with these files.
    #[track_caller]
    fn snapshot(&self, revision: &str, files: &Files) {
        let folder = TempFolder::new();
        files.write_to(folder.path());
        run_to_end(self.command("snapshot").args([ID, revision]).arg(folder.path()));
    }

    /// Downloads one file and checks it.
    #[track_caller]
    fn file(&self, revision: &str, path: &str, contents: &[u8]) {
        let folder = TempFolder::new();
        let expected = folder.write("expected", contents);
        run_to_end(self.command("file").args([ID, revision, path]).arg(expected));
    }

    /// Checks that a download fails with this error.
    #[track_caller]
    fn refused(&self, what: [&str; 3], token: Option<&str>, error: &str) {
        let mut command = self.command("refused");
        if let Some(token) = token {
            command.env("HF_TOKEN", token);
        }
        run_to_end(command.args(what).arg(error));
    }
}

#[test]
fn a_whole_model_is_downloaded() {
    let hub = Hub::start();
    for files in [Files::golden("llama-linear"), Files::demo()] {
        let commit = hub.publish(ID, &files);
        let client = Client::new(&hub);
        client.snapshot("main", &files);
        let root = client.home.path().join("hub/models--acme--tiny");
        assert_eq!(std::fs::read_to_string(root.join("refs/main")).unwrap(), commit);
        let blobs = std::fs::read_dir(root.join("blobs")).unwrap();
        assert!(blobs.count() > 3);
        client.snapshot(&commit, &files);
    }
    let to_storage = hub.requests().into_iter().filter(|seen| seen.side == Side::Storage);
    assert!(to_storage.filter(|seen| !seen.had_token).count() >= 4);
}

#[test]
fn single_files_of_all_kinds_and_revisions_are_downloaded() {
    let (hub, first) = hub();
    hub.tag(ID, "v1", &first);
    let changed = files().with("README.md", "changed\n");
    hub.publish(ID, &changed);
    hub.publish_branch(ID, "refs/pr/1", &changed.clone().with("new file.txt", "new"));
    let client = Client::new(&hub);
    for path in ["README.md", "onnx/config.json", "model.safetensors", "vocab.bin"] {
        client.file("main", path, changed.contents(path));
    }
    client.file("v1", "README.md", b"hello\n");
    client.file(&first, "README.md", b"hello\n");
    client.file("refs/pr/1", "new file.txt", b"new");
}

#[test]
fn refusals_are_understood() {
    let (hub, _) = hub();
    let client = Client::new(&hub);
    client.refused(["acme/nothing", "main", "README.md"], None, "RepositoryNotFoundError");
    let member = Some(MEMBER_TOKEN);
    client.refused(["acme/nothing", "main", "README.md"], member, "RepositoryNotFoundError");
    client.refused([ID, "v2", "README.md"], None, "RevisionNotFoundError");
    client.refused([ID, "main", "nothing"], None, "RemoteEntryNotFoundError");
    // An invalid token is an error even where none is needed.
    client.refused([ID, "main", "README.md"], Some("hf_unknown"), "HfHubHTTPError");
    hub.set_access(ID, Access::Private);
    client.refused([ID, "main", "README.md"], Some(OUTSIDER_TOKEN), "RepositoryNotFoundError");
    hub.set_access(ID, Access::Gated);
    client.refused([ID, "main", "README.md"], None, "GatedRepoError");
    client.refused([ID, "main", "README.md"], Some(OUTSIDER_TOKEN), "GatedRepoError");
    // No token reaches the storage, not even that of a member.
    let folder = TempFolder::new();
    files().write_to(folder.path());
    let mut command = client.command("snapshot");
    run_to_end(command.env("HF_TOKEN", MEMBER_TOKEN).args([ID, "main"]).arg(folder.path()));
    let seen = hub.requests();
    assert!(seen.iter().any(|seen| seen.side == Side::Storage));
    assert!(seen.iter().all(|seen| seen.side == Side::Hub || !seen.had_token));
}

/// The client keeps partial downloads in pieces of 10 MiB.
#[test]
fn a_cut_download_is_resumed() {
    const MIB: usize = 1 << 20;
    let hub = Hub::start();
    let files = Files::new().with("model.safetensors", pattern(22 * MIB));
    hub.publish(ID, &files);
    let spot = Spot::content("model.safetensors");
    hub.inject(ID, spot, Fault::CutAfter(11 * MIB), Times::Next(2));
    Client::new(&hub).snapshot("main", &files);
    let weights = hub.requests().into_iter().filter(|seen| seen.side == Side::Storage);
    let asked: Vec<_> = weights.map(|seen| (seen.status, seen.range)).collect();
    let resumed = |start: usize| (206, Some(format!("bytes={start}-")));
    assert_eq!(asked, [(200, None), resumed(10 * MIB), resumed(20 * MIB)]);
}

#[test]
fn what_is_in_the_cache_outlives_the_hub() {
    let (mut hub, _) = hub();
    let client = Client::new(&hub);
    client.snapshot("main", &files());
    hub.refuse_connections();
    client.snapshot("main", &files());
    hub.accept_connections();
    hub.forget_requests();
    // Only the README changes, so the client must find the large files in its cache.
    let changed = files().with("README.md", "changed\n");
    hub.publish(ID, &changed);
    client.snapshot("main", &changed);
    let contents = |path: &str| {
        hub.requests().iter().any(|seen| seen.status == 200 && seen.path.ends_with(path))
    };
    assert!(contents("/README.md"));
    assert!(hub.requests().iter().all(|seen| seen.side == Side::Hub), "{:?}", hub.requests());
}
