//! The paged cache of keys and values.

use std::mem::ManuallyDrop;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use float8::F8E4M3;
use half::bf16;
use half::vec::HalfBitsVecExt;

use crate::tensor::Operand;
use crate::{Error, Result};

#[cfg(test)]
mod tests;

/// Blocks hold a multiple of this number of positions, the length of one vector of keys.
const BLOCK_MULTIPLE: usize = 16;

/// The dimensions of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheConfig {
    /// Number of layers that have keys and values.
    pub num_layers: usize,
    /// Number of blocks of every layer.
    pub num_blocks: usize,
    /// Number of positions of one block, a multiple of 16.
    pub block_size: usize,
    /// Number of key-value heads of every layer.
    pub num_kv_heads: usize,
    /// Number of elements of one head, a multiple of 8.
    pub head_dim: usize,
    /// Number of leading elements of a key that are also the value, a multiple of 8. This is multi-head latent
    /// attention (MLA), whose cache has one head.
    pub latent: Option<usize>,
}

impl KvCacheConfig {
    /// Checks the dimensions.
    ///
    /// # Errors
    /// One is zero or not the required multiple, or slots would not fit 32 bits.
    pub fn check(&self) -> Result<()> {
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
        if let Some(value) = self.latent {
            let fits = value > 0 && value.is_multiple_of(8) && value <= self.head_dim;
            if !fits || self.num_kv_heads != 1 {
                let expected =
                    "a positive multiple of 8, at most head_dim, with one key-value head";
                return Err(Error::Parameter { parameter: "latent", value, expected });
            }
        }
        // A slot mapping has elements of 32 bits.
        if u32::try_from(self.num_blocks * self.block_size).is_err() {
            return Err(Error::Parameter {
                parameter: "num_blocks",
                value: self.num_blocks,
                expected: "small enough that slots fit 32 bits",
            });
        }
        Ok(())
    }

    /// Number of elements of a head of the values.
    #[must_use]
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// Number of elements of the keys of a block.
    #[must_use]
    pub fn block_elements(&self) -> usize {
        self.num_kv_heads * self.head_dim * self.block_size
    }

    /// Number of elements of the values of a block.
    #[must_use]
    pub fn value_elements(&self) -> usize {
        self.num_kv_heads * self.value_dim() * self.block_size
    }
}

/// Scales of a layer's keys and values in FP8. Both are divided by them before they are rounded, and multiplied by
/// them when they are read. Values beyond 448 times the scale become 448 times the scale. A checkpoint may define the
/// scales (`k_scale`, `v_scale`), and without them both are 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScales {
    /// Scale of the keys.
    pub key: f32,
    /// Scale of the values.
    pub value: f32,
}

impl KvScales {
    /// Scales of 1, which change nothing.
    pub const ONE: Self = Self { key: 1.0, value: 1.0 };

    /// Refuses scales for a cache with another number of layers, or of a dtype that has none.
    ///
    /// # Errors
    /// There is not one pair for each layer, or the dtype is another one.
    pub fn check(scales: &[Self], num_layers: usize, dtype: DType) -> Result<()> {
        if dtype != DType::F8E4M3 {
            let (kernel, operand, expected) = ("kv_cache", "dtype", "f8e4m3, which has scales");
            return Err(Error::DType { kernel, operand, expected, found: dtype });
        }
        if scales.len() != num_layers {
            let (parameter, expected) = ("scales", "one pair for each layer");
            return Err(Error::Parameter { parameter, value: scales.len(), expected });
        }
        Ok(())
    }
}

