//! Converts the engine's tokens to events of text, for streamed and whole answers of all endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use candlepower_api::FinishReason;
use candlepower_dialect::OutputEvent;
use candlepower_engine::{
    EngineHandle, EngineHealth, FinishReason as EngineFinish, TokenEvent, TokenLogprobs,
    TokenStream,
};
use futures::future::{Either, join_all, select};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;

use crate::generation::detokenize::{Finish, Piece, TextAssembler};
use crate::generation::reasoning_budget::ReasoningEnd;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::keys::KeyPermit;
use crate::model::metrics::Metrics;
use crate::model::tokens::RequestTokens;
use crate::model::trace::ChoiceTimes;

/// One choice that is being generated. Dropping it cancels the sequence.
pub(crate) struct Choice {
    /// Its index among the choices of the answer.
    pub(crate) index: usize,
    /// `None` once the choice has ended, so that the engine stops its sequence.
    tokens: Option<TokenStream>,
    assembler: TextAssembler,
    clock: TokenClock,
    /// Its slot among the sequences of the API key, if there are keys.
    key_permit: Option<KeyPermit>,
    /// Set if reasoning has a budget.
    reasoning_end: Option<ReasoningEnd>,
    engine: EngineHandle,
    /// Becomes true when the server or the engine stops.
    aborted: watch::Receiver<bool>,
    /// The addition that the next event will report.
    delta: Delta,
    num_generated: usize,
}

/// An event of a choice: one `Prompt`, then `Delta`s, of which the last one has `finish` set.
pub(crate) enum ChoiceEvent {
    /// The prompt is computed.
    Prompt {
        /// Prompt tokens that came from the prefix cache.
        num_cached_tokens: usize,
        /// Set if the request asks for them.
        logprobs: Option<Vec<Option<TokenLogprobs>>>,
    },
    /// More text was generated.
    Delta(Delta),
}

/// An addition to a choice.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Delta {
    /// Text to append; empty if `parts` contain it.
    pub(crate) text: String,
    /// Parts to append to an answer in a conversation.
    pub(crate) parts: Vec<OutputEvent>,
    /// The tokens generated since the last event. Their text may follow later.
    pub(crate) token_ids: Vec<u32>,
    /// One for each of `token_ids`, if the request asks for them.
    pub(crate) logprobs: Vec<TokenLogprobs>,
    /// Set in the last event.
    pub(crate) finish: Option<Finish>,
}

impl Delta {
    fn add(&mut self, piece: Piece) {
        self.text.push_str(&piece.text);
        for part in piece.parts {
            part.add_to(&mut self.parts);
        }
        self.finish = piece.finish;
    }
}

impl Choice {
    pub(crate) fn new(
        index: usize,
        tokens: TokenStream,
        assembler: TextAssembler,
        clock: TokenClock,
        key_permit: Option<KeyPermit>,
        engine: EngineHandle,
        aborted: watch::Receiver<bool>,
    ) -> Self {
        Self {
            index,
            tokens: Some(tokens),
            assembler,
            clock,
            key_permit,
            reasoning_end: None,
            engine,
            aborted,
            delta: Delta::default(),
            num_generated: 0,
        }
    }

    /// Sets the limit of reasoning.
    pub(crate) fn ending_reasoning(self, reasoning_end: Option<ReasoningEnd>) -> Self {
        Self { reasoning_end, ..self }
    }

