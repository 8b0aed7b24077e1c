//! Matrix products: cuBLAS, kernels for few rows, and products with quantized weights.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Activation, Error, Fp8Rounding, Result, linear_reference};

use super::fp8::{round_activations, round_padded, values_of, write_rows};
use super::launch_on_gpu;
use super::packed::rounded;
use super::reference::Reference;
use super::rows::{add_rms_norm, gated_activation_before};
use crate::operands::{
    FP8_BLOCK, Fp8Matrix, Fp8Rows, Fusions, HeadPadding, Matrix, NormedRows, RowsOut,
    has_normed_rows,
};

/// Rows of the largest step in which kernels between products request weights ahead. With more rows they leave memory idle for a
/// small part of their time alone.
const MAX_PREFETCH_ROWS: usize = 128;

/// The rows that a product multiplies.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    /// `[rows, k]`.
    Rows(&'a Tensor),
    /// The norm of a sum: see [`Matmul::run_normed`].
    Normed(NormedRows<'a>),
}

/// The operands of [`Matmul::gated`] apart from the rows.
#[derive(Clone, Copy, Debug)]
pub struct GatedProduct<'a> {
    /// `[2 * n, k]`: the outputs of its first half are gates of those of the second.
    pub weight: &'a Matrix,
    /// `[2 * n]`, if there is one.
    pub bias: Option<&'a Tensor>,
    /// The activation of the gates.
    pub act: Activation,
    /// The matrix that multiplies the result next.
    pub reader: Option<&'a Matrix>,
}

/// Buffers of matrix products, reserved once so that a product allocates nothing.
#[derive(Debug)]
pub struct Matmul {
    #[cfg(feature = "cuda")]
    cublas: Option<crate::cuda::Cublas>,
    /// Activations of one product after rounding to FP8, where the model has such products.
    activations: Option<Fp8Activations>,
    /// The fused kernels. On the CPU there are none, but their operations can be tested.
    fusions: Fusions,
}

/// Buffers for the activations of one product, flat: each product takes the first elements.
#[derive(Debug)]
struct Fp8Activations {
    /// Rounded activations in the model's dtype.
    rounded: Tensor,
    /// e4m3 activations.
    codes: Tensor,
    /// f32: their scales, those of all rows for the first inputs first.
    scales: Tensor,
}

impl Fp8Activations {
    /// Buffers for `rows` rows of `width` inputs.
    fn new(device: &Device, rows: usize, width: usize, dtype: DType) -> Result<Self> {
        Ok(Self {
            rounded: Tensor::zeros(rows * width, dtype, device)?,
            codes: Tensor::zeros(rows * width, DType::F8E4M3, device)?,
            scales: Tensor::zeros(rows * width.div_ceil(FP8_BLOCK), DType::F32, device)?,
        })
    }
}

/// Writes the sum, and returns its norm in memory of its own.
fn normed(rows: &NormedRows<'_>) -> Result<Tensor> {
    let NormedRows { residual, x, sum, scale, norm } = rows;
    // Both may be parts of one buffer, which candle does not copy within.
    sum.slice_set(&residual.copy()?, 0, 0)?;
    let normed = x.zeros_like()?;
    add_rms_norm(sum, x, *scale, norm, &normed)?;
    Ok(normed)
}

/// The first elements of a flat buffer as `dims`.
///
/// # Errors
/// The buffer is too small.
fn part_of(buffer: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let count = dims.iter().product();
    if count > buffer.elem_count() {
        let (value, expected) = (count, "at most what was reserved for activations in FP8");
        return Err(Error::Parameter { parameter: "activations", value, expected });
    }
    Ok(buffer.narrow(0, 0, count)?.reshape(dims)?)
}

