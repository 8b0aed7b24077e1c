//! The device of the comparisons, their random values, and the required accuracy.

use std::cell::Cell;

use candle_core::{DType, Device, Tensor};

/// The element types of the kernels.
pub(crate) const HALVES: [DType; 2] = [DType::BF16, DType::F16];

/// The first GPU, and the number of tensors that were compared on it.
pub(crate) struct Gpu {
    device: Device,
    compared: Cell<usize>,
}

impl Gpu {
    /// The first GPU, with its own stream like the engine's; or the reason why there is none.
    pub(crate) fn first() -> Result<Self, String> {
        let device = candlepower_gpu::cuda::open(0).map_err(|error| {
            // Only the first line, because candle appends a backtrace.
            error.to_string().lines().next().unwrap_or_default().to_owned()
        })?;
        Ok(Self { device, compared: Cell::new(0) })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Number of tensors compared so far.
    pub(crate) fn compared(&self) -> usize {
        self.compared.get()
    }

    /// `values` on the GPU as `dtype`.
    pub(crate) fn floats(&self, values: &[f32], dims: &[usize], dtype: DType) -> Tensor {
        let tensor = Tensor::from_slice(values, dims, &Device::Cpu).unwrap();
        tensor.to_dtype(dtype).unwrap().to_device(&self.device).unwrap()
    }

    pub(crate) fn integers(&self, values: &[u32], dims: &[usize]) -> Tensor {
        Tensor::from_slice(values, dims, &self.device).unwrap()
    }

    /// A tensor of NaN, of which a kernel must overwrite every element.
    pub(crate) fn unwritten(&self, dims: &[usize], dtype: DType) -> Tensor {
        self.floats(&vec![f32::NAN; dims.iter().product()], dims, dtype)
    }

    /// Fails unless `got` is within `tolerance` of `want`. The tolerance is in steps of the dtype, at the size of the
    /// largest expected value and at each value's own size.
    pub(crate) fn assert_close(
        &self,
        got: &Tensor,
        want: &[f32],
        tolerance: Tolerance,
        what: &str,
    ) {
        let dtype = got.dtype();
        let got = to_vec(got);
        assert_eq!(got.len(), want.len(), "{what}");
        let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
        let step = step(dtype);
        // FP8 values below 2^-6 are multiples of 2^-9.
        let smallest = if dtype == DType::F8E4M3 { 0.6 / 512.0 } else { 1e-7 };
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let allowed =
                tolerance.own * step * want.abs() + tolerance.largest * step * largest + smallest;
            assert!(
                (got - want).abs() <= allowed,
                "{what}, {dtype:?}: element {i} is {got}, the reference has {want} (allowed {allowed})"
            );
        }
        self.compared.set(self.compared.get() + 1);
    }

    pub(crate) fn assert_equal(&self, got: &[u32], want: &[u32], what: &str) {
        assert_eq!(got, want, "{what}");
        self.compared.set(self.compared.get() + 1);
    }
}

/// Allowed difference of a result, in steps of its dtype: the distance of 1 to the next larger value.
#[derive(Clone, Copy)]
pub(crate) struct Tolerance {
    /// At each value's own size: rounding the result is half a step.
    pub(crate) own: f32,
    /// At the size of the largest value: for sums in another order, and rounded terms.
    pub(crate) largest: f32,
}

/// One rounding of an exact result, plus a little for f32's rounding.
pub(crate) const ROUNDED_ONCE: Tolerance = Tolerance { own: 0.6, largest: 0.001 };

/// A product of cuBLAS with a bias: rounded before the bias is added, at the size of the product, and once more after.
pub(crate) const BIASED_BY_CUBLAS: Tolerance = Tolerance { own: 0.6, largest: 0.6 };

/// The distance of 1 to the next larger value.
fn step(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        DType::F8E4M3 => 1.0 / 8.0,
        _ => f32::EPSILON,
    }
}

/// The elements as f32 on the CPU.
pub(crate) fn to_vec(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Fails unless the elements, as f32, have the bits of `want`.
pub(crate) fn assert_same_bits(got: &Tensor, want: &[f32], what: &str) {
    let got = to_vec(got).into_iter().map(f32::to_bits);
    let different = got.zip(want).position(|(got, want)| got != want.to_bits());
    assert_eq!(different, None, "{what}: the first element with other bits");
}

/// `values` after rounding to `dtype`.
pub(crate) fn rounded(values: &[f32], dtype: DType) -> Vec<f32> {
    to_vec(
        &Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap(),
    )
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Random values around zero, most of them below `spread`, already rounded to `dtype`.
    pub(crate) fn floats(&mut self, count: usize, spread: f32, dtype: DType) -> Vec<f32> {
        let mut unit = || (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        // A sum of three uniform values is nearly normal.
        let values: Vec<f32> =
            (0..count).map(|_| (unit() + unit() + unit() - 1.5) * spread).collect();
        rounded(&values, dtype)
    }

    /// The integers below `count` in a random order.
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..count as u32).collect();
        for i in (1..count).rev() {
            numbers.swap(i, self.below(i + 1));
        }
        numbers
    }
}
