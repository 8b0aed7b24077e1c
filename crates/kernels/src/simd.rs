//! Sixteen f32 lanes on every CPU: the operations of the fast paths, and the choice of the instruction set.
//!
//! A fast path is written once, generic over [`Simd`]. Every implementation has sixteen lanes and fuses the same
//! multiplications and additions. So all of them give the same bits, and only their speed differs. The one exception
//! are products in tiles of a CPU's matrix unit, which are added in an order of their own.
//!
//! Functions called by a fast path must be inlined into the function that has the instruction set. Otherwise they are
//! compiled without it, which made prompts over quantized weights forty times as slow on AVX2. So such functions are
//! `#[inline(always)]`, and arithmetic stays out of closures, which cannot be marked so. `cargo xtask test` looks for
//! intrinsics that are called as functions.

#[cfg(with_avx512)]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(with_avx512)]
mod avx512;
pub(crate) mod math;
#[cfg(target_arch = "x86_64")]
mod planes;
mod portable;
#[cfg(test)]
mod tests;
mod tiles;

#[cfg(target_arch = "x86_64")]
use self::avx2::Avx2;
#[cfg(with_avx512)]
use self::avx512::Avx512;
use self::portable::Portable;
#[cfg(test)]
pub(crate) use self::tiles::tile_sum;
pub(crate) use self::tiles::{TILE_LINE, TILE_ROWS, TileProduct};

/// Lanes of [`Simd::F32`].
pub(crate) const LANES: usize = 16;

