//! Copies of whole blocks, within the paged cache and between it and host memory.

use candle_core::cuda_backend::cudarc::driver::PinnedHostSlice;
use candle_core::{CudaDevice, Tensor};

use super::launch::{Address, CUstream, Launch, driver};
use crate::operands::PagedCache;
use candlepower_kernels::{Error, KvCacheConfig, Result};

const KERNEL: &str = "copy_blocks";

/// `CU_MEMHOSTALLOC_DEVICEMAP`: kernels access the memory at the host's address.
const MAPPED: u32 = 2;

/// Pinned host memory for blocks, `[layers][tensors][num_blocks][block bytes]`. A layer has keys, then values if they
/// are separate.
#[derive(Debug)]
pub(crate) struct PinnedBlocks {
    device: CudaDevice,
    memory: PinnedHostSlice<u8>,
    config: KvCacheConfig,
    block_bytes: usize,
}

impl PinnedBlocks {
    pub(crate) fn new(cache: &PagedCache, num_blocks: usize, device: &CudaDevice) -> Result<Self> {
        let config = KvCacheConfig { num_blocks, ..*cache.config() };
        let block_bytes = block_bytes(cache)?;
        let bytes = tensors(&config) * config.num_layers * num_blocks * block_bytes;
        let context = device.cuda_stream().context().clone();
        // SAFETY: any bits are valid u8 values, and the host reads none of them.
        let memory = unsafe { context.alloc_pinned_with_flags(bytes.max(1), MAPPED) };
        let memory = memory.map_err(|error| driver(KERNEL, error))?;
        Ok(Self { device: device.clone(), memory, config, block_bytes })
    }

    /// The error of reference implementations, which cannot use pinned memory.
    pub(crate) fn not_here(&self) -> Error {
        let device = candle_core::Device::Cuda(self.device.clone()).location();
        Error::UnsupportedDevice { kernel: KERNEL, operand: "host", device }
    }

    fn layer(&self, layer: usize) -> Result<[Address; 2]> {
        let first = self.memory.as_ptr().map_err(|error| driver(KERNEL, error))?;
        let part = self.config.num_blocks * self.block_bytes;
        // `layer` is below `num_layers`, so its parts lie in the memory.
        let first = first.wrapping_add(tensors(&self.config) * layer * part);
        let values = match self.config.latent {
            Some(_) => std::ptr::null_mut(),
            None => first.wrapping_add(part) as Address,
        };
        Ok([first as Address, values])
    }
}

impl Drop for PinnedBlocks {
    fn drop(&mut self) {
        // Errors cannot be handled here. Pinned memory must not be freed before its copies have ended.
        let _ = self.device.cuda_stream().synchronize();
    }
}

/// One side of a copy.
#[derive(Clone, Copy)]
pub(crate) enum Blocks<'a> {
    Cache(&'a PagedCache),
    Host(&'a PinnedBlocks),
}

impl<'a> From<&'a PagedCache> for Blocks<'a> {
    fn from(cache: &'a PagedCache) -> Self {
        Self::Cache(cache)
    }
}

impl<'a> From<&'a PinnedBlocks> for Blocks<'a> {
    fn from(host: &'a PinnedBlocks) -> Self {
        Self::Host(host)
    }
}

impl Blocks<'_> {
    fn config(&self) -> KvCacheConfig {
        match self {
            Self::Cache(cache) => *cache.config(),
            Self::Host(host) => host.config,
        }
    }

    fn block_bytes(&self) -> Result<usize> {
        match self {
            Self::Cache(cache) => block_bytes(cache),
            Self::Host(host) => Ok(host.block_bytes),
        }
    }

    /// Keys and values of a layer. Values are null if they are a part of the keys.
    fn layer(&self, launch: &Launch, layer: usize) -> Result<[Address; 2]> {
        let cache = match self {
            Self::Cache(cache) => cache,
            Self::Host(host) => return host.layer(layer),
        };
        let (dims, layer) = (PagedCache::dims(cache.config()), cache.layer(layer)?);
        let axes = "[num_blocks, kv_heads, block_size, head_dim]";
        let mut addresses = [std::ptr::null_mut(); 2];
        for (address, tensor) in addresses.iter_mut().zip(layer.tensors(cache.config())) {
            *address = launch.own(("keys or values", tensor), axes, &dims)?;
        }
        Ok(addresses)
    }
}

/// Number of separate tensors in a layer.
fn tensors(config: &KvCacheConfig) -> usize {
    if config.latent.is_some() { 1 } else { 2 }
}

fn block_bytes(cache: &PagedCache) -> Result<usize> {
    Ok(cache.config().block_elements() * cache.layer(0)?.keys.dtype().size_in_bytes())
}

/// See [`PagedCache::copy_blocks`], [`PagedCache::bring_out`] and [`PagedCache::bring_back`].
pub(crate) fn copy_blocks(from: Blocks<'_>, to: Blocks<'_>, copies: &Tensor) -> Result<()> {
    let count = copies.elem_count() / 2;
    let (from_config, to_config) = (from.config(), to.config());
    let same = KvCacheConfig { num_blocks: to_config.num_blocks, ..from_config } == to_config;
    if !same || from.block_bytes()? != to.block_bytes()? {
        return Err(Error::Metadata("the blocks on the host are those of another cache".into()));
    }
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::of_any(KERNEL, "copies", copies)?;
    for layer in 0..from_config.num_layers {
        let args = CopyBlocksArgs {
            from: from.layer(&launch, layer)?,
            to: to.layer(&launch, layer)?,
            copies: launch.u32s(("copies", copies), "[count, 2]", &[count, 2])?,
            count: count as i64,
            block_bytes: from.block_bytes()? as i64,
            from_blocks: from_config.num_blocks as u32,
            to_blocks: to_config.num_blocks as u32,
            tensors: tensors(&from_config) as i32,
            padding: 0,
        };
        // SAFETY: the addresses were checked to hold whole blocks, or were reserved for them, and the bytes of a block
        // are a multiple of 16 because those of a position are; the kernel compares block numbers before it copies.
        unsafe { launch.run(candlepower_copy_blocks, &args)? };
    }
    Ok(())
}

/// Mirrors `CopyBlocksArgs` in qkv.cu.
#[repr(C)]
struct CopyBlocksArgs {
    from: [Address; 2],
    to: [Address; 2],
    copies: *mut u32,
    count: i64,
    block_bytes: i64,
    from_blocks: u32,
    to_blocks: u32,
    tensors: i32,
    padding: i32,
}
const _: () = assert!(size_of::<CopyBlocksArgs>() == 72);

unsafe extern "C" {
    fn candlepower_copy_blocks(args: *const CopyBlocksArgs, stream: CUstream) -> i32;
}
