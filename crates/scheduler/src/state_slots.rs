//! Places for what a model keeps of a sequence beside keys and values: states of layers without attention, which are those of its newest token.

use std::collections::BTreeMap;

use crate::CallerId;
use crate::block_manager::PrefixChain;
use crate::prefix_cache::{Parent, num_common};
use crate::step::{StateCopy, StateSlot};

/// Which places are free, which hold states of beginnings for later sequences, and the copies that steps make.
///
/// A step makes its copies before its rows, in any order: so no place is written that another copy of the step reads. What a step's
/// rows leave is copied by the step after it.
pub(crate) struct StateSlots {
    num_slots: usize,
    /// The last one is taken next, so that few are ever touched where few sequences run.
    free: Vec<StateSlot>,
    /// Free as soon as the next step has read them.
    cooling: Vec<StateSlot>,
    /// Those behind the same block follow each other in the order of the alphabet.
    kept: BTreeMap<KeptState, (StateSlot, u64)>,
    /// The least recently used first.
    by_age: BTreeMap<u64, KeptState>,
    last_use: u64,
    /// Those of the step that is planned next, and of the one behind it.
    copies: [Copies; 2],
}

/// The copies of a step.
#[derive(Default)]
struct Copies {
    all: Vec<StateCopy>,
    /// Places that hold a state when the step has made them.
    kept: Vec<(KeptState, StateSlot)>,
}

/// Whose state it is: that of all tokens of some blocks of the prefix cache, and of fewer than a block behind them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeptState {
    /// The last of these blocks.
    after: Parent,
    /// The one caller that may go on from it; `None` for all, where `rest` is empty.
    caller: Option<CallerId>,
    pub(crate) rest: Box<[u32]>,
}

impl KeptState {
    /// That of the blocks of `chain` and `rest` behind them.
    pub(crate) fn new(chain: &PrefixChain, rest: &[u32]) -> Self {
        let caller = (!rest.is_empty()).then(|| chain.caller());
        Self { after: chain.parent().clone(), caller, rest: rest.into() }
    }
}

impl StateSlots {
    /// None where `num_slots` is 0: the model keeps nothing but keys and values.
    pub(crate) fn new(num_slots: usize) -> Self {
        Self {
            num_slots,
            free: (0..num_slots as u32).rev().map(StateSlot).collect(),
            cooling: Vec::new(),
            kept: BTreeMap::new(),
            by_age: BTreeMap::new(),
            last_use: 0,
            copies: Default::default(),
        }
    }

    /// Whether sequences have states.
    pub(crate) fn are_needed(&self) -> bool {
        self.num_slots > 0
    }

    /// A place for a sequence that begins to run, from its first token on or from where a state that is kept was taken. `None` while
    /// all are in use.
    pub(crate) fn begin(&mut self, from: Option<&KeptState>) -> Option<StateSlot> {
        let Some(state) = from else { return self.take(None) };
        let src = self.use_kept(state);
        let Some(dst) = self.take(Some(src)) else {
            // There is no other place: it is the sequence's own from now on. What reads it in this step does so before.
            return self.forget(state);
        };
        self.copies[0].all.push(StateCopy { src, dst });
        Some(dst)
    }

    /// A place for a sequence that goes on from where `src` will be when the step that is being planned has run. `None` while all
    /// are in use.
    pub(crate) fn fork(&mut self, src: StateSlot) -> Option<StateSlot> {
        let dst = self.take(Some(src))?;
        self.copies[1].all.push(StateCopy { src, dst });
        Some(dst)
    }

    /// Keeps what will be in `src` when the step that is being planned has run, if there is a place for it.
    pub(crate) fn keep(&mut self, src: StateSlot, state: KeptState) {
        let is_due = self.copies.iter().flat_map(|copies| &copies.kept).any(|due| due.0 == state);
        if is_due || self.has(&state) {
            return;
        }
        let Some(dst) = self.take(Some(src)) else { return };
        self.copies[1].all.push(StateCopy { src, dst });
        self.copies[1].kept.push((state, dst));
    }

    /// The state that is kept of the most of the tokens `rest`, fewer than a block, that follow the blocks of `chain`.
    pub(crate) fn longest(&self, chain: &PrefixChain, rest: &[u32]) -> Option<KeptState> {
        let of_blocks = || Some(KeptState::new(chain, &[])).filter(|state| self.has(state));
        self.longest_of_caller(chain, rest).or_else(of_blocks)
    }

