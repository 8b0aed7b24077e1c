//! The tensors a model computes with, filled slot by slot: q, k and v become one weight, gate and
//! up another.

use std::{borrow::Cow, collections::HashMap, ops::Range, rc::Rc};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{
    AttentionSpec, DeltaNetSpec, LatentSpec, LayerSpec, MatrixForm, ModelSpec, NormKind, NormSpec,
    QkNormSpan, QkNormSpec, Slot, SlotRows, TensorPlan, device_latent_dims,
};
use candlepower_kernels::{
    QuantizedRows, SparseRows, Weight, WeightBuilder, WeightRows,
    device::{HeadPadding, NormWeight},
};
use half::{bf16, f16};

use crate::{
    error::Result,
    layers::{Norm, NormForm},
};

/// How a device keeps matrices.
pub(crate) trait Matrix: Clone {
    /// A matrix that is being filled.
    type Builder: MatrixBuilder<Matrix = Self>;
    /// One of each expert of a layer.
    type All;
    /// Bytes of memory held.
    fn num_bytes(&self) -> usize;
    /// Takes those of all experts together.
    fn all(matrices: Vec<Self>) -> Result<Self::All>;
}

/// A matrix that is being filled, by rows in any order.
pub(crate) trait MatrixBuilder {
    /// What it becomes.
    type Matrix;
    /// Writes rows from `first_row` on.
    fn write_rows(&mut self, first_row: usize, rows: WeightRows<'_>) -> Result<()>;
    /// Writes quantized rows from `first_row` on.
    fn write_quantized(&mut self, first_row: usize, rows: QuantizedRows<'_>) -> Result<()>;
    /// Adds the sparse part of rows from `first_row` on.
    fn write_sparse(&mut self, first_row: usize, part: SparseRows<'_>) -> Result<()>;
    /// The filled matrix.
    fn finish(self) -> Result<Self::Matrix>;
}

impl Matrix for Weight {
    type Builder = WeightBuilder;
    type All = Vec<Self>;

    fn num_bytes(&self) -> usize {
        Weight::num_bytes(self)
    }

    fn all(matrices: Vec<Self>) -> Result<Vec<Self>> {
        Ok(matrices)
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
    /// The columns are those of heads, which the device pads.
    pub(crate) heads: Option<HeadPadding>,
    /// Rows that will be written; the others, between padded heads, are zeros.
    pub(crate) written_rows: usize,
}

impl Shape {
    /// The columns without what pads heads.
    pub(crate) fn stored_columns(&self) -> usize {
        self.heads.map_or(self.columns, |heads| self.columns / heads.padded * heads.len)
    }
}

/// How the parts lie in a device's memory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Where they are.
    pub(crate) device: Device,
    /// The dtype of norms and biases.
    pub(crate) vectors: DType,
    /// Heads are padded with zeros to one of these widths, in ascending order; to none on the CPU.
    pub(crate) head_dims: &'static [usize],
    /// Norms stored as differences from one have it added.
    pub(crate) adds_one: bool,
}

impl Layout {
    /// As the CPU's kernels want them.
    pub(crate) fn cpu() -> Self {
        let device = Device::Cpu;
        Self { device, vectors: DType::F32, head_dims: &[], adds_one: true }
    }

    /// The width of a head of `head_dim` elements.
    pub(crate) fn padded_head(&self, head_dim: usize) -> usize {
        self.head_dims.iter().copied().find(|dim| *dim >= head_dim).unwrap_or(head_dim)
    }

    /// The elements of a latent of `rank` elements, behind which `turned` elements lie.
    fn padded_latent(&self, rank: usize, turned: usize) -> usize {
        if self.head_dims.is_empty() { rank } else { device_latent_dims(rank, turned).0 }
    }
}

/// One tensor of the running model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Embed,
    PerLayerEmbed,
    PerLayerProjection,
    PerLayerNorm,
    Positions,
    FinalNorm,
    FinalNormBias,
    Head,
    HeadBias,
    AttnNorm,
    AttnNormBias,
    AttnPostNorm,
    FfnNorm,
    FfnNormBias,
    FfnPostNorm,
    LayerScale,
    PerLayerGate,
    PerLayerOut,
    PerLayerPostNorm,
    /// q, k and v; or q alone.
    Qkv,
    QkvBias,
    QLatent,
    QLatentNorm,
    KvLatent,
    KvLatentNorm,
    /// Of all heads, as the next.
    KeyUp,
    ValueUp,
    QNorm,
    KNorm,
    Sinks,
    AttnGate,
    DeltaIn,
    DeltaGates,
    DeltaTaps,
    DeltaLogRate,
    DeltaDecayBias,
    DeltaNorm,
    Out,
    OutBias,
    GateUp,
    GateUpBias,
    Down,
    DownBias,
    Router,
    RouterBias,
    RouterCorrection,
    RouterScales,
    RouterNorm,
    ExpertsNorm,
    ExpertsPostNorm,
    SharedPostNorm,
    SharedScore,
    SharedGateUp,
    SharedDown,
    ExpertGateUp(usize),
    ExpertDown(usize),
    /// Of all experts, as the next.
    ExpertGateUpBias,
    ExpertDownBias,
}

impl Part {
    /// The part with a norm's bias.
    fn bias(self) -> Self {
        match self {
            Self::AttnNorm => Self::AttnNormBias,
            Self::FfnNorm => Self::FfnNormBias,
            Self::FinalNorm => Self::FinalNormBias,
            other => unreachable!("{other:?} has no bias"),
        }
    }
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
    /// What they are multiplied by after that.
    factor: f32,
    /// The rows are those of heads, of so many elements each, which the device may pad.
    head_dim: Option<usize>,
    /// The columns are.
    head_columns: Option<usize>,
}

impl Place {
    fn of(
        spec: &ModelSpec,
        layout: &Layout,
        layer: Option<usize>,
        slot: Slot,
        slot_rows: usize,
    ) -> Self {
        let whole = |part| Self {
            part,
            first_row: 0,
            rows: slot_rows,
            plus_one: false,
            factor: 1.0,
            head_dim: None,
            head_columns: None,
        };
        let Some(layer) = layer else {
            return match slot {
                Slot::Embed => whole(Part::Embed),
                Slot::PerLayerEmbed => whole(Part::PerLayerEmbed),
                Slot::PerLayerProjection => whole(Part::PerLayerProjection),
                Slot::PerLayerNorm => whole(Part::PerLayerNorm).norm(spec.final_norm.kind),
                Slot::Head => whole(Part::Head),
                Slot::HeadBias => whole(Part::HeadBias),
                Slot::Positions => whole(Part::Positions),
                Slot::FinalNormBias => whole(Part::FinalNormBias),
                _ => whole(Part::FinalNorm).norm(spec.final_norm.kind),
            };
        };
        let LayerSpec { norm, ffn, .. } = &spec.layers[layer];
        let mlp = ffn.mlp();
        // Where a gate is stored, what it gates follows it.
        let up_row = if mlp.gated { mlp.inner } else { 0 };
        let gate_up = |part, first_row| Self { first_row, rows: up_row + mlp.inner, ..whole(part) };
        let shared = |first_row| {
            let inner = ffn.shared().expect("the plan has a shared expert only where it is").inner;
            Self { first_row, rows: 2 * inner, ..whole(Part::SharedGateUp) }
        };
        let of_expert = |part, expert: usize, first_row: usize| {
            let rows = if part == Part::ExpertDownBias { slot_rows } else { up_row + mlp.inner };
            let experts = ffn.experts().map_or(1, |experts| experts.count);
            Self { first_row: expert * rows + first_row, rows: experts * rows, ..whole(part) }
        };
        match slot {
            Slot::Embed
            | Slot::PerLayerEmbed
            | Slot::PerLayerProjection
            | Slot::PerLayerNorm
            | Slot::Positions
            | Slot::Head
            | Slot::HeadBias
            | Slot::FinalNorm
            | Slot::FinalNormBias => unreachable!("not in a layer"),
            Slot::AttnNorm => whole(Part::AttnNorm).norm(norm.kind),
            Slot::AttnNormBias => whole(Part::AttnNormBias),
            Slot::FfnNormBias => whole(Part::FfnNormBias),
            Slot::AttnPostNorm => whole(Part::AttnPostNorm).norm(norm.kind),
            Slot::FfnNorm => whole(Part::FfnNorm).norm(norm.kind),
            Slot::FfnPostNorm => whole(Part::FfnPostNorm).norm(norm.kind),
            Slot::LayerScale => whole(Part::LayerScale),
            Slot::PerLayerGate => whole(Part::PerLayerGate),
            Slot::PerLayerOut => whole(Part::PerLayerOut),
            Slot::PerLayerPostNorm => whole(Part::PerLayerPostNorm).norm(norm.kind),
            Slot::Q
            | Slot::K
            | Slot::V
            | Slot::QBias
            | Slot::KBias
            | Slot::VBias
            | Slot::QNorm
            | Slot::KNorm
            | Slot::Sinks
            | Slot::AttnGate
            | Slot::O
            | Slot::OBias => {
                let attention = spec.layers[layer].attention();
                let attention = attention.expect("the plan has its slots only where it is");
                Self::in_attention(attention, layout, slot, whole)
            }
            Slot::QUp => whole(Part::Qkv),
            Slot::QLatent => whole(Part::QLatent),
            Slot::QLatentNorm => whole(Part::QLatentNorm),
            Slot::KvLatent => whole(Part::KvLatent),
            Slot::KvLatentNorm => whole(Part::KvLatentNorm),
            Slot::KeyUp => whole(Part::KeyUp),
            Slot::ValueUp => whole(Part::ValueUp),
            Slot::DeltaQ
            | Slot::DeltaK
            | Slot::DeltaV
            | Slot::DeltaGate
            | Slot::DeltaBeta
            | Slot::DeltaDecay
            | Slot::DeltaOut
            | Slot::DeltaTapsQ
            | Slot::DeltaTapsK
            | Slot::DeltaTapsV
            | Slot::DeltaLogRate
            | Slot::DeltaDecayBias
            | Slot::DeltaNorm => {
                let net = spec.layers[layer].delta_net();
                let net = net.expect("the plan has its slots only where it is");
                Self::in_delta_net(net, slot, whole)
            }
            Slot::Gate => gate_up(Part::GateUp, 0),
            Slot::Up => gate_up(Part::GateUp, up_row),
            Slot::GateBias => gate_up(Part::GateUpBias, 0),
            Slot::UpBias => gate_up(Part::GateUpBias, up_row),
            Slot::Down => whole(Part::Down),
            Slot::DownBias => whole(Part::DownBias),
            Slot::Router => whole(Part::Router),
            Slot::RouterBias => whole(Part::RouterBias),
            Slot::RouterCorrection => whole(Part::RouterCorrection),
            Slot::RouterScales => whole(Part::RouterScales),
            // What the router reads has this factor, too.
            Slot::RouterNorm => Self {
                factor: (spec.hidden_size as f64).powf(-0.5) as f32,
                ..whole(Part::RouterNorm).norm(norm.kind)
            },
            Slot::ExpertsNorm => whole(Part::ExpertsNorm).norm(norm.kind),
            Slot::ExpertsPostNorm => whole(Part::ExpertsPostNorm).norm(norm.kind),
            Slot::SharedPostNorm => whole(Part::SharedPostNorm).norm(norm.kind),
            Slot::SharedScore => whole(Part::SharedScore),
            Slot::SharedGate => shared(0),
            Slot::SharedUp => shared(ffn.shared().map_or(0, |mlp| mlp.inner)),
            Slot::SharedDown => whole(Part::SharedDown),
            Slot::ExpertGate(expert) => gate_up(Part::ExpertGateUp(expert), 0),
            Slot::ExpertUp(expert) => gate_up(Part::ExpertGateUp(expert), up_row),
            Slot::ExpertDown(expert) => whole(Part::ExpertDown(expert)),
            Slot::ExpertGateBias(expert) => of_expert(Part::ExpertGateUpBias, expert, 0),
            Slot::ExpertUpBias(expert) => of_expert(Part::ExpertGateUpBias, expert, up_row),
            Slot::ExpertDownBias(expert) => of_expert(Part::ExpertDownBias, expert, 0),
        }
    }

    fn in_attention(
        a: &AttentionSpec,
        layout: &Layout,
        slot: Slot,
        whole: impl Fn(Part) -> Self,
    ) -> Self {
        if a.latent.is_some() {
            return whole(if slot == Slot::O { Part::Out } else { Part::Qkv });
        }
        let padded = layout.padded_head(a.head_dim);
        let kv_heads = if a.keys_of.is_some() { 0 } else { a.kv_heads };
        let (q, kv) = (a.heads * padded, kv_heads * padded);
        let head_dim = (padded != a.head_dim).then_some(a.head_dim);
        let qkv = |part, first_row| Self { first_row, rows: q + 2 * kv, head_dim, ..whole(part) };
        let heads = |part, heads: usize| {
            let norm = a.qk_norm.expect("the plan has norms of q and k only where they are");
            let weights = if norm.span == QkNormSpan::Head { 1 } else { heads };
            Self { rows: weights * padded, head_dim, ..whole(part) }.norm(norm.norm.kind)
        };
        match slot {
            Slot::Q => qkv(Part::Qkv, 0),
            Slot::K => qkv(Part::Qkv, q),
            Slot::V => qkv(Part::Qkv, q + kv),
            Slot::QBias => qkv(Part::QkvBias, 0),
            Slot::KBias => qkv(Part::QkvBias, q),
            Slot::VBias => qkv(Part::QkvBias, q + kv),
            Slot::QNorm => heads(Part::QNorm, a.heads),
            Slot::KNorm => heads(Part::KNorm, a.kv_heads),
            Slot::Sinks => whole(Part::Sinks),
            Slot::AttnGate => Self { rows: q, head_dim, ..whole(Part::AttnGate) },
            Slot::O => Self { head_columns: head_dim, ..whole(Part::Out) },
            Slot::OBias => whole(Part::OutBias),
            other => unreachable!("{other:?} is not an attention's"),
        }
    }

    fn in_delta_net(net: &DeltaNetSpec, slot: Slot, whole: impl Fn(Part) -> Self) -> Self {
        let (keys, values, heads) = (net.keys(), net.values(), net.value_heads);
        let part = |part, first_row, rows| Self { first_row, rows, ..whole(part) };
        let rows = |first_row| part(Part::DeltaIn, first_row, net.width());
        let gates = |first_row| part(Part::DeltaGates, first_row, 2 * heads);
        let taps = |first_row: usize| {
            part(Part::DeltaTaps, first_row * net.taps, net.channels() * net.taps)
        };
        match slot {
            Slot::DeltaQ => rows(0),
            Slot::DeltaK => rows(keys),
            Slot::DeltaV => rows(2 * keys),
            Slot::DeltaGate => rows(2 * keys + values),
            Slot::DeltaBeta => gates(0),
            Slot::DeltaDecay => gates(heads),
            Slot::DeltaOut => whole(Part::Out),
            Slot::DeltaTapsQ => taps(0),
            Slot::DeltaTapsK => taps(keys),
            Slot::DeltaTapsV => taps(2 * keys),
            Slot::DeltaLogRate => whole(Part::DeltaLogRate),
            Slot::DeltaDecayBias => whole(Part::DeltaDecayBias),
            Slot::DeltaNorm => whole(Part::DeltaNorm),
            other => unreachable!("{other:?} is not a delta net's"),
        }
    }

    fn norm(self, kind: NormKind) -> Self {
        Self { plus_one: kind == NormKind::RmsPlusOne, ..self }
    }
}

type Key = (Option<usize>, Part);

/// The parts of a model while they are being filled.
pub(crate) struct PartsBuilder<'a, M: Matrix> {
    spec: &'a ModelSpec,
    layout: Layout,
    matrices: HashMap<Key, M::Builder>,
    of_heads: HashMap<Key, HeadsBuilder<'a, M>>,
    vectors: HashMap<Key, Vec<f32>>,
}

/// Makes a matrix that is to be filled.
type Reserve<'a, M> = dyn Fn(Shape) -> Result<<M as Matrix>::Builder> + 'a;

/// The matrices of the heads of one part, which are gathered as numbers, and made when all of them are there.
struct HeadsBuilder<'a, M: Matrix> {
    reserve: Rc<Reserve<'a, M>>,
    /// Of each of the matrices, as it is to be.
    shape: Shape,
    /// As they are stored: rows of each head, and columns.
    stored: [usize; 2],
    /// A stored matrix is transposed.
    transposed: bool,
    missing_rows: usize,
    numbers: Vec<f32>,
    finished: Vec<M>,
}