/// The KV cache: keys and values of every layer, in blocks of `block_size` positions. Its dtype is f32, bf16 or FP8
/// (e4m3). Values in FP8 are divided by their [`KvScales`], rounded to the nearest of e4m3's 256 values and clamped
/// to 448.
///
/// Keys are transposed inside a block. So sixteen positions of one head dimension, or of two dimensions in bf16, are
/// one vector. [`CacheOrder`] documents the order of the elements. Latents (MLA) are stored twice, as keys and as
/// values, since the two are in different orders.
///
/// The memory is reserved at once, and the system provides pages when they are first written. Writing goes through
/// `&self`, like with any candle tensor: each tensor is locked while it is written.
#[derive(Debug)]
pub struct KvCache {
    config: KvCacheConfig,
    dtype: DType,
    layers: Vec<KvLayer>,
}

/// The keys and values of one layer, in a [`CacheOrder`].
#[derive(Clone, Debug)]
pub struct KvLayer {
    /// The keys of all blocks.
    pub keys: Tensor,
    /// The values of all blocks.
    pub values: Tensor,
    /// Scales of both in FP8.
    pub scales: KvScales,
}

/// Order of the elements in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOrder {
    /// Keys `[num_blocks, kv_heads, head_dim, block_size]`, values `[num_blocks, kv_heads, block_size, value_dim]`.
    Single,
    /// In pairs, for dot products of bf16: keys `[num_blocks, kv_heads, head_dim / 2, block_size, 2]`, values
    /// `[num_blocks, kv_heads, block_size / 2, value_dim, 2]`.
    Pairs,
}

impl CacheOrder {
    /// The order of a [`KvCache`] of `dtype`.
    #[must_use]
    pub fn of(dtype: DType) -> Self {
        if dtype == DType::BF16 { Self::Pairs } else { Self::Single }
    }

    /// Number of neighbouring elements of different dimensions of a key, or of different positions of the values.
    fn steps(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Pairs => 2,
        }
    }

    /// The dimensions of the tensors of keys and values.
    fn dims(self, config: &KvCacheConfig) -> [Vec<usize>; 2] {
        let KvCacheConfig { num_blocks, block_size, num_kv_heads, head_dim, .. } = *config;
        let steps = self.steps();
        let last = (steps > 1).then_some(steps);
        [(head_dim / steps, block_size), (block_size / steps, config.value_dim())].map(
            |(lines, line)| {
                [num_blocks, num_kv_heads, lines, line].into_iter().chain(last).collect()
            },
        )
    }
}

impl KvCache {
    /// Makes an empty cache of f32, bf16 or f8e4m3 on `device`.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple, the dtype is another one, the device is not the CPU, or
    /// candle could not allocate.
    pub fn new(config: KvCacheConfig, dtype: DType, device: &Device) -> Result<Self> {
        config.check()?;
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F8E4M3) {
            return Err(Error::DType {
                kernel: "kv_cache",
                operand: "dtype",
                expected: "f32, bf16 or f8e4m3",
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
        let dims = CacheOrder::of(dtype).dims(&config);
        let layer = || -> Result<KvLayer> {
            let [keys, values] = dims.each_ref().map(|dims| zeros(dims, dtype));
            Ok(KvLayer { keys: keys?, values: values?, scales: KvScales::ONE })
        };
        let layers = (0..config.num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, dtype, layers })
    }

    /// Sets the scales of each layer. The cache must be empty and of f8e4m3.
    ///
    /// # Errors
    /// There is not one pair for each layer, or the dtype is another one.
    pub fn with_scales(mut self, scales: &[KvScales]) -> Result<Self> {
        KvScales::check(scales, self.layers.len(), self.dtype)?;
        for (layer, scales) in self.layers.iter_mut().zip(scales) {
            layer.scales = *scales;
        }
        Ok(self)
    }

    /// Bytes of one block over all layers, keys and values together. It does not depend on `num_blocks` of `config`,
    /// so that a caller can compute the number of blocks that fit some memory.
    #[must_use]
    pub fn bytes_per_block(config: &KvCacheConfig, dtype: DType) -> usize {
        let elements = config.block_elements() + config.value_elements();
        config.num_layers * elements * dtype.size_in_bytes()
    }

    /// The dimensions of the cache.
    #[must_use]
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// The dtype: f32, bf16 or f8e4m3.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of blocks of every layer.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.config.num_blocks
    }

