//! Sixteen lanes as two AVX2 registers.

use std::arch::x86_64::*;

use super::planes::Spread;
use super::{Simd, WithSimd};
use crate::weight::planes::{plane_bytes, widths};

/// The proof that this CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        crate::cpu_features::has_avx2().then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<O: WithSimd>(s: Avx2, op: O) -> O::Output {
    op.with(s)
}

/// Eight bytes as integers.
///
/// # Safety
/// The CPU has AVX2, and `source` points to eight readable bytes.
#[inline(always)]
unsafe fn bytes(source: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast())) }
}

/// The four bits from `SHIFT` on of eight bytes.
///
/// # Safety
/// The contract of [`bytes`].
#[inline(always)]
unsafe fn nibbles<const SHIFT: u32>(source: *const u8) -> __m256i {
    // SAFETY: the caller's promise. An intrinsic's shift is an `i32`, which no expression of `SHIFT` can be.
    unsafe {
        let all = bytes(source);
        let shifted = if SHIFT == 0 { all } else { _mm256_srli_epi32::<4>(all) };
        _mm256_and_si256(shifted, _mm256_set1_epi32(15))
    }
}

/// [`e4m3_part`](crate::weight::e4m3_part) of eight bytes.
///
/// # Safety
/// The contract of [`bytes`], and the CPU has F16C.
#[inline(always)]
unsafe fn e4m3_part(source: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let quant = _mm_cvtepu8_epi16(_mm_loadl_epi64(source.cast()));
        // The bits are those of a half, whose exponent's bias is 15 instead of 7. The missing factor of 256 is in
        // the scales.
        let sign = _mm_and_si128(_mm_slli_epi16::<8>(quant), _mm_set1_epi16(i16::MIN));
        let rest = _mm_and_si128(_mm_slli_epi16::<7>(quant), _mm_set1_epi16(0x3f80));
        _mm256_cvtph_ps(_mm_or_si128(sign, rest))
    }
}

/// `2^n` for integral `n`, like [`Simd::pow2`].
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn pow2(n: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

/// The bits of plane `PLANE` of quantized weights of `BITS` bits, for eight outputs of each half of a panel, in
/// sixteen lanes of 16 bits. A lane has the first half's bits at their final position and the second half's four bits
/// further up. Its other bits belong to other lanes.
///
/// # Safety
/// The CPU has AVX2, and `pair` points to readable planes.
#[inline(always)]
unsafe fn plane<const BITS: usize, const PLANE: usize>(pair: *const u8, eight: usize) -> __m256i {
    let width = const { widths(BITS)[PLANE] };
    let before = const { if PLANE == 0 { 0 } else { plane_bytes(widths(BITS)[0]) } };
    let source = pair.wrapping_add(before);
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = match width {
            4 => return _mm256_cvtepu8_epi16(_mm_loadu_si128(source.add(eight * 16).cast())),
            2 => _mm256_broadcastsi128_si256(_mm_loadu_si128(source.cast())),
            _ => _mm256_set1_epi64x(source.cast::<i64>().read_unaligned()),
        };
        let spread = const { &Spread::of(BITS, PLANE) };
        let of_lanes = _mm256_load_si256(spread.bytes.as_ptr().add(eight * 32).cast());
        let shifts = _mm256_load_si256(spread.shifts.as_ptr().add(eight * 8).cast());
        _mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, of_lanes), shifts)
    }
}

/// Quantized weights of `BITS` bits of half `half` of a panel, for eight of its outputs, in sixteen lanes of 16 bits.
/// The upper bits of a lane belong to other lanes.
///
/// # Safety
/// The contract of [`plane`].
#[inline(always)]
unsafe fn lanes<const BITS: usize>(pair: *const u8, half: usize, eight: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = (plane::<BITS, 0>(pair, eight), plane::<BITS, 1>(pair, eight));
        let is_low = _mm256_set1_epi16(const { (1 << widths(BITS)[0]) - 1 } << (4 * half));
        let quants =
            _mm256_or_si256(_mm256_and_si256(is_low, low), _mm256_andnot_si256(is_low, high));
        if half == 0 { quants } else { _mm256_srli_epi16::<4>(quants) }
    }
}

