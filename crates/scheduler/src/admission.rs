//! Which waiting sequences start, and with which cached blocks.

use std::cmp::Reverse;

use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::sequence::{State, Turn};
use crate::{SchedulingPolicy, SeqId};

/// Waiting sequences that `LongestPrefix` compares.
const WINDOW: usize = 64;
/// How often a waiting sequence may be overtaken under `LongestPrefix`.
const MAX_OVERTAKEN: u32 = 32;

impl Scheduler {
    /// Starts waiting sequences while budget, `max_num_seqs` and blocks allow. One that does not fit is waited for, not
    /// passed over: otherwise short prompts could starve a long one.
    pub(crate) fn admit_waiting(&mut self, batch: &mut Batch) {
        while self.has_slot(batch) {
            let candidates = self.candidates();
            if candidates.is_empty() {
                return;
            }
            for (index, id) in candidates.iter().enumerate() {
                if !self.has_slot(batch) || !self.admit(*id) {
                    return;
                }
                self.count_overtaken(*id, &candidates[index + 1..]);
                self.run(*id, batch);
            }
        }
    }

    fn has_slot(&self, batch: &Batch) -> bool {
        let has_blocks = self.running.is_empty() || self.blocks.num_free() > self.watermark();
        batch.budget > 0 && self.running.len() < self.config.max_num_seqs && has_blocks
    }

    /// Blocks that admission leaves to the running sequences, so that a new one is not preempted at once.
    fn watermark(&self) -> usize {
        self.config.num_blocks.div_ceil(100)
    }

    /// Some of the waiting sequences of the best priority, in the order in which to admit them.
    fn candidates(&self) -> Vec<SeqId> {
        let Some((best, _, first)) = self.waiting.first() else { return Vec::new() };
        if self.config.policy == SchedulingPolicy::Fcfs {
            return vec![*first];
        }
        let window = self.waiting.iter().take_while(|(priority, ..)| priority == best).take(WINDOW);
        let mut ranked: Vec<_> = window
            .map(|(_, turn, id)| {
                let seq = &self.sequences[id];
                let is_due = *turn == Turn::Preempted || seq.num_overtaken >= MAX_OVERTAKEN;
                let num_cached = if is_due { usize::MAX } else { self.num_cached_blocks(*id) };
                (*turn, Reverse(num_cached), *id)
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., id)| id).collect()
    }

    fn num_cached_blocks(&self, id: SeqId) -> usize {
        let seq = &self.sequences[&id];
        self.blocks.find_prefix(&mut seq.prefix_chain.clone(), seq.cacheable_tokens()).len()
    }

    fn count_overtaken(&mut self, admitted: SeqId, others: &[SeqId]) {
        for id in others.iter().filter(|id| **id < admitted) {
            self.sequences.get_mut(id).expect("waiting sequences are known").num_overtaken += 1;
        }
    }

    /// Gives a waiting sequence the blocks of all its tokens, from the prefix cache as far as they are there; returns
    /// false when they do not fit, or when its newest token is not known yet.
    fn admit(&mut self, id: SeqId) -> bool {
        let watermark = if self.running.is_empty() { 0 } else { self.watermark() };
        let seq = self.sequences.get_mut(&id).expect("waiting sequences are known");
        let State::Waiting(turn) = seq.state else { return false };
        if seq.num_pending > 0 {
            return false;
        }
        let mut chain = seq.prefix_chain.clone();
        let cached = self.blocks.find_prefix(&mut chain, seq.cacheable_tokens());
        let num_new = self.blocks.blocks_for(seq.num_target_tokens()) - cached.len();
        let num_revived = cached.iter().filter(|block| self.blocks.ref_count(**block) == 0).count();
        if num_new + num_revived + watermark > self.blocks.num_free() {
            return false;
        }
        // Held before anything is allocated, so that they are not evicted for it.
        cached.iter().for_each(|block| self.blocks.share(*block));
        seq.num_computed_tokens = cached.len() * self.config.block_size;
        seq.block_table = cached;
        for _ in 0..num_new {
            seq.block_table.push(self.blocks.allocate().expect("counted above"));
        }
        seq.prefix_chain = chain;
        if seq.num_cached_tokens.is_none() {
            seq.num_cached_tokens = Some(seq.num_computed_tokens);
            if self.config.enable_prefix_caching && seq.num_prompt_logits.is_none() {
                self.num_prefix_queries += seq.num_prompt_tokens as u64;
                self.num_prefix_hits += seq.num_computed_tokens as u64;
            }
        }
        seq.state = State::Running;
        self.waiting.remove(&seq.waiting_key(turn));
        self.running.insert(seq.running_key());
        true
    }
}
