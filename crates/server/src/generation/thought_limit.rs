//! Thinking budgets: a thought that is too long is closed in the model's place, and the model goes on behind it.
//!
//! The engine knows nothing of it. The sequence is given up, and another one goes on from all that was generated and the mark that
//! closes the thought; the prefix cache has nearly all of its tokens.

use std::sync::Arc;

use candlepower_dialect::{ReasoningFormat, Thinking, ThoughtMarks, ThoughtMeter};
use candlepower_engine::Request;
use candlepower_grammar::Grammar;
use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};

/// A thought ends within so many tokens beyond its budget.
const MOST_BEYOND: usize = 8;

/// When and how reasoning is ended, for all choices of a request.
#[derive(Clone, Debug)]
pub(crate) struct ThoughtLimit {
    meter: ThoughtMeter,
    /// Tokens of a thought after which it is closed.
    most_tokens: usize,
    /// The tokens that close it.
    ending: Arc<[u32]>,
    /// The constraint of the answer behind the reasoning.
    grammar: Option<Grammar>,
}

impl ThoughtLimit {
    /// For answers that stand at `thinking`; `None` where the tokenizer cannot write the mark.
    pub(crate) fn new(
        format: ReasoningFormat,
        thinking: Thinking,
        budget: usize,
        tokenizer: &Tokenizer,
    ) -> Option<Self> {
        let marks = ThoughtMarks::of(format);
        let encode = |text| tokenizer.encode(text, AddSpecialTokens::No).ok();
        let whole = encode(marks.ending)?;
        let ending = if whole.len() <= MOST_BEYOND { whole } else { encode(marks.close)? };
        let most_tokens = budget.min((budget + MOST_BEYOND).saturating_sub(ending.len()));
        let meter = ThoughtMeter::new(marks, thinking);
        Some(Self { meter, most_tokens, ending: ending.into(), grammar: None })
    }

    /// The same, with what holds the answer behind the thought.
    pub(crate) fn with_grammar(self, grammar: Option<Grammar>) -> Self {
        Self { grammar, ..self }
    }
}

/// The limit of one choice, and what it needs to go on.
pub(crate) struct ThoughtEnd {
    limit: ThoughtLimit,
    request: Request,
    is_used: bool,
}

impl ThoughtEnd {
    /// For choice `index` of a request that was submitted as `request`.
    pub(crate) fn new(limit: ThoughtLimit, request: &Request, index: usize) -> Self {
        let mut request = Request { n: 1, prompt_logprobs: None, ..request.clone() };
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        Self { limit, request, is_used: false }
    }

    /// Takes a token and its text; whether the thought has to end behind it.
    pub(crate) fn push(&mut self, token_id: u32, text: &str) -> bool {
        if self.is_used {
            return false;
        }
        self.request.prompt.push(token_id);
        let tokens = self.limit.meter.push(text);
        tokens.is_some_and(|tokens| tokens >= self.limit.most_tokens)
    }

    /// Whether the sequence goes on from one that was given up.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Whether each token comes with its log-probability.
    pub(crate) fn reports_logprobs(&self) -> bool {
        self.request.sampling.logprobs.is_some()
    }

    /// The tokens that close the thought.
    pub(crate) fn ending(&self) -> Arc<[u32]> {
        Arc::clone(&self.limit.ending)
    }

    /// The request that goes on behind the closed thought, after so many generated tokens; `None` where no token may follow.
    pub(crate) fn go_on(&mut self, num_generated: usize) -> Option<Request> {
        self.is_used = true;
        self.limit.meter.close();
        let mut request = self.request.clone();
        request.prompt.extend_from_slice(&self.limit.ending);
        request.grammar = self.limit.grammar.clone();
        request.num_generated = num_generated;
        (num_generated < request.sampling.max_tokens).then_some(request)
    }
}
