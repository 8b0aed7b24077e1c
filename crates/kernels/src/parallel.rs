//! How kernels split their work over rayon's current pool.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// Below this many elements a row-wise kernel runs on the calling thread: waking another one costs
/// more than it saves.
const INLINE_ELEMENTS: usize = 32 * 1024;

/// Builds a `[rows, width]` matrix by calling `fill(row, out_row)` once per row, in parallel when the
/// matrix is large. `out_row` starts as zeros.
///
/// The zeros are written just before each row is filled, so they stay in the cache: a large output is
/// written to memory once, not twice.
pub(crate) fn build_rows(
    rows: usize,
    width: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * width);
    let spare = &mut out.spare_capacity_mut()[..rows * width];
    if width > 0 {
        let each = |(row, uninit): (usize, &mut [MaybeUninit<f32>])| fill(row, zeroed(uninit));
        if rows * width <= INLINE_ELEMENTS {
            spare.chunks_exact_mut(width).enumerate().for_each(each);
        } else {
            let min_rows = (INLINE_ELEMENTS / 4 / width).max(1);
            spare.par_chunks_exact_mut(width).with_min_len(min_rows).enumerate().for_each(each);
        }
    }
    // SAFETY: the chunks cover all `rows * width` elements, and `zeroed` initialised each of them.
    unsafe { out.set_len(rows * width) };
    out
}

/// Initialises `uninit` with zeros and returns it as a plain slice.
fn zeroed(uninit: &mut [MaybeUninit<f32>]) -> &mut [f32] {
    for value in uninit.iter_mut() {
        value.write(0.0);
    }
    // SAFETY: every element was written above, and the layouts of both slice types are the same.
    unsafe { &mut *(std::ptr::from_mut(uninit) as *mut [f32]) }
}

/// Calls `work` on disjoint ranges that cover `0..count`, from all threads of the pool at once.
///
/// Each claim takes a share of what is left, at least `min` (and a multiple of it where it can), so
/// ranges are long at first and short at the end: a thread that the system delays does not hold up the
/// others for long.
pub(crate) fn for_ranges(count: usize, min: usize, work: impl Fn(Range<usize>) + Sync) {
    let threads = rayon::current_num_threads().min(count.div_ceil(min));
    if threads <= 1 {
        if count > 0 {
            work(0..count);
        }
        return;
    }
    let next = AtomicUsize::new(0);
    let share = |start: usize| ((count - start) / (2 * threads)).next_multiple_of(min).max(min);
    let claims = || {
        let claim = |start: usize| (start < count).then(|| (start + share(start)).min(count));
        while let Ok(start) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) {
            work(start..(start + share(start)).min(count));
        }
    };
    on_threads(threads, &claims);
}

/// Runs `work` up to `threads` times at once; a call that starts late finds nothing left to do.
fn on_threads(threads: usize, work: &(dyn Fn() + Sync)) {
    if threads <= 1 {
        return work();
    }
    rayon::join(|| on_threads(threads / 2, work), || on_threads(threads - threads / 2, work));
}

/// A buffer that several threads write at disjoint places.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<'a> {
    start: *mut f32,
    len: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is used only through `at`, whose callers promise disjoint writes.
unsafe impl Send for SharedMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedMut<'_> {}

impl<'a> SharedMut<'a> {
    pub(crate) fn new(buffer: &'a mut [MaybeUninit<f32>]) -> Self {
        Self { start: buffer.as_mut_ptr().cast(), len: buffer.len(), buffer: PhantomData }
    }

    /// A pointer to `len` elements at `index`.
    ///
    /// # Safety
    /// No other thread accesses these elements while the pointer is used, and they are not read before
    /// they are written.
    pub(crate) unsafe fn at(self, index: usize, len: usize) -> *mut f32 {
        assert!(index + len <= self.len, "{index} + {len} elements of {}", self.len);
        // SAFETY: the range was checked against the buffer this was made from.
        unsafe { self.start.add(index) }
    }
}
