//! The scheduler's interface: sequences are added and removed, steps are planned and committed.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::block_manager::BlockManager;
use crate::callers::Callers;
use crate::encoder_cache::EncoderCache;
use crate::pins::Pins;
use crate::prefix_cache::PrefixCache;
use crate::prompt_items::PromptItems;
use crate::sequence::{RunningKey, Sequence, State, Turn};
use crate::state_slots::StateSlots;
use crate::swap_space::SwapSpace;
use crate::symbol::ItemNumbers;
use crate::{Error, NewSequence, Sampled, SchedulerConfig, SeqId, Step, item};

/// Decides which tokens run in each step and in which KV blocks.
///
/// The loop is `add`, `schedule`, execute the step, `commit`, and `remove` for each sequence that is finished or
/// cancelled. With a device that runs behind, `schedule` may be called once more before the previous step is
/// committed. A token that is not known yet is then referenced by its index among the previous step's samples. If the
/// previous step's tokens show that a sample of the newer step is not wanted, [`Scheduler::retract`] takes it back.
///
/// Callers take turns: the one with the fewest computed tokens for its weight is next. A caller that waits below its
/// share takes the slot or the blocks of another one. They are those of the newest sequence of the caller that is
/// furthest above its share.
///
/// Within a caller, prefills and waiting sequences are ordered by priority, then arrival. The last in this order
/// loses its blocks when they run out. The blocks are swapped out to host memory if there is room, and are computed
/// again otherwise. Decodes take turns if the token budget is smaller than their number, and leave a quarter of it to
/// pending prefills. Priorities are strict: higher values may wait for as long as lower ones keep arriving.
///
/// A prompt may have items, whose embeddings an encoder computes. Its work is cut into pieces, which are part of a step
/// and take some of its budget. A row ends before the first item that is not complete. The runner needs an item's input
/// until its sequence is removed, since embeddings may have to be computed again after a preemption.
///
/// Computed tokens stay in the prefix cache until their memory is needed. [`Scheduler::pin`] keeps a prefix in the
/// cache, unless running or waiting sequences need its blocks.
///
/// A sequence must be removed when it has `max_model_len` tokens, or when its prompt is computed and it does not
/// sample. Until then it rests and keeps its blocks.
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) blocks: BlockManager,
    pub(crate) sequences: HashMap<SeqId, Sequence>,
    /// Sequences that start when another one's prompt is complete, each with that other one.
    pub(crate) reserved: HashMap<SeqId, SeqId>,
    pub(crate) running: BTreeSet<RunningKey>,
    /// The waiting sequences by caller.
    pub(crate) callers: Callers,
    pub(crate) pins: Pins,
    pub(crate) swap_space: SwapSpace,
    pub(crate) state_slots: StateSlots,
    pub(crate) encoder: EncoderCache,
    pub(crate) item_numbers: ItemNumbers,
    /// Ids of the uncommitted steps that are not empty, the oldest first; at most two.
    pub(crate) in_flight: VecDeque<u64>,
    pub(crate) num_prefix_queries: u64,
    pub(crate) num_prefix_hits: u64,
    pub(crate) num_preemptions: u64,
    pub(crate) num_yielded: u64,
    pub(crate) last_step: u64,
    next_seq: u64,
}

/// Counts for metrics. Totals run from the scheduler's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Number of sequences that hold blocks.
    pub num_running: usize,
    /// Number of sequences that wait to start or to resume. Siblings that wait for their prompt are not counted.
    pub num_waiting: usize,
    /// Number of blocks of the cache.
    pub num_blocks: usize,
    /// Number of blocks that neither a sequence nor a pin holds, cached ones included.
    pub num_free_blocks: usize,
    /// Number of blocks that can be found by content, held or not.
    pub num_cached_blocks: usize,
    /// Number of blocks that pins hold.
    pub num_pinned_blocks: usize,
    /// Number of tokens looked up in the prefix cache when sequences were first admitted.
    pub num_prefix_queries: u64,
    /// Number of these tokens that were found, in whole blocks.
    pub num_prefix_hits: u64,
    /// Number of times that a running sequence lost its blocks because all running ones needed too many.
    pub num_preemptions: u64,
    /// Number of times that a running sequence gave way to another caller.
    pub num_yielded: u64,
    /// Number of blocks of preempted sequences in host memory.
    pub num_swapped_blocks: usize,
    /// Number of blocks that were swapped out.
    pub num_swapped_out: u64,
    /// Number of blocks that were swapped in.
    pub num_swapped_in: u64,
    /// Number of items that the encoder has completed.
    pub num_items_encoded: u64,
    /// Number of times that a sequence found an item complete which it had not waited for.
    pub num_item_hits: u64,
    /// Embeddings in the encoder's cache, unfinished and unused ones included.
    pub num_encoder_embeddings: usize,
    /// Embeddings that fit the encoder's cache.
    pub max_encoder_embeddings: usize,
}

