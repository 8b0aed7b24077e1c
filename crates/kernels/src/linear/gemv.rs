//! The product for few rows, which is bound by the memory that the weights stream from.
//!
//! A thread reads several panels at once, each as a sequential stream. Several streams give the memory system more
//! requests in parallel than one, and the arithmetic more independent chains.

use std::ops::Range;

use super::Product;
use super::format::{Format, WithFormat, WordKind, segments, sum_of};
use super::scales::Scales;
use crate::parallel;
use crate::simd::{LANES, Simd, WithSimd};
use crate::weight::PANEL;

/// Distance in bytes between a weight's prefetch and its use. Four streams read 38 to 40 GB/s on two cores of a Xeon
/// with it, and 20 to 29 GB/s without.
pub(super) const PREFETCH_BYTES: usize = 3072;

/// Products of fewer multiplications than this run on the calling thread, since waking others would take longer.
pub(super) const INLINE_PRODUCTS: usize = 64 * 1024;

/// Computes a product of 1 to `S::GEMV_ROWS` rows.
pub(super) struct Gemv;

impl<S: Simd> WithFormat<S> for Gemv {
    #[inline(always)]
    fn with<W: Format>(self, s: S, p: &Product<'_>) {
        let x = W::Words::of(p);
        let mut sums = Vec::new();
        if W::SCALED {
            for row in p.x.chunks_exact(p.w.k()) {
                for steps in segments(p.w.layout()) {
                    sums.push(sum_of(s, p, &row[steps]));
                }
            }
        }
        by_rows::<S, W>(s, &Words { p: &Product { x: &x, ..*p }, sums: &sums });
    }
}

/// A product whose activations are converted to words.
#[derive(Clone, Copy)]
struct Words<'a> {
    p: &'a Product<'a>,
    /// The sums of the activations of each segment, `[rows][segments]`, for scaled formats.
    sums: &'a [f32],
}

#[inline(always)]
fn by_rows<S: Simd, W: Format>(s: S, words: &Words<'_>) {
    // There are as many streams as the accumulators allow, at two vectors per row and stream. Fewer rows need more
    // streams, to have enough independent chains. Each of these is compiled for each format. So an odd number of rows
    // computes its last row twice, which costs little, since memory is the bound.
    if const { S::GEMV_ROWS == 8 } {
        match words.p.rows {
            1 => over_panels::<S, W, 1, 4>(s, words),
            2 => over_panels::<S, W, 2, 4>(s, words),
            3 | 4 => over_panels::<S, W, 4, 2>(s, words),
            5 | 6 => over_panels::<S, W, 6, 1>(s, words),
            7 | 8 => over_panels::<S, W, 8, 1>(s, words),
            rows => unreachable!("{rows} rows need tiles"),
        }
    } else {
        match words.p.rows {
            1 => over_panels::<S, W, 1, 2>(s, words),
            2 => over_panels::<S, W, 2, 1>(s, words),
            rows => unreachable!("{rows} rows need tiles"),
        }
    }
}

#[inline(always)]
fn over_panels<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(
    s: S,
    words: &Words<'_>,
) {
    let p = words.p;
    let panels = p.w.n().div_ceil(PANEL);
    let work = |panels: Range<usize>| {
        s.run(Panels::<W, ROWS, STREAMS> { words, panels, format: std::marker::PhantomData })
    };
    if p.x.len() * p.w.n() <= INLINE_PRODUCTS {
        work(0..panels);
    } else {
        parallel::for_ranges(panels, STREAMS, work);
    }
}

/// A range of panels as work for an instruction set.
struct Panels<'a, W, const ROWS: usize, const STREAMS: usize> {
    words: &'a Words<'a>,
    panels: Range<usize>,
    format: std::marker::PhantomData<W>,
}

impl<W: Format, const ROWS: usize, const STREAMS: usize> WithSimd for Panels<'_, W, ROWS, STREAMS> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        // Stream `i` reads the `i`-th part of the range, so that each stream is one run of memory. The few panels that
        // are left are computed together, too. There is a single call, because the compiler inlines each call anew.
        let Range { start, end } = self.panels;
        let per_stream = self.panels.len() / STREAMS;
        let left = start + per_stream * STREAMS..end;
        for i in 0..per_stream + usize::from(!left.is_empty()) {
            let panels = if i < per_stream {
                PanelsAtOnce { first: start + i, count: STREAMS, distance: per_stream }
            } else {
                PanelsAtOnce { first: left.start, count: left.len(), distance: 1 }
            };
            panels_at_once::<S, W, ROWS, STREAMS>(s, self.words, &panels);
        }
    }
}