    /// The next event; `None` after the end. Waits for a token and also takes all others that are ready, until there is
    /// text to send.
    pub(crate) async fn next(&mut self) -> Option<ApiResult<ChoiceEvent>> {
        loop {
            if self.delta.finish.is_some() {
                return self.end();
            }
            let tokens = self.tokens.as_mut()?;
            let event = {
                let next = std::pin::pin!(tokens.next());
                let aborted = std::pin::pin!(self.aborted.wait_for(|aborted| *aborted));
                match select(next, aborted).await {
                    Either::Left((event, _)) => Some(event),
                    Either::Right(_) => None,
                }
            };
            let is_dead = || matches!(self.engine.health(), EngineHealth::Dead(_));
            let event = match event {
                Some(Some(event)) => event,
                None if !is_dead() => return Some(self.abort()),
                // An engine that waits for a dead rank does not close its streams.
                None | Some(None) => {
                    self.tokens = None;
                    return Some(Err(engine_ended(&self.engine)));
                }
            };
            match self.take(event) {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
            if let Err(error) = self.take_ready() {
                return Some(Err(error));
            }
            let has_more = !self.delta.text.is_empty() || !self.delta.parts.is_empty();
            if self.delta.finish.is_none() && has_more {
                return Some(Ok(ChoiceEvent::Delta(std::mem::take(&mut self.delta))));
            }
        }
    }

    /// The whole choice as a stream, each event with the choice's index.
    pub(crate) fn into_events(self) -> BoxStream<'static, (usize, ApiResult<ChoiceEvent>)> {
        stream::unfold(self, |mut choice| async move {
            let event = choice.next().await?;
            Some(((choice.index, event), choice))
        })
        .boxed()
    }

