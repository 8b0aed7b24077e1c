//! Plans one step: room for the running sequences first, and then the token budget for decodes and prefill chunks.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::admission::Admissions;
use crate::block_manager::BlockManager;
use crate::callers::CallerTurn;
use crate::scheduler::Scheduler;
use crate::sequence::{Sequence, State, Turn};
use crate::step::{BlockCopy, Step, StepRow};
use crate::{BlockId, CallerId, Encode, EncoderSlot, SeqId};

/// Number of the newest charges among which a caller's own is looked up before a new one is made.
const NUM_CHARGES: usize = 16;

/// Number of rows that together gain one row's step if they run as a CUDA graph. A decode of an 8B model at one stream
/// takes 5 % longer without its graph (4.80 against 4.56 ms on an H200), and that of a smaller model more.
const GRAPH_ROWS_PER_TOKEN: usize = 16;

/// A step in preparation.
pub(crate) struct Batch {
    step: Step,
    /// Tokens that still fit into the budget.
    pub(crate) budget: usize,
    num_samples: u32,
    /// Source blocks of copies. They are held until the step is planned, so that none of them becomes a destination.
    sources: Vec<BlockId>,
    /// Slots that are reserved for sequences for which others were preempted.
    num_granted: usize,
    /// Tokens of rows and of encoder work that are not yet counted for their callers.
    charges: Vec<(CallerId, usize)>,
    /// Whether the encoder may begin an item. No sequence begins one after an earlier one could not.
    pub(crate) may_begin_item: bool,
    /// Slots that rows of the step read, and then give up. They are held until the step is planned, so that it does
    /// not free them.
    read_slots: Vec<EncoderSlot>,
}

impl Batch {
    /// Adds a block copy to the step. The caller of this function has counted a holder of `src`, and the step takes
    /// it over.
    pub(crate) fn copy(&mut self, src: BlockId, dst: BlockId) {
        self.step.copies.push(BlockCopy { src, dst });
        self.sources.push(src);
    }

    pub(crate) fn encode(&mut self, encode: Encode) {
        self.step.encodes.push(encode);
    }

    /// Counts tokens for a caller, once the next sequence is chosen.
    pub(crate) fn charge(&mut self, caller: CallerId, num_tokens: usize) {
        let mut newest = self.charges.iter_mut().rev().take(NUM_CHARGES);
        match newest.find(|(other, _)| *other == caller) {
            Some((_, counted)) => *counted = counted.saturating_add(num_tokens),
            None => self.charges.push((caller, num_tokens)),
        }
    }
}

impl Scheduler {
    /// Slots and memory are settled before the budget is shared, so that no row is ever taken back. The budget goes
    /// to decodes first, except for a share that is reserved for pending prefills. Then it goes to prefills and new
    /// sequences, and the rest to the other decodes.
    pub(crate) fn plan_step(&mut self) -> Step {
        self.last_step += 1;
        let (had_room, num_demanded) = self.make_room();
        let (granted, barred) = self.make_way(num_demanded);
        let mut batch = Batch {
            step: Step { id: self.last_step, ..Step::default() },
            budget: self.config.max_num_batched_tokens,
            num_samples: 0,
            sources: Vec::new(),
            num_granted: usize::from(granted.is_some()),
            charges: Vec::new(),
            may_begin_item: true,
            read_slots: Vec::new(),
        };
        self.assign_blocks(&mut batch);
        let (mut decodes, mut prefills) = self.runnable();
        let admissions = self.admissions(had_room, barred);
        if admissions.is_none() && self.keeps_graph(&decodes, &prefills) {
            decodes.append(&mut prefills);
        }
        let may_start = admissions.is_some() || !prefills.is_empty();
        let share = if may_start { self.prefill_share() } else { 0 };
        let (first_decodes, other_decodes) =
            decodes.split_at(decodes.len().min(batch.budget - share));
        for id in first_decodes {
            self.run(*id, 1, &mut batch);
        }
        self.run_in_turn(prefills, granted, admissions, &mut batch);
        if batch.step.rows.is_empty() && self.running.is_empty() {
            // With nothing running there is room for all, whichever sequences were preempted.
            let admissions = self.admissions(true, Vec::new());
            self.run_in_turn(Vec::new(), None, admissions, &mut batch);
        }
        for id in other_decodes {
            self.run(*id, 1, &mut batch);
        }
        self.charge(&mut batch);
        self.blocks.release(batch.sources);
        if !batch.step.is_empty() {
            batch.step.swaps = self.swap_space.take_pending();
            batch.step.state_copies = self.state_slots.finish_step();
            batch.step.freed_slots = self.encoder.take_freed();
        }
        self.encoder.release_all(batch.read_slots);
        batch.step
    }

