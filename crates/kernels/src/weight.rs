//! A weight matrix packed for the matmul, in the checkpoint's own dtype.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::DType;
use candlepower_layout::ActivationScales;
pub use candlepower_layout::TABLE;
pub use candlepower_layout::{Blocks, Dtype, OffsetForm, QuantFormat, ScaleForm, SubScaleForm};
pub(crate) use candlepower_layout::{PANEL, TABLE_STEPS};
use half::{bf16, f16};
use rayon::prelude::*;

pub(crate) use self::layout::{ElementOrder, Layout, SubScaleBytes, TABLE_OUTPUTS};
use self::memory::WeightMemory;
pub(crate) use self::quantized::IQ4;
pub use self::quantized::{E2M1, IQ4_ZERO, counted_iq4, e4m3_part};
pub use self::quantized::{Offsets, QuantizedRows, SubScales};
pub use self::sparse::{Entry, Sparse, SparseRows};
use crate::{Error, Fp8Rounding, Result};

mod layout;
mod memory;
mod pack;
pub(crate) mod planes;
mod quantized;
mod sparse;
#[cfg(test)]
mod tests;

/// A matrix `[n, k]` (`n` outputs, `k` inputs) packed in panels of 32 rows, `[ceil(n / 32)][k][32]`. Its elements
/// have a dtype of the checkpoint or are quantized weights.
///
/// Inside a panel two steps of `k` lie together, so that a linear over bf16 reads two steps of sixteen outputs from
/// one cache line. Missing outputs of the last panel, and the odd step of an odd `k`, are zeros. Cloning shares the
/// memory, so that tied embeddings exist once.
#[derive(Clone, Debug)]
pub struct Weight {
    n: usize,
    layout: Layout,
    memory: Arc<WeightMemory>,
    /// Input index of each step of `k`, if the inputs are reordered (act-order).
    inputs: Option<Arc<[u32]>>,
    /// Sparse values that are added to the dequantized values of the panels.
    sparse: Option<Arc<Sparse>>,
    rounds_activations: bool,
    activations: Option<Fp8Rounding>,
}

impl Weight {
    /// Starts a weight of `n` rows of `k` elements stored as `dtype` (f32, bf16 or f16).
    ///
    /// # Errors
    /// `dtype` is another one, `n` or `k` is zero, or the memory cannot be reserved.
    pub fn builder(n: usize, k: usize, dtype: DType) -> Result<WeightBuilder> {
        WeightBuilder::new(
            n,
            Layout { order: ElementOrder::of(dtype)?, k, group: k.max(1), scales: ScaleForm::F32 },
        )
    }

    /// Starts a weight of `n` rows of `k` quantized weights. Each `group` of neighbouring columns shares a scale and
    /// an offset, which are kept in the form `scales`.
    ///
    /// # Errors
    /// - `group` is odd and not `k`, or [`QuantFormat::Table`] has several groups.
    /// - `k` is not whole super-blocks, a super-block is not whole groups, or its groups are no multiple of sixteen.
    /// - E4M3, E2M1, IQ4 and tables have a form of scales or offsets that their kernels do not read.
    /// - Sub-scales are in a form for another form of offsets.
    /// - The errors of [`Self::builder`].
    pub fn quantized_builder(
        n: usize,
        k: usize,
        format: QuantFormat,
        group: usize,
        scales: ScaleForm,
    ) -> Result<WeightBuilder> {
        // A `k` of zero is refused by `new`.
        let group = group.min(k);
        if k > 0 && group < k && (group == 0 || group % 2 == 1 || format == QuantFormat::Table) {
            return Err(Error::Parameter {
                parameter: "weight group",
                value: group,
                expected: "an even number, or all inputs (which it must be for tables)",
            });
        }
        let plain = (scales.dtype == Dtype::F32
            || matches!(format, QuantFormat::E2m1 | QuantFormat::Iq4))
            && (scales.blocks.is_none() || format == QuantFormat::Iq4)
            && matches!(scales.offsets, OffsetForm::None | OffsetForm::Own);
        if !format.count_from_zero() && !plain {
            return Err(Error::QuantizedRows(
                "scales of E4M3 and tables are in f32, without blocks as those of E2M1, and without zero points as those of IQ4",
            ));
        }
        if let Some(Blocks { columns, sub_scales }) = scales.blocks {
            let is_whole = group.is_multiple_of(ScaleForm::GROUP_MULTIPLE)
                && columns.is_multiple_of(group)
                && k.is_multiple_of(columns);
            if !sub_scales.suits(scales.offsets) {
                return Err(Error::QuantizedRows(
                    "sub-scales of this form need another form of offsets",
                ));
            }
            if columns == 0 || !is_whole {
                return Err(Error::Parameter {
                    parameter: "columns of a super-block",
                    value: columns,
                    expected: "whole groups, each a multiple of 16, of which all inputs are a multiple",
                });
            }
        }
        let order = ElementOrder::Quantized(format);
        WeightBuilder::new(n, Layout { order, k, group: group.max(1), scales })
    }

