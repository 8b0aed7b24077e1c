//! The paged cache of keys and values.

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use float8::F8E4M3;

use crate::tensor::Operand;
use crate::{Error, Result};

#[cfg(test)]
mod tests;

/// Blocks hold a multiple of this many positions: one vector of keys.
const BLOCK_MULTIPLE: usize = 16;

/// The dimensions of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheConfig {
    /// Layers that have keys and values.
    pub num_layers: usize,
    /// Blocks of every layer.
    pub num_blocks: usize,
    /// Positions of one block, a multiple of 16.
    pub block_size: usize,
    /// Key-value heads of every layer.
    pub num_kv_heads: usize,
    /// Elements of one head, a multiple of 8.
    pub head_dim: usize,
}

impl KvCacheConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let rules = [
            ("num_kv_heads", self.num_kv_heads, 1, "at least 1"),
            ("head_dim", self.head_dim, 8, "a positive multiple of 8"),
            ("block_size", self.block_size, BLOCK_MULTIPLE, "a positive multiple of 16"),
        ];
        for (parameter, value, multiple, expected) in rules {
            if value == 0 || !value.is_multiple_of(multiple) {
                return Err(Error::Parameter { parameter, value, expected });
            }
        }
        if u32::try_from(self.num_blocks * self.block_size).is_err() {
            return Err(Error::Parameter {
                parameter: "num_blocks",
                value: self.num_blocks,
                expected: "such that slot numbers fit 32 bits",
            });
        }
        Ok(())
    }

    pub(crate) fn block_elements(&self) -> usize {
        self.num_kv_heads * self.head_dim * self.block_size
    }
}

/// Keys and values of every layer, in blocks of `block_size` positions: f32, or FP8 (e4m3, without a scale: numbers are
/// rounded to the nearest of its 256, and those beyond 448 become 448).
///
/// Keys `[num_blocks, kv_heads, head_dim, block_size]` are transposed inside a block, so sixteen
/// positions of one head dimension are one vector; values `[num_blocks, kv_heads, block_size, head_dim]`.
/// The memory is reserved at once and touched only when used. Writing goes through `&self`, as with any
/// candle tensor: each tensor is locked while it is written.
#[derive(Debug)]
pub struct KvCache {
    config: KvCacheConfig,
    dtype: DType,
    layers: Vec<KvLayer>,
}

/// The keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KvLayer {
    /// `[num_blocks, kv_heads, head_dim, block_size]`.
    pub keys: Tensor,
    /// `[num_blocks, kv_heads, block_size, head_dim]`.
    pub values: Tensor,
}

impl KvCache {
    /// An empty cache of f32 or f8e4m3 on `device`.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple, the dtype is another one, the device is not the CPU, or
    /// candle could not allocate.
    pub fn new(config: KvCacheConfig, dtype: DType, device: &Device) -> Result<Self> {
        config.check()?;
        if !matches!(dtype, DType::F32 | DType::F8E4M3) {
            return Err(Error::DType {
                kernel: "kv_cache",
                operand: "dtype",
                expected: "f32 or f8e4m3",
                found: dtype,
            });
        }
        if !matches!(device, Device::Cpu) {
            return Err(Error::UnsupportedDevice {
                kernel: "kv_cache",
                operand: "device",
                device: device.location(),
            });
        }
        let KvCacheConfig { num_layers, num_blocks, block_size, num_kv_heads, head_dim } = config;
        let layer = || -> Result<KvLayer> {
            let keys = (num_blocks, num_kv_heads, head_dim, block_size);
            let values = (num_blocks, num_kv_heads, block_size, head_dim);
            Ok(KvLayer {
                keys: Tensor::zeros(keys, dtype, device)?,
                values: Tensor::zeros(values, dtype, device)?,
            })
        };
        let layers = (0..num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, dtype, layers })
    }

    /// Bytes of one block over all layers, keys and values together. `num_blocks` of `config` is not
    /// looked at, so this answers how many blocks fit some memory.
    #[must_use]
    pub fn bytes_per_block(config: &KvCacheConfig, dtype: DType) -> usize {
        2 * config.num_layers * config.block_elements() * dtype.size_in_bytes()
    }

    /// The dimensions it was made with.
    #[must_use]
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// f32 or f8e4m3.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of blocks of every layer.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.config.num_blocks
    }

    /// Positions of one block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.config.block_size
    }

    /// Bytes reserved, all layers together.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        Self::bytes_per_block(&self.config, self.dtype) * self.config.num_blocks
    }

    /// The tensors of layer `layer`.
    ///
    /// # Errors
    /// There is no such layer.
    pub fn layer(&self, layer: usize) -> Result<&KvLayer> {
        let bound = self.layers.len();
        self.layers.get(layer).ok_or(Error::OutOfRange {
            kernel: "kv_cache",
            index: "layer",
            value: layer,
            bound,
        })
    }
}

