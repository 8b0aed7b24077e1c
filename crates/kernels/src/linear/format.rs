//! How each stored dtype, and each kind of codes, meets the activations in registers.

use std::borrow::Cow;

use super::Product;
use crate::simd::{LANES, Simd};
use crate::weight::{Codes, ElementOrder, PANEL, TABLE};

/// A stored dtype or kind of codes, read sixteen outputs at a time. Weights and activations are words of 32 bits: an
/// f32, or two bf16 that belong to two steps of `k`.
pub(super) trait Format: Copy + Send + Sync {
    /// The order inside a panel.
    const ORDER: ElementOrder;
    /// Steps of `k` in a word: 1 or 2.
    const STEPS: usize = 1;
    /// Whether a panel lies in memory as [`Self::load`] gives it, `[words][32]`.
    const AS_STORED: bool = false;

    /// Writes the words of some steps of a row of activations to the first places of `words`.
    #[inline(always)]
    fn put_words(x: &[f32], words: &mut [f32]) {
        words[..x.len()].copy_from_slice(x);
    }

    /// Outputs `16 * half..` of word `word` of the pair of steps `at`.
    ///
    /// # Safety
    /// `at` points to a header and a pair of steps of a panel in this order.
    unsafe fn load<S: Simd>(s: S, at: Pair, word: usize, half: usize) -> S::F32;

    /// `sum` and the products of a word of activations with one of weights, step after step.
    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::F32, w: S::F32, sum: S::F32) -> S::F32 {
        s.fma(x, w, sum)
    }

    /// The words of all rows of `x` `[rows, k]`.
    #[inline(always)]
    fn words(x: &[f32], k: usize) -> Cow<'_, [f32]> {
        if Self::ORDER != ElementOrder::Bf16 {
            return Cow::Borrowed(x);
        }
        let row_words = k.div_ceil(Self::STEPS);
        let mut words = vec![0.0; x.len() / k * row_words];
        for (x, words) in x.chunks_exact(k).zip(words.chunks_exact_mut(row_words)) {
            Self::put_words(x, words);
        }
        Cow::Owned(words)
    }
}

/// A product in the format of its weight.
pub(super) trait WithFormat<S: Simd> {
    /// The work. Implementations are `#[inline(always)]`.
    fn with<W: Format>(self, s: S, p: &Product<'_>);
}

/// Calls `work` with the format of the weight of `p`.
#[inline(always)]
pub(super) fn in_format<S: Simd>(s: S, p: &Product<'_>, work: impl WithFormat<S>) {
    match p.w.layout().order {
        ElementOrder::F32 => work.with::<F32>(s, p),
        ElementOrder::F16 => work.with::<F16>(s, p),
        ElementOrder::Bf16 if const { S::BF16_DOT || S::BF16_TILES } => {
            work.with::<Bf16Pairs>(s, p)
        }
        ElementOrder::Bf16 => work.with::<Bf16>(s, p),
        ElementOrder::Coded(Codes::U4) => work.with::<U4>(s, p),
        ElementOrder::Coded(Codes::U8) => work.with::<U8>(s, p),
        ElementOrder::Coded(Codes::E4m3) => work.with::<E4m3>(s, p),
        ElementOrder::Coded(Codes::Table) => work.with::<Table>(s, p),
    }
}

/// The bits of the nearest bf16, ties to even, in the high half; the other is zero.
/// Source: IEEE 754-2019, 4.3.1, on the upper half of binary32.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN stays one, whatever its low bits were.
    let chosen = if value.is_nan() { bits | 0x40_0000 } else { nearest };
    chosen & 0xffff_0000
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
struct F32;
#[derive(Clone, Copy)]
struct F16;
/// Widened to f32.
#[derive(Clone, Copy)]
struct Bf16;
/// For dot products.
#[derive(Clone, Copy)]
struct Bf16Pairs;
#[derive(Clone, Copy)]
struct U4;
#[derive(Clone, Copy)]
struct U8;
#[derive(Clone, Copy)]
struct E4m3;
#[derive(Clone, Copy)]
struct Table;

impl Format for F32 {
    const ORDER: ElementOrder = ElementOrder::F32;
    const AS_STORED: bool = true;

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
    fn put_words(x: &[f32], words: &mut [f32]) {
        words.iter_mut().zip(x).for_each(|(word, x)| *word = f32::from_bits(rounded(*x)));
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, step: usize, half: usize) -> S::F32 {
        // SAFETY: as the caller promises.
        let words = unsafe { Bf16Pairs::load(s, at, 0, half) };
        if step == 0 { s.bf16_high(words) } else { s.bf16_low(words) }
    }
}

impl Format for Bf16Pairs {
    const ORDER: ElementOrder = ElementOrder::Bf16;
    const STEPS: usize = 2;
    const AS_STORED: bool = true;

    #[inline(always)]
    fn put_words(x: &[f32], words: &mut [f32]) {
        let (pairs, last) = x.as_chunks::<2>();
        for (word, [high, low]) in words.iter_mut().zip(pairs) {
            *word = f32::from_bits(rounded(*high) | rounded(*low) >> 16);
        }
        if let [last] = last {
            words[pairs.len()] = f32::from_bits(rounded(*last));
        }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: Pair, _: usize, half: usize) -> S::F32 {
        // SAFETY: each half has 16 words of two steps: 64 bytes.
        unsafe { s.load(at.steps.cast::<f32>().add(half * LANES)) }
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::F32, w: S::F32, sum: S::F32) -> S::F32 {
        s.dot_bf16(x, w, sum)
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