    /// Takes tokens that are ready.
    fn take_ready(&mut self) -> ApiResult<()> {
        while self.delta.finish.is_none() {
            let Some(event) = self.tokens.as_mut().and_then(TokenStream::try_next) else { break };
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: TokenEvent) -> ApiResult<Option<ChoiceEvent>> {
        match event {
            TokenEvent::TooComplex { message } => {
                self.tokens = None;
                Err(ApiError::too_complex(&message))
            }
            TokenEvent::Failed { message } => {
                self.tokens = None;
                Err(ApiError::internal(message))
            }
            // This prompt continues a choice after its reasoning was closed, so it is not a new event.
            TokenEvent::Prompt { .. }
                if self.reasoning_end.as_ref().is_some_and(ReasoningEnd::is_used) =>
            {
                Ok(None)
            }
            TokenEvent::Prompt { num_cached_tokens, logprobs, prefill_s, finish } => {
                self.clock.prompt(prefill_s, num_cached_tokens);
                self.delta.finish = finish.map(Finish::from);
                Ok(Some(ChoiceEvent::Prompt { num_cached_tokens, logprobs }))
            }
            TokenEvent::Token { token_id, logprobs, finish } => {
                let written = self.add(token_id, logprobs, finish)?;
                let ends_reasoning =
                    self.reasoning_end.as_mut().is_some_and(|end| end.push(token_id, &written));
                if ends_reasoning && self.delta.finish.is_none() {
                    self.end_reasoning()?;
                }
                Ok(None)
            }
        }
    }

    /// Adds a token to the next event; returns its text.
    fn add(
        &mut self,
        token_id: u32,
        logprobs: Option<TokenLogprobs>,
        finish: Option<EngineFinish>,
    ) -> ApiResult<String> {
        self.clock.token();
        if let Some(permit) = &self.key_permit {
            permit.count_token();
        }
        let mut piece = self.assembler.push(token_id, finish).map_err(|error| {
            self.tokens = None;
            ApiError::internal(error.to_string())
        })?;
        let written = std::mem::take(&mut piece.written);
        self.num_generated += 1;
        self.delta.token_ids.push(token_id);
        self.delta.logprobs.extend(logprobs);
        self.delta.add(piece);
        Ok(written)
    }

    /// Adds the mark that closes reasoning, and continues after it.
    fn end_reasoning(&mut self) -> ApiResult<()> {
        let given_up = self.tokens.take();
        let Some(ending) = self.reasoning_end.as_ref().map(ReasoningEnd::ending) else {
            return Ok(());
        };
        for token_id in ending.iter().copied() {
            // The mark was not sampled: its probability is 1.
            let certain = TokenLogprobs { token_id, logprob: 0.0, rank: 1, top: Vec::new() };
            let reports = self.reasoning_end.as_ref().is_some_and(ReasoningEnd::reports_logprobs);
            self.add(token_id, reports.then_some(certain), None)?;
        }
        let request = self.reasoning_end.as_mut().and_then(|end| end.go_on(self.num_generated));
        match (request, given_up) {
            (Some(request), Some(given_up)) => {
                self.tokens = self.engine.go_on(given_up, request)?.pop();
            }
            _ => {
                let rest = self.assembler.cut_short();
                let rest = rest.map_err(|error| ApiError::internal(error.to_string()))?;
                self.delta.add(Piece { finish: Some(Finish::new(FinishReason::Length)), ..rest });
            }
        }
        Ok(())
    }

    /// The last event.
    fn end(&mut self) -> Option<ApiResult<ChoiceEvent>> {
        self.tokens = None;
        let delta = std::mem::take(&mut self.delta);
        let finish = delta.finish.as_ref()?;
        self.clock.end(finish.reason, self.num_generated);
        Some(Ok(ChoiceEvent::Delta(delta)))
    }

    fn abort(&mut self) -> ApiResult<ChoiceEvent> {
        self.tokens = None;
        let rest =
            self.assembler.cut_short().map_err(|error| ApiError::internal(error.to_string()))?;
        let mut delta = std::mem::take(&mut self.delta);
        delta.add(Piece { finish: Some(Finish::new(FinishReason::Abort)), ..rest });
        self.clock.end(FinishReason::Abort, self.num_generated);
        Ok(ChoiceEvent::Delta(delta))
    }
}

/// The error for a stream of tokens that ended early.
fn engine_ended(engine: &EngineHandle) -> ApiError {
    match engine.health() {
        EngineHealth::Dead(reason) => {
            ApiError::internal(format!("The engine has stopped: {reason}"))
        }
        _ => ApiError::internal("Defect of the server: the engine has dropped this request."),
    }
}

/// Latency metrics of one choice.
pub(crate) struct TokenClock {
    metrics: Metrics,
    arrived: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    prefill_s: f64,
    tokens: Arc<RequestTokens>,
    longest: Arc<LongestChoice>,
    /// The times for the trace, until it has them; `None` without a trace.
    traced: Option<ChoiceTimes>,
    /// Whether the choice is the first of its prompt.
    is_first: bool,
}

/// The maximum of generated tokens among the choices of a prompt.
#[derive(Debug)]
pub(crate) struct LongestChoice {
    num_tokens: AtomicUsize,
    /// Number of choices that have not ended.
    num_left: AtomicUsize,
}

impl LongestChoice {
    /// The maximum of `n` choices.
    pub(crate) fn of(n: usize) -> Arc<Self> {
        Arc::new(Self { num_tokens: AtomicUsize::new(0), num_left: AtomicUsize::new(n) })
    }

    /// Adds a choice that has ended; returns the maximum if it was the last one.
    fn end(&self, num_tokens: usize) -> Option<usize> {
        self.num_tokens.fetch_max(num_tokens, Ordering::Relaxed);
        let was_last = self.num_left.fetch_sub(1, Ordering::AcqRel) == 1;
        was_last.then(|| self.num_tokens.load(Ordering::Relaxed))
    }
}

impl TokenClock {
    pub(crate) fn new(
        metrics: Metrics,
        arrived: Instant,
        tokens: Arc<RequestTokens>,
        longest: Arc<LongestChoice>,
        is_first: bool,
    ) -> Self {
        let (first_token, last_token, prefill_s) = (None, None, 0.0);
        let traced = tokens.trace().map(|_| ChoiceTimes::submitted(Instant::now()));
        Self {
            metrics,
            arrived,
            first_token,
            last_token,
            prefill_s,
            tokens,
            longest,
            traced,
            is_first,
        }
    }

