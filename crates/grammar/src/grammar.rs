//! The state of one sequence under a constraint.

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::{Error, Result};

/// Where one sequence is in its grammar. A clone goes its own way.
pub struct Grammar {
    matcher: Matcher,
    num_logits: usize,
}

/// The tokens that are allowed next: bit `id % 32` of word `id / 32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(Vec<u32>);

impl Mask {
    /// The words.
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// Whether a token is allowed.
    pub fn allows(&self, token_id: u32) -> bool {
        let word = self.0.get(token_id as usize / 32);
        word.is_some_and(|word| word >> (token_id % 32) & 1 == 1)
    }

    /// Whether nothing but these tokens is allowed.
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
    /// The state that `matcher` is in.
    ///
    /// # Errors
    /// [`Error::Constraint`] if no output at all satisfies it.
    pub(crate) fn new(matcher: Matcher, num_logits: usize) -> Result<Self> {
        let mut grammar = Self { matcher, num_logits };
        let nothing = || Error::Constraint("no output can satisfy it".to_owned());
        let first =
            grammar.clone().allowed().map_err(|error| Error::Constraint(error.to_string()))?;
        if first.0.iter().all(|word| *word == 0) {
            return Err(nothing());
        }
        if grammar.is_finished() {
            // Only the empty output is left, which no token would end.
            return Err(nothing());
        }
        grammar.matcher.invalidate_bias_cache();
        Ok(grammar)
    }

    /// The tokens that are allowed next; those that end a text are among them where it may end here.
    ///
    /// # Errors
    /// [`Error::State`] if the state has become too complex.
    pub fn allowed(&mut self) -> Result<Mask> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| state_error(&error))?;
        Ok(Mask(self.words(&mask)))
    }

    /// The one token that is allowed next, where the text that must follow leaves no choice: the only one in
    /// [`allowed`](Self::allowed) then, found without asking for the whole mask.
    pub fn forced_token(&mut self) -> Option<u32> {
        if self.is_finished() {
            return None;
        }
        // Only the first one: with more text behind it, the others may be split differently.
        self.matcher.compute_ff_tokens().first().copied()
    }

    /// Takes the token that was drawn.
    ///
    /// # Errors
    /// [`Error::State`] if it was not allowed.
    pub fn accept(&mut self, token_id: u32) -> Result<()> {
        self.matcher.consume_token(token_id).map_err(|error| state_error(&error))
    }

    /// Whether nothing may follow any more.
    pub fn is_finished(&self) -> bool {
        self.matcher.is_stopped()
    }

    fn words(&self, mask: &SimpleVob) -> Vec<u32> {
        let len = self.num_logits.div_ceil(32);
        mask.as_slice().iter().copied().chain(std::iter::repeat(0)).take(len).collect()
    }
}

impl Clone for Grammar {
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), num_logits: self.num_logits }
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}

fn state_error(error: &impl std::fmt::Display) -> Error {
    let text = error.to_string();
    Error::State(text.lines().next().unwrap_or_default().trim().to_owned())
}
