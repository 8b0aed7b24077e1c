//! The tensors a model computes with, filled slot by slot: q, k and v become one weight, gate and
//! up another.

use std::{borrow::Cow, collections::HashMap, ops::Range, rc::Rc};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{
    MatrixForm, ModelSpec, NormKind, NormSpec, QkNormSpan, QkNormSpec, Slot, SlotRows, TensorPlan,
    device_latent_dims,
};
use candlepower_gpu::{HeadPadding, NormWeight};
use candlepower_kernels::{
    Fp8Rounding, QuantizedRows, SparseRows, Weight, WeightBuilder, WeightRows,
};
use half::{bf16, f16};

use crate::{
    error::Result,
    norm::{Norm, NormForm},
};

mod of_heads;
mod target;

use of_heads::{HeadsBuilder, StoredHeads};
pub(crate) use target::norm_kind;
use target::{Key, Target};

/// A matrix as a device keeps it.
pub(crate) trait Matrix: Clone {
    /// A matrix that is being filled.
    type Builder: MatrixBuilder<Matrix = Self>;
    /// The matrices of all experts of a layer, one each.
    type All;
    /// Bytes of memory held.
    fn num_bytes(&self) -> usize;
    /// Takes the matrices of all experts together.
    fn all(matrices: Vec<Self>) -> Result<Self::All>;
}

/// A matrix that is being filled, by rows in any order.
pub(crate) trait MatrixBuilder {
    /// The finished matrix.
    type Matrix;
    /// Writes rows from `first_row` on.
    fn write_rows(&mut self, first_row: usize, rows: WeightRows<'_>) -> Result<()>;
    /// Writes quantized rows from `first_row` on.
    fn write_quantized(&mut self, first_row: usize, rows: QuantizedRows<'_>) -> Result<()>;
    /// Adds the sparse part of rows from `first_row` on.
    fn write_sparse(&mut self, first_row: usize, part: SparseRows<'_>) -> Result<()>;
    /// Takes the fixed scale of activations of one of the matrices that become this one, before the last row is written.
    fn add_fixed_scale(&mut self, scale: f32) -> Result<()>;
    /// The filled matrix.
    fn finish(self) -> Result<Self::Matrix>;
}

impl Matrix for Weight {
    type Builder = WeightBuilder;
    type All = Vec<Self>;

    fn num_bytes(&self) -> usize {
        Weight::num_bytes(self)
    }

    /// Experts round the activations of their tokens alike.
    fn all(matrices: Vec<Self>) -> Result<Vec<Self>> {
        let activations = Fp8Rounding::common(matrices.iter().map(Self::activations));
        Ok(matrices.into_iter().map(|matrix| matrix.with_activations(activations)).collect())
    }
}

impl MatrixBuilder for WeightBuilder {
    type Matrix = Weight;

    fn write_rows(&mut self, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        Ok(WeightBuilder::write_rows(self, first_row, rows)?)
    }

    fn write_quantized(&mut self, first_row: usize, rows: QuantizedRows<'_>) -> Result<()> {
        Ok(WeightBuilder::write_quantized(self, first_row, rows)?)
    }

    fn write_sparse(&mut self, first_row: usize, part: SparseRows<'_>) -> Result<()> {
        Ok(WeightBuilder::write_sparse(self, first_row, part)?)
    }

    fn add_fixed_scale(&mut self, scale: f32) -> Result<()> {
        WeightBuilder::add_fixed_scale(self, scale);
        Ok(())
    }

    fn finish(self) -> Result<Weight> {
        Ok(WeightBuilder::finish(self)?)
    }
}

/// A matrix that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) dtype: DType,
    pub(crate) form: MatrixForm,
    /// The padding of heads, where the columns belong to heads that the device pads.
    pub(crate) heads: Option<HeadPadding>,
    /// Rows that will be written; the others, between padded heads, are zeros.
    pub(crate) written_rows: usize,
    /// Whether the matrix is one of those of all experts, which are computed together.
    pub(crate) is_expert: bool,
}

impl Shape {
    /// The columns without the padding of heads.
    pub(crate) fn stored_columns(&self) -> usize {
        self.heads.map_or(self.columns, |heads| self.columns / heads.padded * heads.len)
    }
}

/// The layout of parts in a device's memory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The device.
    pub(crate) device: Device,
    /// The dtype of norms and biases.
    pub(crate) vectors: DType,
    /// Heads are padded with zeros to one of these widths, in ascending order; to none on the CPU.
    pub(crate) head_dims: &'static [usize],
    /// Whether 1 is added to RMSNorms that are stored as differences from 1.
    pub(crate) adds_one: bool,
}

impl Layout {
    /// The layout for the CPU's kernels.
    pub(crate) fn cpu() -> Self {
        let device = Device::Cpu;
        Self { device, vectors: DType::F32, head_dims: &[], adds_one: true }
    }

