//! The products of a model in FP8, in words for the log.

use candlepower_gpu::{Fp8Product, Fp8Weights, fp8_capability, fp8_fault, fp8_product};

use super::DeviceDecoder;
use crate::error::Result;

/// Inputs that share a scale of weights where scales are of blocks.
const BLOCK: usize = 128;

impl DeviceDecoder {
    /// How the device multiplies matrices whose activations are rounded to FP8; `None` if the model has none.
    ///
    /// # Errors
    /// CUDA refused.
    pub fn describe_fp8(&self) -> Result<Option<String>> {
        let Some((packed, scales)) = self.spec.rounds_to_fp8() else { return Ok(None) };
        let weights = match packed.group {
            BLOCK => &[Fp8Weights::Blocks][..],
            _ => &[Fp8Weights::Outputs, Fp8Weights::Tensor],
        };
        let capability = fp8_capability(&self.device)?;
        let product = |weights: &Fp8Weights| fp8_product(capability?, *weights, scales);
        let product = weights.iter().find_map(product);
        let fault = product.and_then(|product| fp8_fault(&self.device, product));
        let text = match product {
            _ if fault.is_some() => "products in 16 bits: ",
            Some(Fp8Product::Rows) => "products in FP8 by cuBLASLt, with scales of rows",
            Some(Fp8Product::Blocks) => "products in FP8 by cuBLASLt, with scales of blocks",
            Some(Fp8Product::Tensor) => {
                "products in FP8 by cuBLASLt where a matrix has one scale, in 16 bits otherwise"
            }
            None => "products in 16 bits: this device has none in FP8 with these scales",
        };
        let rounded = self.spec.rounded_activations().unwrap_or_default();
        Ok(Some(format!("{rounded}; {text}{}", fault.unwrap_or_default())))
    }
}
