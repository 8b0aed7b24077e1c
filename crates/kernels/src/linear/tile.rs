//! The innermost loop of the tiled matmul: a tile of outputs kept in registers over a block of `k`.

use std::marker::PhantomData;

use super::format::WordKind;
use crate::simd::{LANES, Simd, TILE_LINE, TILE_ROWS, TileProduct, WithSimd};
use crate::weight::PANEL;

/// A tile of `rows x 32` outputs over some words of `k`, as work for an instruction set.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// As many as a [`Shape`] allows.
    pub(super) rows: usize,
    /// Activations `[lines][rows][LINE]`, from the first word of `k` on.
    pub(super) x: *const f32,
    /// The first word of `k` that it takes: that of a line, where the matrix unit computes.
    pub(super) first: usize,
    /// Whole lines, where the matrix unit computes.
    pub(super) words: usize,
    /// Weights `[words][32]`.
    pub(super) w: *const f32,
    /// 32 scales and 32 minima of codes.
    pub(super) scales: *const f32,
    /// The sum of the activations of each row, for codes.
    pub(super) x_sums: *const f32,
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

/// What a tile of an instruction set and a kind of words can be.
pub(super) struct Shape<S, W>(PhantomData<(S, W)>);

impl<S: Simd, W: WordKind> Shape<S, W> {
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
    pub(super) unsafe fn compute<S: Simd, W: WordKind>(self, s: S) {
        if const { !Shape::<S, W>::MATRIX_UNIT } {
            return s.run(Checked::<W>(self, PhantomData));
        }
        const { assert!(LINE == TILE_LINE && PANEL == 2 * LANES) };
        let mut sums = Aligned([0.0; 2 * TILE_ROWS * PANEL]);
        let product = TileProduct {
            x: self.x.wrapping_add(self.first * self.rows),
            w: self.w,
            lines: self.words / LINE,
            row_tiles: self.rows / TILE_ROWS,
            y: if W::SCALED { sums.0.as_mut_ptr() } else { self.y },
            continues: !W::SCALED && self.start == Start::Continue,
            ahead: self.ahead,
            ahead_lines: (self.ahead_step * LINE).div_ceil(64),
        };
        // SAFETY: the caller's promise, and `sums` has 32 rows.
        unsafe { s.tile_product(&product) };
        if W::SCALED {
            s.run(AddScaled::<W> { tile: self, sums: &sums, kind: PhantomData });
        }
    }

    /// Writes the outputs `first..first + 16` of row `row`, of which the sum is given.
    ///
    /// # Safety
    /// As [`Tile::compute`].
    #[inline(always)]
    unsafe fn write<S: Simd, W: WordKind>(&self, s: S, row: usize, first: usize, sum: S::F32) {
        let y = self.y.wrapping_add(row * self.y_stride + first);
        // SAFETY: the places are in the tile, and initialised where the chain continues.
        unsafe {
            if !W::SCALED {
                return s.store(y, sum);
            }
            let scales = self.scales.add(first);
            let total = if self.start == Start::Continue { s.load(y) } else { s.splat(0.0) };
            let total = s.fma(sum, s.load(scales), total);
            s.store(y, s.fma(s.splat(*self.x_sums.add(row)), s.load(scales.add(PANEL)), total));
        }
    }
}

/// Sums of a tile of the matrix unit.
#[repr(align(64))]
struct Aligned([f32; 2 * TILE_ROWS * PANEL]);

/// What the matrix unit leaves to do for codes, as work for an instruction set.
struct AddScaled<'a, W> {
    tile: Tile,
    sums: &'a Aligned,
    kind: PhantomData<W>,
}

impl<W: WordKind> WithSimd for AddScaled<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        for row in 0..self.tile.rows {
            for first in [0, LANES] {
                // SAFETY: `Tile::compute` was promised good pointers, and the sums are there.
                unsafe {
                    let sum = s.load(self.sums.0[row * PANEL + first..].as_ptr());
                    self.tile.write::<S, W>(s, row, first, sum);
                }
            }
        }
    }
}

/// A tile whose pointers are good: only [`Tile::compute`] makes one.
struct Checked<W>(Tile, PhantomData<W>);

impl<W: WordKind> WithSimd for Checked<W> {
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
unsafe fn accumulate<S: Simd, W: WordKind, const ROWS: usize, const VECTORS: usize>(
    s: S,
    tile: &Tile,
    first_half: usize,
) {
    let first_output = first_half * LANES;
    let (y, w) = (tile.y.wrapping_add(first_output), tile.w.wrapping_add(first_output));
    let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
    if !W::SCALED && tile.start == Start::Continue {
        for (r, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the place is in the tile, and initialised where the chain continues.
                *sum = unsafe { s.load(y.add(r * tile.y_stride + v * LANES)) };
            }
        }
    }
    let mut word = 0;
    while word < tile.words {
        // To the end of a line.
        let at = tile.first + word;
        let x = tile.x.wrapping_add(at / LINE * LINE * ROWS + at % LINE);
        let end = tile.words.min(word + LINE - at % LINE);
        for (i, word) in (word..end).enumerate() {
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
        word = end;
    }
    for (r, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: the place is in the tile.
            unsafe { tile.write::<S, W>(s, r, first_output + v * LANES, *sum) };
        }
    }
}
