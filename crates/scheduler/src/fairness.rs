//! Preemption between callers: the choice of running sequences that give way to callers that wait or need their
//! blocks.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::callers::Standing;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::{BlockId, CallerId, SeqId};

/// Number of waiting callers that are considered in one step.
const NUM_TAKERS: usize = 4;
/// Number of steps in which a slot or blocks may become free before others are preempted.
const PATIENCE: u64 = 1;

/// Interval in steps at which waiting callers with sequences that have run are considered.
const SERVED_EVERY: u64 = 8;
/// Number of times that a sequence gives way to new callers, even if it has computed little since the last time.
const MAX_PREEMPTIONS: u32 = 8;

/// Slots and blocks of one caller.
#[derive(Clone, Default)]
struct Holding {
    /// Its running sequences. The last one is preempted first.
    sequences: Vec<SeqId>,
    num_running: usize,
    num_blocks: usize,
}

/// Resource that a waiting sequence lacks.
#[derive(Clone, Copy)]
enum Lack {
    Slot,
    Blocks { wanted: usize },
}

impl Scheduler {
    /// The last sequence of the caller with the most blocks for its weight.
    pub(crate) fn most_above_share(&self) -> Option<SeqId> {
        if self.callers.num_active() < 2 {
            return self.running.last().map(|(.., id)| *id);
        }
        let holdings = self.holdings();
        let rank = |caller, holding: &Holding, id: SeqId| {
            let seq = &self.sequences[&id];
            (seq.caller_priority, self.per_weight(caller, holding.num_blocks), seq.running_key())
        };
        let last = holdings.iter().filter_map(|(caller, holding)| {
            holding.sequences.last().map(|id| (rank(*caller, holding, *id), *id))
        });
        last.max().map(|(_, id)| id)
    }

    /// Preempts running sequences for the first waiting one that lacks a slot or blocks. Its caller must be so far
    /// below its share that it may take them. Returns that sequence, and the callers of the preempted ones.
    /// `num_demanded` blocks are reserved for the running sequences.
    pub(crate) fn make_way(&mut self, num_demanded: usize) -> (Option<SeqId>, Vec<CallerId>) {
        let lacking = self.lacking(num_demanded);
        if lacking.is_empty() {
            return (None, Vec::new());
        }
        let holdings = self.holdings();
        for id in lacking {
            let Some(victims) = self.victims(&self.sequences[&id], num_demanded, holdings.clone())
            else {
                continue;
            };
            let callers = victims.iter().map(|victim| self.sequences[victim].caller).collect();
            // If only a slot is taken, the blocks stay in the prefix cache.
            let takes_a_slot = self.running.len() >= self.config.max_num_seqs && victims.len() == 1;
            let may_swap = !(takes_a_slot && self.config.enable_prefix_caching);
            for victim in victims {
                self.preempt(victim, may_swap);
                self.num_yielded += 1;
            }
            return (Some(id), callers);
        }
        (None, Vec::new())
    }

    /// The first waiting sequences of callers whose turn is next, if they may lack something.
    fn lacking(&self, num_demanded: usize) -> Vec<SeqId> {
        if self.callers.num_active() < 2 {
            return Vec::new();
        }
        let looks_at_served = self.last_step.is_multiple_of(SERVED_EVERY);
        let is_full = self.running.len() >= self.config.max_num_seqs;
        if !looks_at_served && is_full && !self.callers.may_spare_a_slot() {
            return Vec::new();
        }
        let turns = self.callers.turns().take(NUM_TAKERS);
        let firsts =
            turns.filter(|turn| looks_at_served || !turn.was_served).map(|turn| turn.first);
        firsts.filter(|id| self.may_lack(&self.sequences[id], num_demanded)).collect()
    }

    /// Whether a waiting sequence could start if others were preempted.
    fn may_lack(&self, seq: &Sequence, num_demanded: usize) -> bool {
        let most_blocks = self.blocks.blocks_for(seq.num_target_tokens()) + self.watermark();
        seq.is_ready()
            && self.last_step > seq.waits_since + PATIENCE
            && (self.running.len() >= self.config.max_num_seqs
                || most_blocks + num_demanded > self.num_free_without_pins())
    }

    /// Holdings of all callers.
    fn holdings(&self) -> BTreeMap<CallerId, Holding> {
        let mut holdings: BTreeMap<CallerId, Holding> = BTreeMap::new();
        for (.., id) in &self.running {
            let seq = &self.sequences[id];
            let holding = holdings.entry(seq.caller).or_default();
            holding.num_running += 1;
            holding.num_blocks += seq.block_table.len();
            holding.sequences.push(*id);
        }
        holdings
    }

    /// The sequences to preempt for a waiting one. Returns `None` if it lacks nothing, or may not take enough.
    fn victims(
        &self,
        seq: &Sequence,
        num_demanded: usize,
        mut holdings: BTreeMap<CallerId, Holding>,
    ) -> Option<Vec<SeqId>> {
        let is_new = !self.callers.standing(seq.caller).was_served;
        for holding in holdings.values_mut() {
            holding.sequences.retain(|id| self.may_give_way(&self.sequences[id], is_new));
        }
        let mut victims = Vec::new();
        if self.running.len() >= self.config.max_num_seqs {
            victims.push(self.next_victim(seq, &mut holdings, Lack::Slot)?);
        }
        let found: HashSet<BlockId> = self.find_cached(seq, true).blocks.into_iter().collect();
        let wanted = self.blocks.blocks_for(seq.num_target_tokens()) - found.len();
        let num_revived = found.iter().filter(|block| self.is_reclaimable(**block)).count();
        let num_free = self.num_free_without_pins() - num_revived;
        let mut holders = HashMap::new();
        let mut num_freed = self.count_freed(victims.last(), &found, &mut holders);
        loop {
            let is_alone = victims.len() == self.running.len();
            let num_kept = if is_alone { 0 } else { self.watermark() + num_demanded };
            if num_free + num_freed >= wanted + num_kept {
                return (!victims.is_empty()).then_some(victims);
            }
            victims.push(self.next_victim(seq, &mut holdings, Lack::Blocks { wanted })?);
            num_freed += self.count_freed(victims.last(), &found, &mut holders);
        }
    }

