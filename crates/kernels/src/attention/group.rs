//! A few rows of queries against one tile of the cache, in registers.

use std::ops::Range;
use std::sync::LazyLock;

use float8::F8E4M3;

use super::PagedAttention;
use super::paged::Partial;
use crate::KvCacheConfig;
use crate::simd::{LANES, Simd, math};

/// Positions of one tile.
pub(super) const TILE: usize = 64;

/// Vectors of one tile.
const VECTORS: usize = TILE / LANES;

/// Most rows of one group.
const MOST_ROWS: usize = 8;

/// Keys and values of up to [`TILE`] positions of one key-value head.
pub(super) struct KvTile<'a> {
    first_position: usize,
    /// From the keys of each sixteen positions on: `[head_dim]` lines, `line` apart. Vectors beyond the last position
    /// repeat the first.
    keys: [&'a [f32]; VECTORS],
    /// From the values of each sixteen positions on: `[16, head_dim]`.
    values: [&'a [f32]; VECTORS],
    head_dim: usize,
    line: usize,
}

/// Where the keys and values of a tile lie. Sixteen positions always lie in one block, because blocks hold a multiple
/// of sixteen.
pub(super) struct TilePlace<'a> {
    pub(super) config: &'a KvCacheConfig,
    pub(super) block_table: &'a [u32],
    pub(super) kv_head: usize,
    /// From a multiple of [`TILE`] on, to the end of the sequence.
    pub(super) positions: Range<usize>,
}

impl TilePlace<'_> {
    /// Where the head begins in the block of a vector of positions, and the first of them in that block.
    fn vector(&self, vector: usize) -> (usize, usize) {
        let KvCacheConfig { block_size, head_dim, num_kv_heads, .. } = *self.config;
        let position = self.positions.start + vector * LANES;
        let position = if position < self.positions.end { position } else { self.positions.start };
        let block = self.block_table[position / block_size] as usize;
        ((block * num_kv_heads + self.kv_head) * block_size * head_dim, position % block_size)
    }
}

impl<'a> KvTile<'a> {
    /// A tile as it lies in the cache.
    pub(super) fn new(place: &TilePlace<'_>, keys: &'a [f32], values: &'a [f32]) -> Self {
        let KvCacheConfig { block_size, head_dim, .. } = *place.config;
        let keys = std::array::from_fn(|vector| {
            let (head, offset) = place.vector(vector);
            let keys = &keys[head + offset..];
            assert!(keys.len() >= (head_dim - 1) * block_size + LANES, "the keys lie in the cache");
            keys
        });
        let values = std::array::from_fn(|vector| {
            let (head, offset) = place.vector(vector);
            let values = &values[head + offset * head_dim..];
            assert!(values.len() >= LANES * head_dim, "the values lie in the cache");
            values
        });
        Self { first_position: place.positions.start, keys, values, head_dim, line: block_size }
    }

    /// A tile of a cache in FP8, widened to f32, which is exact, into `room`.
    pub(super) fn widen(
        place: &TilePlace<'_>,
        keys: &[F8E4M3],
        values: &[F8E4M3],
        room: &'a mut Vec<f32>,
    ) -> Self {
        let KvCacheConfig { block_size, head_dim, .. } = *place.config;
        let len = LANES * head_dim;
        room.clear();
        for vector in 0..VECTORS {
            let (head, offset) = place.vector(vector);
            let lines = keys[head..][..head_dim * block_size].chunks_exact(block_size);
            room.extend(lines.flat_map(|line| &line[offset..offset + LANES]).map(widened));
        }
        for vector in 0..VECTORS {
            let (head, offset) = place.vector(vector);
            room.extend(values[head + offset * head_dim..][..len].iter().map(widened));
        }
        let (keys, values) = room.split_at(VECTORS * len);
        Self {
            first_position: place.positions.start,
            keys: std::array::from_fn(|vector| &keys[vector * len..]),
            values: std::array::from_fn(|vector| &values[vector * len..]),
            head_dim,
            line: LANES,
        }
    }
}

/// The number that a code is.
fn widened(code: &F8E4M3) -> f32 {
    static NUMBERS: LazyLock<[f32; 256]> =
        LazyLock::new(|| std::array::from_fn(|code| F8E4M3::from_bits(code as u8).to_f32()));
    NUMBERS[usize::from(code.to_bits())]
}

/// Up to [`MOST_ROWS`] rows in increasing order of position, and their state over the tiles so far.
pub(super) struct Group {
    rows: usize,
    /// The positions that each row sees.
    visible: [Range<usize>; MOST_ROWS],
    /// Queries `[head_dim][rows]`.
    q: Vec<f32>,
    max: [f32; MOST_ROWS],
    /// Sixteen partial sums of each row.
    sum: [[f32; LANES]; MOST_ROWS],
    /// `[rows][head_dim]`.
    output: Vec<f32>,
}

/// One tile's scores, then weights: `[rows][TILE]`.
type Scores = [[f32; TILE]; MOST_ROWS];

