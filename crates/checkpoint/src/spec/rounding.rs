//! Which activations of a model are rounded to FP8.

use candlepower_layout::{ActivationScales, Packed};

use super::ModelSpec;

impl ModelSpec {
    /// The form of the first matrix whose activations are rounded to FP8, if there is one. All have the same scales.
    pub fn rounds_to_fp8(&self) -> Option<(Packed, ActivationScales)> {
        self.quantized.values().find_map(|packed| Some((*packed, packed.activations?)))
    }

    /// How activations are rounded to FP8, in words; `None` if they are not.
    pub fn rounded_activations(&self) -> Option<String> {
        let (_, scales) = self.rounds_to_fp8()?;
        Some(format!("activations rounded to FP8 (e4m3) with {}", scales.describe()))
    }
}
