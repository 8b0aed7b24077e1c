//! Quantized matrices as they are stored: the position of each quantized weight, and how rows become packed weights.

use std::ops::Range;

use candle_core::DType;
use candlepower_checkpoint::{Checkpoint, Dtype, Packed, RowOrder, Scheme, SlotRows, TensorPlan};
use candlepower_kernels::{
    OffsetForm, Offsets, QuantFormat, QuantizedRows, SparseRows, SubScales, Weight, WeightBuilder,
};
use rayon::prelude::*;

pub(crate) use self::on_load::quantized;
pub use self::on_load::recoded_values;
use self::{
    awq::AwqMatrix, compressed_int::CompressedIntMatrix, e2m1::E2m1Matrix, fp8::Fp8Matrix,
    gguf::GgufMatrix, gptq::GptqMatrix, squeezellm::SqueezeLlmMatrix,
};
use crate::{
    error::{Error, Result},
    parts::{Matrix, PartsBuilder, values},
    shards::{MappedBytes, Shards},
};

mod awq;
mod compressed_int;
mod e2m1;
mod fp8;
mod gguf;
mod gptq;
mod on_load;
mod squeezellm;
#[cfg(test)]
mod tests;

/// A quantized matrix `[n, k]` in the weight files.
pub(crate) trait Stored: Sync {
    /// The encoding of its quantized weights, the columns that share scales, and the form of the scales.
    fn packed(&self) -> Packed;
    /// The input of each column, where the inputs of a group do not lie together (act-order). The columns are then those of the first
    /// group, of the second, and so on.
    fn inputs(&self) -> Option<&[u32]> {
        None
    }
    /// The quantized weight of an output and an input.
    fn quant(&self, row: usize, input: usize) -> u8;
    /// The quantized weights of an output from an input on.
    fn quants_from(&self, row: usize, input: usize, quants: &mut [u8]);
    /// The scale of an output's `index`-th group or super-block, or the `index`-th value of its table.
    fn scale(&self, row: usize, index: usize) -> f32;
    /// The offset of an output's `index`-th group or super-block, where the format stores offsets.
    fn min(&self, row: usize, index: usize) -> f32 {
        unreachable!("group {index} of row {row} has no offset of its own")
    }
    /// The zero-point of an output's group, where each group has one.
    fn zero_point(&self, row: usize, group: usize) -> u8 {
        unreachable!("group {group} of row {row} has no zero point of its own")
    }
    /// The sub-scales of an output's group, where there are super-blocks: the factors on the super-block's scale and on its offset.
    fn sub_scales(&self, row: usize, group: usize) -> [i8; 2] {
        unreachable!("group {group} of row {row} has a scale of its own")
    }
    /// A sparse matrix that is added to the dequantized weights.
    fn sparse(&self) -> Option<SparseRows<'_>> {
        None
    }
    /// The dequantized weight of an output and an input: the reference of the format.
    fn value(&self, row: usize, input: usize) -> f32;
}

/// An opened quantized matrix.
pub(crate) enum AnyStored {
    Awq(AwqMatrix),
    Gptq(GptqMatrix),
    Fp8(Fp8Matrix),
    CompressedInt(CompressedIntMatrix),
    SqueezeLlm(SqueezeLlmMatrix),
    E2m1(E2m1Matrix),
    Gguf(GgufMatrix),
}

/// Opens a matrix that [`Shards::check`] has seen.
pub(crate) fn open(shards: &Shards, tensor: &TensorPlan, scheme: Scheme) -> Result<AnyStored> {
    let files = Tensors::of(shards, tensor)?;
    open_rows(&files, scheme, 0..files.n)
}

