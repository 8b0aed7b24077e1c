//! The product with lookup tables: a vector is sixteen steps of `k` of one output, whose table stays in a register.
//!
//! One permutation of that register then looks up sixteen steps. If the lanes were outputs with a table each, every
//! value would be a gather from memory: `vgatherdps` took seven times as long for one row. A tile is a few rows of a
//! few outputs over all of `k`, and each dequantized vector meets all rows of the tile. Activations are read from
//! where they are, without packing.

use std::ops::Range;

use super::Product;
use super::gemv::{INLINE_PRODUCTS, PREFETCH_BYTES, write_outputs};
use crate::parallel;
use crate::simd::{Isa, LANES, Simd, WithSimd};
use crate::weight::{PANEL, TABLE, TABLE_OUTPUTS, TABLE_STEPS};

/// Most rows of a tile. Their sums with four outputs take sixteen registers of AVX-512, and with one output eight of
/// AVX2. With five rows or more the dequantized vectors no longer fit beside the sums, which was three times slower.
const TILE_ROWS: usize = 4;

/// Panels larger than this do not stay in the first-level cache from tile to tile. Then each tile meets several
/// panels before the next tile, while its activations are in the second-level cache. This took 66 instead of 76 ms
/// for 512 rows of a `[896, 4864]` weight.
const LARGE_PANEL: usize = 24 * 1024;
const LARGE_TOGETHER: usize = 4;

/// Bytes of 32 steps of the outputs whose table indices lie together.
const LINE_BYTES: usize = TABLE_OUTPUTS * TABLE_STEPS / 2;

/// Computes a product of any number of rows.
pub(super) fn multiply(isa: Isa, p: &Product<'_>) {
    let (k, panels) = (p.w.k(), p.w.n().div_ceil(PANEL));
    let mut last_steps = vec![[0.0; TABLE_STEPS]; p.rows];
    // A whole line would reach beyond the last row.
    for (last, x) in last_steps.iter_mut().zip(p.x.chunks_exact(k)) {
        let (_, x) = x.as_chunks::<TABLE_STEPS>();
        last[..x.len()].copy_from_slice(x);
    }
    let work = |panels| isa.run(Panels { p, last_steps: &last_steps, panels });
    if p.x.len() * p.w.n() <= INLINE_PRODUCTS {
        work(0..panels);
    } else {
        parallel::for_ranges(panels, 1, work);
    }
}

/// A range of panels as work for an instruction set.
struct Panels<'a> {
    p: &'a Product<'a>,
    /// The steps of each row after its last whole line of 32, padded with zeros.
    last_steps: &'a [[f32; TABLE_STEPS]],
    panels: Range<usize>,
}

impl WithSimd for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let rows = self.p.rows;
        let tiles = rows.div_ceil(TILE_ROWS);
        let is_large = self.p.w.layout().panel_bytes() > LARGE_PANEL;
        let together = if is_large { LARGE_TOGETHER } else { 1 };
        for first_panel in self.panels.clone().step_by(together) {
            let panels = first_panel..self.panels.end.min(first_panel + together);
            for tile in 0..tiles {
                // Rows are divided evenly: five rows are tiles of two and three, and not of four and one.
                let first = tile * rows / tiles;
                macro_rules! by_rows {
                    ($($rows:literal by $outputs:literal)*) => {
                        match (tile + 1) * rows / tiles - first {
                            $($rows => for panel in panels.clone() {
                                self.tile::<S, $rows, $outputs>(s, panel, first);
                            })*
                            rows => unreachable!("a tile of {rows} rows"),
                        }
                    };
                }
                if const { S::TILE_VECTORS == 2 } {
                    by_rows!(1 by 4 2 by 4 3 by 4 4 by 4);
                } else {
                    by_rows!(1 by 2 2 by 2 3 by 1 4 by 1);
                }
            }
        }
    }
}

