//! Checks of parameters that only some backends support.

use super::is_label;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::params::Params;
use crate::spec::CLIENT_AUTHORITIES;

/// Longest key of a Kubernetes Secret.
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
            format!("the {name} backend runs one replica"),
        );
    }
    match backend {
        Backend::Process => match &params.hub_cache {
            Some(cache) => refused(
                "hub_cache",
                cache.clone(),
                "a process uses the hub client's cache: set HF_HOME in its environment".into(),
            ),
            None => Ok(()),
        },
        Backend::Docker { .. } | Backend::Kubernetes { .. } => match params.ttl_seconds {
            Some(seconds) => refused(
                "ttl_seconds",
                seconds.to_string(),
                format!(
                    "the {name} backend has no supervisor that would delete the deployment; leave it out"
                ),
            ),
            None => check_container(params, backend),
        },
    }
}

/// Checks that apply to containers in every backend.
fn check_container(params: &Params, backend: &Backend) -> Result<()> {
    check_hub_cache(params.hub_cache.as_deref(), backend)?;
    if let Some(image) = &params.image
        && (image.is_empty() || image.contains(char::is_whitespace))
    {
        let reason =
            "write the name of an image, without spaces; leave it out for this version's image";
        return Err(Error::validation("image", image, reason));
    }
    if params.port == Some(0) {
        let reason = "write a port from 1 to 65535; leave it out for the backend's own choice";
        return Err(Error::validation("port", 0, reason));
    }
    match backend {
        // In a cluster, probes run within the pod, where the certificate is. So client certificates are possible
        // there.
        Backend::Kubernetes { .. } => check_cluster(params),
        _ => check_clients(params),
    }
}

/// Refuses client certificates. The certificate that clients need lies in the container, but the server's
/// health is checked from outside.
fn check_clients(params: &Params) -> Result<()> {
    let variable = params.framework.variable(CLIENT_AUTHORITIES);
    if params.env.contains_key(&variable) {
        let reason = "a container whose clients need certificates cannot be asked for its health from outside; leave it out";
        return Err(Error::validation("env", variable, reason));
    }
    Ok(())
}

/// Checks names by Kubernetes' rules. Names of Services are labels as defined by RFC 1035. Names of variables
/// are also keys of Secrets.
fn check_cluster(params: &Params) -> Result<()> {
    if !params.name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(Error::validation(
            "name",
            &params.name,
            "begin the name with a letter: the kubernetes backend names a Service after it",
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

/// Accepts a folder by its absolute path, or the name of a volume.
fn check_hub_cache(cache: Option<&str>, backend: &Backend) -> Result<()> {
    let Some(cache) = cache else { return Ok(()) };
    let is_volume = match backend {
        Backend::Kubernetes { .. } => cache.split('.').all(is_label),
        // Source: the names of volumes that Docker's engine accepts.
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
        "write a folder by its absolute path, or the name of a volume (docker) or of a persistent volume claim (kubernetes)",
    ))
}