/// Sixteen-lane operations. A value of an implementing type is the proof that this CPU has its
/// instructions, which is why the arithmetic is safe to call.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen f32.
    type F32: Copy;

    /// Rows of the largest matmul tile whose accumulators stay in registers: 14, 6 or 4.
    const TILE_ROWS: usize;
    /// Vectors of one row of that tile: 2 is a whole panel, 1 is half of one.
    const TILE_VECTORS: usize;
    /// Most rows of the matrix-vector path, whose accumulators are two vectors per row: 8 or 2.
    const GEMV_ROWS: usize;
    /// Whether [`Self::dot_bf16`] is one instruction. It then flushes values below 2^-126 to zero.
    const BF16_DOT: bool = false;
    /// Whether products of bf16 go through [`Self::tile_product`].
    const BF16_TILES: bool = false;

    fn splat(self, value: f32) -> Self::F32;
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// The bf16 in the high halves of sixteen words of two bf16 each.
    fn bf16_high(self, words: Self::F32) -> Self::F32;
    /// The bf16 in the low halves of sixteen words of two bf16 each.
    fn bf16_low(self, words: Self::F32) -> Self::F32;
    /// Thirty-two neighbouring values rounded to bf16, ties to even, as words of two, the first in the low half.
    /// Smaller values than 2^-126 become zero if [`Self::dot_bf16`] is one instruction.
    fn bf16_pairs(self, first: Self::F32, second: Self::F32) -> Self::F32;
    /// Words of two bf16 each: `high` and `low` rounded as [`Self::bf16_pairs`] rounds.
    fn bf16_words(self, high: Self::F32, low: Self::F32) -> Self::F32;
    /// `c + a.high * b.high`, rounded once, and then `+ a.low * b.low`, rounded once, for words of two bf16 each.
    #[inline(always)]
    fn dot_bf16(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        let sum = self.fma(self.bf16_high(a), self.bf16_high(b), c);
        self.fma(self.bf16_low(a), self.bf16_low(b), sum)
    }
    /// Words of two bf16 each, for values that bf16 represents exactly.
    fn join_bf16(self, high: Self::F32, low: Self::F32) -> Self::F32;
    /// The larger of each pair, and `b` where either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The smaller of each pair, and `b` where either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `then` where `a < b`, `otherwise` elsewhere (also where either is NaN).
    fn select_lt(
        self,
        a: Self::F32,
        b: Self::F32,
        then: Self::F32,
        otherwise: Self::F32,
    ) -> Self::F32;
    /// The nearest integer, ties to even, for magnitudes below 2^22.
    fn round(self, a: Self::F32) -> Self::F32;
    /// `2^n` for integral `n` in -126..=128 (128 gives infinity).
    fn pow2(self, n: Self::F32) -> Self::F32;
    /// The largest lane.
    fn reduce_max(self, a: Self::F32) -> f32;
    /// The sum of all lanes: the second half is added to the first, and then likewise the halves of these sums.
    fn reduce_add(self, a: Self::F32) -> f32;
    /// `a` in the lanes `from..to` (clamped to 0..=16), `fill` in the others.
    fn keep(self, a: Self::F32, from: usize, to: usize, fill: Self::F32) -> Self::F32;

    /// # Safety
    /// `source` points to sixteen readable f32, of any alignment; likewise below.
    unsafe fn load(self, source: *const f32) -> Self::F32;
    /// # Safety
    /// `target` points to sixteen writable f32.
    unsafe fn store(self, target: *mut f32, value: Self::F32);
    /// The first eight lanes, zeros in the others.
    /// # Safety
    /// `source` points to eight readable f32.
    unsafe fn load_half(self, source: *const f32) -> Self::F32;
    /// # Safety
    /// `target` points to eight writable f32.
    unsafe fn store_half(self, target: *mut f32, value: Self::F32);
    /// Widens sixteen f16.
    /// # Safety
    /// `source` points to sixteen readable f16.
    unsafe fn load_f16(self, source: *const u8) -> Self::F32;
    /// Sixteen unsigned bytes as f32.
    /// # Safety
    /// `source` points to sixteen readable bytes.
    unsafe fn load_u8(self, source: *const u8) -> Self::F32;
    /// Sixteen signed bytes as f32.
    /// # Safety
    /// `source` points to sixteen readable bytes.
    unsafe fn load_i8(self, source: *const u8) -> Self::F32;
    /// The four bits from `SHIFT` (0 or 4) on of sixteen bytes, as f32.
    /// # Safety
    /// `source` points to sixteen readable bytes.
    unsafe fn load_u4<const SHIFT: u32>(self, source: *const u8) -> Self::F32;
    /// Sixteen bytes of two unsigned integers of four bits, as words of two bf16, the low bits' in the high half.
    /// # Safety
    /// `source` points to sixteen readable bytes.
    #[inline(always)]
    unsafe fn load_u4_pairs(self, source: *const u8) -> Self::F32 {
        // SAFETY: the caller's promise.
        unsafe { self.join_bf16(self.load_u4::<0>(source), self.load_u4::<4>(source)) }
    }
    /// The quantized weights of `BITS` bits of step `step` (0 or 1) of a pair, as f32. `half` chooses the first (0)
    /// or the second (1) sixteen outputs of a panel.
    /// # Safety
    /// `pair` points to readable [`planes`](crate::weight::planes) of quantized weights of `BITS` bits.
    unsafe fn load_planes<const BITS: usize>(
        self,
        pair: *const u8,
        step: usize,
        half: usize,
    ) -> Self::F32;
    /// The quantized weights of both steps, as words of two bf16, the first step's in the high half.
    /// # Safety
    /// The contract of [`Self::load_planes`].
    #[inline(always)]
    unsafe fn load_planes_pairs<const BITS: usize>(
        self,
        pair: *const u8,
        half: usize,
    ) -> Self::F32 {
        // SAFETY: the caller's promise.
        unsafe {
            let [first, second] =
                [self.load_planes::<BITS>(pair, 0, half), self.load_planes::<BITS>(pair, 1, half)];
            self.join_bf16(first, second)
        }
    }
    /// [`e4m3_part`](crate::weight::e4m3_part) of sixteen bytes.
    /// # Safety
    /// `source` points to sixteen readable bytes.
    unsafe fn load_e4m3_part(self, source: *const u8) -> Self::F32;
    /// The lanes of `table` whose indices are the four bits from `SHIFT` (0 or 4) on of sixteen bytes.
    /// # Safety
    /// `source` points to sixteen readable bytes.
    unsafe fn lookup_u4<const SHIFT: u32>(self, table: Self::F32, source: *const u8) -> Self::F32;
    /// The lanes of `table`, which are bf16, whose indices are both halves of sixteen bytes, in the order of
    /// [`Self::load_u4_pairs`].
    /// # Safety
    /// `source` points to sixteen readable bytes.
    #[inline(always)]
    unsafe fn lookup_u4_pairs(self, table: Self::F32, source: *const u8) -> Self::F32 {
        // SAFETY: the caller's promise.
        unsafe {
            self.join_bf16(self.lookup_u4::<0>(table, source), self.lookup_u4::<4>(table, source))
        }
    }
    /// Prefetches the cache line at `address`, which need not be mapped.
    fn prefetch(self, address: *const u8);
    /// Prepares this thread for [`Self::tile_product`], until [`Self::end_tiles`].
    #[inline(always)]
    fn begin_tiles(self) {}
    /// Releases the tiles of this thread, so that the system no longer saves them at context switches.
    #[inline(always)]
    fn end_tiles(self) {}
    /// Adds a product to a tile of outputs, if [`Self::BF16_TILES`].
    /// # Safety
    /// This thread is between [`Self::begin_tiles`] and [`Self::end_tiles`], and the pointers of `product` are valid.
    #[inline(always)]
    unsafe fn tile_product(self, product: &TileProduct) {
        unreachable!("{product:?} without tiles");
    }
    /// Runs `op` compiled for this instruction set.
    fn run<O: WithSimd>(self, op: O) -> O::Output;
}

