//! The product for many rows: blocks that stay in the caches, tiles that stay in registers.
//!
//! ```text
//! for each group of rows         its activations are packed once (GROUP_WORDS)
//!   for each few panels          on one of the threads; a panel is 32 outputs (PANELS_TOGETHER)
//!     for each block of k        the packed activations of a block stay in the second-level cache (BLOCK_WORDS)
//!       for each of the panels   its weights come from memory once, are widened once, and stay in the first-level cache
//!         for each row tile      micro-kernel: tile rows x 32 outputs in registers (tile.rs)
//! ```
//!
//! Activations are packed as `[blocks of k][row tiles][lines of words][tile rows]`, the order in which tiles read
//! them. A line is a cache line of one row. Packing word by word across rows was an eighth slower.
//!
//! A block of quantized weights is some whole segments, each of which is summed and then scaled. The outputs carry
//! the chain of additions from one block of `k` to the next.
//!
//! A matrix unit computes whole tiles. So its rows are padded, and its outputs go through a buffer.

use std::ops::Range;

use super::Product;
use super::format::{Format, WithFormat, WordKind, segments, sum_of};
use super::scales::Scales;
use super::tile::{LINE, Shape, Start, Tile};
use crate::Weight;
use crate::activation::Activate;
use crate::parallel::{self, SharedMut};
use crate::simd::{LANES, Simd, WithSimd};
use crate::weight::{Layout, PANEL};

/// Most words of `k` in one block. The weights of 32 outputs then take half of a first-level cache of 32 KiB, or a
/// third of one of 48 KiB.
const BLOCK_WORDS: usize = 128;

/// Most words (4 MiB) of the packed activations of a group of rows.
const GROUP_WORDS: usize = 1 << 20;

/// Panels of one task that share each block of packed activations, if these are many.
const PANELS_TOGETHER: usize = 4;

/// The same for a matrix unit, which reads activations faster.
const MATRIX_PANELS_TOGETHER: usize = 8;

/// Packed activations of at most this many words (256 KiB) stay in the second-level cache. Then panels are computed
/// one by one, which reads all weights in their order and so at the full rate of memory.
const FEW_WORDS: usize = 1 << 16;

/// Distance in bytes between a weight's prefetch and its use, with a single row tile.
const PREFETCH_BYTES: usize = 4096;

/// Products of fewer multiplications than this run on the calling thread, since waking others would take longer.
const INLINE_PRODUCTS: usize = 64 * 1024;

/// Fewer activations than this are packed on the calling thread, for the same reason.
const INLINE_PACK: usize = 16 * 1024;

/// Computes a product of any number of rows.
pub(super) struct Tiled;

impl<S: Simd> WithFormat<S> for Tiled {
    #[inline(always)]
    fn with<W: Format>(self, s: S, p: &Product<'_>) {
        let (k, panels) = (p.w.k(), p.width().div_ceil(PANEL));
        let blocks = blocks::<W::Words>(p.w.layout());
        let (mut packed, mut x_sums) = (Vec::new(), Vec::new());
        let mut packed_before = p.packed;
        for tiles in row_groups::<S, W::Words>(p.w, p.rows) {
            let packed = match &mut packed_before {
                Some(rest) => {
                    let group = rest.split_off(..tiles.words(&blocks));
                    group.expect("all groups were packed")
                }
                None => {
                    packed.clear();
                    pack::<S, W::Words>(s, p, &blocks, &tiles, &mut packed);
                    packed.as_slice()
                }
            };
            if W::SCALED {
                sum::<S>(s, p, &tiles, &mut x_sums);
            }
            let group = Group { p, blocks: &blocks, tiles: &tiles, packed, x_sums: &x_sums };
            let format = std::marker::PhantomData::<W>;
            let work = |panels: Range<usize>| s.run(Panels { group, panels, format });
            if tiles.rows.len() * k * p.w.n() <= INLINE_PRODUCTS {
                work(0..panels);
            } else {
                parallel::for_ranges(panels, 1, work);
            }
        }
    }
}

