//! The paged cache of keys and values in device memory.

use candle_core::{DType, Device, Tensor};

use super::launch::{Address, CUstream, Launch};
use crate::{Error, KvCacheConfig, Result};

/// Keys and values of all layers on one GPU, in blocks of `block_size` positions.
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
    /// An empty cache of `dtype` (bf16 or f16) on `device`.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple, the dtype is another one, the device is no GPU, or
    /// its memory does not suffice.
    pub fn new(config: KvCacheConfig, dtype: DType, device: &Device) -> Result<Self> {
        const KERNEL: &str = "paged_cache";
        config.check()?;
        if !matches!(dtype, DType::BF16 | DType::F16) {
            return Err(Error::DType {
                kernel: KERNEL,
                operand: "dtype",
                expected: "bf16 or f16",
                found: dtype,
            });
        }
        if !device.is_cuda() {
            let device = device.location();
            return Err(Error::NotOnGpu { kernel: KERNEL, operand: "device", device });
        }
        let dims = Self::dims(&config);
        let layer = || -> Result<PagedLayer> {
            let zeros = || Tensor::zeros(&dims, dtype, device);
            Ok(PagedLayer { keys: zeros()?, values: zeros()? })
        };
        let layers = (0..config.num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// Bytes of one block over all layers, keys and values together, for elements of `dtype`.
    /// `num_blocks` of `config` is not looked at, so this answers how many blocks fit some memory.
    #[must_use]
    pub fn bytes_per_block(config: &KvCacheConfig, dtype: DType) -> usize {
        2 * config.num_layers * config.block_elements() * dtype.size_in_bytes()
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
        let count = copies.elem_count() / 2;
        if count == 0 {
            return Ok(());
        }
        let dims = Self::dims(&self.config);
        for layer in &self.layers {
            let launch = Launch::new("copy_blocks", "keys", &layer.keys)?;
            let axes = "[num_blocks, kv_heads, block_size, head_dim]";
            let args = CopyBlocksArgs {
                keys: launch.elements(("keys", &layer.keys), axes, &dims)?,
                values: launch.elements(("values", &layer.values), axes, &dims)?,
                copies: launch.u32s(("copies", copies), "[count, 2]", &[count, 2])?,
                count: count as i64,
                block_bytes: (self.config.block_elements() * layer.keys.dtype().size_in_bytes())
                    as i64,
                num_blocks: self.config.num_blocks as u32,
                padding: 0,
            };
            // SAFETY: the addresses were checked to hold whole blocks, whose bytes are a multiple of 16
            // because positions and head elements are; the kernel compares block numbers before it copies.
            unsafe { launch.run(candlepower_copy_blocks, &args)? };
        }
        Ok(())
    }

    /// The dimensions of a layer's tensors.
    pub(super) fn dims(config: &KvCacheConfig) -> [usize; 4] {
        [config.num_blocks, config.num_kv_heads, config.block_size, config.head_dim]
    }
}

/// As `CopyBlocksArgs` in qkv.cu.
#[repr(C)]
struct CopyBlocksArgs {
    keys: Address,
    values: Address,
    copies: *mut u32,
    count: i64,
    block_bytes: i64,
    num_blocks: u32,
    padding: i32,
}
const _: () = assert!(size_of::<CopyBlocksArgs>() == 48);

unsafe extern "C" {
    fn candlepower_copy_blocks(args: *const CopyBlocksArgs, stream: CUstream) -> i32;
}
