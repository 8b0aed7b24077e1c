//! The objects of a deployment, as they are applied and as `--dry-run` prints them.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::nodes::{GPU_RESOURCE, MEMORY_LABEL, PRODUCT_LABEL, Placement};
use crate::error::{Error, Result};
use crate::secret::Secrets;
use crate::spec::{Device, Spec};

/// The value of the label `app.kubernetes.io/managed-by`, which Kubernetes recommends.
const MANAGER: &str = "candlepower";
const MANAGER_LABEL: &str = "app.kubernetes.io/managed-by";
const NAME_LABEL: &str = "app.kubernetes.io/name";
const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
/// The annotation with the description of a deployment: everything but its secrets.
const DESCRIPTION_ANNOTATION: &str = "candlepower/description";
/// The annotation's former name. Deployments of earlier versions have it.
const FORMER_ANNOTATION: &str = "candlepower-description";
/// User and group of the image.
const USER: i64 = 10001;
/// Seconds for which a server still answers after the signal to stop. Meanwhile the cluster removes it from
/// its Services.
const DRAIN_SECONDS: u64 = 5;
/// Seconds between two probes of a server that starts.
const STARTUP_PERIOD: u64 = 5;

/// The description of a deployment, stored in an annotation of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(super) spec: Spec,
    /// GPUs of each pod.
    pub(super) gpus: u32,
    /// Warnings that the user has seen at the start.
    pub(super) warnings: Vec<String>,
}

impl Description {
    /// Reads the description of a Deployment; `None` if another program has made it.
    pub(super) fn of(deployment: &Deployment) -> Option<Self> {
        let metadata = &deployment.metadata;
        let is_ours = metadata.labels.as_ref()?.get(MANAGER_LABEL)? == MANAGER;
        let annotations = metadata.annotations.as_ref()?;
        let text = annotations.get(DESCRIPTION_ANNOTATION).or(annotations.get(FORMER_ANNOTATION))?;
        serde_json::from_str(text).ok().filter(|_| is_ours)
    }

    /// The port of the server and of the service.
    pub(super) fn port(&self) -> u16 {
        self.spec.port.unwrap_or_else(|| self.spec.container_port())
    }
}

/// Label selector of all objects of this backend, or of one deployment's objects.
pub(super) fn selector(name: Option<&str>) -> String {
    let ours = format!("{MANAGER_LABEL}={MANAGER}");
    name.map_or(ours.clone(), |name| format!("{ours},{INSTANCE_LABEL}={name}"))
}

/// The input for the objects.
pub(super) struct Manifests<'a> {
    pub(super) description: &'a Description,
    pub(super) placement: &'a Placement,
    pub(super) secrets: &'a Secrets,
    pub(super) namespace: Option<&'a str>,
    /// Seconds until a server that is not ready counts as failed.
    pub(super) timeout: u64,
}

