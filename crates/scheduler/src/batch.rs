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
}

impl Scheduler {
    /// Memory goes by priority and arrival, and all of it is settled before the budget is shared out: no row is ever
    /// taken back. The budget goes to decodes, except for a share that a pending prefill is sure of, then to prefills,
    /// then to new sequences, and what these leave to the other decodes.
    pub(crate) fn plan_step(&mut self) -> Step {
        self.last_step += 1;
        let may_admit = self.make_room();
        let mut batch = Batch {
            step: Step { id: self.last_step, copies: self.assign_blocks(), rows: Vec::new() },
            budget: self.config.max_num_batched_tokens,
            num_samples: 0,
        };
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
            logits: seq.row_logits(&samples),
            samples,
        });
        seq.advance(num_tokens, batch.step.id);
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
            if self.running.len() < self.config.max_num_seqs {
                seq.block_table.iter().for_each(|block| self.blocks.share(*block));
                self.running.insert(seq.running_key());
            } else {
                seq.reset();
                self.waiting.insert(seq.waiting_key(Turn::Preempted));
            }
            self.sequences.insert(sibling, seq);
        }
    }

    /// Preempts the last of the running sequences until each of the others can have the block that its next token
    /// needs; returns whether none had to be.
    fn make_room(&mut self) -> bool {
        let mut demand = Demand::default();
        for (_, id) in &self.running {
            demand.add(&self.sequences[id], &self.blocks);
        }
        let mut had_room = true;
        while demand.num_blocks(&self.blocks) > self.blocks.num_free() {
            had_room = false;
            let (_, victim) = *self.running.last().expect("without sequences nothing is demanded");
            demand.subtract(&self.sequences[&victim], &self.blocks);
            self.preempt(victim);
        }
        had_room
    }

    /// Takes the blocks of a running sequence, which then waits to compute everything again.
    fn preempt(&mut self, id: SeqId) {
        let seq = self.sequences.get_mut(&id).expect("running sequences are known");
        self.running.remove(&seq.running_key());
        self.blocks.release(seq.reset());
        self.waiting.insert(seq.waiting_key(Turn::Preempted));
        self.num_preemptions += 1;
    }

    /// Gives each running sequence a block of its own for its next token. The last holder of a shared block keeps it, so
    /// that no source of a copy becomes free here and is taken as a destination.
    fn assign_blocks(&mut self) -> Vec<BlockCopy> {
        let mut copies = Vec::new();
        for (_, id) in &self.running {
            let seq = self.sequences.get_mut(id).expect("running sequences are known");
            match NextBlock::of(seq, &self.blocks) {
                NextBlock::Ready => {}
                NextBlock::New => {
                    seq.block_table.push(self.blocks.allocate().expect("make_room left enough"))
                }
                NextBlock::Shared(src) => {
                    let dst = self.blocks.copy_on_write(src).expect("make_room left enough");
                    *seq.block_table.last_mut().expect("the shared block") = dst;
                    copies.push(BlockCopy { src, dst });
                }
            }
        }
        copies
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
        match NextBlock::of(seq, blocks) {
            NextBlock::Ready => {}
            NextBlock::New => self.num_new += 1,
            NextBlock::Shared(block) => *self.num_writers.entry(block).or_default() += 1,
        }
    }

    /// Takes back what was added for a sequence. One that has become the last holder since counts no more anyway.
    fn subtract(&mut self, seq: &Sequence, blocks: &BlockManager) {
        match NextBlock::of(seq, blocks) {
            NextBlock::Ready => {}
            NextBlock::New => self.num_new -= 1,
            NextBlock::Shared(block) => *self.num_writers.entry(block).or_default() -= 1,
        }
    }
}

/// The block into which a sequence's next token goes. Only the last block of a table can be shared and written: blocks
/// before it are full, and a prompt's blocks are its own until the prompt is complete.
enum NextBlock {
    /// It holds the block alone, or computes nothing.
    Ready,
    /// It needs one more.
    New,
    /// It holds the block together with others, and needs a copy.
    Shared(BlockId),
}

impl NextBlock {
    fn of(seq: &Sequence, blocks: &BlockManager) -> Self {
        debug_assert_eq!(seq.state, State::Running);
        if seq.num_new_tokens() == 0 {
            return Self::Ready;
        }
        match seq.block_table.get(blocks.blocks_for(seq.num_computed_tokens + 1) - 1) {
            None => Self::New,
            Some(block) if blocks.ref_count(*block) > 1 => Self::Shared(*block),
            Some(_) => Self::Ready,
        }
    }
}
