//! Formats of the matmul: how each stored dtype and each kind of quantized weights reaches registers.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

use super::Product;
use crate::simd::{LANES, Simd};
use crate::weight::{E2M1, ElementOrder, IQ4, Layout, PANEL, QuantFormat};

/// The words that are multiplied, of both weights and activations. A word has 32 bits: one f32, or two bf16 of two
/// steps of `k`. Code that depends on the words alone is compiled once for all formats that share them.
pub(super) trait WordKind: Copy + Send + Sync {
    /// Steps of `k` in a word: 1 or 2.
    const STEPS: usize;
    /// Whether words are quantized weights, whose sums are scaled segment by segment.
    const SCALED: bool;

    /// `sum` plus the products of a word of activations and one of weights, step after step.
    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::F32, w: S::F32, sum: S::F32) -> S::F32 {
        if const { Self::STEPS == 2 } { s.dot_bf16(x, w, sum) } else { s.fma(x, w, sum) }
    }

    /// Writes the words of some steps of a row of activations to the start of `words`.
    #[inline(always)]
    fn put(p: &Product<'_>, x: &[f32], words: &mut [f32]) {
        if const { Self::STEPS == 2 } {
            let (pairs, last) = x.as_chunks::<2>();
            for (word, [high, low]) in words.iter_mut().zip(pairs) {
                // AVX512-BF16 adds the product of the high halves first, so the even step lies there.
                *word = f32::from_bits(rounded(*high) | rounded(*low) >> 16);
            }
            if let [last] = last {
                // An odd last step has a zero beside it, and so has the weight.
                words[pairs.len()] = f32::from_bits(rounded(*last));
            }
        } else if p.w.rounds_activations() {
            words.iter_mut().zip(x).for_each(|(word, x)| *word = f32::from_bits(rounded(*x)));
        } else {
            words[..x.len()].copy_from_slice(x);
        }
    }

    /// The words of all rows of `p`.
    #[inline(always)]
    fn of<'a>(p: &Product<'a>) -> Cow<'a, [f32]> {
        if const { Self::STEPS == 1 } && !p.w.rounds_activations() {
            return Cow::Borrowed(p.x);
        }
        let k = p.w.k();
        let row_words = k.div_ceil(Self::STEPS);
        let mut words = vec![0.0; p.rows * row_words];
        for (x, words) in p.x.chunks_exact(k).zip(words.chunks_exact_mut(row_words)) {
            Self::put(p, x, words);
        }
        Cow::Owned(words)
    }
}

/// Words of `STEPS` steps, scaled or not.
#[derive(Clone, Copy)]
pub(super) struct Word<const STEPS: usize, const SCALED: bool>;

impl<const STEPS: usize, const SCALED: bool> WordKind for Word<STEPS, SCALED> {
    const STEPS: usize = STEPS;
    const SCALED: bool = SCALED;
}

/// A stored dtype or kind of quantized weights, which is loaded sixteen outputs at a time.
pub(super) trait Format: Copy + Send + Sync {
    /// The words that it is loaded as.
    type Words: WordKind;
    /// Steps of `k` in one of [`Self::Words`].
    const STEPS: usize = <Self::Words as WordKind>::STEPS;
    /// Whether sums of [`Self::Words`] are scaled.
    const SCALED: bool = <Self::Words as WordKind>::SCALED;
    /// The order inside a panel.
    const ORDER: ElementOrder;
    /// Whether a panel lies in memory as [`Self::load`] gives it, `[words][32]`.
    const AS_STORED: bool = false;

    /// Outputs `16 * half..` of word `word` of the pair of steps at `pair`.
    ///
    /// # Safety
    /// `pair` points to a pair of steps of a panel in this order.
    unsafe fn load<S: Simd>(s: S, pair: *const u8, word: usize, half: usize) -> S::F32;
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
        ElementOrder::Quantized(format) => match format {
            QuantFormat::U2 => quantized::<S, Planes<2>>(s, p, work),
            QuantFormat::U3 => quantized::<S, Planes<3>>(s, p, work),
            QuantFormat::U4 => quantized::<S, U4>(s, p, work),
            QuantFormat::U5 => quantized::<S, Planes<5>>(s, p, work),
            QuantFormat::U6 => quantized::<S, Planes<6>>(s, p, work),
            QuantFormat::U8 => quantized::<S, U8>(s, p, work),
            QuantFormat::E4m3 => quantized::<S, E4m3>(s, p, work),
            QuantFormat::E2m1 => quantized::<S, E2m1>(s, p, work),
            QuantFormat::Iq4 => quantized::<S, Iq4>(s, p, work),
            QuantFormat::Table => unreachable!("tables have a kernel of their own"),
        },
        order => {
            if const { has_pairs::<S>() } {
                // Weights in f32 and f16 never come here, since their activations are not rounded.
                assert!(order == ElementOrder::Bf16, "{order:?} in pairs");
                return work.with::<Bf16Pairs>(s, p);
            }
            match order {
                ElementOrder::F16 => work.with::<F16>(s, p),
                ElementOrder::Bf16 => work.with::<Bf16>(s, p),
                _ => work.with::<F32>(s, p),
            }
        }
    }
}

