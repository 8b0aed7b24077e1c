//! NVFP4: floats of four bits, with two bits of exponent and one of mantissa, and an eight-bit floating-point scale for each 16 of an
//! output. A scale of the whole matrix multiplies these scales. Activations are not rounded.
//! Source: compressed-tensors' format `nvfp4-pack-quantized`; NVIDIA ModelOpt's `quant_algo` NVFP4.

use candlepower_layout::{Packed, QuantFormat};

use super::{StoredKind, StoredTensor, check_multiple, check_weights};
use crate::{config::HfConfig, error::Result};

/// Columns that share a scale.
const GROUP: usize = 16;

/// Writer of NVFP4 matrices, which decides on the tensors' names and on the use of the scale of the whole matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nvfp4 {
    /// The scale of the matrix divides the scales of groups.
    CompressedTensors,
    /// The scale of the matrix multiplies them.
    ModelOpt,
}

impl Nvfp4 {
    /// Reads the description of the weights of all linear layers.
    pub(super) fn read_compressed_tensors(w: &HfConfig) -> Result<Self> {
        let wanted = [
            ("num_bits", &[4.into()][..]),
            ("type", &["float".into()]),
            ("strategy", &["tensor_group".into()]),
            ("group_size", &[GROUP.into()]),
        ];
        check_weights(w, &wanted, ", but 4 bits of float per tensor_group of 16")?;
        if !w.flag_or("symmetric", true)? {
            return Err(w.unsupported("symmetric", &false.into(), "; true is"));
        }
        Ok(Self::CompressedTensors)
    }

    /// Reads what ModelOpt says.
    pub(super) fn read_modelopt(c: &HfConfig) -> Result<Self> {
        match c.count_opt("group_size")? {
            None | Some(GROUP) => Ok(Self::ModelOpt),
            Some(other) => Err(c.unsupported("group_size", &other.into(), "; 16 is")),
        }
    }

    pub(super) fn packed() -> Packed {
        Packed::without_offsets(QuantFormat::E2m1, GROUP)
    }

    pub(super) fn tensors(self, module: &str, n: usize, k: usize) -> Result<Vec<StoredTensor>> {
        check_multiple(module, "inputs", k, GROUP)?;
        let [quants, of_all] = match self {
            Self::CompressedTensors => ["weight_packed", "weight_global_scale"],
            Self::ModelOpt => ["weight", "weight_scale_2"],
        };
        let tensor = |part, shape: &[usize], kind| {
            StoredTensor::new(format!("{module}.{part}"), shape, kind)
        };
        let of_all = tensor(of_all, &[], StoredKind::Plain);
        Ok(vec![
            tensor(quants, &[n, k / 2], StoredKind::Bytes),
            tensor("weight_scale", &[n, k / GROUP], StoredKind::E4m3),
            StoredTensor { shapes: vec![vec![], vec![1]], ..of_all },
        ])
    }
}
