//! A checkpoint's weights become a decoder.

use std::{borrow::Cow, ops::Range, rc::Rc, sync::Arc};

use candle_core::{DType, Device};
use candlepower_checkpoint::{
    Checkpoint, Choice, DEVICE_HEAD_DIMS, Dtype, MatrixForm, ModelSpec, Shard, StoredTensor, Take,
    TensorPlan,
};
use candlepower_comm::Comm;
use candlepower_gpu::Uploads;
use candlepower_kernels::{Weight, WeightRows};
use serde::{Deserialize, Serialize};

use crate::{
    collectives::DeviceRanks,
    decoder::Decoder,
    device_decoder::DeviceDecoder,
    dummy,
    error::{Error, Result},
    kv_scales::LayerKvScales,
    parts::{Layout, Matrix, Parts, PartsBuilder, Shape},
    quantized,
    rows::RowsBuilder,
    shards::Shards,
};

/// Options for loading a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The device of the model.
    pub device: Device,
    /// The dtype of the matrices that are not quantized.
    pub dtype: LoadDtype,
    /// The source of the weights.
    pub load_format: LoadFormat,
    /// The longest context, in tokens; the model's own where `None`.
    pub max_model_len: Option<usize>,
}

/// The dtype of the matrices. Norms and biases are always f32 on the CPU.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadDtype {
    /// The stored dtype.
    #[default]
    Auto,
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl From<Option<Dtype>> for LoadDtype {
    fn from(asked: Option<Dtype>) -> Self {
        match asked {
            None => Self::Auto,
            Some(Dtype::F32) => Self::F32,
            Some(Dtype::F16) => Self::F16,
            Some(Dtype::Bf16) => Self::Bf16,
        }
    }
}

/// The source of the weights.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// The checkpoint's weight files.
    #[default]
    Auto,
    /// No files: random values from a fixed seed, in the shapes of `config.json`.
    Dummy,
}

impl LoadFormat {
    /// The values of `--load-format`.
    pub const CHOICES: [Choice<Self>; 2] = [
        Choice::new(Self::Auto, "auto", "The model's files"),
        Choice::new(Self::Dummy, "dummy", "Random numbers"),
    ];
}

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights read.
    pub bytes_done: u64,
    /// Bytes of weights to read.
    pub bytes_total: u64,
}