/// Whether the CPU multiplies pairs of bf16. Then pairs alone are compiled for it, and everything else for the
/// instruction set without them. `if const` keeps the rest from being compiled; a guard of a match does not.
const fn has_pairs<S: Simd>() -> bool {
    S::BF16_DOT || S::BF16_TILES
}

/// Calls `work` with quantized weights as pairs of bf16 if the CPU multiplies these, and else as f32.
#[inline(always)]
fn quantized<S: Simd, C: Quantized>(s: S, p: &Product<'_>, work: impl WithFormat<S>) {
    if const { has_pairs::<S>() } {
        work.with::<Pairs<C>>(s, p);
    } else {
        work.with::<Singles<C>>(s, p);
    }
}

/// Steps of `k` whose quantized weights are summed before they are scaled: a group, or a part of a longer one.
pub(super) const SEGMENT_STEPS: usize = 128;

/// The ranges of steps of a row that are scaled together.
pub(super) fn segments(layout: Layout) -> impl Iterator<Item = Range<usize>> {
    let groups = (0..layout.k).step_by(layout.group);
    groups.flat_map(move |group| {
        let end = layout.k.min(group + layout.group);
        (group..end).step_by(SEGMENT_STEPS).map(move |step| step..end.min(step + SEGMENT_STEPS))
    })
}

/// The sum of some activations, rounded if the weight asks for it. Sixteen chains add every sixteenth activation
/// each, and their sums are added by halves.
#[inline(always)]
pub(super) fn sum_of<S: Simd>(s: S, p: &Product<'_>, x: &[f32]) -> f32 {
    let mut sums = s.splat(0.0);
    for x in x.chunks(LANES) {
        let mut steps = [0.0; LANES];
        if p.w.rounds_activations() {
            steps.iter_mut().zip(x).for_each(|(step, x)| *step = f32::from_bits(rounded(*x)));
        } else {
            steps[..x.len()].copy_from_slice(x);
        }
        // SAFETY: sixteen f32.
        sums = s.add(sums, unsafe { s.load(steps.as_ptr()) });
    }
    s.reduce_add(sums)
}

/// The bits of the nearest bf16, ties to even, in the high half. The low half is zero.
/// Source: IEEE 754-2019, 4.3.1, on the upper half of binary32.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    // Just less than half is added, and one more if the last bit that is kept is odd. So ties go to even.
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN stays one, whatever its low bits were.
    let chosen = if value.is_nan() { bits | 0x40_0000 } else { nearest };
    chosen & 0xffff_0000
}

#[derive(Clone, Copy)]
struct F32;
#[derive(Clone, Copy)]
struct F16;
/// bf16 widened to f32.
#[derive(Clone, Copy)]
struct Bf16;
/// Pairs of bf16 for dot products.
#[derive(Clone, Copy)]
struct Bf16Pairs;
/// Quantized weights as f32.
#[derive(Clone, Copy)]
struct Singles<C>(PhantomData<C>);
/// Quantized weights as pairs of bf16, in which all of them are exact, for dot products.
#[derive(Clone, Copy)]
struct Pairs<C>(PhantomData<C>);

impl Format for F32 {
    type Words = Word<1, false>;
    const ORDER: ElementOrder = ElementOrder::F32;
    const AS_STORED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` f32 are there.
        unsafe { s.load(pair.cast::<f32>().add(step * PANEL + half * LANES)) }
    }
}

impl Format for F16 {
    type Words = Word<1, false>;
    const ORDER: ElementOrder = ElementOrder::F16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` f16 are there.
        unsafe { s.load_f16(pair.add((step * PANEL + half * LANES) * 2)) }
    }
}

impl Format for Bf16 {
    type Words = Word<1, false>;
    const ORDER: ElementOrder = ElementOrder::Bf16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: as the caller promises.
        let words = unsafe { Bf16Pairs::load(s, pair, 0, half) };
        if step == 0 { s.bf16_high(words) } else { s.bf16_low(words) }
    }
}

impl Format for Bf16Pairs {
    type Words = Word<2, false>;
    const ORDER: ElementOrder = ElementOrder::Bf16;
    const AS_STORED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, _: usize, half: usize) -> S::F32 {
        // SAFETY: each half has 16 words of two steps: 64 bytes.
        unsafe { s.load(pair.cast::<f32>().add(half * LANES)) }
    }
}

