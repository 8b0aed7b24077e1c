//! The innermost loop of the tiled matmul: a tile of outputs kept in registers over a block of `k`.

use std::marker::PhantomData;

use super::format::Format;
use crate::simd::{LANES, Simd, TILE_LINE, TILE_ROWS, TileProduct, WithSimd};
use crate::weight::PANEL;

/// A tile of `rows x 32` outputs over some words of `k`, as work for an instruction set.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// As many as a [`Shape`] allows.
    pub(super) rows: usize,
    /// Activations `[words / LINE][rows][LINE]`.
    pub(super) x: *const f32,
    /// Weights `[words][32]`.
    pub(super) w: *const f32,
    /// Whole lines where the matrix unit computes.
    pub(super) words: usize,
    /// Outputs, `y_stride` elements from row to row: 32 where the matrix unit computes.
    pub(super) y: *mut f32,
    pub(super) y_stride: usize,
    /// Where the chain of additions begins.
    pub(super) start: Start,
    /// Memory to fetch meanwhile: `ahead_step` bytes (at most two cache lines) per word.
    pub(super) ahead: *const u8,
    pub(super) ahead_step: usize,
}

/// Words of a row of activations that lie together: a cache line's.
pub(super) const LINE: usize = 16;

/// What a tile of an instruction set and a format can be.
pub(super) struct Shape<S, W>(PhantomData<(S, W)>);

impl<S: Simd, W: Format> Shape<S, W> {
    /// Whether the CPU's matrix unit computes it.
    pub(super) const MATRIX_UNIT: bool = S::BF16_TILES && W::STEPS == 2;
    /// Most rows.
    pub(super) const ROWS: usize = if Self::MATRIX_UNIT { 2 * TILE_ROWS } else { S::TILE_ROWS };
    /// It has a multiple of so many rows.
    pub(super) const ROW_MULTIPLE: usize = if Self::MATRIX_UNIT { TILE_ROWS } else { 1 };
}

/// Where a chain of additions begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// At zero.
    Zero,
    /// At what the outputs hold.
    Continue,
}

impl Tile {
    /// Computes the tile.
    ///
    /// # Safety
    /// The pointers cover what their descriptions say, the outputs are this thread's alone, and they
    /// are initialised where the chain continues. The thread has begun with tiles where the matrix unit computes.
    #[inline(always)]
    pub(super) unsafe fn compute<S: Simd, W: Format>(self, s: S) {
        if const { !Shape::<S, W>::MATRIX_UNIT } {
            return s.run(Checked::<W>(self, PhantomData));
        }
        const { assert!(LINE == TILE_LINE && PANEL == 2 * LANES) };
        let product = TileProduct {
            x: self.x,
            w: self.w,
            lines: self.words / LINE,
            row_tiles: self.rows / TILE_ROWS,
            y: self.y,
            continues: self.start == Start::Continue,
            ahead: self.ahead,
            ahead_lines: (self.ahead_step * LINE).div_ceil(64),
        };
        // SAFETY: the caller's promise.
        unsafe { s.tile_product(&product) }
    }
}

/// A tile whose pointers are good: only [`Tile::compute`] makes one.
struct Checked<W>(Tile, PhantomData<W>);

impl<W: Format> WithSimd for Checked<W> {
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
        if const { S::TILE_VECTORS == 2 } {
            by_rows!(2, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        } else if const { S::TILE_ROWS == 6 } {
            (0..2).for_each(|half| by_rows!(1, half, 1 2 3 4 5 6));
        } else {
            (0..2).for_each(|half| by_rows!(1, half, 1 2 3 4));
        }
    }
}

/// The vectors `first_half..first_half + VECTORS` of a tile of `ROWS` rows.
///
/// # Safety
/// As [`Tile::compute`].
#[inline(always)]
unsafe fn accumulate<S: Simd, W: Format, const ROWS: usize, const VECTORS: usize>(
    s: S,
    tile: &Tile,
    first_half: usize,
) {
    let (y, w) = (tile.y.wrapping_add(first_half * LANES), tile.w.wrapping_add(first_half * LANES));
    let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
    if tile.start == Start::Continue {
        for (r, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the place is in the tile, and initialised where the chain continues.
                *sum = unsafe { s.load(y.add(r * tile.y_stride + v * LANES)) };
            }
        }
    }
    for first in (0..tile.words).step_by(LINE) {
        let x = tile.x.wrapping_add(first * ROWS);
        for word in first..tile.words.min(first + LINE) {
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
                let x = s.splat(unsafe { *x.add(r * LINE + word - first) });
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = W::add(s, x, weight, *sum);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: the place is in the tile.
            unsafe { s.store(y.add(r * tile.y_stride + v * LANES), *sum) };
        }
    }
}
