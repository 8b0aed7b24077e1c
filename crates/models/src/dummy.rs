//! Random weights in the shapes of a configuration, for measuring without weight files.

use std::ops::Range;

use candle_core::DType;
use candlepower_checkpoint::{
    Dtype, Init, MatrixForm, ModelSpec, NormKind, Packed, Slot, TensorPlan,
};
use candlepower_kernels::{E4M3_MAX, OffsetForm, QuantFormat, WeightRows};
use half::{bf16, f16};
use rayon::prelude::*;

use crate::{
    error::Result,
    load::{LoadProgress, Progress, taken},
    parts::{Matrix, PartsBuilder, norm_kind},
    quantized::{OwnedRows, RowOffsets, Scales},
};

/// Rows are made in pieces of about so many values.
const PIECE_VALUES: usize = 8 << 20;

/// Fills every slot with random values that depend only on the tensor and the position in it. Their spread
/// keeps activations and logits near one: `columns^-0.5` for matrices, less for those that add to
/// the residual stream; norms are one, and biases small. Quantized matrices get random quantized weights.
pub(crate) fn fill<M: Matrix>(
    spec: &ModelSpec,
    plan: &[TensorPlan],
    dtype: DType,
    parts: &mut PartsBuilder<'_, M>,
    progress: Progress<'_>,
) -> Result<()> {
    let bytes_total = (plan.iter().map(taken).sum::<usize>() * dtype.size_in_bytes()) as u64;
    let mut done = LoadProgress { bytes_done: 0, bytes_total };
    progress(done)?;
    for (seed, tensor) in plan.iter().enumerate() {
        let width = tensor.shape.get(1).copied().unwrap_or(1);
        let columns = tensor.columns().unwrap_or(0..1);
        let piece_rows = (PIECE_VALUES / columns.len()).max(1);
        for slot in &tensor.slots {
            let (mean, spread) = distribution(spec, slot.layer, slot.slot, width);
            // Activations of dummy weights are about one, and few of them are above 16.
            parts.add_fixed_scale(slot, 16.0 / E4M3_MAX)?;
            for first in slot.rows.clone().step_by(piece_rows) {
                let rows = first..slot.rows.end.min(first + piece_rows);
                let piece = Piece { seed: seed as u64, rows, columns: columns.clone(), width };
                done.bytes_done += (piece.len() * dtype.size_in_bytes()) as u64;
                if let MatrixForm::Quantized(packed) = tensor.form() {
                    let rows = random_weights(packed, &piece, spread);
                    parts.write_quantized(
                        slot,
                        first - slot.rows.start,
                        columns.len(),
                        rows.view(),
                    )?;
                    progress(done)?;
                    continue;
                }
                let value = |i: usize| mean + spread * uniform(piece.random(i));
                let data = encode(piece.len(), dtype, value);
                parts.write(slot, first - slot.rows.start, WeightRows { dtype, bytes: &data })?;
                progress(done)?;
            }
        }
    }
    Ok(())
}

/// Random values of `dtype` in rows of a tensor of `columns` columns, with the given standard deviation. They depend only on the
/// tensor's `seed` and the position in it.
pub(crate) fn random_rows(
    seed: u64,
    rows: Range<usize>,
    columns: usize,
    dtype: DType,
    deviation: f64,
) -> Vec<u8> {
    let piece = Piece { seed, rows, columns: 0..columns, width: columns };
    let spread = half_width(deviation);
    encode(piece.len(), dtype, |i| spread * uniform(piece.random(i)))
}

/// Half-width of a uniform distribution with a standard deviation.
fn half_width(deviation: f64) -> f32 {
    (3f64.sqrt() * deviation) as f32
}

/// Mean and half-width of a slot's uniform distribution.
fn distribution(spec: &ModelSpec, layer: Option<usize>, slot: Slot, columns: usize) -> (f32, f32) {
    let width = half_width;
    let fan_in = (columns as f64).powf(-0.5);
    match slot.info().init {
        Init::Norm | Init::QkNorm => match norm_kind(spec, layer, slot) {
            Some(NormKind::RmsPlusOne | NormKind::LayerPlusOne) => (0.0, 0.0),
            Some(NormKind::Rms | NormKind::Layer { .. }) | None => (1.0, 0.0),
        },
        Init::One => (1.0, 0.0),
        Init::Small => (0.0, width(0.1)),
        Init::FanIn => (0.0, width(fan_in)),
        Init::Residual => (0.0, width(fan_in * (2.0 * spec.layers.len() as f64).powf(-0.5))),
        Init::Embedding if spec.head.tied => (0.0, width(fan_in / spec.head.scale)),
        Init::Embedding => (0.0, width(1.0 / spec.embed.scale)),
        Init::PerLayerEmbedding => {
            (0.0, width(1.0 / spec.per_layer.map_or(1.0, |per_layer| per_layer.scale)))
        }
        Init::Head => (0.0, width(fan_in / spec.head.scale)),
        Init::Conv => (0.0, width(0.5)),
        // States that forget in some tens of tokens.
        Init::LogRate if spec.linear_attentions().any(|net| !net.log_rates) => (-1.0, 0.0),
        Init::LogRate => (0.0, width(0.5)),
        Init::DecayBias => (-3.0, width(0.5)),
    }
}

