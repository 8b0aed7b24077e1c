//! A weight matrix packed for the matmul, in the checkpoint's own dtype.

use std::sync::Arc;

use candle_core::DType;
use half::{bf16, f16};
use rayon::prelude::*;

use self::memory::WeightMemory;
use crate::{Error, Result};

mod memory;
#[cfg(test)]
mod tests;

/// Output columns of one panel: two vectors of sixteen f32.
pub(crate) const PANEL: usize = 32;

/// A matrix `[n, k]` (`n` outputs, `k` inputs) packed in panels of 32 rows, `[ceil(n / 32)][k][32]`.
///
/// Inside a panel two steps of `k` lie together, so that a linear over bf16 can use one cache line for
/// two steps of sixteen outputs. Missing outputs of the last panel, and the odd
/// step of an odd `k`, are zeros. Cloning shares the memory: tied embeddings exist once.
#[derive(Clone, Debug)]
pub struct Weight {
    n: usize,
    k: usize,
    dtype: DType,
    memory: Arc<WeightMemory>,
}

impl Weight {
    /// Starts a weight of `n` rows of `k` elements stored as `dtype` (f32, bf16 or f16).
    ///
    /// # Errors
    /// `dtype` is another one, `n` or `k` is zero, or the memory cannot be reserved.
    pub fn builder(n: usize, k: usize, dtype: DType) -> Result<WeightBuilder> {
        let order = ElementOrder::of(dtype)?;
        for (parameter, value) in [("weight rows n", n), ("weight columns k", k)] {
            if value == 0 {
                return Err(Error::Parameter { parameter, value, expected: "at least 1" });
            }
        }
        let bytes = n
            .div_ceil(PANEL)
            .checked_mul(order.panel_bytes(k))
            .ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        let memory = WeightMemory::zeroed(bytes)?;
        Ok(WeightBuilder { n, k, dtype, order, memory, written: vec![false; n] })
    }

    /// Number of outputs (rows of the checkpoint's matrix).
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs (columns of the checkpoint's matrix).
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// The stored dtype.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of memory held, padding included.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.memory.len()
    }

    /// How elements lie inside a panel.
    pub(crate) fn order(&self) -> ElementOrder {
        ElementOrder::of(self.dtype).expect("the builder accepted the dtype")
    }

    /// All panels, back to back; 64-byte aligned.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Widens row `row` into `out` (`k` elements).
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.n && out.len() == self.k,
            "row {row} of a [{}, {}] weight",
            self.n,
            self.k
        );
        let order = self.order();
        let panel_bytes = order.panel_bytes(self.k);
        let panel = &self.bytes()[row / PANEL * panel_bytes..][..panel_bytes];
        for (k, value) in out.iter_mut().enumerate() {
            let at = order.index(k, row % PANEL);
            *value = match order {
                ElementOrder::F32 => f32::get(panel, at),
                ElementOrder::F16 => f16::get(panel, at).to_f32(),
                ElementOrder::Bf16 => bf16::get(panel, at).to_f32(),
            };
        }
    }
}

/// The stored dtypes and their orders inside a panel.
///
/// - f32 and f16: `[k][32 columns]`.
/// - bf16: `[k / 2][2 halves][16 columns][2 steps of k]`. Sixteen 32-bit words then hold two steps of
///   sixteen columns: a shift or a mask widens one step to f32, and the bf16 dot products and AMX tiles
///   of later paths read the same words as they are.
///
/// `k` is rounded up to even in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementOrder {
    F32,
    F16,
    Bf16,
}

impl ElementOrder {
    fn of(dtype: DType) -> Result<Self> {
        match dtype {
            DType::F32 => Ok(Self::F32),
            DType::F16 => Ok(Self::F16),
            DType::BF16 => Ok(Self::Bf16),
            found => Err(Error::DType {
                kernel: "weight",
                operand: "dtype",
                expected: "f32, f16 or bf16",
                found,
            }),
        }
    }

    /// Bytes of two steps of `k` of one panel.
    pub(crate) fn pair_bytes(self) -> usize {
        let element_bytes = match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        };
        2 * PANEL * element_bytes
    }

    /// Bytes of a whole panel.
    pub(crate) fn panel_bytes(self, k: usize) -> usize {
        k.div_ceil(2) * self.pair_bytes()
    }

    /// Element index inside a panel of step `k`, column `column`.
    fn index(self, k: usize, column: usize) -> usize {
        match self {
            Self::F32 | Self::F16 => k * PANEL + column,
            Self::Bf16 => k / 2 * (2 * PANEL) + column * 2 + k % 2,
        }
    }
}

/// Some consecutive rows of a matrix, row-major, little-endian. The bytes may be unaligned.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows<'a> {
    /// Their dtype: f32, bf16 or f16.
    pub dtype: DType,
    /// `rows * k` elements.
    pub bytes: &'a [u8],
}