/// Loads a checkpoint's weights.
///
/// Every tensor that the architecture needs must be there in its shape, and every tensor that is
/// there must be explained; both are checked before the first byte of weights is read.
///
/// # Errors
/// Missing, unknown or misshapen tensors, a quantization that is not supported, damaged or missing files, a context beyond the
/// model's, or memory that cannot be had: each in one line that names it.
pub fn load(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Decoder> {
    load_shard(checkpoint, options, Arc::new(Comm::solo()), progress)
}

/// Loads the shard of a checkpoint's weights for the rank of `comm`. Only the rank's rows and columns of each matrix are read.
///
/// # Errors
/// The same as those of [`load`]; or the layers cannot be split over so many ranks.
pub fn load_shard(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    comm: Arc<Comm>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Decoder> {
    let shard = Shard { rank: comm.rank(), ranks: comm.size() };
    checkpoint.spec().check_tensor_parallel(shard.ranks)?;
    let spec = &checkpoint.spec().shard(shard.ranks);
    let max_model_len = spec.max_model_len(options.max_model_len)?;
    if !options.device.is_cpu() {
        return Err(Error::UnsupportedDevice { device: options.device.location() });
    }
    let source = Source::open(checkpoint, options)?;
    let dtype = |tensor: &TensorPlan| match (options.dtype.chosen(), &source) {
        (Some(dtype), _) => Ok(dtype),
        // Quantized tensors that are not kept quantized are widened to f32.
        (None, _) if is_quantized(tensor) => Ok(DType::F32),
        (None, Source::Files(shards)) => shards.dtype(&tensor.name),
        (None, Source::Random(dtype)) => Ok(*dtype),
    };
    let plan = source.plan(checkpoint, shard)?;
    let rounds_activations = matches!(options.dtype.chosen(), None | Some(DType::BF16));
    let reserve = |shape: Shape| {
        let Shape { rows, columns, .. } = shape;
        Ok(match shape.form {
            MatrixForm::Plain => Weight::builder(rows, columns, shape.dtype)?,
            MatrixForm::Widened => Weight::builder(rows, columns, DType::F32)?,
            MatrixForm::Quantized(packed) => {
                let builder =
                    quantized::builder(rows, columns, packed)?.with_activations(packed.activations);
                if rounds_activations { builder.with_rounded_activations() } else { builder }
            }
        })
    };
    let parts = PartsBuilder::new(spec, &plan, Layout::cpu(), dtype, reserve)?;
    let parts = source.fill(spec, plan, parts, &mut |done| {
        progress(done);
        // Stops where another rank has failed to load.
        Ok(comm.look_around()?)
    })?;
    let kv_scales = source.kv_scales(spec.num_stored_layers())?;
    Decoder::new(spec.clone(), parts, kv_scales, max_model_len, comm)
}

/// Loads a checkpoint's weights to a device, where all weights that are not quantized have one dtype. It is bfloat16 or float16, as stored
/// or as the options say, and bfloat16 where float32 is stored. On the CPU, where the reference implementations of the device's
/// kernels compute, it may be float32.
///
/// # Errors
/// The same as those of [`load`]; or the device's kernels lack a feature of the model.
pub fn load_on_device(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<DeviceDecoder> {
    load_device_part(checkpoint, options, None, progress)
}

/// Loads the shard of the weights for the rank of `comm` to a device, like [`load_on_device`]. GPUs join by NCCL, even where there is
/// only one rank.
///
/// # Errors
/// The same as those of [`load_on_device`]; or the layers cannot be split over so many ranks, or NCCL is missing.
pub fn load_shard_on_device(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    comm: Arc<Comm>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<DeviceDecoder> {
    load_device_part(checkpoint, options, Some(comm), progress)
}

fn load_device_part(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    comm: Option<Arc<Comm>>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<DeviceDecoder> {
    let of_rank = |comm: &Arc<Comm>| Shard { rank: comm.rank(), ranks: comm.size() };
    let shard = comm.as_ref().map_or(Shard::WHOLE, of_rank);
    checkpoint.spec().check_tensor_parallel(shard.ranks)?;
    let spec = &checkpoint.spec().shard(shard.ranks);
    let max_model_len = spec.max_model_len(options.max_model_len)?;
    if options.dtype == LoadDtype::F32 && !options.device.is_cpu() {
        return Err(Error::DeviceDtype);
    }
    let dtype = options.dtype.chosen().unwrap_or(match checkpoint.device_dtype(None) {
        Dtype::F16 => DType::F16,
        Dtype::Bf16 | Dtype::F32 => DType::BF16,
    });
    let device = &options.device;
    let layout = Layout {
        device: device.clone(),
        vectors: dtype,
        head_dims: &DEVICE_HEAD_DIMS,
        adds_one: false,
    };
    let source = Source::open(checkpoint, options)?;
    let ranks = comm.map(|comm| DeviceRanks::join(comm, device)).transpose()?;
    let plan = source.plan(checkpoint, shard)?;
    let uploads = Rc::new(Uploads::new(device)?);
    let reserve = |shape: Shape| Ok(RowsBuilder::new(shape, device, uploads.clone()));
    let parts = PartsBuilder::new(spec, &plan, layout, |_| Ok(dtype), reserve)?;
    let parts = source.fill(spec, plan, parts, &mut |done| {
        progress(done);
        ranks.as_ref().map_or(Ok(()), |ranks| Ok(ranks.comm().look_around()?))
    })?;
    let kv_scales = source.kv_scales(spec.num_stored_layers())?;
    DeviceDecoder::new(spec.clone(), parts, kv_scales, max_model_len, ranks)
}

/// Whether a tensor is kept quantized.
fn is_quantized(tensor: &TensorPlan) -> bool {
    tensor.scheme.is_some() || tensor.on_load.is_some()
}

/// A callback for the progress of loading, which may end it by an error.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(LoadProgress) -> Result<()>;

/// The source of the values.
enum Source {
    /// The checkpoint's files, whose tensors are those of the plan.
    Files(Shards),
    /// No files: random values of a dtype.
    Random(DType),
}

impl Source {
    fn open(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self> {
        if options.load_format == LoadFormat::Dummy {
            let stored = match checkpoint.dtype() {
                Some(Dtype::F16) => DType::F16,
                Some(Dtype::Bf16) => DType::BF16,
                Some(Dtype::F32) | None => DType::F32,
            };
            return Ok(Self::Random(options.dtype.chosen().unwrap_or(stored)));
        }
        if let Some(quantization) = checkpoint.quantization()
            && quantization.scheme.is_none()
        {
            return Err(Error::Quantized { method: quantization.method.clone() });
        }
        let shards = Shards::open(checkpoint)?;
        shards.check(checkpoint, &shards.plan(checkpoint))?;
        Ok(Self::Files(shards))
    }

    /// The tensors of a rank, with the dtypes of scales, which only the files know.
    fn plan(&self, checkpoint: &Checkpoint, shard: Shard) -> Result<Vec<TensorPlan>> {
        let Self::Files(shards) = self else {
            return Ok(checkpoint.shard_plan(shard, checkpoint.tensor_plan()));
        };
        let mut plan = checkpoint.shard_plan(shard, shards.plan(checkpoint));
        quantized::note_scales(&mut plan, shards)?;
        Ok(plan)
    }

    /// The scales of keys and values of `num_layers` layers.
    fn kv_scales(&self, num_layers: usize) -> Result<LayerKvScales> {
        match self {
            Self::Files(shards) => LayerKvScales::read(shards, num_layers),
            Self::Random(_) => Ok(LayerKvScales::none(num_layers)),
        }
    }

    fn fill<M: Matrix>(
        &self,
        spec: &ModelSpec,
        plan: Vec<TensorPlan>,
        mut parts: PartsBuilder<'_, M>,
        progress: Progress<'_>,
    ) -> Result<Parts<M>> {
        match self {
            Self::Files(shards) => read_weights(shards, plan, &mut parts, progress)?,
            Self::Random(dtype) => dummy::fill(spec, &plan, *dtype, &mut parts, progress)?,
        }
        parts.finish()
    }
}

impl LoadDtype {
    /// The dtype that the options ask for; `None` where the matrices keep their own.
    pub fn chosen(self) -> Option<DType> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
        }
    }
}

/// Most bytes of a weight file that are mapped at a time.
const PIECE_BYTES: usize = 64 << 20;

/// Copies every planned tensor into its parts, from the beginning of the files to their end. The first tensor of a quantized matrix
/// determines its turn.
fn read_weights<M: Matrix>(
    shards: &Shards,
    plan: Vec<TensorPlan>,
    parts: &mut PartsBuilder<'_, M>,
    progress: Progress<'_>,
) -> Result<()> {
    let mut stored = Vec::new();
    for tensor in plan {
        stored.push((tensor.stored()?, tensor));
    }
    stored.sort_by_key(|(stored, _)| shards.position(&stored[0].name));
    let num_bytes = |stored: &[StoredTensor], tensor: &TensorPlan| -> u64 {
        let bytes: u64 = stored.iter().map(|tensor| shards.num_bytes(&tensor.name) as u64).sum();
        (u128::from(bytes) * taken(tensor) as u128 / tensor.shape.iter().product::<usize>() as u128)
            as u64
    };
    let bytes_total = stored.iter().map(|(stored, tensor)| num_bytes(stored, tensor)).sum();
    let mut done = LoadProgress { bytes_done: 0, bytes_total };
    progress(done)?;
    for (stored, tensor) in &stored {
        let end = done.bytes_done + num_bytes(stored, tensor);
        match &tensor.scheme {
            Some(scheme) => quantized::read(shards, tensor, *scheme, parts)?,
            None => read_plain(shards, tensor, parts, &mut |bytes| {
                done.bytes_done += bytes;
                progress(done)
            })?,
        }
        if done.bytes_done != end {
            done.bytes_done = end;
            progress(done)?;
        }
    }
    Ok(())
}

/// Number of a tensor's values that are loaded.
pub(crate) fn taken(tensor: &TensorPlan) -> usize {
    let rows: usize = tensor.slots.iter().map(|slot| slot.rows.len()).sum();
    rows * tensor.columns().map_or(1, |columns| columns.len())
}

/// Copies an unquantized tensor, and reports the number of copied bytes after each piece.
fn read_plain<M: Matrix>(
    shards: &Shards,
    tensor: &TensorPlan,
    parts: &mut PartsBuilder<'_, M>,
    copied: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let dtype = shards.dtype(&tensor.name)?;
    let size = dtype.size_in_bytes();
    let row_bytes = tensor.shape.get(1).copied().unwrap_or(1) * size;
    let piece_rows = (PIECE_BYTES / row_bytes).max(1);
    for slot in &tensor.slots {
        for first in slot.rows.clone().step_by(piece_rows) {
            let rows = piece_rows.min(slot.rows.end - first);
            let (gathered, mapped);
            let whole: &[u8] = match (tensor.take, tensor.shape.as_slice()) {
                (Take::Transposed | Take::Experts { .. }, _) => {
                    gathered = transposed_rows(shards, tensor, size, first..first + rows)?;
                    &gathered
                }
                _ => {
                    mapped = shards.bytes(&tensor.name, first * row_bytes, rows * row_bytes)?;
                    &mapped
                }
            };
            let first = first - slot.rows.start;
            if let Some((recoded, columns)) = tensor.on_load.zip(tensor.columns()) {
                let rows = WeightRows { dtype, bytes: whole };
                let (k, width) = (columns.len(), tensor.shape[1]);
                let coded = quantized::quantized(recoded, &tensor.name, width, rows, columns)?;
                parts.write_quantized(slot, first, k, coded.view())?;
                copied((rows.bytes.len() / width * k) as u64)?;
                continue;
            }
            let bytes = match &tensor.columns {
                None => Cow::Borrowed(whole),
                Some(columns) => {
                    let columns = columns.start * size..columns.end * size;
                    let mut taken = Vec::with_capacity(rows * columns.len());
                    for row in whole.chunks_exact(row_bytes) {
                        taken.extend_from_slice(&row[columns.clone()]);
                    }
                    Cow::Owned(taken)
                }
            };
            parts.write(slot, first, WeightRows { dtype, bytes: &bytes })?;
            copied(bytes.len() as u64)?;
        }
    }
    Ok(())
}

/// The rows `rows` of one slot, of values of `size` bytes, gathered from a transposed matrix, which has a row for each of our
/// columns. A tensor of all experts stores each expert's matrix like this.
fn transposed_rows(
    shards: &Shards,
    tensor: &TensorPlan,
    size: usize,
    rows: Range<usize>,
) -> Result<Vec<u8>> {
    let (n, k) = (tensor.shape[0], tensor.shape.get(1).copied().unwrap_or(1));
    let (stored_columns, order) = (n / tensor.experts(), tensor.row_order());
    let stored_bytes = stored_columns * size;
    let first_byte = rows.start / stored_columns * k * stored_bytes;
    let offsets: Vec<usize> =
        rows.clone().map(|row| order.stored(row) % stored_columns * size).collect();
    let mut gathered = vec![0; rows.len() * k * size];
    let piece_columns = (PIECE_BYTES / stored_bytes).max(1);
    for first in (0..k).step_by(piece_columns) {
        let count = piece_columns.min(k - first);
        let start = first_byte + first * stored_bytes;
        let bytes = shards.bytes(&tensor.name, start, count * stored_bytes)?;
        for (column, stored) in (first..).zip(bytes.chunks_exact(stored_bytes)) {
            for (row, offset) in offsets.iter().enumerate() {
                let value = &stored[*offset..offset + size];
                gathered[(row * k + column) * size..][..size].copy_from_slice(value);
            }
        }
    }
    Ok(gathered)
}