/// Writes the keys and values of this step's tokens into their slots of layer `layer`.
///
/// `k` and `v` are f32 `[tokens, kv_heads, head_dim]`; `slot_mapping` is u32 `[tokens]`, each entry
/// `block * block_size + offset`.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, there is no such layer, or a slot is not in
/// the cache.
pub fn reshape_and_cache(
    k: &Tensor,
    v: &Tensor,
    cache: &KvCache,
    layer: usize,
    slot_mapping: &Tensor,
) -> Result<()> {
    const KERNEL: &str = "reshape_and_cache";
    let k = Operand::new(KERNEL, "k", k);
    let v = Operand::new(KERNEL, "v", v);
    let slot_mapping = Operand::new(KERNEL, "slot_mapping", slot_mapping);
    let KvCacheConfig { num_blocks, block_size, num_kv_heads, head_dim, .. } = cache.config;
    let (tokens, _, _) = k.dims3("[tokens, kv_heads, head_dim]")?;
    for operand in [&k, &v] {
        operand.expect_dims("[tokens, kv_heads, head_dim]", &[tokens, num_kv_heads, head_dim])?;
    }
    slot_mapping.expect_dims("[tokens]", &[tokens])?;
    let slots = slot_mapping.u32s()?;
    let bound = num_blocks * block_size;
    if let Some(&slot) = slots.iter().find(|&&slot| slot as usize >= bound) {
        return Err(Error::OutOfRange {
            kernel: KERNEL,
            index: "slot",
            value: slot as usize,
            bound,
        });
    }
    let layer = cache.layer(layer)?;
    let (k, v) = (k.f32s()?, v.f32s()?);
    let keys = Update { config: &cache.config, edit: Edit::Keys { rows: &k, slots: &slots } };
    let values = Update { config: &cache.config, edit: Edit::Values { rows: &v, slots: &slots } };
    layer.keys.inplace_op1(&keys)?;
    layer.values.inplace_op1(&values)?;
    Ok(())
}

/// Copies whole blocks `(source, destination)` in all layers, in order. Used when a shared block is
/// about to be written by one of its sequences.
///
/// # Errors
/// A block is not in the cache.
pub fn copy_blocks(cache: &KvCache, copies: &[(u32, u32)]) -> Result<()> {
    let bound = cache.config.num_blocks;
    for block in copies.iter().flat_map(|&(source, destination)| [source, destination]) {
        if block as usize >= bound {
            return Err(Error::OutOfRange {
                kernel: "copy_blocks",
                index: "block",
                value: block as usize,
                bound,
            });
        }
    }
    if copies.is_empty() {
        return Ok(());
    }
    let update = Update { config: &cache.config, edit: Edit::Copy(copies) };
    for layer in &cache.layers {
        layer.keys.inplace_op1(&update)?;
        layer.values.inplace_op1(&update)?;
    }
    Ok(())
}

/// A checked edit of one of the cache's tensors.
struct Update<'a> {
    config: &'a KvCacheConfig,
    edit: Edit<'a>,
}

enum Edit<'a> {
    Keys { rows: &'a [f32], slots: &'a [u32] },
    Values { rows: &'a [f32], slots: &'a [u32] },
    Copy(&'a [(u32, u32)]),
}

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "kv_cache_update"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or(candle_core::Error::RequiresContiguous { op: "kv_cache_update" })?;
        match storage {
            CpuStorage::F32(data) => self.apply(&mut data[start..end], |value| value),
            CpuStorage::F8E4M3(data) => self.apply(&mut data[start..end], F8E4M3::from_f32),
            _ => unreachable!("KvCache::new makes tensors of no other dtype"),
        }
        Ok(())
    }
}

impl Update<'_> {
    fn apply<T: Copy>(&self, data: &mut [T], round: impl Fn(f32) -> T) {
        match self.edit {
            Edit::Keys { rows, slots } => write_keys(data, (rows, round), slots, self.config),
            Edit::Values { rows, slots } => write_values(data, (rows, round), slots, self.config),
            Edit::Copy(copies) => {
                let len = self.config.block_elements();
                for &(source, destination) in copies {
                    let source = source as usize * len;
                    data.copy_within(source..source + len, destination as usize * len);
                }
            }
        }
    }
}

/// Scatters token rows `[kv_heads, head_dim]`, each number rounded, into transposed key blocks.
fn write_keys<T>(
    keys: &mut [T],
    (rows, round): (&[f32], impl Fn(f32) -> T),
    slots: &[u32],
    config: &KvCacheConfig,
) {
    let KvCacheConfig { block_size, num_kv_heads, head_dim, .. } = *config;
    for (row, &slot) in rows.chunks_exact(num_kv_heads * head_dim).zip(slots) {
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let block = &mut keys[block * config.block_elements()..][..config.block_elements()];
        // Head and dimension together index `[kv_heads * head_dim]` lines of `block_size` positions.
        for (line, value) in block.chunks_exact_mut(block_size).zip(row) {
            line[offset] = round(*value);
        }
    }
}

/// Copies token rows `[kv_heads, head_dim]`, each number rounded, into value blocks.
fn write_values<T>(
    values: &mut [T],
    (rows, round): (&[f32], impl Fn(f32) -> T),
    slots: &[u32],
    config: &KvCacheConfig,
) {
    let KvCacheConfig { block_size, num_kv_heads, head_dim, .. } = *config;
    for (row, &slot) in rows.chunks_exact(num_kv_heads * head_dim).zip(slots) {
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let block = &mut values[block * config.block_elements()..][..config.block_elements()];
        for (head, row) in
            block.chunks_exact_mut(block_size * head_dim).zip(row.chunks_exact(head_dim))
        {
            let place = head[offset * head_dim..][..head_dim].iter_mut();
            place.zip(row).for_each(|(place, value)| *place = round(*value));
        }
    }
}

/// The definition of [`reshape_and_cache`] for one element: where element `dim` of head `head` of the
/// token in `slot` lies in the keys and in the values.
#[must_use]
pub fn reshape_and_cache_reference(
    config: &KvCacheConfig,
    slot: usize,
    head: usize,
    dim: usize,
) -> (usize, usize) {
    let KvCacheConfig { block_size, num_kv_heads, head_dim, .. } = *config;
    let (block, offset) = (slot / block_size, slot % block_size);
    let key = ((block * num_kv_heads + head) * head_dim + dim) * block_size + offset;
    let value = ((block * num_kv_heads + head) * block_size + offset) * head_dim + dim;
    (key, value)
}
