//! Names of activations in configurations.

use candlepower_layout::Activation;

use crate::{config::HfConfig, error::Result};

/// The activation that `hidden_activation` (Gemma) or `hidden_act` names; the first of them wins, as in transformers.
pub(crate) fn activation(c: &HfConfig) -> Result<Activation> {
    let key = if c.contains("hidden_activation") { "hidden_activation" } else { "hidden_act" };
    activation_of(c, key)
}

/// The activation that a key names.
pub(crate) fn activation_of(c: &HfConfig, key: &str) -> Result<Activation> {
    let name = c.text_opt(key)?.ok_or_else(|| c.missing(key, "the name of an activation"))?;
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::ReluSquared),
        other => {
            let known = "; silu, gelu, gelu_pytorch_tanh, gelu_new, relu and relu2 are";
            Err(c.unsupported(key, &other.into(), known))
        }
    }
}