/// Appends the packed rows of a product, for [`Product::packed`].
pub(super) struct PackRows<'a>(pub(super) &'a mut Vec<f32>);

impl<S: Simd> WithFormat<S> for PackRows<'_> {
    #[inline(always)]
    fn with<W: Format>(self, s: S, p: &Product<'_>) {
        let blocks = blocks::<W::Words>(p.w.layout());
        for tiles in row_groups::<S, W::Words>(p.w, p.rows) {
            pack::<S, W::Words>(s, p, &blocks, &tiles, self.0);
        }
    }
}

/// The groups of rows of a product.
fn row_groups<S: Simd, W: WordKind>(w: &Weight, rows: usize) -> impl Iterator<Item = RowTiles> {
    let tile_rows = Shape::<S, W>::ROWS;
    // A group has whole tiles of rows, and at least one, however long a row is.
    let most = (GROUP_WORDS / w.k().div_ceil(W::STEPS) / tile_rows).max(1) * tile_rows;
    (0..rows).step_by(most).map(move |first| RowTiles::new::<S, W>(first..rows.min(first + most)))
}

/// Some rows, cut into tiles of nearly equal size.
struct RowTiles {
    rows: Range<usize>,
    count: usize,
    /// The number of rows of each tile is a multiple of this, padding included.
    multiple: usize,
}

impl RowTiles {
    fn new<S: Simd, W: WordKind>(rows: Range<usize>) -> Self {
        let count = rows.len().div_ceil(Shape::<S, W>::ROWS);
        Self { rows, count, multiple: Shape::<S, W>::ROW_MULTIPLE }
    }

    /// The rows of tile `tile`, counted from the first of `rows`.
    fn tile(&self, tile: usize) -> Range<usize> {
        // Rows are divided evenly, since a short last tile would take nearly the time of a whole one.
        let bound =
            |tile: usize| (tile * self.rows.len() / self.count).next_multiple_of(self.multiple);
        bound(tile)..bound(tile + 1)
    }

    /// All rows, padding included.
    fn padded(&self) -> usize {
        self.rows.len().next_multiple_of(self.multiple)
    }

    /// Number of their words once they are packed.
    fn words(&self, blocks: &[Block]) -> usize {
        self.padded() * blocks.iter().map(Block::padded).sum::<usize>()
    }
}

/// A range of words of `k`.
#[derive(Clone, Debug)]
struct Block {
    words: Range<usize>,
    /// Its segments, each of which has a scale, as ranges of words counted from the block's first; and the index of
    /// the first segment.
    segments: Vec<Range<usize>>,
    first_segment: usize,
    /// Words of the blocks before it, padding included.
    before: usize,
}

impl Block {
    /// Number of its words, padding included.
    fn padded(&self) -> usize {
        self.words.len().next_multiple_of(LINE)
    }

    /// Index in packed activations of its words for row `row`, which is the first of a tile.
    fn place(&self, tiles: &RowTiles, row: usize) -> usize {
        self.before * tiles.padded() + row * self.padded()
    }
}

/// The blocks of a row.
fn blocks<W: WordKind>(layout: Layout) -> Vec<Block> {
    let words = |steps: Range<usize>| steps.start / W::STEPS..steps.end.div_ceil(W::STEPS);
    // A block of quantized weights ends with a segment, whose sum must be complete before it is scaled.
    let parts: Vec<Range<usize>> = if W::SCALED {
        segments(layout).map(words).collect()
    } else {
        let end = layout.k.div_ceil(W::STEPS);
        let starts = (0..end).step_by(BLOCK_WORDS);
        starts.map(|start| start..end.min(start + BLOCK_WORDS)).collect()
    };
    let mut blocks: Vec<Block> = Vec::new();
    for (i, part) in parts.into_iter().enumerate() {
        match blocks.last_mut() {
            Some(last) if part.end - last.words.start <= BLOCK_WORDS => {
                last.words.end = part.end;
                last.segments.push(part.start - last.words.start..part.end - last.words.start);
            }
            last => {
                let before = last.map_or(0, |last| last.before + last.padded());
                let segment = 0..part.len();
                let segments = vec![segment];
                blocks.push(Block { words: part, segments, first_segment: i, before });
            }
        }
    }
    blocks
}

