//! GPTQ: quantized weights of four or eight bits with a scale and a zero-point per group of inputs, packed along the inputs, which
//! act-order assigns to groups one by one. Source: AutoGPTQ's `QuantLinear`; transformers `GPTQConfig`.

use candlepower_layout::{Dtype, Packed, QuantFormat};

use super::{StoredKind, StoredTensor, check_multiple, group_size, with_zero_points};
use crate::{config::HfConfig, error::Result};

/// Storage of matrices by GPTQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gptq {
    /// Bits of a quantized weight: 4 or 8.
    pub bits: usize,
    /// Offset of stored zero-points: 1 in the first version of the format, 0 in the second.
    pub zero_offset: u8,
    group: Option<usize>,
    act_order: bool,
    /// The dtype of the stored scales.
    pub(super) scales: Dtype,
}

impl Gptq {
    pub(super) fn read(c: &HfConfig) -> Result<Self> {
        let bits = c.count("bits")?;
        if bits != 4 && bits != 8 {
            return Err(c.unsupported("bits", &bits.into(), " by gptq; 4 and 8 are"));
        }
        // Marlin's layout is that of one GPU kernel, and cannot be read without its permutation.
        c.refuse("is_marlin_format")?;
        if let Some(dynamic) = c.section("dynamic")?
            // GPTQModel writes rules for single modules here, which may have other bits.
            && dynamic.entries().next().is_some()
        {
            let rules = c.raw("dynamic").cloned().unwrap_or_default();
            return Err(c.unsupported("dynamic", &rules, "; the same bits for all layers are"));
        }
        // AutoGPTQ stores each zero-point minus one. The second version of the format stores it as it is.
        let zero_offset = match c.text_opt("checkpoint_format")? {
            None | Some("gptq") => 1,
            Some("gptq_v2") => 0,
            Some(other) => {
                let hint = "; gptq and gptq_v2 are";
                return Err(c.unsupported("checkpoint_format", &other.into(), hint));
            }
        };
        Ok(Self {
            bits,
            zero_offset,
            group: group_size(c, "group_size")?,
            act_order: c.flag_or("desc_act", false)?,
            scales: Dtype::F16,
        })
    }

    /// Columns that share a scale, of `k`.
    pub fn group(&self, k: usize) -> usize {
        self.group.unwrap_or(k).min(k)
    }

    /// Quantized weights in a word of 32 bits.
    pub fn weights_per_word(&self) -> usize {
        32 / self.bits
    }

    /// Whether the inputs of a group are spread over all `k`.
    pub fn reorders(&self, k: usize) -> bool {
        self.act_order && self.group(k) < k
    }

    pub(super) fn packed(&self, k: usize) -> Packed {
        let format = if self.bits == 4 { QuantFormat::U4 } else { QuantFormat::U8 };
        let (scales, reordered) = (with_zero_points(self.scales), self.reorders(k));
        Packed { scales, reordered, ..Packed::by_group(format, self.group(k)) }
    }

    pub(super) fn tensors(&self, module: &str, n: usize, k: usize) -> Result<Vec<StoredTensor>> {
        let per_word = self.weights_per_word();
        check_multiple(module, "outputs", n, per_word)?;
        check_multiple(module, "inputs", k, per_word)?;
        let groups = k.div_ceil(self.group(k));
        let tensor = |part, shape: &[usize], kind| {
            StoredTensor::new(format!("{module}.{part}"), shape, kind)
        };
        let order = tensor("g_idx", &[k], StoredKind::Integers);
        Ok(vec![
            tensor("qweight", &[k / per_word, n], StoredKind::Integers),
            tensor("qzeros", &[groups, n / per_word], StoredKind::Integers),
            tensor("scales", &[groups, n], StoredKind::Plain),
            // Some writers store the trivial order without act-order, too, so it may be there and need not.
            StoredTensor { required: self.act_order, ..order },
        ])
    }
}
