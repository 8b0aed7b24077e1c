//! Names and shapes of a tower's tensors in a checkpoint.

use super::{MergeKind, PatchOrder, PatchPositions, VisionSpec};
use crate::{quantization::StoredTensor, spec::NormSpec};

/// A tensor of a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VisionSlot {
    /// Embedding of a patch `[width, values]`, stored as a convolution `[width, 3, size, size]` or `[width, 3, frames, size, size]`.
    Patch,
    /// Its bias `[width]`.
    PatchBias,
    /// Learned positions `[side * side, width]`.
    Positions,
    /// Norm before the first layer `[width]`.
    FirstNorm,
    /// Its bias.
    FirstNormBias,
    /// Norm before attention `[width]`.
    AttnNorm,
    /// Its bias.
    AttnNormBias,
    /// Queries `[width, width]`.
    Q,
    /// Keys `[width, width]`.
    K,
    /// Values `[width, width]`.
    V,
    /// Bias of queries `[width]`.
    QBias,
    /// Bias of keys `[width]`.
    KBias,
    /// Bias of values `[width]`.
    VBias,
    /// Queries, keys and values in one tensor `[3 * width, width]`.
    Qkv,
    /// Their biases `[3 * width]`.
    QkvBias,
    /// Output of attention `[width, width]`.
    O,
    /// Its bias `[width]`.
    OBias,
    /// Norm before the feed-forward `[width]`.
    FfnNorm,
    /// Its bias.
    FfnNormBias,
    /// Gate of the feed-forward `[inner, width]`.
    Gate,
    /// Its bias `[inner]`.
    GateBias,
    /// Up projection `[inner, width]`.
    Up,
    /// Its bias `[inner]`.
    UpBias,
    /// Down projection `[width, inner]`.
    Down,
    /// Its bias `[width]`.
    DownBias,
    /// Norm behind the last layer `[width]`.
    LastNorm,
    /// Its bias.
    LastNormBias,
    /// Merger of a cell's patches `[width, width * side * side]`.
    Merge,
    /// Norm of merged vectors `[width]`.
    MergedNorm,
    /// Its bias.
    MergedNormBias,
    /// First matrix of the projector `[inner, merged width]`, or the only one `[hidden, merged width]`.
    ProjectorIn,
    /// Its bias.
    ProjectorInBias,
    /// Second matrix of the projector `[hidden, inner]`.
    ProjectorOut,
    /// Its bias `[hidden]`.
    ProjectorOutBias,
    /// Norm of the joined patches of a deepstack level `[merged width]`. The level takes the place of a layer here and below.
    DeepstackNorm,
    /// Its bias.
    DeepstackNormBias,
    /// First matrix of a level's projector `[inner, merged width]`.
    DeepstackIn,
    /// Its bias `[inner]`.
    DeepstackInBias,
    /// Second matrix of a level's projector `[hidden, inner]`.
    DeepstackOut,
    /// Its bias `[hidden]`.
    DeepstackOutBias,
}

impl VisionSlot {
    /// Whether its values are added to something, and not multiplied.
    pub fn is_bias(self) -> bool {
        use VisionSlot::*;
        matches!(
            self,
            PatchBias
                | FirstNormBias
                | AttnNormBias
                | QBias
                | KBias
                | VBias
                | QkvBias
                | OBias
                | FfnNormBias
                | GateBias
                | UpBias
                | DownBias
                | LastNormBias
                | MergedNormBias
                | ProjectorInBias
                | ProjectorOutBias
                | DeepstackNormBias
                | DeepstackInBias
                | DeepstackOutBias
        )
    }
}

/// A rule: our slot <- the checkpoint's name, where `{i}` is the layer or the deepstack level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionRule {
    /// The slot that it fills.
    pub slot: VisionSlot,
    /// The name that a tensor has in transformers 4, with `{i}` for the layer.
    pub name: &'static str,
    /// The matrix is stored as `[in, out]`.
    pub transposed: bool,
}

