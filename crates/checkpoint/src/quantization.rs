//! Which quantization a checkpoint's weights have, as its configuration says.

use crate::{config::HfConfig, error::Result};

/// The `quantization_config` of `config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// The method's name in lower case: `awq`, `gptq`, `fp8`, `bitsandbytes` ..
    pub method: String,
    /// Bits of a weight, where the configuration says.
    pub bits: Option<usize>,
}

impl Quantization {
    pub(crate) fn read(c: &HfConfig) -> Result<Option<Self>> {
        let Some(q) = c.section("quantization_config")? else { return Ok(None) };
        let method = q
            .text_opt("quant_method")?
            .ok_or_else(|| q.missing("quant_method", "the name of the quantization"))?;
        let bits = match q.count_opt("bits")? {
            Some(bits) => Some(bits),
            None => q.count_opt("w_bit")?,
        };
        Ok(Some(Self { method: method.to_lowercase(), bits }))
    }
}
