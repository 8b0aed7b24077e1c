//! Weights that a kernel requests for the L2 cache, for a later product.

use candle_core::Tensor;

use super::launch::Launch;
use candlepower_kernels::Result;

/// Most bytes that a kernel requests. At 4.4 TB/s, an H200 reads them in 1.9 us, about the time of a small kernel.
const MAX_BYTES: usize = 8 << 20;

/// Mirrors `Prefetch` in prefetch.cuh.
#[repr(C)]
pub(super) struct Prefetch {
    from: *const u8,
    bytes: i64,
}
const _: () = assert!(size_of::<Prefetch>() == 16);

impl Prefetch {
    /// Nothing is requested.
    pub(super) const NONE: Self = Self { from: std::ptr::null(), bytes: 0 };

    /// The first bytes of a matrix of the launch's element type, if there is one.
    ///
    /// # Errors
    /// The matrix has another element type, layout or device.
    pub(super) fn of(launch: &Launch, next: Option<&Tensor>) -> Result<Self> {
        let Some(next) = next else { return Ok(Self::NONE) };
        let from = launch.elements(("next", next), "any shape", next.dims())?;
        let bytes = (next.elem_count() * next.dtype().size_in_bytes()).min(MAX_BYTES);
        Ok(Self { from: from.cast_const().cast(), bytes: bytes as i64 })
    }
}