/// Sixteen outputs, twice, for each row and stream.
type Sums<F32, const ROWS: usize, const STREAMS: usize> = [[[F32; 2]; STREAMS]; ROWS];

/// The panels `first + i * distance` for `i < count`. Streams from `count` on read the last of them again, and their
/// results are not written.
struct PanelsAtOnce {
    first: usize,
    count: usize,
    distance: usize,
}

/// Computes up to `STREAMS` panels, for `ROWS` rows or one row less.
#[inline(always)]
fn panels_at_once<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(
    s: S,
    words: &Words<'_>,
    &PanelsAtOnce { first, count, distance }: &PanelsAtOnce,
) {
    let p = words.p;
    let (k, layout) = (p.w.k(), p.w.layout());
    let row_words = k.div_ceil(W::STEPS);
    let last_row = p.rows - 1;
    let panel_bytes = layout.panel_bytes();
    let weights = p.w.bytes();
    assert!((1..=STREAMS).contains(&count), "there is a panel, and a stream for each");
    assert!((first + (count - 1) * distance + 1) * panel_bytes <= weights.len(), "panels exist");
    let offsets = std::array::from_fn(|stream| stream.min(count - 1) * distance * panel_bytes);
    assert!(p.x.len() >= p.rows * row_words && (ROWS - 1..=ROWS).contains(&p.rows), "rows exist");
    let panel = &weights[first * panel_bytes..];
    let part = |steps: Range<usize>| Part {
        x: p.x[steps.start / W::STEPS..].as_ptr(),
        x_stride: row_words,
        last_row: last_row * row_words,
        header: panel[layout.header(steps.start / 2)..].as_ptr(),
        // The scales of a run are prefetched once, by its first group.
        to_fetch: if W::SCALED && steps.start.is_multiple_of(layout.run()) {
            layout.scale_bytes()
        } else {
            0
        },
        scales: Scales::of(layout, panel, steps.start),
        pairs: panel[layout.pair(steps.start / 2)..].as_ptr(),
        offsets,
        words: steps.len().div_ceil(W::STEPS),
    };
    let mut totals: Sums<S::F32, ROWS, STREAMS> = [[[s.splat(0.0); 2]; STREAMS]; ROWS];
    if W::SCALED {
        let sums_of_row = words.sums.len() / p.rows;
        for (segment, steps) in segments(layout).enumerate() {
            let part = part(steps);
            let mut sums = [[[s.splat(0.0); 2]; STREAMS]; ROWS];
            let mut x_sums = [s.splat(0.0); ROWS];
            for (row, x_sum) in x_sums.iter_mut().enumerate() {
                // An offset applies to all weights of its group, so it is multiplied by the sum of their
                // activations.
                *x_sum = s.splat(words.sums[row.min(last_row) * sums_of_row + segment]);
            }
            // SAFETY: the part lies in each of the panels and rows, as asserted above, and its header too.
            unsafe {
                add_part::<S, W, ROWS, STREAMS>(s, &part, &mut sums);
                add_scaled(s, &part, &sums, &x_sums, &mut totals);
            }
        }
    } else {
        // SAFETY: as above.
        unsafe { add_part::<S, W, ROWS, STREAMS>(s, &part(0..k), &mut totals) };
    }
    for (row, totals) in totals.iter().enumerate().take(p.rows) {
        for (stream, totals) in totals.iter().enumerate().take(count) {
            let mut outputs = [0f32; PANEL];
            for (half, total) in totals.iter().enumerate() {
                // SAFETY: `half * 16 + 16 <= 32`.
                unsafe { s.store(outputs.as_mut_ptr().add(half * LANES), *total) };
            }
            write_outputs(p, row, (first + stream * distance) * PANEL, &mut outputs);
        }
    }
}

/// Some steps of `k` in every row and stream, which lie one after the other and share a header.
struct Part<const STREAMS: usize> {
    /// The first row's activations, in words.
    x: *const f32,
    /// Words from row to row.
    x_stride: usize,
    /// Words from the first row to the last.
    last_row: usize,
    /// The first stream's header.
    header: *const u8,
    /// Bytes of scales in the header to prefetch; 0 unless the part is the first with this header.
    to_fetch: usize,
    /// The first stream's scales, of quantized weights.
    scales: Scales,
    /// The first stream's pairs of steps.
    pairs: *const u8,
    /// Bytes from the first stream to each.
    offsets: [usize; STREAMS],
    words: usize,
}