/// Opens a matrix for reads of the rows `rows` alone. Only they are mapped where rows lie one after the other.
fn open_rows(files: &Tensors<'_>, scheme: Scheme, rows: Range<usize>) -> Result<AnyStored> {
    let packed = scheme.packed(files.k);
    Ok(match scheme {
        Scheme::Awq(_) => AnyStored::Awq(AwqMatrix::open(files, packed)?),
        Scheme::Gptq(scheme) => AnyStored::Gptq(GptqMatrix::open(files, scheme, packed)?),
        Scheme::Fp8(scheme) => AnyStored::Fp8(Fp8Matrix::open(files, scheme, packed, rows)?),
        Scheme::CompressedInt(scheme) => {
            AnyStored::CompressedInt(CompressedIntMatrix::open(files, scheme, packed)?)
        }
        Scheme::SqueezeLlm(_) => AnyStored::SqueezeLlm(SqueezeLlmMatrix::open(files, packed)?),
        Scheme::Mxfp4(_) => AnyStored::E2m1(E2m1Matrix::mxfp4(files, packed, rows)?),
        Scheme::Nvfp4(scheme) => AnyStored::E2m1(E2m1Matrix::nvfp4(files, scheme, packed, rows)?),
        Scheme::Gguf(kind) => AnyStored::Gguf(GgufMatrix::open(files, kind, packed, rows)?),
    })
}

/// Writes the planned rows and columns of a matrix that [`Shards::check`] has seen to their parts. Where a format stores rows one
/// after the other, only some are mapped at a time.
pub(crate) fn read<M: Matrix>(
    shards: &Shards,
    tensor: &TensorPlan,
    scheme: Scheme,
    parts: &mut PartsBuilder<'_, M>,
) -> Result<()> {
    let by_rows =
        matches!(scheme, Scheme::Gguf(_) | Scheme::Fp8(_) | Scheme::Mxfp4(_) | Scheme::Nvfp4(_));
    if !by_rows {
        return open(shards, tensor, scheme)?.write(tensor, parts);
    }
    let files = Tensors::of(shards, tensor)?;
    let piece_rows = piece_rows(files.k);
    let fixed_scale = match scheme {
        Scheme::Fp8(scheme) => fp8::fixed_scale(&files, scheme)?,
        _ => None,
    };
    for slot in &tensor.slots {
        if let Some(scale) = fixed_scale {
            parts.add_fixed_scale(slot, scale)?;
        }
        for first in slot.rows.clone().step_by(piece_rows) {
            let rows = first..slot.rows.end.min(first + piece_rows);
            let matrix = open_rows(&files, scheme, rows.clone())?;
            matrix.write_rows(tensor, slot, rows, parts)?;
        }
    }
    Ok(())
}

impl AnyStored {
    /// Writes the planned rows and columns to their parts.
    fn write<M: Matrix>(&self, tensor: &TensorPlan, parts: &mut PartsBuilder<'_, M>) -> Result<()> {
        // Act-order spreads a rank's columns over all groups, so they have no scales of their own to take along.
        if tensor.columns.is_some() && self.stored().inputs().is_some() {
            return Err(Error::OrderedColumns { name: tensor.name.clone() });
        }
        for slot in &tensor.slots {
            // Before the quantized weights, because the last of them finishes the matrix.
            if let Some(sparse) = self.stored().sparse() {
                let columns = tensor.columns().expect("quantized tensors are matrices");
                let sparse = sparse.rows(slot.rows.clone());
                let (starts, inputs, values) = columns_of(sparse, &columns);
                let sparse = SparseRows { starts: &starts, inputs: &inputs, values: &values };
                parts.write_sparse(slot, sparse)?;
            }
            self.write_rows(tensor, slot, slot.rows.clone(), parts)?;
        }
        Ok(())
    }

    /// Writes the planned columns of some of a slot's rows.
    fn write_rows<M: Matrix>(
        &self,
        tensor: &TensorPlan,
        slot: &SlotRows,
        rows: Range<usize>,
        parts: &mut PartsBuilder<'_, M>,
    ) -> Result<()> {
        let columns = tensor.columns().expect("quantized tensors are matrices");
        let first_row = slot.rows.start;
        self.each_piece(rows, columns.clone(), &mut |first, rows| {
            parts.write_quantized(slot, first - first_row, columns.len(), rows)
        })
    }

