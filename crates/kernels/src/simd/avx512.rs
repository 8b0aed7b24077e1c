//! Sixteen lanes as one AVX-512 register.

use std::arch::x86_64::*;

use super::avx2::sum_of_eight;
use super::planes::Spread;
use super::tiles::TileProduct;
use super::{Simd, WithSimd, amx};
use crate::weight::planes::{plane_bytes, widths};

/// The proof that this CPU has AVX-512 F, BW, DQ and VL. With `BF16` it also has dot products of bf16, and with
/// `TILES` AMX with bf16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512<const BF16: bool, const TILES: bool>(());

impl<const BF16: bool, const TILES: bool> Avx512<BF16, TILES> {
    pub(super) fn detect() -> Option<Self> {
        let dot = !BF16 || crate::cpu_features::has_avx512_bf16();
        let tiles = !TILES || amx::is_usable();
        (dot && tiles && crate::cpu_features::has_avx512()).then_some(Self(()))
    }

    pub(super) fn without_bf16(self) -> Avx512<false, false> {
        Avx512(())
    }

    pub(super) fn without_tiles(self) -> Avx512<BF16, false> {
        Avx512(())
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_avx512<O: WithSimd>(s: impl Simd, op: O) -> O::Output {
    op.with(s)
}

#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_avx512_bf16<O: WithSimd>(s: impl Simd, op: O) -> O::Output {
    op.with(s)
}

/// The four bits from `SHIFT` on of sixteen bytes.
///
/// # Safety
/// The CPU has AVX-512 F, and `source` points to sixteen readable bytes.
#[inline(always)]
unsafe fn nibbles<const SHIFT: u32>(source: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()));
        _mm512_and_si512(_mm512_srli_epi32::<SHIFT>(bytes), _mm512_set1_epi32(15))
    }
}

/// The bits of plane `PLANE` of quantized weights of `BITS` bits in 32 lanes of 16 bits. A lane has the bits of a
/// panel's first half at their final position and those of the second half four bits further up. Its other bits
/// belong to other lanes.
///
/// # Safety
/// The CPU has AVX-512 F and BW, and `pair` points to readable planes.
#[inline(always)]
unsafe fn plane<const BITS: usize, const PLANE: usize>(pair: *const u8) -> __m512i {
    let width = const { widths(BITS)[PLANE] };
    let before = const { if PLANE == 0 { 0 } else { plane_bytes(widths(BITS)[0]) } };
    let source = pair.wrapping_add(before);
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = match width {
            4 => return _mm512_cvtepu8_epi16(_mm256_loadu_si256(source.cast())),
            2 => _mm512_broadcast_i32x4(_mm_loadu_si128(source.cast())),
            _ => _mm512_set1_epi64(source.cast::<i64>().read_unaligned()),
        };
        let spread = const { &Spread::of(BITS, PLANE) };
        let of_lanes = _mm512_load_si512(spread.bytes.as_ptr().cast());
        let shifts = _mm512_load_si512(spread.shifts.as_ptr().cast());
        _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, of_lanes), shifts)
    }
}

/// Quantized weights of `BITS` bits of half `half` of a panel, in 32 lanes of 16 bits. The upper bits of a lane
/// belong to other lanes.
///
/// # Safety
/// The contract of [`plane`].
#[inline(always)]
unsafe fn lanes<const BITS: usize>(pair: *const u8, half: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = (plane::<BITS, 0>(pair), plane::<BITS, 1>(pair));
        let is_low = _mm512_set1_epi16(const { (1 << widths(BITS)[0]) - 1 } << (4 * half));
        // The bits of `low` where `is_low` has ones, and those of `high` elsewhere.
        let quants = _mm512_ternarylogic_epi32::<0xca>(is_low, low, high);
        if half == 0 { quants } else { _mm512_srli_epi16::<4>(quants) }
    }
}

/// The integers 0 to 63 as bf16. A permutation looks quantized weights up here, which gives pairs of bf16 without any
/// conversion.
static SMALL_INTEGERS: SmallIntegers = {
    let mut numbers = SmallIntegers([[0; 32]; 2]);
    let mut quant = 0;
    while quant < 64 {
        // An integer below 256 has at most eight significant bits, so bf16 has it exactly.
        numbers.0[quant / 32][quant % 32] = ((quant as f32).to_bits() >> 16) as u16;
        quant += 1;
    }
    numbers
};

#[repr(align(64))]
struct SmallIntegers([[u16; 32]; 2]);