impl Panels<'_> {
    /// Computes the rows `first_row..first_row + ROWS` of a panel, `OUTPUTS` outputs at a time.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const OUTPUTS: usize>(
        &self,
        s: S,
        panel: usize,
        first_row: usize,
    ) {
        let p = self.p;
        let (k, layout) = (p.w.k(), p.w.layout());
        let (lines, left) = (k / TABLE_STEPS, k % TABLE_STEPS);
        let stored = &p.w.bytes()[panel * layout.panel_bytes()..][..layout.panel_bytes()];
        let x = p.x[first_row * k..][..ROWS * k].as_ptr();
        let last_steps = self.last_steps[first_row..][..ROWS].as_ptr().cast();
        for column in (0..PANEL.min(p.w.n() - panel * PANEL)).step_by(OUTPUTS) {
            let mut tables = [s.splat(0.0); OUTPUTS];
            for (i, table) in tables.iter_mut().enumerate() {
                // SAFETY: a panel begins with 32 tables of sixteen values.
                *table = unsafe { s.load(stored.as_ptr().cast::<f32>().add((column + i) * TABLE)) };
            }
            let quants = stored[layout.table_quants(column, 0)..].as_ptr();
            let line = |x, x_stride, line| Line {
                x,
                x_stride,
                quants: quants.wrapping_add(line * LINE_BYTES),
            };
            let mut sums = [[s.splat(0.0); OUTPUTS]; ROWS];
            for i in 0..lines {
                let line = line(x.wrapping_add(i * TABLE_STEPS), k, i);
                s.prefetch(line.quants.wrapping_add(PREFETCH_BYTES));
                // SAFETY: the row has this whole line, and the outputs lie together.
                unsafe { line.add::<S, ROWS, OUTPUTS>(s, TABLE_STEPS, &tables, &mut sums) };
            }
            if left > 0 {
                let line = line(last_steps, TABLE_STEPS, lines);
                // SAFETY: as above, for the rows' last steps; table indices are padded to a line.
                unsafe { line.add::<S, ROWS, OUTPUTS>(s, left, &tables, &mut sums) };
            }
            for (row, sums) in sums.iter().enumerate() {
                let mut outputs = [0.0; OUTPUTS];
                for (output, sum) in outputs.iter_mut().zip(sums) {
                    *output = s.reduce_add(*sum);
                }
                write_outputs(p, first_row + row, panel * PANEL + column, &mut outputs);
            }
        }
    }
}

/// 32 steps of `k` in every row and output of a tile.
#[derive(Clone, Copy)]
struct Line {
    /// The first row's activations.
    x: *const f32,
    /// Activations from row to row.
    x_stride: usize,
    /// The first output's table indices.
    quants: *const u8,
}

impl Line {
    /// Adds the products of the first `count` steps to the sums.
    ///
    /// # Safety
    /// All rows have 32 steps here, and all outputs their table indices.
    #[inline(always)]
    unsafe fn add<S: Simd, const ROWS: usize, const OUTPUTS: usize>(
        self,
        s: S,
        count: usize,
        tables: &[S::F32; OUTPUTS],
        sums: &mut [[S::F32; OUTPUTS]; ROWS],
    ) {
        for half in 0..2 {
            let mut numbers = [s.splat(0.0); OUTPUTS];
            for (i, number) in numbers.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *number = unsafe {
                    let quants = self.quants.add(i * TABLE_STEPS / 2);
                    if half == 0 {
                        s.lookup_u4::<0>(tables[i], quants)
                    } else {
                        s.lookup_u4::<4>(tables[i], quants)
                    }
                };
                // Table values may be infinite, and infinity times the zeros after the last step is NaN.
                if count < TABLE_STEPS {
                    let end = count.saturating_sub(half * LANES);
                    *number = s.keep(*number, 0, end, s.splat(0.0));
                }
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                let x = unsafe { s.load(self.x.add(row * self.x_stride + half * LANES)) };
                for (sum, number) in sums.iter_mut().zip(numbers) {
                    *sum = s.fma(x, number, *sum);
                }
            }
        }
    }
}
