//! Applies a plan to a cluster.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams};

use super::cluster::Cluster;
use super::manifest::{Description, Manifests};
use super::nodes::Placement;
use super::update::update;
use super::workload::Workload;
use crate::backend::{Begun, Handle};
use crate::check::{Compute, Place, Plan};
use crate::error::{Error, Result};
use crate::model;
use crate::params::Params;
use crate::spec::{Device, Spec};
use crate::status::DeploymentStatus;

/// Interval and time limit of the checks whether a deployment that is being deleted is gone.
const LOOK: Duration = Duration::from_millis(500);
const GOING_PATIENCE: Duration = Duration::from_secs(90);

/// The objects of a plan as YAML. The cluster is not asked.
pub(crate) fn manifests(params: &Params, plan: &Plan, namespace: Option<&str>) -> Result<String> {
    refuse_folder(&plan.spec)?;
    let mut warnings = plan.warnings.clone();
    let placement = Placement::new(&plan.spec, None, &mut warnings)?;
    let description = Description { spec: plan.spec.clone(), gpus: placement.gpus, warnings };
    let manifests = Manifests {
        description: &description,
        placement: &placement,
        secrets: &plan.secrets,
        namespace,
        timeout: params.timeout,
    };
    manifests.to_yaml()
}

/// Applies a plan, or finds the deployment with the same spec.
pub(crate) async fn deploy(
    cluster: &Cluster,
    params: &Params,
    mut plan: Plan,
    on_progress: &mut impl FnMut(&DeploymentStatus),
) -> Result<Begun> {
    refuse_folder(&plan.spec)?;
    let deadline = plan.deadline.clone();
    let nodes = async {
        match find(cluster, &plan.spec).await? {
            // Specs do not contain the values of secrets. An update compares those, too.
            Some((_, found)) if found.spec == plan.spec && !params.update => {
                Ok(Err(begun(cluster, found)))
            }
            Some((_, found)) if !params.update => Err(in_use(&found.spec, &plan.spec)),
            other => Ok(Ok((other, cluster.nodes().await?))),
        }
    };
    let (before, nodes) = match deadline.hold("the cluster did not answer", nodes).await? {
        Err(begun) => return Ok(begun),
        Ok(found) => found,
    };
    let placement = Placement::new(&plan.spec, nodes.as_deref(), &mut plan.warnings)?;
    let compute = match placement.gpus {
        0 => Compute::cpu(Place::Elsewhere),
        // The free memory of the cluster's GPUs is not known here. Without GPUs in the list, it is not checked.
        _ => Compute { device: Device::Cuda, gpus: Vec::new(), place: Place::Elsewhere },
    };
    model::check(params, &plan, &compute).await?;
    let warnings = plan.warnings.clone();
    let description = Description { spec: plan.spec.clone(), gpus: placement.gpus, warnings };
    let manifests = Manifests {
        description: &description,
        placement: &placement,
        secrets: &plan.secrets,
        namespace: Some(&cluster.namespace),
        timeout: params.timeout,
    };
    if let Some((before, _)) = before {
        return update(cluster, &manifests, before, params, on_progress).await;
    }
    let workload = Workload { cluster: cluster.clone(), description: description.clone() };
    match apply(cluster, &manifests).await {
        Ok(()) => Ok(Begun { handle: Handle::Kubernetes(workload), is_own: true }),
        // Another client was faster, with the same or another spec.
        Err(Trouble::Conflict(error)) => match find(cluster, &plan.spec).await? {
            Some((_, found)) if found.spec == plan.spec => Ok(begun(cluster, found)),
            Some((_, found)) => Err(in_use(&found.spec, &plan.spec)),
            None => Err(error),
        },
        Err(Trouble::Halfway(error)) => {
            // The first error is reported: a failed clean-up says less about the cause.
            let _ = workload.delete().await;
            Err(error)
        }
        Err(Trouble::Nothing(error)) => Err(error),
    }
}