    /// Number of positions of one block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.config.block_size
    }

    /// Number of bytes reserved for all layers.
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

/// Zeros in memory whose pages the system provides when they are first written. For bf16 and f8e4m3 candle would write
/// the zeros.
fn zeros(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let len = dims.iter().product();
    Ok(match dtype {
        DType::BF16 => {
            let bits = vec![0u16; len];
            Tensor::from_vec(bits.reinterpret_into::<bf16>(), dims, &Device::Cpu)?
        }
        DType::F8E4M3 => Tensor::from_vec(of_bits(vec![0; len]), dims, &Device::Cpu)?,
        _ => Tensor::zeros(dims, dtype, &Device::Cpu)?,
    })
}

/// The values with these bits, in the same memory. The crate `float8` has no such function.
fn of_bits(bits: Vec<u8>) -> Vec<F8E4M3> {
    let mut bits = ManuallyDrop::new(bits);
    // SAFETY: F8E4M3 is a transparent u8, any bits are valid values of it, and nobody else owns the memory any more.
    unsafe { Vec::from_raw_parts(bits.as_mut_ptr().cast(), bits.len(), bits.capacity()) }
}

/// Writes the keys and values of this step's tokens into their slots of layer `layer`.
///
/// `k` is f32 `[tokens, kv_heads, head_dim]`, `v` `[tokens, kv_heads, value_dim]`; `slot_mapping` is u32 `[tokens]`, each
/// entry `block * block_size + offset`.
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
    k.expect_dims("[tokens, kv_heads, head_dim]", &[tokens, num_kv_heads, head_dim])?;
    let value_dim = cache.config.value_dim();
    v.expect_dims("[tokens, kv_heads, value_dim]", &[tokens, num_kv_heads, value_dim])?;
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
    let KvScales { key, value } = layer.scales;
    let update = |edit, scale| Update { config: &cache.config, edit, scale };
    let keys = update(Edit::Keys { rows: &k, slots: &slots }, key);
    let values = update(Edit::Values { rows: &v, slots: &slots }, value);
    layer.keys.inplace_op1(&keys)?;
    layer.values.inplace_op1(&values)?;
    Ok(())
}

/// Copies whole blocks `(source, destination)` in all layers, in order. It is used before a sequence writes to a
/// block that it shares with others.
///
/// # Errors
/// A block is not in the cache.
pub fn copy_blocks(cache: &KvCache, copies: &[(u32, u32)]) -> Result<()> {
    let bound = cache.config.num_blocks;
    // Checked before the first copy, so that a refused call changes nothing.
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
    let copy = |block_elements| {
        let edit = Edit::Copy { copies, block_elements };
        Update { config: &cache.config, edit, scale: 1.0 }
    };
    // The values of latents are shorter than the keys.
    let (keys, values) = (copy(cache.config.block_elements()), copy(cache.config.value_elements()));
    for layer in &cache.layers {
        layer.keys.inplace_op1(&keys)?;
        layer.values.inplace_op1(&values)?;
    }
    Ok(())
}

/// A checked edit of one of the cache's tensors.
struct Update<'a> {
    config: &'a KvCacheConfig,
    edit: Edit<'a>,
    /// Scale by which rows are divided in FP8.
    scale: f32,
}

enum Edit<'a> {
    Keys { rows: &'a [f32], slots: &'a [u32] },
    Values { rows: &'a [f32], slots: &'a [u32] },
    Copy { copies: &'a [(u32, u32)], block_elements: usize },
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
            CpuStorage::F32(data) => self.apply::<_, 1>(&mut data[start..end], |value| value),
            CpuStorage::BF16(data) => self.apply::<_, 2>(&mut data[start..end], bf16::from_f32),
            CpuStorage::F8E4M3(data) => {
                let round = |value| F8E4M3::from_f32(value / self.scale);
                self.apply::<_, 1>(&mut data[start..end], round);
            }
            _ => unreachable!("KvCache::new makes tensors of no other dtype"),
        }
        Ok(())
    }
}

