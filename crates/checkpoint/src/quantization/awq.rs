//! AWQ: quantized weights of four bits with a scale and a zero-point per group of inputs, packed along the outputs.
//! Source: AutoAWQ's `WQLinear_GEMM`; transformers `AwqConfig`.

use candlepower_layout::{Dtype, Packed, QuantFormat};

use super::{StoredKind, StoredTensor, check_multiple, group_size, with_zero_points};
use crate::{config::HfConfig, error::Result};

/// Storage of matrices by AWQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awq {
    group: Option<usize>,
    /// The dtype of the stored scales.
    pub(super) scales: Dtype,
}

/// Quantized weights in a word of 32 bits.
// Eight weights of four bits fill a word. AWQ orders them 0, 2, 4, 6, 1, 3, 5, 7, which the loader undoes.
const PER_WORD: usize = 8;

impl Awq {
    pub(super) fn read(c: &HfConfig) -> Result<Self> {
        // AutoAWQ's own file has `w_bit` and `q_group_size`; transformers renamed both.
        let bits = if c.raw("bits").is_some() { "bits" } else { "w_bit" };
        if c.count(bits)? != 4 {
            let found = c.raw(bits).cloned().unwrap_or_default();
            return Err(c.unsupported(bits, &found, "; awq has 4"));
        }
        // The versions gemv and marlin order the words in other ways.
        if let Some(version) = c.text_opt("version")?
            && version.to_lowercase() != "gemm"
        {
            return Err(c.unsupported("version", &version.into(), "; gemm is"));
        }
        if !c.flag_or("zero_point", true)? {
            return Err(c.unsupported("zero_point", &false.into(), "; true is"));
        }
        let group = if c.raw("group_size").is_some() { "group_size" } else { "q_group_size" };
        Ok(Self { group: group_size(c, group)?, scales: Dtype::F16 })
    }

    /// Columns that share a scale, of `k`.
    pub fn group(&self, k: usize) -> usize {
        self.group.unwrap_or(k).min(k)
    }

    pub(super) fn packed(&self, k: usize) -> Packed {
        let scales = with_zero_points(self.scales);
        Packed { scales, ..Packed::by_group(QuantFormat::U4, self.group(k)) }
    }

    pub(super) fn tensors(&self, module: &str, n: usize, k: usize) -> Result<Vec<StoredTensor>> {
        check_multiple(module, "outputs", n, PER_WORD)?;
        let groups = k.div_ceil(self.group(k));
        let tensor = |part, shape: [usize; 2], kind| {
            StoredTensor::new(format!("{module}.{part}"), &shape, kind)
        };
        Ok(vec![
            tensor("qweight", [k, n / PER_WORD], StoredKind::Integers),
            tensor("qzeros", [groups, n / PER_WORD], StoredKind::Integers),
            tensor("scales", [groups, n], StoredKind::Plain),
        ])
    }
}
