//! Memory plan: the memory that a model needs, and the context that fits, before and after loading.

pub use device::DeviceWidths;

use candlepower_layout::Dtype;
use serde::{Deserialize, Serialize};

use crate::{
    bytes::Bytes,
    choice::Choice,
    error::{Error, Result},
    spec::ModelSpec,
};

mod device;
mod sizes;
#[cfg(test)]
mod tests;

/// The part of a GPU's free memory that is taken where nobody says.
pub const GPU_MEMORY_UTILIZATION: f64 = 0.9;

/// Bytes of resized images, and of the embeddings of images, where nobody says.
const IMAGE_BYTES: u64 = 256 << 20;

/// Tokens of a step where nobody says: on the CPU, and on a GPU without room for more.
pub const BATCHED_TOKENS: usize = 512;
/// The same on a GPU, the first that its memory has room for: the more, the longer the matrices' products.
const GPU_BATCHED_TOKENS: [usize; 4] = [8192, 4096, 2048, 1024];
/// Fewest tokens of a step that an error proposes. A prompt takes one pass over the weights for each step.
const LEAST_PROPOSED_TOKENS: usize = 64;
/// Divisor of the memory that the weights leave free: a step of that many tokens may use one such part.
const STEP_SHARE: u64 = 4;

/// Input of a [`MemoryPlan`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryRequest {
    /// In which the matrices are kept.
    pub weights: Dtype,
    /// In which keys and values are kept.
    pub kv: KvDtype,
    /// Longest sequence, in tokens.
    pub max_model_len: usize,
    /// Tokens in one KV block.
    pub block_size: usize,
    /// Most concurrent sequences, if their states leave room for so many.
    pub max_num_seqs: usize,
    /// Most tokens in one step; `None` takes the default of the device, see [`MemoryPlan::max_num_batched_tokens`].
    pub max_num_batched_tokens: Option<usize>,
    /// Bytes of the KV cache of one rank, where the user set them.
    pub kv_cache_bytes: Option<u64>,
    /// Ranks over which each layer is split; [`ModelSpec::check_tensor_parallel`] lists the possible counts.
    pub tensor_parallel_size: usize,
    /// Memory for images, which counts where the model takes any.
    pub images: ImageMemory,
    /// Memory that one rank may use.
    pub memory: DeviceMemory,
}

/// Memory for images beside that of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageMemory {
    /// Bytes of resized images that wait for the model. All ranks share them.
    pub waiting_bytes: u64,
    /// Bytes of computed embeddings, on each rank. An image has at most so many.
    pub encoder_cache_bytes: u64,
}

impl Default for ImageMemory {
    /// The sizes where nobody says.
    fn default() -> Self {
        Self { waiting_bytes: IMAGE_BYTES, encoder_cache_bytes: IMAGE_BYTES }
    }
}

/// Stored form of keys and values.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// Values of a dtype of the model.
    Plain(Dtype),
    /// A byte each (e4m3).
    Fp8,
}

impl KvDtype {
    /// The values of `--kv-cache-dtype`; `None` takes what suits the weights and the device.
    pub const CHOICES: [Choice<Option<Self>>; 4] = [
        Choice::new(
            None,
            "auto",
            "The weights', but on the CPU float32 where they are not bfloat16",
        ),
        Choice::new(
            Some(Self::Plain(Dtype::F32)),
            Dtype::F32.as_str(),
            "Single precision; on a GPU not possible",
        ),
        Choice::new(
            Some(Self::Plain(Dtype::Bf16)),
            Dtype::Bf16.as_str(),
            "bfloat16; on a GPU only where the weights are",
        ),
        Choice::new(
            Some(Self::Fp8),
            Self::Fp8.as_str(),
            "e4m3, a byte per number, by the scales that a checkpoint brings",
        )
        .or(&["fp8_e4m3"]),
    ];

    fn size(self) -> usize {
        match self {
            Self::Plain(dtype) => dtype.size(),
            Self::Fp8 => 1,
        }
    }

