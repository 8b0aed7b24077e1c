//! The engine's state of a sequence. Its tokens and blocks are the scheduler's.

use std::{cell::RefCell, collections::HashMap, rc::Rc, sync::Arc, time::Instant};

use candlepower_grammar::Mask;
use candlepower_kernels::sampling::{Penalties, SampledRow, SamplingRow, uniform};
use candlepower_scheduler::SeqId;
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    FinishReason, PromptImage, Request, SamplingParams, TokenEvent, TokenLogprobs,
    constraint::{Constraint, Room, Taken},
    queue::QueueSlot,
    step_io::{KnownTokens, OutputPosition, Sample},
};

/// One choice of a request while it waits or runs.
pub(crate) struct Sequence {
    params: Rc<SamplingParams>,
    /// The images of the prompt. A preempted sequence may have to encode them again.
    images: Rc<[PromptImage]>,
    stream: StreamSender,
    seed: u64,
    prompt_len: usize,
    /// Prompt tokens that were not generated for the same request.
    asked_len: usize,
    num_output_tokens: usize,
    /// Samples that were launched and are not finished yet.
    num_expected_tokens: usize,
    /// How often each token of prompt and output was generated; kept only where a penalty needs it.
    seen: Option<HashMap<u32, u32>>,
    /// The output so far; kept only where a bad word may begin with it.
    output: Option<Vec<u32>>,
    /// The only tokens that can be sampled, where there is no constraint, which would know them.
    allowed: Option<Mask>,
    /// Most output tokens, by `max_tokens` and by the context's length.
    output_limit: usize,
    prompt_sent: bool,
    scores: Option<Rc<RefCell<PromptScores>>>,
    constraint: Constrained,
    /// When it was submitted; taken by the first step that computes it.
    submitted_at: Option<Instant>,
    /// When the first step that computes it was launched.
    started_at: Option<Instant>,
}

/// The constraint of the output, and where it is.
enum Constrained {
    No,
    By(Box<Constraint>),
    /// A thread works on the constraint, and the sequence sits out until it is known which tokens may follow the newest one.
    Working,
}

/// The log-probabilities of a prompt, as its chunks are computed; one for all choices of a request.
pub(crate) struct PromptScores {
    pub(crate) top: usize,
    /// One entry per prompt token; the first stays empty.
    pub(crate) tokens: Vec<Option<TokenLogprobs>>,
}

/// The engine thread's end of a [`TokenStream`](crate::TokenStream).
pub(crate) struct StreamSender {
    events: UnboundedSender<TokenEvent>,
    slot: Option<Arc<QueueSlot>>,
}

impl StreamSender {
    pub(crate) fn new(events: UnboundedSender<TokenEvent>, slot: Arc<QueueSlot>) -> Self {
        Self { events, slot: Some(slot) }
    }

    /// Sends an event. True if the sequence goes on: somebody listens, and this was not the last event.
    fn send(&mut self, event: TokenEvent) -> bool {
        let last = match &event {
            TokenEvent::Prompt { finish, .. } | TokenEvent::Token { finish, .. } => {
                finish.is_some()
            }
            TokenEvent::TooComplex { .. } | TokenEvent::Failed { .. } => true,
        };
        if last {
            // A reader of the end may rely on the free queue slot.
            self.slot = None;
        }
        self.events.send(event).is_ok() && !last
    }
}

/// The choices of a request, one per stream. All begin with the same constraint and the same allowed tokens.
pub(crate) struct Choices {
    pub(crate) request: Request,
    pub(crate) constraint: Option<Constraint>,
    /// The only tokens that the request allows.
    pub(crate) allowed: Option<Mask>,
    pub(crate) streams: Vec<StreamSender>,
    /// Choice `i` samples with `seed + i`.
    pub(crate) seed: u64,
    pub(crate) max_model_len: usize,
    pub(crate) submitted_at: Instant,
}

impl Choices {
    /// The sequence of each choice.
    pub(crate) fn sequences(self) -> impl Iterator<Item = Sequence> {
        let Self { request, constraint, allowed, streams, seed, max_model_len, submitted_at } =
            self;
        let params = Rc::new(request.sampling);
        let images: Rc<[PromptImage]> = request.images.into();
        let prompt_len = request.prompt.len();
        let asked_len = prompt_len.saturating_sub(request.num_generated);
        let (asked, generated) = request.prompt.split_at(asked_len);
        let num_generated = generated.len();
        let seen = params.has_penalties().then(|| {
            let mut seen: HashMap<u32, u32> = asked.iter().map(|&id| (id, 0)).collect();
            generated.iter().for_each(|&id| *seen.entry(id).or_default() += 1);
            seen
        });
        let output = params.has_long_bad_words().then(|| generated.to_vec());
        // A constraint knows the allowed tokens itself.
        let allowed = allowed.filter(|_| constraint.is_none());
        let scores = request
            .prompt_logprobs
            .map(|top| Rc::new(RefCell::new(PromptScores { top, tokens: vec![None; prompt_len] })));
        streams.into_iter().enumerate().map(move |(choice, stream)| Sequence {
            constraint: match &constraint {
                Some(constraint) => Constrained::By(Box::new(constraint.clone())),
                None => Constrained::No,
            },
            stream,
            seed: seed.wrapping_add(choice as u64),
            prompt_len,
            asked_len,
            num_output_tokens: num_generated,
            num_expected_tokens: 0,
            seen: seen.clone(),
            output: output.clone(),
            allowed: allowed.clone(),
            output_limit: params.max_tokens.min(max_model_len - asked_len),
            prompt_sent: false,
            scores: scores.clone(),
            submitted_at: Some(submitted_at),
            started_at: None,
            params: Rc::clone(&params),
            images: Rc::clone(&images),
        })
    }
}

