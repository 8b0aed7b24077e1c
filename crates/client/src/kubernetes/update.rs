//! Changes the objects of a deployment. The cluster then replaces its pods by the Deployment's strategy.
//!
//! Objects are replaced whole, at the version that was read. So of two concurrent clients one is refused,
//! instead of both being applied in part. If the new pods do not become ready, the old objects are put back.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment as KubeDeployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{Api, PostParams};

use super::cluster::Cluster;
use super::manifest::Manifests;
use super::workload::{RESTARTED, Workload};
use crate::backend::{Begun, Handle};
use crate::error::{Error, Leftover, Result};
use crate::params::Params;
use crate::status::DeploymentStatus;

/// Replaces the objects and waits until the new pods are ready.
pub(super) async fn update(
    cluster: &Cluster,
    manifests: &Manifests<'_>,
    before: KubeDeployment,
    params: &Params,
    on_progress: &mut impl FnMut(&DeploymentStatus),
) -> Result<Begun> {
    let name = &manifests.description.spec.name;
    let wrong = |error| cluster.wrong("be asked", error);
    let service = cluster.services().get_opt(name).await.map_err(wrong)?;
    let secret = cluster.secrets().get_opt(name).await.map_err(wrong)?;
    let old = Objects { deployment: before, service, secret };
    let new = old.changed(manifests)?;
    let workload =
        Workload { cluster: cluster.clone(), description: manifests.description.clone() };
    let timeout = Duration::from_secs(params.timeout);
    let updated = async {
        new.put(cluster, name).await?;
        workload.read().await?.wait(timeout, params.timeout, on_progress).await
    };
    match updated.await {
        Ok(()) => Ok(Begun { handle: Handle::Kubernetes(workload), is_own: false }),
        Err(error) if params.keep_on_failure => Err(error),
        Err(error) => {
            old.put_back(cluster, name).await?;
            Err(error.leaving(Leftover::Before))
        }
    }
}

/// The objects of a deployment.
#[derive(Clone)]
struct Objects {
    deployment: KubeDeployment,
    service: Option<Service>,
    secret: Option<Secret>,
}

impl Objects {
    /// The same objects with the manifests' content. Metadata that others have added stays, as do the values
    /// of secrets that are not given again.
    ///
    /// # Errors
    /// The image cannot be chosen, or the value of a secret is not known.
    fn changed(&self, manifests: &Manifests<'_>) -> Result<Self> {
        let made = manifests.deployment()?;
        let mut deployment = self.deployment.clone();
        let labels = deployment.metadata.labels.get_or_insert_default();
        labels.extend(made.metadata.labels.unwrap_or_default());
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        annotations.extend(made.metadata.annotations.unwrap_or_default());
        (deployment.spec, deployment.status) = (made.spec, None);
        let mut service = manifests.service(None);
        if let Some(found) = &self.service {
            let ports = service.spec.take().and_then(|spec| spec.ports);
            service = found.clone();
            if let Some(spec) = service.spec.as_mut() {
                // Only the ports depend on the parameters. Other fields, such as the address, belong to the cluster
                // and cannot be changed.
                spec.ports = ports;
            }
        }
        let secret = self.changed_secret(manifests)?;
        let data = |secret: &Option<Secret>| secret.as_ref().and_then(|secret| secret.data.clone());
        if data(&secret) != data(&self.secret)
            && let Some(spec) = deployment.spec.as_mut()
        {
            // Pods read a Secret only when they start, and a changed Secret does not make the cluster restart
            // them. So the change is made visible in the pod's template.
            let metadata = spec.template.metadata.get_or_insert_default();
            let time = jiff::Timestamp::now().to_string();
            metadata.annotations.get_or_insert_default().insert(RESTARTED.to_owned(), time);
        }
        Ok(Self { deployment, service: Some(service), secret })
    }

    fn changed_secret(&self, manifests: &Manifests<'_>) -> Result<Option<Secret>> {
        let mut kept =
            self.secret.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
        let made = manifests.secret(None);
        kept.extend(made.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default());
        let names = &manifests.description.spec.secret_names;
        if let Some(name) = names.iter().find(|name| !kept.contains_key(*name)) {
            let reason = "the cluster's Secret does not have its value: give it again";
            return Err(Error::validation("env", name, reason));
        }
        Ok(match (&self.secret, made) {
            // Values that the new parameters no longer name stay, since old pods still refer to them.
            (Some(found), _) => Some(Secret { data: Some(kept), ..found.clone() }),
            (None, made) => made,
        })
    }

