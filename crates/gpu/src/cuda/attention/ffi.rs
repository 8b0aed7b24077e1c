//! The C side of attention: argument structs, and the functions by kernel and head dimension.

use std::ffi::c_char;

use super::super::launch::{Address, CUstream, Launcher};

/// Number of 64-bit words of a plan, which FlashInfer keeps on the host.
pub(super) const PLAN_WORDS: usize = 18;
/// Size of the buffer for a message of FlashInfer's.
pub(super) const MESSAGE_BYTES: usize = 256;
/// Return value of functions that wrote a message, instead of a CUDA error number.
pub(super) const REFUSED: i32 = -1;

/// Mirrors `AttentionBuffers` in attention.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    pub(super) partials: Address,
    pub(super) schedule: Address,
    pub(super) host: Address,
    pub(super) partials_bytes: i64,
    pub(super) schedule_bytes: i64,
}

/// Mirrors `AttentionShape` in attention.cuh.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Shape {
    pub(super) seqs: i32,
    pub(super) tokens: i32,
    pub(super) heads: i32,
    pub(super) kv_heads: i32,
    pub(super) block_size: i32,
    pub(super) dtype: i32,
    pub(super) window_left: i32,
    pub(super) fixed_launch: i32,
    pub(super) fp8_cache: i32,
    pub(super) whole_contexts: i32,
}

/// Mirrors `PlanArgs` in attention.cuh.
#[repr(C)]
pub(super) struct PlanArgs {
    pub(super) buffers: Buffers,
    pub(super) shape: Shape,
    pub(super) query_start: *mut u32,
    pub(super) page_start: *mut u32,
    pub(super) context_len: *const u32,
    pub(super) plan: *mut i64,
    pub(super) message: *mut c_char,
}
const _: () = assert!(size_of::<PlanArgs>() == 120);

/// Mirrors `RunArgs` in attention.cuh.
#[repr(C)]
pub(super) struct RunArgs {
    pub(super) buffers: Buffers,
    pub(super) shape: Shape,
    pub(super) q: Address,
    pub(super) keys: Address,
    pub(super) values: Address,
    pub(super) out: Address,
    pub(super) lse: Address,
    pub(super) query_start: Address,
    pub(super) page_start: Address,
    pub(super) page_indices: Address,
    pub(super) last_page_len: Address,
    pub(super) plan: *const i64,
    pub(super) message: *mut c_char,
    pub(super) scale: f32,
    pub(super) softcap: f32,
    pub(super) value_scale: f32,
    pub(super) padding: i32,
}
const _: () = assert!(size_of::<RunArgs>() == 184);

/// Mirrors `SinkArgs` in elements.cu.
#[repr(C)]
pub(super) struct SinkArgs {
    pub(super) out: Address,
    pub(super) lse: Address,
    pub(super) sinks: *mut f32,
    pub(super) rows: i64,
    pub(super) heads: i32,
    pub(super) head_dim: i32,
    pub(super) dtype: i32,
    pub(super) padding: i32,
}
const _: () = assert!(size_of::<SinkArgs>() == 48);

/// FlashInfer's kernel for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// One query per sequence, without a window: bound by memory.
    Decode,
    /// Any mixture of decodes and prompts, on tensor cores.
    Prefill,
    /// The same without window, soft cap and sinks, in bf16, on Hopper: fast for long prompts.
    Hopper,
    /// `fp8_decode.cu`: one query per sequence over an FP8 cache, on tensor cores. Its planner is in Rust.
    Fp8Decode,
    /// Any mixture over latents: a cooperative launch with as many thread blocks as multiprocessors.
    Latent,
}

impl Kernel {
    /// Whether the kernel ignores the factor on the outputs.
    ///
    /// For heads above 256 elements, the values have too many columns for the registers of one warp, so FlashInfer uses
    /// a kernel whose warps share them. That kernel does not call the variant's output transform. The kernel for
    /// latents would round the factor and multiply each latent by it.
    pub(super) fn leaves_values_unscaled(self, head_dim: usize) -> bool {
        self == Self::Latent || self == Self::Prefill && head_dim > 256
    }
}

/// The planner and the kernel for one head dimension.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) plan: Launcher<PlanArgs>,
    pub(super) run: Launcher<RunArgs>,
}

impl Functions {
    /// The functions for heads of `head_dim` elements, if there are any.
    pub(super) fn of(kernel: Kernel, head_dim: usize) -> Option<Self> {
        let (plan, run): (Launcher<PlanArgs>, Launcher<RunArgs>) = match (kernel, head_dim) {
            (Kernel::Decode, 64) => (candlepower_plan_decode_64, candlepower_run_decode_64),
            (Kernel::Decode, 128) => (candlepower_plan_decode_128, candlepower_run_decode_128),
            (Kernel::Decode, 256) => (candlepower_plan_decode_256, candlepower_run_decode_256),
            (Kernel::Decode, 512) => (candlepower_plan_decode_512, candlepower_run_decode_512),
            (Kernel::Prefill, 64) => (candlepower_plan_prefill_64, candlepower_run_prefill_64),
            (Kernel::Prefill, 128) => (candlepower_plan_prefill_128, candlepower_run_prefill_128),
            (Kernel::Prefill, 256) => (candlepower_plan_prefill_256, candlepower_run_prefill_256),
            (Kernel::Prefill, 512) => (candlepower_plan_prefill_512, candlepower_run_prefill_512),
            (Kernel::Hopper, 64) => (candlepower_plan_hopper_64, candlepower_run_hopper_64),
            (Kernel::Hopper, 128) => (candlepower_plan_hopper_128, candlepower_run_hopper_128),
            (Kernel::Hopper, 256) => (candlepower_plan_hopper_256, candlepower_run_hopper_256),
            (Kernel::Latent, 576) => (candlepower_plan_latent, candlepower_run_latent),
            _ => return None,
        };
        Some(Self { plan, run })
    }
}

unsafe extern "C" {
    pub(super) fn candlepower_weigh_sinks(args: *const SinkArgs, stream: CUstream) -> i32;
    fn candlepower_plan_latent(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_run_latent(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_plan_decode_64(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_decode_128(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_decode_256(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_decode_512(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_prefill_64(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_prefill_128(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_prefill_256(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_prefill_512(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_hopper_64(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_hopper_128(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_plan_hopper_256(args: *const PlanArgs, stream: CUstream) -> i32;
    fn candlepower_run_decode_64(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_decode_128(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_decode_256(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_decode_512(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_prefill_64(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_prefill_128(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_prefill_256(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_prefill_512(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_hopper_64(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_hopper_128(args: *const RunArgs, stream: CUstream) -> i32;
    fn candlepower_run_hopper_256(args: *const RunArgs, stream: CUstream) -> i32;
}
