//! Matrices as a GPU has them: row-major, in one dtype, uploaded as soon as they are whole.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{QuantizedRows, SparseRows, WeightRows};
use half::{bf16, f16};

use crate::{
    error::{Error, Result},
    layers::tensor_bytes,
    parts::{Matrix, MatrixBuilder, Shape},
};

impl Matrix for Tensor {
    type Builder = RowsBuilder;

    fn num_bytes(&self) -> usize {
        tensor_bytes(self)
    }
}

/// A matrix that is gathered on the host. Its memory there is given back as soon as the device has it.
pub(crate) struct RowsBuilder {
    shape: Shape,
    device: Device,
    /// Row-major; empty before the first row and after the last.
    bytes: Vec<u8>,
    missing_rows: usize,
    uploaded: Option<Tensor>,
}

impl RowsBuilder {
    /// Begins a matrix of `shape`, whose padding is zero.
    pub(crate) fn new(shape: Shape, device: &Device) -> Self {
        let (device, missing_rows) = (device.clone(), shape.written_rows);
        Self { shape, device, bytes: Vec::new(), missing_rows, uploaded: None }
    }
}

impl MatrixBuilder for RowsBuilder {
    type Matrix = Tensor;

    fn write_rows(&mut self, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        let Shape { rows: n, columns, dtype, .. } = self.shape;
        let row_bytes = columns * dtype.size_in_bytes();
        let count = rows.bytes.len() / (columns * rows.dtype.size_in_bytes());
        if self.bytes.is_empty() {
            self.bytes = vec![0; n * row_bytes];
        }
        let target = &mut self.bytes[first_row * row_bytes..][..count * row_bytes];
        target.copy_from_slice(&converted(rows, dtype));
        self.missing_rows -= count;
        if self.missing_rows == 0 {
            let tensor = Tensor::from_raw_buffer(&self.bytes, dtype, &[n, columns], &self.device)?;
            self.bytes = Vec::new();
            self.uploaded = Some(tensor);
        }
        Ok(())
    }

    fn write_quantized(&mut self, _first_row: usize, _rows: QuantizedRows<'_>) -> Result<()> {
        Err(Error::QuantizedOnDevice)
    }

    fn write_sparse(&mut self, _first_row: usize, _part: SparseRows<'_>) -> Result<()> {
        Err(Error::QuantizedOnDevice)
    }

    fn finish(self) -> Result<Tensor> {
        match self.uploaded {
            Some(tensor) => Ok(tensor),
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
    let numbers = rows.bytes.chunks_exact(size).map(|bytes| match rows.dtype {
        DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    });
    Cow::Owned(match dtype {
        DType::F16 => numbers.flat_map(|number| f16::from_f32(number).to_le_bytes()).collect(),
        DType::BF16 => numbers.flat_map(|number| bf16::from_f32(number).to_le_bytes()).collect(),
        _ => numbers.flat_map(f32::to_le_bytes).collect(),
    })
}
