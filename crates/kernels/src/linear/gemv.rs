//! The product for few rows: bound by the memory that the weights stream from.
//!
//! A thread reads several panels at once, which are several sequential streams: that gives the memory
//! system more to do in parallel than one stream, and the arithmetic more independent chains.

use std::ops::Range;

use super::Product;
use super::format::{Format, Pair, WithFormat};
use crate::parallel;
use crate::simd::{LANES, Simd, WithSimd};
use crate::weight::PANEL;

/// How far ahead of their use the weights of a stream are fetched.
const PREFETCH_BYTES: usize = 3072;

/// Products of fewer multiplications than this run on the calling thread.
const INLINE_PRODUCTS: usize = 64 * 1024;

/// Computes a product of 1 to `S::GEMV_ROWS` rows.
pub(super) struct Gemv;

impl<S: Simd> WithFormat<S> for Gemv {
    #[inline(always)]
    fn with<W: Format>(self, s: S, p: &Product<'_>) {
        let x = W::words(p.x, p.w.k());
        by_rows::<S, W>(s, &Product { x: &x, ..*p });
    }
}

/// The activations of `p` are words.
#[inline(always)]
fn by_rows<S: Simd, W: Format>(s: S, p: &Product<'_>) {
    // Streams are as many as the accumulators allow, two vectors per row and stream; fewer rows need
    // more of them, to have enough independent chains.
    if const { S::GEMV_ROWS == 8 } {
        match p.rows {
            1 => over_panels::<S, W, 1, 4>(s, p),
            2 => over_panels::<S, W, 2, 4>(s, p),
            3 => over_panels::<S, W, 3, 2>(s, p),
            4 => over_panels::<S, W, 4, 2>(s, p),
            5 => over_panels::<S, W, 5, 1>(s, p),
            6 => over_panels::<S, W, 6, 1>(s, p),
            7 => over_panels::<S, W, 7, 1>(s, p),
            8 => over_panels::<S, W, 8, 1>(s, p),
            rows => unreachable!("{rows} rows are a matter for tiles"),
        }
    } else {
        match p.rows {
            1 => over_panels::<S, W, 1, 2>(s, p),
            2 => over_panels::<S, W, 2, 1>(s, p),
            rows => unreachable!("{rows} rows are a matter for tiles"),
        }
    }
}

#[inline(always)]
fn over_panels<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(s: S, p: &Product<'_>) {
    let panels = p.w.n().div_ceil(PANEL);
    let work = |panels: Range<usize>| {
        s.run(Panels::<W, ROWS, STREAMS> { p, panels, format: std::marker::PhantomData })
    };
    if p.x.len() * p.w.n() <= INLINE_PRODUCTS {
        work(0..panels);
    } else {
        parallel::for_ranges(panels, STREAMS, work);
    }
}

/// A range of panels as work for an instruction set.
struct Panels<'a, W, const ROWS: usize, const STREAMS: usize> {
    p: &'a Product<'a>,
    panels: Range<usize>,
    format: std::marker::PhantomData<W>,
}

impl<W: Format, const ROWS: usize, const STREAMS: usize> WithSimd for Panels<'_, W, ROWS, STREAMS> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        // Stream `i` reads the `i`-th part of the range, so each stream is one run of memory.
        let per_stream = self.panels.len() / STREAMS;
        for panel in self.panels.start..self.panels.start + per_stream {
            panels_at_once::<S, W, ROWS, STREAMS>(s, self.p, panel, per_stream);
        }
        for panel in self.panels.start + per_stream * STREAMS..self.panels.end {
            panels_at_once::<S, W, ROWS, 1>(s, self.p, panel, 0);
        }
    }
}

/// Computes the panels `first + i * distance` for `i < STREAMS`.
#[inline(always)]
fn panels_at_once<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(
    s: S,
    p: &Product<'_>,
    first: usize,
    distance: usize,
) {
    let (k, layout) = (p.w.k(), p.w.layout());
    let row_words = k.div_ceil(W::STEPS);
    let panel_bytes = layout.panel_bytes();
    let weights = p.w.bytes();
    assert!((first + (STREAMS - 1) * distance + 1) * panel_bytes <= weights.len(), "panels exist");
    assert!(p.x.len() >= ROWS * row_words, "rows exist");
    let stride = distance * panel_bytes;
    let mut sums = [[[s.splat(0.0); 2]; STREAMS]; ROWS];
    let mut header = weights[first * panel_bytes..].as_ptr();
    for start in (0..k).step_by(layout.group) {
        let group = Group {
            x: p.x[start / W::STEPS..].as_ptr(),
            x_stride: row_words,
            header,
            stride,
            words: layout.group.min(k - start).div_ceil(W::STEPS),
        };
        // SAFETY: the group's steps lie in each of the panels and rows, as asserted above.
        unsafe { add_group::<S, W, ROWS, STREAMS>(s, &group, &mut sums) };
        header = header.wrapping_add(layout.group_bytes());
    }
    for (row, sums) in sums.iter().enumerate() {
        for (stream, sums) in sums.iter().enumerate() {
            let mut outputs = [0f32; PANEL];
            for (half, sum) in sums.iter().enumerate() {
                // SAFETY: `half * 16 + 16 <= 32`.
                unsafe { s.store(outputs.as_mut_ptr().add(half * LANES), *sum) };
            }
            write_outputs(p, row, first + stream * distance, &mut outputs);
        }
    }
}