impl Update<'_> {
    fn apply<T: Copy, const STEPS: usize>(&self, data: &mut [T], round: impl Fn(f32) -> T) {
        match self.edit {
            Edit::Keys { rows, slots } => {
                write_keys::<_, STEPS>(data, (rows, round), slots, self.config);
            }
            Edit::Values { rows, slots } => {
                write_values::<_, STEPS>(data, (rows, round), slots, self.config);
            }
            Edit::Copy { copies, block_elements: len } => {
                for &(source, destination) in copies {
                    let source = source as usize * len;
                    data.copy_within(source..source + len, destination as usize * len);
                }
            }
        }
    }
}

/// Scatters token rows `[kv_heads, head_dim]`, rounded to the cache's dtype, into transposed key blocks.
fn write_keys<T, const STEPS: usize>(
    keys: &mut [T],
    (rows, round): (&[f32], impl Fn(f32) -> T),
    slots: &[u32],
    config: &KvCacheConfig,
) {
    let KvCacheConfig { block_size, num_kv_heads, head_dim, .. } = *config;
    for (row, &slot) in rows.chunks_exact(num_kv_heads * head_dim).zip(slots) {
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let block = &mut keys[block * config.block_elements()..][..config.block_elements()];
        // Head and dimension together are an index into `[kv_heads * head_dim / STEPS]` lines of `block_size`
        // positions.
        let lines = block.chunks_exact_mut(block_size * STEPS);
        for (line, values) in lines.zip(row.as_chunks::<STEPS>().0) {
            let place = line[offset * STEPS..][..STEPS].iter_mut();
            place.zip(values).for_each(|(place, value)| *place = round(*value));
        }
    }
}

/// Copies token rows `[kv_heads, value_dim]`, rounded to the cache's dtype, into value blocks.
fn write_values<T, const STEPS: usize>(
    values: &mut [T],
    (rows, round): (&[f32], impl Fn(f32) -> T),
    slots: &[u32],
    config: &KvCacheConfig,
) {
    let KvCacheConfig { block_size, num_kv_heads, .. } = *config;
    let (width, len) = (config.value_dim(), config.value_elements());
    for (row, &slot) in rows.chunks_exact(num_kv_heads * width).zip(slots) {
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let block = &mut values[block * len..][..len];
        for (head, row) in block.chunks_exact_mut(block_size * width).zip(row.chunks_exact(width)) {
            let line = head.chunks_exact_mut(width * STEPS).nth(offset / STEPS);
            let line = line.expect("a slot is in its block");
            let place = line.iter_mut().skip(offset % STEPS).step_by(STEPS);
            place.zip(row).for_each(|(place, value)| *place = round(*value));
        }
    }
}

/// The reference for [`reshape_and_cache`] for one element: the index of element `dim` of head `head` of the token in
/// `slot` in the keys. Below `value_dim` it has an index in the values, too.
#[must_use]
#[inline]
pub fn reshape_and_cache_reference(
    config: &KvCacheConfig,
    order: CacheOrder,
    slot: usize,
    (head, dim): (usize, usize),
) -> (usize, usize) {
    let KvCacheConfig { block_size, num_kv_heads, head_dim, .. } = *config;
    let (block, offset) = (slot / block_size, slot % block_size);
    let head = block * num_kv_heads + head;
    let steps = order.steps();
    let key = ((head * head_dim / steps + dim / steps) * block_size + offset) * steps + dim % steps;
    let line = head * block_size / steps + offset / steps;
    let value = (line * config.value_dim() + dim) * steps + offset % steps;
    (key, value)
}