    /// Whether a running sequence may be preempted. It must have computed more tokens than it lost at its last
    /// preemption, since two sequences could otherwise preempt each other without end. For a new caller that does not
    /// matter until the sequence has been preempted several times.
    fn may_give_way(&self, seq: &Sequence, to_new_caller: bool) -> bool {
        seq.num_computed_tokens > seq.num_lost_tokens
            || (to_new_caller && seq.num_preemptions < MAX_PREEMPTIONS)
    }

    /// Number of blocks, besides those in `found`, that the preemption of `victim` frees after those that `holders`
    /// counts.
    fn count_freed(
        &self,
        victim: Option<&SeqId>,
        found: &HashSet<BlockId>,
        holders: &mut HashMap<BlockId, u32>,
    ) -> usize {
        let tables = victim.map(|id| &self.sequences[id].block_table);
        let mut num_freed = 0;
        for block in tables.into_iter().flatten() {
            let num_holders = holders.entry(*block).or_insert_with(|| self.num_pins(*block));
            *num_holders += 1;
            let is_free = *num_holders == self.blocks.ref_count(*block);
            num_freed += usize::from(is_free && !found.contains(block));
        }
        num_freed
    }

    /// Takes the newest sequence of the caller with the most for its weight, among the callers from which `taker` may
    /// take.
    fn next_victim(
        &self,
        taker: &Sequence,
        holdings: &mut BTreeMap<CallerId, Holding>,
        lack: Lack,
    ) -> Option<SeqId> {
        let own = holdings.get(&taker.caller).cloned().unwrap_or_default();
        let givers = holdings.iter().filter(|(caller, _)| **caller != taker.caller);
        let candidates = givers.filter_map(|(caller, holding)| {
            let victim = &self.sequences[holding.sequences.last()?];
            let may_take = victim.caller_priority > taker.caller_priority
                || (victim.caller_priority == taker.caller_priority
                    && self.may_take((taker.caller, &own), (victim, holding), lack));
            let amount = match lack {
                Lack::Slot => holding.num_running,
                Lack::Blocks { .. } => holding.num_blocks,
            };
            let rank = (victim.caller_priority, self.per_weight(*caller, amount), *caller);
            may_take.then_some((rank, victim.id))
        });
        let ((.., caller), victim) = candidates.max()?;
        let holding = holdings.get_mut(&caller)?;
        holding.sequences.pop();
        holding.num_running -= 1;
        holding.num_blocks -= self.sequences[&victim].block_table.len();
        Some(victim)
    }

    /// Whether a waiting caller may take from one whose counter is at least as large.
    ///
    /// A new caller may, if it takes neither most of the other one's blocks nor its only slot. Another caller may
    /// once it is owed as many tokens as the preempted sequence may have to compute again. It must then also have
    /// nothing that runs, or leave the other caller twice as much for its weight as it has then. With a smaller
    /// margin callers would preempt each other without end.
    fn may_take(
        &self,
        (taker, own): (CallerId, &Holding),
        (victim, other): (&Sequence, &Holding),
        lack: Lack,
    ) -> bool {
        let (standing, other_standing) =
            (self.callers.standing(taker), self.callers.standing(victim.caller));
        let Some(num_owed) = standing.num_owed_before(&other_standing) else { return false };
        let is_new = own.num_running == 0 && !standing.was_served;
        let (kept, had, may_lose) = match lack {
            Lack::Slot => {
                let is_kept = self.config.enable_prefix_caching && !self.state_slots.are_needed();
                let may_lose = if is_kept { 0 } else { victim.num_computed_tokens };
                (other.num_running - 1, own.num_running + 1, may_lose)
            }
            Lack::Blocks { wanted } => {
                let kept = other.num_blocks - victim.block_table.len();
                (kept, own.num_blocks + wanted, victim.num_computed_tokens)
            }
        };
        // With more callers than slots, new callers wait for those that have one.
        let may_begin = match lack {
            Lack::Slot => kept > 0 || self.callers.num_active() == 2,
            Lack::Blocks { .. } => 2 * had <= other.num_blocks,
        };
        if is_new && may_begin {
            return true;
        }
        let budget = self.config.max_num_batched_tokens;
        let is_due = own.num_running == 0 && num_owed >= budget as u128;
        let weight = |standing: &Standing| u64::from(standing.weight.get());
        let is_below = kept as u64 * weight(&standing) >= 2 * had as u64 * weight(&other_standing);
        num_owed >= may_lose as u128 && (is_due || is_below)
    }

    /// An amount divided by a caller's weight.
    fn per_weight(&self, caller: CallerId, amount: usize) -> u64 {
        ((amount as u64) << 32) / u64::from(self.callers.standing(caller).weight.get())
    }
}
