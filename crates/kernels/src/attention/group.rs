//! A group of query rows that attends to one tile of the cache, with its accumulators in registers.

use std::marker::PhantomData;
use std::ops::Range;

use super::PagedAttention;
use super::paged::Partial;
use super::tile::{Cell, KvTile, TILE, VECTORS};
use crate::simd::{LANES, Simd, math};

/// Most rows of one group.
const MAX_ROWS: usize = 8;

/// Up to [`MAX_ROWS`] rows, sorted by position, and their state over the tiles so far.
pub(super) struct Group<C> {
    rows: usize,
    /// Range of the positions that each row sees.
    visible: [Range<usize>; MAX_ROWS],
    /// Queries as words, `[head_dim / STEPS][rows]`.
    q: Vec<f32>,
    max: [f32; MAX_ROWS],
    /// Sixteen partial sums for each row.
    sum: [[f32; LANES]; MAX_ROWS],
    /// `[rows][value_dim]`.
    output: Vec<f32>,
    cell: PhantomData<C>,
}

/// Scores, and later softmax weights, of one tile: `[rows][TILE]`. Weights take `TILE / STEPS` words of it.
type Scores = [[f32; TILE]; MAX_ROWS];

impl<C: Cell> Group<C> {
    /// Number of rows whose accumulators fit into the registers.
    pub(super) fn most_rows<S: Simd>() -> usize {
        MAX_ROWS.min(S::TILE_ROWS)
    }

    /// A group of rows, each the range of positions that it sees and a query.
    pub(super) fn new<'q>(
        rows: impl ExactSizeIterator<Item = (Range<usize>, &'q [f32])>,
        value_dim: usize,
    ) -> Self {
        let count = rows.len();
        let mut group = Self {
            rows: count,
            visible: std::array::from_fn(|_| 0..0),
            q: Vec::new(),
            max: [f32::NEG_INFINITY; MAX_ROWS],
            sum: [[0.0; LANES]; MAX_ROWS],
            output: vec![0.0; count * value_dim],
            cell: PhantomData,
        };
        for (row, (visible, q)) in rows.enumerate() {
            group.visible[row] = visible;
            group.q.resize(count * q.len() / C::STEPS, 0.0);
            for (line, numbers) in q.chunks_exact(C::STEPS).enumerate() {
                group.q[line * count + row] = C::word(numbers);
            }
        }
        group
    }

    /// Appends the rows' results.
    pub(super) fn append_to(&self, partial: &mut Partial) {
        partial.max.extend(&self.max[..self.rows]);
        partial.sum.extend(self.sum[..self.rows].iter().map(|lanes| tree_sum(*lanes)));
        partial.output.extend(&self.output);
    }

