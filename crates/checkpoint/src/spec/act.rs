//! Activations.

use crate::{config::HfConfig, error::Result};

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU with erf.
    Gelu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)^2`
    ReluSquared,
    /// `x * sigmoid(1.702 x)` of what is at most 7, times one more than the other half held to -7 to 7 (gpt-oss); gated only.
    SwigluOai,
}

impl Act {
    /// Reads `hidden_activation` (Gemma) or `hidden_act`; the first of them wins, as in
    /// transformers.
    pub(crate) fn read(c: &HfConfig) -> Result<Self> {
        let key = if c.contains("hidden_activation") { "hidden_activation" } else { "hidden_act" };
        Self::read_key(c, key)
    }

    /// Reads the activation that `key` names.
    pub(crate) fn read_key(c: &HfConfig, key: &str) -> Result<Self> {
        let name = c.text_opt(key)?.ok_or_else(|| c.missing(key, "the name of an activation"))?;
        match name {
            "silu" | "swish" => Ok(Self::Silu),
            "gelu" => Ok(Self::Gelu),
            "gelu_pytorch_tanh" | "gelu_new" => Ok(Self::GeluTanh),
            "relu" => Ok(Self::Relu),
            "relu2" => Ok(Self::ReluSquared),
            other => {
                let known = "; silu, gelu, gelu_pytorch_tanh, gelu_new, relu and relu2 are";
                Err(c.unsupported(key, &other.into(), known))
            }
        }
    }
}