impl Scheduler {
    /// Makes an empty scheduler.
    ///
    /// # Errors
    /// A size is zero or too large, or one sequence of `max_model_len` does not fit `num_blocks`.
    pub fn new(config: SchedulerConfig) -> Result<Self, Error> {
        config.validate()?;
        let prefix_cache = config.enable_prefix_caching.then(PrefixCache::default);
        Ok(Self {
            blocks: BlockManager::new(config.num_blocks as u32, config.block_size, prefix_cache),
            swap_space: SwapSpace::new(config.num_swap_blocks as u32),
            state_slots: StateSlots::new(config.num_state_slots),
            encoder: EncoderCache::new(config.num_encoder_embeddings, config.enable_prefix_caching),
            item_numbers: ItemNumbers::default(),
            config,
            sequences: HashMap::new(),
            reserved: HashMap::new(),
            running: BTreeSet::new(),
            callers: Callers::default(),
            pins: Pins::default(),
            in_flight: VecDeque::new(),
            num_prefix_queries: 0,
            num_prefix_hits: 0,
            num_preemptions: 0,
            num_yielded: 0,
            last_step: 0,
            next_seq: 0,
        })
    }

    /// Queues a request; returns the ids of its `n` sequences.
    ///
    /// # Errors
    /// The prompt is empty or leaves no room in the context, `n` is not possible, or the items or rope positions do not
    /// fit the prompt.
    pub fn add(&mut self, new: NewSequence) -> Result<Vec<SeqId>, Error> {
        let max_prompt_tokens = self.config.max_model_len - usize::from(new.max_tokens > 0);
        if new.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if new.prompt.len() > max_prompt_tokens {
            return Err(Error::PromptTooLong {
                num_prompt_tokens: new.prompt.len(),
                max_prompt_tokens,
            });
        }
        if new.n == 0 || (new.n > 1 && new.max_tokens == 0) {
            return Err(Error::InvalidN { n: new.n });
        }
        item::validate(&new, &self.config)?;
        let ids: Vec<_> = (self.next_seq..).take(new.n).map(SeqId).collect();
        self.next_seq += new.n as u64;
        self.callers.arrive(new.caller, new.caller_priority);
        let (first, siblings) = (ids[0], &ids[1..]);
        let items = PromptItems::new(&new.prompt, &new.items, &mut self.item_numbers);
        let mut seq = Sequence::new(first, new, items, &self.config);
        seq.siblings = siblings.to_vec();
        seq.waits_since = self.last_step;
        self.reserved.extend(siblings.iter().map(|sibling| (*sibling, first)));
        self.callers.insert_waiting(seq.caller, seq.waiting_key(Turn::New));
        self.sequences.insert(first, seq);
        Ok(ids)
    }

    /// Plans the next step. The step counts as executed: its tokens are computed, and its samples exist but are not
    /// known yet.
    ///
    /// # Panics
    /// Two steps are uncommitted.
    pub fn schedule(&mut self) -> Step {
        assert!(self.in_flight.len() < 2, "commit a step before scheduling a third one");
        let step = self.plan_step();
        if !step.is_empty() {
            self.in_flight.push_back(step.id);
        }
        step
    }

    /// Commits the oldest uncommitted step with its sampled tokens, in the order of its samples. A token may be present
    /// or left out if its sequence was removed since, or if it was [taken back](Self::retract). A step whose sequences are all removed is
    /// committed like any other, and so is one without rows. An empty step need not be committed.
    ///
    /// # Errors
    /// Another step is due, or the tokens do not belong to this one. Nothing is changed then.
    pub fn commit(&mut self, step: &Step, sampled: &[Sampled]) -> Result<(), Error> {
        if step.is_empty() {
            return Ok(());
        }
        if self.in_flight.front() != Some(&step.id) {
            return Err(Error::StepOutOfOrder {
                step: step.id,
                expected: self.in_flight.front().copied(),
            });
        }
        self.check_samples(step, sampled)?;
        self.in_flight.pop_front();
        for Sampled { seq, token } in sampled {
            if let Some(seq) = self.sequences.get_mut(seq)
                && seq.retracted_in != Some(step.id)
            {
                seq.extend(&[*token]);
                seq.num_pending -= 1;
                seq.is_prompt_computed = true;
            }
        }
        for row in &step.rows {
            let Some(seq) = self.sequences.get_mut(&row.seq) else { continue };
            let end = row.first_position as usize + row.tokens.len();
            seq.is_prompt_computed |= end >= seq.num_prompt_tokens;
            // A preemption may have freed some of the blocks since, which are then not registered.
            let computed = &seq.symbols[..end.min(seq.num_computed_tokens)];
            self.blocks.register(&mut seq.prefix_chain, computed, &seq.block_table);
        }
        Ok(())
    }