/// Appends the rows of `tiles` as words, `[blocks][row tiles][lines][tile rows][LINE]`.
fn pack<S: Simd, W: WordKind>(
    s: S,
    p: &Product<'_>,
    blocks: &[Block],
    tiles: &RowTiles,
    packed: &mut Vec<f32>,
) {
    let (before, words) = (packed.len(), tiles.words(blocks));
    packed.reserve(words);
    let target = SharedMut::new(&mut packed.spare_capacity_mut()[..words]);
    let kind = std::marker::PhantomData::<W>;
    let work = |range| s.run(Pack { packed: target, p, blocks, tiles, range, kind });
    if tiles.rows.len() * p.w.k() <= INLINE_PACK {
        work(0..tiles.count);
    } else {
        parallel::for_ranges(tiles.count, 1, work);
    }
    // SAFETY: the tiles cover all rows, and each line of each row was written.
    unsafe { packed.set_len(before + words) };
}

/// Packing of some tiles as work for an instruction set.
struct Pack<'a, W> {
    packed: SharedMut<'a>,
    p: &'a Product<'a>,
    blocks: &'a [Block],
    tiles: &'a RowTiles,
    range: Range<usize>,
    kind: std::marker::PhantomData<W>,
}

impl<W: WordKind> WithSimd for Pack<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, _: S) {
        let k = self.p.w.k();
        for rows in self.range.map(|tile| self.tiles.tile(tile)) {
            for (r, row) in rows.clone().enumerate() {
                // A row of padding has no activations.
                let steps = if row < self.tiles.rows.len() { k } else { 0 };
                let x = &self.p.x[(self.tiles.rows.start + row) * steps..][..steps];
                for block in self.blocks {
                    let lines = block.place(self.tiles, rows.start) + r * LINE;
                    let step = |word: usize| (word * W::STEPS).min(x.len());
                    let x = &x[step(block.words.start)..step(block.words.end)];
                    for line in 0..block.padded() / LINE {
                        // SAFETY: each line is one thread's, and is written before anything reads it.
                        let words = unsafe {
                            let words = self.packed.at(lines + line * LINE * rows.len(), LINE);
                            // Words behind the end of a row, and rows of padding, are zeros.
                            words.write_bytes(0, LINE);
                            std::slice::from_raw_parts_mut(words, LINE)
                        };
                        let step = |line: usize| (line * LINE * W::STEPS).min(x.len());
                        W::put(self.p, &x[step(line)..step(line + 1)], words);
                    }
                }
            }
        }
    }
}

/// The sums of the activations of each segment, `[segments][rows]`, padding included.
fn sum<S: Simd>(s: S, p: &Product<'_>, tiles: &RowTiles, x_sums: &mut Vec<f32>) {
    let (k, rows) = (p.w.k(), tiles.padded());
    x_sums.clear();
    x_sums.resize(segments(p.w.layout()).count() * rows, 0.0);
    let target = SharedMut::of(x_sums);
    let work = |range| s.run(Sum { x_sums: target, p, tiles, range });
    if tiles.rows.len() * k <= INLINE_PACK {
        work(0..tiles.rows.len());
    } else {
        // Sixteen rows are a cache line of the sums, so threads rarely write to the same line.
        parallel::for_ranges(tiles.rows.len(), 16, work);
    }
}

/// Summing of some rows as work for an instruction set.
struct Sum<'a> {
    x_sums: SharedMut<'a>,
    p: &'a Product<'a>,
    tiles: &'a RowTiles,
    range: Range<usize>,
}

impl WithSimd for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let (k, rows) = (self.p.w.k(), self.tiles.padded());
        for row in self.range {
            let x = &self.p.x[(self.tiles.rows.start + row) * k..][..k];
            for (segment, steps) in segments(self.p.w.layout()).enumerate() {
                // SAFETY: each row is one thread's.
                unsafe { *self.x_sums.at(segment * rows + row, 1) = sum_of(s, self.p, &x[steps]) };
            }
        }
    }
}