impl<C: Quantized> Format for Singles<C> {
    type Words = Word<1, true>;
    const ORDER: ElementOrder = ElementOrder::Quantized(C::FORMAT);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { C::single(s, pair, step, half) }
    }
}

impl<C: Quantized> Format for Pairs<C> {
    type Words = Word<2, true>;
    const ORDER: ElementOrder = ElementOrder::Quantized(C::FORMAT);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, pair: *const u8, _: usize, half: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { C::pair(s, pair, half) }
    }
}

/// A kind of quantized weights.
trait Quantized: Copy + Send + Sync {
    const FORMAT: QuantFormat;

    /// Sixteen quantized weights of step `step` of a pair, as f32.
    ///
    /// # Safety
    /// `pair` points to two steps of a panel.
    unsafe fn single<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32;

    /// Sixteen quantized weights of both steps, as pairs of bf16.
    ///
    /// # Safety
    /// The contract of [`Self::single`].
    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, pair: *const u8, half: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { s.join_bf16(Self::single(s, pair, 0, half), Self::single(s, pair, 1, half)) }
    }
}

#[derive(Clone, Copy)]
struct U4;
#[derive(Clone, Copy)]
struct U8;
#[derive(Clone, Copy)]
struct E4m3;
#[derive(Clone, Copy)]
struct E2m1;
#[derive(Clone, Copy)]
struct Iq4;
/// Quantized weights of `BITS` bits, in [`planes`](crate::weight::planes).
#[derive(Clone, Copy)]
struct Planes<const BITS: usize>;

impl Quantized for U4 {
    const FORMAT: QuantFormat = QuantFormat::U4;

    #[inline(always)]
    unsafe fn single<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: a pair has 32 bytes, each with two steps of one output.
        unsafe {
            let quants = pair.add(half * LANES);
            if step == 0 { s.load_u4::<0>(quants) } else { s.load_u4::<4>(quants) }
        }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, pair: *const u8, half: usize) -> S::F32 {
        // SAFETY: as above.
        unsafe { s.load_u4_pairs(pair.add(half * LANES)) }
    }
}

impl Quantized for U8 {
    const FORMAT: QuantFormat = QuantFormat::U8;

    #[inline(always)]
    unsafe fn single<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: `step * 32 + half * 16 + 16 <= 64` bytes are there.
        unsafe { s.load_u8(pair.add(step * PANEL + half * LANES)) }
    }
}

impl Quantized for E4m3 {
    const FORMAT: QuantFormat = QuantFormat::E4m3;

    #[inline(always)]
    unsafe fn single<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: as for `U8`.
        unsafe { s.load_e4m3_part(pair.add(step * PANEL + half * LANES)) }
    }
}

/// Table indices of four bits into a table of sixteen values.
macro_rules! looked_up {
    ($name:ident, $numbers:expr) => {
        impl Quantized for $name {
            const FORMAT: QuantFormat = QuantFormat::$name;

            #[inline(always)]
            unsafe fn single<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
                // SAFETY: the table has sixteen values, and a pair lies like one of `U4`.
                unsafe {
                    let (numbers, quants) = (s.load($numbers.as_ptr()), pair.add(half * LANES));
                    if step == 0 {
                        s.lookup_u4::<0>(numbers, quants)
                    } else {
                        s.lookup_u4::<4>(numbers, quants)
                    }
                }
            }

            #[inline(always)]
            unsafe fn pair<S: Simd>(s: S, pair: *const u8, half: usize) -> S::F32 {
                // SAFETY: as above.
                unsafe { s.lookup_u4_pairs(s.load($numbers.as_ptr()), pair.add(half * LANES)) }
            }
        }
    };
}

looked_up!(E2m1, E2M1);
looked_up!(Iq4, IQ4);

impl<const BITS: usize> Quantized for Planes<BITS> {
    const FORMAT: QuantFormat = match BITS {
        2 => QuantFormat::U2,
        3 => QuantFormat::U3,
        5 => QuantFormat::U5,
        6 => QuantFormat::U6,
        _ => panic!("quantized weights of this width have no planes"),
    };

    #[inline(always)]
    unsafe fn single<S: Simd>(s: S, pair: *const u8, step: usize, half: usize) -> S::F32 {
        // SAFETY: a pair has `8 * BITS` bytes.
        unsafe { s.load_planes::<BITS>(pair, step, half) }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, pair: *const u8, half: usize) -> S::F32 {
        // SAFETY: as above.
        unsafe { s.load_planes_pairs::<BITS>(pair, half) }
    }
}