    /// Calls `take` with the columns `columns` of the rows `rows`, piece by piece, and with the index of each piece's first row.
    fn each_piece(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        take: &mut dyn FnMut(usize, QuantizedRows<'_>) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Awq(matrix) => each_piece(matrix, rows, columns, take),
            Self::Gptq(matrix) => each_piece(matrix, rows, columns, take),
            Self::Fp8(matrix) => each_piece(matrix, rows, columns, take),
            Self::CompressedInt(matrix) => each_piece(matrix, rows, columns, take),
            Self::SqueezeLlm(matrix) => each_piece(matrix, rows, columns, take),
            Self::E2m1(matrix) => each_piece(matrix, rows, columns, take),
            Self::Gguf(matrix) => each_piece(matrix, rows, columns, take),
        }
    }

    fn stored(&self) -> &dyn Stored {
        match self {
            Self::Awq(matrix) => matrix,
            Self::Gptq(matrix) => matrix,
            Self::Fp8(matrix) => matrix,
            Self::CompressedInt(matrix) => matrix,
            Self::SqueezeLlm(matrix) => matrix,
            Self::E2m1(matrix) => matrix,
            Self::Gguf(matrix) => matrix,
        }
    }
}

/// The dequantized values `[n, k]` of a checkpoint's quantized matrix, one by one by the reference of its format. `None` where no
/// quantized matrix has this name. The model uses packed weights; this is the reference for their tests.
///
/// # Errors
/// The weight files are damaged, or do not hold what the configuration says.
pub fn dequantize_reference(checkpoint: &Checkpoint, name: &str) -> Result<Option<Vec<f32>>> {
    let shards = Shards::open(checkpoint)?;
    let plan = shards.plan(checkpoint);
    let Some(tensor) = plan.iter().find(|tensor| tensor.name == name) else { return Ok(None) };
    let (Some(scheme), &[n, k]) = (tensor.scheme, tensor.shape.as_slice()) else { return Ok(None) };
    shards.check(checkpoint, &plan)?;
    let matrix = open(&shards, tensor, scheme)?;
    let matrix = matrix.stored();
    let numbers = (0..n).flat_map(|row| (0..k).map(move |input| matrix.value(row, input)));
    Ok(Some(numbers.collect()))
}

/// Begins a weight of `n` rows of `k` quantized weights.
pub(crate) fn builder(n: usize, k: usize, packed: Packed) -> Result<WeightBuilder> {
    let Packed { format, group, scales, .. } = packed;
    Ok(Weight::quantized_builder(n, k, format, group, scales.within(k, group))?)
}

/// Notes in the plan the dtype of scales that are kept as stored.
pub(crate) fn note_scales(plan: &mut [TensorPlan], shards: &Shards) -> Result<()> {
    for tensor in plan {
        let scheme = tensor.scheme.as_mut();
        let Some((scales, name)) = scheme.and_then(|s| s.scales_mut(&tensor.name)) else {
            continue;
        };
        // The check has seen to it that scales are plain, so what remains is single precision.
        *scales = match shards.dtype(&name)? {
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::Bf16,
            _ => Dtype::F32,
        };
    }
    Ok(())
}

/// Rows of quantized weights, with their encoding and scales.
pub(crate) struct OwnedRows {
    pub(crate) format: QuantFormat,
    pub(crate) group: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) scales: Scales,
    pub(crate) inputs: Option<Vec<u32>>,
}

/// The scales and the offsets of some rows, or their tables.
pub(crate) struct Scales {
    pub(crate) scales: Vec<f32>,
    pub(crate) offsets: RowOffsets,
    /// Where they belong to super-blocks: the columns of a super-block, and the sub-scales of scales and offsets.
    pub(crate) sub_scales: Option<(usize, [Vec<i8>; 2])>,
}

