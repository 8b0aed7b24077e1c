//! Targets of slots: the rows of the running model's tensors that they fill.

use std::collections::HashMap;

use candlepower_checkpoint::{HeadAxis, Init, ModelSpec, NormKind, Slot};

use super::Layout;

/// A slot of a layer, or of the model.
pub(super) type Key = (Option<usize>, Slot);

/// Rows of a tensor that a slot becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    /// The tensor's row that the slot's first row becomes.
    pub(super) first_row: usize,
    /// Rows of the whole tensor.
    pub(super) rows: usize,
    /// Kind of the norm whose weight the slot is.
    pub(super) norm: Option<NormKind>,
    /// Factor on the values after that.
    pub(super) factor: f32,
    /// Elements of each head, if the rows are those of heads, which the device pads.
    pub(super) head_dim: Option<usize>,
    /// Elements of each head, if the columns are those of heads, which the device pads.
    pub(super) head_columns: Option<usize>,
}

impl Target {
    /// The targets of all slots of a model. Fused slots follow each other in the order of [`Slot`], those of one expert before
    /// those of the next.
    pub(super) fn of_slots(spec: &ModelSpec, layout: &Layout) -> HashMap<Key, Self> {
        let mut slots: Vec<_> = spec.slots().collect();
        slots.sort_by_key(|&(layer, slot, _)| (layer, slot.expert(), slot));
        let mut rows: HashMap<Key, usize> = HashMap::new();
        let mut targets = HashMap::with_capacity(slots.len());
        for (layer, slot, shape) in slots {
            let dim = padded_head_dim(spec, layout, layer);
            let axis = slot.info().heads;
            let head_dim = dim.filter(|_| axis == HeadAxis::Rows);
            let factor = match slot == Slot::RouterNorm {
                // The router's input has this factor, too.
                true => (spec.hidden_size as f64).powf(-0.5) as f32,
                false => 1.0,
            };
            let before = rows.entry((layer, slot.fused())).or_default();
            let mut target = Self {
                first_row: 0,
                rows: 0,
                norm: norm_kind(spec, layer, slot),
                factor,
                head_dim,
                head_columns: dim.filter(|_| axis == HeadAxis::Columns),
            };
            let padded_rows = target.row(layout, shape[0]);
            target.first_row = *before;
            *before += padded_rows;
            targets.insert((layer, slot), target);
        }
        for (&(layer, slot), target) in &mut targets {
            target.rows = rows[&(layer, slot.fused())];
        }
        targets
    }

    /// The tensor's row that a row of the slot becomes.
    pub(super) fn row(&self, layout: &Layout, row: usize) -> usize {
        let padded =
            self.head_dim.map_or(row, |dim| row / dim * layout.padded_head(dim) + row % dim);
        self.first_row + padded
    }
}

/// Elements of a layer's attention heads, if the device pads them. Latent attention pads latents instead.
fn padded_head_dim(spec: &ModelSpec, layout: &Layout, layer: Option<usize>) -> Option<usize> {
    let attention = spec.layers[layer?].attention()?;
    let is_padded = layout.padded_head(attention.head_dim) != attention.head_dim;
    (is_padded && attention.latent.is_none()).then_some(attention.head_dim)
}

/// Kind of the norm whose weight a slot is.
pub(crate) fn norm_kind(spec: &ModelSpec, layer: Option<usize>, slot: Slot) -> Option<NormKind> {
    let norm = layer.map_or(spec.final_norm, |layer| spec.layers[layer].norm);
    match slot.info().init {
        Init::Norm => Some(norm.kind),
        Init::QkNorm => {
            let qk_norm = layer.and_then(|layer| spec.layers[layer].attention()?.qk_norm);
            Some(qk_norm.map_or(norm, |qk_norm| qk_norm.norm).kind)
        }
        Init::One
        | Init::Small
        | Init::FanIn
        | Init::Residual
        | Init::Embedding
        | Init::PerLayerEmbedding
        | Init::Head
        | Init::Conv
        | Init::LogRate
        | Init::DecayBias => None,
    }
}

#[cfg(test)]
mod tests {
    use candlepower_checkpoint::{Checkpoint, CheckpointFiles};

    use super::*;

    fn spec(golden: &str) -> ModelSpec {
        let folder = candlepower_testing::goldens::folder(golden);
        let files = CheckpointFiles::find(&folder).unwrap().unwrap();
        Checkpoint::open(files).unwrap().spec().clone()
    }

    fn rows(targets: &HashMap<Key, Target>, slots: &[Slot]) -> Vec<[usize; 2]> {
        let target = |slot: &Slot| targets[&(Some(0), *slot)];
        slots.iter().map(target).map(|target| [target.first_row, target.rows]).collect()
    }

    #[test]
    fn queries_keys_and_values_follow_each_other_with_padded_heads() {
        let spec = spec("llama");
        let attention = spec.layers[0].attention().unwrap();
        let (heads, kv_heads) = (attention.heads, attention.kv_heads);
        let slots = [Slot::Q, Slot::K, Slot::V];
        for head_dims in [&[][..], &[512]] {
            let layout = Layout { head_dims, ..Layout::cpu() };
            let dim = layout.padded_head(attention.head_dim);
            let all = (heads + 2 * kv_heads) * dim;
            let expected = [0, heads * dim, (heads + kv_heads) * dim].map(|first| [first, all]);
            assert_eq!(rows(&Target::of_slots(&spec, &layout), &slots), expected);
        }
    }

    #[test]
    fn biases_of_an_expert_follow_those_of_the_one_before() {
        let spec = spec("gpt-oss");
        let experts = spec.layers[0].ffn.experts().unwrap();
        let (inner, all) = (experts.expert.inner, 2 * experts.expert.inner * experts.count);
        let slots = [Slot::ExpertGateBias(0), Slot::ExpertUpBias(0), Slot::ExpertGateBias(1)];
        let targets = Target::of_slots(&spec, &Layout::cpu());
        assert_eq!(rows(&targets, &slots), [[0, all], [inner, all], [2 * inner, all]]);
        let down = [Slot::ExpertDownBias(1)];
        assert_eq!(rows(&targets, &down), [[spec.hidden_size, spec.hidden_size * experts.count]]);
    }
}
