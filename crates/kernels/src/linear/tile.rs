//! The innermost loop of the tiled matmul: a tile of outputs kept in registers over a block of `k`.

use std::marker::PhantomData;
use std::ops::Range;

use super::format::WordKind;
use crate::simd::{LANES, Simd, TILE_LINE, TILE_ROWS, TileProduct, WithSimd};
use crate::weight::PANEL;

/// A tile of `rows x 32` outputs over a block of `k`, as work for an instruction set.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// At most [`Shape::ROWS`].
    pub(super) rows: usize,
    /// Activations `[lines][rows][LINE]`.
    pub(super) x: *const f32,
    /// Weights `[words][32]`.
    pub(super) w: *const f32,
    /// The words that are summed together, counted from the first of both: all of them, or one segment of quantized
    /// weights at a time. For the matrix unit each segment begins a line, and zeros follow in its last line.
    pub(super) segments: &'a [Range<usize>],
    /// Scales and offsets of quantized weights, `[segments][2][32]`.
    pub(super) scales: *const f32,
    /// Sums of the activations for quantized weights, `[segments][x_sums_stride]`, the tile's rows first.
    pub(super) x_sums: *const f32,
    pub(super) x_sums_stride: usize,
    /// Outputs, `y_stride` elements from row to row: 32 for the matrix unit.
    pub(super) y: *mut f32,
    pub(super) y_stride: usize,
    /// Start of the chain of additions.
    pub(super) start: Start,
    /// Memory to prefetch meanwhile: `ahead_step` bytes (at most two cache lines) per word.
    pub(super) ahead: *const u8,
    pub(super) ahead_step: usize,
}

/// Words of a row of activations that lie together: those of a cache line.
pub(super) const LINE: usize = 16;

/// Sizes of a tile for an instruction set and a kind of words.
pub(super) struct Shape<S, W>(PhantomData<(S, W)>);

impl<S: Simd, W: WordKind> Shape<S, W> {
    /// Whether the CPU's matrix unit computes it.
    pub(super) const MATRIX_UNIT: bool = S::BF16_TILES && W::STEPS == 2;
    /// Most rows.
    pub(super) const ROWS: usize = if Self::MATRIX_UNIT {
        2 * TILE_ROWS
    } else if W::SCALED && S::TILE_VECTORS == 2 {
        // The totals stay in registers beside the sums of a segment, so half as many rows fit. Loading and storing
        // the totals for each segment instead took up to 1.4 times as long with 512 rows. Products of bf16 gain
        // nothing from so few rows, and keep all.
        S::TILE_ROWS / 2
    } else {
        S::TILE_ROWS
    };
    /// The number of rows is a multiple of this, padding included.
    pub(super) const ROW_MULTIPLE: usize = if Self::MATRIX_UNIT { TILE_ROWS } else { 1 };
}

/// Start of a chain of additions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// At zero.
    Zero,
    /// At the present values of the outputs.
    Continue,
}

impl Tile<'_> {
    /// Computes the tile.
    ///
    /// # Safety
    /// The pointers cover what their descriptions say, the outputs are this thread's alone, and they
    /// are initialised where the chain continues. The thread has begun with tiles where the matrix unit computes.
    #[inline(always)]
    pub(super) unsafe fn compute<S: Simd, W: WordKind>(self, s: S) {
        // Only vector code must be compiled with the instruction set. The matrix unit's code is assembly.
        if const { !Shape::<S, W>::MATRIX_UNIT } {
            return s.run(Checked::<W>(self, PhantomData));
        }
        const { assert!(LINE == TILE_LINE && PANEL == 2 * LANES) };
        for (i, segment) in self.segments.iter().enumerate() {
            let mut sums = Aligned([0.0; 2 * TILE_ROWS * PANEL]);
            let continues = self.start == Start::Continue || i > 0;
            let product = TileProduct {
                x: self.x.wrapping_add(segment.start * self.rows),
                w: self.w.wrapping_add(segment.start * PANEL),
                lines: segment.len().div_ceil(LINE),
                row_tiles: self.rows / TILE_ROWS,
                y: if W::SCALED { sums.0.as_mut_ptr() } else { self.y },
                continues: !W::SCALED && continues,
                ahead: self.ahead.wrapping_add(segment.start * self.ahead_step),
                ahead_lines: (self.ahead_step * LINE).div_ceil(64),
            };
            // SAFETY: the caller's promise, and `sums` has 32 rows.
            unsafe { s.tile_product(&product) };
            if W::SCALED {
                s.run(AddScaled { tile: &self, segment: i, continues, sums: &sums });
            }
        }
    }
}

/// Sums of a tile of the matrix unit.
#[repr(align(64))]
struct Aligned([f32; 2 * TILE_ROWS * PANEL]);

/// The rest of a segment of quantized weights after the matrix unit's product, as work for an instruction set.
struct AddScaled<'a> {
    tile: &'a Tile<'a>,
    segment: usize,
    continues: bool,
    sums: &'a Aligned,
}

impl WithSimd for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let Self { tile, segment, continues, sums } = self;
        for row in 0..tile.rows {
            for first in [0, LANES] {
                let y = tile.y.wrapping_add(row * tile.y_stride + first);
                // SAFETY: `Tile::compute` was promised good pointers, and the sums are there.
                unsafe {
                    let sum = s.load(sums.0[row * PANEL + first..].as_ptr());
                    let scales = tile.scales.add(segment * 2 * PANEL + first);
                    let total = if continues { s.load(y) } else { s.splat(0.0) };
                    let total = s.fma(sum, s.load(scales), total);
                    let x_sum = s.splat(*tile.x_sums.add(segment * tile.x_sums_stride + row));
                    s.store(y, s.fma(x_sum, s.load(scales.add(PANEL)), total));
                }
            }
        }
    }
}