impl<'a, M: Matrix> HeadsBuilder<'a, M> {
    /// For the slot `slot` of `rows` rows of `columns` columns, in an attention of latents.
    fn new(
        reserve: Rc<Reserve<'a, M>>,
        attention: &AttentionSpec,
        layout: &Layout,
        (slot, rows, columns): (Slot, usize, usize),
        dtype: DType,
    ) -> Self {
        let of_head = rows / attention.heads;
        let LatentSpec { rank, key_dim, value_dim, transposed_keys, .. } =
            attention.latent.expect("matrices of heads make keys and values of latents");
        let latent = layout.padded_latent(rank, attention.head_dim - rank);
        let [n, k] = if slot == Slot::KeyUp { [latent, key_dim] } else { [value_dim, latent] };
        let transposed = slot == Slot::KeyUp && !transposed_keys;
        let form = MatrixForm::Plain;
        Self {
            reserve,
            shape: Shape { rows: n, columns: k, dtype, form, heads: None, written_rows: n },
            stored: [of_head, columns],
            transposed,
            missing_rows: rows,
            numbers: vec![0.0; rows * columns],
            finished: Vec::new(),
        }
    }

    /// Adds rows from `first` on; those that are quantized may have a sparse part beside them.
    fn add_rows(&mut self, first: usize, numbers: &[f32]) -> Result<()> {
        let [of_head, columns] = self.stored;
        let places = self.numbers[first * columns..][..numbers.len()].iter_mut();
        places.zip(numbers).for_each(|(place, number)| *place += number);
        self.missing_rows -= numbers.len() / columns;
        if self.missing_rows > 0 {
            return Ok(());
        }
        let numbers = std::mem::take(&mut self.numbers);
        let matrices = numbers.chunks_exact(of_head * columns).map(|head| self.matrix(head));
        self.finished = matrices.collect::<Result<_>>()?;
        Ok(())
    }

