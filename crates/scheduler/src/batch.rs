//! Fills one step: room for the running sequences, then the token budget shared by decodes and prefill chunks.

use std::collections::HashMap;

use crate::block_manager::BlockManager;
use crate::scheduler::Scheduler;
use crate::sequence::{Sequence, State, Turn};
use crate::step::{BlockCopy, Step, StepRow};
use crate::{BlockId, SeqId};

/// A step being filled.
pub(crate) struct Batch {
    step: Step,
    /// Tokens that still fit.
    pub(crate) budget: usize,
    num_samples: u32,
    /// Blocks that are copied from: held until the step is planned, so that none of them becomes a destination.
    sources: Vec<BlockId>,
}

impl Batch {
    /// Has a block copied before the step runs; the caller has counted a holder of `src`, and the step takes it over.
    pub(crate) fn copy(&mut self, src: BlockId, dst: BlockId) {
        self.step.copies.push(BlockCopy { src, dst });
        self.sources.push(src);
    }
}

impl Scheduler {
    /// Memory goes by priority and arrival, and all of it is settled before the budget is shared out: no row is ever
    /// taken back. The budget goes to decodes, except for a share that a pending prefill is sure of, then to prefills,
    /// then to new sequences, and what these leave to the other decodes.
    pub(crate) fn plan_step(&mut self) -> Step {
        self.last_step += 1;
        let may_admit = self.make_room();
        let mut batch = Batch {
            step: Step { id: self.last_step, ..Step::default() },
            budget: self.config.max_num_batched_tokens,
            num_samples: 0,
            sources: Vec::new(),
        };
        self.assign_blocks(&mut batch);
        let (decodes, prefills) = self.runnable();
        let may_admit =
            may_admit && !self.waiting.is_empty() && self.running.len() < self.config.max_num_seqs;
        let share = if may_admit || !prefills.is_empty() { self.prefill_share() } else { 0 };
        let (first_decodes, other_decodes) =
            decodes.split_at(decodes.len().min(batch.budget - share));
        for id in first_decodes.iter().chain(&prefills) {
            self.run(*id, &mut batch);
        }
        if may_admit {
            self.admit_waiting(&mut batch);
        }
        for id in other_decodes {
            self.run(*id, &mut batch);
        }
        self.blocks.release(batch.sources);
        if !batch.step.rows.is_empty() {
            batch.step.swaps = self.swap_space.take_pending();
            batch.step.state_copies = self.state_slots.finish_step();
        }
        batch.step
    }

    /// Adds a row for a running sequence, as long as the budget allows.
    pub(crate) fn run(&mut self, id: SeqId, batch: &mut Batch) {
        let seq = self.sequences.get_mut(&id).expect("running sequences are known");
        let num_tokens = seq.num_row_tokens(batch.budget);
        if num_tokens == 0 {
            return;
        }
        let start = seq.num_computed_tokens;
        let end = start + num_tokens;
        let mut samples = Vec::new();
        if seq.sample && end == seq.num_tokens() {
            seq.siblings.retain(|sibling| self.reserved.contains_key(sibling));
            samples.push(id);
            samples.extend_from_slice(&seq.siblings);
        }
        let num_samples = samples.len() as u32;
        batch.budget -= num_tokens;
        batch.step.rows.push(StepRow {
            seq: id,
            tokens: (start..end).map(|position| seq.token_source(position)).collect(),
            first_position: start as u32,
            block_table: seq.block_table[..self.blocks.blocks_for(end)].to_vec(),
            state_slot: seq.state_slot,
            logits: seq.row_logits(&samples),
            samples,
        });
        seq.advance(num_tokens, batch.step.id);
        if let Some((_, state)) = seq.state_to_keep.take_if(|(at, _)| *at == end)
            && let Some(slot) = seq.state_slot
        {
            self.state_slots.keep(slot, state);
        }
        if num_samples > 0 {
            seq.sample_index = batch.num_samples;
            seq.num_pending += 1;
            batch.num_samples += num_samples;
            self.fork(id);
        }
    }

