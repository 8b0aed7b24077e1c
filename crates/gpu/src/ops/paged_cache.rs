//! Copies of blocks of the paged KV cache, on a device and to host memory.

use candle_core::{Device, Tensor};
use candlepower_kernels::{KvCacheConfig, Result};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::PagedCache;

impl PagedCache {
    /// Copies whole blocks in all layers. `copies` is u32 `[count, 2]`, with source and destination of each copy; no
    /// block may be both. Pairs with a block outside the cache are ignored. The CPU's counterpart is
    /// [`candlepower_kernels::copy_blocks`], which copies in order.
    ///
    /// # Errors
    /// `copies` has the wrong dtype, shape, layout or device, or CUDA refused the launch.
    pub fn copy_blocks(&self, copies: &Tensor) -> Result<()> {
        launch_on_gpu!(copies, crate::cuda::copy_blocks(self.into(), self.into(), copies));
        copy_between(self, self, copies)
    }

    /// Swaps out whole blocks in all layers, to host memory. `copies` is u32 `[count, 2]`, with a block of the cache
    /// and a slot of `host` for each copy. No slot may occur twice, and pairs outside the cache or `host` are ignored.
    /// On a GPU the copy is only queued, so the host must not read the slots.
    ///
    /// # Errors
    /// `copies` has the wrong dtype, shape, layout or device, `host` belongs to another cache, or CUDA refused the
    /// launch.
    pub fn bring_out(&self, host: &HostBlocks, copies: &Tensor) -> Result<()> {
        launch_on_gpu!(
            copies,
            crate::cuda::copy_blocks(self.into(), host.pinned()?.into(), copies)
        );
        copy_between(self, host.reference()?, copies)
    }

    /// Swaps in blocks, the reverse of [`PagedCache::bring_out`]: each pair in `copies` is a slot of `host`, then a
    /// block of the cache.
    ///
    /// # Errors
    /// Same as [`PagedCache::bring_out`].
    pub fn bring_back(&self, host: &HostBlocks, copies: &Tensor) -> Result<()> {
        launch_on_gpu!(
            copies,
            crate::cuda::copy_blocks(host.pinned()?.into(), self.into(), copies)
        );
        copy_between(host.reference()?, self, copies)
    }
}

/// The reference implementation of all copies of blocks.
fn copy_between(from: &PagedCache, to: &PagedCache, copies: &Tensor) -> Result<()> {
    const KERNEL: &str = "copy_blocks";
    let count = copies.elem_count() / 2;
    let pairs = Reference::integers(KERNEL).u32s(("copies", copies), "[count, 2]", &[count, 2])?;
    let pairs = pairs.chunks(2).map(|pair| (pair[0] as usize, pair[1] as usize));
    let is_there =
        |pair: &(usize, usize)| pair.0 < from.config.num_blocks && pair.1 < to.config.num_blocks;
    let pairs: Vec<_> = pairs.filter(is_there).collect();
    let axes = "[num_blocks, kv_heads, block_size, head_dim]";
    let (from_dims, to_dims) = (PagedCache::dims(&from.config), PagedCache::dims(&to.config));
    let len = from.config.block_elements();
    let tensors = |cache: &PagedCache| -> Vec<Tensor> {
        cache.layers.iter().flat_map(|layer| layer.tensors(&cache.config)).cloned().collect()
    };
    for (from, to) in tensors(from).iter().zip(&tensors(to)) {
        let reference = Reference::of_cache(KERNEL, from);
        let source = reference.elements(("source", from), axes, &from_dims)?;
        let mut target = reference.elements(("destination", to), axes, &to_dims)?;
        // No block is both source and destination, so the order of copies does not matter, as on a GPU.
        for &(from, to) in &pairs {
            target[to * len..(to + 1) * len].copy_from_slice(&source[from * len..(from + 1) * len]);
        }
        reference.write(("destination", to), axes, &to_dims, &target)?;
    }
    Ok(())
}

/// Slots for blocks of a [`PagedCache`] in host memory.
#[derive(Debug)]
pub struct HostBlocks {
    /// The memory, or its substitute on the CPU.
    memory: HostMemory,
}

#[derive(Debug)]
enum HostMemory {
    /// For the reference implementation: a cache with this number of blocks.
    Reference(PagedCache),
    /// Pinned host memory, which the GPU writes.
    #[cfg(feature = "cuda")]
    Pinned(crate::cuda::PinnedBlocks),
}

impl HostBlocks {
    /// Reserves slots for `num_blocks` blocks of `cache`.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn new(cache: &PagedCache, num_blocks: usize) -> Result<Self> {
        let keys = &cache.layer(0)?.keys;
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = keys.device() {
            let pinned = crate::cuda::PinnedBlocks::new(cache, num_blocks, device)?;
            return Ok(Self { memory: HostMemory::Pinned(pinned) });
        }
        let config = KvCacheConfig { num_blocks, ..cache.config };
        let blocks = PagedCache::new(config, keys.dtype(), &Device::Cpu)?;
        Ok(Self { memory: HostMemory::Reference(blocks) })
    }

    /// The pinned memory.
    #[cfg(feature = "cuda")]
    fn pinned(&self) -> Result<&crate::cuda::PinnedBlocks> {
        match &self.memory {
            HostMemory::Pinned(pinned) => Ok(pinned),
            HostMemory::Reference(blocks) => Err(crate::Error::NotOnGpu {
                kernel: "copy_blocks",
                operand: "host",
                device: blocks.layer(0)?.keys.device().location(),
            }),
        }
    }

    fn reference(&self) -> Result<&PagedCache> {
        match &self.memory {
            HostMemory::Reference(blocks) => Ok(blocks),
            #[cfg(feature = "cuda")]
            HostMemory::Pinned(pinned) => Err(pinned.not_here()),
        }
    }
}
