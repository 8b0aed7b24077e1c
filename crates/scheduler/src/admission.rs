//! Admission: the choice of the waiting sequences that start, and the cached blocks with which they start.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::batch::Batch;
use crate::block_manager::PrefixChain;
use crate::callers::CallerTurn;
use crate::prefix_cache::num_common;
use crate::scheduler::Scheduler;
use crate::sequence::{Sequence, State, Turn, WaitingKey};
use crate::state_slots::KeptState;
use crate::symbol::Symbol;
use crate::{BlockId, CallerId, SchedulingPolicy, SeqId};

/// Number of waiting sequences that `LongestPrefix` compares.
const WINDOW: usize = 64;
/// Number of later sequences that may overtake a waiting one under `LongestPrefix`.
const MAX_OVERTAKEN: u32 = 32;

/// State of the admissions of one step.
pub(crate) struct Admissions {
    /// Whether only callers that have not been served since they arrived may start something.
    of_new_callers: bool,
    /// Callers that start nothing more in this step.
    done: Vec<CallerId>,
    /// Running sequences whose prompts are not in the cache yet.
    computing: Vec<SeqId>,
    candidates: HashMap<CallerId, Candidates>,
}

/// The waiting sequences of one caller that may start, in order.
struct Candidates {
    ids: Vec<SeqId>,
    num_tried: usize,
    /// Whether one of them has started.
    was_admitted: bool,
}

impl Admissions {
    fn is_open_to(&self, turn: &CallerTurn) -> bool {
        !(self.done.contains(&turn.caller) || self.of_new_callers && turn.was_served)
    }
}

impl Scheduler {
    /// Makes the admissions of a step, without those of `barred` callers. Returns `None` if nothing can start. If
    /// running sequences have just lost their blocks, only new callers start something.
    pub(crate) fn admissions(&self, had_room: bool, barred: Vec<CallerId>) -> Option<Admissions> {
        let mut admissions = Admissions {
            of_new_callers: !had_room,
            done: barred,
            computing: Vec::new(),
            candidates: HashMap::new(),
        };
        let may_admit = self.running.len() < self.config.max_num_seqs
            && self.callers.turns().any(|turn| admissions.is_open_to(turn));
        if !may_admit {
            return None;
        }
        admissions.computing = self.computing();
        Some(admissions)
    }

    /// The waiting caller whose turn it is, except those in `except`. Returns `None` if nothing more can start in
    /// this step.
    pub(crate) fn next_to_admit(
        &self,
        admissions: &Admissions,
        except: impl Fn(CallerId) -> bool,
        batch: &Batch,
    ) -> Option<CallerTurn> {
        if !self.has_slot(batch) {
            return None;
        }
        let may_start = |turn: &&CallerTurn| admissions.is_open_to(turn) && !except(turn.caller);
        self.callers.turns().find(may_start).copied()
    }

    /// Starts the next waiting sequence of a caller, or ends its admissions for this step. Returns whether anything
    /// more may start.
    ///
    /// If a sequence does not fit, the admissions end, since short prompts could otherwise starve a long one. Other
    /// callers overtake a sequence whose newest token, or what may follow it, is not known yet.
    pub(crate) fn admit_next(
        &mut self,
        caller: CallerId,
        admissions: &mut Admissions,
        batch: &mut Batch,
    ) -> bool {
        let mut candidates = admissions.candidates.remove(&caller).unwrap_or_else(|| Candidates {
            ids: Vec::new(),
            num_tried: 0,
            was_admitted: true,
        });
        while let Some(id) = self.next_candidate(caller, &mut candidates) {
            if self.is_prefix_coming(id, &admissions.computing) {
                continue;
            }
            if !self.admit(id, batch) {
                admissions.done.push(caller);
                return !self.sequences[&id].is_ready();
            }
            candidates.was_admitted = true;
            self.count_overtaken(id, &candidates.ids);
            self.run(id, usize::MAX, batch);
            admissions.computing.push(id);
            admissions.candidates.insert(caller, candidates);
            return true;
        }
        admissions.done.push(caller);
        true
    }

    /// The next sequence to try. The candidates are sorted again when all were tried, as long as some were admitted.
    fn next_candidate(&self, caller: CallerId, candidates: &mut Candidates) -> Option<SeqId> {
        if candidates.num_tried == candidates.ids.len() && candidates.was_admitted {
            let ids = self.candidates(caller);
            *candidates = Candidates { ids, num_tried: 0, was_admitted: false };
        }
        let next = candidates.ids.get(candidates.num_tried).copied();
        candidates.num_tried += 1;
        next
    }

