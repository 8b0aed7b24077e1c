//! The fake hub's files. `resolve` redirects to a file's location, and small files are sent from here.

use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::Shared;
use super::api::{Caller, at_revision, visible};
use super::content::{Content, Refusal, answer, take_fault};
use super::faults::Spot;
use super::storage;
use super::store::{Access, Repository, StoredFile};

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/{owner}/{name}/resolve/{revision}/{*path}", get(resolve))
        .route("/api/resolve-cache/models/{owner}/{name}/{revision}/{*path}", get(small_file))
}

/// The owner, the repository's name, the revision and the file's path.
type Place = Path<(String, String, String, String)>;

/// Redirects the client: to the storage for a large file, and within the hub for a small one.
async fn resolve(
    State(shared): State<Arc<Shared>>,
    Path((owner, name, revision, path)): Place,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id = format!("{owner}/{name}");
    let caller = Caller::of(&headers)?;
    take_fault(&shared, &id, &Spot::Resolve(path.clone()))?;
    let repositories = shared.repositories();
    let (commit, file) = readable_file(&id, repositories.get(&id), caller, (&revision, &path))?;
    // The path in the client's own encoding, which a URL can contain.
    let raw_path = uri.path().splitn(6, '/').nth(5).expect("the route has six parts");
    // The real hub answers with these two statuses, and clients treat them differently.
    let (status, location) = match &file.lfs {
        Some(lfs) => {
            (StatusCode::FOUND, storage::signed_address(&shared, &id, &lfs.sha256, raw_path))
        }
        None => (
            StatusCode::TEMPORARY_REDIRECT,
            format!("/api/resolve-cache/models/{id}/{commit}/{raw_path}"),
        ),
    };
    let headers = [
        ("x-repo-commit", commit.to_owned()),
        ("x-linked-size", file.bytes.len().to_string()),
        ("x-linked-etag", format!("\"{}\"", file.etag())),
        ("accept-ranges", "bytes".into()),
        // The address is absolute for the storage, and relative within the hub.
        ("location", location.clone()),
    ];
    Ok((status, headers, format!("Redirecting to {location}")).into_response())
}

async fn small_file(
    State(shared): State<Arc<Shared>>,
    Path((owner, name, revision, path)): Place,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id = format!("{owner}/{name}");
    let caller = Caller::of(&headers)?;
    let (commit, content) = {
        let repositories = shared.repositories();
        let (commit, file) = readable_file(&id, repositories.get(&id), caller, (&revision, &path))?;
        let (bytes, etag) = (file.bytes.clone(), file.etag().to_owned());
        (commit.to_owned(), Content { repository: id.clone(), path, bytes, etag })
    };
    let response = answer(content, &method, &headers, &shared)?;
    Ok(([("x-repo-commit", commit)], response).into_response())
}

/// The file at a revision and a path, if the caller may read it.
fn readable_file<'a>(
    id: &str,
    repository: Option<&'a Repository>,
    caller: Caller,
    (revision, path): (&str, &str),
) -> Result<(&'a str, &'a StoredFile), Refusal> {
    let repository = visible(repository, caller)?;
    if repository.access == Access::Gated {
        check_gate(id, caller)?;
    }
    let (commit, files) = at_revision(repository, revision)?;
    let file = files.get(path).ok_or_else(|| Refusal {
        commit: Some(commit.to_owned()),
        ..Refusal::coded(StatusCode::NOT_FOUND, "EntryNotFound", "Entry not found")
    })?;
    Ok((commit, file))
}

fn check_gate(id: &str, caller: Caller) -> Result<(), Refusal> {
    let (status, rest) = match caller {
        Caller::Member => return Ok(()),
        Caller::Nobody => (
            StatusCode::UNAUTHORIZED,
            "You must have access to it and be authenticated to access it. Please log in."
                .to_owned(),
        ),
        Caller::Outsider => (
            StatusCode::FORBIDDEN,
            format!(
                "You are not in the authorized list. Visit the page of {id} to ask for access."
            ),
        ),
    };
    let message = format!("Access to model {id} is restricted. {rest}");
    Err(Refusal::coded(status, "GatedRepo", message))
}
