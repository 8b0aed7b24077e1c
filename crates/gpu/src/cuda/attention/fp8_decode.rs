//! Decodes over an FP8 cache by our own kernel: their schedule, and its launch beside the merge of partial results.

use candlepower_kernels::{Error, KvCacheConfig, Result};
use candlepower_layout::SCHEDULE_BYTES;

use super::super::launch::{Address, CUstream, Launch, describe};
use super::ffi::RunArgs;
use super::ordered::{OrderedAttentionArgs, candlepower_ordered_attention};
use crate::operands::{
    AttentionSpec, Item, NARROW_ROWS, Pieces, PlanCapacity, RESIDENT_BLOCKS, Workers,
};

const KERNEL: &str = "fp8_decode";

/// Words of a piece and of a merge.
const ITEM_WORDS: usize = size_of::<Item>() / size_of::<u32>();
/// Word of a schedule with the number of merges, where the merge kernel reads it.
const MERGES_WORD: usize = 2;
/// Words before the first pieces of workers.
const HEAD_WORDS: usize = ITEM_WORDS;
/// Where merges begin in a schedule, in words. Captured graphs contain the place.
const MERGES_AT: usize = SCHEDULE_BYTES / size_of::<u32>() / 2;

/// How decodes over an FP8 cache are divided among the blocks of a launch. The launch has the same blocks for each step.
#[derive(Debug)]
pub(super) struct Fp8Decode {
    workers: Workers,
    kv_heads: usize,
    /// Query heads of a KV head.
    group: usize,
    pieces: Pieces,
}

impl Fp8Decode {
    /// The division of decodes on the current device, among all blocks that run at once or among `blocks`.
    ///
    /// # Errors
    /// The kernel does not have these layers, a schedule of `capacity.max_seqs` sequences does not fit, or CUDA refused.
    pub(super) fn new(
        spec: &AttentionSpec,
        cache: &KvCacheConfig,
        capacity: &PlanCapacity,
        blocks: Option<usize>,
    ) -> Result<Self> {
        let group = spec.heads / cache.num_kv_heads;
        let blocks = match blocks {
            Some(blocks) => blocks,
            None => resident_blocks(spec, cache, group)?,
        };
        let part_bytes = cache.num_kv_heads * NARROW_ROWS * (cache.head_dim + 2) * size_of::<f32>();
        let workers = Workers {
            count: (blocks / cache.num_kv_heads).max(1),
            max_parts: capacity.partials_bytes / part_bytes,
            window: spec.window,
        };
        let of = Self { workers, kv_heads: cache.num_kv_heads, group, pieces: Pieces::default() };
        // A worker has a piece of each of its sequences, and begins and ends within one.
        let most = of.pieces_at() + (capacity.max_seqs + 2 * workers.count) * ITEM_WORDS;
        if most > MERGES_AT {
            let (index, value) = ("sequences of a step", capacity.max_seqs);
            let bound = (MERGES_AT - of.pieces_at()) / ITEM_WORDS - 2 * workers.count;
            return Err(Error::OutOfRange { kernel: KERNEL, index, value, bound });
        }
        Ok(of)
    }

    /// Where the pieces begin in a schedule, in words. Captured graphs contain the place.
    fn pieces_at(&self) -> usize {
        HEAD_WORDS + (self.workers.count + 1).next_multiple_of(ITEM_WORDS)
    }

    /// Divides decodes with these numbers of positions in the cache, and these places of their first pages. Writes the
    /// schedule to `host`, and returns the ranges of its bytes that were written, and the blocks of the merge kernel for
    /// each KV head.
    pub(super) fn plan(
        &mut self,
        host: &mut [u8],
        seqs: impl Iterator<Item = (usize, usize)> + Clone,
        is_fixed: bool,
    ) -> ([std::ops::Range<usize>; 2], usize) {
        let count = seqs.clone().count();
        self.pieces.divide(&self.workers, seqs);
        let Pieces { starts, pieces, merges } = &self.pieces;
        let mut head = [0; HEAD_WORDS];
        head[MERGES_WORD] = merges.len() as u32;
        let mut write = |at: usize, words: &mut dyn Iterator<Item = u32>| {
            for (place, word) in host[4 * at..].chunks_exact_mut(size_of::<u32>()).zip(words) {
                place.copy_from_slice(&word.to_ne_bytes());
            }
        };
        write(0, &mut head.into_iter());
        write(HEAD_WORDS, &mut starts.iter().copied());
        write(self.pieces_at(), &mut pieces.iter().flat_map(|piece| piece.words()));
        write(MERGES_AT, &mut merges.iter().flat_map(|merge| merge.words()));
        let bytes = |first: usize, items: usize| 4 * first..4 * (first + items * ITEM_WORDS);
        let written =
            [0..bytes(self.pieces_at(), pieces.len()).end, bytes(MERGES_AT, merges.len())];
        // Blocks beyond those that run at once would only take time to start.
        let most = (2 * RESIDENT_BLOCKS / (self.kv_heads * self.group)).max(1);
        (written, if is_fixed { most.min(count) } else { merges.len() })
    }

