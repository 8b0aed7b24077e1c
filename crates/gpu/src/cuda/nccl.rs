//! NCCL collectives over GPUs, with one process per GPU. They run on candle's own stream, so CUDA graphs can capture
//! them.

use std::ffi::CStr;

use candle_core::cuda_backend::cudarc::nccl::sys;
use candle_core::{DType, Device, Tensor};

use super::launch::Launch;
use candlepower_kernels::{Error, Result};

/// Identifier of a group of ranks. Rank 0 creates it.
pub type NcclId = [u8; 128];

/// Sizes in elements of the first collectives: like a decode of one sequence, and like a prefill.
const WARM_UP_COUNTS: [usize; 2] = [4096, 4 << 20];

/// Membership of one rank in a group of GPUs.
#[derive(Debug)]
pub struct Nccl {
    group: sys::ncclComm_t,
    ranks: usize,
}

// SAFETY: NCCL allows calls for a communicator from any thread, one at a time, and this one has a single owner.
unsafe impl Send for Nccl {}

impl Nccl {
    /// Creates the identifier of a new group.
    ///
    /// # Errors
    /// NCCL is not installed, or refuses.
    pub fn new_id() -> Result<NcclId> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: the struct is NCCL's own and is filled by it.
        checked("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    /// Joins the group `id` of `ranks` ranks with a GPU. Returns once all ranks have joined, and have run each
    /// collective.
    ///
    /// # Errors
    /// The device is no GPU, NCCL is not installed, or the GPUs do not find each other.
    pub fn join(device: &Device, id: &NcclId, rank: usize, ranks: usize) -> Result<Self> {
        let stream = device.as_cuda_device()?.cuda_stream();
        // The group gets the GPU that is current on this thread.
        stream.context().bind_to_thread().map_err(|error| super::launch::driver("nccl", error))?;
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as _) };
        let mut group = std::ptr::null_mut();
        // SAFETY: the communicator is written before success is returned; ranks fit an int.
        let joined =
            unsafe { sys::ncclCommInitRank(&raw mut group, ranks as i32, id, rank as i32) };
        checked("ncclCommInitRank", joined)?;
        let group = Self { group, ranks };
        group.warm_up(device)?;
        Ok(group)
    }

    /// Runs small and large collectives. NCCL allocates memory when it first uses an algorithm, and this has to happen
    /// before the free memory is divided between the cache and other uses.
    fn warm_up(&self, device: &Device) -> Result<()> {
        for count in WARM_UP_COUNTS {
            let part = Tensor::zeros(count, DType::BF16, device)?;
            let all = Tensor::zeros((self.ranks, count), DType::BF16, device)?;
            self.all_reduce(&part)?;
            self.all_gather(&part, &all)?;
        }
        // sync: NCCL has allocated its memory when this returns.
        Ok(device.synchronize()?)
    }

    /// Replaces `x` by the sum of all ranks' `x`: bf16, f16 or f32 of one shape. NCCL chooses the order of additions;
    /// it is the same in every run of the same ranks.
    ///
    /// # Errors
    /// The operand has the wrong dtype, layout or device, or NCCL refused.
    ///
    /// Source: NVIDIA, "NCCL User Guide", Collective Communication Functions.
    pub fn all_reduce(&self, x: &Tensor) -> Result<()> {
        let launch = Launch::new_any_float("all_reduce", "x", x)?;
        let address = launch.elements(("x", x), "any shape", x.dims())?;
        let (count, dtype) = (x.elem_count(), dtype(x.dtype()));
        let (sum, stream) = (sys::ncclRedOp_t::ncclSum, launch.stream()?);
        // SAFETY: the address was checked to hold `count` elements, and NCCL may sum in place; the stream is the
        // device's own.
        let summed = unsafe {
            sys::ncclAllReduce(address, address, count, dtype, sum, self.group, stream.cast())
        };
        checked("ncclAllReduce", summed)
    }

    /// Fills `all`, `[ranks, ..]`, with every rank's `part`, `[..]`, in the order of the ranks: bf16, f16 or f32.
    ///
    /// # Errors
    /// Same as [`Self::all_reduce`].
    ///
    /// Source: NVIDIA, "NCCL User Guide", Collective Communication Functions.
    pub fn all_gather(&self, part: &Tensor, all: &Tensor) -> Result<()> {
        let launch = Launch::new_any_float("all_gather", "part", part)?;
        let dims = [&[self.ranks], part.dims()].concat();
        let from = launch.elements(("part", part), "any shape", part.dims())?;
        let to = launch.elements(("all", all), "[ranks, ..]", &dims)?;
        let (count, dtype, stream) = (part.elem_count(), dtype(part.dtype()), launch.stream()?);
        // SAFETY: the addresses were checked to hold the elements of one rank and of all; the stream is the device's
        // own.
        let gathered = unsafe {
            sys::ncclAllGather(from.cast_const(), to, count, dtype, self.group, stream.cast())
        };
        checked("ncclAllGather", gathered)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: this was the only owner of the communicator. It is aborted, not destroyed, because other ranks may be
        // gone and destroying waits for them.
        let _ = unsafe { sys::ncclCommAbort(self.group) };
    }
}

fn dtype(dtype: DType) -> sys::ncclDataType_t {
    match dtype {
        DType::BF16 => sys::ncclDataType_t::ncclBfloat16,
        DType::F16 => sys::ncclDataType_t::ncclFloat16,
        DType::F32 => sys::ncclDataType_t::ncclFloat32,
        other => unreachable!("{other:?} was refused when the launch was made"),
    }
}

fn checked(kernel: &'static str, code: sys::ncclResult_t) -> Result<()> {
    if code == sys::ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: the function takes any code and returns a string that lives as long as the program, even without the
    // library.
    let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(code)) }.to_string_lossy();
    // The text is that of the stand-in library on machines without NCCL (`scripts/cuda/stand_ins.py`).
    let message = match text.ends_with("is not found") {
        true => format!(
            "{text}; install NVIDIA's NCCL (PyPI: nvidia-nccl-cu13), or leave --tensor-parallel-size out"
        ),
        false => text.into_owned(),
    };
    Err(Error::Cuda { kernel, message })
}
