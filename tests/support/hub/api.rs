//! The fake hub's API for the contents of repositories, and its authentication.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::content::{Refusal, take_fault};
use super::faults::Spot;
use super::store::{Access, Repository, Snapshot, StoredFile, git_id};
use super::{MEMBER_TOKEN, OUTSIDER_TOKEN, Shared};

type Answer = Result<Json<Value>, Refusal>;
type Asked = Query<HashMap<String, String>>;

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/models/{owner}/{name}", get(main_info))
        .route("/api/models/{owner}/{name}/revision/{revision}", get(info))
        .route("/api/models/{owner}/{name}/tree/{revision}", get(tree))
}

async fn main_info(
    state: State<Arc<Shared>>,
    Path((owner, name)): Path<(String, String)>,
    asked: Asked,
    headers: HeaderMap,
) -> Answer {
    info(state, Path((owner, name, "main".into())), asked, headers).await
}

async fn info(
    State(shared): State<Arc<Shared>>,
    Path((owner, name, revision)): Path<(String, String, String)>,
    Query(asked): Asked,
    headers: HeaderMap,
) -> Answer {
    let id = format!("{owner}/{name}");
    let caller = Caller::of(&headers)?;
    take_fault(&shared, &id, &Spot::Api)?;
    let repositories = shared.repositories();
    let repository = visible(repositories.get(&id), caller)?;
    let (commit, files) = at_revision(repository, &revision)?;
    let with_blobs = is_true(&asked, "blobs");
    let siblings = files.iter().map(|(path, file)| {
        let mut sibling = json!({"rfilename": path});
        if with_blobs {
            sibling["size"] = file.size.into();
            sibling["blobId"] = file.blob_id.as_str().into();
            if let Some(lfs) = lfs(file, "sha256") {
                sibling["lfs"] = lfs;
            }
        }
        sibling
    });
    Ok(Json(json!({
        // The real hub's ids have 24 hexadecimal digits.
        "_id": git_id("repository", id.as_bytes())[..24],
        "id": id,
        "modelId": id,
        "author": owner,
        "sha": commit,
        "lastModified": "2026-01-01T00:00:00.000Z",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "private": repository.access == Access::Private,
        "gated": if repository.access == Access::Gated { json!("manual") } else { json!(false) },
        "disabled": false,
        "downloads": 0,
        "likes": 0,
        "tags": ["safetensors"],
        "siblings": siblings.collect::<Vec<_>>(),
    })))
}

async fn tree(
    State(shared): State<Arc<Shared>>,
    Path((owner, name, revision)): Path<(String, String, String)>,
    Query(asked): Asked,
    headers: HeaderMap,
) -> Answer {
    let id = format!("{owner}/{name}");
    let caller = Caller::of(&headers)?;
    take_fault(&shared, &id, &Spot::Api)?;
    let repositories = shared.repositories();
    let (_, files) = at_revision(visible(repositories.get(&id), caller)?, &revision)?;
    let folders: BTreeSet<&str> = files.keys().flat_map(|path| folders_of(path)).collect();
    let folders = folders.into_iter().map(|path| {
        json!({"type": "directory", "oid": git_id("tree", path.as_bytes()), "size": 0, "path": path})
    });
    let files = files.iter().map(|(path, file)| {
        let mut entry = json!({
            "type": "file", "oid": file.blob_id, "size": file.size, "path": path,
        });
        if let Some(lfs) = lfs(file, "oid") {
            entry["lfs"] = lfs;
        }
        entry
    });
    let recursive = is_true(&asked, "recursive");
    let listed = |entry: &Value| recursive || !entry["path"].as_str().unwrap().contains('/');
    Ok(Json(folders.chain(files).filter(listed).collect()))
}

/// `a/b` and `a` for `a/b/c`.
fn folders_of(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// The API's description of a large file. Its hash has different names in different answers.
fn lfs(file: &StoredFile, hash: &str) -> Option<Value> {
    let lfs = file.lfs.as_ref()?;
    Some(json!({hash: lfs.sha256, "size": file.size, "pointerSize": lfs.pointer_size}))
}

// Python's client writes `True`.
fn is_true(asked: &HashMap<String, String>, name: &str) -> bool {
    asked.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
}

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    Nobody,
    Outsider,
    Member,
}

impl Caller {
    /// # Errors
    /// The hub does not know the token.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(Self::Nobody) };
        match value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")) {
            Some(MEMBER_TOKEN) => Ok(Self::Member),
            Some(OUTSIDER_TOKEN) => Ok(Self::Outsider),
            _ => Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "Invalid credentials in Authorization header",
            )),
        }
    }
}

/// The repository, if it exists and the caller may know of it.
pub(super) fn visible(
    repository: Option<&Repository>,
    caller: Caller,
) -> Result<&Repository, Refusal> {
    let may_see =
        |repository: &&Repository| repository.access != Access::Private || caller == Caller::Member;
    repository.filter(may_see).ok_or_else(|| match caller {
        // The hub does not tell strangers whether a repository exists.
        Caller::Nobody => Refusal::coded(
            StatusCode::UNAUTHORIZED,
            "RepoNotFound",
            "Invalid username or password.",
        ),
        _ => Refusal::coded(StatusCode::NOT_FOUND, "RepoNotFound", "Repository not found"),
    })
}

/// The requested commit, and its files.
pub(super) fn at_revision<'a>(
    repository: &'a Repository,
    revision: &str,
) -> Result<(&'a str, &'a Snapshot), Refusal> {
    repository.revision(revision).ok_or_else(|| {
        let message = format!("Invalid rev id: {revision}");
        Refusal::coded(StatusCode::NOT_FOUND, "RevisionNotFound", message)
    })
}
