//! The plan of a step's attention: a schedule of the cache reads, made on the host and read on the device.

use std::ffi::{CStr, c_char};
use std::iter;
use std::ops::Range;

use candle_core::cuda_backend::cudarc::driver::result::memcpy_htod_async;
use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute;
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaSlice, DevicePtr, DriverError, PinnedHostSlice,
};
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::super::elements::scale_and_cap;
use super::super::launch::{Address, Launch, describe};
use super::super::staging::after_copies;
use super::ffi::{
    Buffers, Functions, Kernel, MESSAGE_BYTES, PLAN_WORDS, PlanArgs, REFUSED, RunArgs, Shape,
    SinkArgs, candlepower_weigh_sinks,
};
use super::fp8_decode::Fp8Decode;
use super::hopper::hopper_capability;
use super::support::{check, check_latent, decode_kernel};
use super::tables::TableLayout;
use crate::operands::{
    AttentionSpec, AttentionStep, LaunchShape, PagedCache, PagedLayer, PlanCapacity, PromptLayers,
    check_cache, check_step, check_window, fp8_decode_obstacle, hopper_fits, hopper_obstacle,
    hopper_takes,
};
use candlepower_kernels::operands::SequenceView;
use candlepower_kernels::{Error, KvCacheConfig, PagedAttention, Result};
use candlepower_layout::{SCHEDULE_BYTES, SCHEDULES};

pub(super) const KERNEL: &str = "paged_attention";

/// Group sizes (query heads per KV head) that FlashInfer's decode kernel supports. The prefill kernel supports any.
const DECODE_GROUPS: [usize; 7] = [1, 2, 3, 4, 6, 8, 16];

/// Flags of pinned memory that the host reads as well: not write-combined, which is slow to read.
const READ_BACK: u32 = 0;

/// FlashInfer's kernel for decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeKernel {
    /// The decode kernel, if it supports the number of heads per group and there is no window.
    CudaCores,
    /// The prefill kernel.
    TensorCores,
}

/// Parts of steps that FlashInfer's kernel for Hopper computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HopperParts {
    None,
    /// Those for which it is expected to be faster.
    Large,
    /// All with a prompt.
    Prompts,
}

/// Memory and schedule of the attention of one step: call `prepare` once, then `attend` for each layer.
///
/// Decodes at the beginning of a step are planned apart from the prompts behind them. FlashInfer has one size of tiles
/// for a plan, by the average number of queries: with tiles of 128 rows each decode would compute 128, of which it needs
/// a few.
///
/// All memory is reserved in `new`, at fixed addresses. `prepare` runs on the host and queues one or two copies to the
/// device. It waits only if its previous copies have not ended yet. `attend` only launches kernels. With
/// [`LaunchShape::Fixed`] a CUDA graph can therefore capture it, and later plans apply to the replays.
#[derive(Debug)]
pub struct AttentionPlan {
    device: CudaDevice,
    spec: AttentionSpec,
    cache: KvCacheConfig,
    capacity: PlanCapacity,
    decode_kernel: DecodeKernel,
    hopper: HopperParts,
    /// The division of decodes, where our own kernel for an FP8 cache computes them.
    fp8_decode: Option<Fp8Decode>,
    partials: CudaSlice<u8>,
    /// `[tokens, heads]`, if the model has attention sinks.
    lse: Option<CudaSlice<f32>>,
    /// [`SCHEDULES`] of them.
    schedule: CudaSlice<u8>,
    /// For each part of a step `query_start`, `page_start`, `last_page_len` and page indices, one after the other.
    tables: CudaSlice<u32>,
    schedule_host: PinnedHostSlice<u8>,
    tables_host: PinnedHostSlice<u32>,
    /// Event after the last copy from pinned memory.
    copied: Option<CudaEvent>,
    /// The planned parts of a step: none before `prepare`.
    prepared: Vec<Prepared>,
}