    /// Adds the sparse part of rows from `first` on, which come after it.
    fn add_sparse(&mut self, first: usize, part: &SparseRows<'_>) {
        let columns = self.stored[1];
        for (row, bounds) in part.starts.windows(2).enumerate() {
            let range = bounds[0] as usize..bounds[1] as usize;
            for (input, number) in part.inputs[range.clone()].iter().zip(&part.numbers[range]) {
                self.numbers[(first + row) * columns + *input as usize] += number;
            }
        }
    }

    /// The matrix of one head.
    fn matrix(&self, stored: &[f32]) -> Result<M> {
        let (Shape { rows, columns: k, .. }, [_, columns]) = (self.shape, self.stored);
        let mut numbers = vec![0f32; rows * k];
        for (row, stored) in stored.chunks_exact(columns).enumerate() {
            for (column, number) in stored.iter().enumerate() {
                let at = if self.transposed { column * k + row } else { row * k + column };
                numbers[at] = *number;
            }
        }
        let dtype = self.shape.dtype;
        let tensor = Tensor::from_vec(numbers, (rows, k), &Device::Cpu)?.to_dtype(dtype)?;
        let mut builder = (self.reserve)(self.shape)?;
        let bytes = bytes_of(&tensor)?;
        builder.write_rows(0, WeightRows { dtype, bytes: &bytes })?;
        builder.finish()
    }
}