/// A piece of work that is compiled once per instruction set.
pub(crate) trait WithSimd {
    /// Result of the work.
    type Output;
    /// The work. Implementations are `#[inline(always)]`, so that they are compiled with the
    /// instructions of `S`.
    fn with<S: Simd>(self, s: S) -> Self::Output;
}

/// The instruction set of a kernel's run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Isa {
    #[cfg(with_avx512)]
    Amx(Avx512<true, true>),
    #[cfg(with_avx512)]
    Avx512Bf16(Avx512<true, false>),
    #[cfg(with_avx512)]
    Avx512(Avx512<false, false>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    Portable(Portable<false>),
    /// The reference for a matrix unit's tiles, for tests.
    #[cfg(test)]
    PortableTiles(Portable<true>),
}

impl Isa {
    /// The best instruction set of this CPU.
    pub(crate) fn detect() -> Self {
        Self::wide().next_back().unwrap_or(Self::Portable(Portable))
    }

    /// Every instruction set of this CPU.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        std::iter::once(Self::Portable(Portable)).chain(Self::wide()).collect()
    }

    /// The instruction sets of this CPU besides the portable one, the best one last.
    fn wide() -> impl DoubleEndedIterator<Item = Self> {
        let wide: &[fn() -> Option<Self>] = &[
            #[cfg(target_arch = "x86_64")]
            || Avx2::detect().map(Self::Avx2),
            #[cfg(with_avx512)]
            || Avx512::<false, false>::detect().map(Self::Avx512),
            #[cfg(with_avx512)]
            || Avx512::<true, false>::detect().map(Self::Avx512Bf16),
            #[cfg(with_avx512)]
            || Avx512::<true, true>::detect().map(Self::Amx),
        ];
        wide.iter().filter_map(|detect| detect())
    }

    /// [`Self::all`], and the reference for a matrix unit's tiles.
    #[cfg(test)]
    pub(crate) fn all_and_tiles() -> Vec<Self> {
        std::iter::once(Self::PortableTiles(Portable)).chain(Self::all()).collect()
    }

    /// Whether it multiplies bf16 in tiles.
    #[cfg(test)]
    pub(crate) fn has_tiles(self) -> bool {
        match self {
            #[cfg(with_avx512)]
            Self::Amx(_) => true,
            Self::PortableTiles(_) => true,
            _ => false,
        }
    }

    /// Runs `op` compiled for this instruction set, without its products of bf16.
    #[inline]
    pub(crate) fn run<O: WithSimd>(self, op: O) -> O::Output {
        // Only products of bf16 are compiled with their instructions. All else would be compiled three times.
        match self {
            #[cfg(with_avx512)]
            Self::Amx(s) => s.without_bf16().run(op),
            #[cfg(with_avx512)]
            Self::Avx512Bf16(s) => s.without_bf16().run(op),
            #[cfg(with_avx512)]
            Self::Avx512(s) => s.run(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(s) => s.run(op),
            Self::Portable(s) => s.run(op),
            #[cfg(test)]
            Self::PortableTiles(_) => Portable::<false>.run(op),
        }
    }

    /// Runs `op` compiled for this instruction set and its dot products of bf16.
    #[inline]
    pub(crate) fn run_with_dot<O: WithSimd>(self, op: O) -> O::Output {
        match self {
            #[cfg(with_avx512)]
            Self::Amx(s) => s.without_tiles().run(op),
            #[cfg(with_avx512)]
            Self::Avx512Bf16(s) => s.run(op),
            _ => self.run(op),
        }
    }

    /// Runs `op` compiled for all of this instruction set.
    #[inline]
    pub(crate) fn run_with_tiles<O: WithSimd>(self, op: O) -> O::Output {
        match self {
            #[cfg(with_avx512)]
            Self::Amx(s) => s.run(op),
            #[cfg(test)]
            Self::PortableTiles(s) => s.run(op),
            _ => self.run_with_dot(op),
        }
    }
}
