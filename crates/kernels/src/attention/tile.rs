//! A tile: some positions of the cache as attention reads them, in words of one value each or of two bf16.

use std::ops::Range;
use std::sync::LazyLock;

use float8::F8E4M3;
use half::bf16;

use crate::KvCacheConfig;
use crate::simd::{LANES, Simd};

/// Positions of one tile.
pub(super) const TILE: usize = 64;

/// Vectors of one tile.
pub(super) const VECTORS: usize = TILE / LANES;

/// The content of 32 bits of a tile, and its product.
pub(super) trait Cell: Copy + Send + Sync {
    /// Number of dimensions of a key, or of positions of one dimension of the values, in a cell.
    const STEPS: usize;

    /// A cell of `STEPS` values as a word for [`Self::add`], the first value in the low half.
    fn word(numbers: &[f32]) -> f32;

    /// `sum` plus the products of the values of two words, one after the other.
    fn add<S: Simd>(s: S, a: S::F32, b: S::F32, sum: S::F32) -> S::F32;

    /// Stores the softmax weights of 32 positions as words, and adds them to `sum`, whose lanes may be in any order.
    ///
    /// # Safety
    /// `32 / STEPS` f32 can be written at `words`.
    unsafe fn weigh<S: Simd>(s: S, weights: [S::F32; 2], words: *mut f32, sum: S::F32) -> S::F32;

    /// The word with every value but that of its first step set to zero.
    fn first_step<S: Simd>(s: S, word: S::F32) -> S::F32;

    /// The same for the word that it is multiplied with.
    fn first_step_of(word: f32) -> f32;
}

impl Cell for f32 {
    const STEPS: usize = 1;

    #[inline(always)]
    fn word(numbers: &[f32]) -> f32 {
        numbers[0]
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, a: S::F32, b: S::F32, sum: S::F32) -> S::F32 {
        s.fma(a, b, sum)
    }

    #[inline(always)]
    unsafe fn weigh<S: Simd>(s: S, weights: [S::F32; 2], words: *mut f32, sum: S::F32) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe {
            s.store(words, weights[0]);
            s.store(words.add(LANES), weights[1]);
        }
        s.add(s.add(sum, weights[0]), weights[1])
    }

    #[inline(always)]
    fn first_step<S: Simd>(_: S, word: S::F32) -> S::F32 {
        word
    }

    #[inline(always)]
    fn first_step_of(word: f32) -> f32 {
        word
    }
}

/// Pairs of bf16, the second one in the high half.
impl Cell for [bf16; 2] {
    const STEPS: usize = 2;

    #[inline(always)]
    fn word(numbers: &[f32]) -> f32 {
        let bits = |number: f32| u32::from(bf16::from_f32(number).to_bits());
        f32::from_bits(bits(numbers[1]) << 16 | bits(numbers[0]))
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, a: S::F32, b: S::F32, sum: S::F32) -> S::F32 {
        s.dot_bf16(a, b, sum)
    }

    /// The sum is that of the rounded weights, so that equal values give exactly that value as their weighted mean.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(s: S, weights: [S::F32; 2], words: *mut f32, sum: S::F32) -> S::F32 {
        let pairs = s.bf16_pairs(weights[0], weights[1]);
        // SAFETY: the caller's promise.
        unsafe { s.store(words, pairs) };
        s.dot_bf16(pairs, s.splat(Self::word(&[1.0, 1.0])), sum)
    }

    #[inline(always)]
    fn first_step<S: Simd>(s: S, word: S::F32) -> S::F32 {
        s.bf16_low(word)
    }

    #[inline(always)]
    fn first_step_of(word: f32) -> f32 {
        f32::from_bits(word.to_bits() << 16)
    }
}

/// One layer of the cache.
pub(super) trait Cached: Copy + Send + Sync {
    /// Content of its tiles.
    type Cell: Cell;

    /// The tile at `place`, either borrowed from the cache or widened into `room`.
    fn tile<'a>(&'a self, place: &TilePlace<'_>, room: &'a mut Vec<f32>) -> KvTile<'a, Self::Cell>;
}

/// A cache in f32 or bf16, whose cells are read in place. Keys are `[num_blocks, kv_heads, head_dim / STEPS,
/// block_size]` and values `[num_blocks, kv_heads, block_size / STEPS, value_dim]`.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a, C> {
    pub(super) keys: &'a [C],
    pub(super) values: &'a [C],
}