/// The plan of a part of a step: of sequences whose tokens are neighbours.
#[derive(Clone, Copy)]
struct Prepared {
    kernel: Kernel,
    shape: Shape,
    words: [i64; PLAN_WORDS],
    /// The part's first token in the step.
    first_token: usize,
    tables: TableLayout,
    /// Index of the part's schedule.
    schedule: usize,
    /// Blocks that merge partial results of [`Kernel::Fp8Decode`], for each KV head.
    merge_blocks: usize,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

impl AttentionPlan {
    /// Reserves the memory of plans for a cache of these dimensions.
    ///
    /// # Errors
    /// The device is no GPU, `spec` does not fit the cache, `head_dim` is not 64, 128, 256 or 512, or memory does not
    /// suffice.
    ///
    /// For a cache of latents: they are not 512 elements of 576; there are more than 128 heads, or attention sinks; or
    /// latents are FP8 and queries are not bf16, or thread blocks have less than 181 KiB of shared memory.
    pub fn new(
        device: &Device,
        spec: AttentionSpec,
        cache: &KvCacheConfig,
        capacity: PlanCapacity,
    ) -> Result<Self> {
        let Device::Cuda(device) = device else {
            let device = device.location();
            return Err(Error::NotOnGpu { kernel: KERNEL, operand: "device", device });
        };
        check(&spec, cache)?;
        let stream = device.cuda_stream();
        let context = stream.context().clone();
        if cache.latent.is_some() {
            let bytes = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
            check_latent(&spec, &capacity, context.attribute(bytes).map_err(driver)?)?;
        }
        // Three tables have an entry for each sequence, and in each part one more where ends are kept.
        let tables = 3 * (capacity.max_seqs + SCHEDULES) + capacity.max_pages;
        let schedules = SCHEDULES * SCHEDULE_BYTES;
        let lse = capacity.sink_tokens * spec.heads;
        // SAFETY: pinned memory begins undefined; `prepare` writes what is copied from it, and any bits are valid
        // values of its types.
        let (schedule_host, tables_host) = unsafe {
            (
                context.alloc_pinned_with_flags(schedules, READ_BACK).map_err(driver)?,
                context.alloc_pinned_with_flags(tables, READ_BACK).map_err(driver)?,
            )
        };
        Ok(Self {
            spec,
            cache: *cache,
            capacity,
            decode_kernel: decode_kernel(&spec, cache),
            hopper: HopperParts::None,
            fp8_decode: None,
            partials: stream.alloc_zeros(capacity.partials_bytes).map_err(driver)?,
            lse: (lse > 0).then(|| stream.alloc_zeros(lse)).transpose().map_err(driver)?,
            schedule: stream.alloc_zeros(schedules).map_err(driver)?,
            tables: stream.alloc_zeros(tables).map_err(driver)?,
            schedule_host,
            tables_host,
            copied: None,
            prepared: Vec::new(),
            device: device.clone(),
        })
    }

    /// Replaces the kernel for decodes that was chosen by the heads and the cache.
    #[must_use]
    pub fn with_decode_kernel(mut self, decode_kernel: DecodeKernel) -> Self {
        self.decode_kernel = decode_kernel;
        self
    }

    /// Computes prompts by FlashInfer's kernel for Hopper where it is expected to be faster. Its schedules take the memory
    /// that is reserved already.
    ///
    /// # Errors
    /// The kernel was not compiled, or it does not support the plan's layers.
    pub fn with_hopper_prefill(self) -> Result<Self> {
        self.with_hopper(HopperParts::Large)
    }

    /// Computes all prompts by FlashInfer's kernel for Hopper, even the shortest, to compare it with others.
    ///
    /// # Errors
    /// Same as [`AttentionPlan::with_hopper_prefill`].
    pub fn with_hopper_for_all_prompts(self) -> Result<Self> {
        self.with_hopper(HopperParts::Prompts)
    }

    /// Computes decodes over an FP8 cache by our own kernel, `fp8_decode.cu`. Its schedules and partial results take the memory
    /// that is reserved already.
    ///
    /// # Errors
    /// The kernel does not support the plan's layers, or CUDA refused.
    pub fn with_fp8_decode(self) -> Result<Self> {
        self.with_fp8_decode_blocks(None)
    }