    /// Number of outputs (rows of the checkpoint's matrix).
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs (columns of the checkpoint's matrix).
    #[must_use]
    pub fn k(&self) -> usize {
        self.layout.k
    }

    /// The stored dtype. It is f32 for quantized weights, since they are dequantized to f32.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self.layout.order {
            ElementOrder::F32 | ElementOrder::Quantized(_) => DType::F32,
            ElementOrder::F16 => DType::F16,
            ElementOrder::Bf16 => DType::BF16,
        }
    }

    /// Bytes of memory held, padding included.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let inputs = self.inputs.as_deref().map_or(0, size_of_val);
        self.memory.len() + inputs + self.sparse.as_deref().map_or(0, Sparse::num_bytes)
    }

    /// Whether activations are rounded to bf16 before the product: if the weight is bf16, or by
    /// [`WeightBuilder::with_rounded_activations`].
    pub(crate) fn rounds_activations(&self) -> bool {
        self.rounds_activations
    }

    /// How activations are rounded to FP8 before the product, if they are.
    #[must_use]
    pub fn activations(&self) -> Option<Fp8Rounding> {
        self.activations
    }

    /// The same weight for activations that are rounded in another way.
    #[must_use]
    pub fn with_activations(self, activations: Option<Fp8Rounding>) -> Self {
        Self { activations, ..self }
    }

    /// Order of the elements in the panels.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Input index of each step of `k`, if the inputs are reordered (act-order).
    #[must_use]
    pub fn inputs(&self) -> Option<&[u32]> {
        self.inputs.as_deref()
    }

    /// Sparse values that are added to the dequantized values of the panels.
    #[must_use]
    pub fn sparse(&self) -> Option<&Sparse> {
        self.sparse.as_deref()
    }

    /// All panels, back to back; 64-byte aligned.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Widens row `row` into `out` (`k` elements).
    ///
    /// # Panics
    /// There is no such row, or `out` has another length.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let k = self.k();
        assert!(row < self.n && out.len() == k, "row {row} of a [{}, {k}] weight", self.n);
        let panel_bytes = self.layout.panel_bytes();
        let panel = &self.bytes()[row / PANEL * panel_bytes..][..panel_bytes];
        self.layout.read(panel, row % PANEL, |step, value| match &self.inputs {
            Some(inputs) => out[inputs[step] as usize] = value,
            None => out[step] = value,
        });
        // Sparse entries name inputs of the checkpoint, whatever the order of the panels.
        for (input, number) in self.sparse.iter().flat_map(|sparse| sparse.row(row)) {
            out[*input as usize] += number;
        }
    }
}

impl Layout {
    /// Calls `take` with each step of a panel's column, and its dequantized value.
    fn read(self, panel: &[u8], column: usize, mut take: impl FnMut(usize, f32)) {
        if let ElementOrder::Quantized(format) = self.order {
            return self.read_quants(format, panel, column, take);
        }
        for step in 0..self.k {
            let index = self.index(step, column);
            let number = match self.order {
                ElementOrder::F16 => f16::get(panel, index).to_f32(),
                ElementOrder::Bf16 => bf16::get(panel, index).to_f32(),
                _ => f32::get(panel, index),
            };
            take(step, number);
        }
    }

