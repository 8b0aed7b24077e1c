//! MXFP4: floats of four bits, with two bits of exponent and one of mantissa, and a power of two for each 32 of an output. Only the
//! experts' matrices have it. Source: transformers `Mxfp4Config` and `convert_moe_packed_tensors`; Open Compute Project,
//! "OCP Microscaling Formats (MX) Specification", 2023.

use candlepower_layout::{Dtype, OffsetForm, Packed, QuantFormat, ScaleForm};

use super::{StoredKind, StoredTensor, check_multiple};
use crate::error::Result;

/// Columns that share a scale.
const GROUP: usize = 32;

/// Storage of the matrices of all experts as one tensor in MXFP4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mxfp4 {
    /// Number of experts.
    pub(crate) experts: usize,
}

impl Mxfp4 {
    /// A power of two is a bf16.
    pub(crate) fn packed() -> Packed {
        let scales = ScaleForm { dtype: Dtype::Bf16, offsets: OffsetForm::None, blocks: None };
        Packed { scales, ..Packed::by_group(QuantFormat::E2m1, GROUP) }
    }

    pub(super) fn tensors(self, module: &str, n: usize, k: usize) -> Result<Vec<StoredTensor>> {
        check_multiple(module, "inputs", k, GROUP)?;
        // gpt-oss stores the matrices of all experts in one tensor, so `n` counts the outputs of all experts.
        let of_groups = [self.experts, n / self.experts, k / GROUP];
        // A byte has two floats of four bits.
        let of_quants = [&of_groups[..], &[GROUP / 2]].concat();
        let tensor = |part, shape: &[usize]| {
            StoredTensor::new(format!("{module}_{part}"), shape, StoredKind::Bytes)
        };
        let mut blocks = tensor("blocks", &of_quants);
        // transformers may write the groups as one.
        blocks.shapes.insert(0, vec![self.experts, n / self.experts, k / 2]);
        Ok(vec![blocks, tensor("scales", &of_groups)])
    }
}