impl Matmul {
    /// Reserves buffers for products of up to `max_rows` rows on `device`. `unpacked_bytes` are for dequantized
    /// weights, which products with more rows than the kernels for quantized weights take need. `fp8_width` is the
    /// largest number of inputs of a matrix whose activations are rounded to FP8; zero if there is none.
    ///
    /// # Errors
    /// The device's memory does not suffice, or cuBLAS does not start.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables, clippy::missing_const_for_fn))]
    pub fn new(
        device: &Device,
        max_rows: usize,
        dtype: DType,
        unpacked_bytes: usize,
        fp8_width: usize,
    ) -> Result<Self> {
        let activations = match fp8_width {
            0 => None,
            width => Some(Fp8Activations::new(device, max_rows, width, dtype)?),
        };
        let fusions = if device.is_cuda() { Fusions::asked_for()? } else { Fusions::OFF };
        Ok(Self {
            activations,
            fusions,
            #[cfg(feature = "cuda")]
            cublas: match device.is_cuda() {
                true => Some(crate::cuda::Cublas::new(device, max_rows, dtype, unpacked_bytes)?),
                false => None,
            },
        })
    }

    /// Adds the sums of a product in one order for all numbers of rows. A row's result then depends on its own values and
    /// on the matrix alone. The reference implementation does so anyway.
    #[must_use]
    #[cfg_attr(not(feature = "cuda"), allow(clippy::missing_const_for_fn))]
    pub fn with_fixed_order(self) -> Self {
        Self {
            #[cfg(feature = "cuda")]
            cublas: self.cublas.map(crate::cuda::Cublas::with_fixed_order),
            ..self
        }
    }

    /// Uses these fused kernels, whatever the environment says.
    #[must_use]
    pub fn with_fusions(mut self, fusions: Fusions) -> Self {
        self.set_fusions(fusions);
        self
    }

    /// Same as [`Matmul::with_fusions`].
    #[cfg_attr(not(feature = "cuda"), allow(clippy::missing_const_for_fn))]
    pub fn set_fusions(&mut self, fusions: Fusions) {
        self.fusions = fusions;
        #[cfg(feature = "cuda")]
        if let Some(cublas) = self.cublas.take() {
            self.cublas = Some(cublas.with_fusions(fusions));
        }
    }