    /// Attends to one more tile.
    #[inline(always)]
    pub(super) fn attend<S: Simd>(&mut self, s: S, tile: &KvTile<'_, C>, params: &PagedAttention) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    $($rows => self.attend_rows::<S, $rows>(s, tile, params),)*
                    rows => unreachable!("a group of {rows} rows"),
                }
            };
        }
        if const { S::TILE_ROWS >= MAX_ROWS } {
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
        tile: &KvTile<'_, C>,
        params: &PagedAttention,
    ) {
        // Rows are sorted by position, so the first row sees the earliest position and the last row the latest.
        let in_tile = |position: usize| position.saturating_sub(tile.first_position).min(TILE);
        let visible = in_tile(self.visible[0].start)..in_tile(self.visible[ROWS - 1].end);
        if visible.is_empty() {
            return;
        }
        let mut scores: Scores = [[0.0; TILE]; MAX_ROWS];
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
        tile: &KvTile<'_, C>,
        first: usize,
        scores: &mut Scores,
    ) {
        let q = self.q.as_ptr();
        let lines = tile.head_dim / C::STEPS;
        assert!(self.q.len() == lines * ROWS && first + VECS <= VECTORS, "shapes agree");
        let mut sums = [[s.splat(0.0); VECS]; ROWS];
        for line in 0..lines {
            let mut keys = [s.splat(0.0); VECS];
            for (v, key) in keys.iter_mut().enumerate() {
                // SAFETY: whoever made the tile checked that all lines lie in each slice; a cell is 32 bits.
                *key =
                    unsafe { s.load(tile.keys[first + v].as_ptr().add(line * tile.line).cast()) };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `q` is `[lines][ROWS]`, asserted above.
                let q = s.splat(unsafe { *q.add(line * ROWS + row) });
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = C::add(s, q, key, *sum);
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

    /// Replaces one row's dot products by the weights `exp(score - max)`, which are zero for positions that the row
    /// does not see. Updates the row's maximum and sum, and returns the factor that scales older results to the new
    /// maximum.
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
        let words = scores.chunks_exact_mut(2 * LANES / C::STEPS);
        for (words, values) in words.zip(values.as_chunks::<2>().0).take(vectors.div_ceil(2)) {
            let mut weights = *values;
            for weight in &mut weights {
                *weight = math::exp(s, s.sub(*weight, s.splat(new)));
            }
            // SAFETY: the chunk has the words of 32 positions.
            sum = unsafe { C::weigh(s, weights, words.as_mut_ptr(), sum) };
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

    /// `output = output * factor + weights x values` over all of `value_dim`.
    #[inline(always)]
    fn accumulate_all<S: Simd, const ROWS: usize>(
        &mut self,
        s: S,
        tile: &KvTile<'_, C>,
        visible: Range<usize>,
        weights: &Scores,
        factors: &[f32; ROWS],
    ) {
        let mut dim = 0;
        if const { S::TILE_VECTORS == 2 } {
            while dim + 2 * LANES <= tile.value_dim {
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
        while dim + LANES <= tile.value_dim {
            self.accumulate::<S, ROWS, 1, false>(s, tile, dim, visible.clone(), weights, factors);
            dim += LANES;
        }
        if dim < tile.value_dim {
            self.accumulate::<S, ROWS, 1, true>(s, tile, dim, visible, weights, factors);
        }
    }

    /// The same as [`Group::accumulate_all`] for the dimensions `dim..dim + 16 * VECS`, or `dim..dim + 8` with
    /// `HALF`.
    #[inline(always)]
    fn accumulate<S: Simd, const ROWS: usize, const VECS: usize, const HALF: bool>(
        &mut self,
        s: S,
        tile: &KvTile<'_, C>,
        dim: usize,
        visible: Range<usize>,
        weights: &Scores,
        factors: &[f32; ROWS],
    ) {
        let width = if HALF { LANES / 2 } else { VECS * LANES };
        assert!(
            dim + width <= tile.value_dim && self.output.len() == ROWS * tile.value_dim,
            "shapes agree"
        );
        let output = self.output.as_mut_ptr().wrapping_add(dim);
        let mut sums = [[s.splat(0.0); VECS]; ROWS];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                let at = output.wrapping_add(row * tile.value_dim + v * LANES);
                // SAFETY: `width` elements from `dim` on lie in the row, asserted above.
                let old = unsafe { load::<S, HALF>(s, at) };
                *sum = s.mul(old, s.splat(factors[row]));
            }
        }
        let (first, end) = (visible.start / C::STEPS, visible.end / C::STEPS);
        for index in first..end {
            add_cell::<S, C, ROWS, VECS, HALF, false>(s, tile, (index, dim), weights, &mut sums);
        }
        if visible.end > end * C::STEPS {
            add_cell::<S, C, ROWS, VECS, HALF, true>(s, tile, (end, dim), weights, &mut sums);
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                let at = output.wrapping_add(row * tile.value_dim + v * LANES);
                // SAFETY: `width` elements from `dim` on lie in the row, asserted above.
                unsafe { if HALF { s.store_half(at, *sum) } else { s.store(at, *sum) } }
            }
        }
    }
}

/// Adds the weighted values of cell `index`, from dimension `dim` on, to each row's `sums`. In a `CUT` cell only the
/// first step counts, since the memory after the last position may hold anything.
///
/// This is a function and not a closure, because only functions that are always inlined are compiled with the
/// instructions of `S`.
#[inline(always)]
fn add_cell<
    S: Simd,
    C: Cell,
    const ROWS: usize,
    const VECS: usize,
    const HALF: bool,
    const CUT: bool,
>(
    s: S,
    tile: &KvTile<'_, C>,
    (index, dim): (usize, usize),
    weights: &Scores,
    sums: &mut [[S::F32; VECS]; ROWS],
) {
    let run = tile.values[index * C::STEPS / LANES].as_ptr();
    let at = run.wrapping_add(index % (LANES / C::STEPS) * tile.value_dim + dim);
    let mut values = [s.splat(0.0); VECS];
    for (v, value) in values.iter_mut().enumerate() {
        // SAFETY: whoever made the tile checked that all cells lie in each slice; a cell is 32 bits.
        let cells = unsafe { load::<S, HALF>(s, at.wrapping_add(v * LANES).cast()) };
        *value = if CUT { C::first_step(s, cells) } else { cells };
    }
    for (row, sums) in sums.iter_mut().enumerate() {
        let weight = weights[row][index];
        let weight = s.splat(if CUT { C::first_step_of(weight) } else { weight });
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = C::add(s, weight, value, *sum);
        }
    }
}

/// Loads a vector, or half of one.
///
/// # Safety
/// The f32 of the vector, or of half of one, can be read at `at`.
#[inline(always)]
unsafe fn load<S: Simd, const HALF: bool>(s: S, at: *const f32) -> S::F32 {
    // SAFETY: the caller's promise.
    unsafe { if HALF { s.load_half(at) } else { s.load(at) } }
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
