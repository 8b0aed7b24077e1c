//! Recurrent states of sequences on a device, for layers with linear attention, an SSM or a short convolution.

use std::env;

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{Error, LinearAttentionDims, Result, StateConfig, StateDims};
use candlepower_layout::{
    linear_attention_chunk_values, linear_attention_chunks, linear_attention_row_values,
    linear_attention_rows,
};

/// Key lengths that the kernel is compiled for. A thread keeps an eighth of two columns of the state, of this number of
/// elements, in registers.
pub const RECURRENT_KEY_DIMS: &[usize] = &[32, 64, 128];

/// Maximum of `value_dim`: a warp norms a value, and a thread has two vectors of it.
const MAX_VALUE_DIM: usize = 256;

/// The states of all layers for `num_slots` sequences. They have the layout of [`candlepower_kernels::RecurrentState`],
/// except that convolution inputs have the dtype of activations. Clones share the memory.
#[derive(Clone, Debug)]
pub struct StatePool {
    pub(crate) config: StateConfig,
    pub(crate) layers: Vec<PoolLayer>,
    /// Memory for results between the kernels of a layer with linear attention, on a GPU.
    pub(crate) scratch: Option<Scratch>,
}

/// f32 values of some rows of a step: their convolved channels, and their gates.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    /// `[rows * (channels + 3 * value_heads)]`.
    pub(crate) values: Tensor,
    pub(crate) rows: usize,
    /// For the chunkwise form, `[chunks * values of a chunk]`; `None` if it is off.
    pub(crate) chunks: Option<Tensor>,
    /// Number of whole chunks of a sequence from which on the chunkwise form computes them.
    pub(crate) min_chunks: usize,
}

/// Variable of the environment that selects the form for prompts: `off` for the recurrent form alone, or the least number of whole
/// chunks of a sequence in a step that the chunkwise form computes.
const STATE_CHUNKS: &str = "CANDLEPOWER_STATE_CHUNKS";

/// Number of chunks without that variable. The kernels of the chunkwise form take as long as the recurrent form for about three chunks, by
/// the count of their instructions. Where tensor cores multiply `mma.sync` more slowly than on an A100 or H100, the prediction is
/// no gain.
const DEFAULT_MIN_CHUNKS: usize = if HAS_FAST_PRODUCTS { 4 } else { 0 };

#[cfg(feature = "cuda")]
const HAS_FAST_PRODUCTS: bool =
    matches!(env!("CANDLEPOWER_COMPUTE_CAPABILITY").as_bytes(), b"80" | b"90");
#[cfg(not(feature = "cuda"))]
const HAS_FAST_PRODUCTS: bool = false;

/// The number of chunks that `text` names, 0 for `off`.
fn min_chunks(text: Option<&str>) -> Result<usize> {
    match text {
        None | Some("") => Ok(DEFAULT_MIN_CHUNKS),
        Some("off") => Ok(0),
        Some(text) => {
            let chunks = text.parse().ok().filter(|chunks| (1..=1024).contains(chunks));
            chunks.ok_or_else(|| Error::Cuda {
                kernel: "state_pool",
                message: format!("{STATE_CHUNKS}={text}: write off, or a number from 1 to 1024"),
            })
        }
    }
}

/// The states of one layer.
#[derive(Clone, Debug)]
pub(crate) struct PoolLayer {
    /// `[num_slots, kernel - 1, channels]`: the convolution's inputs for the newest tokens, the oldest first.
    pub(crate) inputs: Tensor,
    /// f32 `[num_slots, value_heads, key_dim, value_dim]`.
    pub(crate) matrices: Option<Tensor>,
}

impl PoolLayer {
    /// The matrices of a linear attention or SSM layer.
    pub(crate) fn matrices(&self) -> &Tensor {
        self.matrices.as_ref().expect("linear attention has matrices")
    }
}

pub(crate) const INPUTS_AXES: &str = "[num_slots, kernel - 1, channels]";

pub(crate) const MATRICES_AXES: &str = "[num_slots, value_heads, key_dim, value_dim]";