/// The offsets of some rows, as in [`Offsets`].
pub(crate) enum RowOffsets {
    None,
    Own(Vec<f32>),
    ZeroPoint(u8),
    ZeroPoints(Vec<u8>),
}

impl RowOffsets {
    fn view(&self) -> Offsets<'_> {
        match self {
            Self::None => Offsets::None,
            Self::Own(offsets) => Offsets::Own(offsets),
            Self::ZeroPoint(zero) => Offsets::ZeroPoint(*zero),
            Self::ZeroPoints(zeros) => Offsets::ZeroPoints(zeros),
        }
    }
}

impl Scales {
    fn sub_scales(&self) -> Option<SubScales<'_>> {
        let (block, [scales, offsets]) = self.sub_scales.as_ref()?;
        Some(SubScales { block: *block, scales, offsets })
    }
}

impl OwnedRows {
    pub(crate) fn view(&self) -> QuantizedRows<'_> {
        QuantizedRows {
            format: self.format,
            group: self.group,
            bytes: &self.bytes,
            scales: &self.scales.scales,
            offsets: self.scales.offsets.view(),
            sub_scales: self.scales.sub_scales(),
            inputs: self.inputs.as_deref(),
        }
    }
}

/// Quantized weights that are unpacked at a time, a byte each: few enough that the allocator keeps the memory for the next ones.
const PIECE_WEIGHTS: usize = 8 << 20;
/// Values of a table.
const TABLE: usize = 16;
/// Rows that one task unpacks: a cache line has as many quantized weights where they are packed along the rows.
const TASK_ROWS: usize = 128;
/// Columns that a task unpacks of each of its rows, before the next columns.
const TASK_COLUMNS: usize = 64;

/// Rows of `k` columns that are unpacked at a time.
fn piece_rows(k: usize) -> usize {
    (PIECE_WEIGHTS / k).next_multiple_of(TASK_ROWS).max(TASK_ROWS)
}