/// The bytes of a tensor's numbers, in order.
fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let flat = tensor.flatten_all()?;
    Ok(match tensor.dtype() {
        DType::BF16 => flat.to_vec1::<bf16>()?.into_iter().flat_map(bf16::to_le_bytes).collect(),
        DType::F16 => flat.to_vec1::<f16>()?.into_iter().flat_map(f16::to_le_bytes).collect(),
        _ => flat.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect(),
    })
}

impl<'a, M: Matrix> PartsBuilder<'a, M> {
    /// Reserves every part. `dtype` says in which dtype a planned tensor's numbers are to be kept, where it is not
    /// quantized; a part made of several tensors that disagree is kept in f32. `reserve` begins a matrix.
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
        let mut heads_rows: HashMap<Key, (Slot, usize, usize, DType)> = HashMap::new();
        for tensor in plan {
            for slot in &tensor.slots {
                let place = Place::of(spec, &layout, slot.layer, slot.slot, slot.rows.len());
                let key = (slot.layer, place.part);
                let Some(columns) = tensor.columns().map(|columns| columns.len()) else {
                    vectors.entry(key).or_insert_with(|| vec![0.0; place.rows]);
                    continue;
                };
                if slot.slot.is_of_heads() {
                    let all = heads_rows.entry(key);
                    let all = all.or_insert((slot.slot, 0, columns, dtype(tensor)?));
                    all.1 += slot.rows.len();
                    continue;
                }
                let heads = place
                    .head_columns
                    .map(|len| HeadPadding { len, padded: layout.padded_head(len) });
                let dtype = dtype(tensor)?;
                let form = tensor.form();
                let shape = shapes.entry(key).or_insert(Shape {
                    rows: place.rows,
                    columns: heads.map_or(columns, |heads| columns / heads.len * heads.padded),
                    dtype,
                    form,
                    heads,
                    written_rows: 0,
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
        let of_heads = heads_rows.into_iter().map(|(key, (slot, rows, columns, dtype))| {
            let attention = key.0.and_then(|layer| spec.layers[layer].attention());
            let attention = attention.expect("matrices of heads are an attention's");
            let rows = (slot, rows, columns);
            (key, HeadsBuilder::new(reserve.clone(), attention, &layout, rows, dtype))
        });
        let of_heads = of_heads.collect();
        Ok(Self { spec, matrices, of_heads, vectors, layout })
    }

    /// Writes rows of a slot, from the row `first` of those that `slot` names on.
    pub(crate) fn write(
        &mut self,
        slot: &SlotRows,
        first: usize,
        data: WeightRows<'_>,
    ) -> Result<()> {
        let place = Place::of(self.spec, &self.layout, slot.layer, slot.slot, slot.rows.len());
        let (key, first) = ((slot.layer, place.part), slot.first + first);
        if let Some(of_heads) = self.of_heads.get_mut(&key) {
            return of_heads.add_rows(first, &numbers(data));
        }
        let Some(matrix) = self.matrices.get_mut(&key) else {
            let vector = self.vectors.get_mut(&key).expect("every planned slot has a part");
            let offset = if place.plus_one && self.layout.adds_one { 1.0 } else { 0.0 };
            for (row, number) in (first..).zip(numbers(data)) {
                vector[place.row(&self.layout, row)] = (number + offset) * place.factor;
            }
            return Ok(());
        };
        let Some(head_dim) = place.head_dim else {
            let bytes = match place.head_columns {
                Some(head_dim) => {
                    let padded = self.layout.padded_head(head_dim);
                    Cow::Owned(pad_columns(data, HeadPadding { len: head_dim, padded }))
                }
                None => Cow::Borrowed(data.bytes),
            };
            let rows = WeightRows { dtype: data.dtype, bytes: &bytes };
            return matrix.write_rows(place.first_row + first, rows);
        };
        let row_bytes = self.spec.hidden_size * data.dtype.size_in_bytes();
        for head in heads(first..first + data.bytes.len() / row_bytes, head_dim) {
            let bytes =
                &data.bytes[(head.start - first) * row_bytes..(head.end - first) * row_bytes];
            let target = place.row(&self.layout, head.start);
            matrix.write_rows(target, WeightRows { dtype: data.dtype, bytes })?;
        }
        Ok(())
    }

    /// Writes quantized rows of a matrix's slot, each of `k` columns, from the row `first` of those that `slot` names on.
    pub(crate) fn write_quantized(
        &mut self,
        slot: &SlotRows,
        first: usize,
        k: usize,
        rows: QuantizedRows<'_>,
    ) -> Result<()> {
        let place = Place::of(self.spec, &self.layout, slot.layer, slot.slot, slot.rows.len());
        if let Some(of_heads) = self.of_heads.get_mut(&(slot.layer, place.part)) {
            return of_heads.add_rows(slot.first + first, &rows.numbers(k)?);
        }
        self.each_run(slot, first..first + rows.bytes.len() / k, |matrix, target, run| {
            matrix.write_quantized(target, rows.rows(k, run.start - first..run.end - first))
        })
    }

    /// Adds the sparse part of a matrix's slot.
    pub(crate) fn write_sparse(&mut self, slot: &SlotRows, part: SparseRows<'_>) -> Result<()> {
        let place = Place::of(self.spec, &self.layout, slot.layer, slot.slot, slot.rows.len());
        if let Some(of_heads) = self.of_heads.get_mut(&(slot.layer, place.part)) {
            of_heads.add_sparse(slot.first, &part);
            return Ok(());
        }
        self.each_run(slot, 0..part.starts.len() - 1, |matrix, target, run| {
            matrix.write_sparse(target, part.rows(run))
        })
    }

    /// Calls `write` with the matrix of which a quantized slot is a part, and those of the rows `rows` that `slot` names that lie
    /// together in it, with the matrix's row of their first.
    fn each_run(
        &mut self,
        slot: &SlotRows,
        rows: Range<usize>,
        mut write: impl FnMut(&mut M::Builder, usize, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let place = Place::of(self.spec, &self.layout, slot.layer, slot.slot, slot.rows.len());
        let matrix = self.matrices.get_mut(&(slot.layer, place.part));
        let matrix = matrix.expect("vectors are not quantized");
        let before = slot.first;
        let Some(head_dim) = place.head_dim else {
            return write(matrix, place.first_row + before + rows.start, rows);
        };
        heads(before + rows.start..before + rows.end, head_dim).try_for_each(|head| {
            let target = place.row(&self.layout, head.start);
            write(matrix, target, head.start - before..head.end - before)
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

impl Place {
    /// Where a slot's row lies in the part.
    fn row(&self, layout: &Layout, row: usize) -> usize {
        let padded =
            self.head_dim.map_or(row, |dim| row / dim * layout.padded_head(dim) + row % dim);
        self.first_row + padded
    }
}

/// Rows of heads of `head_dim` rows, head by head: between two of them a device has rows of zeros.
fn heads(rows: Range<usize>, head_dim: usize) -> impl Iterator<Item = Range<usize>> {
    (rows.start / head_dim..rows.end.div_ceil(head_dim))
        .map(move |head| rows.start.max(head * head_dim)..rows.end.min((head + 1) * head_dim))
}

/// The numbers of a stored vector.
pub(crate) fn numbers(data: WeightRows<'_>) -> Vec<f32> {
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

/// Rows whose columns are those of heads, with zeros after each head.
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
    /// How the parts lie in memory.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A matrix that the model's description promises.
    pub(crate) fn matrix(&mut self, layer: Option<usize>, part: Part) -> M {
        self.matrices.remove(&(layer, part)).expect("the plan holds every weight of the spec")
    }

    /// The matrices of the heads of a layer's attention, which the model's description promises.
    pub(crate) fn of_heads(&mut self, layer: usize, part: Part) -> Vec<M> {
        self.of_heads.remove(&(Some(layer), part)).expect("the plan holds every weight of the spec")
    }

    /// A vector, where the model has it.
    pub(crate) fn vector(&mut self, layer: Option<usize>, part: Part) -> Result<Option<Tensor>> {
        let vector = self.vectors.remove(&(layer, part));
        vector.map(|vector| self.tensor(vector)).transpose()
    }

    /// A vector in f32 on every device, where the model has it.
    pub(crate) fn exact(&mut self, layer: usize, part: Part) -> Result<Option<Tensor>> {
        let Some(vector) = self.vectors.remove(&(Some(layer), part)) else { return Ok(None) };
        let len = vector.len();
        Ok(Some(Tensor::from_vec(vector, len, &self.layout.device)?))
    }

    /// A number that the host has, where the model has it.
    pub(crate) fn number(&mut self, layer: usize, part: Part) -> Option<f32> {
        Some(self.vectors.remove(&(Some(layer), part))?[0])
    }

    /// A norm, where the model has it.
    pub(crate) fn norm(
        &mut self,
        layer: Option<usize>,
        part: Part,
        spec: &NormSpec,
    ) -> Result<Option<Norm>> {
        let Some(weight) = self.vector(layer, part)? else { return Ok(None) };
        let form = match spec.kind {
            NormKind::RmsPlusOne if !self.layout.adds_one => NormForm::Rms(NormWeight::OnePlus),
            NormKind::Rms | NormKind::RmsPlusOne => NormForm::Rms(NormWeight::Plain),
            NormKind::Layer { bias: false } => NormForm::Layer(None),
            NormKind::Layer { bias: true } => NormForm::Layer(self.vector(layer, part.bias())?),
        };
        Ok(Some(Norm { weight, form, eps: spec.eps as f32 }))
    }

    /// The norm of q or k, with heads of `head_dim` elements, where the model has it.
    ///
    /// LayerNorm is told how many elements count. With RMSNorm they need not be known:
    /// The zeros that pad a head add nothing to its squares, but count in their mean. With `p` the part of a head that
    /// is not padding, the mean is `p` times too small, and so must be epsilon; the root of `p` then makes up for it in
    /// the weight: `x / sqrt(mean + eps) = x * sqrt(p) / sqrt(p * mean + p * eps)`.
    pub(crate) fn head_norm(
        &mut self,
        layer: usize,
        part: Part,
        QkNormSpec { norm: spec, span }: &QkNormSpec,
        head_dim: usize,
    ) -> Result<Option<Norm>> {
        let padded = self.layout.padded_head(head_dim);
        if *span == QkNormSpan::EachHead {
            let Some(mut norm) = self.norm(Some(layer), part, spec)? else { return Ok(None) };
            if self.layout.head_dims.is_empty() {
                norm.weight = norm.weight.reshape(((), head_dim))?;
            }
            return Ok(Some(norm));
        }
        if padded == head_dim {
            return self.norm(Some(layer), part, spec);
        }
        let Some(mut weight) = self.vectors.remove(&(Some(layer), part)) else { return Ok(None) };
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
