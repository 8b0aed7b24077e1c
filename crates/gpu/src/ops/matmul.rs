//! Matrix products: cuBLAS, kernels for few rows, and products with quantized weights.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Result, linear_reference};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::Matrix;

/// Buffers of matrix products, reserved once so that a product allocates nothing.
#[derive(Debug)]
pub struct Matmul {
    #[cfg(feature = "cuda")]
    cublas: Option<crate::cuda::Cublas>,
}

impl Matmul {
    /// Reserves buffers for products of up to `max_rows` rows on `device`. `unpacked_bytes` are for dequantized
    /// weights, which products with more rows than the kernels for quantized weights take need.
    ///
    /// # Errors
    /// The device's memory does not suffice, or cuBLAS does not start.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables, clippy::missing_const_for_fn))]
    pub fn new(
        device: &Device,
        max_rows: usize,
        dtype: DType,
        unpacked_bytes: usize,
    ) -> Result<Self> {
        Ok(Self {
            #[cfg(feature = "cuda")]
            cublas: match device.is_cuda() {
                true => Some(crate::cuda::Cublas::new(device, max_rows, dtype, unpacked_bytes)?),
                false => None,
            },
        })
    }

    /// Adds the sums of a product in one order for all numbers of rows, so that a row's result depends on its own values and
    /// on the matrix alone. The reference implementation does so anyway.
    #[must_use]
    #[cfg_attr(not(feature = "cuda"), allow(clippy::missing_const_for_fn))]
    pub fn with_fixed_order(self) -> Self {
        Self {
            #[cfg(feature = "cuda")]
            cublas: self.cublas.map(crate::cuda::Cublas::with_fixed_order),
        }
    }

    /// Computes `out = x @ w^T + bias`: `x` `[rows, k]`, `w` `[n, k]`, `bias` `[n]`, `out` `[rows, n]`, all bf16 or f16
    /// except a quantized `w`, with sums in f32.
    ///
    /// The reference implementation of one output is [`candlepower_kernels::linear_reference`], over dequantized
    /// weights. For more rows than the kernels for quantized weights take, a GPU rounds the dequantized weights to the
    /// element type first.
    ///
    /// # Errors
    /// An operand has the wrong dtype, shape, layout or device; `k` is no multiple of 8 with a fixed order on a GPU; or CUDA
    /// refused.
    pub fn run(&self, x: &Tensor, w: &Matrix, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
        launch_on_gpu!(x, {
            let cublas =
                self.cublas.as_ref().ok_or_else(|| candlepower_kernels::Error::NotOnGpu {
                    kernel: "matmul",
                    operand: "workspace",
                    device: Device::Cpu.location(),
                })?;
            match w {
                Matrix::Rows(w) => cublas.matmul(x, w, bias, out),
                Matrix::Packed(w) => cublas.packed(x, w, bias, out),
            }
        });
        let reference = Reference::new("matmul", "x", x)?;
        let (rows, k) = Operand::new("matmul", "x", x).dims2("[rows, k]")?;
        let n = w.n();
        let (w, found_k) = w.elements(&reference, "w")?;
        if found_k != k {
            return Err(
                Operand::new("matmul", "x", x).shape_error(format!("[rows, k = {found_k}]"))
            );
        }
        let x = reference.elements(("x", x), "[rows, k]", &[rows, k])?;
        let bias = bias.map(|bias| reference.elements(("bias", bias), "[n]", &[n])).transpose()?;
        let outputs: Vec<f32> = x
            .chunks(k)
            .flat_map(|x| w.chunks(k).enumerate().map(move |(column, w)| (x, w, column)))
            .map(|(x, w, column)| linear_reference(x, w, bias.as_ref().map(|bias| bias[column])))
            .collect();
        reference.write(("out", out), "[rows, n]", &[rows, n], &outputs)
    }
}
