//! The tensors a model computes with, filled slot by slot: q, k and v become one weight, gate and
//! up another.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{LayerSpec, ModelSpec, NormKind, Slot, SlotRows, TensorPlan};
use candlepower_kernels::{Weight, WeightBuilder, WeightRows};
use half::{bf16, f16};

use crate::error::Result;

/// One tensor of the running model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Embed,
    FinalNorm,
    Head,
    AttnNorm,
    AttnPostNorm,
    FfnNorm,
    FfnPostNorm,
    Qkv,
    QkvBias,
    QNorm,
    KNorm,
    Out,
    OutBias,
    GateUp,
    GateUpBias,
    Down,
    DownBias,
}

/// Where a slot's rows go.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    part: Part,
    /// The part's row that the slot's first row becomes.
    first_row: usize,
    /// Rows of the whole part.
    rows: usize,
    /// The stored numbers are differences from one.
    plus_one: bool,
}

impl Place {
    fn of(spec: &ModelSpec, layer: Option<usize>, slot: Slot, slot_rows: usize) -> Self {
        let whole = |part| Self { part, first_row: 0, rows: slot_rows, plus_one: false };
        let Some(layer) = layer else {
            return match slot {
                Slot::Embed => whole(Part::Embed),
                Slot::Head => whole(Part::Head),
                _ => whole(Part::FinalNorm).norm(spec.final_norm.kind),
            };
        };
        let LayerSpec { norm, attention: a, mlp, .. } = &spec.layers[layer];
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let qkv = |part, first_row| Self { part, first_row, rows: q + 2 * kv, plus_one: false };
        let gate_up =
            |part, first_row| Self { part, first_row, rows: 2 * mlp.inner, plus_one: false };
        let qk_norm = a.qk_norm.map_or(NormKind::Rms, |norm| norm.kind);
        match slot {
            Slot::Embed | Slot::Head | Slot::FinalNorm => unreachable!("not in a layer"),
            Slot::AttnNorm => whole(Part::AttnNorm).norm(norm.kind),
            Slot::AttnPostNorm => whole(Part::AttnPostNorm).norm(norm.kind),
            Slot::FfnNorm => whole(Part::FfnNorm).norm(norm.kind),
            Slot::FfnPostNorm => whole(Part::FfnPostNorm).norm(norm.kind),
            Slot::Q => qkv(Part::Qkv, 0),
            Slot::K => qkv(Part::Qkv, q),
            Slot::V => qkv(Part::Qkv, q + kv),
            Slot::QBias => qkv(Part::QkvBias, 0),
            Slot::KBias => qkv(Part::QkvBias, q),
            Slot::VBias => qkv(Part::QkvBias, q + kv),
            Slot::QNorm => whole(Part::QNorm).norm(qk_norm),
            Slot::KNorm => whole(Part::KNorm).norm(qk_norm),
            Slot::O => whole(Part::Out),
            Slot::OBias => whole(Part::OutBias),
            Slot::Gate => gate_up(Part::GateUp, 0),
            Slot::Up => gate_up(Part::GateUp, mlp.inner),
            Slot::GateBias => gate_up(Part::GateUpBias, 0),
            Slot::UpBias => gate_up(Part::GateUpBias, mlp.inner),
            Slot::Down => whole(Part::Down),
            Slot::DownBias => whole(Part::DownBias),
        }
    }

    fn norm(self, kind: NormKind) -> Self {
        Self { plus_one: kind == NormKind::RmsPlusOne, ..self }
    }
}

type Key = (Option<usize>, Part);

/// The parts of a model while they are being filled.
pub(crate) struct PartsBuilder<'a> {
    spec: &'a ModelSpec,
    matrices: HashMap<Key, WeightBuilder>,
    vectors: HashMap<Key, Vec<f32>>,
}

impl<'a> PartsBuilder<'a> {
    /// Reserves every part. `dtype` says in which dtype a planned tensor's numbers are to be kept;
    /// a part made of several tensors that disagree is kept in f32.
    pub(crate) fn new(
        spec: &'a ModelSpec,
        plan: &[TensorPlan],
        dtype: impl Fn(&TensorPlan) -> Result<DType>,
    ) -> Result<Self> {
        let mut shapes: HashMap<Key, (usize, usize, DType)> = HashMap::new();
        let mut vectors = HashMap::new();
        for tensor in plan {
            for rows in &tensor.slots {
                let place = Place::of(spec, rows.layer, rows.slot, rows.rows.len());
                let key = (rows.layer, place.part);
                match tensor.shape.get(1) {
                    None => {
                        vectors.entry(key).or_insert_with(|| vec![0.0; place.rows]);
                    }
                    Some(&columns) => {
                        let dtype = dtype(tensor)?;
                        shapes
                            .entry(key)
                            .and_modify(|(_, _, kept)| {
                                if *kept != dtype {
                                    *kept = DType::F32;
                                }
                            })
                            .or_insert((place.rows, columns, dtype));
                    }
                }
            }
        }
        let builders =
            shapes.into_iter().map(|(key, (n, k, dtype))| Ok((key, Weight::builder(n, k, dtype)?)));
        Ok(Self { spec, matrices: builders.collect::<Result<_>>()?, vectors })
    }

    /// Writes rows of a slot, from its row `first` on.
    pub(crate) fn write(
        &mut self,
        slot: &SlotRows,
        first: usize,
        data: WeightRows<'_>,
    ) -> Result<()> {
        let place = Place::of(self.spec, slot.layer, slot.slot, slot.rows.len());
        let (key, first_row) = ((slot.layer, place.part), place.first_row + first);
        if let Some(matrix) = self.matrices.get_mut(&key) {
            return Ok(matrix.write_rows(first_row, data)?);
        }
        let vector = self.vectors.get_mut(&key).expect("every planned slot has a part");
        let offset = if place.plus_one { 1.0 } else { 0.0 };
        for (out, number) in vector[first_row..].iter_mut().zip(numbers(data)) {
            *out = number + offset;
        }
        Ok(())
    }

    /// The filled parts.
    pub(crate) fn finish(self) -> Result<Parts> {
        let matrices = self.matrices.into_iter().map(|(key, m)| Ok((key, m.finish()?)));
        let vectors = self.vectors.into_iter().map(|(key, vector)| {
            let len = vector.len();
            Ok((key, Tensor::from_vec(vector, len, &Device::Cpu)?))
        });
        Ok(Parts {
            matrices: matrices.collect::<Result<_>>()?,
            vectors: vectors.collect::<Result<_>>()?,
        })
    }
}

/// The numbers of a stored vector.
fn numbers(data: WeightRows<'_>) -> Vec<f32> {
    let bytes = data.bytes;
    match data.dtype {
        DType::F16 => {
            bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        DType::BF16 => {
            bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// The parts of a model, to be taken by its layers.
pub(crate) struct Parts {
    matrices: HashMap<Key, Weight>,
    vectors: HashMap<Key, Tensor>,
}

impl Parts {
    /// A weight that the model's description promises.
    pub(crate) fn weight(&mut self, layer: Option<usize>, part: Part) -> Weight {
        self.matrices.remove(&(layer, part)).expect("the plan holds every weight of the spec")
    }

    /// A vector `[n]` f32, where the model has it.
    pub(crate) fn vector(&mut self, layer: Option<usize>, part: Part) -> Option<Tensor> {
        self.vectors.remove(&(layer, part))
    }
}
