//! Attention whose sums have one order: the work of a step is divided on the host, and launched for each layer.

use candle_core::cuda_backend::cudarc::driver::result::memcpy_htod_async;
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaSlice, DevicePtr, DriverError, PinnedHostSlice,
};
use candle_core::{CudaDevice, DType, Device, Tensor};
use candlepower_kernels::{Error, KvCacheConfig, PagedAttention, Result};
use candlepower_layout::{SCHEDULE_BYTES, SCHEDULES};

use super::super::launch::{Address, CUstream, Launch};
use super::super::staging::after_copies;
use super::ffi::{SinkArgs, candlepower_weigh_sinks};
use super::tables::TableLayout;
use crate::operands::{
    AttentionSpec, AttentionStep, Division, Item, NARROW_ROWS, PagedCache, PagedLayer,
    PlanCapacity, RESIDENT_BLOCKS, Work, check_cache, check_spec, check_step, check_window,
};

const KERNEL: &str = "ordered attention";

/// Flags of pinned memory that the host reads as well: not write-combined, which is slow to read.
const READ_BACK: u32 = 0;

/// Words of an item.
const ITEM_WORDS: usize = size_of::<Item>() / size_of::<u32>();
/// Words before the items of a schedule: the number of items in each list.
const HEAD_WORDS: usize = ITEM_WORDS;
/// Words of a schedule. It takes the memory that FlashInfer's schedules would take.
const SCHEDULE_WORDS: usize = SCHEDULES * SCHEDULE_BYTES / size_of::<u32>();
/// Most items of 16 rows, of 64 rows, and of merges.
const MAX_ITEMS: [usize; 3] = {
    let all = (SCHEDULE_WORDS - HEAD_WORDS) / ITEM_WORDS;
    [all / 2, all / 4, all / 4]
};
/// Widest heads that have blocks of 64 rows.
const MAX_WIDE_DIM: usize = 128;

/// Memory and schedule of the attention of one step, in a fixed order: call `prepare` once, then `attend` for each layer.
///
/// The output of a query depends on its own sequence up to its position alone, to the bit: not on other sequences, on the
/// number of queries, or on where chunks of a prompt end.
///
/// All memory is reserved in `new`, at fixed addresses. `prepare` runs on the host and queues copies to the device. It waits
/// only if its previous copies have not ended yet. `attend` only launches kernels. With a fixed launch a CUDA graph
/// can therefore capture it, and later plans apply to the replays.
#[derive(Debug)]
pub struct OrderedAttentionPlan {
    device: CudaDevice,
    spec: AttentionSpec,
    cache: KvCacheConfig,
    capacity: PlanCapacity,
    division: Division,
    work: Work,
    partials: CudaSlice<u8>,
    /// `[tokens, heads]`, if the model has attention sinks.
    lse: Option<CudaSlice<f32>>,
    schedule: CudaSlice<u32>,
    tables: CudaSlice<u32>,
    schedule_host: PinnedHostSlice<u32>,
    tables_host: PinnedHostSlice<u32>,
    /// Event after the last copy from pinned memory.
    copied: Option<CudaEvent>,
    prepared: Option<Prepared>,
}

/// A planned step.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    tokens: usize,
    seqs: usize,
    /// Blocks that are launched for each list, per KV head.
    blocks: [usize; 3],
    /// Rows of an item with partial results, at most.
    merge_rows: usize,
}

