//! Requests, sampling parameters and token streams: what goes into the engine, and what comes out of it.

use std::sync::{Arc, Weak};

use candlepower_checkpoint::{ModelSpec, VisionSpec};
use candlepower_grammar::Grammar;
use candlepower_media::WaitingImage;
use candlepower_scheduler::{Caller, Item};
use tokio::sync::mpsc;

use crate::queue::QueueSlot;

/// One generation request, immutable once submitted.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt's token ids; never empty, each below the vocabulary's size.
    pub prompt: Vec<u32>,
    /// The images of the prompt, in the order of their tokens.
    pub images: Vec<PromptImage>,
    /// Sampling parameters, shared by all choices (choice `i` is seeded with `seed + i`).
    pub sampling: SamplingParams,
    /// Number of choices, at least 1; each has a [`TokenStream`] of its own.
    pub n: usize,
    /// Lower runs first among the caller's requests; arrival order within one priority.
    pub priority: i32,
    /// The caller, with its share.
    pub caller: Caller,
    /// Lower runs first, for whatever caller; shares are for callers of equal priority.
    pub caller_priority: i32,
    /// Requests share cached prefixes only with requests of the same salt.
    pub cache_salt: Option<Arc<str>>,
    /// Report the log-probability of every prompt token, and so many alternatives.
    pub prompt_logprobs: Option<usize>,
    /// The first prompt token whose log-probability is reported, if any is. Its logits need the token before it. Earlier tokens
    /// may come from the cache.
    pub prompt_logprobs_from: usize,
    /// The grammar of the output. Each choice starts from this state.
    pub grammar: Option<Grammar>,
    /// Number of the prompt's last tokens that were generated for the same request, by a sequence that was given up. Samples,
    /// penalties and limits on generated tokens go on from there.
    pub num_generated: usize,
}

/// An image in a prompt.
#[derive(Clone, Debug)]
pub struct PromptImage {
    /// Position of its first token in the prompt.
    pub start: usize,
    /// Number of its tokens, from the first embedding to the last one.
    pub len: usize,
    /// The pixels, which wait for the encoder.
    pub image: Arc<WaitingImage>,
}

impl PromptImage {
    /// The image as the scheduler sees it. `decoder` is the model that reads the embeddings.
    pub(crate) fn item(&self, vision: &VisionSpec, decoder: &ModelSpec) -> Item {
        let image = self.image.image();
        let (width, height) = (image.pixels().width(), image.pixels().height());
        Item {
            start: self.start,
            len: self.len,
            placeholder: vision.tokens.placeholder,
            digest: *image.digest().as_bytes(),
            num_pieces: vision.num_pieces(width, height),
            tokens_per_piece: vision.tokens_per_piece(width, height, decoder),
            is_whole: vision.both_ways,
        }
    }
}

/// Parameters by which the next token of one sequence is sampled. Every field is this sequence's own: a batch shares none.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Most tokens to generate; 0 only scores the prompt.
    pub max_tokens: usize,
    /// Fewest tokens before the end: until then end-of-sequence and stop tokens cannot be sampled, unless the request's grammar
    /// allows nothing else.
    pub min_tokens: usize,
    /// 0 is greedy; above 0 divides the logits.
    pub temperature: f32,
    /// Keep only the k most likely tokens.
    pub top_k: Option<usize>,
    /// Keep the most likely tokens whose probabilities sum to at least this, in (0, 1].
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the most likely one, in [0, 1].
    pub min_p: f32,
    /// Divides (positive) or multiplies (negative) the logits of tokens seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens already generated; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once per time that the token was generated; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same tokens whatever else is in the batch; `None` takes a random one.
    pub seed: Option<u64>,
    /// Only these tokens can be sampled. A grammar of the request has to allow them as well.
    pub allowed_token_ids: Option<Arc<[u32]>>,
    /// Tokens that are never generated in this order, each list on its own: the last one cannot be sampled behind the others.
    pub bad_words: Arc<[Vec<u32>]>,
    /// Tokens that end the sequence besides the model's own end-of-sequence tokens.
    pub stop_token_ids: Vec<u32>,
    /// The model's end-of-sequence tokens do not end the sequence.
    pub ignore_eos: bool,
    /// Report the sampled token's log-probability, and this number of most likely alternatives.
    pub logprobs: Option<usize>,
}

