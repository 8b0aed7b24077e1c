//! The answers of the fake hub, header by header.

use serde_json::json;

use super::{ID, content_of, files, get, hub, located, pattern};
use crate::support::{Access, Hub, MEMBER_TOKEN, OUTSIDER_TOKEN, Request, Response, Side};

fn with_token(hub: &Hub, path: &str, token: &str) -> Response {
    Request::get(path)
        .header("Authorization", &format!("Bearer {token}"))
        .send(hub.address())
        .unwrap()
}

/// Status and error code of a refusal.
fn refusal(response: &Response) -> (u16, Option<&str>) {
    assert!(response.json()["error"].is_string(), "{response:?}");
    (response.status, response.header("x-error-code"))
}

#[test]
fn the_api_says_what_a_repository_holds() {
    let (hub, commit) = hub();
    let info = get(&hub, &format!("/api/models/{ID}")).ok();
    assert_eq!(info["id"], ID);
    assert_eq!(info["sha"], commit);
    assert_eq!(info["gated"], false);
    assert_eq!(info["private"], false);
    let names = ["README.md", "model.safetensors", "onnx/config.json", "vocab.bin"];
    assert_eq!(info["siblings"], json!(names.map(|name| json!({"rfilename": name}))));
    let info = get(&hub, &format!("/api/models/{ID}/revision/main?blobs=true")).ok();
    // The results of `git hash-object` and `sha256sum`.
    let readme = json!({
        "rfilename": "README.md", "size": 6, "blobId": "ce013625030ba8dba906f756967f9e9ca394464a",
    });
    assert_eq!(info["siblings"][0], readme);
    let weights = json!({
        "rfilename": "model.safetensors",
        "size": 300_000,
        "blobId": "1554bc8f0ebb74f91332500ae7644dcaacf39982",
        "lfs": {
            "sha256": "3c65ea93424a9c362fec0e3a69ea36031e8a358441479dd665cc6110eabe7b08",
            "size": 300_000,
            "pointerSize": 131,
        },
    });
    assert_eq!(info["siblings"][1], weights);
}

#[test]
fn the_tree_lists_folders_and_files() {
    let (hub, commit) = hub();
    let paths = |query: &str| -> Vec<(String, String)> {
        let tree = get(&hub, &format!("/api/models/{ID}/tree/{commit}{query}")).ok();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let entries = tree.as_array().unwrap().iter();
        entries.map(|entry| (text(&entry["type"]), text(&entry["path"]))).collect()
    };
    let owned = |(kind, path): (&str, &str)| (kind.to_owned(), path.to_owned());
    let top = [("directory", "onnx"), ("file", "README.md"), ("file", "model.safetensors")];
    let all = paths("?recursive=true&expand=false");
    assert_eq!(all[..3], top.map(owned));
    assert_eq!(all[3..], [("file", "onnx/config.json"), ("file", "vocab.bin")].map(owned));
    assert_eq!(paths("").len(), 4);
}

#[test]
fn a_large_file_comes_from_another_host() {
    let (hub, commit) = hub();
    for method in ["HEAD", "GET"] {
        let path = format!("/{ID}/resolve/main/model.safetensors");
        let response = Request::new(method, &path).send(hub.address()).unwrap();
        assert_eq!(response.status, 302);
        assert_eq!(response.header("x-repo-commit"), Some(commit.as_str()));
        assert_eq!(response.header("x-linked-size"), Some("300000"));
        assert_eq!(
            response.header("x-linked-etag"),
            Some("\"3c65ea93424a9c362fec0e3a69ea36031e8a358441479dd665cc6110eabe7b08\"")
        );
    }
    let (address, request) = content_of(&hub, "model.safetensors");
    assert_eq!(address, hub.storage_address());
    assert_ne!(address.ip(), hub.address().ip());
    let response = request.send(address).unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.bytes(), pattern(300_000));
    assert!(
        !response
            .header("etag")
            .unwrap()
            .contains("3c65ea93424a9c362fec0e3a69ea36031e8a358441479dd665cc6110eabe7b08"),
        "{response:?}"
    );
    // The storage accepts no tokens, and must not receive any.
    let token = format!("Bearer {MEMBER_TOKEN}");
    let response = request.clone().header("Authorization", &token).send(address).unwrap();
    assert_eq!(response.status, 400);
    hub.expire_signatures();
    assert_eq!(request.send(address).unwrap().status, 403);
    let (address, request) = content_of(&hub, "vocab.bin");
    assert_eq!(address, hub.storage_address());
    assert_eq!(request.send(address).unwrap().bytes(), files().contents("vocab.bin"));
}

#[test]
fn a_small_file_comes_from_the_hub() {
    let (hub, commit) = hub();
    let response = get(&hub, &format!("/{ID}/resolve/main/onnx/config.json"));
    assert_eq!(response.status, 307);
    assert_eq!(response.header("x-repo-commit"), Some(commit.as_str()));
    let (address, path) = located(&hub, "onnx/config.json");
    assert_eq!(address, hub.address());
    for method in ["HEAD", "GET"] {
        let response = Request::new(method, &path).send(address).unwrap();
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-repo-commit"), Some(commit.as_str()));
        assert_eq!(response.header("content-length"), Some("2"));
        // The result of `git hash-object` for `{}`.
        let blob = "\"9e26dfeeb6e641a33dae4961196235bdb965b21b\"";
        assert_eq!(response.header("etag"), Some(blob));
        assert_eq!(response.text(), if method == "GET" { "{}" } else { "" });
    }
}

