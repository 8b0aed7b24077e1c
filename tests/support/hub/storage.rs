//! The store of large files behind the fake hub: another host, which accepts only signed URLs and no tokens.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use sha2::{Digest, Sha256};

use super::Shared;
use super::content::{Content, Refusal, answer};
use super::store::hex;

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/repos/{owner}/{name}/{sha256}", get(object))
}

/// The storage's URL for a file, for a client that the hub has authorized. `file` is the path in the repository.
pub(super) fn signed_address(shared: &Shared, id: &str, sha256: &str, file: &str) -> String {
    let path = format!("/repos/{id}/{sha256}");
    let key = *shared.signing_key.lock().unwrap();
    let signature = signature(&path, key);
    format!("http://{}{path}?file={file}&Key-Pair-Id={key}&Signature={signature}", shared.storage)
}

fn signature(path: &str, key: u64) -> String {
    hex(&Sha256::digest(format!("{key} signs {path}")))
}

async fn object(
    State(shared): State<Arc<Shared>>,
    Path((owner, name, sha256)): Path<(String, String, String)>,
    Query(asked): Query<HashMap<String, String>>,
    OriginalUri(uri): OriginalUri,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    // A token that arrives here was sent to a foreign host.
    if headers.contains_key(header::AUTHORIZATION) {
        let message = "Only one auth mechanism allowed";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    }
    let key = *shared.signing_key.lock().unwrap();
    let is_signed =
        asked.get("Signature").is_some_and(|found| *found == signature(uri.path(), key));
    let (true, Some(path)) = (is_signed, asked.get("file").cloned()) else {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "Access denied"));
    };
    let repository = format!("{owner}/{name}");
    let bytes = shared.repositories().get(&repository).and_then(|known| known.lfs_object(&sha256));
    let bytes = bytes.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "Not found"))?;
    // The storage's own ETag, which differs from the hub's hash.
    let etag = hex(&Sha256::digest(&sha256))[..32].to_owned();
    answer(Content { repository, path, bytes, etag }, &method, &headers, &shared)
}
