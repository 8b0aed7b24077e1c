//! The memory of a weight: zeroed, cache-line aligned, on huge pages where the system has them.

use std::ptr::NonNull;

use crate::{Error, Result};

/// An owned allocation that starts as zeros. Large ones are 2 MiB aligned and ask for huge pages. A decode step
/// streams every weight once, and with 4 KiB pages a fifth of that time goes into page walks: 32 to 34 GB/s were read
/// instead of 40.5.
#[derive(Debug)]
pub(super) struct WeightMemory {
    start: NonNull<u8>,
    len: usize,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Allocator(std::alloc::Layout),
    #[cfg(target_os = "linux")]
    Mapping,
}

// SAFETY: the memory is owned, and shared only through `&self` for reading.
unsafe impl Send for WeightMemory {}
// SAFETY: as above.
unsafe impl Sync for WeightMemory {}

/// Alignment of every allocation: a cache line, and a vector of AVX-512.
const LINE: usize = 64;

impl WeightMemory {
    /// `len > 0` zero bytes.
    pub(super) fn zeroed(len: usize) -> Result<Self> {
        #[cfg(target_os = "linux")]
        if len >= mapping::HUGE_PAGE {
            let start = mapping::map(len).ok_or(Error::OutOfMemory { bytes: len })?;
            return Ok(Self { start, len, backing: Backing::Mapping });
        }
        let layout = std::alloc::Layout::from_size_align(len, LINE)
            .map_err(|_| Error::OutOfMemory { bytes: len })?;
        // SAFETY: the layout is not empty: the builder refuses empty weights.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(Error::OutOfMemory { bytes: len })?;
        Ok(Self { start, len, backing: Backing::Allocator(layout) })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for WeightMemory {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: `start` came from `alloc_zeroed` with this layout.
            Backing::Allocator(layout) => unsafe {
                std::alloc::dealloc(self.start.as_ptr(), layout)
            },
            #[cfg(target_os = "linux")]
            Backing::Mapping => mapping::unmap(self.start, self.len),
        }
    }
}

#[cfg(target_os = "linux")]
mod mapping {
    //! Anonymous mappings aligned to huge pages.

    use std::ptr::NonNull;

    pub(super) const HUGE_PAGE: usize = 2 << 20;
    const PAGE: usize = 4096;

    /// Maps `len` zero bytes at a multiple of [`HUGE_PAGE`].
    pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
        let len = mapped_len(len);
        let reserved = len.checked_add(HUGE_PAGE)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no existing one.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), reserved, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        let head = base.align_offset(HUGE_PAGE);
        // SAFETY: `head < HUGE_PAGE`, so start and end of the aligned part lie in the reservation; the
        // parts given back lie in it too and nothing refers to them. A refused `madvise` (a kernel
        // without huge pages) only costs speed.
        unsafe {
            let start = base.add(head);
            if head > 0 {
                libc::munmap(base.cast(), head);
            }
            if head < HUGE_PAGE {
                libc::munmap(start.add(len).cast(), HUGE_PAGE - head);
            }
            libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
            NonNull::new(start)
        }
    }

    /// Gives back what [`map`] returned for the same `len`.
    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: `map` made exactly this mapping, and its owner is being dropped.
        unsafe { libc::munmap(start.as_ptr().cast(), mapped_len(len)) };
    }

    fn mapped_len(len: usize) -> usize {
        len.next_multiple_of(PAGE)
    }
}