    /// Lets the siblings of a sequence whose prompt is complete start from its blocks. Where `max_num_seqs` is reached
    /// they wait like preempted ones.
    fn fork(&mut self, id: SeqId) {
        let parent = self.sequences.get_mut(&id).expect("it was just run");
        let siblings = std::mem::take(&mut parent.siblings);
        for (index, sibling) in siblings.into_iter().enumerate() {
            self.reserved.remove(&sibling);
            let mut seq = self.sequences[&id].fork(sibling);
            seq.sample_index += 1 + index as u32;
            let may_run = self.running.len() < self.config.max_num_seqs;
            let state_slot = seq.state_slot.take_if(|_| may_run);
            let state_slot = state_slot.map(|slot| self.state_slots.fork(slot));
            if may_run && state_slot != Some(None) {
                seq.block_table.iter().for_each(|block| self.blocks.share(*block));
                seq.state_slot = state_slot.flatten();
                self.running.insert(seq.running_key());
            } else {
                seq.state_slot = None;
                seq.reset();
                self.waiting.insert(seq.waiting_key(Turn::Preempted));
            }
            self.sequences.insert(sibling, seq);
        }
    }

    /// Gives up pins, then preempts the last of the running sequences, until each of the others can have the blocks
    /// that its next tokens need; returns whether none had to be preempted.
    fn make_room(&mut self) -> bool {
        let mut demand = Demand::default();
        for (_, id) in &self.running {
            demand.add(&self.sequences[id], &self.blocks);
        }
        let mut had_room = true;
        while demand.num_blocks(&self.blocks) > self.blocks.num_free() {
            if self.give_up_oldest_pin() {
                continue;
            }
            had_room = false;
            let (_, victim) = *self.running.last().expect("without sequences nothing is demanded");
            demand.subtract(&self.sequences[&victim], &self.blocks);
            self.preempt(victim);
        }
        had_room
    }

    /// Takes the blocks of a running sequence, which then waits to have them back from the host, or to compute everything
    /// again.
    fn preempt(&mut self, id: SeqId) {
        let seq = self.sequences.get_mut(&id).expect("running sequences are known");
        self.running.remove(&seq.running_key());
        let num_tokens = seq.num_computed_tokens;
        let computed = &seq.block_table[..self.blocks.blocks_for(num_tokens)];
        seq.swapped = self.swap_space.bring_out(computed, num_tokens);
        if let Some(slot) = seq.state_slot.take() {
            self.state_slots.give_up(slot, None);
        }
        self.blocks.release(seq.reset());
        self.waiting.insert(seq.waiting_key(Turn::Preempted));
        self.num_preemptions += 1;
    }

    /// Gives each running sequence blocks of its own for its next tokens. The last holder of a shared block keeps it.
    fn assign_blocks(&mut self, batch: &mut Batch) {
        let mut copies = Vec::new();
        for (_, id) in &self.running {
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

    /// The running sequences with something to compute: those with one token, the least recently run first where the
    /// budget may not do for all, and those with more, by priority and arrival.
    fn runnable(&self) -> (Vec<SeqId>, Vec<SeqId>) {
        let (mut decodes, mut prefills) = (Vec::new(), Vec::new());
        for (_, id) in &self.running {
            match self.sequences[id].num_new_tokens() {
                0 => {}
                1 => decodes.push(*id),
                _ => prefills.push(*id),
            }
        }
        if decodes.len() + self.prefill_share() > self.config.max_num_batched_tokens {
            decodes.sort_by_key(|id| self.sequences[id].last_step);
        }
        (decodes, prefills)
    }

    /// Tokens of this step that are not given to decodes while a prefill is pending: a quarter, or one in every second
    /// step when the budget is tiny.
    fn prefill_share(&self) -> usize {
        match self.config.max_num_batched_tokens {
            0..4 => (self.last_step % 2) as usize,
            budget => budget / 4,
        }
    }
}

/// Blocks that the running sequences need for their next tokens.
#[derive(Default)]
struct Demand {
    num_new: usize,
    /// Sequences that write next into each shared block.
    num_writers: HashMap<BlockId, usize>,
}

impl Demand {
    /// The last holder of a shared block writes in place, so that all but one of its holders need a copy.
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

    /// Takes back what was added for a sequence. One that has become the last holder since counts no more anyway.
    fn subtract(&mut self, seq: &Sequence, blocks: &BlockManager) {
        let need = Need::of(seq, blocks);
        self.num_new -= need.num_new;
        if let Some((_, block)) = need.shared {
            *self.num_writers.entry(block).or_default() -= 1;
        }
    }
}

/// What a running sequence needs before its next tokens can be computed.
struct Need {
    /// Blocks that its table lacks.
    num_new: usize,
    /// The block into which it writes next, and its place in the table, where others hold it too: it needs a copy.
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