    /// Runs prefills and starts waiting sequences, in turns of their callers. The sequence for which others were
    /// preempted goes first.
    fn run_in_turn(
        &mut self,
        prefills: Vec<SeqId>,
        granted: Option<SeqId>,
        mut admissions: Option<Admissions>,
        batch: &mut Batch,
    ) {
        batch.num_granted = 0;
        if let Some(id) = granted.filter(|_| batch.budget > 0)
            && self.admit(id, batch)
        {
            self.run(id, usize::MAX, batch);
        }
        self.charge(batch);
        let mut of_callers: HashMap<CallerId, VecDeque<SeqId>> = HashMap::new();
        for id in prefills {
            of_callers.entry(self.sequences[&id].caller).or_default().push_back(id);
        }
        let firsts = of_callers.values().map(|prefills| self.prefill_turn(prefills[0]));
        let mut turns: BTreeSet<CallerTurn> = firsts.collect();
        while batch.budget > 0 {
            let is_busy = |caller| of_callers.contains_key(&caller);
            let to_admit = admissions
                .as_ref()
                .and_then(|admissions| self.next_to_admit(admissions, is_busy, batch));
            let prefill = turns.first().filter(|turn| to_admit.is_none_or(|other| **turn < other));
            match (prefill.copied(), to_admit, &mut admissions) {
                (Some(turn), ..) => {
                    turns.remove(&turn);
                    self.run(turn.first, usize::MAX, batch);
                    self.charge(batch);
                    let rest = of_callers.get_mut(&turn.caller).expect("it has a turn");
                    rest.pop_front();
                    match rest.front() {
                        Some(next) => _ = turns.insert(self.prefill_turn(*next)),
                        None => _ = of_callers.remove(&turn.caller),
                    }
                }
                (None, Some(turn), Some(open)) => {
                    if !self.admit_next(turn.caller, open, batch) {
                        admissions = None;
                    }
                    self.charge(batch);
                }
                _ => break,
            }
        }
    }

    fn prefill_turn(&self, id: SeqId) -> CallerTurn {
        let seq = &self.sequences[&id];
        self.callers.turn_of(seq.caller, seq.caller_priority, id)
    }

    /// Counts the tokens of new rows and of encoder work for their callers.
    fn charge(&mut self, batch: &mut Batch) {
        for (caller, num_tokens) in batch.charges.drain(..) {
            self.callers.charge(caller, num_tokens);
        }
    }

    /// Adds a row of at most `most` tokens for a running sequence, as far as the budget and the items before which it
    /// has to wait allow.
    pub(crate) fn run(&mut self, id: SeqId, most: usize, batch: &mut Batch) {
        let limit = self.encode_items(id, batch);
        let seq = self.sequences.get_mut(&id).expect("running sequences are known");
        let start = seq.num_computed_tokens;
        let end = seq.row_end(batch.budget.min(most), limit);
        let num_tokens = end - start;
        if num_tokens == 0 {
            return;
        }
        batch.charge(seq.caller, num_tokens);
        let mut samples = Vec::new();
        if seq.sample && end == seq.num_tokens() {
            seq.siblings.retain(|sibling| self.reserved.contains_key(sibling));
            samples.push(id);
            samples.extend_from_slice(&seq.siblings);
        }
        let num_samples = samples.len() as u32;
        // A whole item may exceed it.
        batch.budget = batch.budget.saturating_sub(num_tokens);
        batch.step.rows.push(StepRow {
            seq: id,
            tokens: (start..end).map(|position| seq.token_source(position)).collect(),
            first_position: start as u32,
            rope_positions: seq.rope_positions(start..end),
            whole: seq.items.whole_in(start..end),
            block_table: seq.block_table[..self.blocks.blocks_for(end)].to_vec(),
            state_slot: seq.state_slot,
            logits: seq.row_logits(&samples),
            samples,
        });
        seq.advance(num_tokens, batch.step.id);
        batch.read_slots.extend(seq.take_read_slots());
        if let Some((_, state)) = seq.state_to_keep.take_if(|(at, _)| *at == end)
            && let Some(slot) = seq.state_slot
        {
            self.state_slots.keep(slot, state);
        }
        if num_samples > 0 {
            seq.sample_index = batch.num_samples;
            seq.num_pending += 1;
            batch.num_samples += num_samples;
            self.fork(id, batch.num_granted);
        }
    }

