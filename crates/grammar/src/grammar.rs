//! The state of a constrained sequence.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::budget::Budget;
use crate::compiler::reason;
use crate::{Error, Result};

/// Tokens by which a new grammar is advanced as a test.
const NUM_TRIED: usize = 3;

/// The state of one sequence in its grammar. A clone advances independently, but shares the request's time budget.
pub struct Grammar {
    matcher: Matcher,
    num_logits: usize,
    budget: Budget,
    /// The mask of the next token, if it is computed already, as the first one is by compilation.
    mask: Option<Mask>,
    /// Tokens of the output so far.
    num_tokens: usize,
    /// The forced tokens that are known. Forced text is split into tokens once.
    forced: VecDeque<u32>,
}

/// The tokens that are allowed next: the token `id` is bit `id % 32` of word `id / 32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(Arc<[u32]>);

impl Mask {
    /// The words of the mask.
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// Whether a token is allowed.
    pub fn allows(&self, token_id: u32) -> bool {
        let word = self.0.get(token_id as usize / 32);
        word.is_some_and(|word| word >> (token_id % 32) & 1 == 1)
    }

    /// The mask for `num_logits` logits that allows these tokens.
    #[must_use]
    pub fn of(token_ids: &[u32], num_logits: usize) -> Self {
        let mut words = vec![0; num_logits.div_ceil(32)];
        for token_id in token_ids {
            if let Some(word) = words.get_mut(*token_id as usize / 32) {
                *word |= 1 << (token_id % 32);
            }
        }
        Self(words.into())
    }

    /// The mask of the tokens that both allow.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&*other.0).map(|(own, other)| own & other).collect())
    }

    /// Whether no token is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The mask of `num_words` words that allows only one token.
    fn only(token_id: u32, num_words: usize) -> Self {
        let mut words = vec![0; num_words];
        if let Some(word) = words.get_mut(token_id as usize / 32) {
            *word = 1 << (token_id % 32);
        }
        Self(words.into())
    }

    /// The first allowed token.
    fn first(&self) -> Option<u32> {
        let at = self.0.iter().position(|word| *word != 0)?;
        u32::try_from(at * 32).ok().map(|id| id + self.0[at].trailing_zeros())
    }

    /// Whether no other tokens are allowed.
    pub fn allows_only(&self, token_ids: &[u32]) -> bool {
        let mut among = token_ids.to_vec();
        among.sort_unstable();
        among.dedup();
        let num_among = among.into_iter().filter(|id| self.allows(*id)).count();
        let num_allowed: u32 = self.0.iter().map(|word| word.count_ones()).sum();
        num_among == num_allowed as usize
    }
}

impl Grammar {
    /// The state of `matcher`. `is_tested` advances a copy by some tokens.
    ///
    /// # Errors
    /// [`Error::Constraint`] if no output satisfies it, or if one of its first states is too complex.
    pub(crate) fn new(matcher: Matcher, num_logits: usize, is_tested: bool) -> Result<Self> {
        let mut grammar = Self {
            matcher,
            num_logits,
            budget: Budget::new(),
            mask: None,
            num_tokens: 0,
            forced: VecDeque::new(),
        };
        let refused = |error: Error| match error {
            Error::DeadEnd { num_tokens: 0 } => {
                Error::Constraint("no output can satisfy it".to_owned())
            }
            other => Error::Constraint(other.to_string()),
        };
        // A copy is tested, because a state cannot go back, and because what it computes on its way takes memory.
        let mut copy = is_tested.then(|| grammar.clone());
        // A finished grammar allows only the empty output, which no token would end.
        let is_finished = grammar.is_finished();
        let first = copy.as_mut().unwrap_or(&mut grammar).allowed().map_err(refused)?;
        if first.first().is_none() || is_finished {
            return Err(Error::Constraint("no output can satisfy it".to_owned()));
        }
        if let Some(mut tested) = copy {
            (grammar.mask, grammar.forced) = (Some(first.clone()), tested.forced.clone());
            tested.follow_some(first).map_err(refused)?;
        }
        grammar.matcher.invalidate_bias_cache();
        Ok(grammar)
    }

    /// The same state for another request.
    pub(crate) fn for_another_request(&self) -> Self {
        Self { budget: Budget::new(), ..self.clone() }
    }