    /// Its name, as users give it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain(dtype) => dtype.as_str(),
            Self::Fp8 => "fp8",
        }
    }
}

impl From<Dtype> for KvDtype {
    fn from(dtype: Dtype) -> Self {
        Self::Plain(dtype)
    }
}

/// The memory of the device on which one rank computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceMemory {
    /// Kind of the device.
    pub device: DeviceKind,
    /// Free bytes; `None` where nobody knows.
    pub available_bytes: Option<u64>,
    /// Time of this count.
    pub counted: Counted,
}

impl DeviceKind {
    /// The rule of [`Checkpoint::kv_dtype`](crate::Checkpoint::kv_dtype), if the CPU rounds activations to `computed` when that is bfloat16.
    pub(crate) fn kv_dtype(self, asked: Option<KvDtype>, computed: Dtype) -> Result<KvDtype> {
        let plain = match self {
            Self::Cpu if computed != Dtype::Bf16 => Dtype::F32,
            _ => computed,
        };
        let (possible, device, others) = match self {
            Self::Cpu => (asked != Some(Dtype::F16.into()), "the CPU", "float32, bfloat16"),
            Self::Gpu { .. } => {
                let possible = asked.is_none_or(|kv| kv == KvDtype::Fp8 || kv == plain.into());
                (possible, "a GPU", plain.as_str())
            }
        };
        match asked {
            Some(asked) if !possible => {
                Err(Error::KvDtype { asked: asked.as_str(), device, others })
            }
            asked => Ok(asked.unwrap_or(plain.into())),
        }
    }
}

impl DeviceMemory {
    /// Bytes that the weights leave free.
    fn left_bytes(&self, weights_bytes: u64) -> Option<u64> {
        let to_load = match self.counted {
            Counted::BeforeLoading => weights_bytes,
            Counted::AfterLoading => 0,
        };
        self.available_bytes.map(|bytes| bytes.saturating_sub(to_load))
    }
}

/// Device that a rank computes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceKind {
    /// On the CPU, beside other programs.
    Cpu,
    /// On a GPU of its own.
    Gpu {
        /// The part of the free memory that it may take, above 0 and at most 1.
        utilization: f64,
    },
}

/// Time when free bytes were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Before the weights were loaded: they are yet to be subtracted.
    BeforeLoading,
    /// With the weights in memory. A loaded model is not refused for an estimate any more: only the cache counts.
    AfterLoading,
}

/// Memory of one rank of a model, and whether it fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryPlan {
    /// The input of this plan.
    pub request: MemoryRequest,
    /// Most tokens in one step: the setting, or [`BATCHED_TOKENS`], or on a GPU up to 8192. These larger steps must take at most a
    /// quarter of the memory that the weights leave free, and the model must still fit.
    pub max_num_batched_tokens: usize,
    /// Most concurrent sequences: the setting, or three quarters of the states that there is room for.
    pub max_num_seqs: usize,
    /// States: one for each of these sequences, and up to three times as many of beginnings that were computed; 0 where layers keep keys
    /// and values alone.
    pub num_states: usize,
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// Bytes of the states, whatever the length of the sequences.
    pub state_bytes: u64,
    /// Bytes of keys and values for one token.
    pub kv_bytes_per_token: u64,
    /// Bytes that a step needs for its intermediate results, and the rope tables: an estimate from above.
    pub activation_bytes: u64,
    /// Bytes for waiting images and for the embeddings of images; 0 where the model takes none.
    pub image_bytes: u64,
    /// Blocks of the KV cache.
    pub num_blocks: usize,
    /// Bytes of the KV cache.
    pub kv_cache_bytes: u64,
    /// Bytes of the blocks that one sequence of `max_model_len` fills.
    pub sequence_bytes: u64,
    /// Bytes of weights, activations, images, states, and one sequence of `max_model_len`.
    pub needed_bytes: u64,
    /// Whether the server would start so.
    pub fits: bool,
}

