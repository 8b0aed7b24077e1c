//! The weights of a vision tower, from the weight files or at random.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{
    Checkpoint, Dtype, NormKind, NormSpec, VisionSlot, VisionSpec, VisionTensor,
};
use candlepower_kernels::{Weight, WeightBuilder, WeightRows};

use super::layers::{TowerNorm, TowerNormKind};
use crate::{
    LoadFormat, LoadOptions, dummy, error::Result, linear::Linear, parts::values, shards::Shards,
};

/// Most bytes of a matrix that are mapped or made at a time.
const PIECE_BYTES: usize = 64 << 20;
/// Standard deviation of random biases.
const BIAS_DEVIATION: f64 = 0.1;
/// Random weights have seeds of their own, beside the decoder's.
const FIRST_SEED: u64 = 1 << 20;

/// Reads the tensors of a tower.
pub(super) struct Loader<'a> {
    spec: &'a VisionSpec,
    /// The tensors and their seeds, by layer and slot.
    tensors: HashMap<(Option<usize>, VisionSlot), (VisionTensor, u64)>,
    source: Source,
    /// The dtype of matrices that the options ask for.
    dtype: Option<DType>,
}

enum Source {
    Files(Shards),
    /// Random values of a dtype.
    Random(DType),
}

impl<'a> Loader<'a> {
    /// Opens the weight files, and checks that they hold exactly the tensors of the model.
    pub(super) fn open(
        checkpoint: &Checkpoint,
        spec: &'a VisionSpec,
        options: &LoadOptions,
    ) -> Result<Self> {
        let source = match options.load_format {
            LoadFormat::Dummy => Source::Random(match checkpoint.dtype() {
                Some(Dtype::F16) => DType::F16,
                Some(Dtype::Bf16) => DType::BF16,
                Some(Dtype::F32) | None => DType::F32,
            }),
            LoadFormat::Auto => {
                let shards = Shards::open(checkpoint)?;
                shards.check(checkpoint, &shards.plan(checkpoint))?;
                Source::Files(shards)
            }
        };
        let tensors = spec.tensors().into_iter().zip(FIRST_SEED..);
        let tensors =
            tensors.map(|(tensor, seed)| ((tensor.layer, tensor.slot), (tensor, seed))).collect();
        Ok(Self { spec, tensors, source, dtype: options.dtype.chosen() })
    }

    pub(super) fn spec(&self) -> &VisionSpec {
        self.spec
    }

    /// Matrices of the same input as one, each with the slot of its bias.
    pub(super) fn linear(
        &self,
        layer: Option<usize>,
        slots: &[(VisionSlot, VisionSlot)],
    ) -> Result<Linear<Weight>> {
        let matrices: Vec<VisionSlot> = slots.iter().map(|(matrix, _)| *matrix).collect();
        let biases = slots.iter().map(|(_, bias)| self.tensor(layer, *bias));
        let biases: Vec<Tensor> = biases.filter_map(Result::transpose).collect::<Result<_>>()?;
        let bias = match biases.is_empty() {
            true => None,
            false => Some(Tensor::cat(&biases, 0)?),
        };
        Ok(Linear { weight: self.joined(layer, &matrices)?, bias })
    }

    /// A matrix without a bias.
    pub(super) fn matrix(&self, layer: Option<usize>, slot: VisionSlot) -> Result<Weight> {
        self.joined(layer, &[slot])
    }

    /// Matrices of the same input as one.
    fn joined(&self, layer: Option<usize>, slots: &[VisionSlot]) -> Result<Weight> {
        let tensors: Vec<_> = slots.iter().map(|slot| &self.tensors[&(layer, *slot)]).collect();
        let rows = tensors.iter().map(|(tensor, _)| tensor.shape[0]).sum();
        let dtype = self.dtype_of(&tensors[0].0)?;
        let mut builder = Weight::builder(rows, tensors[0].0.shape[1], dtype)?;
        let mut first_row = 0;
        for (tensor, seed) in tensors {
            self.write(tensor, *seed, &mut builder, first_row)?;
            first_row += tensor.shape[0];
        }
        Ok(builder.finish()?)
    }

    /// A norm by the slots of its weight and its bias.
    pub(super) fn norm(
        &self,
        layer: Option<usize>,
        spec: &NormSpec,
        [weight, bias]: [VisionSlot; 2],
    ) -> Result<TowerNorm> {
        let weight = self.tensor(layer, weight)?.expect("a norm that the tower has is planned");
        let weight = match spec.kind {
            NormKind::RmsPlusOne | NormKind::LayerPlusOne => (weight + 1.0)?,
            NormKind::Rms | NormKind::Layer { .. } => weight,
        };
        let kind = match spec.kind {
            NormKind::Rms | NormKind::RmsPlusOne => TowerNormKind::Rms,
            NormKind::Layer { .. } | NormKind::LayerPlusOne => {
                TowerNormKind::Layer(self.tensor(layer, bias)?)
            }
        };
        Ok(TowerNorm { weight, kind, eps: spec.eps as f32 })
    }