/// Steps of `k` with one header, in every row and stream.
struct Group {
    /// The first row's activations, in words.
    x: *const f32,
    /// Words from row to row.
    x_stride: usize,
    /// The first stream's header.
    header: *const u8,
    /// Bytes from stream to stream.
    stride: usize,
    words: usize,
}

/// Adds a group to the sums.
///
/// # Safety
/// What `group` describes exists; its last pair may have one step and padding.
#[inline(always)]
unsafe fn add_group<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(
    s: S,
    group: &Group,
    sums: &mut [[[S::F32; 2]; STREAMS]; ROWS],
) {
    let fetch = |from: *const u8, bytes: usize| {
        for stream in 0..STREAMS {
            for line in 0..bytes.div_ceil(64) {
                s.prefetch(from.wrapping_add(stream * group.stride + line * 64));
            }
        }
    };
    let mut pair = group.header.wrapping_add(W::ORDER.header_bytes());
    let pair_bytes = W::ORDER.pair_bytes();
    fetch(group.header.wrapping_add(PREFETCH_BYTES), W::ORDER.header_bytes());
    let at = |pair: *const u8| Pair { header: group.header, steps: pair };
    let pair_words = 2 / W::STEPS;
    for first in (0..group.words - group.words % pair_words).step_by(pair_words) {
        // SAFETY: the caller's promise: a pair of steps more is there.
        unsafe {
            fetch(pair.wrapping_add(PREFETCH_BYTES), pair_bytes);
            for i in 0..pair_words {
                let x = group.x.add(first + i);
                word::<S, W, ROWS, STREAMS>(s, group, (x, at(pair)), i, sums);
            }
            pair = pair.add(pair_bytes);
        }
    }
    if group.words % pair_words == 1 {
        // SAFETY: the last step of each row and panel; the panel is padded to a pair.
        unsafe {
            let x = group.x.add(group.words - 1);
            word::<S, W, ROWS, STREAMS>(s, group, (x, at(pair)), 0, sums);
        }
    }
}

/// One word in every row and stream: `at` are the first row's, and the first stream's pair of steps, of which it is word `i`.
///
/// # Safety
/// All of them exist.
#[inline(always)]
unsafe fn word<S: Simd, W: Format, const ROWS: usize, const STREAMS: usize>(
    s: S,
    group: &Group,
    at: (*const f32, Pair),
    i: usize,
    sums: &mut [[[S::F32; 2]; STREAMS]; ROWS],
) {
    let mut x = [s.splat(0.0); ROWS];
    for (row, x) in x.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *x = s.splat(unsafe { *at.0.add(row * group.x_stride) });
    }
    for stream in 0..STREAMS {
        // SAFETY: the caller's promise.
        let w: [S::F32; 2] = unsafe {
            let offset = stream * group.stride;
            let at = Pair { header: at.1.header.add(offset), steps: at.1.steps.add(offset) };
            [W::load(s, at, i, 0), W::load(s, at, i, 1)]
        };
        for (x, sums) in x.iter().zip(sums.iter_mut()) {
            for (sum, w) in sums[stream].iter_mut().zip(w) {
                *sum = W::add(s, *x, w, *sum);
            }
        }
    }
}

/// Adds the bias and writes one row of one panel, without the padding of the last panel.
#[inline(always)]
fn write_outputs(p: &Product<'_>, row: usize, panel: usize, outputs: &mut [f32; PANEL]) {
    let n = p.w.n();
    let column = panel * PANEL;
    let columns = PANEL.min(n - column);
    if let Some(bias) = p.bias {
        for (output, bias) in outputs.iter_mut().zip(&bias[column..column + columns]) {
            *output += bias;
        }
    }
    // SAFETY: each panel is computed once, by one thread, and this is its part of row `row`.
    unsafe {
        let y = p.y.at(row * n + column, columns);
        std::ptr::copy_nonoverlapping(outputs.as_ptr(), y, columns);
    }
}
