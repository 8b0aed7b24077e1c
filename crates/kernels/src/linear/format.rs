//! How each stored dtype is widened to f32 in registers.

use crate::simd::{LANES, Simd};
use crate::weight::{ElementOrder, PANEL};

/// A stored dtype, read sixteen outputs of one step of `k` at a time.
pub(super) trait Format: Copy + Send + Sync {
    /// The order inside a panel.
    const ORDER: ElementOrder;

    /// Outputs `16 * half..` of step `step` (0 or 1) of the pair of steps at `pair`.
    ///
    /// # Safety
    /// `pair` points to the panel's bytes of two steps of `k`.
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32;
}

#[derive(Clone, Copy)]
pub(super) struct F32;
#[derive(Clone, Copy)]
pub(super) struct F16;
#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl Format for F32 {
    const ORDER: ElementOrder = ElementOrder::F32;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` f32 are there.
        unsafe { s.load(pair.cast::<f32>().add(step * PANEL + half * LANES)) }
    }
}

impl Format for F16 {
    const ORDER: ElementOrder = ElementOrder::F16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` f16 are there.
        unsafe { s.load_f16(pair.add((step * PANEL + half * LANES) * 2)) }
    }
}

impl Format for Bf16 {
    const ORDER: ElementOrder = ElementOrder::Bf16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: each half has 16 words of two steps: 64 bytes.
        unsafe {
            let words = pair.add(half * LANES * 4);
            if step == 0 { s.load_bf16_even(words) } else { s.load_bf16_odd(words) }
        }
    }
}