/// A group of rows, packed.
#[derive(Clone, Copy)]
struct Group<'a> {
    p: &'a Product<'a>,
    blocks: &'a [Block],
    tiles: &'a RowTiles,
    packed: &'a [f32],
    /// `[segments][rows]`.
    x_sums: &'a [f32],
}

impl Product<'_> {
    /// Number of outputs of a row.
    fn width(&self) -> usize {
        if self.gate.is_some() { self.w.n() / 2 } else { self.w.n() }
    }
}

/// A range of panels of outputs as work for an instruction set. Each has its gate's panel beside it if there is a
/// gate.
struct Panels<'a, W> {
    group: Group<'a>,
    panels: Range<usize>,
    format: std::marker::PhantomData<W>,
}

impl<W: Format> WithSimd for Panels<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let together = if self.group.packed.len() <= FEW_WORDS {
            1
        } else if const { Shape::<S, W::Words>::MATRIX_UNIT } {
            MATRIX_PANELS_TOGETHER
        } else {
            PANELS_TOGETHER
        };
        // A gate doubles the number of panels.
        let together = if self.group.p.gate.is_some() { together.div_ceil(2) } else { together };
        if const { Shape::<S, W::Words>::MATRIX_UNIT } {
            s.begin_tiles();
        }
        let mut panels = self.panels;
        let mut scratch = Scratch::default();
        while !panels.is_empty() {
            let end = panels.end.min(panels.start + together);
            some_panels::<S, W>(s, &self.group, panels.start..end, &mut scratch);
            panels.start = end;
        }
        if const { Shape::<S, W::Words>::MATRIX_UNIT } {
            s.end_tiles();
        }
    }
}

/// Computes a few panels of all rows of the group.
#[inline(always)]
fn some_panels<S: Simd, W: Format>(
    s: S,
    group: &Group<'_>,
    panels: Range<usize>,
    scratch: &mut Scratch,
) {
    let Group { p, tiles, .. } = *group;
    let width = p.width();
    let rows = tiles.rows.len();
    let columns = |panel: usize| PANEL.min(width - panel * PANEL);
    // Outputs with padding, or with a gate, go through a buffer of whole panels. It holds all panels, or else the
    // last one.
    let all_buffered = Shape::<S, W::Words>::MATRIX_UNIT || p.gate.is_some();
    let is_buffered = |panel: usize| all_buffered || columns(panel) < PANEL;
    let in_buffer = |i: usize| if all_buffered { i * tiles.padded() * PANEL } else { 0 };
    let Scratch { unpacked, outputs: buffer } = scratch;
    // The gate's panels come first in the weight, before the others.
    let count = panels.len();
    let gates = if p.gate.is_some() { count } else { 0 };
    if is_buffered(panels.end - 1) {
        let len = in_buffer(count + gates - 1) + tiles.padded() * PANEL;
        // The buffer keeps its size from task to task. Old values do no harm, since the first block starts at
        // zero.
        buffer.resize(buffer.len().max(len), 0.0);
    }
    for block in group.blocks {
        for i in 0..count + gates {
            let panel = panels.start + i % count;
            let outputs = if is_buffered(panel) {
                Outputs { start: buffer[in_buffer(i)..].as_mut_ptr(), stride: PANEL }
            } else {
                let at = tiles.rows.start * width + panel * PANEL;
                // SAFETY: each panel of the group is computed once, by one thread.
                let start = unsafe { p.y.at(at, (rows - 1) * width + PANEL) };
                Outputs { start, stride: width }
            };
            let panel = if i < count { panel } else { width / PANEL + panel };
            block_of_panel::<S, W>(s, group, block, panel, outputs, unpacked);
        }
    }
    let add_bias = |y: &mut [f32], first: usize| {
        if let Some(bias) = p.bias {
            y.iter_mut().zip(&bias[first..]).for_each(|(y, bias)| *y += bias);
        }
    };
    for (i, panel) in panels.enumerate() {
        let (column, columns) = (panel * PANEL, columns(panel));
        for row in 0..rows {
            let place = |i: usize| in_buffer(i) + row * PANEL;
            // SAFETY: as above; the block loop has written these outputs, or here they are.
            let y = unsafe {
                let y = p.y.at((tiles.rows.start + row) * width + column, columns);
                if is_buffered(panel) {
                    let buffered = buffer[place(i)..][..columns].as_ptr();
                    std::ptr::copy_nonoverlapping(buffered, y, columns);
                }
                std::slice::from_raw_parts_mut(y, columns)
            };
            let Some(act) = p.gate else {
                add_bias(y, column);
                continue;
            };
            let (gates, ups) = buffer.split_at_mut(in_buffer(count));
            let (x, up) = (&mut gates[place(i)..][..PANEL], &mut ups[place(i)..][..PANEL]);
            add_bias(x, column);
            add_bias(up, width + column);
            Activate { x, up: Some(up), act, out: y }.with(s);
        }
    }
}