    /// The same with this number of blocks in each launch, instead of those that run at once on the device.
    ///
    /// # Errors
    /// Same as [`AttentionPlan::with_fp8_decode`].
    pub fn with_fp8_decode_blocks(mut self, blocks: Option<usize>) -> Result<Self> {
        if let Some(obstacle) = fp8_decode_obstacle(&self.spec, &self.cache) {
            let message = format!("fp8_decode.cu cannot be used: {obstacle}");
            return Err(Error::Metadata(message));
        }
        // The function asks the CUDA runtime, which works in the thread's current context.
        self.device.cuda_stream().context().bind_to_thread().map_err(driver)?;
        self.fp8_decode = Some(Fp8Decode::new(&self.spec, &self.cache, &self.capacity, blocks)?);
        Ok(self)
    }

    fn with_hopper(mut self, hopper: HopperParts) -> Result<Self> {
        let layers = PromptLayers {
            spec: self.spec,
            head_dim: self.cache.head_dim,
            has_latents: self.cache.latent.is_some(),
            // `attend` refuses it.
            has_softcap: false,
            has_sinks: self.capacity.sink_tokens > 0,
        };
        if let Some(obstacle) = hopper_obstacle(hopper_capability(), &layers) {
            let message = format!("FlashInfer's kernel for Hopper cannot be used: {obstacle}");
            return Err(Error::Metadata(message));
        }
        self.hopper = hopper;
        Ok(self)
    }

    /// Plans a step and queues its schedule on the stream.
    ///
    /// # Errors
    /// The metadata contradicts itself or the cache, the step is larger than the capacity, or CUDA or FlashInfer
    /// refused.
    pub fn prepare(&mut self, step: &AttentionStep<'_>) -> Result<()> {
        // A plan that fails must not leave the plan of an older step in place.
        self.prepared.clear();
        let sequences = check_step(step, self.spec.heads, &self.cache, &self.capacity)?;
        let parts = self.parts(&sequences);
        self.wait_for_copies()?;
        let queued = self.queue(step, &sequences, &parts);
        // An error may follow a copy that is queued, so the event is recorded in any case.
        self.copied = Some(after_copies(&self.device.cuda_stream()).map_err(driver)?);
        self.prepared = queued?;
        Ok(())
    }

