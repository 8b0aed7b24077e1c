//! Operands of the reference implementations: read and written whole, converted to f32 and rounded once.

use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Tensor};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, Result};
use float8::F8E4M3;
use half::{bf16, f16};

/// Alignment in bytes that a GPU needs for the first element of an operand. Elements have 16 bits, or 8 in an FP8
/// cache.
const ALIGNMENT: usize = 16;

/// A reference implementation that is about to run: its name in errors, and its element type.
pub(super) struct Reference {
    kernel: &'static str,
    dtype: DType,
}

impl Reference {
    /// For a kernel over the element type of `first`: bf16 or f16 as on a GPU, or f32, which only reference
    /// implementations accept.
    pub(super) fn new(kernel: &'static str, name: &'static str, first: &Tensor) -> Result<Self> {
        let found = first.dtype();
        if !matches!(found, DType::BF16 | DType::F16 | DType::F32) {
            let expected = "bf16 or f16";
            return Err(Error::DType { kernel, operand: name, expected, found });
        }
        Ok(Self { kernel, dtype: found })
    }

    /// For a kernel over the elements of a cache, of any type.
    pub(super) fn of_cache(kernel: &'static str, cache: &Tensor) -> Self {
        Self { kernel, dtype: cache.dtype() }
    }

    /// For a kernel over u32 tables.
    pub(super) fn integers(kernel: &'static str) -> Self {
        Self { kernel, dtype: DType::U32 }
    }

    /// The element type.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// An operand, by its name in errors.
    pub(super) fn operand<'a>(&self, name: &'static str, tensor: &'a Tensor) -> Operand<'a> {
        Operand::new(self.kernel, name, tensor)
    }

    /// The elements of an operand of the kernel's own type, of exactly these dimensions.
    pub(super) fn elements(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<Vec<f32>> {
        self.check(operand, self.dtype, axes, dims)?;
        Ok(operand.1.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    }

    /// The elements of an operand in the cache, of the kernel's own type or FP8.
    pub(super) fn cached(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<Vec<f32>> {
        self.check(operand, self.cached_dtype(operand.1), axes, dims)?;
        Ok(operand.1.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    }

    /// The elements of an f32 operand.
    pub(super) fn f32s(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<Vec<f32>> {
        self.check(operand, DType::F32, axes, dims)?;
        Ok(operand.1.flatten_all()?.to_vec1()?)
    }

    /// The elements of a u32 operand.
    pub(super) fn u32s(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<Vec<u32>> {
        self.check(operand, DType::U32, axes, dims)?;
        Ok(operand.1.flatten_all()?.to_vec1()?)
    }

    /// Writes an operand of the kernel's own type.
    pub(super) fn write(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
        values: &[f32],
    ) -> Result<()> {
        self.check(operand, self.dtype, axes, dims)?;
        Ok(operand.1.inplace_op1(&Write(Values::Floats(values)))?)
    }

    /// Writes an operand in the cache.
    pub(super) fn write_cached(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
        values: &[f32],
    ) -> Result<()> {
        self.check(operand, self.cached_dtype(operand.1), axes, dims)?;
        Ok(operand.1.inplace_op1(&Write(Values::Floats(values)))?)
    }

    /// Writes an f32 operand.
    pub(super) fn write_f32s(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
        values: &[f32],
    ) -> Result<()> {
        self.check(operand, DType::F32, axes, dims)?;
        Ok(operand.1.inplace_op1(&Write(Values::Floats(values)))?)
    }

    fn cached_dtype(&self, cache: &Tensor) -> DType {
        match cache.dtype() {
            DType::F8E4M3 => DType::F8E4M3,
            _ => self.dtype,
        }
    }

    /// Writes a u32 operand.
    pub(super) fn write_u32s(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
        values: &[u32],
    ) -> Result<()> {
        self.check(operand, DType::U32, axes, dims)?;
        Ok(operand.1.inplace_op1(&Write(Values::Integers(values)))?)
    }

    fn check(
        &self,
        (name, tensor): (&'static str, &Tensor),
        dtype: DType,
        axes: &str,
        dims: &[usize],
    ) -> Result<()> {
        let (kernel, operand) = (self.kernel, name);
        Operand::new(kernel, name, tensor).expect_dims(axes, dims)?;
        let found = tensor.dtype();
        if found != dtype {
            return Err(Error::DType { kernel, operand, expected: dtype.as_str(), found });
        }
        if !tensor.device().is_cpu() {
            let device = tensor.device().location();
            return Err(Error::UnsupportedDevice { kernel, operand, device });
        }
        let (first, _) =
            tensor.layout().contiguous_offsets().ok_or(Error::NotContiguous { kernel, operand })?;
        let bytes = match dtype {
            DType::F8E4M3 => 1,
            DType::U32 => return Ok(()),
            _ => 2,
        };
        // f32 stands for the 16-bit type that a GPU would have here, so the alignment is that of 16-bit elements.
        if (dtype == self.dtype || bytes == 1) && !(first * bytes).is_multiple_of(ALIGNMENT) {
            return Err(Error::Misaligned { kernel, operand });
        }
        Ok(())
    }
}

enum Values<'a> {
    Floats(&'a [f32]),
    Integers(&'a [u32]),
}

/// An in-place operation that replaces the elements of a tensor.
struct Write<'a>(Values<'a>);

impl InplaceOp1 for Write<'_> {
    fn name(&self) -> &'static str {
        "write"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (first, end) = layout
            .contiguous_offsets()
            .ok_or(candle_core::Error::RequiresContiguous { op: "write" })?;
        match (storage, &self.0) {
            (CpuStorage::F32(out), Values::Floats(values)) => {
                out[first..end].copy_from_slice(values);
            }
            (CpuStorage::BF16(out), Values::Floats(values)) => {
                let rounded = values.iter().map(|value| bf16::from_f32(*value));
                out[first..end].iter_mut().zip(rounded).for_each(|(out, value)| *out = value);
            }
            (CpuStorage::F16(out), Values::Floats(values)) => {
                let rounded = values.iter().map(|value| f16::from_f32(*value));
                out[first..end].iter_mut().zip(rounded).for_each(|(out, value)| *out = value);
            }
            (CpuStorage::F8E4M3(out), Values::Floats(values)) => {
                let rounded = values.iter().map(|value| F8E4M3::from_f32(*value));
                out[first..end].iter_mut().zip(rounded).for_each(|(out, value)| *out = value);
            }
            (CpuStorage::U32(out), Values::Integers(values)) => {
                out[first..end].copy_from_slice(values);
            }
            _ => candle_core::bail!("the dtype was checked before the reference ran"),
        }
        Ok(())
    }
}