/// One cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f32; LANES]);

/// Cache lines of the weights of a block as the tiles read them, `[words][32]`.
const WORD_LINES: usize = BLOCK_WORDS * PANEL / LANES;

/// Cache lines of 32 scales and 32 offsets.
const SCALE_LINES: usize = 2 * PANEL / LANES;

/// A block of a panel as the tiles read it. Both are empty until a format needs them, since zeroing them for each task would
/// take as long as a small product.
#[derive(Default)]
struct Unpacked {
    /// [`WORD_LINES`] lines.
    words: Vec<Line>,
    /// Scales and offsets of quantized weights, `[segments][2][32]`. A segment has at least one word.
    scales: Vec<Line>,
}

/// Working memory of a task.
#[derive(Default)]
struct Scratch {
    unpacked: Unpacked,
    /// Outputs with padding, `[panels][rows][32]`.
    outputs: Vec<f32>,
}

/// Position of a panel's outputs: `stride` elements from row to row.
#[derive(Clone, Copy)]
struct Outputs {
    start: *mut f32,
    stride: usize,
}

/// Adds the words of `block` to the outputs of one panel, for all rows of the group.
#[inline(always)]
fn block_of_panel<S: Simd, W: Format>(
    s: S,
    group: &Group<'_>,
    block: &Block,
    panel: usize,
    outputs: Outputs,
    unpacked: &mut Unpacked,
) {
    let Group { p, tiles, packed, x_sums, .. } = *group;
    let Unpacked { words: widened, scales } = unpacked;
    let layout = p.w.layout();
    let panel_bytes = layout.panel_bytes();
    let stored = &p.w.bytes()[panel * panel_bytes..][..panel_bytes];
    let pair = |word: usize| (word * W::STEPS).div_ceil(2);
    let pairs = pair(block.words.start)..pair(block.words.end);
    let start = layout.pair(pairs.start);
    let end = layout.pair(pairs.end - 1) + W::ORDER.pair_bytes();
    let has_padding = Shape::<S, W::Words>::MATRIX_UNIT && block.padded() > block.words.len();
    let w: *const f32 = if W::AS_STORED && !has_padding {
        stored[start..].as_ptr().cast()
    } else {
        widened.resize(WORD_LINES, Line([0.0; LANES]));
        if W::AS_STORED {
            copy_block(&stored[start..end], widened);
        } else {
            widen_block::<S, W>(s, stored, layout, pairs, widened);
        }
        if has_padding {
            // An earlier block's words may be infinite, and infinity times the zeros of padded activations is
            // NaN.
            let lines = PANEL / LANES;
            widened[block.words.len() * lines..block.padded() * lines].fill(Line([0.0; LANES]));
        }
        widened.as_ptr().cast()
    };
    if W::SCALED {
        scales.resize(BLOCK_WORDS * SCALE_LINES, Line([0.0; LANES]));
        load_scales::<S, W>(s, stored, layout, block, scales);
    }
    // The tiles share the prefetch of the next block, since their arithmetic hides it. In a sketch of this kernel for
    // AMX it gave 15 to 35 %. A matrix unit with one tile has too little arithmetic for that, and reads panel after
    // panel.
    let ahead_step = (end - start).div_ceil(block.words.len() * tiles.count);
    let ahead = if Shape::<S, W::Words>::MATRIX_UNIT && tiles.count == 1 {
        start + PREFETCH_BYTES
    } else {
        end
    };
    for tile in 0..tiles.count {
        let rows = tiles.tile(tile);
        let x = &packed[block.place(tiles, rows.start)..][..rows.len() * block.padded()];
        let x_sums = if W::SCALED {
            &x_sums[block.first_segment * tiles.padded() + rows.start..]
        } else {
            &[]
        };
        let tile = Tile {
            rows: rows.len(),
            x: x.as_ptr(),
            w,
            segments: &block.segments,
            scales: scales.as_ptr().cast(),
            x_sums: x_sums.as_ptr(),
            x_sums_stride: tiles.padded(),
            y: outputs.start.wrapping_add(rows.start * outputs.stride),
            y_stride: outputs.stride,
            start: if block.words.start == 0 { Start::Zero } else { Start::Continue },
            ahead: stored.as_ptr().wrapping_add(ahead + tile * block.words.len() * ahead_step),
            ahead_step,
        };
        // SAFETY: `x` holds whole lines of each row, `w` the block's weights, `scales` and `x_sums` those of its
        // segments, `outputs` the rows' outputs, which the first block writes before any other continues them.
        // `Panels` has begun with tiles.
        unsafe { tile.compute::<S, W::Words>(s) };
    }
}

