//! Copies of large tensors from host memory, by several threads through pinned memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::result::memcpy_htod_async;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, PinnedHostSlice};
use candle_core::{CudaDevice, Tensor};
use candlepower_kernels::Result;
use rayon::prelude::*;

use super::launch::{Launch, driver};
use super::staging::{after_copies, pinned};
use crate::ops::{Fill, PIECE_BYTES};

const KERNEL: &str = "upload of weights";

/// Number of pieces that are prepared or copied at the same time. Eight threads that read the page cache are faster than
/// PCIe 5.0 (50 GB/s), and each has another piece in flight meanwhile.
const PIECES: usize = 16;

/// Pinned memory for pieces, which are used in turn.
///
/// Memory that is not pinned would be copied by the driver once more, on one thread: 1.6 GB/s on an H200.
#[derive(Debug)]
pub(crate) struct PinnedPieces {
    device: CudaDevice,
    pieces: Vec<Mutex<Piece>>,
    next: AtomicUsize,
}

/// Pinned memory of one piece, and the event after its copy.
#[derive(Debug)]
struct Piece {
    host: PinnedHostSlice<u8>,
    copied: Option<CudaEvent>,
}

impl PinnedPieces {
    pub(crate) fn new(device: &CudaDevice) -> Result<Self> {
        let piece = |_| {
            let host = pinned(PIECE_BYTES, device)?;
            Ok(Mutex::new(Piece { host, copied: None }))
        };
        let pieces = (0..PIECES).map(piece).collect::<Result<_>>()?;
        Ok(Self { device: device.clone(), pieces, next: AtomicUsize::new(0) })
    }

    /// Replaces `len` bytes of a tensor, which has so many after its byte `first`.
    pub(crate) fn write(
        &self,
        tensor: &Tensor,
        first: usize,
        len: usize,
        fill: &Fill<'_>,
    ) -> Result<()> {
        let launch = Launch::of_any(KERNEL, "tensor", tensor)?;
        let address = launch.own(("tensor", tensor), "any shape", tensor.dims())? as u64;
        let address = address + first as u64;
        (0..len.div_ceil(PIECE_BYTES)).into_par_iter().try_for_each(|piece| {
            let start = piece * PIECE_BYTES;
            self.write_piece(address + start as u64, PIECE_BYTES.min(len - start), &|bytes| {
                fill(start, bytes);
            })
        })
    }

    /// Copies a piece of `len` bytes to an address of the device.
    fn write_piece(&self, address: u64, len: usize, fill: &dyn Fn(&mut [u8])) -> Result<()> {
        let error = |error| driver(KERNEL, error);
        // Neighbouring pieces wait for different copies.
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % PIECES;
        // After a panic in `fill` the memory holds any bytes, as it does between two pieces.
        let mut piece = self.pieces[turn].lock().unwrap_or_else(PoisonError::into_inner);
        let Piece { host, copied } = &mut *piece;
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(error)?;
        if let Some(event) = copied.take() {
            // sync: the copy of the piece before in this memory must have ended before the memory is written.
            event.synchronize().map_err(error)?;
        }
        let host = &mut host.as_mut_slice().map_err(error)?[..len];
        fill(host);
        // SAFETY: the caller has checked that the tensor has `len` bytes at `address`. The pinned memory is neither
        // written nor freed before the event recorded below has passed.
        unsafe { memcpy_htod_async(address, host, stream.cu_stream()) }.map_err(error)?;
        *copied = Some(after_copies(&stream).map_err(error)?);
        Ok(())
    }
}

impl Drop for PinnedPieces {
    fn drop(&mut self) {
        for piece in &mut self.pieces {
            let piece = piece.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(event) = piece.copied.take() {
                // Errors cannot be handled here. Pinned memory must not be freed before its copies have ended.
                let _ = event.synchronize();
            }
        }
    }
}