impl MemoryPlan {
    /// Divides the memory.
    ///
    /// On the CPU, cache and states may use a quarter of the memory that the weights leave free. On a GPU they may use the rest of
    /// its part beside weights and activations. Recurrent states get at most half of that. The cache gets the size that was asked
    /// for, or else the rest, but never more than `max_num_seqs` sequences of `max_model_len` fill. If free memory is not known, it
    /// gets one such sequence.
    pub fn new(spec: &ModelSpec, request: MemoryRequest) -> Self {
        let of = |tokens| Self::of_steps(spec, request, tokens);
        match (request.max_num_batched_tokens, request.memory.device) {
            (Some(asked), _) => of(asked),
            (None, DeviceKind::Cpu) => of(BATCHED_TOKENS),
            (None, DeviceKind::Gpu { .. }) => {
                let plans = GPU_BATCHED_TOKENS.map(of).into_iter();
                let roomy = |plan: &Self| plan.fits && plan.steps_are_small();
                plans.into_iter().find(roomy).unwrap_or_else(|| of(BATCHED_TOKENS))
            }
        }
    }

    /// Whether steps leave most of what is free to the cache.
    fn steps_are_small(&self) -> bool {
        let left = self.request.memory.left_bytes(self.weights_bytes);
        left.is_none_or(|left| self.activation_bytes <= left / STEP_SHARE)
    }

    /// Divides the memory for steps of up to so many tokens.
    fn of_steps(spec: &ModelSpec, request: MemoryRequest, tokens: usize) -> Self {
        let ranks = request.tensor_parallel_size;
        // The tower computes before the decoder, whose buffers may be there still.
        let tower = spec.tower_memory(&request);
        let (weights_bytes, kv_bytes_per_token, activation_bytes) = match request.memory.device {
            DeviceKind::Cpu => (
                spec.rank_weight_bytes(request.weights, ranks) + tower.weights_bytes,
                spec.rank_kv_bytes_per_token(request.kv, ranks),
                sum([spec.activation_bytes(&request, tokens), tower.activation_bytes]),
            ),
            DeviceKind::Gpu { .. } => (
                spec.device_weight_bytes(request.weights, ranks),
                spec.device_kv_bytes_per_token(request.kv, ranks),
                spec.device_activation_bytes(&request, tokens),
            ),
        };
        let beside = sum([activation_bytes, tower.image_bytes]);
        let block_bytes = kv_bytes_per_token.saturating_mul(request.block_size as u64);
        let per_sequence = request.max_model_len.div_ceil(request.block_size) as u64;
        let sequence_bytes = per_sequence.saturating_mul(block_bytes);
        let left = request.memory.left_bytes(weights_bytes);
        let kept = left.map(|left| match request.memory.device {
            DeviceKind::Cpu => (left / 4).min(left.saturating_sub(beside)),
            DeviceKind::Gpu { utilization } => {
                let free = left + weights_bytes;
                let unused = (free as f64 * (1.0 - utilization)) as u64;
                left.saturating_sub(unused).saturating_sub(activation_bytes)
            }
        });
        let inputs = match request.memory.device {
            DeviceKind::Cpu => Dtype::F32,
            DeviceKind::Gpu { .. } => request.weights,
        };
        let of_sequence = spec.state_bytes(inputs, ranks);
        // One sequence comes first, or the cache that was asked for.
        let cache = request.kv_cache_bytes.unwrap_or(0).max(sequence_bytes);
        let for_states = kept.map(|kept| (kept / 2).min(kept.saturating_sub(cache)));
        let affordable = for_states.and_then(|bytes| bytes.checked_div(of_sequence));
        let (max_num_seqs, num_states) = match affordable.map(|states| states.max(1) as usize) {
            Some(states) => {
                let max_num_seqs = request.max_num_seqs.min(states.div_ceil(4) * 3).min(states);
                (max_num_seqs, states.min(4 * max_num_seqs))
            }
            None => {
                let has_states = of_sequence > 0;
                (request.max_num_seqs, if has_states { request.max_num_seqs } else { 0 })
            }
        };
        let state_bytes = of_sequence.saturating_mul(num_states as u64);
        let needed_bytes = sum([weights_bytes, beside, state_bytes, sequence_bytes]);
        let budget = match (request.kv_cache_bytes, kept) {
            (Some(asked), _) => asked,
            (None, None) => sequence_bytes,
            (None, Some(kept)) => kept.saturating_sub(state_bytes),
        };
        let affordable = budget / block_bytes;
        let useful = match request.kv_cache_bytes {
            Some(_) => affordable,
            None => affordable.min(per_sequence.saturating_mul(max_num_seqs as u64)),
        };
        // Block ids are u32 and slots (block * block_size + offset) too.
        let num_blocks = useful.min(u64::from(u32::MAX) / request.block_size as u64);
        let kv_cache_bytes = num_blocks * block_bytes;
        let overflows = request.memory.counted == Counted::BeforeLoading
            && left.is_some_and(|left| sum([beside, state_bytes, kv_cache_bytes]) > left);
        Self {
            request,
            max_num_batched_tokens: tokens,
            max_num_seqs,
            num_states,
            weights_bytes,
            state_bytes,
            kv_bytes_per_token,
            activation_bytes,
            image_bytes: tower.image_bytes,
            num_blocks: num_blocks as usize,
            kv_cache_bytes,
            sequence_bytes,
            needed_bytes,
            fits: num_blocks >= per_sequence && !overflows,
        }
    }