    /// The sequences of each part that has a plan of its own: decodes at the beginning of the step, and the rest.
    fn parts(&self, sequences: &[SequenceView<'_>]) -> Vec<Range<usize>> {
        let decodes = sequences.iter().take_while(|seq| seq.num_queries == 1).count();
        let rest = &sequences[decodes..];
        // Tiles of latents have one size, whatever the step.
        let apart = decodes > 0
            && self.cache.latent.is_none()
            && rest.iter().any(|sequence| sequence.num_queries > 0);
        match apart {
            true => vec![0..decodes, decodes..sequences.len()],
            false => iter::once(0..sequences.len()).collect(),
        }
    }

    /// Plans the parts of a step, and queues the copies of their schedules and tables.
    fn queue(
        &mut self,
        step: &AttentionStep<'_>,
        sequences: &[SequenceView<'_>],
        parts: &[Range<usize>],
    ) -> Result<Vec<Prepared>> {
        let (mut prepared, mut used) = (Vec::new(), 0);
        for (schedule, part) in parts.iter().enumerate() {
            let own = &sequences[part.clone()];
            let tables = TableLayout { first: used, seqs: own.len() };
            let host = self.tables_host.as_mut_slice().map_err(driver)?;
            let block_tables = own.iter().map(|sequence| sequence.block_table);
            let block_size = self.cache.block_size;
            used = tables.fill(host, step.meta, part.start, block_tables, block_size);
            let kernel = self.kernel_for(own, step.launch);
            prepared.push(match kernel {
                Kernel::Fp8Decode => self.plan_fp8_decode(step, part, tables, schedule)?,
                _ => self.plan(kernel, step, part, tables, schedule)?,
            });
        }
        let stream = self.device.cuda_stream();
        let (address, _guard) = self.tables.device_ptr(&stream);
        let tables = &self.tables_host.as_slice().map_err(driver)?[..used];
        // SAFETY: both sides hold `used` elements; `prepare` records an event, and before it has passed the pinned side
        // is not written again and neither side is freed.
        unsafe { memcpy_htod_async(address, tables, stream.cu_stream()) }.map_err(driver)?;
        Ok(prepared)
    }

    /// Computes the attention of the planned step in one layer: `out` = softmax(q k^T * scale) v over each query's
    /// sequence, causal, with the plan's window and `params.softcap`.
    ///
    /// `sinks`, f32 `[heads]`, are attention sink logits: each head's logit joins its softmax and has no value. They
    /// are applied to the rounded output. So is the scale of cached values, for latents and for heads of 512 elements
    /// in steps that are not decodes.
    ///
    /// `q` is `[tokens, heads, head_dim]`, `out` `[tokens, heads, value_dim]`; head `h` reads key-value head
    /// `h / (heads / kv_heads)`. This step's keys and values must be in the cache. The CPU's reference implementation
    /// is [`candlepower_kernels::paged_attention_reference`].
    ///
    /// # Errors
    /// Nothing was prepared; `params.window` is not the plan's; the plan has no room for sinks; scores over latents
    /// have a softcap; an operand has the wrong dtype, shape, layout or device; or CUDA or FlashInfer refused.
    ///
    /// Source: Ye et al., "FlashInfer: Efficient and Customizable Attention Engine for LLM Inference
    /// Serving", 2025.
    pub fn attend(
        &self,
        q: &Tensor,
        layer: &PagedLayer,
        params: &PagedAttention,
        sinks: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let tokens: usize = self.prepared.iter().map(|part| part.shape.tokens as usize).sum();
        let Some(first) = self.prepared.first() else {
            return Err(Error::Metadata("prepare() comes before attend()".into()));
        };
        check_window(params, &self.spec)?;
        check_cache(layer, &self.spec)?;
        if self.cache.latent.is_some() && params.softcap.is_some() {
            return Err(Error::Metadata("scores over latents have no soft cap on a GPU".into()));
        }
        if self.hopper != HopperParts::None && (params.softcap.is_some() || sinks.is_some()) {
            let message = "FlashInfer's kernel for Hopper has neither soft cap nor attention sinks";
            return Err(Error::Metadata(message.into()));
        }
        let launch = Launch::new(KERNEL, "q", q)?;
        if launch.dtype_code() != first.shape.dtype {
            return Err(Error::DType {
                kernel: KERNEL,
                operand: "q",
                expected: "the plan's dtype",
                found: q.dtype(),
            });
        }
        let heads = self.spec.heads;
        let dims = [tokens, heads, self.cache.head_dim];
        let out_dims = [tokens, heads, self.cache.value_dim()];
        let (axes, cache_axes) =
            ("[tokens, heads, head_dim]", "[num_blocks, kv_heads, block_size, head_dim]");
        let out_axes = "[tokens, heads, value_dim]";
        // A cache of latents has keys alone, which attention reads as values, too.
        let value_scale = match self.cache.latent {
            Some(_) => layer.scales.key,
            None => layer.scales.value,
        };
        let cache_dims = PagedCache::dims(&self.cache);
        let rows = tokens * heads;
        let weigh_sinks = match sinks {
            Some(sinks) => Some(SinkArgs {
                out: launch.elements(("out", out), out_axes, &out_dims)?,
                lse: self.lse_of(rows)?,
                sinks: launch.f32s(("sinks", sinks), "[heads]", &[heads])?,
                rows: rows as i64,
                heads: heads as i32,
                head_dim: self.cache.head_dim as i32,
                dtype: launch.dtype_code(),
                padding: 0,
            }),
            None => None,
        };
        let operands = StepOperands {
            q: launch.elements(("q", q), axes, &dims)?,
            keys: launch.cached(("keys", &layer.keys), cache_axes, &cache_dims)?,
            values: launch.cached(("values", &layer.values), cache_axes, &cache_dims)?,
            out: launch.elements(("out", out), out_axes, &out_dims)?,
            lse: weigh_sinks.as_ref().map(|args| args.lse),
            // Cached keys are divided by their scale, so scores are multiplied by it.
            scale: params.scale * layer.scales.key,
            softcap: params.softcap.unwrap_or(0.0),
            value_scale,
        };
        for part in &self.prepared {
            self.attend_part(&launch, part, &operands)?;
            if part.kernel.leaves_values_unscaled(self.cache.head_dim) && value_scale != 1.0 {
                let own = out.narrow(0, part.first_token, part.shape.tokens as usize)?;
                scale_and_cap(&own, value_scale, None)?;
            }
        }
        match weigh_sinks {
            // SAFETY: the addresses were checked above; `lse_of` has checked that there is an element for each row.
            Some(args) => unsafe { launch.run(candlepower_weigh_sinks, &args) },
            None => Ok(()),
        }
    }

    /// Computes the attention of a part of the step.
    fn attend_part(&self, launch: &Launch, part: &Prepared, operands: &StepOperands) -> Result<()> {
        let (tables, _guard) = self.tables.device_ptr(self.tables.stream());
        let table = |first: usize| (tables + (first * size_of::<u32>()) as u64) as Address;
        // Queries and outputs have two bytes an element.
        let rows = part.first_token * self.spec.heads;
        let from = |address: Address, bytes: usize| address.wrapping_byte_add(rows * bytes);
        let mut message: [c_char; MESSAGE_BYTES] = [0; MESSAGE_BYTES];
        let args = RunArgs {
            // The kernels only read the device's buffers.
            buffers: self.buffers(std::ptr::null_mut(), part.schedule),
            shape: part.shape,
            q: from(operands.q, 2 * self.cache.head_dim),
            keys: operands.keys,
            values: operands.values,
            out: from(operands.out, 2 * self.cache.value_dim()),
            lse: operands.lse.map_or(std::ptr::null_mut(), |lse| from(lse, size_of::<f32>())),
            query_start: table(part.tables.query_start()),
            page_start: table(part.tables.page_start()),
            page_indices: table(part.tables.page_indices()),
            last_page_len: table(part.tables.last_page_len()),
            plan: part.words.as_ptr(),
            message: message.as_mut_ptr(),
            scale: operands.scale,
            softcap: operands.softcap,
            value_scale: operands.value_scale,
            padding: 0,
        };
        if let (Kernel::Fp8Decode, Some(decode)) = (part.kernel, &self.fp8_decode) {
            // SAFETY: as below. `plan_fp8_decode` made the schedule.
            return unsafe { decode.run(launch, &args, (self.cache.head_dim, part.merge_blocks)) };
        }
        let functions = self.functions(part.kernel);
        // SAFETY: the caller has checked the operands of all parts; `prepare` checked that the tables name blocks of the
        // cache, and the plan's memory lives as long as `self`, whose drop waits for the stream.
        let result = unsafe { launch.run(functions.run, &args) };
        result.map_err(|error| with_message(error, &message))
    }

    /// Memory for one f32 for each of `rows` rows.
    fn lse_of(&self, rows: usize) -> Result<Address> {
        let room = self.lse.as_ref().filter(|lse| rows <= lse.len());
        match room {
            Some(lse) => Ok(lse.device_ptr(lse.stream()).0 as Address),
            None => {
                let bound = self.lse.as_ref().map_or(0, CudaSlice::len) + 1;
                let index = "rows with sinks";
                Err(Error::OutOfRange { kernel: KERNEL, index, value: rows, bound })
            }
        }
    }

    /// The kernel for the sequences of a part.
    fn kernel_for(&self, sequences: &[SequenceView<'_>], launch: LaunchShape) -> Kernel {
        if self.cache.latent.is_some() {
            return Kernel::Latent;
        }
        if sequences.iter().any(|sequence| sequence.num_queries != 1) {
            return match launch == LaunchShape::Fitted && self.hopper_takes(sequences) {
                true => Kernel::Hopper,
                false => Kernel::Prefill,
            };
        }
        if self.fp8_decode.is_some() {
            return Kernel::Fp8Decode;
        }
        let fits = self.spec.window.is_none() && DECODE_GROUPS.contains(&self.group());
        let wanted = self.decode_kernel == DecodeKernel::CudaCores;
        if wanted && fits { Kernel::Decode } else { Kernel::Prefill }
    }

    /// Whether the kernel for Hopper takes a part with these sequences, which are not all decodes.
    fn hopper_takes(&self, sequences: &[SequenceView<'_>]) -> bool {
        let takes = match self.hopper {
            HopperParts::None => return false,
            HopperParts::Large => hopper_takes,
            HopperParts::Prompts => hopper_fits,
        };
        let tokens = sequences.iter().map(|sequence| sequence.num_queries).sum();
        takes(tokens, sequences.len(), self.spec.heads, self.cache.head_dim)
    }

    /// Number of query heads per KV head.
    fn group(&self) -> usize {
        self.spec.heads / self.cache.num_kv_heads
    }

    fn functions(&self, kernel: Kernel) -> Functions {
        Functions::of(kernel, self.cache.head_dim).expect("new() checked the head dimension")
    }

    /// The buffers of a part with the schedule `schedule`, which the planner writes to `host` first. All parts share the partial results, because the next part's
    /// kernel waits for the end of the one that reads them.
    fn buffers(&self, host: Address, schedule: usize) -> Buffers {
        let stream = self.device.cuda_stream();
        let address = |slice: &CudaSlice<u8>| slice.device_ptr(&stream).0 as Address;
        Buffers {
            partials: address(&self.partials),
            schedule: address(&self.schedule).wrapping_byte_add(schedule * SCHEDULE_BYTES),
            host,
            partials_bytes: self.partials.len() as i64,
            schedule_bytes: SCHEDULE_BYTES as i64,
        }
    }

    /// The shape of a part of a step, and its first token.
    fn shape(
        &self,
        step: &AttentionStep<'_>,
        part: &Range<usize>,
        layout: TableLayout,
    ) -> (Shape, usize) {
        let first_token = step.meta.query_start[part.start] as usize;
        let shape = Shape {
            seqs: layout.seqs as i32,
            tokens: step.meta.query_start[part.end] as i32 - first_token as i32,
            heads: self.spec.heads as i32,
            kv_heads: self.cache.num_kv_heads as i32,
            block_size: self.cache.block_size as i32,
            dtype: if self.spec.dtype == DType::BF16 { 0 } else { 1 },
            // FlashInfer counts the positions to the left of the query, without the query itself. -1 is no
            // window.
            window_left: self.spec.window.map_or(-1, |window| window as i32 - 1),
            fixed_launch: i32::from(step.launch.is_fixed()),
            fp8_cache: i32::from(self.spec.cache_dtype == DType::F8E4M3),
            whole_contexts: i32::from(step.launch == LaunchShape::FixedWhole),
        };
        (shape, first_token)
    }

    /// Divides the decodes `part` among the blocks of our own kernel, and queues the copy of its schedule.
    fn plan_fp8_decode(
        &mut self,
        step: &AttentionStep<'_>,
        part: &Range<usize>,
        layout: TableLayout,
        schedule: usize,
    ) -> Result<Prepared> {
        let (shape, first_token) = self.shape(step, part, layout);
        let tables = self.tables_host.as_slice().map_err(driver)?;
        let pages = &tables[layout.page_start()..];
        let contexts = &step.meta.context_len[part.clone()];
        let seqs = contexts.iter().zip(pages).map(|(len, page)| (*len as usize, *page as usize));
        let host = &mut self.schedule_host.as_mut_slice().map_err(driver)?
            [schedule * SCHEDULE_BYTES..][..SCHEDULE_BYTES];
        let decode = self.fp8_decode.as_mut().expect("kernel_for() chose it");
        let (written, merge_blocks) = decode.plan(host, seqs, step.launch.is_fixed());
        let stream = self.device.cuda_stream();
        let (address, _guard) = self.schedule.device_ptr(&stream);
        for bytes in written.into_iter().filter(|bytes| !bytes.is_empty()) {
            let to = address + (schedule * SCHEDULE_BYTES + bytes.start) as u64;
            // SAFETY: both sides hold these bytes; `prepare` records an event, and before it has passed the pinned side is
            // not written again and neither side is freed.
            unsafe { memcpy_htod_async(to, &host[bytes], stream.cu_stream()) }.map_err(driver)?;
        }
        let (kernel, words) = (Kernel::Fp8Decode, [0; PLAN_WORDS]);
        Ok(Prepared { kernel, shape, words, first_token, tables: layout, schedule, merge_blocks })
    }

    /// Calls FlashInfer's planner for the sequences `part`, which queues the copy of its schedule.
    fn plan(
        &mut self,
        kernel: Kernel,
        step: &AttentionStep<'_>,
        part: &Range<usize>,
        layout: TableLayout,
        schedule: usize,
    ) -> Result<Prepared> {
        let (shape, first_token) = self.shape(step, part, layout);
        let mut words = [0i64; PLAN_WORDS];
        let mut message: [c_char; MESSAGE_BYTES] = [0; MESSAGE_BYTES];
        let host = self.schedule_host.as_mut_ptr().map_err(driver)?;
        let host = host.wrapping_add(schedule * SCHEDULE_BYTES).cast();
        let tables = self.tables_host.as_mut_slice().map_err(driver)?;
        let args = PlanArgs {
            query_start: tables[layout.query_start()..].as_mut_ptr(),
            page_start: tables[layout.page_start()..].as_mut_ptr(),
            context_len: step.meta.context_len[part.start..].as_ptr(),
            buffers: self.buffers(host, schedule),
            shape,
            plan: words.as_mut_ptr(),
            message: message.as_mut_ptr(),
        };
        let stream = self.device.cuda_stream();
        // FlashInfer's planner calls the CUDA runtime, which works in the thread's current context.
        stream.context().bind_to_thread().map_err(driver)?;
        let functions = self.functions(kernel);
        // SAFETY: each table holds `seqs + 1` elements from its offset on, `context_len` holds `seqs`, `words` and
        // `message` have the sizes of the header, and the schedules on host and device have the same size.
        let code = unsafe { (functions.plan)(&args, stream.cu_stream()) };
        if code != 0 {
            let message = if code == REFUSED { text(&message) } else { describe(code) };
            return Err(Error::Cuda { kernel: KERNEL, message });
        }
        Ok(Prepared {
            kernel,
            shape,
            words,
            first_token,
            tables: layout,
            schedule,
            merge_blocks: 0,
        })
    }

    /// Waits until the copies from pinned memory have ended, so that it may be written again.
    fn wait_for_copies(&mut self) -> Result<()> {
        match self.copied.take() {
            // sync: waits for a copy of the previous step, which has ended long ago unless the device lags.
            Some(event) => event.synchronize().map_err(driver),
            None => Ok(()),
        }
    }
}

/// The operands of all parts of a step in one layer, which were checked.
struct StepOperands {
    q: Address,
    keys: Address,
    values: Address,
    out: Address,
    lse: Option<Address>,
    scale: f32,
    softcap: f32,
    value_scale: f32,
}

impl Drop for AttentionPlan {
    fn drop(&mut self) {
        // Errors cannot be handled here. Pinned memory must not be freed before its copies have ended.
        let _ = self.wait_for_copies();
    }
}

fn driver(error: DriverError) -> Error {
    super::super::launch::driver(KERNEL, error)
}

/// Replaces an error's message by FlashInfer's own, if there is one.
fn with_message(error: Error, message: &[c_char; MESSAGE_BYTES]) -> Error {
    match error {
        Error::Cuda { kernel, .. } if message[0] != 0 => {
            Error::Cuda { kernel, message: text(message) }
        }
        error => error,
    }
}

fn text(message: &[c_char; MESSAGE_BYTES]) -> String {
    // SAFETY: the array was filled with zeros, and the C side terminates what it writes with a zero.
    unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned()
}