impl OrderedAttentionPlan {
    /// Reserves the memory of plans for a cache of these dimensions.
    ///
    /// # Errors
    /// The device is no GPU; `spec` does not fit the cache; heads are not of 64, 128 or 256 elements; the cache is FP8 or
    /// has latents; or memory does not suffice.
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
        let tables = 3 * (capacity.max_seqs + 1) + capacity.max_pages;
        let lse = capacity.sink_tokens * spec.heads;
        // SAFETY: pinned memory begins undefined; `prepare` writes what is copied from it, and any bits are valid values.
        let (schedule_host, tables_host) = unsafe {
            (
                context.alloc_pinned_with_flags(SCHEDULE_WORDS, READ_BACK).map_err(driver)?,
                context.alloc_pinned_with_flags(tables, READ_BACK).map_err(driver)?,
            )
        };
        let part_bytes = cache.num_kv_heads * NARROW_ROWS * (cache.head_dim + 2) * size_of::<f32>();
        Ok(Self {
            division: Division {
                group: spec.heads / cache.num_kv_heads,
                kv_heads: cache.num_kv_heads,
                window: spec.window,
                has_wide: cache.head_dim <= MAX_WIDE_DIM,
                max_parts: capacity.partials_bytes / part_bytes,
            },
            spec,
            cache: *cache,
            capacity,
            work: Work::default(),
            partials: stream.alloc_zeros(capacity.partials_bytes).map_err(driver)?,
            lse: (lse > 0).then(|| stream.alloc_zeros(lse)).transpose().map_err(driver)?,
            schedule: stream.alloc_zeros(SCHEDULE_WORDS).map_err(driver)?,
            tables: stream.alloc_zeros(tables).map_err(driver)?,
            schedule_host,
            tables_host,
            copied: None,
            prepared: None,
            device: device.clone(),
        })
    }

    /// Divides the work of a step and queues its schedule on the stream.
    ///
    /// # Errors
    /// The metadata contradicts itself or the cache, the step is larger than the capacity, or CUDA refused.
    pub fn prepare(&mut self, step: &AttentionStep<'_>) -> Result<()> {
        // A plan that fails must not leave the plan of an older step in place.
        self.prepared = None;
        let sequences = check_step(step, self.spec.heads, &self.cache, &self.capacity)?;
        let lengths =
            sequences.iter().map(|seq| (seq.num_queries, seq.first_position + seq.num_queries));
        // A fixed launch has a number of blocks for 16 rows that depends on the numbers of sequences and queries alone.
        let is_fixed = step.launch.is_fixed();
        let has_wide = self.division.has_wide && !is_fixed;
        self.work.divide(&Division { has_wide, ..self.division }, lengths);
        let lists = [&self.work.narrow, &self.work.wide, &self.work.merges];
        for (list, bound) in lists.into_iter().zip(MAX_ITEMS) {
            if list.len() > bound {
                let (index, value) = ("items of a step", list.len());
                return Err(Error::OutOfRange { kernel: KERNEL, index, value, bound: bound + 1 });
            }
        }
        let kv_heads = self.division.kv_heads;
        let rows =
            sequences.iter().map(|seq| seq.num_queries).max().unwrap_or(0) * self.division.group;
        let merge_rows = rows.min(NARROW_ROWS);
        let blocks = match is_fixed {
            false => lists.map(Vec::len),
            true => {
                let tiles = sequences.len() * rows.div_ceil(NARROW_ROWS);
                // Blocks beyond those that run at once would only take time to start.
                let merges = (2 * RESIDENT_BLOCKS / (kv_heads * merge_rows)).clamp(1, tiles);
                [tiles.max(RESIDENT_BLOCKS.div_ceil(kv_heads)), 0, merges]
            }
        };
        self.wait_for_copies()?;
        let seqs = sequences.len();
        let layout = TableLayout { first: 0, seqs };
        let host = self.tables_host.as_mut_slice().map_err(driver)?;
        let block_tables = sequences.iter().map(|sequence| sequence.block_table);
        let used = layout.fill(host, step.meta, 0, block_tables, self.cache.block_size);
        let queued = self.queue(used);
        // An error may follow a copy that is queued, so the event is recorded in any case.
        self.copied = Some(after_copies(&self.device.cuda_stream()).map_err(driver)?);
        queued?;
        self.prepared = Some(Prepared { tokens: step.tokens, seqs, blocks, merge_rows });
        Ok(())
    }

    /// Queues the copies of the lists of work and of the first `used` words of the tables.
    fn queue(&mut self, used: usize) -> Result<()> {
        let stream = self.device.cuda_stream();
        let lists = [&self.work.narrow, &self.work.wide, &self.work.merges];
        let host = self.schedule_host.as_mut_slice().map_err(driver)?;
        let mut copies = vec![0..HEAD_WORDS];
        for ((place, list), first) in host.iter_mut().zip(lists).zip(list_starts()) {
            *place = list.len() as u32;
            if !list.is_empty() {
                copies.push(first..first + list.len() * ITEM_WORDS);
            }
        }
        for (list, first) in lists.into_iter().zip(list_starts()) {
            for (item, words) in list.iter().zip(host[first..].chunks_exact_mut(ITEM_WORDS)) {
                words.copy_from_slice(&item.words());
            }
        }
        let (schedule, _guard) = self.schedule.device_ptr(&stream);
        for copy in copies {
            let to = schedule + (copy.start * size_of::<u32>()) as u64;
            // SAFETY: both sides hold these words; `prepare` records an event, and before it has passed the pinned side is
            // not written again and neither side is freed.
            unsafe { memcpy_htod_async(to, &host[copy], stream.cu_stream()) }.map_err(driver)?;
        }
        let (tables, _guard) = self.tables.device_ptr(&stream);
        let host = &self.tables_host.as_slice().map_err(driver)?[..used];
        // SAFETY: as above.
        unsafe { memcpy_htod_async(tables, host, stream.cu_stream()) }.map_err(driver)
    }

    /// Computes the attention of the planned step in one layer. Operands and results are those of
    /// [`AttentionPlan::attend`](super::AttentionPlan::attend).
    ///
    /// # Errors
    /// Nothing was prepared; `params.window` is not the plan's; the plan has no room for sinks; an operand has the wrong
    /// dtype, shape, layout or device; or CUDA refused.
    pub fn attend(
        &self,
        q: &Tensor,
        layer: &PagedLayer,
        params: &PagedAttention,
        sinks: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let Some(Prepared { tokens, seqs, blocks, merge_rows }) = self.prepared else {
            return Err(Error::Metadata("prepare() comes before attend()".into()));
        };
        check_window(params, &self.spec)?;
        check_cache(layer, &self.spec)?;
        let launch = Launch::new(KERNEL, "q", q)?;
        if q.dtype() != self.spec.dtype {
            let (operand, expected) = ("q", "the plan's dtype");
            return Err(Error::DType { kernel: KERNEL, operand, expected, found: q.dtype() });
        }
        let (heads, head_dim) = (self.spec.heads, self.cache.head_dim);
        let (axes, dims) = ("[tokens, heads, head_dim]", [tokens, heads, head_dim]);
        let cache_axes = "[num_blocks, kv_heads, block_size, head_dim]";
        let cache_dims = PagedCache::dims(&self.cache);
        let out_address = launch.elements(("out", out), axes, &dims)?;
        let rows = tokens * heads;
        let lse = sinks.map(|_| self.lse_of(rows)).transpose()?;
        let (tables, _guard) = self.tables.device_ptr(self.tables.stream());
        let (schedule, _guard) = self.schedule.device_ptr(self.schedule.stream());
        let word = |base: u64, first: usize| (base + (first * size_of::<u32>()) as u64) as Address;
        let layout = TableLayout { first: 0, seqs };
        let [narrow, wide, merges] = list_starts();
        let args = OrderedAttentionArgs {
            q: launch.elements(("q", q), axes, &dims)?,
            keys: launch.elements(("keys", &layer.keys), cache_axes, &cache_dims)?,
            values: launch.elements(("values", &layer.values), cache_axes, &cache_dims)?,
            out: out_address,
            lse: lse.unwrap_or(std::ptr::null_mut()),
            partials: self.partials.device_ptr(self.partials.stream()).0 as Address,
            query_start: word(tables, layout.query_start()),
            page_start: word(tables, layout.page_start()),
            page_indices: word(tables, layout.page_indices()),
            last_page_len: word(tables, layout.last_page_len()),
            counts: word(schedule, 0),
            narrow: word(schedule, narrow),
            wide: word(schedule, wide),
            merges: word(schedule, merges),
            partial_rows: (self.division.max_parts * self.cache.num_kv_heads * NARROW_ROWS) as i64,
            narrow_blocks: blocks[0] as i32,
            wide_blocks: blocks[1] as i32,
            merge_blocks: blocks[2] as i32,
            heads: heads as i32,
            kv_heads: self.cache.num_kv_heads as i32,
            head_dim: head_dim as i32,
            block_size: self.cache.block_size as i32,
            dtype: launch.dtype_code(),
            window: self.spec.window.unwrap_or(0) as i32,
            scale: params.scale,
            softcap: params.softcap.unwrap_or(0.0),
            merge_rows: merge_rows as i32,
        };
        // SAFETY: every address was checked above to hold the elements that the dimensions say. `prepare` checked that the
        // tables name blocks of the cache. The items name rows of the step, and partial results that fit into memory.
        unsafe { launch.run(candlepower_ordered_attention, &args) }?;
        let (Some(sinks), Some(lse)) = (sinks, lse) else { return Ok(()) };
        let args = SinkArgs {
            out: out_address,
            lse,
            sinks: launch.f32s(("sinks", sinks), "[heads]", &[heads])?,
            rows: rows as i64,
            heads: heads as i32,
            head_dim: head_dim as i32,
            dtype: launch.dtype_code(),
            padding: 0,
        };
        // SAFETY: the addresses were checked above; `lse_of` has checked that there is an element for each row.
        unsafe { launch.run(candlepower_weigh_sinks, &args) }
    }

    /// Memory for one f32 for each of `rows` rows.
    fn lse_of(&self, rows: usize) -> Result<Address> {
        match self.lse.as_ref().filter(|lse| rows <= lse.len()) {
            Some(lse) => Ok(lse.device_ptr(lse.stream()).0 as Address),
            None => {
                let bound = self.lse.as_ref().map_or(0, CudaSlice::len) + 1;
                let index = "rows with sinks";
                Err(Error::OutOfRange { kernel: KERNEL, index, value: rows, bound })
            }
        }
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

impl Drop for OrderedAttentionPlan {
    fn drop(&mut self) {
        // Errors cannot be handled here. Pinned memory must not be freed before its copies have ended.
        let _ = self.wait_for_copies();
    }
}

/// Where the lists of a schedule begin, in words. Their places are fixed, because captured graphs contain them.
const fn list_starts() -> [usize; 3] {
    let wide = HEAD_WORDS + MAX_ITEMS[0] * ITEM_WORDS;
    [HEAD_WORDS, wide, wide + MAX_ITEMS[1] * ITEM_WORDS]
}

fn check(spec: &AttentionSpec, cache: &KvCacheConfig) -> Result<()> {
    check_spec(spec, cache)?;
    let dtype =
        |operand, expected, found| Err(Error::DType { kernel: KERNEL, operand, expected, found });
    if !matches!(spec.dtype, DType::BF16 | DType::F16) {
        return dtype("dtype", "bf16 or f16", spec.dtype);
    }
    if spec.cache_dtype != spec.dtype {
        return dtype("cache_dtype", "that of q, in a fixed order", spec.cache_dtype);
    }
    let error = |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
    if let Some(latent) = cache.latent {
        return error("latent", latent, "absent, in a fixed order");
    }
    match cache.head_dim {
        64 | 128 | 256 => Ok(()),
        other => error("head_dim", other, "64, 128 or 256 in a fixed order"),
    }
}

fn driver(error: DriverError) -> Error {
    super::super::launch::driver(KERNEL, error)
}

/// Mirrors `OrderedAttentionArgs` in ordered_attention.cu.
#[repr(C)]
pub(super) struct OrderedAttentionArgs {
    pub(super) q: Address,
    pub(super) keys: Address,
    pub(super) values: Address,
    pub(super) out: Address,
    pub(super) lse: Address,
    pub(super) partials: Address,
    pub(super) query_start: Address,
    pub(super) page_start: Address,
    pub(super) page_indices: Address,
    pub(super) last_page_len: Address,
    pub(super) counts: Address,
    pub(super) narrow: Address,
    pub(super) wide: Address,
    pub(super) merges: Address,
    pub(super) partial_rows: i64,
    pub(super) narrow_blocks: i32,
    pub(super) wide_blocks: i32,
    pub(super) merge_blocks: i32,
    pub(super) heads: i32,
    pub(super) kv_heads: i32,
    pub(super) head_dim: i32,
    pub(super) block_size: i32,
    pub(super) dtype: i32,
    pub(super) window: i32,
    pub(super) scale: f32,
    pub(super) softcap: f32,
    pub(super) merge_rows: i32,
}
const _: () = assert!(size_of::<OrderedAttentionArgs>() == 168);

unsafe extern "C" {
    pub(super) fn candlepower_ordered_attention(
        args: *const OrderedAttentionArgs,
        stream: CUstream,
    ) -> i32;
}