    /// Appends tokens that need not be sampled, since no others can follow. They count as generated, and are computed
    /// like a prompt. Unknown ids are ignored.
    ///
    /// # Errors
    /// The sequence samples a token in an uncommitted step, or the context is too short. Nothing is changed then.
    pub fn append(&mut self, id: SeqId, tokens: &[u32]) -> Result<(), Error> {
        let max_model_len = self.config.max_model_len;
        let Some(seq) = self.sequences.get_mut(&id) else { return Ok(()) };
        if seq.num_pending > 0 || !seq.is_prompt_computed {
            return Err(Error::AppendBeforeCommit { seq: id });
        }
        let num_tokens = seq.tokens.len() + tokens.len();
        if num_tokens > max_model_len {
            return Err(Error::AppendTooLong { seq: id, num_tokens, max_model_len });
        }
        seq.extend(tokens);
        Ok(())
    }

    /// Takes back the sample of the newest uncommitted step for a sequence whose tokens before it are all known. The
    /// row of the step stays: it computes the newest known token. Other tokens may be [appended](Self::append) then.
    /// Nothing changes for unknown ids, and for a sequence that no uncommitted step samples.
    ///
    /// # Errors
    /// The token before the sample is not known yet, or another sample of the sequence was taken back in a step that is
    /// uncommitted. Nothing is changed then.
    pub fn retract(&mut self, id: SeqId) -> Result<(), Error> {
        let Some(seq) = self.sequences.get_mut(&id) else { return Ok(()) };
        match seq.num_pending {
            0 => {}
            1 if seq.is_prompt_computed
                && self.in_flight.back() == Some(&seq.last_step)
                && seq.retracted_in.is_none_or(|step| !self.in_flight.contains(&step)) =>
            {
                seq.num_pending = 0;
                seq.retracted_in = Some(seq.last_step);
            }
            _ => return Err(Error::RetractBeforeCommit { seq: id }),
        }
        Ok(())
    }

    /// Lets a sequence compute its newest token once more, since the logits behind it are lost, and run ahead no
    /// longer. A recurrent state contains the token already, so a sequence with one is preempted and starts from an
    /// earlier state. Nothing changes for unknown ids, and for a sequence whose newest token is not computed.
    pub fn step_back(&mut self, id: SeqId) {
        let Some(seq) = self.sequences.get_mut(&id) else { return };
        if seq.num_pending > 0 || seq.num_computed_tokens < seq.tokens.len() {
            return;
        }
        seq.runs_ahead = false;
        if self.state_slots.are_needed() {
            self.preempt(id, false);
        } else {
            seq.num_computed_tokens -= 1;
        }
    }

    /// Whether an uncommitted step samples a token for this sequence.
    pub fn is_sampled(&self, id: SeqId) -> bool {
        self.sequences.get(&id).is_some_and(|seq| seq.num_pending > 0)
    }

    /// Leaves a sequence out of the steps until [`release`](Self::release). It keeps its blocks like any other, but no
    /// items, for which others may wait. Unknown ids are ignored.
    pub fn hold(&mut self, id: SeqId) {
        if let Some(seq) = self.sequences.get_mut(&id) {
            seq.is_held = true;
            self.encoder.release_all(seq.slots.drain(..).map(|held| held.slot));
        }
    }

    /// Ends [`hold`](Self::hold). Unknown ids are ignored.
    pub fn release(&mut self, id: SeqId) {
        if let Some(seq) = self.sequences.get_mut(&id) {
            seq.is_held = false;
        }
    }

    /// Removes a sequence that is finished or cancelled, and frees its blocks. Their content can be found until their
    /// memory is needed. Tokens that an uncommitted step samples for it are ignored. Unknown ids are ignored, too.
    pub fn remove(&mut self, id: SeqId) {
        self.reserved.remove(&id);
        let Some(mut seq) = self.sequences.remove(&id) else { return };
        let reserved = &self.reserved;
        seq.siblings.retain(|sibling| reserved.contains_key(sibling));
        if seq.siblings.is_empty() {
            self.remove_from_queue(&seq);
            self.swap_space.give_up(std::mem::take(&mut seq.swapped));
            self.give_up_memory(&mut seq);
        } else {
            self.hand_over(seq);
        }
    }

