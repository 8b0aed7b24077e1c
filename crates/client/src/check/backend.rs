//! What only some backends can do, and what only some can be told.

use super::is_label;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::params::Params;
use crate::spec::CLIENT_AUTHORITIES;

/// Longest key of a Secret.
const MAX_KEY: usize = 253;

pub(super) fn check(params: &Params, backend: &Backend) -> Result<()> {
    backend.check()?;
    let name = backend.as_str();
    let refused =
        |field, value: String, reason: String| Err(Error::validation(field, value, reason));
    if params.replicas > 1 && !matches!(backend, Backend::Kubernetes { .. }) {
        return refused(
            "replicas",
            params.replicas.to_string(),
            format!("the {name} backend runs one"),
        );
    }
    match backend {
        Backend::Process => match &params.hub_cache {
            Some(cache) => refused(
                "hub_cache",
                cache.clone(),
                "a process uses the hub's own cache: set HF_HOME in its environment".into(),
            ),
            None => Ok(()),
        },
        Backend::Docker { .. } | Backend::Kubernetes { .. } => match params.ttl_seconds {
            Some(seconds) => refused(
                "ttl_seconds",
                seconds.to_string(),
                format!(
                    "nothing would delete it: the {name} backend has no supervisor of ours; leave it out"
                ),
            ),
            None => check_container(params, backend),
        },
    }
}

/// What containers need, wherever they run.
fn check_container(params: &Params, backend: &Backend) -> Result<()> {
    check_hub_cache(params.hub_cache.as_deref(), backend)?;
    if let Some(image) = &params.image
        && (image.is_empty() || image.contains(char::is_whitespace))
    {
        let reason =
            "the name of an image is needed, without spaces; leave it out for this version's";
        return Err(Error::validation("image", image, reason));
    }
    if params.port == Some(0) {
        let reason = "a port from 1 to 65535 is needed; leave it out for the backend's own choice";
        return Err(Error::validation("port", 0, reason));
    }
    match backend {
        Backend::Kubernetes { .. } => check_cluster(params),
        _ => check_clients(params),
    }
}

/// The certificate that a server's clients need is in its container, and the health of that server is asked from outside.
fn check_clients(params: &Params) -> Result<()> {
    let variable = params.framework.variable(CLIENT_AUTHORITIES);
    if params.env.contains_key(&variable) {
        let reason = "a container whose clients need certificates cannot be asked for its health from outside; leave it out";
        return Err(Error::validation("env", variable, reason));
    }
    Ok(())
}

/// Names as Kubernetes has them: those of Services are labels as RFC 1035 has it, and those of variables are keys of Secrets, too.
fn check_cluster(params: &Params) -> Result<()> {
    if !params.name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(Error::validation(
            "name",
            &params.name,
            "the kubernetes backend needs a name that begins with a letter, as those of its Services do",
        ));
    }
    // Source: IsEnvVarName and IsConfigMapKey in Kubernetes' apimachinery/pkg/util/validation.
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_variable = |name: &str| {
        name.len() <= MAX_KEY
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(is_inner)
            && name != "."
            && !name.starts_with("..")
    };
    match params.env.keys().find(|name| !is_variable(name)) {
        Some(name) => Err(Error::validation(
            "env",
            name,
            "a variable of the kubernetes backend has letters, digits, `_`, `-` and `.` in its name, and no digit first",
        )),
        None => Ok(()),
    }
}

/// A folder by its full path, or the name of a volume.
fn check_hub_cache(cache: Option<&str>, backend: &Backend) -> Result<()> {
    let Some(cache) = cache else { return Ok(()) };
    let is_volume = match backend {
        Backend::Kubernetes { .. } => cache.split('.').all(is_label),
        // Source: the names of volumes that Docker's engine takes.
        _ => {
            let is_inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            cache.len() > 1
                && cache.starts_with(|c: char| c.is_ascii_alphanumeric())
                && cache.chars().all(is_inner)
        }
    };
    // A colon would end the path in the engine's notation.
    if is_volume || (cache.starts_with('/') && !cache.contains(':')) {
        return Ok(());
    }
    Err(Error::validation(
        "hub_cache",
        cache,
        "a folder by its full path is needed, or the name of a volume (docker) or of a persistent volume claim (kubernetes)",
    ))
}
