//! SqueezeLLM: table indices of four bits into sixteen values per output, packed along the inputs, and a few values that are added
//! in compressed sparse rows.
//! Source: SqueezeLLM's `QuantLinearLUT`.

use super::{StoredKind, StoredTensor, check_multiple};
use crate::{config::HfConfig, error::Result};

/// Storage of matrices by SqueezeLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqueezeLlm;

/// Quantized weights in a word of 32 bits.
const PER_WORD: usize = 8;
/// Values in the table of an output.
const TABLE: usize = 16;

impl SqueezeLlm {
    pub(super) fn read(c: &HfConfig) -> Result<Self> {
        let bits = if c.raw("wbits").is_some() { "wbits" } else { "bits" };
        match c.count(bits)? {
            4 => Ok(Self),
            found => Err(c.unsupported(bits, &found.into(), " by squeezellm; 4 is")),
        }
    }

    pub(super) fn tensors(&self, module: &str, n: usize, k: usize) -> Result<Vec<StoredTensor>> {
        check_multiple(module, "inputs", k, PER_WORD)?;
        let tensor = |part, shape: &[usize], kind| {
            StoredTensor::new(format!("{module}.{part}"), shape, kind)
        };
        let sparse = |part, shapes, kind| StoredTensor {
            name: format!("{module}.{part}"),
            shapes,
            kind,
            required: false,
        };
        Ok(vec![
            tensor("qweight", &[k / PER_WORD, n], StoredKind::Integers),
            tensor("lookup_table", &[n, TABLE], StoredKind::Plain),
            sparse("rows", vec![vec![n + 1]], StoredKind::Integers),
            sparse("cols", vec![], StoredKind::Integers),
            sparse("vals", vec![], StoredKind::Plain),
        ])
    }
}