    /// Replaces the cluster's objects. The Secret comes first, since new pods read it.
    async fn put(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let wrong = |error| cluster.wrong("update the deployment", error);
        if let Some(secret) = &self.secret {
            put(&cluster.secrets(), name, secret, secret.metadata.uid.is_some())
                .await
                .map_err(wrong)?;
        }
        put(&cluster.deployments(), name, &self.deployment, true).await.map_err(wrong)?;
        if let Some(service) = &self.service {
            put(&cluster.services(), name, service, service.metadata.uid.is_some())
                .await
                .map_err(wrong)?;
        }
        Ok(())
    }

    /// Puts the objects back, at their current versions. Objects that another client has created since are
    /// kept.
    async fn put_back(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let mut back = self.clone();
        let wrong = |error| cluster.wrong("go back to what ran before", error);
        let found = cluster.deployments().get(name).await.map_err(wrong)?;
        // The versions have changed with the update. A replacement at an older version would be refused.
        back.deployment.metadata.resource_version = found.metadata.resource_version;
        back.deployment.status = None;
        if let (Some(service), Some(found)) =
            (&mut back.service, cluster.services().get_opt(name).await.map_err(wrong)?)
        {
            service.metadata.resource_version = found.metadata.resource_version;
        }
        if let (Some(secret), Some(found)) =
            (&mut back.secret, cluster.secrets().get_opt(name).await.map_err(wrong)?)
        {
            secret.metadata.resource_version = found.metadata.resource_version;
        }
        back.put(cluster, name).await
    }
}

/// Replaces an object, or creates it.
async fn put<K>(api: &Api<K>, name: &str, object: &K, is_there: bool) -> Result<(), kube::Error>
where
    K: Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let parameters =
        PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match is_there {
        true => api.replace(name, &parameters, object).await,
        false => api.create(&parameters, object).await,
    }
    .map(|_| ())
}

/// The field manager of an update.
const MANAGER: &str = "candlepower-update";

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;
    use crate::BlazeParams;
    use crate::backend::Backend;
    use crate::check::Plan;
    use crate::kubernetes::manifest::Description;
    use crate::kubernetes::nodes::Placement;

    /// The objects for these parameters: an update of existing objects, or new ones.
    fn objects(params: BlazeParams, before: Option<&Objects>) -> Result<Objects> {
        let params = params.gpu_count(0).into();
        let backend = Backend::Kubernetes { context: None, namespace: None };
        let plan = Plan::new(&params, &backend)?;
        let placement = Placement::new(&plan.spec, None, &mut Vec::new())?;
        let description = Description { spec: plan.spec.clone(), gpus: 0, warnings: Vec::new() };
        let manifests = Manifests {
            description: &description,
            placement: &placement,
            secrets: &plan.secrets,
            namespace: Some("a"),
            timeout: 60,
        };
        match before {
            Some(before) => before.changed(&manifests),
            None => Ok(Objects {
                deployment: manifests.deployment()?,
                service: Some(manifests.service(None)),
                secret: manifests.secret(None),
            }),
        }
    }

    #[test]
    fn an_update_keeps_what_is_not_its_own() {
        let chat = || BlazeParams::new("chat", "demo").env("MY_TOKEN", "one").env("MY_KEY", "two");
        let mut before = objects(chat().env("A", "1").port(9000), None).unwrap();
        let metadata = &mut before.deployment.metadata;
        metadata.resource_version = Some("7".into());
        metadata.labels.get_or_insert_default().insert("team".into(), "a".into());
        metadata.annotations.get_or_insert_default().insert("owner".into(), "b".into());
        before.service.as_mut().unwrap().spec.as_mut().unwrap().cluster_ip =
            Some("10.0.0.9".into());
        let after =
            objects(chat().env("MY_TOKEN", "three").max_model_len(512), Some(&before)).unwrap();
        let metadata = &after.deployment.metadata;
        assert_eq!(metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(
            (
                &metadata.labels.as_ref().unwrap()["team"],
                &metadata.annotations.as_ref().unwrap()["owner"]
            ),
            (&"a".to_owned(), &"b".to_owned())
        );
        let description = Description::of(&after.deployment).unwrap();
        assert!(description.spec.argv.contains(&"--max-model-len=512".to_owned()));
        let service = serde_json::to_value(after.service.as_ref().unwrap()).unwrap();
        assert_eq!(
            (&service["spec"]["clusterIP"], &service["spec"]["ports"][0]["port"]),
            (&json!("10.0.0.9"), &json!(8000))
        );
        let restarts = |objects: &Objects| {
            let template = &objects.deployment.spec.as_ref().unwrap().template;
            template.metadata.as_ref().unwrap().annotations.is_some()
        };
        assert!(restarts(&after) && !restarts(&objects(chat(), Some(&before)).unwrap()));
        let data = after.secret.unwrap().data.unwrap();
        assert_eq!(
            (&data["MY_TOKEN"], &data["MY_KEY"]),
            (&ByteString(b"three".to_vec()), &ByteString(b"two".to_vec()))
        );
    }
}
