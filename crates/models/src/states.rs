//! The recurrent states of layers without attention.

use candlepower_checkpoint::{Mixer, ModelSpec};
use candlepower_kernels::{StateConfig, StateDims};

use crate::{linear_attention::linear_attention_dims, short_conv::conv_dims};

/// The config of `num_states` states of a model, for all layers that have one or for `num_layers`; `None` where no layer has one.
pub(crate) fn state_config(
    spec: &ModelSpec,
    num_layers: Option<usize>,
    num_states: usize,
) -> Option<StateConfig> {
    let dims = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(_) => None,
        Mixer::LinearAttention(net) => Some(StateDims::LinearAttention(linear_attention_dims(net))),
        Mixer::ShortConv(conv) => Some(StateDims::Conv(conv_dims(conv))),
    })?;
    let num_layers = num_layers.unwrap_or_else(|| spec.num_states());
    Some(StateConfig { num_layers, num_slots: num_states, dims })
}