pub(super) const fn rule(slot: VisionSlot, name: &'static str) -> VisionRule {
    VisionRule { slot, name, transposed: false }
}

pub(super) const fn transposed(slot: VisionSlot, name: &'static str) -> VisionRule {
    VisionRule { slot, name, transposed: true }
}

/// A tensor of a tower, with its place in the weight files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisionTensor {
    /// The slot that it fills.
    pub slot: VisionSlot,
    /// The layer, for slots that each layer has, or the deepstack level.
    pub layer: Option<usize>,
    /// Its name, as [`Checkpoint::planned_name`](crate::Checkpoint::planned_name) gives it.
    pub name: String,
    /// `[rows, columns]`, or `[values]` of a vector.
    pub shape: Vec<usize>,
    /// Its shape in the weight files.
    pub stored_shape: Vec<usize>,
    /// It is stored as `[columns, rows]`.
    pub transposed: bool,
}

impl VisionTensor {
    /// The tensor in the weight files.
    pub fn stored(&self) -> StoredTensor {
        StoredTensor::plain(&self.name, &self.stored_shape)
    }
}

/// A slot, its layer and its shape.
type Shape = (VisionSlot, Option<usize>, Vec<usize>);

impl VisionSpec {
    /// Every tensor of the tower, first those outside the layers.
    pub fn tensors(&self) -> Vec<VisionTensor> {
        let mut shapes = self.shapes_outside();
        for layer in 0..self.layers {
            let shapes_of_layer = self.layer_shapes();
            shapes.extend(
                shapes_of_layer.into_iter().map(|(slot, shape)| (slot, Some(layer), shape)),
            );
        }
        for level in 0..self.deepstack.len() {
            let shapes_of_level = self.deepstack_shapes();
            shapes.extend(
                shapes_of_level.into_iter().map(|(slot, shape)| (slot, Some(level), shape)),
            );
        }
        let tensors = shapes.into_iter().map(|(slot, layer, shape)| {
            let rule = self.rules.iter().find(|rule| rule.slot == slot);
            let rule = rule.expect("a family names all slots of its tower");
            let name = match layer {
                Some(layer) => rule.name.replace("{i}", &layer.to_string()),
                None => rule.name.to_owned(),
            };
            let size = self.patches.size;
            let stored_shape = match (slot, shape.as_slice(), self.patches.order) {
                (VisionSlot::Patch, _, PatchOrder::Rows) => vec![self.width, 3, size, size],
                (VisionSlot::Patch, _, PatchOrder::Cells { frames }) => {
                    vec![self.width, 3, frames, size, size]
                }
                (_, &[rows, columns], _) if rule.transposed => vec![columns, rows],
                (_, shape, _) => shape.to_vec(),
            };
            VisionTensor { slot, layer, name, shape, stored_shape, transposed: rule.transposed }
        });
        tensors.collect()
    }

    /// Whether a tensor that is not among [`Self::tensors`] may be there: a layer behind those in use, a list of positions, or a
    /// head that makes one vector of an image.
    pub(crate) fn may_skip(&self, name: &str) -> bool {
        let is_behind = || {
            let layers = self.rules.iter().find_map(|rule| rule.name.split_once("{i}"));
            let rest = layers.and_then(|(before, _)| name.strip_prefix(before));
            let layer = rest.and_then(|rest| rest.split_once('.')).map(|(layer, _)| layer);
            let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
            layer.is_some_and(|layer| (self.layers..self.stored_layers).contains(&layer))
        };
        name.ends_with(".position_ids") || name.starts_with("vision_tower.head.") || is_behind()
    }