    /// Index of the element at step `k` and `column` inside a panel of a dtype that is not quantized.
    fn index(self, k: usize, column: usize) -> usize {
        match self.order {
            // The even step lies in the high half of a word, which is the second of two elements in little-endian
            // order.
            ElementOrder::Bf16 => k / 2 * (2 * PANEL) + column * 2 + (1 - k % 2),
            _ => k * PANEL + column,
        }
    }
}

/// Consecutive rows of a matrix, row-major, little-endian. The bytes may be unaligned.
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
    layout: Layout,
    memory: WeightMemory,
    written: Vec<bool>,
    inputs: Option<Arc<[u32]>>,
    sparse: BTreeMap<usize, Vec<(u32, f32)>>,
    rounds_activations: bool,
    activations: Option<Fp8Rounding>,
}

impl WeightBuilder {
    fn new(n: usize, layout: Layout) -> Result<Self> {
        for (parameter, value) in [("weight rows n", n), ("weight columns k", layout.k)] {
            if value == 0 {
                return Err(Error::Parameter { parameter, value, expected: "at least 1" });
            }
        }
        // Sizes come from a checkpoint, so their product may overflow.
        let bytes = n
            .div_ceil(PANEL)
            .checked_mul(layout.panel_bytes())
            .ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        let memory = WeightMemory::zeroed(bytes)?;
        let (written, sparse) = (vec![false; n], BTreeMap::new());
        let rounds_activations = layout.order == ElementOrder::Bf16;
        let activations = None;
        Ok(Self {
            n,
            layout,
            memory,
            written,
            inputs: None,
            sparse,
            rounds_activations,
            activations,
        })
    }

    /// Rounds activations to FP8 with these scales. A fixed scale is NaN until [`Self::add_fixed_scale`] is called.
    #[must_use]
    pub fn with_activations(mut self, scales: Option<ActivationScales>) -> Self {
        self.activations = scales.map(|scales| Fp8Rounding { scales, fixed: f32::NAN });
        self
    }

    /// Takes the fixed scale of one of the matrices that this weight consists of. All use the largest, as the values of
    /// the others fit into its range, too.
    pub fn add_fixed_scale(&mut self, scale: f32) {
        if let Some(rounding) = &mut self.activations
            && rounding.scales == ActivationScales::Fixed
        {
            // `max` ignores the NaN of a scale that is not known yet.
            rounding.fixed = rounding.fixed.max(scale);
        }
    }

    /// Lets activations be rounded to bf16 where this makes products with quantized weights faster: for all kinds but
    /// tables.
    #[must_use]
    pub fn with_rounded_activations(mut self) -> Self {
        let faster = matches!(self.layout.order, ElementOrder::Quantized(format) if format != QuantFormat::Table);
        self.rounds_activations |= faster;
        self
    }

    /// Writes `rows` as rows `first_row..`, converting them to the weight's dtype where they differ.
    ///
    /// # Errors
    /// The rows' dtype is not f32, bf16 or f16; the bytes are not whole rows; the rows reach past `n`; or the weight is
    /// quantized.
    pub fn write_rows(&mut self, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        let source = ElementOrder::of(rows.dtype)?;
        let k = self.layout.k;
        // A pair is two steps of all outputs of a panel.
        let row_bytes = k * source.pair_bytes() / (2 * PANEL);
        if !rows.bytes.len().is_multiple_of(row_bytes) {
            return Err(Error::RowBytes { found: rows.bytes.len(), dtype: rows.dtype, k });
        }
        let range = self.range(first_row, rows.bytes.len() / row_bytes)?;
        if range.is_empty() {
            return Ok(());
        }
        use ElementOrder::{Bf16, F16, F32, Quantized};
        match (source, self.layout.order) {
            (F32, F32) => self.scatter(range, rows.bytes, |v: f32| v),
            (F16, F16) => self.scatter(range, rows.bytes, |v: f16| v),
            (Bf16, Bf16) => self.scatter(range, rows.bytes, |v: bf16| v),
            (F16, F32) => self.scatter(range, rows.bytes, f16::to_f32),
            (Bf16, F32) => self.scatter(range, rows.bytes, bf16::to_f32),
            (F32, F16) => self.scatter(range, rows.bytes, f16::from_f32),
            (F32, Bf16) => self.scatter(range, rows.bytes, bf16::from_f32),
            (Bf16, F16) => self.scatter(range, rows.bytes, |v: bf16| f16::from_f32(v.to_f32())),
            (F16, Bf16) => self.scatter(range, rows.bytes, |v: f16| bf16::from_f32(v.to_f32())),
            (_, Quantized(_)) | (Quantized(_), _) => {
                return Err(Error::QuantizedRows("for a quantized weight call write_quantized"));
            }
        }
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
        Ok(self.finish_with_zeros())
    }

