//! How each stored dtype, and each kind of codes, is widened to f32 in registers.

use crate::simd::{LANES, Simd};
use crate::weight::{Codes, ElementOrder, PANEL, TABLE};

/// A stored dtype or kind of codes, read sixteen outputs of one step of `k` at a time.
pub(super) trait Format: Copy + Send + Sync {
    /// The order inside a panel.
    const ORDER: ElementOrder;

    /// Outputs `16 * half..` of step `step` (0 or 1) of the pair of steps `at`.
    ///
    /// # Safety
    /// `at` points to a header and a pair of steps of a panel in this order.
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32;
}

/// Two steps of `k` of one panel.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    /// The header of their group, of which numbers without codes have none.
    pub(super) header: *const u8,
    /// Their bytes.
    pub(super) steps: *const u8,
}

#[derive(Clone, Copy)]
pub(super) struct F32;
#[derive(Clone, Copy)]
pub(super) struct F16;
#[derive(Clone, Copy)]
pub(super) struct Bf16;
#[derive(Clone, Copy)]
pub(super) struct U4;
#[derive(Clone, Copy)]
pub(super) struct U8;
#[derive(Clone, Copy)]
pub(super) struct E4m3;
#[derive(Clone, Copy)]
pub(super) struct Table;

impl Format for F32 {
    const ORDER: ElementOrder = ElementOrder::F32;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` f32 are there.
        unsafe { s.load(at.steps.cast::<f32>().add(step * PANEL + half * LANES)) }
    }
}

impl Format for F16 {
    const ORDER: ElementOrder = ElementOrder::F16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` f16 are there.
        unsafe { s.load_f16(at.steps.add((step * PANEL + half * LANES) * 2)) }
    }
}

impl Format for Bf16 {
    const ORDER: ElementOrder = ElementOrder::Bf16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: each half has 16 words of two steps: 64 bytes.
        unsafe {
            let words = at.steps.add(half * LANES * 4);
            if step == 0 { s.load_bf16_even(words) } else { s.load_bf16_odd(words) }
        }
    }
}

impl Format for U4 {
    const ORDER: ElementOrder = ElementOrder::Coded(Codes::U4);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: a pair has 32 bytes, each with two steps of one output.
        unsafe {
            let codes = at.steps.add(half * LANES);
            let code = if step == 0 { s.load_u4::<0>(codes) } else { s.load_u4::<4>(codes) };
            scaled(s, code, at, half)
        }
    }
}

impl Format for U8 {
    const ORDER: ElementOrder = ElementOrder::Coded(Codes::U8);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` bytes are there.
        unsafe { scaled(s, s.load_u8(at.steps.add(step * PANEL + half * LANES)), at, half) }
    }
}

impl Format for E4m3 {
    const ORDER: ElementOrder = ElementOrder::Coded(Codes::E4m3);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: as for `U8`.
        unsafe { scaled(s, s.load_e4m3_part(at.steps.add(step * PANEL + half * LANES)), at, half) }
    }
}

impl Format for Table {
    const ORDER: ElementOrder = ElementOrder::Coded(Codes::Table);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: codes as for `U4`; the header has 32 tables of sixteen numbers.
        unsafe {
            let codes = at.steps.add(half * LANES);
            let tables = at.header.cast::<f32>().add(half * LANES * TABLE);
            if step == 0 {
                s.lookup_u4::<0>(tables, codes)
            } else {
                s.lookup_u4::<4>(tables, codes)
            }
        }
    }
}

/// `code * scale + min`, rounded once.
///
/// # Safety
/// The header holds 32 scales and 32 minima.
#[inline(always)]
unsafe fn scaled<S: Simd>(s: S, code: S::F32, at: Pair, half: usize) -> S::F32 {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = at.header.cast::<f32>().add(half * LANES);
        s.fma(code, s.load(scales), s.load(scales.add(PANEL)))
    }
}
