//! Activations that are rounded to FP8 before a product.

use candle_core::Tensor;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Fp8Rounding, Result, e4m3_rounded};

use super::launch_on_gpu;
use super::packed::rounded;
use super::reference::Reference;
use crate::operands::{Fp8Rows, HeadPadding, Matrix, RowsOut};

/// Sets `out` to the rows of `x`, `[rows, k]`, rounded to FP8 by `rounding` and then to the element type. Both are bf16 or
/// f16, and may be the same tensor. With `padding` the rows are padded heads: groups of inputs are counted without the
/// padding, and the padding becomes zero.
///
/// The reference implementation is [`Fp8Rounding::round_rows`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn round_activations(
    x: &Tensor,
    rounding: &Fp8Rounding,
    padding: Option<HeadPadding>,
    out: &Tensor,
) -> Result<()> {
    const KERNEL: &str = "round activations";
    launch_on_gpu!(x, crate::cuda::round_activations(x, rounding, padding, out));
    let reference = Reference::new(KERNEL, "x", x)?;
    let (rows, k) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
    let mut values = reference.elements(("x", x), "[rows, k]", &[rows, k])?;
    round_padded(&mut values, k, rounding, padding);
    reference.write(("out", out), "[rows, k]", &[rows, k], &values)
}

/// Rounds rows of `k` values, whose padding between heads becomes zero.
pub(super) fn round_padded(
    values: &mut [f32],
    k: usize,
    rounding: &Fp8Rounding,
    padding: Option<HeadPadding>,
) {
    let Some(HeadPadding { len, padded }) = padding else {
        return rounding.round_rows(values, k);
    };
    for row in values.chunks_exact_mut(k) {
        let mut own: Vec<f32> = row.chunks(padded).flat_map(|head| head[..len].to_vec()).collect();
        let width = own.len();
        rounding.round_rows(&mut own, width);
        for (head, own) in row.chunks_mut(padded).zip(own.chunks(len)) {
            head[..len].copy_from_slice(own);
            head[len..].fill(0.0);
        }
    }
}

/// Writes rows in the element type, or rounds them to it and then to FP8.
pub(super) fn write_rows(
    reference: &Reference,
    out: &RowsOut,
    axes: &str,
    dims: &[usize],
    values: &[f32],
) -> Result<()> {
    let rows = match out {
        RowsOut::Plain(out) => return reference.write(("out", out), axes, dims, values),
        RowsOut::Fp8(rows) => rows,
    };
    let k = dims.last().copied().unwrap_or(1).max(1);
    let (group, count) = (rows.rounding.scales.group(k).max(1), values.len() / k);
    let mut codes = Vec::with_capacity(values.len());
    let mut scales = vec![0f32; k.div_ceil(group) * count];
    let halves: Vec<f32> = values.iter().map(|value| rounded(*value, reference.dtype())).collect();
    for (row, values) in halves.chunks(k).enumerate() {
        for (at, values) in values.chunks(group).enumerate() {
            let scale = rows.rounding.scale_of(values);
            codes.extend(values.iter().map(|value| e4m3_rounded(value / scale)));
            let has_nan = values.iter().any(|value| value.is_nan());
            scales[at * count + row] = if has_nan { f32::NAN } else { scale };
        }
    }
    reference.write_cached(("codes", &rows.codes), axes, dims, &codes)?;
    let dims = [k.div_ceil(group), count];
    reference.write_f32s(("scales", &rows.scales), "[groups, rows]", &dims, &scales)
}

/// The values of rows in FP8.
pub(super) fn values_of(rows: &Fp8Rows) -> Result<Vec<f32>> {
    let (count, k) = Operand::new("matmul", "codes", &rows.codes).dims2("[rows, k]")?;
    let group = rows.rounding.scales.group(k).max(1);
    let codes: Vec<f32> = rows.codes.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1()?;
    let scales: Vec<f32> = rows.scales.flatten_all()?.to_vec1()?;
    let value = |(at, code): (usize, f32)| code * scales[at % k / group * count + at / k];
    Ok(codes.into_iter().enumerate().map(value).collect())
}