    /// The width of a head of `head_dim` elements.
    pub(crate) fn padded_head(&self, head_dim: usize) -> usize {
        self.head_dims.iter().copied().find(|dim| *dim >= head_dim).unwrap_or(head_dim)
    }

    /// The elements of a latent of `rank` elements, behind which `rotated` elements lie.
    fn padded_latent(&self, rank: usize, rotated: usize) -> usize {
        if self.head_dims.is_empty() { rank } else { device_latent_dims(rank, rotated).0 }
    }
}

/// The parts of a model while they are being filled, by the slots that [`Slot::fused`] names.
pub(crate) struct PartsBuilder<'a, M: Matrix> {
    spec: &'a ModelSpec,
    layout: Layout,
    targets: HashMap<Key, Target>,
    matrices: HashMap<Key, M::Builder>,
    of_heads: HashMap<Key, HeadsBuilder<'a, M>>,
    vectors: HashMap<Key, Vec<f32>>,
}

/// Makes a matrix that is to be filled.
type Reserve<'a, M> = dyn Fn(Shape) -> Result<<M as Matrix>::Builder> + 'a;

impl<'a, M: Matrix> PartsBuilder<'a, M> {
    /// Reserves every part. `dtype` returns the dtype of a planned tensor that is not quantized. A part of several tensors that disagree
    /// is kept in f32. `reserve` begins a matrix.
    pub(crate) fn new(
        spec: &'a ModelSpec,
        plan: &[TensorPlan],
        layout: Layout,
        dtype: impl Fn(&TensorPlan) -> Result<DType>,
        reserve: impl Fn(Shape) -> Result<M::Builder> + 'a,
    ) -> Result<Self> {
        let reserve: Rc<Reserve<'a, M>> = Rc::new(reserve);
        let mut shapes: HashMap<Key, Shape> = HashMap::new();
        let mut vectors = HashMap::new();
        let mut of_heads = HashMap::new();
        let targets = Target::of_slots(spec, &layout);
        for tensor in plan {
            for slot in &tensor.slots {
                let target = targets[&(slot.layer, slot.slot)];
                let key = (slot.layer, slot.slot.fused());
                let Some(columns) = tensor.columns().map(|columns| columns.len()) else {
                    vectors.entry(key).or_insert_with(|| vec![0.0; target.rows]);
                    continue;
                };
                if slot.slot.is_per_head() {
                    let attention = slot.layer.and_then(|layer| spec.layers[layer].attention());
                    let attention = attention.expect("matrices of heads are an attention's");
                    let stored = StoredHeads {
                        slot: slot.slot,
                        rows: target.rows,
                        columns,
                        dtype: dtype(tensor)?,
                    };
                    of_heads.entry(key).or_insert_with(|| {
                        HeadsBuilder::new(reserve.clone(), attention, &layout, stored)
                    });
                    continue;
                }
                let heads = target
                    .head_columns
                    .map(|len| HeadPadding { len, padded: layout.padded_head(len) });
                let dtype = dtype(tensor)?;
                let form = tensor.form();
                let shape = shapes.entry(key).or_insert(Shape {
                    rows: target.rows,
                    columns: heads.map_or(columns, |heads| columns / heads.len * heads.padded),
                    dtype,
                    form,
                    heads,
                    written_rows: 0,
                    is_expert: slot.slot.expert().is_some(),
                });
                shape.written_rows += slot.rows.len();
                shape.form = shape.form.join(form, columns);
                if shape.dtype != dtype {
                    shape.dtype = DType::F32;
                }
            }
        }
        let builders = shapes.into_iter().map(|(key, shape)| Ok((key, reserve(shape)?)));
        let matrices = builders.collect::<Result<_>>()?;
        Ok(Self { spec, layout, targets, matrices, of_heads, vectors })
    }

