//! Checked access to the plain slices behind CPU tensors.

use std::ops::Deref;

use candle_core::{DType, Device, Storage, StorageRef, Tensor, WithDType};
use float8::F8E4M3;
use half::bf16;

use crate::{Error, Result};

/// A named operand of a kernel: its tensor, and its name in error messages.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Name of the operand.
    pub name: &'static str,
    /// The tensor.
    pub tensor: &'a Tensor,
}

impl<'a> Operand<'a> {
    /// The operand `name` of `kernel`, as errors name it.
    #[must_use]
    pub fn new(kernel: &'static str, name: &'static str, tensor: &'a Tensor) -> Self {
        Self { kernel, name, tensor }
    }

    /// The two dimensions of a matrix operand.
    ///
    /// # Errors
    /// It has another number of dimensions. The error says `expected`.
    pub fn dims2(&self, expected: &str) -> Result<(usize, usize)> {
        match *self.tensor.dims() {
            [a, b] => Ok((a, b)),
            _ => Err(self.shape_error(expected)),
        }
    }

    /// The three dimensions of an operand like `[tokens, heads, head_dim]`.
    ///
    /// # Errors
    /// It has another number of dimensions. The error says `expected`.
    pub fn dims3(&self, expected: &str) -> Result<(usize, usize, usize)> {
        match *self.tensor.dims() {
            [a, b, c] => Ok((a, b, c)),
            _ => Err(self.shape_error(expected)),
        }
    }

    /// Fails unless the operand has exactly these dimensions; `axes` names them.
    ///
    /// # Errors
    /// It has others.
    pub fn expect_dims(&self, axes: &str, dims: &[usize]) -> Result<()> {
        if self.tensor.dims() == dims {
            return Ok(());
        }
        Err(self.shape_error(format!("{axes} = {dims:?}")))
    }

    /// The error of a shape that is not `expected`.
    pub fn shape_error(&self, expected: impl Into<String>) -> Error {
        Error::Shape {
            kernel: self.kernel,
            operand: self.name,
            expected: expected.into(),
            found: self.tensor.dims().to_vec(),
        }
    }

    /// The operand's elements, if it is a contiguous f32 tensor on the CPU.
    ///
    /// # Errors
    /// It has another dtype, is on another device, or is not contiguous.
    pub fn f32s(&self) -> Result<CpuSlice<'a, f32>> {
        self.read(DType::F32, "f32")
    }

    /// The operand's elements, if it is a contiguous bf16 tensor on the CPU.
    ///
    /// # Errors
    /// It has another dtype, is on another device, or is not contiguous.
    pub fn bf16s(&self) -> Result<CpuSlice<'a, bf16>> {
        self.read(DType::BF16, "bf16")
    }

    /// The operand's elements, if it is a contiguous FP8 (e4m3) tensor on the CPU.
    ///
    /// # Errors
    /// It has another dtype, is on another device, or is not contiguous.
    pub fn fp8s(&self) -> Result<CpuSlice<'a, F8E4M3>> {
        self.read(DType::F8E4M3, "f8e4m3")
    }

    /// The operand's elements, if it is a contiguous u32 tensor on the CPU.
    ///
    /// # Errors
    /// It has another dtype, is on another device, or is not contiguous.
    pub fn u32s(&self) -> Result<CpuSlice<'a, u32>> {
        self.read(DType::U32, "u32")
    }

    fn read<T: WithDType>(&self, dtype: DType, expected: &'static str) -> Result<CpuSlice<'a, T>> {
        let (kernel, operand) = (self.kernel, self.name);
        self.expect_cpu()?;
        let found = self.tensor.dtype();
        if found != dtype {
            return Err(Error::DType { kernel, operand, expected, found });
        }
        let (storage, layout) = self.tensor.storage_and_layout();
        let range = layout.contiguous_offsets().ok_or(Error::NotContiguous { kernel, operand })?;
        Ok(CpuSlice { storage, range, element: std::marker::PhantomData })
    }

    fn expect_cpu(&self) -> Result<()> {
        match self.tensor.device() {
            Device::Cpu => Ok(()),
            other => Err(Error::UnsupportedDevice {
                kernel: self.kernel,
                operand: self.name,
                device: other.location(),
            }),
        }
    }
}

/// The elements of a contiguous CPU tensor, readable while this guard lives.
pub struct CpuSlice<'a, T> {
    storage: StorageRef<'a>,
    range: (usize, usize),
    element: std::marker::PhantomData<T>,
}

impl<T: WithDType> Deref for CpuSlice<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Storage::Cpu(storage) = &*self.storage else {
            unreachable!("the device was checked when the slice was made")
        };
        let elements = T::cpu_storage_as_slice(storage)
            .expect("the dtype was checked when the slice was made");
        &elements[self.range.0..self.range.1]
    }
}

/// A CPU tensor that owns `data`.
pub(crate) fn from_vec(data: Vec<f32>, dims: &[usize]) -> Result<Tensor> {
    Ok(Tensor::from_vec(data, dims, &Device::Cpu)?)
}