/// Adds the scaled sums of quantized weights to the totals, and the offsets times the sums of activations.
///
/// # Safety
/// Each stream has the scales that `part` describes.
#[inline(always)]
unsafe fn add_scaled<S: Simd, const ROWS: usize, const STREAMS: usize>(
    s: S,
    part: &Part<STREAMS>,
    sums: &Sums<S::F32, ROWS, STREAMS>,
    x_sums: &[S::F32; ROWS],
    totals: &mut Sums<S::F32, ROWS, STREAMS>,
) {
    for stream in 0..STREAMS {
        for half in 0..2 {
            // SAFETY: the caller's promise.
            let [scale, min] = unsafe { part.scales.load(s, part.offsets[stream], half) };
            for row in 0..ROWS {
                let total = &mut totals[row][stream][half];
                *total = s.fma(sums[row][stream][half], scale, *total);
                *total = s.fma(x_sums[row], min, *total);
            }
        }
    }
}

/// Adds the products of a part to the sums.
///
/// # Safety
/// The memory that `part` describes exists. Its last pair may have one step and padding.
#[inline(always)]
unsafe fn add_part<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(
    s: S,
    part: &Part<STREAMS>,
    sums: &mut Sums<S::F32, ROWS, STREAMS>,
) {
    let fetch = |from: *const u8, bytes: usize| {
        for stream in 0..STREAMS {
            for line in 0..bytes.div_ceil(64) {
                s.prefetch(from.wrapping_add(part.offsets[stream] + line * 64));
            }
        }
    };
    let mut pair = part.pairs;
    let pair_bytes = W::ORDER.pair_bytes();
    fetch(part.header.wrapping_add(PREFETCH_BYTES), part.to_fetch);
    if let Some(of_group) = part.scales.of_group() {
        fetch(of_group.wrapping_add(PREFETCH_BYTES), 1);
    }
    let pair_words = 2 / W::STEPS;
    for first in (0..part.words - part.words % pair_words).step_by(pair_words) {
        // SAFETY: the caller's promise: a pair of steps more is there.
        unsafe {
            fetch(pair.wrapping_add(PREFETCH_BYTES), pair_bytes);
            for i in 0..pair_words {
                word::<S, W, ROWS, STREAMS>(s, part, (part.x.add(first + i), pair), i, sums);
            }
            pair = pair.add(pair_bytes);
        }
    }
    if part.words % pair_words == 1 {
        // SAFETY: the last step of each row and panel; the panel is padded to a pair.
        unsafe {
            let x = part.x.add(part.words - 1);
            word::<S, W, ROWS, STREAMS>(s, part, (x, pair), 0, sums);
        }
    }
}

/// One word in every row and stream. `at` are the first row's activations and the first stream's pair of steps, whose
/// word `i` it is.
///
/// # Safety
/// All of them exist.
#[inline(always)]
unsafe fn word<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(
    s: S,
    part: &Part<STREAMS>,
    at: (*const f32, *const u8),
    i: usize,
    sums: &mut Sums<S::F32, ROWS, STREAMS>,
) {
    let mut x = [s.splat(0.0); ROWS];
    for (row, x) in x.iter_mut().enumerate() {
        // The last row stands for a row that is not there, whose result is not written.
        let offset = if row + 1 == ROWS { part.last_row } else { row * part.x_stride };
        // SAFETY: the caller's promise.
        *x = s.splat(unsafe { *at.0.add(offset) });
    }
    for stream in 0..STREAMS {
        // SAFETY: the caller's promise.
        let w: [S::F32; 2] = unsafe {
            let offset = part.offsets[stream];
            let pair = at.1.add(offset);
            [W::load(s, pair, i, 0), W::load(s, pair, i, 1)]
        };
        for (x, sums) in x.iter().zip(sums.iter_mut()) {
            for (sum, w) in sums[stream].iter_mut().zip(w) {
                *sum = W::Words::add(s, *x, w, *sum);
            }
        }
    }
}

/// Adds the bias and writes the outputs from `column` on of one row, without the padding of the last panel.
#[inline(always)]
pub(super) fn write_outputs(p: &Product<'_>, row: usize, column: usize, outputs: &mut [f32]) {
    let n = p.w.n();
    let columns = outputs.len().min(n - column);
    if let Some(bias) = p.bias {
        for (output, bias) in outputs.iter_mut().zip(&bias[column..column + columns]) {
            *output += bias;
        }
    }
    // SAFETY: each panel is computed once, by one thread, and this is a part of it in row `row`.
    unsafe {
        let y = p.y.at(row * n + column, columns);
        std::ptr::copy_nonoverlapping(outputs.as_ptr(), y, columns);
    }
}