    /// Number of sequences of `max_model_len` that the cache has room for.
    pub fn num_sequences(&self) -> usize {
        self.num_blocks / self.request.max_model_len.div_ceil(self.request.block_size)
    }

    /// The longest context with which the server would start, at most the longest that the model allows, in tokens; 0
    /// where none would.
    pub fn max_model_len_that_fits(&self, spec: &ModelSpec) -> usize {
        longest_that_fits(spec.max_positions, |len| self.with(spec, |r| r.max_model_len = len).fits)
    }

    /// The most tokens in one step with which the server would start, below those of this plan; 0 where none would, or so few
    /// that prompts would take too long.
    fn step_tokens_that_fit(&self, spec: &ModelSpec) -> usize {
        let fits = |tokens| self.with(spec, |r| r.max_num_batched_tokens = Some(tokens)).fits;
        match longest_that_fits(self.max_num_batched_tokens.saturating_sub(1), fits) {
            tokens if tokens < LEAST_PROPOSED_TOKENS => 0,
            tokens => tokens,
        }
    }

    /// Refuses what does not fit.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::KvCacheTooSmall`], with what would fit.
    pub fn check(&self, spec: &ModelSpec) -> Result<()> {
        if self.fits {
            return Ok(());
        }
        let available = self.request.memory.available_bytes;
        let before = self.request.memory.counted == Counted::BeforeLoading;
        let wanted = self.wanted_bytes();
        match available.filter(|free| before && wanted > *free) {
            Some(free) => Err(Error::OutOfMemory {
                needed: wanted,
                free,
                max_model_len: self.max_model_len_that_fits(spec),
                parts: self.parts(),
                ways_out: self.ways_out(spec, free),
            }),
            None => Err(Error::KvCacheTooSmall {
                max_model_len: self.request.max_model_len,
                needed: self.sequence_bytes,
                available: self.request.kv_cache_bytes.unwrap_or(self.kv_cache_bytes),
                fits: self.max_model_len_that_fits(spec),
            }),
        }
    }

    /// The plan for a request that differs.
    fn with(&self, spec: &ModelSpec, change: impl FnOnce(&mut MemoryRequest)) -> Self {
        let mut request = self.request;
        change(&mut request);
        Self::new(spec, request)
    }

    /// Bytes of all with the cache that must be.
    fn wanted_bytes(&self) -> u64 {
        sum([self.beside_bytes(), self.must_cache_bytes()])
    }

