//! The paged cache of keys and values on a device.

use candle_core::{DType, Device, Tensor};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::{Error, KvCacheConfig, Result};

/// Keys and values of all layers, in blocks of `block_size` positions.
///
/// Each layer has two tensors `[num_blocks, kv_heads, block_size, head_dim]`, bf16 or f16: FlashInfer's HND
/// layout. A head's positions of one block lie together, so that a thread block, which works on one head,
/// reads long runs; it is also the order of the values on the CPU, and tensor parallelism and a copy to the
/// CPU divide it by whole heads. Cloning shares the memory.
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
    /// The values.
    pub values: Tensor,
}

impl PagedCache {
    /// An empty cache of `dtype` on `device`: bf16 or f16 on a GPU, and f32 too on the CPU.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple, the dtype is another one, or memory does not suffice.
    pub fn new(config: KvCacheConfig, dtype: DType, device: &Device) -> Result<Self> {
        config.check()?;
        let definitions_only = dtype == DType::F32 && device.is_cpu();
        if !matches!(dtype, DType::BF16 | DType::F16) && !definitions_only {
            return Err(Error::DType {
                kernel: "paged_cache",
                operand: "dtype",
                expected: "bf16 or f16",
                found: dtype,
            });
        }
        let dims = Self::dims(&config);
        let layer = || -> Result<PagedLayer> {
            let zeros = || Tensor::zeros(&dims, dtype, device);
            Ok(PagedLayer { keys: zeros()?, values: zeros()? })
        };
        let layers = (0..config.num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// Bytes reserved, all layers together.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.layers.iter().map(|layer| bytes(&layer.keys) + bytes(&layer.values)).sum()
    }

    /// The dimensions it was made with.
    #[must_use]
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// The tensors of all layers.
    #[cfg(feature = "cuda")]
    pub(crate) fn layers(&self) -> &[PagedLayer] {
        &self.layers
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
        launch_on_gpu!(copies, crate::cuda::copy_blocks(self, copies));
        let count = copies.elem_count() / 2;
        let pairs = Reference::integers("copy_blocks").u32s(
            ("copies", copies),
            "[count, 2]",
            &[count, 2],
        )?;
        let blocks = self.config.num_blocks;
        let pairs = pairs.chunks(2).map(|pair| (pair[0] as usize, pair[1] as usize));
        let pairs: Vec<_> = pairs.filter(|pair| pair.0 < blocks && pair.1 < blocks).collect();
        let dims = Self::dims(&self.config);
        let len = self.config.block_elements();
        for tensor in self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]) {
            let reference = Reference::new("copy_blocks", "keys", tensor)?;
            let axes = "[num_blocks, kv_heads, block_size, head_dim]";
            let mut values = reference.elements(("keys", tensor), axes, &dims)?;
            for &(from, to) in &pairs {
                values.copy_within(from * len..(from + 1) * len, to * len);
            }
            reference.write(("keys", tensor), axes, &dims, &values)?;
        }
        Ok(())
    }

    /// The dimensions of a layer's tensors.
    pub(crate) fn dims(config: &KvCacheConfig) -> [usize; 4] {
        [config.num_blocks, config.num_kv_heads, config.block_size, config.head_dim]
    }
}
