//! Matrices for a GPU: row-major in one dtype, uploaded while they are read; or quantized, uploaded as soon as they are whole.

use std::{collections::HashMap, rc::Rc};

use candle_core::{DType, Device};
use candlepower_checkpoint::MatrixForm;
use candlepower_gpu::{ExpertMatrices, Fp8Matrix, Matrix, PackedMatrix, PartialTensor, Uploads};
use candlepower_kernels::{QuantizedRows, SparseRows, WeightBuilder, WeightRows};
use half::{bf16, f16};

use crate::{
    error::Result,
    parts::{self, MatrixBuilder, Shape, pad_columns},
    quantized,
};

impl parts::Matrix for Matrix {
    type Builder = RowsBuilder;
    type All = ExpertMatrices;

    fn num_bytes(&self) -> usize {
        Matrix::num_bytes(self)
    }

    fn all(matrices: Vec<Self>) -> Result<ExpertMatrices> {
        Ok(ExpertMatrices::new(matrices)?)
    }
}

/// A matrix that is being filled. Quantized weights are gathered in host memory, which is freed as soon as the device has them.
pub(crate) struct RowsBuilder {
    shape: Shape,
    device: Device,
    uploads: Rc<Uploads>,
    /// The written rows: `None` before the first row and after the last.
    written: Option<Written>,
    missing_rows: usize,
    /// The entries of a sparse matrix by row, which are added to matrices that are not kept quantized.
    sparse: HashMap<usize, Vec<(u32, f32)>>,
    uploaded: Option<Matrix>,
}

enum Written {
    /// Row-major values.
    Rows(PartialTensor),
    /// Quantized weights, packed as on the CPU.
    Quantized(WeightBuilder),
}

impl RowsBuilder {
    /// Begins a matrix of `shape`, whose padding is zero.
    pub(crate) fn new(shape: Shape, device: &Device, uploads: Rc<Uploads>) -> Self {
        let (device, missing_rows) = (device.clone(), shape.written_rows);
        let form = shape.form.on_device(shape.stored_columns());
        let shape = Shape { form, ..shape };
        let (written, sparse, uploaded) = (None, HashMap::new(), None);
        Self { shape, device, uploads, written, missing_rows, sparse, uploaded }
    }

    /// The quantized weights, where they are kept.
    fn quantized(&mut self) -> Result<Option<&mut WeightBuilder>> {
        let MatrixForm::Quantized(packed) = self.shape.form else { return Ok(None) };
        if self.written.is_none() {
            let (n, k) = (self.shape.rows, self.shape.stored_columns());
            let builder = quantized::builder(n, k, packed)?.with_activations(packed.activations);
            self.written = Some(Written::Quantized(builder));
        }
        match &mut self.written {
            Some(Written::Quantized(builder)) => Ok(Some(builder)),
            _ => Ok(None),
        }
    }

    /// Finishes the matrix when `count` more rows make it whole.
    fn note(&mut self, count: usize) -> Result<()> {
        self.missing_rows -= count;
        if self.missing_rows > 0 {
            return Ok(());
        }
        self.uploaded = match self.written.take() {
            Some(Written::Rows(tensor)) => Some(Matrix::Rows(self.uploads.finish(tensor)?)),
            Some(Written::Quantized(builder)) => {
                // Between padded heads nothing was written.
                let weight = builder.finish_with_zeros();
                let heads = self.shape.heads;
                let in_fp8 = match self.shape.is_expert || heads.is_some() {
                    true => None,
                    false => Fp8Matrix::on_device(&weight, &self.device)?,
                };
                Some(match in_fp8 {
                    Some(matrix) => Matrix::Fp8(matrix),
                    None => Matrix::Packed(PackedMatrix::new(&weight, heads, &self.device)?),
                })
            }
            None => None,
        };
        Ok(())
    }
}

impl MatrixBuilder for RowsBuilder {
    type Matrix = Matrix;