impl StatePool {
    /// Creates states that are all zero, for activations of `dtype`: bf16 or f16 on a GPU, and f32 too on the CPU. Steps have up to
    /// `max_tokens` tokens; larger ones are computed, too, but in more parts than necessary.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple; `key_dim` is none of [`RECURRENT_KEY_DIMS`]; `value_dim` is
    /// above 256; the dtype is not supported; memory does not suffice; or `CANDLEPOWER_STATE_CHUNKS` is neither `off` nor
    /// a number.
    pub fn new(
        config: StateConfig,
        max_tokens: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        config.check()?;
        let mut scratch = None;
        if let StateDims::LinearAttention(dims) = config.dims {
            let LinearAttentionDims { key_dim, value_dim, .. } = dims;
            if !RECURRENT_KEY_DIMS.contains(&key_dim) {
                let (parameter, expected) = ("key_dim", "32, 64 or 128 on a GPU");
                return Err(Error::Parameter { parameter, value: key_dim, expected });
            }
            if value_dim > MAX_VALUE_DIM {
                let (parameter, expected) = ("value_dim", "at most 256 on a GPU");
                return Err(Error::Parameter { parameter, value: value_dim, expected });
            }
            if device.is_cuda() {
                let rows = linear_attention_rows(max_tokens);
                let values = linear_attention_row_values(dims.channels(), dims.value_heads);
                // The kernels count with 32 bits.
                if i32::try_from(rows * values).is_err() {
                    let (parameter, expected) = ("channels", "at most a million on a GPU");
                    return Err(Error::Parameter { parameter, value: dims.channels(), expected });
                }
                let values = Tensor::zeros(rows * values, DType::F32, device)?;
                let min_chunks = min_chunks(env::var(STATE_CHUNKS).ok().as_deref())?;
                let chunks = chunk_memory(&dims, rows, min_chunks, device)?;
                scratch = Some(Scratch { values, rows, chunks, min_chunks });
            }
        }
        // f32 is for the reference implementation alone, as in the paged cache.
        let definitions_only = dtype == DType::F32 && device.is_cpu();
        if !matches!(dtype, DType::BF16 | DType::F16) && !definitions_only {
            return Err(Error::DType {
                kernel: "state_pool",
                operand: "dtype",
                expected: "bf16 or f16",
                found: dtype,
            });
        }
        let layer = || -> Result<PoolLayer> {
            let (inputs, matrices) = config.zeros(dtype, device)?;
            Ok(PoolLayer { inputs, matrices })
        };
        let layers = (0..config.num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, layers, scratch })
    }

    /// On a GPU, computes whole chunks of sequences with at least `min_chunks` of them in a step in the chunkwise form, whatever the
    /// environment says. 0 is the recurrent form alone.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn with_min_chunks(mut self, min_chunks: usize) -> Result<Self> {
        if let (Some(scratch), StateDims::LinearAttention(dims)) =
            (&mut self.scratch, self.config.dims)
        {
            let device = scratch.values.device();
            scratch.chunks = chunk_memory(&dims, scratch.rows, min_chunks, device)?;
            scratch.min_chunks = min_chunks;
        }
        Ok(self)
    }

    /// The dimensions of the states.
    #[must_use]
    pub fn config(&self) -> &StateConfig {
        &self.config
    }

    /// The matrices of a layer, f32 `[num_slots, value_heads, key_dim, value_dim]`, if it has some.
    #[must_use]
    pub fn matrices(&self, layer: usize) -> Option<&Tensor> {
        self.layers.get(layer)?.matrices.as_ref()
    }

    pub(crate) fn layer(&self, kernel: &'static str, layer: usize) -> Result<&PoolLayer> {
        self.config.layer(kernel, &self.layers, layer)
    }
}

/// Memory of the chunkwise form for steps of up to `rows` rows at once, if there is a chunk to compute.
fn chunk_memory(
    dims: &LinearAttentionDims,
    rows: usize,
    min_chunks: usize,
    device: &Device,
) -> Result<Option<Tensor>> {
    let chunks = linear_attention_chunks(rows);
    if chunks == 0 || min_chunks == 0 {
        return Ok(None);
    }
    let of_chunk = linear_attention_chunk_values(dims.keys(), dims.value_heads);
    Ok(Some(Tensor::zeros(chunks * of_chunk, DType::F32, device)?))
}

/// The tokens of each sequence in a step, and the slots of their states, on the device.
#[derive(Clone, Copy, Debug)]
pub struct StateTables<'a> {
    /// u32 `[seqs + 1]`: sequence `i` has the tokens `query_start[i]..query_start[i + 1]`.
    pub query_start: &'a Tensor,
    /// u32 `[seqs]`: the slot of each sequence's state. All are different, except that [`NO_SLOT`](super::NO_SLOT) may
    /// repeat.
    pub slots: &'a Tensor,
    /// u32 `[tokens]`. If a sequence's first token here is at position 0, the sequence starts, and its slot's content
    /// is ignored.
    pub positions: &'a Tensor,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses_the_form_for_prompts() {
        let of = |text| min_chunks(Some(text));
        assert_eq!(min_chunks(None).unwrap(), DEFAULT_MIN_CHUNKS);
        assert_eq!((of("").unwrap(), of("off").unwrap()), (DEFAULT_MIN_CHUNKS, 0));
        assert_eq!((of("1").unwrap(), of("1024").unwrap()), (1, 1024));
        for text in ["0", "1025", "on", "-1", "4 "] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{STATE_CHUNKS}={text}: write off")), "{error}");
        }
    }
}
