//! Matrices for a GPU: row-major in one dtype, or quantized, uploaded as soon as they are whole.

use std::{borrow::Cow, collections::HashMap};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::MatrixForm;
use candlepower_gpu::{ExpertMatrices, Matrix, PackedMatrix};
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

/// A matrix that is gathered in host memory, which is freed as soon as the device has the matrix.
pub(crate) struct RowsBuilder {
    shape: Shape,
    device: Device,
    /// The written rows: `None` before the first row and after the last.
    written: Option<Written>,
    missing_rows: usize,
    /// The entries of a sparse matrix by row, which are added to matrices that are not kept quantized.
    sparse: HashMap<usize, Vec<(u32, f32)>>,
    uploaded: Option<Matrix>,
}

enum Written {
    /// Row-major values.
    Rows(Vec<u8>),
    /// Quantized weights, packed as on the CPU.
    Quantized(WeightBuilder),
}

impl RowsBuilder {
    /// Begins a matrix of `shape`, whose padding is zero.
    pub(crate) fn new(shape: Shape, device: &Device) -> Self {
        let (device, missing_rows) = (device.clone(), shape.written_rows);
        let form = shape.form.on_device(shape.stored_columns());
        let shape = Shape { form, ..shape };
        Self { shape, device, written: None, missing_rows, sparse: HashMap::new(), uploaded: None }
    }

    /// The quantized weights, where they are kept.
    fn quantized(&mut self) -> Result<Option<&mut WeightBuilder>> {
        let MatrixForm::Quantized(packed) = self.shape.form else { return Ok(None) };
        if self.written.is_none() {
            let (n, k) = (self.shape.rows, self.shape.stored_columns());
            self.written = Some(Written::Quantized(quantized::builder(n, k, packed)?));
        }
        match &mut self.written {
            Some(Written::Quantized(builder)) => Ok(Some(builder)),
            _ => Ok(None),
        }
    }

    /// Uploads the matrix when `count` more rows make it whole.
    fn note(&mut self, count: usize) -> Result<()> {
        self.missing_rows -= count;
        if self.missing_rows > 0 {
            return Ok(());
        }
        let Shape { rows: n, columns, dtype, heads, .. } = self.shape;
        self.uploaded = match self.written.take() {
            Some(Written::Rows(bytes)) => {
                let tensor = Tensor::from_raw_buffer(&bytes, dtype, &[n, columns], &self.device)?;
                Some(Matrix::Rows(tensor))
            }
            Some(Written::Quantized(builder)) => {
                // Between padded heads nothing was written.
                let weight = builder.finish_with_zeros();
                Some(Matrix::Packed(PackedMatrix::new(&weight, heads, &self.device)?))
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
        let row_bytes = columns * dtype.size_in_bytes();
        let count = rows.bytes.len() / (columns * rows.dtype.size_in_bytes());
        let written = self.written.get_or_insert_with(|| Written::Rows(vec![0; n * row_bytes]));
        match written {
            Written::Rows(bytes) => {
                let target = &mut bytes[first_row * row_bytes..][..count * row_bytes];
                target.copy_from_slice(&converted(rows, dtype));
            }
            Written::Quantized(builder) => builder.write_rows(first_row, rows)?,
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

/// The rows' bytes in `dtype`.
fn converted<'a>(rows: WeightRows<'a>, dtype: DType) -> Cow<'a, [u8]> {
    if rows.dtype == dtype {
        return Cow::Borrowed(rows.bytes);
    }
    let size = rows.dtype.size_in_bytes();
    let values = rows.bytes.chunks_exact(size).map(|bytes| match rows.dtype {
        DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    });
    Cow::Owned(match dtype {
        DType::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::BF16 => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    })
}
