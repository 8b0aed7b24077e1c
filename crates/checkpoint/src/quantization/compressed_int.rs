//! Integers of compressed-tensors, around zero or with zero-points, with a scale per group of inputs or per output. Quantized weights
//! of four or eight bits lie in words of neighbouring inputs (`pack-quantized`), or in a byte each (`int-quantized`).
//! Source: compressed-tensors, `compressors/pack_quantized`, `compressors/naive_quantized` and `quantization/quant_args.py`.

use candlepower_layout::{Dtype, OffsetForm, Packed, QuantFormat, ScaleForm};
use serde_json::Value;

use super::{StoredKind, StoredTensor, check_multiple, with_zero_points};
use crate::{config::HfConfig, error::Result};

/// Storage of integer matrices by compressed-tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedInt {
    /// Bits of a quantized weight: 4 or 8.
    pub bits: usize,
    /// Quantized weights lie in words of 32 bits, not in bytes.
    pub in_words: bool,
    /// Each group has its zero-point; otherwise the zero-point is the middle of the range.
    pub zero_points: bool,
    group: Option<usize>,
    act_order: bool,
    /// The dtype of the stored scales.
    pub(super) scales: Dtype,
}

impl CompressedInt {
    /// Reads the description of the weights of all linear layers.
    pub(super) fn read(w: &HfConfig, in_words: bool) -> Result<Self> {
        const HINT: &str = ", but integers of 4 or 8 bits per group or channel";
        let bits = w.count("num_bits")?;
        if !matches!((bits, in_words), (8, _) | (4, true)) {
            return Err(w.unsupported("num_bits", &bits.into(), HINT));
        }
        let kind = w.text_opt("type")?.unwrap_or("int");
        if kind != "int" {
            return Err(w.unsupported("type", &kind.into(), HINT));
        }
        // Dynamic scales are of activations. Weights whose scales are computed while running have none in the file.
        w.refuse("dynamic")?;
        let group = match w.text_opt("strategy")? {
            Some("group") => Some(w.count("group_size")?),
            Some("channel") => None,
            other => return Err(w.unsupported("strategy", &other.into(), HINT)),
        };
        if let Some(odd) = group.filter(|group| group % 2 == 1) {
            return Err(w.ill_typed("group_size", &odd.into(), "an even number of weights"));
        }
        let act_order = match w.raw("actorder") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(by_group)) => *by_group,
            Some(order) => match order.as_str() {
                // Columns were quantized in another order, and lie in their own.
                Some("weight" | "static") => false,
                Some("group" | "dynamic") => true,
                _ => return Err(w.unsupported("actorder", order, "; group, weight and none are")),
            },
        };
        let zero_points = !w.flag_or("symmetric", true)?;
        if zero_points && !in_words {
            return Err(w.unsupported("symmetric", &false.into(), " for bytes; true is"));
        }
        // compressed-tensors stores scales in the model's dtype, which is bf16 in most of them.
        Ok(Self { bits, in_words, zero_points, group, act_order, scales: Dtype::Bf16 })
    }

    /// Columns that share a scale, of `k`.
    pub fn group(&self, k: usize) -> usize {
        self.group.unwrap_or(k).min(k)
    }

    /// Quantized weights in a word of 32 bits.
    pub fn weights_per_word(&self) -> usize {
        32 / self.bits
    }

    /// The middle of the range, which is stored as zero.
    pub fn middle(&self) -> u8 {
        1 << (self.bits - 1)
    }

    pub(super) fn packed(&self, k: usize) -> Packed {
        let format = if self.bits == 4 { QuantFormat::U4 } else { QuantFormat::U8 };
        let scales = match self.zero_points {
            true => with_zero_points(self.scales),
            false => {
                let offsets = OffsetForm::ZeroPoint(self.middle());
                ScaleForm { dtype: self.scales, offsets, blocks: None }
            }
        };
        // A group as wide as the row needs no order: all inputs share its scale.
        let reordered = self.act_order && self.group(k) < k;
        Packed { scales, reordered, ..Packed::by_group(format, self.group(k)) }
    }

    /// The quantized weights, the scales, the zero-points if there are any, and the group of each input if inputs are spread over groups.
    pub(super) fn tensors(&self, module: &str, n: usize, k: usize) -> Result<Vec<StoredTensor>> {
        let per_word = self.weights_per_word();
        let groups = k.div_ceil(self.group(k));
        let tensor = |part, shape: &[usize], kind| {
            StoredTensor::new(format!("{module}.{part}"), shape, kind)
        };
        let quants = match self.in_words {
            true => {
                check_multiple(module, "inputs", k, per_word)?;
                tensor("weight_packed", &[n, k / per_word], StoredKind::Integers)
            }
            false => tensor("weight", &[n, k], StoredKind::SignedBytes),
        };
        let scales = tensor("weight_scale", &[n, groups], StoredKind::Plain);
        let mut tensors = vec![quants, scales];
        if self.zero_points {
            // Zero-points are packed along the outputs, unlike the weights themselves.
            check_multiple(module, "outputs", n, per_word)?;
            let shape = [n / per_word, groups];
            tensors.push(tensor("weight_zero_point", &shape, StoredKind::Integers));
        }
        if self.act_order {
            tensors.push(tensor("weight_g_idx", &[k], StoredKind::Integers));
        }
        Ok(tensors)
    }

    /// Whether a tensor says nothing more of weights: their shape, zero points that are all zero, and what others round activations by.
    pub(super) fn is_ignored(&self, name: &str) -> bool {
        const ENDS: [&str; 3] = [".weight_shape", ".input_scale", ".input_zero_point"];
        ENDS.iter().any(|end| name.ends_with(end))
            || (!self.zero_points && name.ends_with(".weight_zero_point"))
    }
}