/// Quantized weights of `BITS` bits of step `step` and half `half` of a panel, for eight of its outputs, as f32.
///
/// # Safety
/// The contract of [`plane`].
#[inline(always)]
unsafe fn quants<const BITS: usize>(
    pair: *const u8,
    step: usize,
    half: usize,
    eight: usize,
) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let lanes = lanes::<BITS>(pair, half, eight);
        let quants = if step == 0 { _mm256_srli_epi32::<16>(lanes) } else { lanes };
        let most = _mm256_set1_epi32((1 << BITS) - 1);
        _mm256_cvtepi32_ps(_mm256_and_si256(quants, most))
    }
}

/// The table values whose indices are the four bits from `SHIFT` on of eight bytes.
///
/// # Safety
/// The contract of [`bytes`].
#[inline(always)]
unsafe fn lookup<const SHIFT: u32>(table: Pair, source: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let quants = nibbles::<SHIFT>(source);
        // A permutation takes three bits of the index. The fourth bit chooses between two permutations.
        let first = _mm256_permutevar8x32_ps(table[0], quants);
        let second = _mm256_permutevar8x32_ps(table[1], quants);
        let is_second = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(quants));
        _mm256_blendv_ps(first, second, is_second)
    }
}

/// The sum of eight values, in the order of [`Simd::reduce_add`].
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub(super) unsafe fn sum_of_eight(eight: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The bf16 in the high halves of eight words.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn high_halves(words: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        // The mask is 0xffff0000 as a signed integer.
        let high = _mm256_and_si256(_mm256_castps_si256(words), _mm256_set1_epi32(-0x1_0000));
        _mm256_castsi256_ps(high)
    }
}

/// The bf16 in the low halves of eight words.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn low_halves(words: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(words))) }
}

/// The bits of eight values rounded to bf16, ties to even, each in the low half of a word.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn rounded_bf16(numbers: __m256) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_castps_si256(numbers);
        let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(numbers, numbers));
        let nearest = _mm256_add_epi32(bits, _mm256_andnot_si256(nan, half));
        let quiet = _mm256_and_si256(nan, _mm256_set1_epi32(0x40_0000));
        _mm256_srli_epi32::<16>(_mm256_or_si256(nearest, quiet))
    }
}

/// Words of two values rounded to bf16, the first of which is in the high half.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn rounded_word(high: __m256, low: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let high = _mm256_slli_epi32::<16>(rounded_bf16(high));
        _mm256_castsi256_ps(_mm256_or_si256(high, rounded_bf16(low)))
    }
}

/// Sixteen values as words of two bf16.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn words_of_bf16([low, high]: Pair) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        // The instruction packs each half of a register on its own, so that quarters of the two operands alternate.
        let packed = _mm256_packus_epi32(rounded_bf16(low), rounded_bf16(high));
        _mm256_castsi256_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
    }
}

/// Lanes 0 to 7 and lanes 8 to 15.
type Pair = [__m256; 2];

macro_rules! lanewise {
    ($intrinsic:ident, $($operand:expr),+) => {
        // SAFETY: used only in methods of `Avx2`, whose existence proves that the CPU has the instructions.
        unsafe { [$intrinsic($($operand[0]),+), $intrinsic($($operand[1]),+)] }
    };
}

// SAFETY of every block below: `self` proves that the CPU has the instructions; pointers are the
// caller's promise where the function is unsafe.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, stated above")]
impl Simd for Avx2 {
    type F32 = Pair;

    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 1;
    const GEMV_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> Pair {
        let half = unsafe { _mm256_set1_ps(value) };
        [half, half]
    }

    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        lanewise!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        lanewise!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        lanewise!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        lanewise!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        lanewise!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn bf16_high(self, words: Pair) -> Pair {
        lanewise!(high_halves, words)
    }

