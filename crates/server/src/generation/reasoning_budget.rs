//! Thinking budgets: reasoning that is too long is closed by the server, and the model continues with its answer.
//!
//! The engine does not know of budgets. The sequence is cancelled, and a new one continues from the generated tokens and the mark that
//! closes the reasoning. Nearly all of its tokens are in the prefix cache.

use std::sync::Arc;

use candlepower_dialect::{ReasoningFormat, ReasoningMarks, ReasoningMeter, Thinking};
use candlepower_engine::Request;
use candlepower_grammar::Grammar;
use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};

/// Maximum tokens by which reasoning may exceed its budget, because of the mark that closes it.
const MAX_BEYOND: usize = 8;

/// The limit of reasoning, for all choices of a request.
#[derive(Clone, Debug)]
pub(crate) struct ReasoningBudget {
    meter: ReasoningMeter,
    /// Number of tokens after which reasoning is closed.
    most_tokens: usize,
    /// The tokens that close reasoning.
    ending: Arc<[u32]>,
    /// The same with those that begin the content of an answer, if the format has such.
    ending_of_text: Option<Arc<[u32]>>,
    /// The constraint on the answer after the reasoning.
    grammar: Option<Grammar>,
}

impl ReasoningBudget {
    /// A limit for answers that begin at `thinking`; `None` if the tokenizer cannot write the mark.
    pub(crate) fn new(
        format: ReasoningFormat,
        thinking: Thinking,
        budget: usize,
        tokenizer: &Tokenizer,
    ) -> Option<Self> {
        let marks = ReasoningMarks::of(format);
        let encode = |text: &str| tokenizer.encode(text, AddSpecialTokens::No).ok();
        let whole = encode(marks.ending)?;
        let ending = if whole.len() <= MAX_BEYOND { whole } else { encode(marks.close)? };
        let most_tokens = budget.min((budget + MAX_BEYOND).saturating_sub(ending.len()));
        let of_text = (!marks.content.is_empty())
            .then(|| encode(&[marks.ending, marks.content].concat()))
            .flatten();
        let ending_of_text = of_text.map(Arc::from);
        let meter = ReasoningMeter::new(marks, thinking);
        Some(Self { meter, most_tokens, ending: ending.into(), ending_of_text, grammar: None })
    }

    /// Sets the constraint on the answer after the reasoning.
    pub(crate) fn with_grammar(self, grammar: Option<Grammar>) -> Self {
        Self { grammar, ..self }
    }

    /// Notes that the answer is text without constraints, so that no other reasoning can follow.
    pub(crate) fn before_text(mut self) -> Self {
        if let Some(ending) = self.ending_of_text.take() {
            self.ending = ending;
        }
        self
    }
}

/// The limit of one choice, and the request that continues it.
pub(crate) struct ReasoningEnd {
    limit: ReasoningBudget,
    request: Request,
    is_used: bool,
}

impl ReasoningEnd {
    /// The limit for choice `index` of a submitted request.
    pub(crate) fn new(limit: ReasoningBudget, request: &Request, index: usize) -> Self {
        let mut request = Request { n: 1, prompt_logprobs: None, ..request.clone() };
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        Self { limit, request, is_used: false }
    }

    /// Adds a token and its text; returns whether reasoning must be closed after it.
    pub(crate) fn push(&mut self, token_id: u32, text: &str) -> bool {
        self.request.prompt.push(token_id);
        let tokens = self.limit.meter.push(text);
        tokens.is_some_and(|tokens| tokens >= self.limit.most_tokens)
    }

    /// Whether the sequence continues a cancelled one.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Whether log-probabilities of tokens are reported.
    pub(crate) fn reports_logprobs(&self) -> bool {
        self.request.sampling.logprobs.is_some()
    }

    /// The tokens that close the reasoning.
    pub(crate) fn ending(&self) -> Arc<[u32]> {
        Arc::clone(&self.limit.ending)
    }

    /// The request that continues after the closed reasoning and `num_generated` tokens; `None` if `max_tokens` is reached.
    pub(crate) fn go_on(&mut self, num_generated: usize) -> Option<Request> {
        self.is_used = true;
        self.limit.meter.close();
        self.request.prompt.extend_from_slice(&self.limit.ending);
        let mut request = self.request.clone();
        request.grammar = self.limit.grammar.clone();
        request.num_generated = num_generated;
        (num_generated < request.sampling.max_tokens).then_some(request)
    }
}