    fn write_rows(&mut self, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        let Shape { rows: n, columns, dtype, .. } = self.shape;
        let (size, stored) = (dtype.size_in_bytes(), rows.dtype.size_in_bytes());
        let count = rows.bytes.len() / (columns * stored);
        if self.written.is_none() {
            self.written = Some(Written::Rows(self.uploads.begin(dtype, &[n, columns])?));
        }
        match self.written.as_mut() {
            Some(Written::Rows(tensor)) => {
                let (first, len) = (first_row * columns * size, count * columns * size);
                self.uploads.write(tensor, first, len, &|offset, out| {
                    let bytes = &rows.bytes[offset / size * stored..][..out.len() / size * stored];
                    convert(WeightRows { dtype: rows.dtype, bytes }, dtype, out);
                })?;
            }
            Some(Written::Quantized(builder)) => builder.write_rows(first_row, rows)?,
            None => unreachable!("it was begun above"),
        }
        self.note(count)
    }

    fn write_quantized(&mut self, first_row: usize, rows: QuantizedRows<'_>) -> Result<()> {
        let k = self.shape.stored_columns();
        let count = rows.bytes.len() / k;
        if let Some(quantized) = self.quantized()? {
            quantized.write_quantized(first_row, rows)?;
            return self.note(count);
        }
        let mut values = rows.dequantized(k)?;
        for (row, values) in values.chunks_exact_mut(k).enumerate() {
            for (input, value) in self.sparse.remove(&(first_row + row)).unwrap_or_default() {
                values[input as usize] += value;
            }
        }
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let rows = WeightRows { dtype: DType::F32, bytes: &bytes };
        match self.shape.heads {
            Some(heads) => {
                let bytes = pad_columns(rows, heads);
                self.write_rows(first_row, WeightRows { bytes: &bytes, ..rows })
            }
            None => self.write_rows(first_row, rows),
        }
    }

    fn write_sparse(&mut self, first_row: usize, part: SparseRows<'_>) -> Result<()> {
        if let Some(quantized) = self.quantized()? {
            return Ok(quantized.write_sparse(first_row, part)?);
        }
        for (row, bounds) in part.starts.windows(2).enumerate() {
            let range = bounds[0] as usize..bounds[1] as usize;
            let entries = part.inputs[range.clone()].iter().zip(&part.values[range]);
            let entries = entries.map(|(input, value)| (*input, *value));
            self.sparse.entry(first_row + row).or_default().extend(entries);
        }
        Ok(())
    }

    fn add_fixed_scale(&mut self, scale: f32) -> Result<()> {
        if let Some(quantized) = self.quantized()? {
            quantized.add_fixed_scale(scale);
        }
        Ok(())
    }

    fn finish(self) -> Result<Matrix> {
        match self.uploaded {
            Some(matrix) => Ok(matrix),
            None => Err(candlepower_kernels::Error::MissingRow {
                row: self.shape.rows - self.missing_rows,
                n: self.shape.rows,
            }
            .into()),
        }
    }
}

/// Writes the rows' values in `dtype`.
fn convert(rows: WeightRows<'_>, dtype: DType, out: &mut [u8]) {
    if rows.dtype == dtype {
        return out.copy_from_slice(rows.bytes);
    }
    match (rows.dtype, dtype) {
        (DType::F16, DType::BF16) => {
            each(rows, out, |b| bf16::from_f32(f16::from_le_bytes(b).to_f32()).to_le_bytes())
        }
        (DType::F16, _) => each(rows, out, |b| f16::from_le_bytes(b).to_f32().to_le_bytes()),
        (DType::BF16, DType::F16) => {
            each(rows, out, |b| f16::from_f32(bf16::from_le_bytes(b).to_f32()).to_le_bytes())
        }
        (DType::BF16, _) => each(rows, out, |b| bf16::from_le_bytes(b).to_f32().to_le_bytes()),
        (_, DType::F16) => each(rows, out, |b| f16::from_f32(f32::from_le_bytes(b)).to_le_bytes()),
        (_, _) => each(rows, out, |b| bf16::from_f32(f32::from_le_bytes(b)).to_le_bytes()),
    }
}

/// Converts every value, from `N` bytes to `M`.
fn each<const N: usize, const M: usize>(
    rows: WeightRows<'_>,
    out: &mut [u8],
    convert: impl Fn([u8; N]) -> [u8; M],
) {
    for (value, place) in rows.bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        *place = convert(*value);
    }
}