    #[inline(always)]
    fn join_bf16(self, high: Pair, low: Pair) -> Pair {
        let words = |high, low| unsafe {
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(low));
            _mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(high), low))
        };
        [words(high[0], low[0]), words(high[1], low[1])]
    }

    #[inline(always)]
    fn bf16_low(self, words: Pair) -> Pair {
        lanewise!(low_halves, words)
    }

    #[inline(always)]
    fn bf16_pairs(self, first: Pair, second: Pair) -> Pair {
        unsafe { [words_of_bf16(first), words_of_bf16(second)] }
    }

    #[inline(always)]
    fn bf16_words(self, high: Pair, low: Pair) -> Pair {
        unsafe { [rounded_word(high[0], low[0]), rounded_word(high[1], low[1])] }
    }

    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        lanewise!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        lanewise!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn select_lt(self, a: Pair, b: Pair, then: Pair, otherwise: Pair) -> Pair {
        let less: Pair = unsafe {
            [_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])]
        };
        lanewise!(_mm256_blendv_ps, otherwise, then, less)
    }

    #[inline(always)]
    fn round(self, a: Pair) -> Pair {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }

    #[inline(always)]
    fn pow2(self, n: Pair) -> Pair {
        unsafe { [pow2(n[0]), pow2(n[1])] }
    }

    #[inline(always)]
    fn reduce_max(self, a: Pair) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(a[0], a[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn reduce_add(self, a: Pair) -> f32 {
        unsafe { sum_of_eight(_mm256_add_ps(a[0], a[1])) }
    }

    #[inline(always)]
    fn keep(self, a: Pair, from: usize, to: usize, fill: Pair) -> Pair {
        unsafe {
            let (from, to) =
                (_mm256_set1_epi32(from.min(16) as i32), _mm256_set1_epi32(to.min(16) as i32));
            let first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let blend = |lane: __m256i, a, fill| {
                let inside = _mm256_andnot_si256(
                    _mm256_cmpgt_epi32(from, lane),
                    _mm256_cmpgt_epi32(to, lane),
                );
                _mm256_blendv_ps(fill, a, _mm256_castsi256_ps(inside))
            };
            let second = _mm256_add_epi32(first, _mm256_set1_epi32(8));
            [blend(first, a[0], fill[0]), blend(second, a[1], fill[1])]
        }
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Pair {
        unsafe { [_mm256_loadu_ps(source), _mm256_loadu_ps(source.add(8))] }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, value: Pair) {
        unsafe {
            _mm256_storeu_ps(target, value[0]);
            _mm256_storeu_ps(target.add(8), value[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_half(self, source: *const f32) -> Pair {
        unsafe { [_mm256_loadu_ps(source), _mm256_setzero_ps()] }
    }

    #[inline(always)]
    unsafe fn store_half(self, target: *mut f32, value: Pair) {
        unsafe { _mm256_storeu_ps(target, value[0]) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, source: *const u8) -> Pair {
        unsafe {
            let source = source.cast::<__m128i>();
            [
                _mm256_cvtph_ps(_mm_loadu_si128(source)),
                _mm256_cvtph_ps(_mm_loadu_si128(source.add(1))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_u8(self, source: *const u8) -> Pair {
        unsafe { [_mm256_cvtepi32_ps(bytes(source)), _mm256_cvtepi32_ps(bytes(source.add(8)))] }
    }

    #[inline(always)]
    unsafe fn load_i8(self, source: *const u8) -> Pair {
        unsafe {
            let first = _mm256_cvtepi8_epi32(_mm_loadl_epi64(source.cast()));
            let second = _mm256_cvtepi8_epi32(_mm_loadl_epi64(source.add(8).cast()));
            [_mm256_cvtepi32_ps(first), _mm256_cvtepi32_ps(second)]
        }
    }

    #[inline(always)]
    unsafe fn load_u4<const SHIFT: u32>(self, source: *const u8) -> Pair {
        unsafe {
            let (first, second) = (nibbles::<SHIFT>(source), nibbles::<SHIFT>(source.add(8)));
            [_mm256_cvtepi32_ps(first), _mm256_cvtepi32_ps(second)]
        }
    }

    #[inline(always)]
    unsafe fn load_planes<const BITS: usize>(
        self,
        pair: *const u8,
        step: usize,
        half: usize,
    ) -> Pair {
        unsafe { [quants::<BITS>(pair, step, half, 0), quants::<BITS>(pair, step, half, 1)] }
    }

    #[inline(always)]
    unsafe fn load_e4m3_part(self, source: *const u8) -> Pair {
        unsafe { [e4m3_part(source), e4m3_part(source.add(8))] }
    }

    #[inline(always)]
    unsafe fn lookup_u4<const SHIFT: u32>(self, table: Pair, source: *const u8) -> Pair {
        unsafe { [lookup::<SHIFT>(table, source), lookup::<SHIFT>(table, source.add(8))] }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn run<O: WithSimd>(self, op: O) -> O::Output {
        unsafe { run_avx2(self, op) }
    }
}
