//! Sampling of one token per row of logits on the device, each row by its own parameters.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::Result;
#[cfg(feature = "cuda")]
use candlepower_layout::{device_samples_at_once, device_sampling_bytes};

/// Maximum number of log-probabilities that a sample reports besides its own token's.
pub const MAX_LOGPROBS: usize = 32;

/// Number of words in which a sample reports its own token: see [`SamplingOutput::report`].
pub const REPORT_HEAD: usize = 3;

/// Marks a missing row, slot or token in tables and results.
pub(crate) const NONE: u32 = u32::MAX;

/// Parameters of one sample: the device's form of [`candlepower_kernels::sampling::SamplingRow`]. It is a row of
/// [`SamplerRow::WORDS`] words in a table on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerRow {
    /// The row of logits. `None` marks padding of a CUDA graph, for which no token is sampled.
    pub logits_row: Option<u32>,
    /// 0 means greedy: the most likely token, and among equals the lowest id.
    pub temperature: f32,
    /// Keep the k most likely tokens.
    pub top_k: Option<u32>,
    /// Keep the most likely tokens whose probabilities sum to at least this.
    pub top_p: f32,
    /// Keep tokens whose probability is at least this fraction of the most likely token's.
    pub min_p: f32,
    /// Divides positive logits and multiplies negative ones, for tokens of the prompt and the output.
    pub repetition: f32,
    /// Subtracted once from logits of tokens that were generated.
    pub presence: f32,
    /// Subtracted from a token's logit for each time that it was generated.
    pub frequency: f32,
    /// The slot of [`TokenCounts`] that penalties read, and in which the sampled token is counted. No two samples of a
    /// call may share a slot.
    pub counts_slot: Option<u32>,
    /// The range of the batch's logit biases that applies to this sample. A bias of minus infinity bans a token.
    pub biases: (u32, u32),
    /// The row of the batch's grammar masks.
    pub mask_row: Option<u32>,
    /// Report the sampled token's log-probability, and this number of most likely tokens.
    pub top_logprobs: Option<u32>,
    /// Determines the random choice, together with `output_index`.
    pub seed: u64,
    /// Index of the token in the output.
    pub output_index: u32,
}

impl SamplerRow {
    /// Words of one row of the table.
    pub const WORDS: usize = 16;

    /// The most likely token of an unmodified row of logits, without a report.
    #[must_use]
    pub fn greedy(logits_row: u32) -> Self {
        Self {
            logits_row: Some(logits_row),
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            counts_slot: None,
            biases: (0, 0),
            mask_row: None,
            top_logprobs: None,
            seed: 0,
            output_index: 0,
        }
    }

    /// The row in the table's form.
    #[must_use]
    pub fn words(&self) -> [u32; Self::WORDS] {
        [
            self.logits_row.unwrap_or(NONE),
            // Zero keeps all tokens.
            self.temperature.to_bits(),
            self.top_k.unwrap_or(0),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.repetition.to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.counts_slot.unwrap_or(NONE),
            self.biases.0,
            self.biases.1,
            self.mask_row.unwrap_or(NONE),
            self.top_logprobs.unwrap_or(NONE),
            self.output_index,
            self.seed as u32,
            (self.seed >> 32) as u32,
        ]
    }

    /// The row that `words` of the table describe.
    pub(crate) fn from_words(words: &[u32]) -> Self {
        let some = |word: u32| (word != NONE).then_some(word);
        Self {
            logits_row: some(words[0]),
            temperature: f32::from_bits(words[1]),
            top_k: (words[2] > 0).then_some(words[2]),
            top_p: f32::from_bits(words[3]),
            min_p: f32::from_bits(words[4]),
            repetition: f32::from_bits(words[5]),
            presence: f32::from_bits(words[6]),
            frequency: f32::from_bits(words[7]),
            counts_slot: some(words[8]),
            biases: (words[9], words[10]),
            mask_row: some(words[11]),
            top_logprobs: some(words[12]),
            output_index: words[13],
            seed: u64::from(words[14]) | u64::from(words[15]) << 32,
        }
    }
}