impl Group {
    /// How many rows of accumulators the registers hold.
    pub(super) fn most_rows<S: Simd>() -> usize {
        MOST_ROWS.min(S::TILE_ROWS)
    }

    /// A group of rows, each a position and a query.
    pub(super) fn new<'q>(
        rows: impl ExactSizeIterator<Item = (usize, &'q [f32])>,
        params: &PagedAttention,
    ) -> Self {
        let count = rows.len();
        let mut group = Self {
            rows: count,
            visible: std::array::from_fn(|_| 0..0),
            q: Vec::new(),
            max: [f32::NEG_INFINITY; MOST_ROWS],
            sum: [[0.0; LANES]; MOST_ROWS],
            output: Vec::new(),
        };
        for (row, (position, q)) in rows.enumerate() {
            group.visible[row] = params.visible(position);
            group.q.resize(count * q.len(), 0.0);
            for (dim, value) in q.iter().enumerate() {
                group.q[dim * count + row] = *value;
            }
        }
        group.output = vec![0.0; group.q.len()];
        group
    }

    /// Appends the rows' results.
    pub(super) fn append_to(&self, partial: &mut Partial) {
        partial.max.extend(&self.max[..self.rows]);
        partial.sum.extend(self.sum[..self.rows].iter().map(|lanes| tree_sum(*lanes)));
        partial.output.extend(&self.output);
    }