/// A weight under construction: rows arrive in any order and in any grouping, which is how fused
/// weights (qkv, gate and up) are put together from separate tensors.
#[derive(Debug)]
pub struct WeightBuilder {
    n: usize,
    k: usize,
    dtype: DType,
    order: ElementOrder,
    memory: WeightMemory,
    written: Vec<bool>,
}

impl WeightBuilder {
    /// Writes `rows` as rows `first_row..`, converting them to the weight's dtype where they differ.
    ///
    /// # Errors
    /// The rows' dtype is not f32, bf16 or f16; the bytes are not whole rows; or the rows reach past `n`.
    pub fn write_rows(&mut self, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        let source = ElementOrder::of(rows.dtype)?;
        let row_bytes = self.k * source.pair_bytes() / (2 * PANEL);
        if !rows.bytes.len().is_multiple_of(row_bytes) {
            return Err(Error::RowBytes { found: rows.bytes.len(), dtype: rows.dtype, k: self.k });
        }
        let end = first_row + rows.bytes.len() / row_bytes;
        if end > self.n {
            return Err(Error::OutOfRange {
                kernel: "weight",
                index: "end of rows",
                value: end,
                bound: self.n + 1,
            });
        }
        if end == first_row {
            return Ok(());
        }
        use ElementOrder::{Bf16, F16, F32};
        let range = first_row..end;
        match (source, self.order) {
            (F32, F32) => self.scatter(range, rows.bytes, |v: f32| v),
            (F16, F16) => self.scatter(range, rows.bytes, |v: f16| v),
            (Bf16, Bf16) => self.scatter(range, rows.bytes, |v: bf16| v),
            (F16, F32) => self.scatter(range, rows.bytes, f16::to_f32),
            (Bf16, F32) => self.scatter(range, rows.bytes, bf16::to_f32),
            (F32, F16) => self.scatter(range, rows.bytes, f16::from_f32),
            (F32, Bf16) => self.scatter(range, rows.bytes, bf16::from_f32),
            (Bf16, F16) => self.scatter(range, rows.bytes, |v: bf16| f16::from_f32(v.to_f32())),
            (F16, Bf16) => self.scatter(range, rows.bytes, |v: f16| bf16::from_f32(v.to_f32())),
        }
        self.written[first_row..end].fill(true);
        Ok(())
    }

    /// The finished weight.
    ///
    /// # Errors
    /// A row was never written.
    pub fn finish(self) -> Result<Weight> {
        if let Some(row) = self.written.iter().position(|written| !written) {
            return Err(Error::MissingRow { row, n: self.n });
        }
        Ok(Weight { n: self.n, k: self.k, dtype: self.dtype, memory: Arc::new(self.memory) })
    }

    /// Copies row-major `source` to its places, one task per panel.
    fn scatter<S: Element, D: Element>(
        &mut self,
        rows: std::ops::Range<usize>,
        source: &[u8],
        convert: impl Fn(S) -> D + Sync,
    ) {
        let (k, order) = (self.k, self.order);
        let first_panel = rows.start / PANEL;
        let panel_bytes = order.panel_bytes(k);
        let row_bytes = k * size_of::<S>();
        self.memory.bytes_mut()[first_panel * panel_bytes..]
            .par_chunks_exact_mut(panel_bytes)
            .take(rows.end.div_ceil(PANEL) - first_panel)
            .enumerate()
            .for_each(|(i, panel)| {
                let panel_row = (first_panel + i) * PANEL;
                let (start, end) = (rows.start.max(panel_row), rows.end.min(panel_row + PANEL));
                for row in start..end {
                    let source = &source[(row - rows.start) * row_bytes..][..row_bytes];
                    for k in 0..k {
                        convert(S::get(source, k)).put(panel, order.index(k, row - panel_row));
                    }
                }
            });
    }
}

/// A little-endian element of a byte slice.
trait Element: Copy + Send + Sync {
    fn get(bytes: &[u8], index: usize) -> Self;
    fn put(self, bytes: &mut [u8], index: usize);
}

macro_rules! element {
    ($type:ty) => {
        impl Element for $type {
            #[inline(always)]
            fn get(bytes: &[u8], index: usize) -> Self {
                const SIZE: usize = size_of::<$type>();
                let bytes = &bytes[index * SIZE..][..SIZE];
                Self::from_le_bytes(bytes.try_into().expect("the slice has the element's size"))
            }

            #[inline(always)]
            fn put(self, bytes: &mut [u8], index: usize) {
                const SIZE: usize = size_of::<$type>();
                bytes[index * SIZE..][..SIZE].copy_from_slice(&self.to_le_bytes());
            }
        }
    };
}
element!(f32);
element!(f16);
element!(bf16);