    fn prompt(&mut self, prefill_s: f64, num_cached_tokens: usize) {
        self.metrics.prefill_time.record(prefill_s);
        self.prefill_s = prefill_s;
        if let (Some(times), Some(trace)) = (&mut self.traced, self.tokens.trace()) {
            times.prompt = Some((Instant::now(), prefill_s));
            if self.is_first {
                trace.add_cached_tokens(num_cached_tokens);
            }
        }
    }

    fn token(&mut self) {
        self.tokens.add_generated();
        let now = Instant::now();
        match self.last_token {
            None => self.metrics.time_to_first_token.record((now - self.arrived).as_secs_f64()),
            Some(last) => {
                let gap_s = (now - last).as_secs_f64();
                self.metrics.inter_token_latency.record(gap_s);
                self.metrics.per_output_token.record(gap_s);
            }
        }
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        if let Some(times) = &mut self.traced {
            times.num_generated += 1;
        }
    }

    fn end(&mut self, reason: FinishReason, num_generated: usize) {
        self.metrics.e2e_latency.record(self.arrived.elapsed().as_secs_f64());
        self.metrics.generation_tokens.record(num_generated as f64);
        if let (Some(first), Some(last)) = (self.first_token, self.last_token) {
            let decode_s = (last - first).as_secs_f64();
            self.metrics.decode_time.record(decode_s);
            self.metrics.inference_time.record(self.prefill_s + decode_s);
            if num_generated > 1 {
                self.metrics.time_per_output_token.record(decode_s / (num_generated - 1) as f64);
            }
        }
        if let Some(num_tokens) = self.longest.end(num_generated) {
            self.metrics.max_generation_tokens.record(num_tokens as f64);
        }
        self.metrics.count_success(reason.as_str());
        self.trace(Some(reason.as_str()));
    }

    /// Passes the times to the trace, once.
    fn trace(&mut self, finish_reason: Option<&'static str>) {
        if let (Some(times), Some(trace)) = (self.traced.take(), self.tokens.trace()) {
            trace.end_choice(&ChoiceTimes { last_token: self.last_token, finish_reason, ..times });
        }
    }
}

impl Drop for TokenClock {
    fn drop(&mut self) {
        // The client left, or the engine failed.
        self.trace(None);
    }
}

/// A complete choice.
pub(crate) struct FinishedChoice {
    pub(crate) index: usize,
    pub(crate) num_cached_tokens: usize,
    pub(crate) prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// The whole text; `finish` is set.
    pub(crate) delta: Delta,
}

/// Runs all choices to their ends, and returns them in the order of their indices.
pub(crate) async fn finish_all(choices: Vec<Choice>) -> ApiResult<Vec<FinishedChoice>> {
    join_all(choices.into_iter().map(finish)).await.into_iter().collect()
}

async fn finish(mut choice: Choice) -> ApiResult<FinishedChoice> {
    let mut finished = FinishedChoice {
        index: choice.index,
        num_cached_tokens: 0,
        prompt_logprobs: None,
        delta: Delta::default(),
    };
    while let Some(event) = choice.next().await {
        match event? {
            ChoiceEvent::Prompt { num_cached_tokens, logprobs } => {
                finished.num_cached_tokens = num_cached_tokens;
                finished.prompt_logprobs = logprobs;
            }
            ChoiceEvent::Delta(delta) => {
                finished.delta.token_ids.extend(delta.token_ids);
                finished.delta.logprobs.extend(delta.logprobs);
                let Delta { text, parts, finish, .. } = delta;
                finished.delta.add(Piece { text, parts, finish, ..Piece::default() });
            }
        }
    }
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_choice_is_known_when_all_have_ended() {
        let longest = LongestChoice::of(3);
        assert_eq!([4, 9, 2].map(|num_tokens| longest.end(num_tokens)), [None, None, Some(9)]);
        assert_eq!(LongestChoice::of(1).end(0), Some(0));
    }
}
