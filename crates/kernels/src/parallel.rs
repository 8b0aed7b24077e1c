//! Division of a kernel's work among the threads that it may use.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::threads::{available, share};

/// A row-wise kernel with fewer elements than this runs on the calling thread, because waking another one costs more
/// than it saves.
const INLINE_ELEMENTS: usize = 32 * 1024;

/// Builds a `[rows, width]` matrix by calling `fill(row, out_row)` once per row, in parallel when the
/// matrix is large. `out_row` starts as zeros.
///
/// The zeros are written just before each row is filled, so that they stay in the cache. A large output is then
/// written to memory once, not twice.
pub(crate) fn build_rows(
    rows: usize,
    width: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * width);
    if width == 0 {
        return out;
    }
    let target = SharedMut::new(&mut out.spare_capacity_mut()[..rows * width]);
    let work = |rows: Range<usize>| {
        for row in rows {
            // SAFETY: each row is filled once, by one thread, after it was zeroed here.
            let row_out = unsafe {
                let start = target.at(row * width, width);
                start.write_bytes(0, width);
                std::slice::from_raw_parts_mut(start, width)
            };
            fill(row, row_out);
        }
    };
    if rows * width <= INLINE_ELEMENTS {
        work(0..rows);
    } else {
        for_ranges(rows, (INLINE_ELEMENTS / 4 / width).max(1), work);
    }
    // SAFETY: the ranges cover all rows, each of which is zeroed before it is filled.
    unsafe { out.set_len(rows * width) };
    out
}

/// Calls `work` on disjoint ranges that cover `0..count`, from all threads at once.
///
/// Each claim takes a share of the remaining range: at least `min`, and a multiple of it if possible. So ranges are
/// long at first and short at the end, and a thread that the system delays does not hold up the others for long.
pub(crate) fn for_ranges(count: usize, min: usize, work: impl Fn(Range<usize>) + Sync) {
    let threads = available().min(count.div_ceil(min));
    if threads <= 1 {
        if count > 0 {
            work(0..count);
        }
        return;
    }
    let next = AtomicUsize::new(0);
    let part = |start: usize| ((count - start) / (2 * threads)).next_multiple_of(min).max(min);
    let claims = || {
        let claim = |start: usize| (start < count).then(|| (start + part(start)).min(count));
        // Relaxed suffices: `share` waits for all threads, which orders their results before it returns.
        while let Ok(start) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) {
            work(start..(start + part(start)).min(count));
        }
    };
    share(threads, &claims);
}

/// `work(0)`, `work(1)` .. `work(count - 1)`, computed by all threads at once, one item at a time.
pub(crate) fn map<T: Send + Sync>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let done: Vec<OnceLock<T>> = (0..count).map(|_| OnceLock::new()).collect();
    for_ranges(count, 1, |range| {
        for index in range {
            let set = done[index].set(work(index));
            assert!(set.is_ok(), "ranges are disjoint");
        }
    });
    done.into_iter().map(|item| item.into_inner().expect("ranges cover all items")).collect()
}

/// A buffer to which several threads write at disjoint indices.
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

    /// A buffer that is initialised already.
    pub(crate) fn of(buffer: &'a mut [f32]) -> Self {
        Self { start: buffer.as_mut_ptr(), len: buffer.len(), buffer: PhantomData }
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
