//! One sequence: its tokens, the number of computed ones, and the blocks that hold them.

use std::ops::Range;
use std::sync::Arc;

use crate::block_manager::PrefixChain;
use crate::prefix_cache::CacheRoot;
use crate::prompt_items::PromptItems;
use crate::state_slots::KeptState;
use crate::step::{LogitsFor, StateSlot, TokenSource};
use crate::swap_space::Swapped;
use crate::symbol::Symbol;
use crate::{BlockId, Caller, CallerId, EncoderSlot, Item, RopePositions, SchedulerConfig, SeqId};

/// A request for `n` sequences that continue one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSequence {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// Parts of the prompt that are not text, in order and without overlap. Each begins and ends with its
    /// placeholder. The encoder may run again for an item as long as the sequence is not removed.
    pub items: Vec<Item>,
    /// Rope positions, if they differ from the positions in the sequence: as many as the prompt has tokens.
    pub rope: Option<Arc<RopePositions>>,
    /// Number of sequences. The prompt is computed once, and they share its blocks.
    pub n: usize,
    /// Priority among the caller's sequences. Lower values run first, and equal ones in the order of arrival.
    pub priority: i32,
    /// The caller and its weight.
    pub caller: Caller,
    /// Priority among the sequences of all callers. Lower values run first, and shares matter between callers of
    /// equal priority.
    pub caller_priority: i32,
    /// Salt of the prefix cache. Sequences share cached blocks only with sequences of the same salt.
    pub cache_salt: Option<Arc<str>>,
    /// First prompt position from which on the logits of every prompt position are output. Each position's logits are
    /// computed exactly once per request.
    pub prompt_logits_from: Option<usize>,
    /// Largest number of tokens after the prompt, appended ones included. The last of them is sampled and never
    /// computed. With 0 the sequence rests when its prompt is computed, until it is removed.
    pub max_tokens: usize,
    /// Whether a step may be scheduled for it before its newest token is known. Such a step computes the newest token.
    /// If the sample of the step turns out not to be wanted, it is [taken back](crate::Scheduler::retract).
    pub runs_ahead: bool,
}

impl NewSequence {
    /// One sequence of the default caller that continues `prompt` to the end of the context and runs ahead, with the
    /// default priority, no salt and no prompt logits.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            items: Vec::new(),
            rope: None,
            n: 1,
            priority: 0,
            caller: Caller::default(),
            caller_priority: 0,
            cache_salt: None,
            prompt_logits_from: None,
            max_tokens: usize::MAX,
            runs_ahead: true,
        }
    }
}

/// A sequence that waits or runs. Tokens sampled by an uncommitted step count as tokens, though their ids are not
/// known.
#[derive(Clone)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    /// Known token ids: the prompt, then the generated ones.
    pub(crate) tokens: Vec<u32>,
    /// The content of each of `tokens`.
    pub(crate) symbols: Vec<Symbol>,
    pub(crate) items: PromptItems,
    /// Slots of the next items whose tokens are not all computed, in order. Only the last of them may be unfinished.
    pub(crate) slots: Vec<ItemSlot>,
    rope: Option<Arc<RopePositions>>,
    pub(crate) num_prompt_tokens: usize,
    /// Number of tokens sampled by uncommitted steps.
    pub(crate) num_pending: usize,
    /// Whether it is left out of steps, since the tokens that may follow its newest one are not known yet.
    pub(crate) is_held: bool,
    /// Index of its token among the samples of the step that ran it last.
    pub(crate) sample_index: u32,
    /// Largest number of positions that are computed. The last sampled token needs no successor, so it is not computed.
    pub(crate) max_computed_tokens: usize,
    /// Rows that the budget cuts end at multiples of this number.
    row_multiple: usize,
    /// Number of tokens whose keys and values are in `block_table`, those of uncommitted steps included.
    pub(crate) num_computed_tokens: usize,
    pub(crate) block_table: Vec<BlockId>,
    /// Slot of its recurrent state while it runs, for models with such states.
    pub(crate) state_slot: Option<StateSlot>,
    /// Number of tokens after which its state should be kept, because others have the same prefix and no state is
    /// kept for it.
    pub(crate) state_to_keep: Option<(usize, KeptState)>,
    /// Its blocks in host memory while it waits. It has none while it runs.
    pub(crate) swapped: Swapped,
    /// The committed full blocks of `block_table`.
    pub(crate) prefix_chain: PrefixChain,
    /// Number of prompt tokens in whole cached blocks when it was first admitted; `None` before.
    pub(crate) num_cached_tokens: Option<usize>,
    pub(crate) priority: i32,
    pub(crate) caller: CallerId,
    pub(crate) caller_priority: i32,
    /// Number of computed tokens that it lost when it was preempted.
    pub(crate) num_lost_tokens: usize,
    pub(crate) num_preemptions: u32,
    /// Id of the step before it began to wait.
    pub(crate) waits_since: u64,
    pub(crate) cache_root: CacheRoot,
    pub(crate) sample: bool,
    pub(crate) runs_ahead: bool,
    /// First prompt position whose logits are still to be output; `None` if none are.
    pub(crate) next_prompt_logits: Option<usize>,
    /// Whether a committed step completed the prompt.
    pub(crate) is_prompt_computed: bool,
    /// Sequences that start from this prompt when it is complete. Removed ones may still be listed here.
    pub(crate) siblings: Vec<SeqId>,
    pub(crate) state: State,
    /// Id of the step that ran it last.
    pub(crate) last_step: u64,
    /// Id of the newest step whose sample was taken back.
    pub(crate) retracted_in: Option<u64>,
    /// Number of times that a later arrival was admitted before this one.
    pub(crate) num_overtaken: u32,
}