/// The tables of a step's samples, all on the device. Each may be longer than the part that its rows use.
#[derive(Clone, Copy, Debug)]
pub struct SamplingBatch<'a> {
    /// u32 `[samples, 16]`: [`SamplerRow::words`] of each sample.
    pub rows: &'a Tensor,
    /// The counts that penalties read.
    pub counts: Option<&'a TokenCounts>,
    /// Token ids, and the bits of the f32 bias that is added to each token's logit; both u32 `[n]`.
    pub biases: Option<(&'a Tensor, &'a Tensor)>,
    /// u32 `[mask_rows, words]`: bit `id % 32` of word `id / 32` allows the token. Tokens beyond the end of a mask are
    /// not allowed.
    pub masks: Option<&'a Tensor>,
}

/// Memory that [`sample`](crate::sample) overwrites.
#[derive(Clone, Debug)]
pub struct SamplingScratch {
    /// f32 `[max_samples, vocab]`
    pub(crate) scores: Tensor,
    /// u32 `[samples at once, words]`: `Parts` in `sampling_parts.cuh`.
    #[cfg(feature = "cuda")]
    pub(crate) parts: Tensor,
}

impl SamplingScratch {
    /// Reserves memory for up to `max_samples` samples: four bytes per sample and token of the vocabulary, and
    /// [`device_sampling_bytes`](candlepower_layout::device_sampling_bytes) for each of
    /// [`device_samples_at_once`](candlepower_layout::device_samples_at_once).
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub fn new(max_samples: usize, vocab: usize, device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        let parts = (device_samples_at_once(max_samples), device_sampling_bytes(vocab) / 4);
        Ok(Self {
            scores: Tensor::zeros((max_samples, vocab), DType::F32, device)?,
            #[cfg(feature = "cuda")]
            parts: Tensor::zeros(parts, DType::U32, device)?,
        })
    }
}

/// The tokens that a step sampled, on the device.
#[derive(Clone, Debug)]
pub struct SamplingOutput {
    /// u32 `[samples]`: the tokens, for the next step's embedding; `u32::MAX` if no token is both allowed and finite.
    pub token_ids: Tensor,
    /// u32 `[samples, 3 + 2 * max_top]`, the only copy to the host. It contains the token, the bits of its f32
    /// log-probability and its rank, then the most likely tokens with their log-probabilities, most likely first.
    /// Missing entries are `u32::MAX`.
    pub report: Tensor,
}

impl SamplingOutput {
    /// Reserves memory for `samples` samples with up to `max_top` (at most 32) most likely tokens each.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub fn new(samples: usize, max_top: usize, device: &Device) -> Result<Self> {
        Ok(Self {
            token_ids: Tensor::zeros(samples, DType::U32, device)?,
            report: Tensor::zeros((samples, REPORT_HEAD + 2 * max_top), DType::U32, device)?,
        })
    }
}

/// Flag of a token of the prompt in the counts.
pub(crate) const FROM_PROMPT: u32 = 1 << 31;

/// Number of occurrences of each token in the sequences that have penalties, kept on the device: one slot per sequence,
/// four bytes per token of the vocabulary.
#[derive(Clone, Debug)]
pub struct TokenCounts {
    /// u32 `[slots, vocab]`: the number of times generated, and the highest bit for tokens of the prompt.
    pub(crate) counts: Tensor,
}

impl TokenCounts {
    /// Creates empty counts for `slots` sequences.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub fn new(slots: usize, vocab: usize, device: &Device) -> Result<Self> {
        Ok(Self { counts: Tensor::zeros((slots, vocab), DType::U32, device)? })
    }

    /// Number of slots.
    #[must_use]
    pub fn num_slots(&self) -> usize {
        self.counts.dims()[0]
    }
}
