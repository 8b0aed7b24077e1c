//! Sixteen lanes as an array, for CPUs without a path of their own.
//!
//! The compiler vectorises these loops where the target has fused multiply-adds (64-bit Arm always
//! does). An x86 CPU without FMA computes them in software: correct, and slow.

use half::{bf16, f16};

use super::tiles::{TileProduct, portable_product};
use super::{LANES, Simd, WithSimd};
use crate::weight::{e4m3_part, planes};

/// An implementation for every CPU. With `TILES` it multiplies bf16 in a matrix unit's order of summation: slow, for
/// comparisons.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable<const TILES: bool>;

type Lanes = [f32; LANES];

/// `std::array::from_fn` is not inlined into functions as large as these kernels, but this loop is.
#[inline(always)]
fn lanes(value: impl Fn(usize) -> f32) -> Lanes {
    let mut lanes = [0.0; LANES];
    let mut lane = 0;
    while lane < LANES {
        lanes[lane] = value(lane);
        lane += 1;
    }
    lanes
}

#[inline(always)]
fn zip(a: Lanes, b: Lanes, op: impl Fn(f32, f32) -> f32) -> Lanes {
    lanes(|lane| op(a[lane], b[lane]))
}

/// Sixteen bytes.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn bytes(source: *const u8) -> [u8; LANES] {
    // SAFETY: the caller's promise.
    unsafe { source.cast::<[u8; LANES]>().read_unaligned() }
}

impl<const TILES: bool> Simd for Portable<TILES> {
    type F32 = Lanes;

    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;
    const GEMV_ROWS: usize = 2;
    const BF16_TILES: bool = TILES;

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [value; LANES]
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        lanes(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn bf16_high(self, words: Lanes) -> Lanes {
        lanes(|lane| f32::from_bits(words[lane].to_bits() & 0xffff_0000))
    }

    #[inline(always)]
    fn join_bf16(self, high: Lanes, low: Lanes) -> Lanes {
        zip(high, low, |high, low| f32::from_bits(high.to_bits() | low.to_bits() >> 16))
    }

    #[inline(always)]
    fn bf16_low(self, words: Lanes) -> Lanes {
        lanes(|lane| f32::from_bits(words[lane].to_bits() << 16))
    }

    #[inline(always)]
    fn bf16_pairs(self, first: Lanes, second: Lanes) -> Lanes {
        let bits = |number: f32| u32::from(bf16::from_f32(number).to_bits());
        lanes(|word| {
            let (numbers, at) =
                if word < 8 { (first, 2 * word) } else { (second, 2 * word - LANES) };
            f32::from_bits(bits(numbers[at + 1]) << 16 | bits(numbers[at]))
        })
    }

    #[inline(always)]
    fn bf16_words(self, high: Lanes, low: Lanes) -> Lanes {
        let bits = |number: f32| u32::from(bf16::from_f32(number).to_bits());
        zip(high, low, |high, low| f32::from_bits(bits(high) << 16 | bits(low)))
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn select_lt(self, a: Lanes, b: Lanes, then: Lanes, otherwise: Lanes) -> Lanes {
        lanes(|lane| if a[lane] < b[lane] { then[lane] } else { otherwise[lane] })
    }

    #[inline(always)]
    fn round(self, a: Lanes) -> Lanes {
        lanes(|lane| a[lane].round_ties_even())
    }

    #[inline(always)]
    fn pow2(self, n: Lanes) -> Lanes {
        // The conversion of NaN gives 0, and an infinite one must not panic in the addition.
        lanes(|lane| f32::from_bits(((n[lane] as i32).wrapping_add(127) as u32) << 23))
    }

    #[inline(always)]
    fn reduce_max(self, a: Lanes) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn reduce_add(self, a: Lanes) -> f32 {
        let a = lanes(|lane| a[lane] + a[(lane + 8) % LANES]);
        let a = lanes(|lane| a[lane] + a[(lane + 4) % LANES]);
        let a = lanes(|lane| a[lane] + a[(lane + 2) % LANES]);
        a[0] + a[1]
    }

    #[inline(always)]
    fn keep(self, a: Lanes, from: usize, to: usize, fill: Lanes) -> Lanes {
        lanes(|lane| if (from..to).contains(&lane) { a[lane] } else { fill[lane] })
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Lanes {
        // SAFETY: the caller promises sixteen readable f32.
        unsafe { source.cast::<Lanes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, value: Lanes) {
        // SAFETY: the caller promises sixteen writable f32.
        unsafe { target.cast::<Lanes>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, source: *const f32) -> Lanes {
        // SAFETY: the caller promises eight readable f32.
        let [a, b, c, d, e, f, g, h] = unsafe { source.cast::<[f32; 8]>().read_unaligned() };
        [a, b, c, d, e, f, g, h, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    }

    #[inline(always)]
    unsafe fn store_half(self, target: *mut f32, value: Lanes) {
        let [a, b, c, d, e, f, g, h, ..] = value;
        // SAFETY: the caller promises eight writable f32.
        unsafe { target.cast::<[f32; 8]>().write_unaligned([a, b, c, d, e, f, g, h]) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, source: *const u8) -> Lanes {
        // SAFETY: the caller promises sixteen readable f16.
        let halves = unsafe { source.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        lanes(|lane| f16::from_le_bytes(halves[lane]).to_f32())
    }

    #[inline(always)]
    unsafe fn load_u8(self, source: *const u8) -> Lanes {
        // SAFETY: the caller promises sixteen readable bytes.
        let bytes = unsafe { bytes(source) };
        lanes(|lane| f32::from(bytes[lane]))
    }

    #[inline(always)]
    unsafe fn load_i8(self, source: *const u8) -> Lanes {
        // SAFETY: as above.
        let bytes = unsafe { bytes(source) };
        lanes(|lane| f32::from(bytes[lane].cast_signed()))
    }

    #[inline(always)]
    unsafe fn load_u4<const SHIFT: u32>(self, source: *const u8) -> Lanes {
        // SAFETY: as above.
        let bytes = unsafe { bytes(source) };
        lanes(|lane| f32::from(bytes[lane] >> SHIFT & 15))
    }

    #[inline(always)]
    unsafe fn load_planes<const BITS: usize>(
        self,
        pair: *const u8,
        step: usize,
        half: usize,
    ) -> Lanes {
        // SAFETY: the caller promises readable planes, whose bytes follow from their widths.
        let pair = unsafe { std::slice::from_raw_parts(pair, planes::plane_bytes(BITS)) };
        lanes(|lane| f32::from(planes::quant(BITS, pair, step, half * LANES + lane)))
    }

    #[inline(always)]
    unsafe fn load_e4m3_part(self, source: *const u8) -> Lanes {
        // SAFETY: as above.
        let bytes = unsafe { bytes(source) };
        lanes(|lane| e4m3_part(bytes[lane]))
    }

    #[inline(always)]
    unsafe fn lookup_u4<const SHIFT: u32>(self, table: Lanes, source: *const u8) -> Lanes {
        // SAFETY: as above.
        let bytes = unsafe { bytes(source) };
        lanes(|lane| table[usize::from(bytes[lane] >> SHIFT & 15)])
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}

    unsafe fn tile_product(self, product: &TileProduct) {
        // SAFETY: the caller's promise.
        unsafe { portable_product(product) }
    }

    #[inline(never)]
    fn run<O: WithSimd>(self, op: O) -> O::Output {
        op.with(self)
    }
}