/// The integers 0 to 31 as bf16, and 32 to 63.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn small_integers() -> [__m512i; 2] {
    let [low, high] = &SMALL_INTEGERS.0;
    // SAFETY: both have 64 bytes.
    unsafe { [_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast())] }
}

/// Places of the values of words: one of the first sixteen, and then one of the others.
const SIDE_BY_SIDE: [u16; 32] = {
    let mut places = [0; 32];
    let mut word = 0;
    while word < 16 {
        places[2 * word as usize] = word;
        places[2 * word as usize + 1] = 16 + word;
        word += 1;
    }
    places
};

/// The bits of sixteen values rounded to bf16, ties to even, each in the low half of a word.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn rounded_bf16(numbers: __m512) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_castps_si512(numbers);
        let last = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff));
        // A NaN is not rounded, which might carry into its sign. It gets the quiet bit, and so stays a NaN.
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
        let nearest = _mm512_mask_mov_epi32(half, nan, _mm512_setzero_si512());
        let quiet =
            _mm512_mask_mov_epi32(_mm512_setzero_si512(), nan, _mm512_set1_epi32(0x40_0000));
        let bits = _mm512_or_si512(_mm512_add_epi32(bits, nearest), quiet);
        _mm512_srli_epi32::<16>(bits)
    }
}

/// The words of a register as pairs of bf16.
#[inline(always)]
fn bf16s(words: __m512) -> __m512bh {
    // SAFETY: both are 64 bytes, and every value of these bytes is valid.
    unsafe { std::mem::transmute(words) }
}

// SAFETY of every block below: `self` proves that the CPU has the instructions; pointers are the
// caller's promise where the function is unsafe.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, stated above")]
impl<const BF16: bool, const TILES: bool> Simd for Avx512<BF16, TILES> {
    type F32 = __m512;

    const TILE_ROWS: usize = 14;
    const TILE_VECTORS: usize = 2;
    const GEMV_ROWS: usize = 8;
    const BF16_DOT: bool = BF16;
    const BF16_TILES: bool = TILES;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn bf16_high(self, words: __m512) -> __m512 {
        unsafe {
            let high = _mm512_and_si512(_mm512_castps_si512(words), _mm512_set1_epi32(-0x1_0000));
            _mm512_castsi512_ps(high)
        }
    }