impl Sequence {
    /// Whether the stream of this sequence is dropped.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.stream.events.is_closed()
    }

    /// The images of the prompt.
    pub(crate) fn images(&self) -> &[PromptImage] {
        &self.images
    }

    /// The log-probabilities of the prompt, until the prompt is reported.
    pub(crate) fn scores(&self) -> Option<&Rc<RefCell<PromptScores>>> {
        self.scores.as_ref()
    }

    /// Takes the constraint out, for work on a new token. The sequence then sits out until the constraint is back.
    pub(crate) fn take_constraint(&mut self) -> Option<Constraint> {
        match std::mem::replace(&mut self.constraint, Constrained::Working) {
            Constrained::By(constraint) => Some(*constraint),
            other => {
                self.constraint = other;
                None
            }
        }
    }

    pub(crate) fn set_constraint(&mut self, constraint: Constraint) {
        self.constraint = Constrained::By(Box::new(constraint));
    }

    /// Seconds that it waited in the queue; `None` after the first call.
    pub(crate) fn take_queue_time(&mut self) -> Option<f64> {
        let submitted_at = self.submitted_at.take()?;
        let now = Instant::now();
        self.started_at = Some(now);
        Some((now - submitted_at).as_secs_f64())
    }

    /// Ends the sequence with an error of its own.
    pub(crate) fn fail(mut self, message: String) {
        self.stream.send(TokenEvent::Failed { message });
    }

    /// Ends the sequence because its constraint cannot go on.
    pub(crate) fn fail_constraint(mut self, error: &candlepower_grammar::Error) {
        use candlepower_grammar::Error;
        let message = error.to_string();
        self.stream.send(match error {
            Error::Limit(_) | Error::DeadEnd { .. } | Error::NoneAllowed => {
                TokenEvent::TooComplex { message }
            }
            _ => TokenEvent::Failed { message },
        });
    }

    /// The output position of this sequence's next token.
    fn next_position(&self) -> OutputPosition {
        OutputPosition { seed: self.seed, index: self.next_index() as u32 }
    }

    /// Number of output tokens before the next sample, known or not.
    fn next_index(&self) -> usize {
        self.num_output_tokens + self.num_expected_tokens
    }

    /// Counts the token of a launched step that samples this sequence.
    pub(crate) fn expect_token(&mut self) {
        self.num_expected_tokens += 1;
    }

    /// Whether the sampling of its next token needs a token that is not known yet. Penalties do not: a device has their counts.
    pub(crate) fn needs_newest_token(&self) -> bool {
        self.has_unknown_token() && (self.is_constrained() || self.output.is_some())
    }

    /// Whether a sample was launched and is not finished yet.
    pub(crate) fn has_unknown_token(&self) -> bool {
        self.num_expected_tokens > 0
    }

    pub(crate) fn has_penalties(&self) -> bool {
        self.seen.is_some()
    }

    pub(crate) fn is_constrained(&self) -> bool {
        !matches!(self.constraint, Constrained::No)
    }

    /// Whether its constraint still works on the newest token.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.constraint, Constrained::Working)
    }

    /// The sample of this sequence's next token. `tokens` are all that are known.
    pub(crate) fn sample<'a>(
        &'a self,
        id: SeqId,
        tokens: &'a [u32],
        eos_token_ids: &[u32],
    ) -> Sample<'a> {
        let (prompt, output) = tokens.split_at(self.asked_len);
        Sample {
            seq: id,
            params: self.sampling_row(eos_token_ids),
            position: self.next_position(),
            tokens: KnownTokens { prompt, output },
            is_left_out: false,
        }
    }

    /// The sampling parameters of this sequence's next token.
    fn sampling_row<'a>(&'a self, eos_token_ids: &[u32]) -> SamplingRow<'a> {
        let params = &*self.params;
        let mask = match &self.constraint {
            Constrained::No => self.allowed.as_ref(),
            Constrained::By(constraint) => constraint.mask.as_ref(),
            Constrained::Working => unreachable!("a sequence that sits out gets no token"),
        };
        let output = self.output.as_deref().unwrap_or_default();
        let mut banned: Vec<u32> = params.ends_of_bad_words(output).collect();
        if self.next_index() < params.min_tokens {
            let with_ends = [&banned, eos_token_ids, &params.stop_token_ids].concat();
            // A text that can only end may end, however short it is.
            if !mask.is_some_and(|mask| mask.allows_only(&with_ends)) {
                banned = with_ends;
            }
        }
        SamplingRow {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            uniform: uniform(self.seed, self.next_index() as u64),
            penalties: self.seen.as_ref().map(|seen| Penalties {
                repetition: params.repetition_penalty,
                presence: params.presence_penalty,
                frequency: params.frequency_penalty,
                seen,
            }),
            logit_bias: &params.logit_bias,
            banned,
            mask: mask.map(Mask::words),
            logprobs: params.logprobs,
        }
    }

    /// Reports the prompt once. True if the sequence goes on.
    pub(crate) fn send_prompt(&mut self, num_cached_tokens: usize) -> bool {
        if self.prompt_sent {
            return true;
        }
        self.prompt_sent = true;
        let finish = (self.output_limit == 0).then_some(FinishReason::Length);
        let logprobs = self.scores.take().map(|scores| scores.borrow().tokens.clone());
        let prefill_s = self.started_at.map_or(0.0, |at| at.elapsed().as_secs_f64());
        self.stream.send(TokenEvent::Prompt { num_cached_tokens, logprobs, prefill_s, finish })
    }

    /// Number of tokens that may follow this one when it is sampled; `None` if it ends the sequence, whatever its constraint allows.
    pub(crate) fn room_after(&self, token_id: u32, eos_token_ids: &[u32]) -> Option<Room> {
        if self.ends_with(token_id, eos_token_ids).is_some() {
            return None;
        }
        let all = self.output_limit.saturating_sub(self.num_output_tokens + 1);
        // A token that is appended without sampling has no log-probability, and is not compared with ruled-out tokens.
        let must_sample = self.params.logprobs.is_some() || self.params.rules_out_tokens();
        let forced = if must_sample { 0 } else { all };
        Some(Room { forced, all })
    }

    /// Takes the sampled token, with those that must follow it, and reports them. Returns whether the sequence goes on, and
    /// the tokens that followed.
    pub(crate) fn push(
        &mut self,
        sampled: SampledRow,
        taken: Taken,
        eos_token_ids: &[u32],
    ) -> (bool, Vec<u32>) {
        self.num_expected_tokens -= 1;
        let Some(token_id) = sampled.token_id else {
            return (self.stream.send(self.no_token()), Vec::new());
        };
        let Taken { mut forced, is_finished } = taken;
        let logprobs = sampled.logprobs.map(|row| TokenLogprobs {
            token_id,
            logprob: row.logprob,
            rank: row.rank,
            top: row.top,
        });
        let finish = self.count(token_id, eos_token_ids, is_finished && forced.is_empty());
        let mut goes_on = self.stream.send(TokenEvent::Token { token_id, logprobs, finish });
        for index in 0..forced.len() {
            if !goes_on {
                forced.truncate(index);
                break;
            }
            let (token_id, is_last) = (forced[index], index + 1 == forced.len());
            let finish = self.count(token_id, eos_token_ids, is_finished && is_last);
            goes_on = self.stream.send(TokenEvent::Token { token_id, logprobs: None, finish });
        }
        (goes_on, forced)
    }

    /// The event for a sample without a token.
    fn no_token(&self) -> TokenEvent {
        match self.params.rules_out_tokens() {
            true => TokenEvent::TooComplex {
                message: "`bad_words`, `allowed_token_ids` and what else was asked for leave no token that could follow".to_owned(),
            },
            false => TokenEvent::Failed {
                message: "the model gave no finite probability to any allowed token".to_owned(),
            },
        }
    }

    /// Counts a token of the output. Returns the reason if the sequence ends with it. `is_grammar_end` says that the grammar
    /// allows nothing behind it.
    fn count(
        &mut self,
        token_id: u32,
        eos_token_ids: &[u32],
        is_grammar_end: bool,
    ) -> Option<FinishReason> {
        self.num_output_tokens += 1;
        if let Some(seen) = &mut self.seen {
            *seen.entry(token_id).or_default() += 1;
        }
        if let Some(output) = &mut self.output {
            output.push(token_id);
        }
        let is_full = self.num_output_tokens >= self.output_limit;
        self.ends_with(token_id, eos_token_ids)
            .or(is_grammar_end.then_some(FinishReason::GrammarEnd))
            .or(is_full.then_some(FinishReason::Length))
    }

    /// The reason why this token ends the sequence, if it is an end token.
    fn ends_with(&self, token_id: u32, eos_token_ids: &[u32]) -> Option<FinishReason> {
        if self.params.stop_token_ids.contains(&token_id) {
            Some(FinishReason::StopToken(token_id))
        } else if !self.params.ignore_eos && eos_token_ids.contains(&token_id) {
            Some(FinishReason::EndOfSequence(token_id))
        } else {
            None
        }
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }
}