    /// Starts the siblings of a sequence whose prompt is complete from its blocks. If `max_num_seqs` is reached,
    /// except for slots that are reserved for others, they wait like preempted ones.
    fn fork(&mut self, id: SeqId, num_granted: usize) {
        let parent = self.sequences.get_mut(&id).expect("it was just run");
        let siblings = std::mem::take(&mut parent.siblings);
        for (index, sibling) in siblings.into_iter().enumerate() {
            self.reserved.remove(&sibling);
            let mut seq = self.sequences[&id].fork(sibling);
            seq.sample_index += 1 + index as u32;
            let may_run = self.running.len() + num_granted < self.config.max_num_seqs;
            let state_slot = seq.state_slot.take_if(|_| may_run);
            let state_slot = state_slot.map(|slot| self.state_slots.fork(slot));
            if may_run && state_slot != Some(None) {
                seq.block_table.iter().for_each(|block| self.blocks.share(*block));
                seq.state_slot = state_slot.flatten();
                self.running.insert(seq.running_key());
                self.callers.add_running(seq.caller);
            } else {
                seq.state_slot = None;
                seq.waits_since = self.last_step;
                seq.reset();
                self.callers.insert_waiting(seq.caller, seq.waiting_key(Turn::Preempted));
            }
            self.sequences.insert(sibling, seq);
        }
    }

    /// Makes room for the next tokens of all running sequences. It first gives up pins, and then preempts the last
    /// sequence of the caller that is furthest above its share. Returns whether none had to be preempted, and the
    /// number of blocks for the next tokens.
    fn make_room(&mut self) -> (bool, usize) {
        let mut demand = Demand::default();
        for (.., id) in &self.running {
            demand.add(&self.sequences[id], &self.blocks);
        }
        let mut had_room = true;
        while demand.num_blocks(&self.blocks) > self.blocks.num_free() {
            if self.give_up_oldest_pin() {
                continue;
            }
            had_room = false;
            let victim = self.most_above_share().expect("without sequences nothing is demanded");
            demand.subtract(&self.sequences[&victim], &self.blocks);
            self.preempt(victim, true);
            self.num_preemptions += 1;
        }
        (had_room, demand.num_blocks(&self.blocks))
    }

    /// Takes the blocks of a running sequence. It then waits to get them back from the prefix cache or host memory,
    /// or to compute all its tokens again.
    pub(crate) fn preempt(&mut self, id: SeqId, may_swap: bool) {
        let mut seq = self.sequences.remove(&id).expect("running sequences are known");
        self.running.remove(&seq.running_key());
        let num_tokens = seq.num_computed_tokens;
        if may_swap {
            let computed = &seq.block_table[..self.blocks.blocks_for(num_tokens)];
            seq.swapped = self.swap_space.bring_out(computed, num_tokens);
        }
        self.give_up_memory(&mut seq);
        seq.num_lost_tokens = num_tokens - seq.swapped.num_tokens;
        seq.num_preemptions += 1;
        seq.waits_since = self.last_step;
        seq.reset();
        self.callers.stop(seq.caller, seq.waiting_key(Turn::Preempted));
        self.sequences.insert(id, seq);
    }

    /// Gives each running sequence blocks of its own for its next tokens. The last holder of a shared block keeps it.
    fn assign_blocks(&mut self, batch: &mut Batch) {
        let mut copies = Vec::new();
        for (.., id) in &self.running {
            let seq = self.sequences.get_mut(id).expect("running sequences are known");
            let need = Need::of(seq, &self.blocks);
            if let Some((index, src)) = need.shared {
                let dst = self.blocks.copy_on_write(src).expect("make_room left enough");
                seq.block_table[index] = dst;
                copies.push((src, dst));
            }
            for _ in 0..need.num_new {
                seq.block_table.push(self.blocks.allocate().expect("make_room left enough"));
            }
        }
        for (src, dst) in copies {
            self.blocks.share(src);
            batch.copy(src, dst);
        }
    }

