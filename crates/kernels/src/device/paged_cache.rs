//! The paged cache of keys and values on a device.

use candle_core::{DType, Device, Tensor};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::{Error, KvCacheConfig, KvScales, Result};

/// Keys and values of all layers, in blocks of `block_size` positions.
///
/// Each layer has two tensors `[num_blocks, kv_heads, block_size, head_dim]`, bf16, f16 or FP8 (e4m3: numbers are divided by their
/// [`KvScales`] and rounded to its 256, and those beyond 448 become 448): FlashInfer's HND layout. A head's positions of one block
/// lie together, so that a thread block, which works on one head, reads long runs; it is also the order of the values on the CPU,
/// and tensor parallelism and a copy to the CPU divide it by whole heads. Values that are a part of the keys are not kept apart. Cloning
/// shares the memory.
#[derive(Clone, Debug)]
pub struct PagedCache {
    config: KvCacheConfig,
    layers: Vec<PagedLayer>,
}

/// The keys and values of one layer, both `[num_blocks, kv_heads, block_size, head_dim]`.
#[derive(Clone, Debug)]
pub struct PagedLayer {
    /// The keys.
    pub keys: Tensor,
    /// The values; where they are a part of the keys, the same memory.
    pub values: Tensor,
    /// What both were divided by.
    pub scales: KvScales,
}

impl PagedLayer {
    /// Each piece of its memory.
    pub(crate) fn tensors(&self, config: &KvCacheConfig) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.keys).chain(config.latent.is_none().then_some(&self.values))
    }
}

impl PagedCache {
    /// An empty cache of `dtype` on `device`: bf16, f16 or FP8 (e4m3) on a GPU, and f32 too on the CPU.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple, the dtype is another one, or memory does not suffice.
    pub fn new(config: KvCacheConfig, dtype: DType, device: &Device) -> Result<Self> {
        config.check()?;
        let definitions_only = dtype == DType::F32 && device.is_cpu();
        if !matches!(dtype, DType::BF16 | DType::F16 | DType::F8E4M3) && !definitions_only {
            return Err(Error::DType {
                kernel: "paged_cache",
                operand: "dtype",
                expected: "bf16, f16 or f8e4m3",
                found: dtype,
            });
        }
        let dims = Self::dims(&config);
        let layer = || -> Result<PagedLayer> {
            let keys = Tensor::zeros(&dims, dtype, device)?;
            let values = match config.latent {
                Some(_) => keys.clone(),
                None => Tensor::zeros(&dims, dtype, device)?,
            };
            Ok(PagedLayer { keys, values, scales: KvScales::ONE })
        };
        let layers = (0..config.num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// With scales for each layer; it must be empty and of f8e4m3.
    ///
    /// # Errors
    /// There are not as many as layers, or the dtype is another one.
    pub fn with_scales(mut self, scales: &[KvScales]) -> Result<Self> {
        let found = self.layers.first().map_or(DType::F8E4M3, |layer| layer.keys.dtype());
        KvScales::check(scales, self.layers.len(), found)?;
        for (layer, scales) in self.layers.iter_mut().zip(scales) {
            layer.scales = *scales;
        }
        Ok(self)
    }

    /// Bytes reserved, all layers together.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.layers.iter().flat_map(|layer| layer.tensors(&self.config)).map(bytes).sum()
    }

    /// The dimensions it was made with.
    #[must_use]
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// The tensors of layer `layer`.
    ///
    /// # Errors
    /// There is no such layer.
    pub fn layer(&self, layer: usize) -> Result<&PagedLayer> {
        let bound = self.layers.len();
        self.layers.get(layer).ok_or(Error::OutOfRange {
            kernel: "paged_cache",
            index: "layer",
            value: layer,
            bound,
        })
    }

    /// Copies whole blocks in all layers. `copies` is u32 `[count, 2]`, source and destination of each; no
    /// block may be both. A pair with a block that is not in the cache is left out. The CPU's counterpart is
    /// [`crate::copy_blocks`], which copies in order.
    ///
    /// # Errors
    /// `copies` has the wrong dtype, shape, layout or device, or CUDA refused the launch.
    pub fn copy_blocks(&self, copies: &Tensor) -> Result<()> {
        launch_on_gpu!(copies, crate::cuda::copy_blocks(self.into(), self.into(), copies));
        copy_between(self, self, copies)
    }

    /// Copies whole blocks in all layers to the memory of the host: `copies` is u32 `[count, 2]`, a block of the cache
    /// and a place in `host` of each. No place may be named twice, and pairs with one that is not there are left out.
    /// On a GPU this is queued: the host must not look at what it wrote.
    ///
    /// # Errors
    /// `copies` has the wrong dtype, shape, layout or device, `host` is of another cache, or CUDA refused the launch.
    pub fn bring_out(&self, host: &HostBlocks, copies: &Tensor) -> Result<()> {
        launch_on_gpu!(copies, crate::cuda::copy_blocks(self.into(), host.into(), copies));
        copy_between(self, host.reference()?, copies)
    }

    /// As [`PagedCache::bring_out`], back: `copies` names a place in `host`, then a block of the cache.
    ///
    /// # Errors
    /// As there.
    pub fn bring_back(&self, host: &HostBlocks, copies: &Tensor) -> Result<()> {
        launch_on_gpu!(copies, crate::cuda::copy_blocks(host.into(), self.into(), copies));
        copy_between(host.reference()?, self, copies)
    }

    /// The dimensions of a layer's tensors.
    pub(crate) fn dims(config: &KvCacheConfig) -> [usize; 4] {
        [config.num_blocks, config.num_kv_heads, config.block_size, config.head_dim]
    }
}

/// The definition of all copies of blocks.
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
        for &(from, to) in &pairs {
            target[to * len..(to + 1) * len].copy_from_slice(&source[from * len..(from + 1) * len]);
        }
        reference.write(("destination", to), axes, &to_dims, &target)?;
    }
    Ok(())
}

/// Room for blocks of a [`PagedCache`] in the memory of the host.
#[derive(Debug)]
pub struct HostBlocks {
    /// What stands for it on the CPU; on a GPU its dimensions alone.
    memory: HostMemory,
}

#[derive(Debug)]
enum HostMemory {
    /// For the definitions: a cache of as many blocks.
    Reference(PagedCache),
    /// Pinned, and written by the GPU.
    #[cfg(feature = "cuda")]
    Pinned(crate::cuda::PinnedBlocks),
}

impl HostBlocks {
    /// Room for `num_blocks` blocks of `cache`.
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
    pub(crate) fn pinned(&self) -> Option<&crate::cuda::PinnedBlocks> {
        match &self.memory {
            HostMemory::Pinned(pinned) => Some(pinned),
            HostMemory::Reference(_) => None,
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