    /// The running sequences whose prompts are not in the cache yet, or none if they do not matter. Models with
    /// recurrent states do not wait for prefixes, because the state of a prefix is kept only after a second sequence
    /// had it.
    fn computing(&self) -> Vec<SeqId> {
        if self.config.policy == SchedulingPolicy::Fcfs
            || !self.config.enable_prefix_caching
            || self.state_slots.are_needed()
        {
            return Vec::new();
        }
        let ids = self.running.iter().map(|(.., id)| *id);
        ids.filter(|id| self.is_computing(&self.sequences[id])).collect()
    }

    fn is_computing(&self, seq: &Sequence) -> bool {
        seq.prefix_chain.num_blocks < seq.num_prompt_tokens / self.config.block_size
    }

    /// Whether another sequence of the caller is computing a part of this one's prefix that is not in the cache. It
    /// is worth waiting for, unless this sequence was overtaken too often.
    fn is_prefix_coming(&self, id: SeqId, computing: &[SeqId]) -> bool {
        let seq = &self.sequences[&id];
        if self.config.policy == SchedulingPolicy::Fcfs || self.is_due(seq) {
            return false;
        }
        let tokens = seq.cacheable_tokens();
        let num_coming = |other: &Sequence| {
            let num_tokens = seq.items.last_cut(num_common(tokens, &other.symbols));
            let num_blocks = num_tokens / self.config.block_size;
            let is_coming = other.caller == seq.caller
                && other.cache_root == seq.cache_root
                && other.prefix_chain.num_blocks < num_blocks;
            if is_coming { num_blocks } else { 0 }
        };
        let num_blocks = computing.iter().map(|other| num_coming(&self.sequences[other])).max();
        num_blocks.is_some_and(|num_blocks| num_blocks > self.num_cached_blocks(id))
    }

    /// Whether a waiting sequence is next, for any cached prefix.
    fn is_due(&self, seq: &Sequence) -> bool {
        seq.state == State::Waiting(Turn::Preempted) || seq.num_overtaken >= MAX_OVERTAKEN
    }

    fn has_slot(&self, batch: &Batch) -> bool {
        batch.budget > 0
            && self.running.len() < self.config.max_num_seqs
            && (self.running.is_empty()
                || self.blocks.num_free() > self.watermark()
                || self.num_free_without_pins() > self.watermark())
    }

    /// Blocks that admission leaves to the running sequences, so that a new one is not preempted at once.
    pub(crate) fn watermark(&self) -> usize {
        self.config.num_blocks.div_ceil(100)
    }

    /// Waiting sequences of a caller with its best priority, in the order of admission.
    fn candidates(&self, caller: CallerId) -> Vec<SeqId> {
        let waiting = self.callers.waiting(caller);
        let Some((of_caller, own, _, first)) = waiting.first() else { return Vec::new() };
        if self.config.policy == SchedulingPolicy::Fcfs {
            return vec![*first];
        }
        let is_best = |key: &&WaitingKey| key.0 == *of_caller && key.1 == *own;
        let window = waiting.iter().take_while(is_best).take(WINDOW);
        let mut ranked: Vec<_> = window
            .map(|(.., turn, id)| {
                let seq = &self.sequences[id];
                let num_cached =
                    if self.is_due(seq) { usize::MAX } else { self.num_cached_blocks(*id) };
                (*turn, Reverse(num_cached), *id)
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., id)| id).collect()
    }

    fn num_cached_blocks(&self, id: SeqId) -> usize {
        self.find_cached(&self.sequences[&id], true).blocks.len()
    }

    fn count_overtaken(&mut self, admitted: SeqId, candidates: &[SeqId]) {
        for id in candidates.iter().filter(|id| **id < admitted) {
            let seq = self.sequences.get_mut(id).expect("candidates are known");
            seq.num_overtaken += u32::from(seq.state != State::Running);
        }
    }