    /// The weights that a kernel before the product of `rows` rows with `w` requests for the L2 cache, if it does so.
    pub const fn prefetched<'a>(&self, w: &'a Matrix, rows: usize) -> Option<&'a Tensor> {
        match w {
            Matrix::Rows(w) if self.fusions.prefetch && rows <= MAX_PREFETCH_ROWS => Some(w),
            _ => None,
        }
    }

    /// Whether [`Matmul::run_normed`] and [`Matmul::gated`] compute the norm of `rows` rows together with the product.
    pub fn takes_norm(&self, w: &Matrix, rows: usize) -> bool {
        let Matrix::Rows(w) = w else { return false };
        let k = w.dims().last().copied().unwrap_or_default();
        #[cfg(feature = "cuda")]
        if self.cublas.as_ref().is_some_and(|cublas| !cublas.has_gemv(rows, k)) {
            return false;
        }
        self.fusions.norm && has_normed_rows(rows, k)
    }

    /// Computes `sum = (residual + x) * scale` and `out = rms_norm(sum) @ w^T + bias`: `x`, `residual` and `sum` `[rows, k]`, `w`
    /// `[n, k]`, `bias` `[n]`, `out` `[rows, n]`. The bits are those of [`add_rms_norm`](crate::add_rms_norm) and
    /// [`Matmul::run`]. One kernel does so where [`Matmul::takes_norm`] says so; otherwise memory is allocated.
    ///
    /// # Errors
    /// Those of [`add_rms_norm`](crate::add_rms_norm) and [`Matmul::run`]; or the sum overlaps the residual.
    pub fn run_normed(
        &self,
        rows: &NormedRows<'_>,
        w: &Matrix,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let (Some(cublas), Matrix::Rows(w)) = (&self.cublas, w) {
            return cublas.normed(rows, w, bias, None, out);
        }
        self.run(&normed(rows)?, w, bias, out)
    }

    /// Computes `out = act(gate) * up` for the rows `[gate, up]` of `x @ w^T + bias`: x `[rows, k]`, `out` `[rows, n]`. One
    /// kernel of a GPU does so for few rows and a matrix that is not quantized. Otherwise the product is written to `gate_up`,
    /// `[rows, 2 * n]`, and [`gated_activation`](crate::gated_activation) reads it. The bits are the same.
    ///
    /// # Errors
    /// Those of [`Matmul::run`], [`Matmul::run_normed`] and [`gated_activation`](crate::gated_activation).
    pub fn gated(
        &self,
        x: &Factor<'_>,
        product: &GatedProduct<'_>,
        gate_up: &Tensor,
        out: &RowsOut,
    ) -> Result<()> {
        let GatedProduct { weight, bias, act, reader } = *product;
        #[cfg(feature = "cuda")]
        if let (Some(cublas), Matrix::Rows(w), RowsOut::Plain(out)) = (&self.cublas, weight, out)
            && self.fusions.gate
        {
            let is_done = match x {
                Factor::Rows(x) => cublas.gated(x, w, bias, act, out)?,
                Factor::Normed(rows) => {
                    cublas.normed(rows, w, bias, Some(act), out)?;
                    true
                }
            };
            if is_done {
                return Ok(());
            }
        }
        match x {
            Factor::Rows(x) => self.run(x, weight, bias, gate_up)?,
            Factor::Normed(rows) => self.run_normed(rows, weight, bias, gate_up)?,
        }
        let (rows, _) = Operand::new("matmul", "gate_up", gate_up).dims2("[rows, 2 * n]")?;
        let next = reader.and_then(|reader| self.prefetched(reader, rows));
        gated_activation_before(next, gate_up, act, out)
    }

    /// The rows of `x`, `[rows, k]`, rounded to FP8 if a product with them asks for it: in a buffer that the next call
    /// overwrites. See [`round_activations`].
    ///
    /// # Errors
    /// Those of [`round_activations`], or no memory was reserved for so many activations.
    pub fn rounded(
        &self,
        x: &Tensor,
        rounding: Option<Fp8Rounding>,
        padding: Option<HeadPadding>,
    ) -> Result<Tensor> {
        let Some(rounding) = rounding else { return Ok(x.clone()) };
        let out = part_of(&self.fp8_activations()?.rounded, x.dims())?;
        round_activations(x, &rounding, padding, &out)?;
        Ok(out)
    }

    /// Where an operation writes `rows` rows that `reader` alone multiplies, if it multiplies rows in FP8. The buffer belongs to
    /// all products: [`Matmul::run`] has to take the rows before another matrix in FP8 is multiplied by rows in the element type.
    ///
    /// # Errors
    /// No memory was reserved for so many activations.
    pub fn fp8_rows(&self, reader: &Matrix, rows: usize) -> Result<Option<Fp8Rows>> {
        match reader {
            Matrix::Fp8(reader) => Ok(Some(self.own_fp8_rows(reader, rows)?)),
            Matrix::Rows(_) | Matrix::Packed(_) => Ok(None),
        }
    }

    fn own_fp8_rows(&self, w: &Fp8Matrix, rows: usize) -> Result<Fp8Rows> {
        let buffers = self.fp8_activations()?;
        Ok(Fp8Rows {
            codes: part_of(&buffers.codes, &[rows, w.k])?,
            scales: part_of(&buffers.scales, &[w.k.div_ceil(w.group()), rows])?,
            rounding: w.activations,
        })
    }

    /// The rows of `x`, `[rows, k]`, in FP8, as `w` multiplies them.
    fn in_fp8(&self, x: &Tensor, w: &Fp8Matrix) -> Result<Fp8Rows> {
        let operand = Operand::new("matmul", "x", x);
        let (rows, k) = operand.dims2("[rows, k]")?;
        if k != w.k {
            return Err(operand.shape_error(format!("[rows, k = {}]", w.k)));
        }
        let own = self.own_fp8_rows(w, rows)?;
        if x.dtype() == DType::F8E4M3 {
            return Ok(Fp8Rows { codes: x.clone(), ..own });
        }
        launch_on_gpu!(x, crate::cuda::quantize_activations(x, &own).map(|()| own));
        let reference = Reference::new("matmul", "x", x)?;
        let dims = [rows, k];
        let values = reference.elements(("x", x), "[rows, k]", &dims)?;
        write_rows(&reference, &(&own).into(), "[rows, k]", &dims, &values)?;
        Ok(own)
    }

    fn fp8_activations(&self) -> Result<&Fp8Activations> {
        let (value, expected) = (0, "inputs of matrices whose activations are rounded to FP8");
        let missing = Error::Parameter { parameter: "fp8_width", value, expected };
        self.activations.as_ref().ok_or(missing)
    }

    /// Computes `out = x @ w^T + bias`: `x` `[rows, k]`, `w` `[n, k]`, `bias` `[n]`, `out` `[rows, n]`, all bf16 or f16
    /// except a quantized `w`, with sums in f32.
    ///
    /// The reference implementation of one output is [`candlepower_kernels::linear_reference`], over dequantized
    /// weights. For more rows than the kernels for quantized weights take, a GPU rounds the dequantized weights to the
    /// element type first.
    ///
    /// Activations are rounded to FP8 first if the matrix says so. A [`Matrix::Packed`] then takes them in the element type,
    /// rounded once more, and a [`Matrix::Fp8`] takes them as they are. If `x` is e4m3, it is that of [`Matmul::fp8_rows`] for
    /// `w`, and is not rounded again.
    ///
    /// # Errors
    /// An operand has the wrong dtype, shape, layout or device; `k` is no multiple of 8 with a fixed order on a GPU; or CUDA
    /// refused.
    pub fn run(&self, x: &Tensor, w: &Matrix, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
        launch_on_gpu!(x, {
            let cublas = self.cublas.as_ref().ok_or_else(|| Error::NotOnGpu {
                kernel: "matmul",
                operand: "workspace",
                device: Device::Cpu.location(),
            })?;
            match w {
                Matrix::Rows(w) => cublas.matmul(x, w, bias, out),
                Matrix::Packed(w) => {
                    cublas.packed(&self.rounded(x, w.activations, w.padding)?, w, bias, out)
                }
                Matrix::Fp8(w) => cublas.fp8(&self.in_fp8(x, w)?, w, bias, out),
            }
        });
        let in_fp8 = match w {
            Matrix::Fp8(w) => Some(self.in_fp8(x, w)?),
            Matrix::Rows(_) | Matrix::Packed(_) => None,
        };
        let reference = match in_fp8 {
            Some(_) => Reference::new("matmul", "out", out)?,
            None => Reference::new("matmul", "x", x)?,
        };
        let (rows, k) = Operand::new("matmul", "x", x).dims2("[rows, k]")?;
        let n = w.n();
        let matrix = w;
        let (w, found_k) = w.elements(&reference, "w")?;
        if found_k != k {
            return Err(
                Operand::new("matmul", "x", x).shape_error(format!("[rows, k = {found_k}]"))
            );
        }
        let mut x = match &in_fp8 {
            Some(rows) => values_of(rows)?,
            None => reference.elements(("x", x), "[rows, k]", &[rows, k])?,
        };
        if let (Matrix::Packed(packed), Some(rounding)) = (matrix, matrix.activations()) {
            round_padded(&mut x, k, &rounding, packed.padding);
            x.iter_mut().for_each(|value| *value = rounded(*value, reference.dtype()));
        }
        let bias = bias.map(|bias| reference.elements(("bias", bias), "[n]", &[n])).transpose()?;
        let outputs: Vec<f32> = x
            .chunks(k)
            .flat_map(|x| w.chunks(k).enumerate().map(move |(column, w)| (x, w, column)))
            .map(|(x, w, column)| linear_reference(x, w, bias.as_ref().map(|bias| bias[column])))
            .collect();
        reference.write(("out", out), "[rows, n]", &[rows, n], &outputs)
    }
}
