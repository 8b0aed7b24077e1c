//! Chooses among the GPUs of a cluster's nodes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;

use crate::error::{Error, Result};
use crate::spec::Spec;

/// The resource of NVIDIA's device plugin.
pub(super) const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// Labels of NVIDIA's GPU feature discovery. Memory is in MiB.
pub(super) const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
pub(super) const MEMORY_LABEL: &str = "nvidia.com/gpu.memory";
const MAJOR_LABEL: &str = "nvidia.com/gpu.compute.major";
const MINOR_LABEL: &str = "nvidia.com/gpu.compute.minor";

/// The requirements of a pod for its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// GPUs of each pod; 0 computes on the CPU.
    pub(super) gpus: u32,
    /// Products that qualify, by the nodes' labels; empty if any GPU does.
    pub(super) products: BTreeSet<String>,
    /// Exclusive lower limit of a GPU's memory, in MiB.
    pub(super) above_mib: Option<u64>,
    /// Compute capability of the GPUs, if it is known.
    pub(super) capability: Option<(u32, u32)>,
}

/// The GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeGpus {
    count: u32,
    product: String,
    memory_mib: u64,
    capability: Option<(u32, u32)>,
}

impl NodeGpus {
    fn of(node: &Node) -> Option<Self> {
        let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
        // Allocatable GPUs include those in use. A pod waits until enough of them are free.
        let count = allocatable.get(GPU_RESOURCE)?.0.parse().ok().filter(|count| *count > 0)?;
        let label = |name: &str| node.metadata.labels.as_ref()?.get(name).cloned();
        let number = |name: &str| label(name)?.parse::<u32>().ok();
        Some(Self {
            count,
            product: label(PRODUCT_LABEL).unwrap_or_default(),
            memory_mib: label(MEMORY_LABEL).and_then(|text| text.parse().ok()).unwrap_or(0),
            capability: number(MAJOR_LABEL).zip(number(MINOR_LABEL)),
        })
    }
}

impl Placement {
    /// Chooses the node's GPUs. `nodes` is `None` if they are not known; the parameters are then used
    /// unchecked.
    ///
    /// # Errors
    /// No node has the requested GPUs.
    pub(super) fn new(
        spec: &Spec,
        nodes: Option<&[Node]>,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let has_filters = !spec.gpu_models.is_empty() || spec.min_gpu_memory_gb.is_some();
        if spec.gpu_count == Some(0) && !has_filters {
            return Ok(Self::default());
        }
        let gpus = spec.gpu_count.unwrap_or(1).max(1);
        // Converts units of 10^9 bytes to MiB, less 7 %: a card reports less than its nominal size, since drivers
        // reserve a part. A request for 40 GB must accept a card of 40 GB.
        let above_mib = spec.min_gpu_memory_gb.map(|gb| gb.saturating_mul(930_000_000) >> 20);
        let Some(nodes) = nodes else {
            let products =
                spec.gpu_models.iter().map(|model| label(model)).collect::<Result<_>>()?;
            return Ok(Self { gpus, products, above_mib, capability: None });
        };
        let found: Vec<NodeGpus> = nodes.iter().filter_map(NodeGpus::of).collect();
        if found.is_empty() && spec.gpu_count.is_none() && !has_filters {
            warnings.push("the cluster has no node with GPUs: computing on the CPU".to_owned());
            return Ok(Self::default());
        }
        let does = |node: &&NodeGpus| {
            let is_named = |model: &String| plain(&node.product).contains(&plain(model));
            node.count >= gpus
                && (spec.gpu_models.is_empty() || spec.gpu_models.iter().any(is_named))
                // This is the comparison `Gt` of the manifest, which is exclusive.
                && above_mib.is_none_or(|least| node.memory_mib > least)
        };
        let mut fit: Vec<&NodeGpus> = found.iter().filter(does).collect();
        let Some(capability) = fit.first().map(|node| node.capability) else {
            return Err(Error::ResourceUnavailable {
                asked: spec.asked_gpus(gpus as usize),
                available: describe(&found),
            });
        };
        // An image is built for one compute capability, so all pods must get GPUs of one kind.
        let before = fit.len();
        fit.retain(|node| node.capability == capability);
        let mut products = BTreeSet::new();
        // If all nodes that qualify have the same capability, the label adds nothing.
        if !spec.gpu_models.is_empty() || fit.len() < before {
            products.extend(
                fit.iter().map(|node| node.product.clone()).filter(|name| !name.is_empty()),
            );
        }
        Ok(Self { gpus, products, above_mib, capability })
    }
}

