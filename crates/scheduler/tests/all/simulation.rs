//! A light simulation of many sequences. Its tokens are made up, and only the scheduler's own invariants are
//! verified.

use std::collections::{HashMap, VecDeque};

use candlepower_scheduler::{
    CallerId, NewSequence, Sampled, Scheduler, SchedulerConfig, SeqId, Step,
};

/// Interval in steps at which the invariants are verified.
const CHECKED_EVERY: u64 = 64;

pub(crate) struct Simulation {
    pub(crate) scheduler: Scheduler,
    pub(crate) live: HashMap<SeqId, Live>,
    uncommitted: VecDeque<Step>,
    /// Number of steps that are uncommitted when the next one is planned.
    max_ahead: usize,
}

pub(crate) struct Live {
    pub(crate) caller: CallerId,
    /// Number of tokens after which it is removed.
    num_left: usize,
}

impl Simulation {
    pub(crate) fn new(config: SchedulerConfig, max_ahead: usize) -> Self {
        let scheduler = Scheduler::new(config).expect("a valid configuration");
        Self { scheduler, live: HashMap::new(), uncommitted: VecDeque::new(), max_ahead }
    }

    /// Adds a request whose sequences are removed after `max_tokens` tokens each.
    pub(crate) fn add(&mut self, new: NewSequence, max_tokens: usize) -> Vec<SeqId> {
        let caller = new.caller.id;
        let ids = self.scheduler.add(new).expect("a valid request");
        let live = |id: &SeqId| (*id, Live { caller, num_left: max_tokens });
        self.live.extend(ids.iter().map(live));
        ids
    }

    pub(crate) fn num_live(&self, caller: CallerId) -> usize {
        self.live.values().filter(|live| live.caller == caller).count()
    }

    /// Plans a step, and commits those before it.
    pub(crate) fn step(&mut self) -> Step {
        let step = self.scheduler.schedule();
        let budget = self.scheduler.config().max_num_batched_tokens;
        // One whole item may exceed it.
        let whole = step.rows.iter().flat_map(|row| &row.whole).map(|range| range.1 - range.0);
        let budget = budget + whole.max().unwrap_or(0) as usize;
        assert!(step.num_tokens() <= budget, "over the budget");
        let can_run = !self.uncommitted.is_empty() || self.live.is_empty();
        assert!(!step.is_empty() || can_run, "nothing runs");
        if step.id.is_multiple_of(CHECKED_EVERY) {
            self.scheduler.check().expect("the invariants hold");
        }
        if !step.is_empty() {
            self.uncommitted.push_back(step.clone());
        }
        let max_ahead = if step.is_empty() { 0 } else { self.max_ahead };
        while self.uncommitted.len() > max_ahead {
            self.commit();
        }
        step
    }

    fn commit(&mut self) {
        let Some(step) = self.uncommitted.pop_front() else { return };
        let token = |id: SeqId| (step.id * 31 + id.0 * 7) as u32 % 997;
        let sampled: Vec<_> =
            step.samples().map(|seq| Sampled { seq, token: token(seq) }).collect();
        self.scheduler.commit(&step, &sampled).expect("the oldest step");
        for Sampled { seq: id, .. } in sampled {
            let Some(live) = self.live.get_mut(&id) else { continue };
            live.num_left -= 1;
            let is_full = self.scheduler.tokens(id).len() == self.scheduler.config().max_model_len;
            if live.num_left == 0 || is_full {
                self.live.remove(&id);
                self.scheduler.remove(id);
            }
        }
    }
}