/// The progress of an apply that failed.
enum Trouble {
    /// The Deployment belongs to another client.
    Conflict(Error),
    /// The Deployment exists, the other objects may not.
    Halfway(Error),
    /// Nothing exists.
    Nothing(Error),
}

/// Applies the Deployment first: its owner has the name, and the other objects belong to it. Conflicts with
/// another manager's fields are never forced, and each spec has its own manager. So exactly one of two
/// concurrent clients wins.
async fn apply(cluster: &Cluster, manifests: &Manifests<'_>) -> Result<(), Trouble> {
    let name = &manifests.description.spec.name;
    let parameters = PatchParams::apply(&manager(&manifests.description.spec));
    let deployment = manifests.deployment().map_err(Trouble::Nothing)?;
    let applied = cluster.deployments().patch(name, &parameters, &Patch::Apply(&deployment)).await;
    let applied = applied.map_err(|error| {
        let is_conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
        let error = cluster.wrong("make the Deployment", error);
        if is_conflict { Trouble::Conflict(error) } else { Trouble::Nothing(error) }
    })?;
    let owner = OwnerReference {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        name: name.clone(),
        // The id, which only the cluster knows, is part of the reference. This is why the Deployment is applied
        // first.
        uid: applied.metadata.uid.unwrap_or_default(),
        ..Default::default()
    };
    let wrong = |what: &str, error| Trouble::Halfway(cluster.wrong(what, error));
    if let Some(secret) = manifests.secret(Some(owner.clone())) {
        let applied = cluster.secrets().patch(name, &parameters, &Patch::Apply(&secret)).await;
        applied.map_err(|error| wrong("make the Secret", error))?;
    }
    let service = manifests.service(Some(owner));
    let applied = cluster.services().patch(name, &parameters, &Patch::Apply(&service)).await;
    applied.map_err(|error| wrong("make the Service", error))?;
    Ok(())
}

/// The field manager of a spec.
fn manager(spec: &Spec) -> String {
    // The hash only has to differ between specs. Nothing compares it with the hash of another version.
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(spec).unwrap_or_default().hash(&mut hasher);
    format!("candlepower-{:016x}", hasher.finish())
}

/// A deployment that exists already.
fn begun(cluster: &Cluster, description: Description) -> Begun {
    let workload = Workload { cluster: cluster.clone(), description };
    Begun { handle: Handle::Kubernetes(workload), is_own: false }
}

fn in_use(has: &Spec, asked: &Spec) -> Error {
    Error::NameInUse { name: has.name.clone(), difference: has.difference(asked) }
}

/// The deployment of this name. If it is being deleted, this waits until it is gone.
///
/// # Errors
/// Another program has made it.
async fn find(cluster: &Cluster, spec: &Spec) -> Result<Option<(Deployment, Description)>> {
    let begin = Instant::now();
    loop {
        let found = cluster.deployments().get_opt(&spec.name).await;
        let Some(found) = found.map_err(|error| cluster.wrong("be asked", error))? else {
            return Ok(None);
        };
        if found.metadata.deletion_timestamp.is_some() && begin.elapsed() < GOING_PATIENCE {
            tokio::time::sleep(LOOK).await;
            continue;
        }
        let Some(description) = Description::of(&found) else {
            return Err(Error::backend(
                format!("`{}` cannot be deployed", spec.name),
                format!(
                    "the namespace {} has a Deployment of this name that candlepower has not made; choose another name",
                    cluster.namespace
                ),
            ));
        };
        return Ok(Some((found, description)));
    }
}

fn refuse_folder(spec: &Spec) -> Result<()> {
    match spec.model_path() {
        Some(_) => Err(Error::validation(
            "model",
            &spec.model,
            "a cluster cannot read folders and files of this machine: name a model of the hub as owner/name",
        )),
        None => Ok(()),
    }
}