/// Copies words as they are stored.
fn copy_block(stored: &[u8], copy: &mut [Line]) {
    let (lines, _) = stored.as_chunks::<{ LANES * 4 }>();
    for (line, stored) in copy.iter_mut().zip(lines) {
        let (stored, _) = stored.as_chunks::<4>();
        line.0 = std::array::from_fn(|word| f32::from_le_bytes(stored[word]));
    }
}

/// Widens some pairs of steps of one panel, `stored`, to words, `[words][32]`.
#[inline(always)]
fn widen_block<S: Simd, W: Format>(
    s: S,
    stored: &[u8],
    layout: Layout,
    mut pairs: Range<usize>,
    widened: &mut [Line],
) {
    const HALVES: usize = PANEL / LANES;
    let mut lines = widened.chunks_exact_mut(2 / W::STEPS * HALVES);
    while !pairs.is_empty() {
        let count = layout.pairs_left_in_run(pairs.start).min(pairs.len());
        let first = layout.pair(pairs.start);
        let steps = stored[first..first + count * W::ORDER.pair_bytes()]
            .chunks_exact(W::ORDER.pair_bytes());
        for (steps, lines) in steps.zip(&mut lines) {
            for (i, line) in lines.iter_mut().enumerate() {
                // SAFETY: `steps` holds two steps, `line` sixteen words.
                let words = unsafe { W::load(s, steps.as_ptr(), i / HALVES, i % HALVES) };
                // SAFETY: as above.
                unsafe { s.store(line.0.as_mut_ptr(), words) };
            }
        }
        pairs.start += count;
    }
}

/// Writes the scales and the offsets of each segment of a block, `[segments][2][32]`.
#[inline(always)]
fn load_scales<S: Simd, W: Format>(
    s: S,
    stored: &[u8],
    layout: Layout,
    block: &Block,
    lines: &mut [Line],
) {
    for (segment, lines) in block.segments.iter().zip(lines.chunks_exact_mut(SCALE_LINES)) {
        let group = Scales::of(layout, stored, (block.words.start + segment.start) * W::STEPS);
        for half in 0..SCALE_LINES / 2 {
            // SAFETY: the scales are this panel's, and lines have sixteen values.
            unsafe {
                let [scales, offsets] = group.load(s, 0, half);
                s.store(lines[half].0.as_mut_ptr(), scales);
                s.store(lines[SCALE_LINES / 2 + half].0.as_mut_ptr(), offsets);
            }
        }
    }
}