impl SamplingParams {
    /// Whether tokens are less likely for having been seen.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Whether a token is ruled out behind others.
    pub(crate) fn has_long_bad_words(&self) -> bool {
        self.bad_words.iter().any(|word| word.len() > 1)
    }

    /// Whether some tokens are never sampled at some position.
    pub(crate) fn rules_out_tokens(&self) -> bool {
        self.allowed_token_ids.is_some() || !self.bad_words.is_empty()
    }

    /// The tokens that would end a bad word behind these.
    pub(crate) fn ends_of_bad_words<'a>(
        &'a self,
        output: &'a [u32],
    ) -> impl Iterator<Item = u32> + 'a {
        let end = |word: &Vec<u32>| {
            let (last, before) = word.split_last()?;
            output.ends_with(before).then_some(*last)
        };
        self.bad_words.iter().filter_map(end)
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_tokens: 16,
            min_tokens: 0,
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Arc::default(),
            seed: None,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
        }
    }
}

/// The reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of the model's end-of-sequence tokens was sampled.
    EndOfSequence(u32),
    /// One of the request's `stop_token_ids` was sampled.
    StopToken(u32),
    /// The request's grammar allows nothing more.
    GrammarEnd,
    /// `max_tokens` or the model's context length is reached.
    Length,
}

/// Log-probabilities at one position, of the model's own distribution (before temperature and penalties).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands at this position.
    pub token_id: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// Its rank: one more than the number of likelier tokens.
    pub rank: usize,
    /// The most likely tokens with their log-probabilities, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// An event of a [`TokenStream`]: first one `Prompt`, then `Token`s. The last event has `finish` set.
#[derive(Clone, Debug)]
pub enum TokenEvent {
    /// The prompt is computed.
    Prompt {
        /// Prompt tokens in whole blocks that came from the prefix cache.
        num_cached_tokens: usize,
        /// One entry per prompt token if asked for; the first token has none, nor have those before
        /// `prompt_logprobs_from`.
        logprobs: Option<Vec<Option<TokenLogprobs>>>,
        /// Seconds since the first step that computed it.
        prefill_s: f64,
        /// Set when nothing is to be generated (`max_tokens` 0).
        finish: Option<FinishReason>,
    },
    /// One generated token. A token that ends the sequence is reported too.
    Token {
        /// The token.
        token_id: u32,
        /// Present if the request asked for log-probabilities.
        logprobs: Option<TokenLogprobs>,
        /// Set on the sequence's last token.
        finish: Option<FinishReason>,
    },
    /// The constraint of this sequence needs more work than a request may cause; nothing follows.
    TooComplex {
        /// The reason, for the caller.
        message: String,
    },
    /// This sequence alone failed; nothing follows.
    Failed {
        /// The error, for the caller.
        message: String,
    },
}

/// The tokens of one sequence as they are generated. Dropping it cancels the sequence.
#[derive(Debug)]
pub struct TokenStream {
    events: mpsc::UnboundedReceiver<TokenEvent>,
    /// The sequence's queue slot, until it ends.
    slot: Weak<QueueSlot>,
}

impl TokenStream {
    pub(crate) fn channel(slot: Weak<QueueSlot>) -> (mpsc::UnboundedSender<TokenEvent>, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (sender, Self { events, slot })
    }

    pub(crate) fn slot(&self) -> &Weak<QueueSlot> {
        &self.slot
    }

    /// The next event; `None` after the last one, or before it if the engine died
    /// (see [`EngineHandle::health`](crate::EngineHandle::health) for why).
    pub async fn next(&mut self) -> Option<TokenEvent> {
        self.events.recv().await
    }

    /// An event that is already there, without waiting.
    pub fn try_next(&mut self) -> Option<TokenEvent> {
        self.events.try_recv().ok()
    }
}