    /// A whole tensor as f32, where the tower has it.
    pub(super) fn tensor(&self, layer: Option<usize>, slot: VisionSlot) -> Result<Option<Tensor>> {
        let Some((tensor, seed)) = self.tensors.get(&(layer, slot)) else { return Ok(None) };
        let values = match &self.source {
            Source::Files(shards) => {
                let dtype = shards.dtype(&tensor.name)?;
                values(WeightRows { dtype, bytes: &shards.whole(&tensor.name)? })
            }
            Source::Random(_) => {
                let count = tensor.shape.iter().product();
                match (tensor.slot.is_bias(), tensor.shape.len()) {
                    (false, 1) => vec![self.neutral(tensor.slot); count],
                    _ => {
                        let dtype = DType::F32;
                        let bytes = dummy::random_rows(*seed, 0..1, count, dtype, BIAS_DEVIATION);
                        values(WeightRows { dtype, bytes: &bytes })
                    }
                }
            }
        };
        Ok(Some(Tensor::from_vec(values, tensor.shape.as_slice(), &Device::Cpu)?))
    }

    /// The stored weight of a norm that changes nothing but the scale.
    fn neutral(&self, slot: VisionSlot) -> f32 {
        let spec = match slot {
            VisionSlot::FirstNorm => self.spec.first_norm,
            VisionSlot::LastNorm | VisionSlot::DeepstackNorm => self.spec.last_norm,
            VisionSlot::MergedNorm => self.spec.merger.norm,
            _ => Some(self.spec.layer.norm),
        };
        match spec.map(|norm| norm.kind) {
            Some(NormKind::RmsPlusOne | NormKind::LayerPlusOne) => 0.0,
            _ => 1.0,
        }
    }

    fn dtype_of(&self, tensor: &VisionTensor) -> Result<DType> {
        match (self.dtype, &self.source) {
            (Some(dtype), _) => Ok(dtype),
            (None, Source::Files(shards)) => shards.dtype(&tensor.name),
            (None, Source::Random(dtype)) => Ok(*dtype),
        }
    }

    /// Writes a matrix as rows from `first_row` on, piece by piece.
    fn write(
        &self,
        tensor: &VisionTensor,
        seed: u64,
        builder: &mut WeightBuilder,
        first_row: usize,
    ) -> Result<()> {
        let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
        let shards = match &self.source {
            Source::Files(shards) => shards,
            Source::Random(dtype) => {
                let dtype = self.dtype.unwrap_or(*dtype);
                let deviation = self.deviation(tensor.slot, columns);
                let piece = (PIECE_BYTES / (columns * dtype.size_in_bytes())).max(1);
                for (first, count) in super::groups(rows, piece) {
                    let rows = first..first + count;
                    let bytes = dummy::random_rows(seed, rows, columns, dtype, deviation);
                    builder.write_rows(first_row + first, WeightRows { dtype, bytes: &bytes })?;
                }
                return Ok(());
            }
        };
        let dtype = shards.dtype(&tensor.name)?;
        let size = dtype.size_in_bytes();
        if tensor.transposed {
            let bytes = transposed(&shards.whole(&tensor.name)?, rows, size);
            return Ok(builder.write_rows(first_row, WeightRows { dtype, bytes: &bytes })?);
        }
        let row_bytes = columns * size;
        for (first, count) in super::groups(rows, (PIECE_BYTES / row_bytes).max(1)) {
            let bytes = shards.bytes(&tensor.name, first * row_bytes, count * row_bytes)?;
            builder.write_rows(first_row + first, WeightRows { dtype, bytes: &bytes })?;
        }
        Ok(())
    }

    /// The standard deviation of a random matrix, which keeps hidden states near one.
    fn deviation(&self, slot: VisionSlot, columns: usize) -> f64 {
        let fan_in = (columns as f64).powf(-0.5);
        match slot {
            VisionSlot::O | VisionSlot::Down => fan_in * (2.0 * self.spec.layers as f64).powf(-0.5),
            _ => fan_in,
        }
    }
}

/// The rows of a matrix of `rows` rows that is stored as `[columns, rows]`, with values of `size` bytes.
fn transposed(stored: &[u8], rows: usize, size: usize) -> Vec<u8> {
    let columns = stored.len() / (rows * size);
    let mut bytes = Vec::with_capacity(stored.len());
    for row in 0..rows {
        for column in 0..columns {
            bytes.extend_from_slice(&stored[(column * rows + row) * size..][..size]);
        }
    }
    bytes
}