impl Matrix {
    /// How activations are rounded to FP8 before a product with the matrix, if they are.
    #[must_use]
    pub fn activations(&self) -> Option<Fp8Rounding> {
        match self {
            Self::Rows(_) => None,
            Self::Packed(packed) => packed.activations,
            Self::Fp8(matrix) => Some(matrix.activations),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use candlepower_kernels::{
        OffsetForm, Offsets, QuantFormat, QuantizedRows, ScaleForm, Weight, linear_reference,
    };
    use candlepower_layout::ActivationScales;

    use super::*;
    use crate::{Fp8Matrix, Matmul, NormWeight, PackedMatrix, RmsNorm, gated_activation, rms_norm};

    const N: usize = 16;
    const K: usize = 64;

    /// An FP8 weight with a scale for each output.
    fn weight(scales: ActivationScales) -> Weight {
        let bytes: Vec<u8> = (0..N * K).map(|at| (at * 37 % 251) as u8 & 0xf7).collect();
        let of_outputs: Vec<f32> = (1..=N).map(|row| row as f32 / 512.0).collect();
        let form = ScaleForm { offsets: OffsetForm::None, ..ScaleForm::F32 };
        let builder = Weight::quantized_builder(N, K, QuantFormat::E4m3, K, form).unwrap();
        let mut builder = builder.with_activations(Some(scales));
        builder.add_fixed_scale(0.01);
        let rows = QuantizedRows {
            format: QuantFormat::E4m3,
            group: K,
            bytes: &bytes,
            scales: &of_outputs,
            offsets: Offsets::None,
            sub_scales: None,
            inputs: None,
        };
        builder.write_quantized(0, rows).unwrap();
        builder.finish().unwrap()
    }

    /// Both forms of a matrix on a device have the product of rounded activations, which differs from that of others.
    #[test]
    fn products_round_their_activations() {
        let x: Vec<f32> = (0..3 * K).map(|at| (at * 29 % 97) as f32 / 31.0 - 1.5).collect();
        let tensor = Tensor::from_slice(&x, (3, K), &Device::Cpu).unwrap();
        let matmul = Matmul::new(&Device::Cpu, 3, DType::F32, 0, K).unwrap();
        for scales in [ActivationScales::Row, ActivationScales::Fixed] {
            let weight = weight(scales);
            let in_fp8 = Fp8Matrix::new(&weight, (9, 0), &Device::Cpu).unwrap().unwrap();
            assert!(Fp8Matrix::new(&weight, (8, 0), &Device::Cpu).unwrap().is_none());
            let values = in_fp8.dequantized().unwrap();
            let mut row = vec![0.0; K];
            for (output, values) in values.chunks(K).enumerate() {
                weight.read_row(output, &mut row);
                assert_eq!(values, row, "output {output}");
            }
            let product = |x: &[f32]| -> Vec<f32> {
                let outputs = |x: &[f32]| -> Vec<f32> {
                    values.chunks(K).map(|w| linear_reference(x, w, None)).collect()
                };
                x.chunks(K).flat_map(outputs).collect()
            };
            let mut rounded = x.clone();
            weight.activations().unwrap().round_rows(&mut rounded, K);
            assert_ne!(product(&rounded), product(&x));
            let packed = PackedMatrix::new(&weight, None, &Device::Cpu).unwrap();
            for matrix in [Matrix::Fp8(in_fp8), Matrix::Packed(packed)] {
                let out = Tensor::zeros((3, N), DType::F32, &Device::Cpu).unwrap();
                matmul.run(&tensor, &matrix, None, &out).unwrap();
                let found: Vec<f32> = out.flatten_all().unwrap().to_vec1().unwrap();
                assert_eq!(found, product(&rounded), "{scales:?}");
            }
        }
    }

    /// Rows that a norm or an activation writes in FP8 have the product of those that it writes in the element type.
    #[test]
    fn rows_in_fp8_have_the_product_of_rows_that_are_rounded_before_it() {
        let x: Vec<f32> = (0..2 * 2 * K).map(|at| (at * 31 % 89) as f32 / 29.0 - 1.5).collect();
        let wide = Tensor::from_slice(&x, (2, 2 * K), &Device::Cpu).unwrap();
        let wide = wide.to_dtype(DType::BF16).unwrap();
        let narrow = wide.narrow(1, 0, K).unwrap().contiguous().unwrap();
        let ones = Tensor::ones(K, DType::BF16, &Device::Cpu).unwrap();
        let norm = RmsNorm { weight: &ones, form: NormWeight::OnePlus, eps: 1e-5, next: None };
        let matmul = Matmul::new(&Device::Cpu, 2, DType::BF16, 0, K).unwrap();
        for scales in [ActivationScales::Row, ActivationScales::Fixed] {
            let weight = weight(scales);
            let matrix =
                Matrix::Fp8(Fp8Matrix::new(&weight, (9, 0), &Device::Cpu).unwrap().unwrap());
            let product = |rows: &RowsOut| -> Vec<f32> {
                let out = Tensor::zeros((2, N), DType::BF16, &Device::Cpu).unwrap();
                matmul.run(rows.tensor(), &matrix, None, &out).unwrap();
                out.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
            };
            let plain = RowsOut::Plain(narrow.zeros_like().unwrap());
            let in_fp8 = || RowsOut::Fp8(matmul.fp8_rows(&matrix, 2).unwrap().unwrap());
            for write in [
                (&|out: &RowsOut| rms_norm(&narrow, &norm, out)) as &dyn Fn(&RowsOut) -> Result<()>,
                &|out| gated_activation(&wide, candlepower_kernels::Activation::Silu, out),
            ] {
                write(&plain).unwrap();
                let want = product(&plain);
                let found = in_fp8();
                write(&found).unwrap();
                assert_eq!(product(&found), want, "{scales:?}");
                assert!(want.iter().any(|value| *value != 0.0));
            }
        }
        let unquantized = Matrix::Rows(narrow);
        assert!(matmul.fp8_rows(&unquantized, 2).unwrap().is_none());
    }

    #[test]
    fn padding_of_heads_belongs_to_no_group() {
        let rounding = Fp8Rounding { scales: ActivationScales::Group(4), fixed: 0.0 };
        let padding = Some(HeadPadding { len: 3, padded: 4 });
        // Heads of three elements, of which the padding is not looked at: groups are 1 2 3 40 and 50 60.
        let padded = [1.0, 2.0, 3.0, 7e4, 40.0, 50.0, 60.0, 7e4];
        let x = Tensor::new(&[padded], &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        let out = Tensor::ones((1, 8), DType::F32, &Device::Cpu).unwrap();
        round_activations(&x, &rounding, padding, &out).unwrap();
        let found: Vec<f32> = out.flatten_all().unwrap().to_vec1().unwrap();
        let mut own = [1.0, 2.0, 3.0, 40.0, 50.0, 60.0];
        rounding.round_rows(&mut own, 6);
        assert_eq!(found, [&own[..3], &[0.0], &own[3..], &[0.0]].concat());
    }

    #[test]
    fn memory_that_was_not_reserved_is_an_error() {
        let matmul = Matmul::new(&Device::Cpu, 3, DType::F32, 0, 8).unwrap();
        let x = Tensor::zeros((3, K), DType::F32, &Device::Cpu).unwrap();
        let rounding = Fp8Rounding { scales: ActivationScales::Row, fixed: 0.0 };
        assert!(matmul.rounded(&x, Some(rounding), None).is_err());
        let without = Matmul::new(&Device::Cpu, 3, DType::F32, 0, 0).unwrap();
        assert!(without.rounded(&x, Some(rounding), None).is_err());
        assert!(without.rounded(&x, None, None).is_ok());
    }
}