    /// The running sequences with something to compute, by priority and arrival: those with one token of text, and the
    /// others. If the budget may be too small for all decodes, callers take turns, and the sequence that ran least
    /// recently goes first.
    fn runnable(&self) -> (Vec<SeqId>, Vec<SeqId>) {
        let (mut decodes, mut prefills) = (Vec::new(), Vec::new());
        for (.., id) in &self.running {
            let seq = &self.sequences[id];
            match seq.num_new_tokens() {
                0 => {}
                _ if seq.is_decode() => decodes.push(*id),
                _ => prefills.push(*id),
            }
        }
        if decodes.len() + self.prefill_share() > self.config.max_num_batched_tokens {
            decodes.sort_by_key(|id| self.sequences[id].last_step);
            let of_callers: Vec<_> =
                decodes.iter().map(|id| (self.sequences[id].caller, *id)).collect();
            decodes = self.callers.interleave(&of_callers);
        }
        (decodes, prefills)
    }

    /// Whether the runs of known tokens among `prefills` get one token each in this step, so that all rows are decodes
    /// and run as one CUDA graph.
    ///
    /// A row of several tokens takes the whole step out of its graph, and that costs each other row some time. The
    /// row gains a step for each token after its first. So the longer way is taken if it loses less than the others
    /// gain. A second forward for the long rows alone, beside the graph, would always be slower: it reads all weights
    /// once more, or waits as long for its launches.
    fn keeps_graph(&self, decodes: &[SeqId], prefills: &[SeqId]) -> bool {
        let num_rows = decodes.len() + prefills.len();
        if prefills.is_empty()
            || decodes.is_empty()
            || num_rows > self.config.max_graph_rows.min(self.config.max_num_batched_tokens)
        {
            return false;
        }
        let runs = || prefills.iter().map(|id| &self.sequences[id]);
        let num_late_tokens: usize = runs().map(|seq| seq.num_new_tokens() - 1).sum();
        runs().all(Sequence::is_run) && num_late_tokens * GRAPH_ROWS_PER_TOKEN <= num_rows
    }

    /// Tokens of this step that decodes leave to pending prefills: a quarter of the budget, or one in every second
    /// step if the budget is tiny.
    fn prefill_share(&self) -> usize {
        match self.config.max_num_batched_tokens {
            0..4 => (self.last_step % 2) as usize,
            budget => budget / 4,
        }
    }
}

/// Number of blocks that the running sequences need for their next tokens.
#[derive(Default)]
struct Demand {
    num_new: usize,
    /// Number of sequences that write next into each shared block.
    num_writers: HashMap<BlockId, usize>,
}

impl Demand {
    /// Number of blocks. The last holder of a shared block writes in place, so that all but one of its holders need a
    /// copy.
    fn num_blocks(&self, blocks: &BlockManager) -> usize {
        let copies = self.num_writers.iter().map(|(block, writers)| {
            let num_others = (blocks.ref_count(*block) as usize).saturating_sub(1);
            num_others.min(*writers)
        });
        self.num_new + copies.sum::<usize>()
    }

    fn add(&mut self, seq: &Sequence, blocks: &BlockManager) {
        let need = Need::of(seq, blocks);
        self.num_new += need.num_new;
        if let Some((_, block)) = need.shared {
            *self.num_writers.entry(block).or_default() += 1;
        }
    }

    /// Subtracts a sequence's demand. A sequence that has become a block's last holder meanwhile needs no copy
    /// anyway.
    fn subtract(&mut self, seq: &Sequence, blocks: &BlockManager) {
        let need = Need::of(seq, blocks);
        self.num_new -= need.num_new;
        if let Some((_, block)) = need.shared {
            *self.num_writers.entry(block).or_default() -= 1;
        }
    }
}

/// Blocks that a running sequence needs before its next tokens can be computed.
struct Need {
    /// Number of blocks that its table lacks.
    num_new: usize,
    /// The block into which it writes next, and its index in the table, if other sequences hold the block, too. It
    /// then needs a copy.
    shared: Option<(usize, BlockId)>,
}

impl Need {
    fn of(seq: &Sequence, blocks: &BlockManager) -> Self {
        debug_assert_eq!(seq.state, State::Running);
        if seq.num_new_tokens() == 0 {
            return Self { num_new: 0, shared: None };
        }
        let num_blocks = blocks.blocks_for(seq.num_target_tokens());
        let index = blocks.blocks_for(seq.num_computed_tokens + 1) - 1;
        let next = seq.block_table.get(index).copied();
        Self {
            num_new: num_blocks.saturating_sub(seq.block_table.len()),
            shared: next.filter(|block| blocks.ref_count(*block) > 1).map(|block| (index, block)),
        }
    }
}
