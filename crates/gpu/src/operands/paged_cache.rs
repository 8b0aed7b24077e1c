//! The paged KV cache on a device.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{Error, KvCacheConfig, KvScales, Result};

/// Keys and values of all layers, in blocks of `block_size` positions.
///
/// Each layer has two tensors `[num_blocks, kv_heads, block_size, head_dim]` (FlashInfer's HND layout) in bf16, f16 or
/// FP8. FP8 is e4m3: elements are divided by their [`KvScales`] and rounded, and those beyond 448 become 448.
///
/// A head's positions of one block are contiguous, so that a thread block, which works on one head, reads long ranges.
/// The CPU stores values in the same order, and tensor parallelism and copies to the CPU divide it by whole heads. If
/// values are a part of the keys, they have no tensor of their own. Clones share the memory.
#[derive(Clone, Debug)]
pub struct PagedCache {
    pub(crate) config: KvCacheConfig,
    pub(crate) layers: Vec<PagedLayer>,
}

/// The keys and values of one layer, both `[num_blocks, kv_heads, block_size, head_dim]`.
#[derive(Clone, Debug)]
pub struct PagedLayer {
    /// The keys.
    pub keys: Tensor,
    /// The values. If values are a part of the keys, this is the same memory.
    pub values: Tensor,
    /// The scales that keys and values were divided by.
    pub scales: KvScales,
}

impl PagedLayer {
    /// Each separate tensor of the layer.
    pub(crate) fn tensors(&self, config: &KvCacheConfig) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.keys).chain(config.latent.is_none().then_some(&self.values))
    }
}

impl PagedCache {
    /// Creates an empty cache of `dtype` on `device`: bf16, f16 or FP8 (e4m3) on a GPU, and f32 too on the CPU.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple, the dtype is not supported, or memory does not suffice.
    pub fn new(config: KvCacheConfig, dtype: DType, device: &Device) -> Result<Self> {
        config.check()?;
        // No kernel reads f32. It is there for the reference implementation alone.
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

    /// Sets the scales of each layer. The cache must be empty and of dtype f8e4m3.
    ///
    /// # Errors
    /// The number of scales is not the number of layers, or the dtype is another one.
    pub fn with_scales(mut self, scales: &[KvScales]) -> Result<Self> {
        let found = self.layers.first().map_or(DType::F8E4M3, |layer| layer.keys.dtype());
        KvScales::check(scales, self.layers.len(), found)?;
        for (layer, scales) in self.layers.iter_mut().zip(scales) {
            layer.scales = *scales;
        }
        Ok(self)
    }

    /// Bytes of device memory, for all layers together.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.layers.iter().flat_map(|layer| layer.tensors(&self.config)).map(bytes).sum()
    }

    /// The dimensions of the cache.
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

    /// The dimensions of a layer's tensors.
    pub(crate) fn dims(config: &KvCacheConfig) -> [usize; 4] {
        [config.num_blocks, config.num_kv_heads, config.block_size, config.head_dim]
    }
}