    /// Takes a tile into account.
    #[inline(always)]
    pub(super) fn attend<S: Simd>(&mut self, s: S, tile: &KvTile<'_>, params: &PagedAttention) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    $($rows => self.attend_rows::<S, $rows>(s, tile, params),)*
                    rows => unreachable!("a group of {rows} rows"),
                }
            };
        }
        if const { S::TILE_ROWS >= MOST_ROWS } {
            by_rows!(1 2 3 4 5 6 7 8);
        } else if const { S::TILE_ROWS == 6 } {
            by_rows!(1 2 3 4 5 6);
        } else {
            by_rows!(1 2 3 4);
        }
    }

    #[inline(always)]
    fn attend_rows<S: Simd, const ROWS: usize>(
        &mut self,
        s: S,
        tile: &KvTile<'_>,
        params: &PagedAttention,
    ) {
        // Rows are in order of position: the first sees the earliest position, the last the latest.
        let in_tile = |position: usize| position.saturating_sub(tile.first_position).min(TILE);
        let visible = in_tile(self.visible[0].start)..in_tile(self.visible[ROWS - 1].end);
        if visible.is_empty() {
            return;
        }
        let mut scores: Scores = [[0.0; TILE]; MOST_ROWS];
        let vectors = visible.end.div_ceil(LANES);
        if const { S::TILE_VECTORS == 2 } {
            for first in (0..vectors).step_by(2) {
                self.scores::<S, ROWS, 2>(s, tile, first, &mut scores);
            }
        } else {
            for first in 0..vectors {
                self.scores::<S, ROWS, 1>(s, tile, first, &mut scores);
            }
        }
        let mut factors = [1.0; ROWS];
        for (row, factor) in factors.iter_mut().enumerate() {
            let visible = in_tile(self.visible[row].start)..in_tile(self.visible[row].end);
            *factor = self.weights(s, row, &mut scores[row], vectors, visible, params);
        }
        self.accumulate_all(s, tile, visible, &scores, &factors);
    }

    /// Dot products of all rows with the vectors `first..first + VECS` of keys.
    #[inline(always)]
    fn scores<S: Simd, const ROWS: usize, const VECS: usize>(
        &self,
        s: S,
        tile: &KvTile<'_>,
        first: usize,
        scores: &mut Scores,
    ) {
        let q = self.q.as_ptr();
        assert!(self.q.len() == tile.head_dim * ROWS && first + VECS <= VECTORS, "shapes agree");
        let mut sums = [[s.splat(0.0); VECS]; ROWS];
        for dim in 0..tile.head_dim {
            let mut keys = [s.splat(0.0); VECS];
            for (v, key) in keys.iter_mut().enumerate() {
                // SAFETY: `KvTile::new` checked that `head_dim` lines lie in each slice.
                *key = unsafe { s.load(tile.keys[first + v].as_ptr().add(dim * tile.line)) };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `q` is `[head_dim][ROWS]`, asserted above.
                let q = s.splat(unsafe { *q.add(dim * ROWS + row) });
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = s.fma(q, key, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                let target = &mut scores[row][(first + v) * LANES..][..LANES];
                // SAFETY: the target has sixteen elements.
                unsafe { s.store(target.as_mut_ptr(), *sum) };
            }
        }
    }

    /// Turns one row's dot products into weights `exp(score - max)`, zero where not visible; updates
    /// its maximum and sum, and returns the factor that brings older results to the new maximum.
    #[inline(always)]
    fn weights<S: Simd>(
        &mut self,
        s: S,
        row: usize,
        scores: &mut [f32; TILE],
        vectors: usize,
        visible: Range<usize>,
        params: &PagedAttention,
    ) -> f32 {
        let hidden = s.splat(f32::NEG_INFINITY);
        let mut values = [hidden; VECTORS];
        let mut max = hidden;
        for (v, value) in values.iter_mut().enumerate().take(vectors) {
            // SAFETY: sixteen of the 64 scores.
            let mut score = s.mul(
                unsafe { s.load(scores[v * LANES..][..LANES].as_ptr()) },
                s.splat(params.scale),
            );
            if let Some(cap) = params.softcap {
                score = s.mul(s.splat(cap), math::tanh(s, s.div(score, s.splat(cap))));
            }
            let (from, to) =
                (visible.start.saturating_sub(v * LANES), visible.end.saturating_sub(v * LANES));
            *value = s.keep(score, from, to, hidden);
            max = s.max(max, *value);
        }
        let old = self.max[row];
        let new = old.max(s.reduce_max(max));
        if new == f32::NEG_INFINITY {
            *scores = [0.0; TILE];
            return 1.0;
        }
        let factor = if new == old { s.splat(1.0) } else { math::exp(s, s.splat(old - new)) };
        // SAFETY: a row of partial sums has sixteen elements.
        let mut sum = s.mul(unsafe { s.load(self.sum[row].as_ptr()) }, factor);
        for (v, value) in values.iter().enumerate().take(vectors) {
            let weight = math::exp(s, s.sub(*value, s.splat(new)));
            sum = s.add(sum, weight);
            // SAFETY: sixteen of the 64 scores.
            unsafe { s.store(scores[v * LANES..][..LANES].as_mut_ptr(), weight) };
        }
        let mut factors = [0.0; LANES];
        // SAFETY: both have sixteen elements.
        unsafe {
            s.store(self.sum[row].as_mut_ptr(), sum);
            s.store(factors.as_mut_ptr(), factor);
        }
        self.max[row] = new;
        factors[0]
    }

    /// `output = output * factor + weights x values` over all of `head_dim`.
    #[inline(always)]
    fn accumulate_all<S: Simd, const ROWS: usize>(
        &mut self,
        s: S,
        tile: &KvTile<'_>,
        visible: Range<usize>,
        weights: &Scores,
        factors: &[f32; ROWS],
    ) {
        let mut dim = 0;
        if const { S::TILE_VECTORS == 2 } {
            while dim + 2 * LANES <= tile.head_dim {
                self.accumulate::<S, ROWS, 2, false>(
                    s,
                    tile,
                    dim,
                    visible.clone(),
                    weights,
                    factors,
                );
                dim += 2 * LANES;
            }
        }
        while dim + LANES <= tile.head_dim {
            self.accumulate::<S, ROWS, 1, false>(s, tile, dim, visible.clone(), weights, factors);
            dim += LANES;
        }
        if dim < tile.head_dim {
            self.accumulate::<S, ROWS, 1, true>(s, tile, dim, visible, weights, factors);
        }
    }

    /// The part of [`Group::accumulate_all`] for the dimensions `dim..dim + 16 * VECS`, or
    /// `dim..dim + 8` when `HALF`.
    #[inline(always)]
    fn accumulate<S: Simd, const ROWS: usize, const VECS: usize, const HALF: bool>(
        &mut self,
        s: S,
        tile: &KvTile<'_>,
        dim: usize,
        visible: Range<usize>,
        weights: &Scores,
        factors: &[f32; ROWS],
    ) {
        let width = if HALF { LANES / 2 } else { VECS * LANES };
        assert!(
            dim + width <= tile.head_dim && self.output.len() == ROWS * tile.head_dim,
            "shapes agree"
        );
        // SAFETY: the caller of `load` has `width` elements of each vector behind the pointer.
        let load = |at: *const f32| unsafe { if HALF { s.load_half(at) } else { s.load(at) } };
        let output = self.output.as_mut_ptr().wrapping_add(dim);
        let mut sums = [[s.splat(0.0); VECS]; ROWS];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                let old = load(output.wrapping_add(row * tile.head_dim + v * LANES));
                *sum = s.mul(old, s.splat(factors[row]));
            }
        }
        for run in visible.start / LANES..visible.end.div_ceil(LANES) {
            let positions = visible.start.max(run * LANES)..visible.end.min((run + 1) * LANES);
            for position in positions {
                let at = tile.values[run]
                    .as_ptr()
                    .wrapping_add((position % LANES) * tile.head_dim + dim);
                let mut values = [s.splat(0.0); VECS];
                for (v, value) in values.iter_mut().enumerate() {
                    *value = load(at.wrapping_add(v * LANES));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let weight = s.splat(weights[row][position]);
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = s.fma(weight, value, *sum);
                    }
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                let at = output.wrapping_add(row * tile.head_dim + v * LANES);
                // SAFETY: `width` elements from `dim` on lie in the row, asserted above.
                unsafe { if HALF { s.store_half(at, *sum) } else { s.store(at, *sum) } }
            }
        }
    }
}

/// The sum of the lanes in a fixed order: halves, quarters and so on.
fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}
