//! Updates: another container takes over from the one that runs. It is ready first, if there is room for
//! both.

use std::time::Duration;

use super::container::Container;
use super::create::{Image, choose_gpus, free_gpus, make};
use super::engine::{Engine, Refused, container_name};
use crate::backend::{Begun, Handle};
use crate::check::{Compute, HUB_TOKEN, Plan};
use crate::error::{Error, Leftover, Result};
use crate::model;
use crate::params::Params;
use crate::secret::Secrets;
use crate::secret_file::{SECRETS_FILE, unpacked};
use crate::status::DeploymentStatus;

/// Suffixes of the names of containers that take over, and of those that are replaced. Names of deployments
/// have no dots, so a suffix cannot be part of another deployment's name.
const NEXT: &str = ".next";
const OLD: &str = ".old";

/// Runs the plan in place of the old container. The old one keeps running if the update fails.
pub(super) async fn update(
    engine: &Engine,
    params: &Params,
    mut plan: Plan,
    old: Container,
    on_progress: &mut impl FnMut(&DeploymentStatus),
) -> Result<Begun> {
    // This comes first, so that a missing value ends the update before anything has changed.
    keep_secrets(engine, &old, &mut plan).await?;
    let name = container_name(&plan.spec.name);
    let (compute, in_place) = room(engine, params, &mut plan, &old).await?;
    let image = Image::find(engine, &plan.spec, &compute).await?;
    if in_place {
        old.stop().await?;
    }
    // A container that does not become ready is removed here, so nothing is kept on failure.
    let once = Params { keep_on_failure: false, ..params.clone() };
    let begun = begin(engine, &once, &plan, &compute, &image, on_progress).await;
    let new = match begun {
        Ok(new) => new,
        Err(error) => {
            if in_place {
                old.restart().await?;
            }
            return Err(error.leaving(Leftover::Before));
        }
    };
    if let Err(refused) = take_over(engine, &name, &old.id, &new.id).await {
        // The first error is reported: a failed clean-up says less about the cause.
        let _ = new.remove().await;
        if in_place {
            old.restart().await?;
        }
        let doing = format!("the containers of `{}` cannot be renamed", plan.spec.name);
        return Err(Error::backend(doing, refused));
    }
    old.remove().await?;
    // Not `is_own`: a later error of the caller must not remove a deployment that existed before.
    Ok(Begun { handle: Handle::Docker(new), is_own: false })
}

/// Gives the deployment's name to the new container. If that fails, the old one keeps it.
async fn take_over(engine: &Engine, name: &str, old: &str, new: &str) -> Result<(), Refused> {
    // A name can only be given once it is free. Between the two renames no container has the deployment's name. After
    // an interruption there, `without_leftovers` completes the change.
    engine.rename(old, &format!("{name}{OLD}")).await?;
    if let Err(refused) = engine.rename(new, name).await {
        // Clients find a deployment by its container's name. If this fails too, `without_leftovers` does it before
        // the next update.
        let _ = engine.rename(old, name).await;
        return Err(refused);
    }
    Ok(())
}

/// Starts the new container and waits until it is ready. A container that fails is removed.
async fn begin(
    engine: &Engine,
    params: &Params,
    plan: &Plan,
    compute: &Compute,
    image: &Image,
    on_progress: &mut impl FnMut(&DeploymentStatus),
) -> Result<Container> {
    let name = format!("{}{NEXT}", container_name(&plan.spec.name));
    let made = make(engine, params, plan, compute, image, &name).await?;
    let Some(new) = made else {
        let doing = format!("`{}` cannot be updated", plan.spec.name);
        return Err(Error::backend(
            doing,
            format!("another client is updating it; if none is, remove the container {name}"),
        ));
    };
    let timeout = Duration::from_secs(params.timeout);
    let waited = async { new.read().await?.wait(timeout, params.timeout, on_progress).await };
    match waited.await {
        Ok(()) => Ok(new),
        Err(error) => {
            // The first error is reported: a failed clean-up says less about the cause.
            let _ = new.remove().await;
            Err(error)
        }
    }
}