/// A cache in FP8, in the order of one in f32.
#[derive(Clone, Copy)]
pub(super) struct Fp8<'a> {
    pub(super) keys: &'a [F8E4M3],
    pub(super) values: &'a [F8E4M3],
}

/// Keys and values of up to [`TILE`] positions of one key-value head.
pub(super) struct KvTile<'a, C> {
    pub(super) first_position: usize,
    /// The cache from the keys of each sixteen positions on: `[head_dim / STEPS]` lines, `line` apart. Vectors beyond
    /// the last position repeat the first.
    pub(super) keys: [&'a [C]; VECTORS],
    /// The cache from the values of each sixteen positions on: `[16 / STEPS, value_dim]`.
    pub(super) values: [&'a [C]; VECTORS],
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    pub(super) line: usize,
}

/// Position in the cache of a tile's keys and values. Sixteen positions always lie in one block, because blocks hold
/// a multiple of sixteen.
pub(super) struct TilePlace<'a> {
    pub(super) config: &'a KvCacheConfig,
    pub(super) block_table: &'a [u32],
    pub(super) kv_head: usize,
    /// Range of the positions, from a multiple of [`TILE`] on, at most to the end of the sequence.
    pub(super) positions: Range<usize>,
}

impl TilePlace<'_> {
    /// Index in the cache of a head's first element, in the block of a vector of positions and for heads of `width`
    /// elements; and the first of these positions within the block.
    fn vector(&self, vector: usize, width: usize) -> (usize, usize) {
        let KvCacheConfig { block_size, num_kv_heads, .. } = *self.config;
        let position = self.positions.start + vector * LANES;
        let position = if position < self.positions.end { position } else { self.positions.start };
        let block = self.block_table[position / block_size] as usize;
        ((block * num_kv_heads + self.kv_head) * block_size * width, position % block_size)
    }
}

impl<C: Cell> Cached for Plain<'_, C> {
    type Cell = C;

    fn tile<'a>(&'a self, place: &TilePlace<'_>, _: &'a mut Vec<f32>) -> KvTile<'a, C> {
        let KvCacheConfig { block_size, head_dim, .. } = *place.config;
        let (lines, value_dim) = (head_dim / C::STEPS, place.config.value_dim());
        let keys = std::array::from_fn(|vector| {
            let (head, offset) = place.vector(vector, head_dim);
            let keys = &self.keys[head / C::STEPS + offset..];
            assert!(keys.len() >= (lines - 1) * block_size + LANES, "the keys lie in the cache");
            keys
        });
        let values = std::array::from_fn(|vector| {
            let (head, offset) = place.vector(vector, value_dim);
            let values = &self.values[(head + offset * value_dim) / C::STEPS..];
            assert!(values.len() >= LANES / C::STEPS * value_dim, "the values lie in the cache");
            values
        });
        let first_position = place.positions.start;
        KvTile { first_position, keys, values, head_dim, value_dim, line: block_size }
    }
}

impl Cached for Fp8<'_> {
    type Cell = f32;

    /// Widened to f32, which is exact.
    fn tile<'a>(&'a self, place: &TilePlace<'_>, room: &'a mut Vec<f32>) -> KvTile<'a, f32> {
        let KvCacheConfig { block_size, head_dim, .. } = *place.config;
        let value_dim = place.config.value_dim();
        let (len, value_len) = (LANES * head_dim, LANES * value_dim);
        room.clear();
        for vector in 0..VECTORS {
            let (head, offset) = place.vector(vector, head_dim);
            let lines = self.keys[head..][..head_dim * block_size].chunks_exact(block_size);
            room.extend(lines.flat_map(|line| &line[offset..offset + LANES]).map(widened));
        }
        for vector in 0..VECTORS {
            let (head, offset) = place.vector(vector, value_dim);
            room.extend(self.values[head + offset * value_dim..][..value_len].iter().map(widened));
        }
        let (keys, values) = room.split_at(VECTORS * len);
        KvTile {
            first_position: place.positions.start,
            keys: std::array::from_fn(|vector| &keys[vector * len..]),
            values: std::array::from_fn(|vector| &values[vector * value_len..]),
            head_dim,
            value_dim,
            line: LANES,
        }
    }
}

/// The value of an FP8 element, from a table.
fn widened(quant: &F8E4M3) -> f32 {
    static NUMBERS: LazyLock<[f32; 256]> =
        LazyLock::new(|| std::array::from_fn(|quant| F8E4M3::from_bits(quant as u8).to_f32()));
    NUMBERS[usize::from(quant.to_bits())]
}