    /// Writes rows of a slot, from the row `first` of the rows of `slot` on.
    pub(crate) fn write(
        &mut self,
        slot: &SlotRows,
        first: usize,
        data: WeightRows<'_>,
    ) -> Result<()> {
        let target = self.targets[&(slot.layer, slot.slot)];
        let (key, first) = ((slot.layer, slot.slot.fused()), slot.first + first);
        if let Some(of_heads) = self.of_heads.get_mut(&key) {
            return of_heads.add_rows(first, &values(data));
        }
        let Some(matrix) = self.matrices.get_mut(&key) else {
            let vector = self.vectors.get_mut(&key).expect("every planned slot has a part");
            let offset = match target.norm {
                Some(NormKind::RmsPlusOne) if self.layout.adds_one => 1.0,
                Some(NormKind::LayerPlusOne) => 1.0,
                _ => 0.0,
            };
            for (row, number) in (first..).zip(values(data)) {
                vector[target.row(&self.layout, row)] = (number + offset) * target.factor;
            }
            return Ok(());
        };
        let Some(head_dim) = target.head_dim else {
            let bytes = match target.head_columns {
                Some(head_dim) => {
                    let padded = self.layout.padded_head(head_dim);
                    Cow::Owned(pad_columns(data, HeadPadding { len: head_dim, padded }))
                }
                None => Cow::Borrowed(data.bytes),
            };
            let rows = WeightRows { dtype: data.dtype, bytes: &bytes };
            return matrix.write_rows(target.first_row + first, rows);
        };
        let row_bytes = self.spec.hidden_size * data.dtype.size_in_bytes();
        for head in heads(first..first + data.bytes.len() / row_bytes, head_dim) {
            let bytes =
                &data.bytes[(head.start - first) * row_bytes..(head.end - first) * row_bytes];
            let row = target.row(&self.layout, head.start);
            matrix.write_rows(row, WeightRows { dtype: data.dtype, bytes })?;
        }
        Ok(())
    }

    /// Writes quantized rows of a matrix's slot, each of `k` columns, from the row `first` of the rows of `slot` on.
    pub(crate) fn write_quantized(
        &mut self,
        slot: &SlotRows,
        first: usize,
        k: usize,
        rows: QuantizedRows<'_>,
    ) -> Result<()> {
        if let Some(of_heads) = self.of_heads.get_mut(&(slot.layer, slot.slot.fused())) {
            return of_heads.add_rows(slot.first + first, &rows.dequantized(k)?);
        }
        self.each_run(slot, first..first + rows.bytes.len() / k, |matrix, target, run| {
            matrix.write_quantized(target, rows.rows(k, run.start - first..run.end - first))
        })
    }

    /// Adds the sparse part of a matrix's slot.
    pub(crate) fn write_sparse(&mut self, slot: &SlotRows, part: SparseRows<'_>) -> Result<()> {
        if let Some(of_heads) = self.of_heads.get_mut(&(slot.layer, slot.slot.fused())) {
            of_heads.add_sparse(slot.first, &part);
            return Ok(());
        }
        self.each_run(slot, 0..part.starts.len() - 1, |matrix, target, run| {
            matrix.write_sparse(target, part.rows(run))
        })
    }

