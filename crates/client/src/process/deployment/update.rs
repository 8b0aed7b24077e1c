//! Makes a supervisor update its deployment, and reports progress.

use std::pin::pin;
use std::time::Duration;

use super::super::control::{self, ControlRequest, Update};
use super::super::folder::{self, Record};
use super::super::lease::free_gpus_with;
use super::super::supervisor::TIMEOUT;
use super::{Supervised, free_gpus, here};
use crate::check::{Compute, Plan};
use crate::deployment::ERROR_LINES;
use crate::error::{Error, Leftover, Result};
use crate::model;
use crate::params::Params;
use crate::spec::Launch;
use crate::status::{DeploymentStatus, Phase};

/// Interval of the progress checks.
const LOOK: Duration = Duration::from_millis(50);

/// Lets another server take over. The running server stays if that fails.
pub(super) async fn update(
    found: &Supervised,
    params: &Params,
    plan: Plan,
    record: &Record,
    on_progress: &mut impl FnMut(&DeploymentStatus),
) -> Result<()> {
    let mut warnings = plan.warnings.clone();
    let (compute, in_place) = room(found, params, &plan, record, &mut warnings).await?;
    let spec = plan.spec.clone();
    // The old server has its time to end, and after a failure the new one has, too.
    let ends = found.stop_seconds().saturating_add(spec.stop_seconds(0));
    let launch = Launch {
        root: folder::root()?,
        folder: here(),
        spec,
        secrets: plan.secrets.clone(),
        device: compute.device,
        gpus: compute.uuids(),
        warnings,
    };
    let request =
        ControlRequest::Update(Box::new(Update { launch, in_place, timeout: params.timeout }));
    let patience = params.timeout.saturating_add(ends);
    let mut asked = pin!(control::ask(found.folder.path(), &request, patience));
    let answer = loop {
        tokio::select! {
            answer = &mut asked => break answer,
            () = tokio::time::sleep(LOOK) => {
                // A status that cannot be read now is tried again in the next round.
                if let Ok(status) = found.status().await {
                    on_progress(&status);
                }
            }
        }
    };
    let Err(error) = answer else { return Ok(()) };
    let log = found.logs(Some(ERROR_LINES)).await.unwrap_or_default();
    let (name, reason, left) = (found.name(), error.to_string(), Leftover::Before);
    // The protocol answers in text, so the kind of the error is in its prefix.
    let late = reason.strip_prefix(TIMEOUT).and_then(|rest| rest.split_once(' '));
    Err(match late {
        Some((_, phase)) => Error::Timeout {
            name,
            seconds: params.timeout,
            phase: Phase::named(phase).unwrap_or(Phase::Starting),
            message: String::new(),
            log,
            left,
        },
        None => Error::Failed { name, reason, log, left },
    })
}

/// Chooses the new server's device, and whether the old server has to end first.
async fn room(
    found: &Supervised,
    params: &Params,
    plan: &Plan,
    record: &Record,
    warnings: &mut Vec<String>,
) -> Result<(Compute, bool)> {
    let has_port = |port: u16| record.url.ends_with(&format!(":{port}"));
    let keeps_port = plan.spec.port.is_some_and(has_port);
    let mut told = warnings.clone();
    let beside = match plan.spec.choose_gpus(&free_gpus()?, &mut told) {
        Ok(compute) => model::check(params, plan, &compute).await.map(|()| compute),
        Err(error) => Err(error),
    };
    let why = match beside {
        Ok(compute) if !keeps_port => {
            *warnings = told;
            return Ok((compute, false));
        }
        Ok(_) => "the port stays the same".to_owned(),
        // There may be room once the old server has freed its memory and GPUs.
        Err(error @ (Error::ResourceUnavailable { .. } | Error::OutOfMemory { .. })) => {
            error.to_string()
        }
        Err(error) => return Err(error),
    };
    let with_own = free_gpus_with(&folder::root()?, &record.gpus);
    let compute = plan.spec.choose_gpus(&with_own, warnings)?;
    // The amount of memory that the old server will free is not known, so this machine's free memory is not checked.
    // The new server reports a lack of memory itself.
    model::check(params, plan, &compute.clone().without_this_machine()).await?;
    warnings.push(format!("`{}` was ended before its update: {why}", found.name()));
    Ok((compute, true))
}