    fn shapes_outside(&self) -> Vec<Shape> {
        use VisionSlot::*;
        let width = self.width;
        let mut shapes = vec![(Patch, vec![width, self.patches.values()])];
        if self.patches.bias {
            shapes.push((PatchBias, vec![width]));
        }
        match self.patches.positions {
            PatchPositions::Table { side } | PatchPositions::TableAndRope { side, .. } => {
                shapes.push((Positions, vec![side * side, width]));
            }
            PatchPositions::Rope { .. } => {}
        }
        push_norm(&mut shapes, self.first_norm, [FirstNorm, FirstNormBias], width);
        push_norm(&mut shapes, self.last_norm, [LastNorm, LastNormBias], width);
        if self.merger.kind == MergeKind::Matrix {
            shapes.push((Merge, vec![width, width * self.merger.side * self.merger.side]));
        }
        push_norm(&mut shapes, self.merger.norm, [MergedNorm, MergedNormBias], width);
        let slots = [(ProjectorIn, ProjectorInBias), (ProjectorOut, ProjectorOutBias)];
        self.push_projector(&mut shapes, slots);
        shapes.into_iter().map(|(slot, shape)| (slot, None, shape)).collect()
    }

    /// Adds the matrices and biases of the projector, or of that of a deepstack level.
    fn push_projector(
        &self,
        shapes: &mut Vec<(VisionSlot, Vec<usize>)>,
        slots: [(VisionSlot, VisionSlot); 2],
    ) {
        let (merged, hidden) = (self.merged_width(), self.projector.hidden_size);
        let matrices = match self.projector.between {
            Some(between) => vec![[between.inner, merged], [hidden, between.inner]],
            None => vec![[hidden, merged]],
        };
        for ((slot, bias), shape) in slots.into_iter().zip(matrices) {
            shapes.push((slot, shape.to_vec()));
            if self.projector.bias {
                shapes.push((bias, vec![shape[0]]));
            }
        }
    }

    fn deepstack_shapes(&self) -> Vec<(VisionSlot, Vec<usize>)> {
        use VisionSlot::*;
        let mut shapes = Vec::new();
        let norm = [DeepstackNorm, DeepstackNormBias];
        push_norm(&mut shapes, self.last_norm, norm, self.merged_width());
        let slots = [(DeepstackIn, DeepstackInBias), (DeepstackOut, DeepstackOutBias)];
        self.push_projector(&mut shapes, slots);
        shapes
    }

    fn layer_shapes(&self) -> Vec<(VisionSlot, Vec<usize>)> {
        use VisionSlot::*;
        let (width, layer) = (self.width, &self.layer);
        let mut shapes = Vec::new();
        push_norm(&mut shapes, Some(layer.norm), [AttnNorm, AttnNormBias], width);
        let inner = layer.heads * layer.head_dim;
        let qkv: &[_] = match layer.fused_qkv {
            true => &[(Qkv, QkvBias, 3)],
            false => &[(Q, QBias, 1), (K, KBias, 1), (V, VBias, 1)],
        };
        for &(slot, bias, parts) in qkv {
            shapes.push((slot, vec![parts * inner, width]));
            if layer.attention_bias {
                shapes.push((bias, vec![parts * inner]));
            }
        }
        shapes.push((O, vec![width, inner]));
        if layer.attention_bias {
            shapes.push((OBias, vec![width]));
        }
        push_norm(&mut shapes, Some(layer.norm), [FfnNorm, FfnNormBias], width);
        let gate = layer.gated.then_some((Gate, GateBias));
        for (slot, bias) in gate.into_iter().chain([(Up, UpBias)]) {
            shapes.push((slot, vec![layer.inner, width]));
            if layer.mlp_bias {
                shapes.push((bias, vec![layer.inner]));
            }
        }
        shapes.push((Down, vec![width, layer.inner]));
        if layer.mlp_bias {
            shapes.push((DownBias, vec![width]));
        }
        shapes
    }
}

/// Adds the weight and the bias of a norm.
fn push_norm(
    shapes: &mut Vec<(VisionSlot, Vec<usize>)>,
    norm: Option<NormSpec>,
    [weight, bias]: [VisionSlot; 2],
    width: usize,
) {
    let Some(norm) = norm else { return };
    shapes.push((weight, vec![width]));
    if norm.kind.has_bias() {
        shapes.push((bias, vec![width]));
    }
}