/// Some rows and columns of a tensor, whose values depend on their position in it.
struct Piece {
    seed: u64,
    rows: Range<usize>,
    columns: Range<usize>,
    /// Columns of the tensor.
    width: usize,
}

impl Piece {
    /// Count of its values.
    fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// 64 bits for its `i`-th number.
    fn random(&self, i: usize) -> u64 {
        let (row, column) = (i / self.columns.len(), i % self.columns.len());
        let place = (self.rows.start + row) * self.width + self.columns.start + column;
        random(self.seed, place as u64)
    }
}

/// Random quantized weights, whose dequantized values spread as those of other tensors do.
fn random_weights(packed: Packed, piece: &Piece, spread: f32) -> OwnedRows {
    let format = packed.format;
    // Bits of a quantized weight, and the scale with which the values reach from -1 to 1, if half of them are below zero. E4M3 and E2M1
    // lie closer to zero than uniform ones: 116 and 5.07 give them the same deviation. Bit 3 keeps NaN away.
    let (mask, scale) = match format {
        QuantFormat::U2 => (3, 1.0 / 1.5),
        QuantFormat::U3 => (7, 1.0 / 3.5),
        QuantFormat::U4 => (15, 1.0 / 7.5),
        QuantFormat::U5 => (31, 1.0 / 15.5),
        QuantFormat::U6 => (63, 1.0 / 31.5),
        QuantFormat::U8 => (255, 1.0 / 127.5),
        QuantFormat::E4m3 => (0xf7, 1.0 / 116.0),
        QuantFormat::E2m1 => (15, 1.0 / 5.07),
        QuantFormat::Iq4 => (15, 1.0 / 109.7),
        QuantFormat::Table => (15, 0.0),
    };
    let rounded = |number: f32| match packed.scales.dtype {
        Dtype::F16 => f16::from_f32(number).to_f32(),
        Dtype::Bf16 => bf16::from_f32(number).to_f32(),
        Dtype::F32 => number,
    };
    let scale = rounded(spread * scale);
    let columns = piece.columns.len();
    let groups = piece.rows.len() * columns.div_ceil(packed.group);
    let block = packed.scales.block_within(columns);
    let count = block.map_or(groups, |block| piece.rows.len() * columns / block);
    let scales = match format {
        QuantFormat::Table => {
            let table = (0..16).map(|i| spread * (i as f32 / 7.5 - 1.0));
            table.cycle().take(piece.rows.len() * 16).collect()
        }
        _ => vec![scale; count],
    };
    let mut bytes = vec![0; piece.len()];
    bytes.par_iter_mut().enumerate().for_each(|(i, byte)| {
        *byte = (piece.random(i) >> 56) as u8 & mask;
    });
    let inputs = packed.reordered.then(|| (0..columns as u32).rev().collect());
    let offsets = match packed.scales.offsets {
        OffsetForm::None => RowOffsets::None,
        OffsetForm::Own => RowOffsets::Own(vec![rounded(-spread); count]),
        OffsetForm::ZeroPoint(zero) => RowOffsets::ZeroPoint(zero),
        OffsetForm::ZeroPoints => RowOffsets::ZeroPoints(vec![mask / 2 + 1; groups]),
    };
    let of_offsets = if matches!(offsets, RowOffsets::Own(_)) { groups } else { 0 };
    let sub_scales = block.map(|block| (block, [vec![1; groups], vec![1; of_offsets]]));
    OwnedRows {
        format,
        group: packed.group.min(columns),
        bytes,
        scales: Scales { scales, offsets, sub_scales },
        inputs,
    }
}

/// A number in [-1, 1) from 64 random bits.
fn uniform(random: u64) -> f32 {
    (random >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// 64 bits from a seed and an index. Source: SplitMix64 (Steele, Lea, Flood, 2014).
fn random(seed: u64, index: u64) -> u64 {
    let mut z =
        (seed << 40).wrapping_add(index).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The little-endian bytes in a dtype of the values `value(0)` to `value(len - 1)`.
fn encode(len: usize, dtype: DType, value: impl Fn(usize) -> f32 + Sync) -> Vec<u8> {
    /// Values that one task makes.
    const CHUNK: usize = 1 << 16;
    let size = dtype.size_in_bytes();
    let mut bytes = vec![0; len * size];
    bytes.par_chunks_mut(CHUNK * size).enumerate().for_each(|(chunk, bytes)| {
        let values = (chunk * CHUNK..).map(&value);
        for (out, value) in bytes.chunks_exact_mut(size).zip(values) {
            match dtype {
                DType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                DType::BF16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                _ => out.copy_from_slice(&value.to_le_bytes()),
            }
        }
    });
    bytes
}