#[test]
fn parts_of_files_can_be_asked_for() {
    let (hub, _) = hub();
    let bytes = pattern(300_000);
    for (range, part, total) in [
        ("bytes=10-19", 10..20, "bytes 10-19/300000"),
        ("bytes=299990-", 299_990..300_000, "bytes 299990-299999/300000"),
        ("bytes=-5", 299_995..300_000, "bytes 299995-299999/300000"),
        ("bytes=299999-400000", 299_999..300_000, "bytes 299999-299999/300000"),
    ] {
        let (address, request) = content_of(&hub, "model.safetensors");
        let response = request.header("Range", range).send(address).unwrap();
        assert_eq!(response.status, 206);
        assert_eq!(response.header("content-range"), Some(total));
        assert_eq!(response.bytes(), &bytes[part]);
    }
    let (address, request) = content_of(&hub, "model.safetensors");
    let request = request.header("Range", "bytes=300000-");
    let response = request.send(address).unwrap();
    assert_eq!(response.status, 416);
    assert_eq!(response.header("content-range"), Some("bytes */300000"));
    // For another version, the whole file.
    let response = request.header("If-Range", "\"another\"").send(address).unwrap();
    assert_eq!((response.status, response.bytes().len()), (200, 300_000));
}

#[test]
fn revisions_are_branches_tags_and_commits() {
    let (hub, first) = hub();
    hub.tag(ID, "v1", &first);
    let second = hub.publish(ID, &files().with("README.md", "changed\n"));
    let third = hub.publish_branch(ID, "refs/pr/1", &files().without("README.md"));
    for (revision, commit) in
        [("main", &second), ("v1", &first), (&*first, &first), ("refs%2Fpr%2F1", &third)]
    {
        let info = get(&hub, &format!("/api/models/{ID}/revision/{revision}")).ok();
        assert_eq!(info["sha"], **commit, "{revision}");
    }
    for path in ["api/models/acme/tiny/revision/v2", "acme/tiny/resolve/v2/README.md"] {
        let response = get(&hub, &format!("/{path}"));
        assert_eq!(refusal(&response), (404, Some("RevisionNotFound")));
    }
    let response = get(&hub, &format!("/{ID}/resolve/refs%2Fpr%2F1/README.md"));
    assert_eq!(refusal(&response), (404, Some("EntryNotFound")));
    assert_eq!(response.header("x-repo-commit"), Some(third.as_str()));
}

#[test]
fn who_may_read_what() {
    let (hub, _) = hub();
    let api = format!("/api/models/{ID}");
    let file = format!("/{ID}/resolve/main/README.md");
    let statuses = |path: &str| {
        let status = |response: Response| match response.header("x-error-code") {
            Some(code) => format!("{} {code}", response.status),
            None => response.status.to_string(),
        };
        let nobody = status(get(&hub, path));
        let [outsider, member, invalid] = [OUTSIDER_TOKEN, MEMBER_TOKEN, "hf_unknown"]
            .map(|token| status(with_token(&hub, path, token)));
        [nobody, outsider, member, invalid]
    };
    assert_eq!(statuses(&api), ["200", "200", "200", "401"]);
    assert_eq!(statuses(&file), ["307", "307", "307", "401"]);
    hub.set_access(ID, Access::Gated);
    assert_eq!(statuses(&api), ["200", "200", "200", "401"]);
    assert_eq!(get(&hub, &api).ok()["gated"], "manual");
    assert_eq!(statuses(&file), ["401 GatedRepo", "403 GatedRepo", "307", "401"]);
    hub.set_access(ID, Access::Private);
    let hidden = ["401 RepoNotFound", "404 RepoNotFound"];
    for (path, status) in [(&api, "200"), (&file, "307")] {
        assert_eq!(statuses(path), [hidden[0], hidden[1], status, "401"]);
    }
    // A repository that is absent looks like one that is hidden.
    let missing = statuses("/api/models/acme/nothing");
    assert_eq!(missing, [hidden[0], hidden[1], hidden[1], "401"]);
}

#[test]
fn requests_are_remembered() {
    let (hub, _) = hub();
    let (address, request) = content_of(&hub, "vocab.bin");
    hub.forget_requests();
    get(&hub, &format!("/api/models/{ID}?blobs=true"));
    with_token(&hub, &format!("/{ID}/resolve/main/vocab.bin"), MEMBER_TOKEN);
    request.header("Range", "bytes=5-").send(address).unwrap();
    let seen = hub.requests();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!((seen[0].side, seen[0].status, seen[0].had_token), (Side::Hub, 200, false));
    assert_eq!((seen[0].method.as_str(), seen[0].query.as_deref()), ("GET", Some("blobs=true")));
    assert_eq!(
        (seen[1].path.as_str(), seen[1].had_token),
        ("/acme/tiny/resolve/main/vocab.bin", true)
    );
    assert_eq!((seen[2].side, seen[2].status), (Side::Storage, 206));
    assert_eq!(seen[2].range.as_deref(), Some("bytes=5-"));
}