    /// Bytes of weights, activations, images and states.
    fn beside_bytes(&self) -> u64 {
        sum([self.weights_bytes, self.activation_bytes, self.image_bytes, self.state_bytes])
    }

    /// Bytes of the cache that must be: the one that was asked for, or one sequence.
    fn must_cache_bytes(&self) -> u64 {
        self.request.kv_cache_bytes.unwrap_or(0).max(self.sequence_bytes)
    }

    /// The parts that need memory, in words.
    fn parts(&self) -> String {
        let optional = |name: &str, bytes| match bytes {
            0 => String::new(),
            bytes => format!("{name} {}, ", Bytes(bytes)),
        };
        format!(
            "weights {}, keys and values {}, {}{}activations {}",
            Bytes(self.weights_bytes),
            Bytes(self.must_cache_bytes()),
            optional("states", self.state_bytes),
            optional("images", self.image_bytes),
            Bytes(self.activation_bytes)
        )
    }

    /// Other settings that would fit, in words.
    fn ways_out(&self, spec: &ModelSpec, free: u64) -> String {
        let mut ways = Vec::new();
        let for_cache = free.saturating_sub(self.beside_bytes());
        if self.request.kv_cache_bytes.is_some_and(|asked| asked > for_cache)
            && for_cache >= self.sequence_bytes
        {
            ways.push(format!("lower --kv-cache-memory to {for_cache}"));
        }
        if self.state_bytes > 0 && self.with(spec, |r| r.max_num_seqs = 1).fits {
            ways.push("lower --max-num-seqs, for fewer states".to_owned());
        }
        match self.max_model_len_that_fits(spec) {
            0 => {}
            len => ways.push(format!("lower --max-model-len to {len}")),
        }
        match self.step_tokens_that_fit(spec) {
            0 => {}
            tokens => ways.push(format!("lower --max-num-batched-tokens to {tokens}")),
        }
        if self.request.kv != KvDtype::Fp8 && self.with(spec, |r| r.kv = KvDtype::Fp8).fits {
            ways.push("keep keys and values in 8 bits with --kv-cache-dtype fp8".to_owned());
        }
        if self.request.weights == Dtype::F32 && self.with(spec, |r| r.weights = Dtype::Bf16).fits {
            ways.push("keep the weights in 16 bits with --dtype bfloat16".to_owned());
        }
        if self.image_bytes > 0 {
            let texts = ModelSpec { vision: None, ..spec.clone() };
            if Self::new(&texts, self.request).fits {
                ways.push("serve texts alone with --language-model-only".to_owned());
            }
        }
        if let Some(ranks) = self.ranks_that_fit(spec) {
            ways.push(format!("take {ranks} such GPUs with --tensor-parallel-size {ranks}"));
        }
        match ways.is_empty() {
            true => "take a smaller or a quantized model, or more memory".to_owned(),
            false => ways.join(", or "),
        }
    }

    /// The fewest GPUs of this size that would do, where it takes more than were asked for.
    pub fn ranks_that_fit(&self, spec: &ModelSpec) -> Option<usize> {
        if self.request.memory.device == DeviceKind::Cpu {
            return None;
        }
        let more = spec
            .tensor_parallel_sizes()
            .into_iter()
            .filter(|ranks| *ranks > self.request.tensor_parallel_size);
        more.into_iter().find(|ranks| self.with(spec, |r| r.tensor_parallel_size = *ranks).fits)
    }
}

/// The longest length up to `most` that fits, where every shorter one fits, too; 0 where none does.
pub(crate) fn longest_that_fits(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut longest, mut too_long) = (0, most + 1);
    while too_long - longest > 1 {
        let middle = longest + (too_long - longest) / 2;
        if fits(middle) { longest = middle } else { too_long = middle }
    }
    longest
}

/// The sum of sizes that settings may make as large as they like. Nothing that large fits, so it may stop there.
fn sum(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}