/// A tile whose pointers are good: only [`Tile::compute`] makes one.
struct Checked<'a, W>(Tile<'a>, PhantomData<W>);

impl<W: WordKind> WithSimd for Checked<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let tile = &self.0;
        macro_rules! by_rows {
            ($vectors:literal, $half:expr, $($rows:literal)*) => {
                match tile.rows {
                    // SAFETY: `Tile::compute` was promised good pointers.
                    $($rows => unsafe { accumulate::<S, W, $rows, $vectors>(s, tile, $half) },)*
                    rows => unreachable!("a tile of {rows} rows"),
                }
            };
        }
        if const { S::TILE_VECTORS == 2 && W::SCALED } {
            by_rows!(2, 0, 1 2 3 4 5 6 7);
        } else if const { S::TILE_VECTORS == 2 } {
            by_rows!(2, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        } else if const { S::TILE_ROWS == 6 } {
            by_rows!(1, 0, 1 2 3 4 5 6);
            // A tile of one vector covers half of a panel, so there are two.
            by_rows!(1, 1, 1 2 3 4 5 6);
        } else {
            by_rows!(1, 0, 1 2 3 4);
            by_rows!(1, 1, 1 2 3 4);
        }
    }
}

/// Sums of a tile of `ROWS` rows and `VECTORS` vectors.
type Sums<F32, const ROWS: usize, const VECTORS: usize> = [[F32; VECTORS]; ROWS];

/// The vectors `first_half..first_half + VECTORS` of a tile of `ROWS` rows.
///
/// # Safety
/// The caller promises what [`Tile::compute`] asks for.
#[inline(always)]
unsafe fn accumulate<S: Simd, W: WordKind, const ROWS: usize, const VECTORS: usize>(
    s: S,
    tile: &Tile<'_>,
    first_half: usize,
) {
    let first_output = first_half * LANES;
    let y = tile.y.wrapping_add(first_output);
    let mut totals: Sums<S::F32, ROWS, VECTORS> = [[s.splat(0.0); VECTORS]; ROWS];
    if tile.start == Start::Continue {
        for (r, totals) in totals.iter_mut().enumerate() {
            for (v, total) in totals.iter_mut().enumerate() {
                // SAFETY: the place is in the tile, and initialised where the chain continues.
                *total = unsafe { s.load(y.add(r * tile.y_stride + v * LANES)) };
            }
        }
    }
    for (i, segment) in tile.segments.iter().enumerate() {
        if !W::SCALED {
            // SAFETY: the caller's promise.
            unsafe {
                add_words::<S, W, ROWS, VECTORS>(s, tile, segment, first_output, &mut totals)
            };
            continue;
        }
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: as above.
        unsafe { add_words::<S, W, ROWS, VECTORS>(s, tile, segment, first_output, &mut sums) };
        let scales = tile.scales.wrapping_add(i * 2 * PANEL + first_output);
        for v in 0..VECTORS {
            // SAFETY: each segment has 32 scales, 32 offsets, and a sum of each row's activations.
            unsafe {
                let scale = s.load(scales.add(v * LANES));
                for r in 0..ROWS {
                    totals[r][v] = s.fma(sums[r][v], scale, totals[r][v]);
                }
                let min = s.load(scales.add(PANEL + v * LANES));
                for (r, totals) in totals.iter_mut().enumerate() {
                    let x_sum = s.splat(*tile.x_sums.add(i * tile.x_sums_stride + r));
                    totals[v] = s.fma(x_sum, min, totals[v]);
                }
            }
        }
    }
    for (r, totals) in totals.iter().enumerate() {
        for (v, total) in totals.iter().enumerate() {
            // SAFETY: the place is in the tile.
            unsafe { s.store(y.add(r * tile.y_stride + v * LANES), *total) };
        }
    }
}

/// Adds the products of some words to the sums.
///
/// # Safety
/// The caller promises what [`Tile::compute`] asks for.
#[inline(always)]
unsafe fn add_words<S: Simd, W: WordKind, const ROWS: usize, const VECTORS: usize>(
    s: S,
    tile: &Tile<'_>,
    words: &Range<usize>,
    first_output: usize,
    sums: &mut Sums<S::F32, ROWS, VECTORS>,
) {
    let w = tile.w.wrapping_add(first_output);
    let mut start = words.start;
    while start < words.end {
        // The words up to the end of a line.
        // Whole lines of all rows come before them, since activations lie as `[lines][rows][16]`.
        let x = tile.x.wrapping_add(start / LINE * LINE * ROWS + start % LINE);
        let end = words.end.min(start + LINE - start % LINE);
        for (i, word) in (start..end).enumerate() {
            let ahead = tile.ahead.wrapping_add(word * tile.ahead_step);
            s.prefetch(ahead);
            s.prefetch(ahead.wrapping_add(tile.ahead_step / 2));
            let mut weights = [s.splat(0.0); VECTORS];
            for (v, weight) in weights.iter_mut().enumerate() {
                // SAFETY: one of the rows of 32 words of weights.
                *weight = unsafe { s.load(w.add(word * PANEL + v * LANES)) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: one of the words of a row of activations.
                let x = s.splat(unsafe { *x.add(r * LINE + i) });
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = W::add(s, x, weight, *sum);
                }
            }
        }
        start = end;
    }
}
