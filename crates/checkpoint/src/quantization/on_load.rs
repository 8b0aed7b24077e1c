//! Quantization of unquantized checkpoints while they are loaded.

use std::collections::{BTreeMap, BTreeSet};

use candlepower_layout::{
    ActivationScales, Blocks, Dtype, OffsetForm, Packed, QuantFormat, ScaleForm, SubScaleForm,
};
use serde::{Deserialize, Serialize};

use crate::choice::Choice;
use crate::slot::{Slot, SlotQuantization};
use crate::spec::ModelSpec;

/// Columns that share a scale, as in GGUF's blocks.
const GROUP: usize = 32;

/// The most columns of a super-block, as in GGUF's K-quants.
const BLOCK: usize = 256;

/// Bits of a weight that [`OnLoad::Int4`] takes on average, with scales, at most.
const MAX_BITS: f64 = 5.0;

/// Format that the matrices of an unquantized checkpoint get while they are loaded.
///
/// Some matrices stay as they are stored: the embedding unless it is the head, too, the routers, and decay and beta of linear
/// attention. Per-layer embeddings are quantized, since they are most of such a model.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoad {
    /// Eight bits with a scale for 32 inputs of each output, as in GGUF's Q8_0.
    Int8,
    /// Four bits with a scale and an offset, and five where they help most, in the form of GGUF's Q4_K and Q5_K: at most five
    /// bits a weight on average. Groups have 32 inputs.
    Int4,
    /// Eight bits of floating point (e4m3) with a scale for each output. Activations are rounded to e4m3, too, with a scale for
    /// each row. The head keeps its dtype, as embeddings do: it decides between tokens, and is a small part of a model's work.
    Fp8,
}

/// Form of a matrix that is quantized on load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recoded {
    /// The kind of its quantized values.
    pub format: QuantFormat,
    /// The columns of a super-block.
    block: Option<usize>,
    /// The columns that share a scale, or a part of the scale of a super-block.
    group: usize,
}

impl OnLoad {
    /// The zero-point of [`Self::Int8`].
    pub const ZERO_POINT: u8 = 128;
    /// The values of `--quantize-on-load`.
    pub const CHOICES: [Choice<Self>; 3] = [
        Choice::new(Self::Int8, Self::Int8.as_str(), "Eight bits"),
        Choice::new(Self::Int4, Self::Int4.as_str(), "Four bits, and five where they help most"),
        Choice::new(
            Self::Fp8,
            Self::Fp8.as_str(),
            "Eight bits of floating point, of activations, too",
        ),
    ];

    /// Its name, as settings have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Fp8 => "fp8",
        }
    }

    /// The form of each matrix of a model, by its layer and slot. Those that are not named stay as they are.
    pub(crate) fn of(self, spec: &ModelSpec) -> BTreeMap<(Option<usize>, Slot), Recoded> {
        let matrices = spec.slots().filter_map(|(layer, slot, shape)| match *shape.as_slice() {
            [rows, columns] if self.recodes(slot, spec.head.tied) => {
                Some(((layer, slot), Matrix { rows, columns }))
            }
            _ => None,
        });
        let matrices: BTreeMap<_, _> = matrices.collect();
        let finer = match self {
            Self::Int8 | Self::Fp8 => BTreeSet::new(),
            // One row is all values, bits with four, bits with five; matrices that are loaded as one count together.
            Self::Int4 => finer(&matrices),
        };
        let recoded = |(&(layer, slot), matrix): (&Key, &Matrix)| {
            let format = match self {
                Self::Int8 => QuantFormat::U8,
                Self::Fp8 => QuantFormat::E4m3,
                Self::Int4 if finer.contains(&(layer, slot.fused())) => QuantFormat::U5,
                Self::Int4 => QuantFormat::U4,
            };
            ((layer, slot), Recoded::new(format, matrix.columns))
        };
        matrices.iter().map(recoded).collect()
    }

    /// The kind whose matrices have this format.
    pub fn of_format(format: QuantFormat) -> Self {
        match format {
            QuantFormat::U8 => Self::Int8,
            QuantFormat::E4m3 => Self::Fp8,
            _ => Self::Int4,
        }
    }

    /// Whether matrices of a slot are quantized; `tied` says that the embedding is the head, too.
    fn recodes(self, slot: Slot, tied: bool) -> bool {
        match slot.info().quantization {
            SlotQuantization::Never | SlotQuantization::InFiles => false,
            SlotQuantization::Embedding => tied && self != Self::Fp8,
            SlotQuantization::PerLayerEmbedding | SlotQuantization::Head => self != Self::Fp8,
            SlotQuantization::Projection
            | SlotQuantization::MixerOut
            | SlotQuantization::Down
            | SlotQuantization::GateUp => true,
        }
    }
}