    /// Gives a waiting sequence the blocks of all its tokens, and takes cached ones from the prefix cache. Returns
    /// false if they do not fit, or if its newest token, or what may follow it, is not known yet.
    pub(crate) fn admit(&mut self, id: SeqId, batch: &mut Batch) -> bool {
        let seq = &self.sequences[&id];
        if !seq.is_ready() {
            return false;
        }
        let mut found = self.find_cached(seq, true);
        if seq.swapped.slots.len() > found.blocks.len() {
            // The next block is swapped in, with at least as many tokens.
            found.partial_block = None;
        }
        let num_target = self.blocks.blocks_for(seq.num_target_tokens());
        let room = self.make_room_for(&found.blocks, num_target - found.blocks.len());
        let Some(mut num_spare) = room else { return false };
        let is_at_hand = |scheduler: &Self, found: &Found, num_spare: usize| {
            let mut partial_block = found.partial_block.iter();
            partial_block.all(|(src, _)| scheduler.blocks.ref_count(*src) > 0 || num_spare > 0)
        };
        let seq = &self.sequences[&id];
        let blocks_end = found.blocks.len() * self.config.block_size;
        let needs_partial_block =
            found.state.is_some() || seq.items.whole_around(blocks_end).is_some();
        if needs_partial_block && !is_at_hand(self, &found, num_spare) {
            // That state is valid, or a whole item not cut, only with the copied prefix of a block.
            found = self.find_cached(seq, false);
            let room = self.make_room_for(&found.blocks, num_target - found.blocks.len());
            let Some(less) = room else { return false };
            num_spare = less;
        }
        let mut state_slot = None;
        if self.state_slots.are_needed() {
            state_slot = self.state_slots.begin(found.state.as_ref());
            if state_slot.is_none() {
                return false;
            }
        }
        let (num_found, num_new) = (found.blocks.len(), num_target - found.blocks.len());
        // They are held before anything is allocated, so that they are not evicted for it.
        found.beyond.iter().rev().for_each(|block| self.blocks.touch(*block));
        found.blocks.iter().for_each(|block| self.blocks.share(*block));
        let partial_block =
            found.partial_block.filter(|(src, _)| self.blocks.ref_count(*src) > 0 || num_spare > 0);
        partial_block.iter().for_each(|(src, _)| self.blocks.share(*src));
        let mut block_table = found.blocks;
        let mut num_computed_tokens = block_table.len() * self.config.block_size;
        block_table
            .extend((0..num_new).map(|_| self.blocks.allocate().expect("there is room for it")));
        if let Some((src, num_common)) = partial_block {
            batch.copy(src, block_table[found.chain.num_blocks]);
            num_computed_tokens += num_common;
        }
        let seq = self.sequences.get_mut(&id).expect("waiting sequences are known");
        let State::Waiting(turn) = seq.state else {
            unreachable!("only waiting ones are admitted")
        };
        self.callers.start(seq.caller, &seq.waiting_key(turn));
        let swapped = std::mem::take(&mut seq.swapped);
        seq.num_computed_tokens = num_computed_tokens.max(swapped.num_tokens);
        self.swap_space.bring_back(swapped, &block_table, num_found);
        seq.block_table = block_table;
        seq.prefix_chain = found.chain;
        seq.state = State::Running;
        seq.state_slot = state_slot;
        // The next sequence with all of these blocks as its prefix should find their state.
        seq.state_to_keep = found.to_keep.filter(|(at, _)| *at > seq.num_computed_tokens);
        seq.state_to_keep.take_if(|(at, _)| seq.items.whole_around(*at).is_some());
        self.running.insert(seq.running_key());
        self.count_cached(id, num_found * self.config.block_size);
        true
    }

    /// Cached blocks for a sequence that starts. In models with recurrent states they end where a state is kept. They do
    /// not end within a whole item.
    pub(crate) fn find_cached(&self, seq: &Sequence, with_partial_block: bool) -> Found {
        let mut tokens = seq.cacheable_tokens();
        loop {
            let found = self.find_prefix(seq, tokens, with_partial_block);
            match seq.items.whole_around(found.num_tokens(self.config.block_size)) {
                Some(item) => tokens = &tokens[..item.start],
                None => return found,
            }
        }
    }