/// The slot of an item that a sequence holds.
#[derive(Clone, Copy)]
pub(crate) struct ItemSlot {
    /// Index of the item.
    pub(crate) item: usize,
    pub(crate) slot: EncoderSlot,
}

/// State of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Waiting(Turn),
}

/// Order of a caller's waiting sequences of equal priority: preempted ones resume before others start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    Preempted,
    New,
}

/// Order of running sequences, which begins with the priority among callers. The last one of a caller is preempted
/// first.
pub(crate) type RunningKey = (i32, i32, SeqId);
/// Order of a caller's waiting sequences, which begins with the priority among callers. The first one is admitted
/// first.
pub(crate) type WaitingKey = (i32, i32, Turn, SeqId);

impl Sequence {
    /// A sequence that waits. `items` are those of `new`.
    pub(crate) fn new(
        id: SeqId,
        new: NewSequence,
        items: PromptItems,
        config: &SchedulerConfig,
    ) -> Self {
        let sample = new.max_tokens > 0;
        let max_tokens = new.prompt.len().saturating_add(new.max_tokens).min(config.max_model_len);
        let caller = new.caller.id;
        let cache_root = CacheRoot::new(config.prefix_cache_scope, caller, new.cache_salt);
        Self {
            id,
            num_prompt_tokens: new.prompt.len(),
            symbols: items.symbols(&new.prompt),
            tokens: new.prompt,
            slots: Vec::new(),
            rope: new.rope,
            num_pending: 0,
            is_held: false,
            sample_index: 0,
            max_computed_tokens: max_tokens - usize::from(sample),
            row_multiple: config.row_multiple,
            num_computed_tokens: 0,
            block_table: Vec::new(),
            state_slot: None,
            state_to_keep: None,
            swapped: Swapped::default(),
            prefix_chain: PrefixChain::new(cache_root.clone(), caller),
            num_cached_tokens: None,
            priority: new.priority,
            caller,
            caller_priority: new.caller_priority,
            num_lost_tokens: 0,
            num_preemptions: 0,
            waits_since: 0,
            cache_root,
            sample,
            runs_ahead: new.runs_ahead,
            next_prompt_logits: new.prompt_logits_from.map(|start| items.last_cut(start)),
            items,
            is_prompt_computed: false,
            siblings: Vec::new(),
            state: State::Waiting(Turn::New),
            last_step: 0,
            retracted_in: None,
            num_overtaken: 0,
        }
    }