    fn longest_of_caller(&self, chain: &PrefixChain, rest: &[u32]) -> Option<KeptState> {
        // Of those that are not behind `rest` in the alphabet the last one has the most in common with it; if that is not all of it,
        // what begins `rest` is not longer than what they have in common.
        let mut most = rest.len();
        while most > 0 {
            let upper = KeptState::new(chain, &rest[..most]);
            let (found, _) = self.kept.range(..=&upper).next_back()?;
            if found.after != upper.after || found.caller != upper.caller {
                break;
            }
            let common = num_common(&found.rest, rest);
            if common == found.rest.len() {
                return Some(found.clone());
            }
            most = common;
        }
        None
    }

    fn has(&self, state: &KeptState) -> bool {
        self.kept.contains_key(state)
    }

    /// Ends the use of a sequence's place; what is in it is kept as `state`, where that is known.
    pub(crate) fn give_up(&mut self, slot: StateSlot, state: Option<KeptState>) {
        let is_written = self.copies.iter().flat_map(|copies| &copies.all).any(|c| c.dst == slot);
        match state.filter(|state| !is_written && !self.has(state)) {
            Some(state) => self.insert(state, slot),
            None => {
                self.copies.iter_mut().for_each(|copies| copies.all.retain(|c| c.dst != slot));
                self.release(slot);
            }
        }
    }

    /// The copies of the step that was planned, which has rows.
    pub(crate) fn finish_step(&mut self) -> Vec<StateCopy> {
        self.copies.swap(0, 1);
        let done = std::mem::take(&mut self.copies[1]);
        for (state, slot) in done.kept {
            self.insert(state, slot);
        }
        for slot in std::mem::take(&mut self.cooling) {
            self.release(slot);
        }
        done.all
    }

    /// Verifies that each place is in one place.
    pub(crate) fn check(&self, held: impl Iterator<Item = StateSlot>) -> Result<(), String> {
        let kept = self.kept.values().map(|(slot, _)| *slot);
        let due = self.copies.iter().flat_map(|copies| &copies.kept).map(|(_, slot)| *slot);
        let free = self.free.iter().chain(&self.cooling).copied();
        let mut is_taken = vec![false; self.num_slots];
        for slot in free.chain(held).chain(kept).chain(due) {
            if std::mem::replace(&mut is_taken[slot.0 as usize], true) {
                return Err(format!("{slot:?} is in two places"));
            }
        }
        if let Some(slot) = is_taken.iter().position(|is_taken| !is_taken) {
            return Err(format!("nobody has state slot {slot}"));
        }
        match self.kept.len() == self.by_age.len() {
            true => Ok(()),
            false => Err(format!("{} states have {} ages", self.kept.len(), self.by_age.len())),
        }
    }

    /// A free place, else that of the state that was used least recently, but for `except`; else what the next step would keep is
    /// not kept.
    fn take(&mut self, except: Option<StateSlot>) -> Option<StateSlot> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let may_go = |state: &&KeptState| {
            let (slot, _) = self.kept[*state];
            Some(slot) != except && !self.is_read(slot)
        };
        if let Some(state) = self.by_age.values().find(may_go).cloned() {
            return self.forget(&state);
        }
        for copies in &mut self.copies {
            for (_, slot) in std::mem::take(&mut copies.kept) {
                copies.all.retain(|copy| copy.dst != slot);
                self.free.push(slot);
            }
        }
        for slot in std::mem::take(&mut self.cooling) {
            self.release(slot);
        }
        self.free.pop()
    }

    /// Frees a place, as soon as nothing reads it.
    fn release(&mut self, slot: StateSlot) {
        let free = if self.is_read(slot) { &mut self.cooling } else { &mut self.free };
        free.push(slot);
    }

    /// Whether a step has yet to read a place.
    fn is_read(&self, slot: StateSlot) -> bool {
        self.copies.iter().flat_map(|copies| &copies.all).any(|copy| copy.src == slot)
    }

    fn insert(&mut self, state: KeptState, slot: StateSlot) {
        if self.has(&state) {
            return self.release(slot);
        }
        self.last_use += 1;
        self.kept.insert(state.clone(), (slot, self.last_use));
        self.by_age.insert(self.last_use, state);
    }

    /// Keeps a state no longer; returns where it is.
    fn forget(&mut self, state: &KeptState) -> Option<StateSlot> {
        let (slot, age) = self.kept.remove(state)?;
        self.by_age.remove(&age);
        Some(slot)
    }

    /// Where a state is that is kept, which counts as used now.
    fn use_kept(&mut self, state: &KeptState) -> StateSlot {
        let (slot, age) = self.kept.get_mut(state).expect("it was found");
        self.by_age.remove(age);
        self.last_use += 1;
        *age = self.last_use;
        self.by_age.insert(*age, state.clone());
        *slot
    }
}