    /// Cached blocks for the first `tokens` of a sequence.
    fn find_prefix(&self, seq: &Sequence, tokens: &[Symbol], with_partial_block: bool) -> Found {
        let block_size = self.config.block_size;
        let mut chain = seq.prefix_chain.clone();
        if !self.state_slots.are_needed() {
            let blocks = self.blocks.find_prefix(&mut chain, tokens);
            let rest = &tokens[blocks.len() * block_size..];
            let partial_block =
                self.blocks.find_partial_block(&chain, rest).filter(|_| with_partial_block);
            let (state, beyond, to_keep) = (None, Vec::new(), None);
            return Found { blocks, chain, partial_block, state, beyond, to_keep };
        }
        // The chain before each block, and the blocks.
        let mut chains = vec![chain.clone()];
        let mut blocks = Vec::new();
        let ends = (1..=tokens.len() / block_size).map(|num_blocks| num_blocks * block_size);
        for end in ends.skip(chain.num_blocks) {
            let found = self.blocks.find_prefix(&mut chain, &tokens[..end]);
            let [block] = found[..] else { break };
            blocks.push(block);
            chains.push(chain.clone());
        }
        let end = KeptState::new(&chain, &[]);
        let to_keep = (!blocks.is_empty()).then(|| (blocks.len() * block_size, end));
        for (num_blocks, chain) in chains.into_iter().enumerate().rev() {
            let behind = &tokens[num_blocks * block_size..];
            let partial_block =
                self.blocks.find_partial_block(&chain, behind).filter(|_| with_partial_block);
            let most = partial_block.map_or(0, |of| of.1).min(block_size - 1);
            let Some(state) = self.state_slots.longest(&chain, &behind[..most]) else {
                continue;
            };
            let beyond = blocks.split_off(num_blocks);
            let partial_block = partial_block.map(|(block, _)| (block, state.rest.len()));
            let partial_block = partial_block.filter(|(_, count)| *count > 0);
            return Found { blocks, chain, partial_block, state: Some(state), beyond, to_keep };
        }
        let (chain, partial_block, state) = (seq.prefix_chain.clone(), None, None);
        Found { blocks: Vec::new(), chain, partial_block, state, beyond: blocks, to_keep }
    }

    /// Gives up pins until a new sequence can have `num_new` blocks besides the cached ones. Returns the number of
    /// blocks that are free beyond that. Returns `None`, and gives up no pin, if that is impossible.
    fn make_room_for(&mut self, cached: &[BlockId], num_new: usize) -> Option<usize> {
        let least_free = num_new + if self.running.is_empty() { 0 } else { self.watermark() };
        // A cached block without a holder counts as free now, but no longer when the sequence holds it.
        let num_unheld = |scheduler: &Self| {
            cached.iter().filter(|block| scheduler.blocks.ref_count(**block) == 0).count()
        };
        while least_free + num_unheld(self) > self.blocks.num_free() {
            let num_revived = cached.iter().filter(|block| self.is_reclaimable(**block)).count();
            let is_possible = least_free + num_revived <= self.num_free_without_pins();
            if !is_possible || !self.give_up_oldest_pin() {
                return None;
            }
        }
        Some(self.blocks.num_free() - least_free - num_unheld(self))
    }

    /// Counts the tokens of whole blocks from the cache, when a sequence is admitted for the first time.
    fn count_cached(&mut self, id: SeqId, num_tokens: usize) {
        let seq = self.sequences.get_mut(&id).expect("running sequences are known");
        if seq.num_cached_tokens.is_some() {
            return;
        }
        seq.num_cached_tokens = Some(num_tokens);
        if self.config.enable_prefix_caching && seq.next_prompt_logits.is_none() {
            self.num_prefix_queries += seq.num_prompt_tokens as u64;
            self.num_prefix_hits += num_tokens as u64;
        }
    }
}

/// Cached blocks and state for a sequence.
pub(crate) struct Found {
    /// The blocks that it can share.
    pub(crate) blocks: Vec<BlockId>,
    chain: PrefixChain,
    /// A block whose prefix it can copy, and the number of tokens of that prefix.
    partial_block: Option<(BlockId, usize)>,
    /// The state after all of these tokens.
    state: Option<KeptState>,
    /// The cached blocks that follow. They are of no use, since no state is kept after them.
    beyond: Vec<BlockId>,
    /// Number of tokens in all cached blocks, after which the sequence's state should be kept, and the key of that
    /// state.
    to_keep: Option<(usize, KeptState)>,
}

impl Found {
    /// Number of tokens whose keys and values they hold.
    fn num_tokens(&self, block_size: usize) -> usize {
        self.blocks.len() * block_size + self.partial_block.map_or(0, |(_, count)| count)
    }
}