    #[inline(always)]
    fn join_bf16(self, high: __m512, low: __m512) -> __m512 {
        unsafe {
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(high), low))
        }
    }

    #[inline(always)]
    fn bf16_low(self, words: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(words))) }
    }

    #[inline(always)]
    fn bf16_pairs(self, first: __m512, second: __m512) -> __m512 {
        if const { BF16 } {
            // The instruction puts its second operand into the lower half.
            unsafe { std::mem::transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(second, first)) }
        } else {
            unsafe {
                let words = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(rounded_bf16(first)));
                let second = _mm512_cvtepi32_epi16(rounded_bf16(second));
                _mm512_castsi512_ps(_mm512_inserti64x4::<1>(words, second))
            }
        }
    }

    #[inline(always)]
    fn bf16_words(self, high: __m512, low: __m512) -> __m512 {
        if const { BF16 } {
            unsafe {
                let halves =
                    std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                let places = _mm512_loadu_si512(SIDE_BY_SIDE.as_ptr().cast());
                _mm512_castsi512_ps(_mm512_permutexvar_epi16(places, halves))
            }
        } else {
            unsafe {
                let high = _mm512_slli_epi32::<16>(rounded_bf16(high));
                _mm512_castsi512_ps(_mm512_or_si512(high, rounded_bf16(low)))
            }
        }
    }

    #[inline(always)]
    fn dot_bf16(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        if const { BF16 } {
            unsafe { _mm512_dpbf16_ps(c, bf16s(a), bf16s(b)) }
        } else {
            let sum = self.fma(self.bf16_high(a), self.bf16_high(b), c);
            self.fma(self.bf16_low(a), self.bf16_low(b), sum)
        }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, then: __m512, otherwise: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), otherwise, then) }
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        unsafe {
            let (low, high) = (_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            sum_of_eight(_mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn keep(self, a: __m512, from: usize, to: usize, fill: __m512) -> __m512 {
        // A shift by sixteen needs more than 16 bits.
        let below = |lane: usize| ((1u32 << lane.min(16)) - 1) as u16;
        unsafe { _mm512_mask_blend_ps(below(to) & !below(from), fill, a) }
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(source) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, value: __m512) {
        unsafe { _mm512_storeu_ps(target, value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, source: *const f32) -> __m512 {
        unsafe { _mm512_zextps256_ps512(_mm256_loadu_ps(source)) }
    }

    #[inline(always)]
    unsafe fn store_half(self, target: *mut f32, value: __m512) {
        unsafe { _mm256_storeu_ps(target, _mm512_castps512_ps256(value)) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, source: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(source.cast())) }
    }

    #[inline(always)]
    unsafe fn load_u8(self, source: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, source: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_u4<const SHIFT: u32>(self, source: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(nibbles::<SHIFT>(source)) }
    }

    #[inline(always)]
    unsafe fn load_u4_pairs(self, source: *const u8) -> __m512 {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()));
            let (high, low) = (_mm512_slli_epi32::<16>(bytes), _mm512_srli_epi32::<4>(bytes));
            let quants = _mm512_and_si512(_mm512_or_si512(high, low), _mm512_set1_epi32(0xf_000f));
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(quants, small_integers()[0]))
        }
    }

    #[inline(always)]
    unsafe fn load_planes<const BITS: usize>(
        self,
        pair: *const u8,
        step: usize,
        half: usize,
    ) -> __m512 {
        unsafe {
            let lanes = lanes::<BITS>(pair, half);
            let quants = if step == 0 { _mm512_srli_epi32::<16>(lanes) } else { lanes };
            let most = _mm512_set1_epi32((1 << BITS) - 1);
            _mm512_cvtepi32_ps(_mm512_and_si512(quants, most))
        }
    }

    #[inline(always)]
    unsafe fn load_planes_pairs<const BITS: usize>(self, pair: *const u8, half: usize) -> __m512 {
        unsafe {
            let lanes = lanes::<BITS>(pair, half);
            let [low, high] = small_integers();
            // A permutation of one register takes five bits of each index, of two registers six, and ignores the
            // others.
            let words = match BITS {
                6 => _mm512_permutex2var_epi16(low, lanes, high),
                5 => _mm512_permutexvar_epi16(lanes, low),
                _ => {
                    let most = _mm512_set1_epi16((1 << BITS) - 1);
                    _mm512_permutexvar_epi16(_mm512_and_si512(lanes, most), low)
                }
            };
            _mm512_castsi512_ps(words)
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3_part(self, source: *const u8) -> __m512 {
        unsafe {
            let quant = _mm256_cvtepu8_epi16(_mm_loadu_si128(source.cast()));
            let sign = _mm256_and_si256(_mm256_slli_epi16::<8>(quant), _mm256_set1_epi16(i16::MIN));
            let rest = _mm256_and_si256(_mm256_slli_epi16::<7>(quant), _mm256_set1_epi16(0x3f80));
            _mm512_cvtph_ps(_mm256_or_si256(sign, rest))
        }
    }

    #[inline(always)]
    unsafe fn lookup_u4<const SHIFT: u32>(self, table: __m512, source: *const u8) -> __m512 {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()));
            // A permutation takes the lowest four bits of each index and ignores the others.
            _mm512_permutexvar_ps(_mm512_srli_epi32::<SHIFT>(bytes), table)
        }
    }

    #[inline(always)]
    unsafe fn lookup_u4_pairs(self, table: __m512, source: *const u8) -> __m512 {
        unsafe {
            // The upper halves of the words are what bf16 has: every second of 32 lanes.
            let table = _mm512_srli_epi32::<16>(_mm512_castps_si512(table));
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()));
            // An index counts two lanes of 16 bits, of which the first has the value. So each index is doubled
            // while it is shifted.
            let (high, low) = (_mm512_slli_epi32::<17>(bytes), _mm512_srli_epi32::<3>(bytes));
            let lanes = _mm512_and_si512(_mm512_or_si512(high, low), _mm512_set1_epi32(0x1e_001e));
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(lanes, table))
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn begin_tiles(self) {
        if const { TILES } {
            unsafe { amx::configure() }
        }
    }

    #[inline(always)]
    fn end_tiles(self) {
        if const { TILES } {
            unsafe { amx::release() }
        }
    }

    #[inline(always)]
    unsafe fn tile_product(self, product: &TileProduct) {
        if const { TILES } {
            unsafe { amx::product(product) }
        } else {
            unreachable!("{product:?} without tiles")
        }
    }

    #[inline(always)]
    fn run<O: WithSimd>(self, op: O) -> O::Output {
        if const { BF16 } {
            unsafe { run_avx512_bf16(self, op) }
        } else {
            unsafe { run_avx512(self, op) }
        }
    }
}