/// The node label of a GPU's name, for a cluster whose nodes cannot be listed. NVIDIA's discovery writes
/// hyphens for spaces.
///
/// # Errors
/// The name is no valid label.
fn label(model: &str) -> Result<String> {
    let label = model.replace(' ', "-");
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_label = label.len() <= 63
        && label.chars().all(is_inner)
        && label.starts_with(|c: char| c.is_ascii_alphanumeric())
        && label.ends_with(|c: char| c.is_ascii_alphanumeric());
    if is_label {
        return Ok(label);
    }
    Err(Error::validation(
        "gpu_models",
        model,
        format!(
            "the nodes cannot be asked for it: name the GPU as their label {PRODUCT_LABEL} does"
        ),
    ))
}

/// A name reduced to the characters that all spellings share.
fn plain(name: &str) -> String {
    name.to_lowercase().replace([' ', '_'], "-")
}

fn describe(found: &[NodeGpus]) -> String {
    if found.is_empty() {
        return "the cluster has no node with GPUs: set gpu_count to 0 to compute on the CPU"
            .into();
    }
    let kinds: BTreeSet<String> = found
        .iter()
        .map(|node| format!("{} x {} of {} MiB", node.count, node.product, node.memory_mib))
        .collect();
    let kinds: Vec<String> = kinds.into_iter().collect();
    format!("no node of the cluster has them all: its nodes have {}", kinds.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::backend::Backend;
    use crate::check::Plan;
    use crate::{BlazeParams, Error};

    fn node(count: &str, product: &str, mib: &str, capability: &str) -> Node {
        let (major, minor) = capability.split_once('.').unwrap();
        serde_json::from_value(json!({
            "metadata": {"labels": {
                PRODUCT_LABEL: product, MEMORY_LABEL: mib, MAJOR_LABEL: major, MINOR_LABEL: minor,
            }},
            "status": {"allocatable": {GPU_RESOURCE: count, "memory": "64Gi"}},
        }))
        .unwrap()
    }

    fn place(params: BlazeParams, nodes: Option<&[Node]>) -> Result<(Placement, Vec<String>)> {
        let kubernetes: Backend = "kubernetes".parse().unwrap();
        let spec = Plan::new(&params.into(), &kubernetes).unwrap().spec;
        let mut warnings = Vec::new();
        Placement::new(&spec, nodes, &mut warnings).map(|placement| (placement, warnings))
    }

    fn demo() -> BlazeParams {
        BlazeParams::new("a", "demo")
    }

    #[test]
    fn names_of_gpus_become_the_clusters_own() {
        let nodes = [
            node("8", "NVIDIA-H100-80GB-HBM3", "81559", "9.0"),
            node("1", "Tesla-T4", "15360", "7.5"),
            Node::default(),
        ];
        let (found, _) = place(demo().gpu_models(["nvidia h100"]), Some(&nodes)).unwrap();
        assert_eq!(found.products, BTreeSet::from(["NVIDIA-H100-80GB-HBM3".to_owned()]));
        assert_eq!((found.gpus, found.capability), (1, Some((9, 0))));
        let (found, _) = place(demo().min_gpu_memory_gb(80).gpu_count(2), Some(&nodes)).unwrap();
        // The limit is 93 % of 80 * 10^9 bytes, since drivers reserve a part.
        assert_eq!((found.gpus, found.above_mib), (2, Some(70953)));
        assert!(found.products.is_empty());
        // An image runs on one kind of GPU. Any GPU will do here, so the first kind is taken.
        let (found, _) = place(demo(), Some(&nodes)).unwrap();
        assert_eq!(found.products.len(), 1);
    }

    #[test]
    fn what_no_node_has_is_refused_with_what_there_is() {
        let nodes = [node("2", "Tesla-T4", "15360", "7.5")];
        let error = place(demo().gpu_count(4), Some(&nodes)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "4 GPUs were asked for, but no node of the cluster has them all: its nodes have 2 x Tesla-T4 of 15360 MiB"
        );
        let error = place(demo().gpu_models(["H100"]), Some(&[])).unwrap_err();
        assert!(matches!(error, Error::ResourceUnavailable { .. }), "{error}");
    }

    #[test]
    fn without_gpus_the_cpu_computes_and_says_so() {
        let (found, warnings) = place(demo(), Some(&[Node::default()])).unwrap();
        assert_eq!((found.gpus, warnings.len()), (0, 1));
        let (found, warnings) = place(demo().gpu_count(0), None).unwrap();
        assert_eq!((found, warnings.len()), (Placement::default(), 0));
        let (found, _) = place(demo().gpu_models(["NVIDIA-H100-80GB-HBM3"]), None).unwrap();
        assert_eq!((found.gpus, found.products.len()), (1, 1));
        let (found, _) = place(demo().gpu_models(["NVIDIA A100"]), None).unwrap();
        assert_eq!(found.products, BTreeSet::from(["NVIDIA-A100".to_owned()]));
        for model in ["", "H100!", "-H100"] {
            let error = place(demo().gpu_models([model]), None).unwrap_err();
            assert!(
                error.to_string().starts_with(&format!("gpu_models `{model}`: the nodes")),
                "{error}"
            );
        }
    }
}