    /// Adds known tokens, which are text.
    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.symbols.extend(tokens.iter().map(|token| Symbol::text(*token)));
    }

    pub(crate) fn num_tokens(&self) -> usize {
        self.tokens.len() + self.num_pending
    }

    /// Number of tokens that can be computed now.
    pub(crate) fn num_new_tokens(&self) -> usize {
        if self.is_held { 0 } else { self.num_target_tokens() - self.num_computed_tokens }
    }

    /// Whether its newest token is known, and the tokens that may follow it.
    pub(crate) fn is_ready(&self) -> bool {
        self.num_pending == 0 && !self.is_held
    }

    /// Number of computed tokens once nothing is left to compute now.
    pub(crate) fn num_target_tokens(&self) -> usize {
        let num_tokens = if self.runs_ahead { self.num_tokens() } else { self.tokens.len() };
        num_tokens.min(self.max_computed_tokens)
    }

    /// Number of new tokens that one row may hold. A row that the budget cuts ends at a multiple of `row_multiple`, if it reaches one
    /// and no items follow, which have borders of their own. A row ends where a state is to be kept. Prompt positions whose
    /// logits were delivered before a preemption get rows of their own, so that logits are output exactly once.
    pub(crate) fn num_row_tokens(&self, budget: usize) -> usize {
        let mut num_tokens = self.num_new_tokens().min(budget);
        let has_items = self.items.after(self.num_computed_tokens).next().is_some();
        if num_tokens < self.num_new_tokens() && !has_items {
            let behind = (self.num_computed_tokens + num_tokens) % self.row_multiple;
            num_tokens -= if behind < num_tokens { behind } else { 0 };
        }
        if let Some((at, _)) = self.state_to_keep {
            num_tokens = num_tokens.min(at - self.num_computed_tokens);
        }
        match self.due_prompt_logits() {
            Some(start) if start > self.num_computed_tokens => {
                num_tokens.min(start - self.num_computed_tokens)
            }
            _ => num_tokens,
        }
    }

    /// End of the next row, which computes no position from `limit` on. A whole item is not cut. It exceeds the budget
    /// if it comes first in the row, and otherwise waits for the next row.
    pub(crate) fn row_end(&self, budget: usize, limit: usize) -> usize {
        let start = self.num_computed_tokens;
        debug_assert!(self.items.whole_around(start).is_none(), "a whole item is cut");
        let end = limit.min(start + self.num_row_tokens(budget));
        match self.items.whole_around(end) {
            Some(item) if item.start == start => item.end,
            Some(item) => item.start,
            None => end,
        }
    }

    /// Whether a row of one token computes all that can be computed now. That token is text.
    pub(crate) fn is_decode(&self) -> bool {
        self.num_new_tokens() == 1 && !self.items.contain(self.num_computed_tokens)
    }

    /// Whether all tokens that can be computed now are known, follow the prompt, and are more than one.
    pub(crate) fn is_run(&self) -> bool {
        self.num_new_tokens() > 1
            && self.num_pending == 0
            && self.is_prompt_computed
            && self.num_computed_tokens >= self.num_prompt_tokens
    }

    /// Logits of a row that starts at the first token that is not computed.
    pub(crate) fn row_logits(&self, samples: &[SeqId]) -> LogitsFor {
        if self.due_prompt_logits() == Some(self.num_computed_tokens) {
            LogitsFor::All
        } else if samples.is_empty() {
            LogitsFor::None
        } else {
            LogitsFor::Last
        }
    }

    /// First prompt position whose logits are still to be output.
    fn due_prompt_logits(&self) -> Option<usize> {
        self.next_prompt_logits.filter(|start| *start < self.num_prompt_tokens)
    }

    /// Tokens whose blocks may be taken from the prefix cache. The last token is always computed, for its logits, and
    /// so is each position whose prompt logits are to be output.
    pub(crate) fn cacheable_tokens(&self) -> &[Symbol] {
        let limit = self.num_target_tokens() - 1;
        &self.symbols[..self.due_prompt_logits().map_or(limit, |start| start.min(limit))]
    }

    /// Source of the token at `position`.
    pub(crate) fn token_source(&self, position: usize) -> TokenSource {
        let Some(token) = self.tokens.get(position) else {
            return TokenSource::PreviousRow(self.sample_index);
        };
        let Some(index) = self.symbols[position].index() else { return TokenSource::Id(*token) };
        let slot = self.slot_of(self.items.first_after(position));
        TokenSource::Embedding { slot: slot.expect("a row's items are held"), index }
    }

    /// Slot of an item, if the sequence holds it.
    pub(crate) fn slot_of(&self, item: usize) -> Option<EncoderSlot> {
        self.slots.iter().find(|held| held.item == item).map(|held| held.slot)
    }

    /// Rope positions of a row. Empty if they are the positions in the sequence.
    pub(crate) fn rope_positions(&self, row: Range<usize>) -> Vec<[u32; 3]> {
        let Some(rope) = &self.rope else { return Vec::new() };
        let after_prompt =
            |position: usize| [(position as u32).saturating_add_signed(rope.offset); 3];
        let of = |position| rope.prompt.get(position).copied();
        row.map(|position| of(position).unwrap_or_else(|| after_prompt(position))).collect()
    }

    /// The known tokens that are computed.
    pub(crate) fn computed_tokens(&self) -> &[Symbol] {
        &self.symbols[..self.num_computed_tokens.min(self.symbols.len())]
    }

    /// Counts a row of `num_tokens` tokens as computed.
    pub(crate) fn advance(&mut self, num_tokens: usize, step: u64) {
        let start = self.num_computed_tokens;
        self.num_computed_tokens += num_tokens;
        self.last_step = step;
        if self.due_prompt_logits() == Some(start) {
            self.next_prompt_logits = Some(self.num_computed_tokens);
        }
    }

    /// Takes the slots of the items whose tokens are all computed.
    pub(crate) fn take_read_slots(&mut self) -> impl Iterator<Item = EncoderSlot> {
        let num_read = self.items.first_after(self.num_computed_tokens);
        let num_slots = self.slots.partition_point(|held| held.item < num_read);
        self.slots.drain(..num_slots).map(|held| held.slot)
    }

    /// Resets it for a new start, and returns its blocks.
    pub(crate) fn reset(&mut self) -> Vec<BlockId> {
        self.num_computed_tokens = 0;
        self.prefix_chain = PrefixChain::new(self.cache_root.clone(), self.caller);
        self.state = State::Waiting(Turn::Preempted);
        self.state_to_keep = None;
        std::mem::take(&mut self.block_table)
    }

    /// A sequence that continues the same tokens with the same blocks, whose references the caller counts.
    pub(crate) fn fork(&self, id: SeqId) -> Self {
        Self { id, ..self.clone() }
    }

    pub(crate) fn running_key(&self) -> RunningKey {
        (self.caller_priority, self.priority, self.id)
    }

    pub(crate) fn waiting_key(&self, turn: Turn) -> WaitingKey {
        (self.caller_priority, self.priority, turn, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(new: NewSequence) -> Sequence {
        let config = SchedulerConfig { max_model_len: 8, ..crate::config::tests::VALID };
        Sequence::new(SeqId(0), new, PromptItems::default(), &config)
    }

    #[test]
    fn a_full_context_leaves_nothing_to_compute() {
        let mut seq = sequence(NewSequence::new(vec![1; 7]));
        assert_eq!(seq.num_row_tokens(5), 5);
        seq.advance(7, 1);
        assert_eq!(seq.num_new_tokens(), 0);
        seq.num_pending = 1;
        assert_eq!((seq.num_tokens(), seq.num_new_tokens()), (8, 0));
        let resting = sequence(NewSequence { max_tokens: 0, ..NewSequence::new(vec![1; 8]) });
        assert_eq!(
            resting.num_new_tokens(),
            8,
            "a prompt that is not continued may fill the context"
        );
    }

    #[test]
    fn a_row_that_the_budget_cuts_ends_at_a_multiple() {
        let config = SchedulerConfig {
            row_multiple: 4,
            max_model_len: 20,
            num_blocks: 20,
            ..crate::config::tests::VALID
        };
        let prompt = NewSequence::new(vec![1; 15]);
        let mut seq = Sequence::new(SeqId(0), prompt, PromptItems::default(), &config);
        let of_budget = |seq: &Sequence| [2, 3, 4, 7, 8, 14, 15, 30].map(|n| seq.num_row_tokens(n));
        assert_eq!(of_budget(&seq), [2, 3, 4, 4, 8, 12, 15, 15], "the last row ends anywhere");
        seq.advance(2, 1);
        assert_eq!(of_budget(&seq), [2, 2, 2, 6, 6, 13, 13, 13]);
    }

    #[test]
    fn prompt_logits_are_asked_for_once() {
        let mut seq =
            sequence(NewSequence { prompt_logits_from: Some(0), ..NewSequence::new(vec![1; 6]) });
        assert!(seq.cacheable_tokens().is_empty());
        assert_eq!(seq.row_logits(&[]), LogitsFor::All);
        seq.advance(4, 1);
        seq.reset();
        assert_eq!(seq.cacheable_tokens().len(), 4);
        assert_eq!((seq.num_row_tokens(9), seq.row_logits(&[])), (4, LogitsFor::None));
        seq.advance(4, 2);
        assert_eq!((seq.num_row_tokens(9), seq.row_logits(&[SeqId(0)])), (2, LogitsFor::All));
        seq.advance(2, 3);
        seq.reset();
        assert_eq!((seq.num_row_tokens(9), seq.row_logits(&[SeqId(0)])), (6, LogitsFor::Last));
    }

    #[test]
    fn an_unknown_token_is_taken_from_the_previous_step() {
        let mut seq = sequence(NewSequence::new(vec![5, 6]));
        seq.num_pending = 1;
        seq.sample_index = 3;
        assert_eq!(seq.token_source(1), TokenSource::Id(6));
        assert_eq!(seq.token_source(2), TokenSource::PreviousRow(3));
    }
}