    /// The finished weight. Rows that were never written are zeros.
    #[must_use]
    pub fn finish_with_zeros(self) -> Weight {
        let (n, layout, inputs) = (self.n, self.layout, self.inputs);
        let sparse = Sparse::collect(self.sparse, n).map(Arc::new);
        let (memory, rounds_activations) = (Arc::new(self.memory), self.rounds_activations);
        let activations = self.activations;
        Weight { n, layout, memory, inputs, sparse, rounds_activations, activations }
    }

    /// Marks `rows` rows from `first_row` on as written, and returns their range.
    fn range(&mut self, first_row: usize, rows: usize) -> Result<Range<usize>> {
        let end = first_row.saturating_add(rows);
        if end > self.n {
            return Err(Error::OutOfRange {
                kernel: "weight",
                index: "end of rows",
                value: end,
                bound: self.n + 1,
            });
        }
        self.written[first_row..end].fill(true);
        Ok(first_row..end)
    }

    /// Calls `write(panel, columns, row)` for each panel that has some of the rows, one task each. The rows from
    /// `row` on are these columns of the panel.
    fn each_panel(
        &mut self,
        rows: Range<usize>,
        write: impl Fn(&mut [u8], Range<usize>, usize) + Sync,
    ) {
        let first_panel = rows.start / PANEL;
        let panel_bytes = self.layout.panel_bytes();
        self.memory.bytes_mut()[first_panel * panel_bytes..]
            .par_chunks_exact_mut(panel_bytes)
            .take(rows.end.div_ceil(PANEL) - first_panel)
            .enumerate()
            .for_each(|(i, panel)| {
                let panel_row = (first_panel + i) * PANEL;
                let (start, end) = (rows.start.max(panel_row), rows.end.min(panel_row + PANEL));
                write(panel, start - panel_row..end - panel_row, start);
            });
    }

    /// Copies row-major `source` into the panels. It copies a few steps of every row at a time, so that a cache line
    /// stays in the cache until all rows have filled it.
    fn scatter<S: Element, D: Element>(
        &mut self,
        rows: Range<usize>,
        source: &[u8],
        convert: impl Fn(S) -> D + Sync,
    ) {
        const STEPS: usize = 64;
        let (layout, first_row) = (self.layout, rows.start);
        let row_bytes = layout.k * size_of::<S>();
        let pair_bytes = layout.order.pair_bytes();
        self.each_panel(rows, |panel, columns, row| {
            let rows = source[(row - first_row) * row_bytes..].chunks_exact(row_bytes);
            for first in (0..layout.k).step_by(STEPS) {
                let panel = &mut panel[first / 2 * pair_bytes..];
                let steps = first * size_of::<S>()..(first + STEPS).min(layout.k) * size_of::<S>();
                for (column, source) in columns.clone().zip(rows.clone()) {
                    let places = [layout.index(0, column), layout.index(1, column)];
                    let pairs = source[steps.clone()].chunks(2 * size_of::<S>());
                    for (pair, panel) in pairs.zip(panel.chunks_exact_mut(pair_bytes)) {
                        for (place, number) in
                            places.into_iter().zip(pair.chunks_exact(size_of::<S>()))
                        {
                            convert(S::get(number, 0)).put(panel, place);
                        }
                    }
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