type Key = (Option<usize>, Slot);

#[derive(Clone, Copy)]
struct Matrix {
    rows: usize,
    columns: usize,
}

/// The matrices that get five bits, by the slot under which they are loaded: those that help most first, as long as all take
/// no more than [`MAX_BITS`] on average. Within a part of the model the first and the last layers come first.
fn finer(matrices: &BTreeMap<Key, Matrix>) -> BTreeSet<Key> {
    let mut units: BTreeMap<Key, [f64; 3]> = BTreeMap::new();
    for (&(layer, slot), matrix) in matrices {
        let numbers = (matrix.rows * matrix.columns) as f64;
        let bits = |format| numbers * Recoded::new(format, matrix.columns).bits(matrix.columns);
        let [all, four, five] = units.entry((layer, slot.fused())).or_default();
        *all += numbers;
        *four += bits(QuantFormat::U4);
        *five += bits(QuantFormat::U5);
    }
    let last = matrices.keys().filter_map(|(layer, _)| *layer).max().unwrap_or(0);
    let mut order: Vec<Key> = units.keys().copied().collect();
    // The first and the last layers harm a model most when they are rounded, so they come first.
    order.sort_by_key(|&(layer, slot)| {
        let from_end = layer.map_or(0, |layer| layer.min(last - layer));
        (part(slot), from_end, layer)
    });
    // The budget is what remains of five bits a weight when every matrix has four.
    let mut left: f64 = units.values().map(|[all, four, _]| all * MAX_BITS - four).sum();
    // A unit that does not fit is passed over, since a smaller one behind it may still fit.
    order.retain(|unit| {
        let [_, four, five] = units[unit];
        let fits = five - four <= left;
        if fits {
            left -= five - four;
        }
        fits
    });
    order.into_iter().collect()
}

/// The order in which parts of a model get a bit more: first attention, then what is added to the residual, which is wrong in
/// all layers behind it. Gates and what they multiply are most of a model, and come last.
fn part(slot: Slot) -> usize {
    match slot.info().quantization {
        SlotQuantization::Never | SlotQuantization::InFiles | SlotQuantization::Projection => 0,
        SlotQuantization::MixerOut => 1,
        SlotQuantization::Down => 2,
        SlotQuantization::Embedding
        | SlotQuantization::PerLayerEmbedding
        | SlotQuantization::Head => 3,
        SlotQuantization::GateUp => 4,
    }
}

impl Recoded {
    /// A matrix with so many columns.
    pub fn new(format: QuantFormat, columns: usize) -> Self {
        // A super-block of one group would only have more scales.
        let fits = |block: &usize| columns.is_multiple_of(*block);
        let block = (2..=BLOCK / GROUP).rev().map(|groups| groups * GROUP).find(fits);
        let is_integer = format.count_from_zero();
        let block = block.filter(|_| is_integer && format != QuantFormat::U8);
        Self { format, block, group: if is_integer { GROUP } else { columns } }
    }

    /// The form of such a matrix in memory.
    pub fn packed(self) -> Packed {
        let scales = match self.format {
            QuantFormat::E4m3 => {
                return Packed::without_offsets(self.format, self.group)
                    .with_activations(Some(ActivationScales::Row));
            }
            QuantFormat::U8 => ScaleForm {
                dtype: Dtype::F16,
                offsets: OffsetForm::ZeroPoint(OnLoad::ZERO_POINT),
                blocks: None,
            },
            _ => {
                let of = |columns| Blocks { columns, sub_scales: SubScaleForm::U6 };
                // Multiples of a scale are found for it as it is rounded, so that only its range counts.
                ScaleForm {
                    dtype: Dtype::Bf16,
                    offsets: OffsetForm::Own,
                    blocks: self.block.map(of),
                }
            }
        };
        Packed { scales, ..Packed::by_group(self.format, self.group) }
    }

    /// Bits of a weight of so many columns, with scales.
    fn bits(self, columns: usize) -> f64 {
        let groups = columns.div_ceil(self.group) as f64 / columns as f64;
        let scales = match (self.format, self.block) {
            // A scale has 16 bits, and an offset likewise. In super-blocks
            // each group has six bits for either, and 32 bits are shared.
            (QuantFormat::U8, _) => 16.0 * groups,
            (QuantFormat::E4m3, _) => 32.0 * groups,
            (_, None) => 32.0 * groups,
            (_, Some(block)) => 12.0 * groups + 32.0 / block as f64,
        };
        self.format.bits() as f64 + scales
    }
}