fn each_piece<S: Stored>(
    matrix: &S,
    rows: Range<usize>,
    columns: Range<usize>,
    take: &mut dyn FnMut(usize, QuantizedRows<'_>) -> Result<()>,
) -> Result<()> {
    let k = columns.len();
    let piece_rows = piece_rows(k);
    for first in rows.clone().step_by(piece_rows) {
        let piece = first..rows.end.min(first + piece_rows);
        let scales = scales(matrix, piece.clone(), &columns);
        let rows = QuantizedRows {
            format: matrix.packed().format,
            group: matrix.packed().group.min(k),
            bytes: &unpacked(matrix, piece, columns.clone()),
            scales: &scales.scales,
            offsets: scales.offsets.view(),
            sub_scales: scales.sub_scales(),
            inputs: matrix.inputs(),
        };
        take(first, rows)?;
    }
    Ok(())
}

/// The scales and the offsets of the rows' groups that begin within the columns, or the rows' tables.
fn scales<S: Stored>(matrix: &S, rows: Range<usize>, columns: &Range<usize>) -> Scales {
    let packed = matrix.packed();
    // A table belongs to a row and not to a group, so a cut of the columns changes nothing.
    if packed.format == QuantFormat::Table {
        let scales = each_of(&rows, 0..TABLE, |row, entry| matrix.scale(row, entry));
        return Scales { scales, offsets: RowOffsets::None, sub_scales: None };
    }
    // Columns of a scale as stored, and as returned: a super-block that the columns cut is taken in parts.
    let stored = packed.scales.run(packed.group);
    let wanted = packed.scales.block_within(columns.len()).unwrap_or(packed.group);
    let parts = |width: usize| columns.start / width..columns.end.div_ceil(width);
    let (numbers, groups) = (parts(wanted), parts(packed.group));
    let at = |part: usize| part * wanted / stored;
    let scales = each_of(&rows, numbers.clone(), |row, part| matrix.scale(row, at(part)));
    let offsets = match packed.scales.offsets {
        OffsetForm::None => RowOffsets::None,
        OffsetForm::Own => {
            RowOffsets::Own(each_of(&rows, numbers, |row, part| matrix.min(row, at(part))))
        }
        OffsetForm::ZeroPoint(zero) => RowOffsets::ZeroPoint(zero),
        OffsetForm::ZeroPoints => {
            RowOffsets::ZeroPoints(each_of(&rows, groups.clone(), |row, group| {
                matrix.zero_point(row, group)
            }))
        }
    };
    let sub_scales = packed.scales.blocks.map(|_| {
        let both = each_of(&rows, groups, |row, group| matrix.sub_scales(row, group));
        let of = |which: usize| both.iter().map(|both| both[which]).collect();
        // Offsets have sub-scales only where there are offsets.
        (wanted, [of(0), if matches!(offsets, RowOffsets::Own(_)) { of(1) } else { Vec::new() }])
    });
    Scales { scales, offsets, sub_scales }
}

/// The value of `get` for each row and part, `[rows][parts]`.
fn each_of<T: Copy + Default + Send>(
    rows: &Range<usize>,
    parts: Range<usize>,
    get: impl Fn(usize, usize) -> T + Sync,
) -> Vec<T> {
    let mut all = vec![T::default(); rows.len() * parts.len()];
    // A matrix has columns, so there is at least one part and no chunk is empty.
    all.par_chunks_exact_mut(parts.len()).enumerate().for_each(|(i, of_row)| {
        for (part, value) in parts.clone().zip(of_row) {
            *value = get(rows.start + i, part);
        }
    });
    all
}

/// The entries of some columns, which are counted from 0: the beginning of each row, the columns, the values.
fn columns_of(rows: SparseRows<'_>, columns: &Range<usize>) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
    let (mut starts, mut inputs, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in rows.starts.windows(2) {
        // SqueezeLLM lists a row's inputs in any order, so each entry is looked at.
        for entry in row[0] as usize..row[1] as usize {
            let input = rows.inputs[entry] as usize;
            if columns.contains(&input) {
                inputs.push((input - columns.start) as u32);
                values.push(rows.values[entry]);
            }
        }
        starts.push(inputs.len() as u32);
    }
    (starts, inputs, values)
}

/// The quantized weights `[rows][columns]`, one in each byte, in the order of the columns.
fn unpacked<S: Stored>(matrix: &S, rows: Range<usize>, taken: Range<usize>) -> Vec<u8> {
    let k = taken.len();
    let mut quants = vec![0; rows.len() * k];
    let inputs = matrix.inputs();
    quants.par_chunks_mut(TASK_ROWS * k).enumerate().for_each(|(task, quants)| {
        let first_row = rows.start + task * TASK_ROWS;
        for first in (0..k).step_by(TASK_COLUMNS) {
            let columns = first..k.min(first + TASK_COLUMNS);
            for (i, quants) in quants.chunks_exact_mut(k).enumerate() {
                let (row, quants) = (first_row + i, &mut quants[columns.clone()]);
                let Some(inputs) = inputs else {
                    matrix.quants_from(row, taken.start + columns.start, quants);
                    continue;
                };
                for (input, quant) in inputs[columns.clone()].iter().zip(quants) {
                    *quant = matrix.quant(row, *input as usize);
                }
            }
        }
    });
    quants
}

/// The tensors that hold one matrix.
struct Tensors<'a> {
    shards: &'a Shards,
    /// Their names, in the order of the plan.
    names: Vec<String>,
    n: usize,
    k: usize,
    order: RowOrder,
}

impl<'a> Tensors<'a> {
    fn of(shards: &'a Shards, tensor: &TensorPlan) -> Result<Self> {
        let names = tensor.stored()?.into_iter().map(|stored| stored.name).collect();
        let order = tensor.row_order();
        Ok(Self { shards, names, n: tensor.shape[0], k: tensor.shape[1], order })
    }

    /// The name of the `index`-th tensor.
    fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// The `index`-th tensor, as 32-bit words.
    fn words(&self, index: usize) -> Result<Words> {
        Ok(Words(self.shards.whole(&self.names[index])?))
    }

    /// The `index`-th tensor, as finite values.
    fn values(&self, index: usize) -> Result<Vec<f32>> {
        let name = &self.names[index];
        let (dtype, bytes) = (self.shards.dtype(name)?, self.shards.whole(name)?);
        let numbers = values(candlepower_kernels::WeightRows { dtype, bytes: &bytes });
        match numbers.iter().all(|number| number.is_finite()) {
            true => Ok(numbers),
            false => Err(self.damaged(index, "it holds infinity or NaN")),
        }
    }

    fn damaged(&self, index: usize, reason: &'static str) -> Error {
        Error::DamagedTensor { name: self.names[index].clone(), reason }
    }
}

/// The groups of inputs that share scales.
struct GroupOrder {
    /// The inputs of the first group, of the second, and so on, where they do not lie in this order.
    inputs: Option<Vec<u32>>,
    /// `[k]`: the group of each input.
    groups: Vec<u32>,
}

impl GroupOrder {
    /// Reads the `index`-th tensor, if it is there. Otherwise inputs lie group by group.
    fn read(tensors: &Tensors<'_>, index: usize, packed: Packed) -> Result<Self> {
        let in_order: Vec<u32> =
            (0..tensors.k).map(|input| (input / packed.group) as u32).collect();
        let name = tensors.names.get(index).filter(|name| tensors.shards.contains(name));
        let groups = match name {
            Some(_) => {
                let words = tensors.words(index)?;
                (0..tensors.k).map(|input| words.get(input)).collect()
            }
            None => in_order.clone(),
        };
        let mut inputs: Vec<u32> = (0..tensors.k as u32).collect();
        // The sort is stable, so the inputs of one group keep their order.
        inputs.sort_by_key(|input| groups[*input as usize]);
        if inputs.iter().zip(&in_order).any(|(input, group)| groups[*input as usize] != *group) {
            let reason = "it does not assign inputs to groups of the size that config.json says";
            return Err(tensors.damaged(index, reason));
        }
        // A file may say act-order and list the trivial order, or the
        // other way round: both get the form that was planned.
        let reordered = packed.reordered || groups != in_order;
        Ok(Self { inputs: reordered.then_some(inputs), groups })
    }
}

/// Words of 32 bits, little-endian.
struct Words(MappedBytes);

impl Words {
    fn len(&self) -> usize {
        self.0.len() / 4
    }

    fn get(&self, index: usize) -> u32 {
        let bytes = &self.0[index * 4..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Every `stride`-th word from `index` on.
    fn every(&self, stride: usize, index: usize) -> impl Iterator<Item = u32> {
        let words = self.0[index * 4..].as_chunks().0.iter().step_by(stride);
        words.map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// The quantized weights of output `row` of `n` from an input on, where a word has those of neighbouring inputs, and the words of
    /// the outputs follow one another.
    fn fields_along(&self, n: usize, row: usize, input: usize, bits: usize, quants: &mut [u8]) {
        // Reads begin at a whole word, and the fields before the input are skipped below.
        let per_word = 32 / bits;
        let fields = self.every(n, input / per_word * n + row).flat_map(|word| {
            (0..per_word).map(move |i| (word >> (i * bits)) as u8 & (u8::MAX >> (8 - bits)))
        });
        for (quant, field) in quants.iter_mut().zip(fields.skip(input % per_word)) {
            *quant = field;
        }
    }

    /// Bits `shift..shift + bits` of a word; `bits` is at most 8.
    fn field(&self, index: usize, shift: usize, bits: usize) -> u8 {
        (self.get(index) >> shift & ((1 << bits) - 1)) as u8
    }
}