    /// Launches the kernel for planned decodes, and then the merge of partial results if `merge_blocks` is not zero.
    ///
    /// # Safety
    /// The addresses in `args` must hold what its dimensions say. `args.buffers.schedule` must hold a schedule of this
    /// division, and partial results must have the memory that it was made for.
    pub(super) unsafe fn run(
        &self,
        launch: &Launch,
        args: &RunArgs,
        (head_dim, merge_blocks): (usize, usize),
    ) -> Result<()> {
        let shape = &args.shape;
        let word = |at: usize| args.buffers.schedule.wrapping_byte_add(at * size_of::<u32>());
        let partial_rows = (self.workers.max_parts * self.kv_heads * NARROW_ROWS) as i64;
        let window = self.workers.window.unwrap_or(0) as i32;
        let decode = Fp8DecodeArgs {
            q: args.q,
            keys: args.keys,
            values: args.values,
            out: args.out,
            lse: args.lse,
            partials: args.buffers.partials,
            page_indices: args.page_indices,
            starts: word(HEAD_WORDS),
            pieces: word(self.pieces_at()),
            partial_rows,
            workers: self.workers.count as i32,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: head_dim as i32,
            block_size: shape.block_size,
            dtype: shape.dtype,
            window,
            scale: args.scale,
            softcap: args.softcap,
            value_scale: args.value_scale,
        };
        // SAFETY: the caller vouches for the operands. The pieces name sequences of the step and units of their contexts.
        unsafe { launch.run(candlepower_fp8_decode, &decode) }?;
        if merge_blocks == 0 {
            return Ok(());
        }
        let none = std::ptr::null_mut();
        let merge = OrderedAttentionArgs {
            q: args.q,
            keys: none,
            values: none,
            out: args.out,
            lse: args.lse,
            partials: args.buffers.partials,
            query_start: args.query_start,
            page_start: args.page_start,
            page_indices: args.page_indices,
            last_page_len: args.last_page_len,
            counts: word(0),
            narrow: none,
            wide: none,
            merges: word(MERGES_AT),
            partial_rows,
            // Only merges are launched.
            narrow_blocks: 0,
            wide_blocks: 0,
            merge_blocks: merge_blocks as i32,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: head_dim as i32,
            block_size: shape.block_size,
            dtype: shape.dtype,
            window,
            scale: args.scale,
            softcap: args.softcap,
            merge_rows: self.group as i32,
        };
        // SAFETY: as above. The merges name partial results that the kernel before writes.
        unsafe { launch.run(candlepower_ordered_attention, &merge) }
    }
}

/// Blocks of the kernel that run at once on the current device.
fn resident_blocks(spec: &AttentionSpec, cache: &KvCacheConfig, group: usize) -> Result<usize> {
    let mut room = Fp8DecodeRoom {
        head_dim: cache.head_dim as i32,
        group: group as i32,
        dtype: i32::from(spec.dtype != candle_core::DType::BF16),
        blocks: 0,
    };
    // SAFETY: the function writes into `room` alone, and uses no stream.
    let code = unsafe { candlepower_fp8_decode_room(&raw mut room, std::ptr::null_mut()) };
    let error = |message: String| Err(Error::Cuda { kernel: KERNEL, message });
    match (code, usize::try_from(room.blocks).unwrap_or(0)) {
        (0, 0) => error("no block of it fits a multiprocessor".to_owned()),
        (0, blocks) => Ok(blocks),
        (code, _) => error(describe(code)),
    }
}

/// Mirrors `Fp8DecodeArgs` in fp8_decode.cu.
#[repr(C)]
struct Fp8DecodeArgs {
    q: Address,
    keys: Address,
    values: Address,
    out: Address,
    lse: Address,
    partials: Address,
    page_indices: Address,
    starts: Address,
    pieces: Address,
    partial_rows: i64,
    workers: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    block_size: i32,
    dtype: i32,
    window: i32,
    scale: f32,
    softcap: f32,
    value_scale: f32,
}
const _: () = assert!(size_of::<Fp8DecodeArgs>() == 120);

/// Mirrors `Fp8DecodeRoom` in fp8_decode.cu.
#[repr(C)]
struct Fp8DecodeRoom {
    head_dim: i32,
    group: i32,
    dtype: i32,
    blocks: i32,
}
const _: () = assert!(size_of::<Fp8DecodeRoom>() == 16);

unsafe extern "C" {
    fn candlepower_fp8_decode(args: *const Fp8DecodeArgs, stream: CUstream) -> i32;
    fn candlepower_fp8_decode_room(room: *mut Fp8DecodeRoom, stream: CUstream) -> i32;
}