    /// Advances by some tokens, because an overly complex grammar shows there.
    fn follow_some(&mut self, mut mask: Mask) -> Result<()> {
        for _ in 0..NUM_TRIED {
            let Some(token) = mask.first() else { break };
            match self.accept(token).and_then(|()| self.allowed()) {
                Ok(next) if !self.is_finished() => mask = next,
                Err(error @ Error::Limit(_)) => return Err(error),
                // Other tokens may be accepted.
                Ok(_) | Err(_) => break,
            }
        }
        Ok(())
    }

    /// The tokens that are allowed next, including end-of-sequence tokens if the output may end here.
    ///
    /// # Errors
    /// [`Error::Limit`] if the state has become too complex; [`Error::State`] if the library failed.
    pub fn allowed(&mut self) -> Result<Mask> {
        if let Some(mask) = &self.mask {
            return Ok(mask.clone());
        }
        let mask = match self.forced_token() {
            Some(token_id) => Mask::only(token_id, self.num_logits.div_ceil(32)),
            None => {
                let mask = |matcher: &mut Matcher| matcher.compute_mask_or_eos();
                let num_tokens = self.num_tokens;
                let mask = self.work(|matcher| {
                    mask(matcher).map_err(|error| state_error(&error, num_tokens))
                })?;
                Mask(self.words(&mask))
            }
        };
        self.mask = Some(mask.clone());
        Ok(mask)
    }

    /// The only token of [`allowed`](Self::allowed) if the next text is forced, found without computing the whole mask.
    pub fn forced_token(&mut self) -> Option<u32> {
        if self.forced.is_empty() && self.mask.is_none() && !self.is_finished() {
            // An error is left to `allowed`, which does the same work and reports it.
            self.forced = self.work(|matcher| Ok(matcher.compute_ff_tokens().into())).ok()?;
        }
        self.forced.front().copied()
    }

    /// Advances the state by a sampled token.
    ///
    /// # Errors
    /// [`Error::State`] if it was not allowed; [`Error::Limit`] if the next state is too complex.
    pub fn accept(&mut self, token_id: u32) -> Result<()> {
        self.mask = None;
        self.num_tokens += 1;
        match self.forced.pop_front() {
            Some(forced) if forced == token_id => self.budget.earn_forced(),
            _ => {
                // The known tokens belong to one way of splitting the text. After another token they no longer fit.
                self.forced.clear();
                self.budget.earn();
            }
        }
        let num_tokens = self.num_tokens;
        self.work(|matcher| {
            matcher.consume_token(token_id).map_err(|error| state_error(&error, num_tokens))
        })
    }

    fn work<T>(&mut self, work: impl FnOnce(&mut Matcher) -> Result<T>) -> Result<T> {
        self.budget.spend(|| work(&mut self.matcher))
    }

    /// The library's state.
    #[cfg(test)]
    pub(crate) fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// Whether the output is complete and no token may follow.
    pub fn is_finished(&self) -> bool {
        self.matcher.is_stopped()
    }

    fn words(&self, mask: &SimpleVob) -> Arc<[u32]> {
        let len = self.num_logits.div_ceil(32);
        mask.as_slice().iter().copied().chain(std::iter::repeat(0)).take(len).collect()
    }
}

impl Clone for Grammar {
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            num_logits: self.num_logits,
            budget: self.budget.clone(),
            mask: self.mask.clone(),
            num_tokens: self.num_tokens,
            forced: self.forced.clone(),
        }
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}

/// Parts of the library's messages for errors whose cause is the constraint.
const TOO_COMPLEX: [&str; 7] =
    ["Current row has", "oo many", "too complex", "lexer error", "fuel", "limit", "panic"];

fn state_error(error: &impl std::fmt::Display, num_tokens: usize) -> Error {
    let text = error.to_string();
    // The library has no kinds of errors, so the words decide. A limit of its own is the constraint's fault, and
    // everything else the server's.
    if TOO_COMPLEX.iter().any(|words| text.contains(words)) {
        return Error::Limit("too many alternatives at one position; write fewer alternatives");
    }
    if text.contains("NoExtensionBias") {
        return Error::DeadEnd { num_tokens };
    }
    Error::State(reason(&text))
}