    /// Takes the fixed scale of the activations of a slot's matrix, before its rows. Matrices of heads round none.
    pub(crate) fn add_fixed_scale(&mut self, slot: &SlotRows, scale: f32) -> Result<()> {
        match self.matrices.get_mut(&(slot.layer, slot.slot.fused())) {
            Some(matrix) => matrix.add_fixed_scale(scale),
            None => Ok(()),
        }
    }

    /// Calls `write` with the matrix of a quantized slot, for each run of the rows `rows` of `slot` that lie together in it. `write` gets the
    /// run, and the matrix's row of its first.
    fn each_run(
        &mut self,
        slot: &SlotRows,
        rows: Range<usize>,
        mut write: impl FnMut(&mut M::Builder, usize, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let target = self.targets[&(slot.layer, slot.slot)];
        let matrix = self.matrices.get_mut(&(slot.layer, slot.slot.fused()));
        let matrix = matrix.expect("vectors are not quantized");
        let before = slot.first;
        let Some(head_dim) = target.head_dim else {
            return write(matrix, target.first_row + before + rows.start, rows);
        };
        heads(before + rows.start..before + rows.end, head_dim).try_for_each(|head| {
            let row = target.row(&self.layout, head.start);
            write(matrix, row, head.start - before..head.end - before)
        })
    }

    /// The filled parts.
    pub(crate) fn finish(self) -> Result<Parts<M>> {
        let matrices = self.matrices.into_iter().map(|(key, m)| Ok((key, m.finish()?)));
        let of_heads = self.of_heads.into_iter().map(|(key, heads)| (key, heads.finished));
        Ok(Parts {
            matrices: matrices.collect::<Result<_>>()?,
            of_heads: of_heads.collect(),
            vectors: self.vectors,
            layout: self.layout,
        })
    }
}

/// Rows of heads of `head_dim` rows, head by head: between two of them a device has rows of zeros.
fn heads(rows: Range<usize>, head_dim: usize) -> impl Iterator<Item = Range<usize>> {
    (rows.start / head_dim..rows.end.div_ceil(head_dim))
        .map(move |head| rows.start.max(head * head_dim)..rows.end.min((head + 1) * head_dim))
}

/// The values of a stored vector.
pub(crate) fn values(data: WeightRows<'_>) -> Vec<f32> {
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

/// Rows whose columns belong to heads, with zeros after each head.
pub(crate) fn pad_columns(data: WeightRows<'_>, heads: HeadPadding) -> Vec<u8> {
    let HeadPadding { len, padded } = heads;
    let size = data.dtype.size_in_bytes();
    let mut bytes = Vec::with_capacity(data.bytes.len() / len * padded);
    for head in data.bytes.chunks(len * size) {
        bytes.extend_from_slice(head);
        bytes.resize(bytes.len() + (padded - len) * size, 0);
    }
    bytes
}

/// The parts of a model, to be taken by its layers.
pub(crate) struct Parts<M> {
    matrices: HashMap<Key, M>,
    of_heads: HashMap<Key, Vec<M>>,
    vectors: HashMap<Key, Vec<f32>>,
    layout: Layout,
}

impl<M> Parts<M> {
    /// The layout of the parts in memory.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A matrix that the model's description promises.
    pub(crate) fn matrix(&mut self, layer: Option<usize>, slot: Slot) -> M {
        self.matrices
            .remove(&(layer, slot.fused()))
            .expect("the plan holds every weight of the spec")
    }

    /// The matrices of the heads of a layer's attention, which the model's description promises.
    pub(crate) fn of_heads(&mut self, layer: usize, slot: Slot) -> Vec<M> {
        self.of_heads
            .remove(&(Some(layer), slot.fused()))
            .expect("the plan holds every weight of the spec")
    }

    /// A vector, where the model has it.
    pub(crate) fn vector(&mut self, layer: Option<usize>, slot: Slot) -> Result<Option<Tensor>> {
        let vector = self.vectors.remove(&(layer, slot.fused()));
        vector.map(|vector| self.tensor(vector)).transpose()
    }

    /// A vector in f32 on every device, where the model has it.
    pub(crate) fn exact(&mut self, layer: usize, slot: Slot) -> Result<Option<Tensor>> {
        let Some(vector) = self.vectors.remove(&(Some(layer), slot.fused())) else {
            return Ok(None);
        };
        let len = vector.len();
        Ok(Some(Tensor::from_vec(vector, len, &self.layout.device)?))
    }

    /// A number that the host has, where the model has it.
    pub(crate) fn number(&mut self, layer: usize, slot: Slot) -> Option<f32> {
        Some(self.vectors.remove(&(Some(layer), slot.fused()))?[0])
    }

    /// A norm, where the model has it.
    pub(crate) fn norm(
        &mut self,
        layer: Option<usize>,
        slot: Slot,
        spec: &NormSpec,
    ) -> Result<Option<Norm>> {
        let Some(weight) = self.vector(layer, slot)? else { return Ok(None) };
        let form = match spec.kind {
            NormKind::RmsPlusOne if !self.layout.adds_one => NormForm::Rms(NormWeight::OnePlus),
            NormKind::Rms | NormKind::RmsPlusOne => NormForm::Rms(NormWeight::Plain),
            NormKind::Layer { bias: false } => NormForm::Layer(None),
            NormKind::Layer { bias: true } | NormKind::LayerPlusOne => {
                let bias = slot.info().bias.expect("only norms with such a slot have a bias");
                NormForm::Layer(self.vector(layer, bias)?)
            }
        };
        Ok(Some(Norm { weight, form, eps: spec.eps as f32 }))
    }

    /// The norm of q or k, with heads of `head_dim` elements, if the model has it.
    ///
    /// LayerNorm gets the number of elements that count. RMSNorm does not need it:
    /// The zeros that pad a head add nothing to its squares, but count in their mean. With `p` the part of a head that
    /// is not padding, the mean is `p` times too small, and so must be epsilon; the root of `p` then makes up for it in
    /// the weight: `x / sqrt(mean + eps) = x * sqrt(p) / sqrt(p * mean + p * eps)`.
    pub(crate) fn head_norm(
        &mut self,
        layer: usize,
        slot: Slot,
        QkNormSpec { norm: spec, span }: &QkNormSpec,
        head_dim: usize,
    ) -> Result<Option<Norm>> {
        let padded = self.layout.padded_head(head_dim);
        if *span == QkNormSpan::EachHead {
            let Some(mut norm) = self.norm(Some(layer), slot, spec)? else { return Ok(None) };
            if self.layout.head_dims.is_empty() {
                norm.weight = norm.weight.reshape(((), head_dim))?;
            }
            return Ok(Some(norm));
        }
        if padded == head_dim {
            return self.norm(Some(layer), slot, spec);
        }
        let Some(mut weight) = self.vectors.remove(&(Some(layer), slot)) else { return Ok(None) };
        let part = head_dim as f64 / padded as f64;
        let offset = if spec.kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
        for head in weight.chunks_mut(padded) {
            for weight in &mut head[..head_dim] {
                *weight = (*weight + offset) * part.sqrt() as f32;
            }
        }
        let (weight, form) = (self.tensor(weight)?, NormForm::Rms(NormWeight::Plain));
        Ok(Some(Norm { weight, form, eps: (spec.eps * part) as f32 }))
    }

    fn tensor(&self, vector: Vec<f32>) -> Result<Tensor> {
        let len = vector.len();
        let tensor = Tensor::from_vec(vector, len, &Device::Cpu)?.to_dtype(self.layout.vectors)?;
        Ok(tensor.to_device(&self.layout.device)?)
    }
}