impl Manifests<'_> {
    /// All objects as YAML, in the order in which `kubectl apply` must create them.
    ///
    /// # Errors
    /// See [`deployment`](Self::deployment).
    pub(super) fn to_yaml(&self) -> Result<String> {
        let wrong =
            |error: serde_saphyr::ser::Error| Error::backend("no YAML can be written", error);
        let mut documents = Vec::new();
        if let Some(secret) = self.secret(None) {
            documents.push(serde_saphyr::to_string(&secret).map_err(wrong)?);
        }
        // Nothing has an owner here: the Deployment's id exists only after it was created.
        documents.push(serde_saphyr::to_string(&self.service(None)).map_err(wrong)?);
        documents.push(serde_saphyr::to_string(&self.deployment()?).map_err(wrong)?);
        let documents: Vec<&str> = documents.iter().map(|text| text.trim_end()).collect();
        Ok(documents.join("\n---\n") + "\n")
    }

    /// The Secret with the values that must not be shown; `None` if there are none.
    pub(super) fn secret(&self, owner: Option<OwnerReference>) -> Option<Secret> {
        if self.secrets.0.is_empty() {
            return None;
        }
        let bytes = |value: &String| ByteString(value.clone().into_bytes());
        let data = self.secrets.0.iter().map(|(name, value)| (name.clone(), bytes(value)));
        Some(Secret {
            metadata: self.metadata(owner),
            type_: Some("Opaque".into()),
            data: Some(data.collect()),
            ..Default::default()
        })
    }

    pub(super) fn service(&self, owner: Option<OwnerReference>) -> Service {
        let port = self.description.port();
        let spec = json!({
            "type": "ClusterIP",
            "selector": self.selector_labels(),
            // Server-side apply merges ports by number and protocol, so the protocol is written although it is the
            // default.
            "ports": [{ "name": "http", "port": port, "targetPort": "http", "protocol": "TCP" }],
        });
        Service {
            metadata: self.metadata(owner),
            spec: Some(serde_json::from_value(spec).expect("it is a service's")),
            ..Default::default()
        }
    }

    /// # Errors
    /// The image cannot be chosen.
    pub(super) fn deployment(&self) -> Result<Deployment> {
        let spec = &self.description.spec;
        let mut metadata = self.metadata(None);
        let description = serde_json::to_string(self.description).unwrap_or_default();
        metadata.annotations = Some(BTreeMap::from([(DESCRIPTION_ANNOTATION.into(), description)]));
        let body = json!({
            "replicas": spec.replicas,
            "strategy": self.strategy(),
            // The probes decide first: their limit is the user's timeout.
            "progressDeadlineSeconds": self.timeout + 60,
            // An update that fails is undone by the client, so the cluster need not keep a history.
            "revisionHistoryLimit": 1,
            "selector": { "matchLabels": self.selector_labels() },
            "template": { "metadata": { "labels": self.labels() }, "spec": self.pod()? },
        });
        Ok(Deployment {
            metadata,
            spec: Some(serde_json::from_value(body).expect("it is a deployment's")),
            ..Default::default()
        })
    }

    /// Update strategy. With GPUs the old pod goes first, since a new pod would wait for the old one's GPUs
    /// for ever.
    fn strategy(&self) -> Value {
        // `Recreate` ends all replicas at once. So several replicas are replaced one by one while the others answer,
        // without an extra pod, which would need a spare GPU.
        let rolling = |surge: u32, unavailable: u32| {
            let rolling = json!({ "maxSurge": surge, "maxUnavailable": unavailable });
            json!({ "type": "RollingUpdate", "rollingUpdate": rolling })
        };
        match (self.description.spec.replicas, self.placement.gpus) {
            (1, 0) => rolling(1, 0),
            (1, _) => json!({ "type": "Recreate" }),
            _ => rolling(0, 1),
        }
    }

    fn pod(&self) -> Result<Value> {
        let mut pod = json!({
            // The server makes no requests to the cluster, so it gets no credentials for it.
            "automountServiceAccountToken": false,
            // The cluster sets variables for other services. The server would read some of them as its
            // settings.
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": self.description.spec.stop_seconds(DRAIN_SECONDS),
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [self.container()?],
            "volumes": [
                { "name": "hub-cache" },
                // The default of 64 MB is too small for ranks, which exchange tensors through shared memory. It counts
                // towards the container's memory limit.
                { "name": "shm", "emptyDir": {
                    "medium": "Memory", "sizeLimit": quantity(self.description.spec.shm_bytes()),
                } },
            ],
        });
        let (kind, cache) = self.hub_cache();
        pod["volumes"][0][kind] = cache;
        if self.placement.gpus > 0 {
            // Many clusters keep other pods off their GPU nodes by this taint.
            pod["tolerations"] =
                json!([{ "key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule" }]);
        }
        let requirements = self.node_requirements();
        if !requirements.is_empty() {
            pod["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": requirements }],
            } } });
        }
        Ok(pod)
    }

    fn container(&self) -> Result<Value> {
        let spec = &self.description.spec;
        // The memory request equals the limit, so the node keeps that much for the server.
        let mut resources = BTreeMap::from([("memory", quantity(spec.memory_bytes))]);
        if self.placement.gpus > 0 {
            resources.insert(GPU_RESOURCE, self.placement.gpus.to_string());
        }
        // CPUs have no limit, so that the server may use idle ones.
        let mut requests = resources.clone();
        if let Some(millis) = spec.cpu_millis {
            requests.insert("cpu", cpus(millis));
        }
        Ok(json!({
            "name": "server",
            "image": self.image()?,
            "command": ["candlepower"],
            "args": self.args(),
            "env": self.env(),
            "ports": [{ "name": "http", "containerPort": self.description.port(), "protocol": "TCP" }],
            "resources": { "limits": resources, "requests": requests },
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
            // The end of the log becomes the reason of a failure.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            // A fixed initial delay would kill large models while they load, and would make small ones wait. So the
            // startup probe repeats until the user's timeout, and the other probes begin after it.
            "startupProbe": self.probe(STARTUP_PERIOD, 3, self.timeout.div_ceil(STARTUP_PERIOD)),
            // A pod leaves the Service soon, since other pods can answer. It is restarted only much later, since
            // loading the model again takes long.
            "readinessProbe": self.probe(5, 5, 2),
            "livenessProbe": self.probe(10, 10, 6),
            "volumeMounts": [
                { "name": "hub-cache", "mountPath": "/data" },
                { "name": "shm", "mountPath": "/dev/shm" },
            ],
        }))
    }

    /// A health probe. Times are in seconds; `failures` is the number of failures in a row that it takes.
    fn probe(&self, period: u64, timeout: u64, failures: u64) -> Value {
        let spec = &self.description.spec;
        let mut probe = json!({
            "periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures,
        });
        if spec.identity().is_some() {
            // The kubelet cannot present a certificate. So the probe runs in the pod, with the server's own
            // certificate.
            probe["exec"] = json!({ "command": ["candlepower", "health"] });
        } else {
            probe["httpGet"] = json!({ "path": "/health", "port": "http" });
            if spec.scheme() == "https" {
                // The kubelet does not verify certificates, so the server's own will do.
                probe["httpGet"]["scheme"] = json!("HTTPS");
            }
        }
        probe
    }

    fn args(&self) -> Vec<String> {
        let device = if self.placement.gpus > 0 { Device::Cuda } else { Device::Cpu };
        let mut args = self.description.spec.argv.clone();
        args.push(format!("--device={}", device.as_str()));
        args.extend(["--host=0.0.0.0".into(), format!("--port={}", self.description.port())]);
        // A flag would win over the user's own setting in the environment.
        if self.description.spec.drain_delay().is_none() {
            args.push(format!("--drain-delay={DRAIN_SECONDS}"));
        }
        args.iter().map(|arg| literal(arg)).collect()
    }

    fn env(&self) -> Vec<Value> {
        let spec = &self.description.spec;
        let plain = spec.env.iter();
        let plain = plain.map(|(name, value)| json!({ "name": name, "value": literal(value) }));
        let secret = self.secrets.0.keys().map(|name| {
            let from = json!({ "name": spec.name, "key": name });
            json!({ "name": name, "valueFrom": { "secretKeyRef": from } })
        });
        plain.chain(secret).collect()
    }

    fn image(&self) -> Result<String> {
        let spec = &self.description.spec;
        // Images for GPUs are built for one compute capability each.
        if self.placement.gpus > 0 && self.placement.capability.is_none() && spec.image.is_none() {
            return Err(Error::validation(
                "image",
                "",
                "the cluster's GPUs are not known here: name the image that is built for them, or set gpu_count to 0",
            ));
        }
        Ok(spec.image_for(self.placement.capability.filter(|_| self.placement.gpus > 0)))
    }

    /// Storage for downloads: a folder of the node, a persistent volume claim, or a volume that lives as long
    /// as the pod.
    fn hub_cache(&self) -> (&'static str, Value) {
        match self.description.spec.hub_cache.as_deref() {
            None => ("emptyDir", json!({})),
            Some(path) if path.starts_with('/') => {
                // A folder created by the kubelet would belong to root, and the server could not write to it.
                ("hostPath", json!({ "path": path, "type": "Directory" }))
            }
            Some(claim) => ("persistentVolumeClaim", json!({ "claimName": claim })),
        }
    }

    fn node_requirements(&self) -> Vec<Value> {
        let Placement { products, above_mib, .. } = self.placement;
        let mut requirements = Vec::new();
        if !products.is_empty() {
            requirements
                .push(json!({ "key": PRODUCT_LABEL, "operator": "In", "values": products }));
        }
        if let Some(mib) = above_mib {
            requirements.push(
                json!({ "key": MEMORY_LABEL, "operator": "Gt", "values": [mib.to_string()] }),
            );
        }
        requirements
    }

    fn metadata(&self, owner: Option<OwnerReference>) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.description.spec.name.clone()),
            namespace: self.namespace.map(str::to_owned),
            labels: Some(self.labels()),
            owner_references: owner.map(|owner| vec![owner]),
            ..Default::default()
        }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.selector_labels();
        labels.insert(MANAGER_LABEL.into(), MANAGER.into());
        labels
    }

    /// The labels that never change, because a Deployment's selector is immutable.
    fn selector_labels(&self) -> BTreeMap<String, String> {
        let name = self.description.spec.name.clone();
        BTreeMap::from([(NAME_LABEL.into(), "candlepower".into()), (INSTANCE_LABEL.into(), name)])
    }
}

/// Escapes dollars. The kubelet reads `$(A)` as a variable and `$$` as a dollar.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// Formats thousandths of CPUs as a Kubernetes quantity.
fn cpus(millis: u64) -> String {
    match millis % 1000 {
        0 => (millis / 1000).to_string(),
        _ => format!("{millis}m"),
    }
}

/// Formats bytes as a Kubernetes quantity.
fn quantity(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    // Only exact multiples get a unit, so no byte is lost.
    let unit = UNITS.iter().find(|(_, shift)| bytes.trailing_zeros() >= *shift);
    unit.map_or(bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests;