    /// Registers the computed tokens of a sequence in the prefix cache, and frees its blocks, its state slot and its
    /// items.
    pub(crate) fn give_up_memory(&mut self, seq: &mut Sequence) {
        // Steps run in order, so a sequence that finds a block runs after the step that still computes it.
        let computed = &seq.symbols[..seq.computed_tokens().len()];
        self.blocks.register_all(&mut seq.prefix_chain, computed, &seq.block_table);
        if let Some(slot) = seq.state_slot.take() {
            // The state after unknown tokens cannot be found by content, so it is not kept.
            let is_known = computed.len() == seq.num_computed_tokens;
            let state = is_known.then(|| self.blocks.end_of(&seq.prefix_chain, computed));
            self.state_slots.give_up(slot, state.flatten());
        }
        self.blocks.release(std::mem::take(&mut seq.block_table));
        self.encoder.release_all(seq.slots.drain(..).map(|held| held.slot));
    }

    /// The known tokens: the prompt, then the generated ones. Embeddings have the ids of their placeholders. Empty for
    /// an unknown id.
    pub fn tokens(&self, id: SeqId) -> &[u32] {
        self.sequence(id).map_or(&[], |seq| &seq.tokens)
    }

    /// Number of prompt tokens that were found in whole blocks of the prefix cache when the request was first
    /// admitted. It is 0 before, and for an unknown id. Parts of blocks are not counted, since their number would
    /// reveal other callers' prompts one token after the other.
    pub fn num_cached_tokens(&self, id: SeqId) -> usize {
        self.sequence(id).and_then(|seq| seq.num_cached_tokens).unwrap_or(0)
    }

    /// Whether a committed step has completed the prompt. It stays true when the sequence is preempted later.
    pub fn is_prompt_computed(&self, id: SeqId) -> bool {
        self.sequence(id).is_some_and(|seq| seq.is_prompt_computed)
    }

    /// Counts for metrics.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            num_running: self.running.len(),
            num_waiting: self.callers.num_waiting(),
            num_blocks: self.blocks.num_blocks(),
            num_free_blocks: self.blocks.num_free(),
            num_cached_blocks: self.blocks.num_cached(),
            num_pinned_blocks: self.pins.num_blocks(),
            num_prefix_queries: self.num_prefix_queries,
            num_prefix_hits: self.num_prefix_hits,
            num_preemptions: self.num_preemptions,
            num_yielded: self.num_yielded,
            num_swapped_blocks: self.swap_space.num_used(),
            num_swapped_out: self.swap_space.num_out,
            num_swapped_in: self.swap_space.num_in,
            num_items_encoded: self.encoder.num_encoded,
            num_item_hits: self.encoder.num_hits,
            num_encoder_embeddings: self.encoder.num_used(),
            max_encoder_embeddings: self.config.num_encoder_embeddings,
        }
    }

    /// The settings of the scheduler.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// The sequence with this id, or the one from which it starts.
    fn sequence(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(self.reserved.get(&id).unwrap_or(&id))
    }

    fn check_samples(&self, step: &Step, sampled: &[Sampled]) -> Result<(), Error> {
        let mut rest = sampled.iter().peekable();
        for seq in step.samples() {
            let is_wanted = |seq: &Sequence| seq.retracted_in != Some(step.id);
            if rest.next_if(|sampled| sampled.seq == seq).is_none()
                && self.sequences.get(&seq).is_some_and(is_wanted)
            {
                return Err(Error::MissingSample { step: step.id, seq });
            }
        }
        rest.next().map_or(Ok(()), |sampled| {
            Err(Error::UnexpectedSample { step: step.id, seq: sampled.seq })
        })
    }

    fn remove_from_queue(&mut self, seq: &Sequence) {
        match seq.state {
            State::Running => {
                self.running.remove(&seq.running_key());
                self.callers.remove_running(seq.caller);
            }
            State::Waiting(turn) => {
                self.callers.remove_waiting(seq.caller, &seq.waiting_key(turn));
            }
        }
    }

    /// Lets the first sibling of a removed sequence continue the incomplete prompt.
    fn hand_over(&mut self, mut seq: Sequence) {
        self.remove_from_queue(&seq);
        seq.id = seq.siblings.remove(0);
        self.reserved.remove(&seq.id);
        for sibling in &seq.siblings {
            self.reserved.insert(*sibling, seq.id);
        }
        match seq.state {
            State::Running => {
                self.running.insert(seq.running_key());
                self.callers.add_running(seq.caller);
            }
            State::Waiting(turn) => {
                self.callers.insert_waiting(seq.caller, seq.waiting_key(turn));
            }
        }
        self.sequences.insert(seq.id, seq);
    }
}

#[cfg(test)]
mod tests;