/// Chooses the new server's device, and whether the old server has to end first.
async fn room(
    engine: &Engine,
    params: &Params,
    plan: &mut Plan,
    old: &Container,
) -> Result<(Compute, bool)> {
    let keeps_port = plan.spec.port == Some(old.description.port);
    // The first choice of GPUs may add warnings that do not apply to the second.
    let before = plan.warnings.clone();
    let beside = match choose_gpus(engine, plan).await {
        Ok(compute) => model::check(params, plan, &compute).await.map(|()| compute),
        Err(error) => Err(error),
    };
    let why = match beside {
        Ok(compute) if !keeps_port => return Ok((compute, false)),
        Ok(_) => "the port stays the same".to_owned(),
        // There may be room once the old server has freed its memory and GPUs.
        Err(error @ (Error::ResourceUnavailable { .. } | Error::OutOfMemory { .. })) => {
            error.to_string()
        }
        Err(error) => return Err(error),
    };
    plan.warnings = before;
    let with_own = free_gpus(engine, Some(old)).await?;
    let compute = plan.spec.choose_gpus(&with_own, &mut plan.warnings)?;
    model::check(params, plan, &compute.clone().without_this_machine()).await?;
    plan.warnings.push(format!("`{}` was ended before its update: {why}", plan.spec.name));
    Ok((compute, true))
}

/// Copies the values of secrets that were not given again from the old container.
async fn keep_secrets(engine: &Engine, old: &Container, plan: &mut Plan) -> Result<()> {
    let has = |plan: &Plan, name: &String| plan.secrets.0.contains_key(name);
    let is_whole = plan.spec.secret_names.iter().all(|name| has(plan, name));
    // The hub's token is usually not among the names, since it comes from the environment.
    if is_whole && plan.secrets.0.contains_key(HUB_TOKEN) {
        return Ok(());
    }
    for (name, value) in secrets_of(engine, old).await.0 {
        if name == HUB_TOKEN || plan.spec.secret_names.contains(&name) {
            // Values that were given again win.
            plan.secrets.0.entry(name).or_insert(value);
        }
    }
    match plan.spec.secret_names.iter().find(|name| !has(plan, name)) {
        Some(name) => Err(Error::validation(
            "env",
            name,
            "the container does not have its value: give it again",
        )),
        None => Ok(()),
    }
}

/// The secrets of a container; empty if it has no such file.
async fn secrets_of(engine: &Engine, container: &Container) -> Secrets {
    let archive = engine.get_archive(&container.id, SECRETS_FILE).await;
    archive.ok().and_then(|archive| unpacked(&archive).ok()).unwrap_or_default()
}

/// Whether a given secret differs from the container's value.
pub(super) async fn has_other_secrets(engine: &Engine, old: &Container, plan: &Plan) -> bool {
    let has = secrets_of(engine, old).await;
    plan.secrets.0.iter().any(|(name, value)| has.0.get(name) != Some(value))
}

/// Removes what an interrupted update has left. If no container has the deployment's name, the new one gets it, or
/// else the old one.
pub(super) async fn without_leftovers(engine: &Engine, name: &str) -> Result<()> {
    let name = container_name(name);
    let [next, old] = [NEXT, OLD].map(|end| format!("{name}{end}"));
    if !exists(engine, &old).await? {
        return Ok(());
    }
    if exists(engine, &name).await? {
        return remove(engine, &old).await;
    }
    let wrong = |container: &str, refused| {
        Error::backend(format!("the container {container} cannot be renamed to {name}"), refused)
    };
    match engine.rename(&next, &name).await {
        Ok(()) => remove(engine, &old).await,
        // The old container is the only one, so it is the deployment.
        Err(refused) if refused.is_not_found() => {
            engine.rename(&old, &name).await.map_err(|refused| wrong(&old, refused))
        }
        Err(refused) => Err(wrong(&next, refused)),
    }
}

/// Whether the engine has a container of this name.
async fn exists(engine: &Engine, name: &str) -> Result<bool> {
    match engine.inspect(name).await {
        Ok(_) => Ok(true),
        Err(refused) if refused.is_not_found() => Ok(false),
        Err(refused) => {
            Err(Error::backend(format!("the container {name} cannot be inspected"), refused))
        }
    }
}

/// Removes all containers that an interrupted update may have left.
pub(super) async fn remove_leftovers(engine: &Engine, name: &str) {
    for end in [NEXT, OLD] {
        // Usually there is none.
        let _ = remove(engine, &format!("{}{end}", container_name(name))).await;
    }
}

async fn remove(engine: &Engine, name: &str) -> Result<()> {
    match engine.delete(&format!("containers/{name}"), &[("force", "true"), ("v", "true")]).await {
        Err(refused) if !refused.is_not_found() => {
            Err(Error::backend(format!("the container {name} cannot be removed"), refused))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
