//! Slots for recurrent states, which layers without attention keep besides keys and values. A state is valid for its
//! sequence's newest token alone.

use std::collections::BTreeMap;

use crate::CallerId;
use crate::block_manager::PrefixChain;
use crate::prefix_cache::{Parent, num_common};
use crate::step::{StateCopy, StateSlot};
use crate::symbol::Symbol;

/// The free slots, the slots whose states are kept for later sequences, and the copies between slots that steps make.
///
/// A step makes its copies before its rows, in any order. So no slot is written that another copy of the step reads.
/// A state that a step's rows leave is copied by the next step.
pub(crate) struct StateSlots {
    num_slots: usize,
    /// Free slots. The last one is taken next, so that few sequences touch few slots.
    free: Vec<StateSlot>,
    /// Slots that are free as soon as the next step has read them.
    cooling: Vec<StateSlot>,
    /// Kept states. Those after the same block are sorted by their tokens.
    kept: BTreeMap<KeptState, (StateSlot, u64)>,
    /// Kept states by time of use, the least recently used first.
    by_age: BTreeMap<u64, KeptState>,
    last_use: u64,
    /// Copies of the step that is planned next, and of the step after it.
    copies: [Copies; 2],
}

/// The copies of a step.
#[derive(Default)]
struct Copies {
    all: Vec<StateCopy>,
    /// Slots that hold a kept state once the step has made its copies.
    kept: Vec<(KeptState, StateSlot)>,
}

/// Key of a kept state: the tokens of some blocks of the prefix cache, and fewer than a block of tokens after them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeptState {
    /// The last of these blocks.
    after: Parent,
    /// The one caller that may continue from it. It is `None` for all callers, if `rest` is empty.
    caller: Option<CallerId>,
    pub(crate) rest: Box<[Symbol]>,
}

impl KeptState {
    /// The key for the blocks of `chain` and the tokens `rest` after them.
    pub(crate) fn new(chain: &PrefixChain, rest: &[Symbol]) -> Self {
        let caller = (!rest.is_empty()).then(|| chain.caller());
        Self { after: chain.parent().clone(), caller, rest: rest.into() }
    }
}

impl StateSlots {
    /// Makes the slots. There are none if the model has no recurrent states.
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

    /// Whether sequences have recurrent states.
    pub(crate) fn are_needed(&self) -> bool {
        self.num_slots > 0
    }

    /// Takes a slot for a sequence that starts from its first token or from a kept state. Returns `None` while all
    /// are in use.
    pub(crate) fn begin(&mut self, from: Option<&KeptState>) -> Option<StateSlot> {
        let Some(state) = from else { return self.take(None) };
        let src = self.use_kept(state);
        let Some(dst) = self.take(Some(src)) else {
            // There is no other slot, so the kept state becomes the sequence's own. Copies of this step read it
            // before the rows change it.
            return self.forget(state);
        };
        self.copies[0].all.push(StateCopy { src, dst });
        Some(dst)
    }

    /// Takes a slot for a sequence that continues from the state that `src` has after the planned step. Returns
    /// `None` while all are in use.
    pub(crate) fn fork(&mut self, src: StateSlot) -> Option<StateSlot> {
        let dst = self.take(Some(src))?;
        self.copies[1].all.push(StateCopy { src, dst });
        Some(dst)
    }

    /// Keeps the state that `src` has after the planned step, if there is a slot for it.
    pub(crate) fn keep(&mut self, src: StateSlot, state: KeptState) {
        let is_due = self.copies.iter().flat_map(|copies| &copies.kept).any(|due| due.0 == state);
        if is_due || self.has(&state) {
            return;
        }
        let Some(dst) = self.take(Some(src)) else { return };
        self.copies[1].all.push(StateCopy { src, dst });
        self.copies[1].kept.push((state, dst));
    }

    /// The kept state with the longest prefix of the tokens `rest`, fewer than a block, after the blocks of `chain`.
    pub(crate) fn longest(&self, chain: &PrefixChain, rest: &[Symbol]) -> Option<KeptState> {
        let of_blocks = || Some(KeptState::new(chain, &[])).filter(|state| self.has(state));
        self.longest_of_caller(chain, rest).or_else(of_blocks)
    }

    fn longest_of_caller(&self, chain: &PrefixChain, rest: &[Symbol]) -> Option<KeptState> {
        // The last state in lexicographic order that does not come after `rest` has the most first tokens in common
        // with it. If those are not all of its tokens, no state with more tokens is a prefix of `rest`.
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

    /// Ends the use of a sequence's slot. Its content is kept as `state`, if that is known.
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

    /// Returns the copies of the planned step, which is not empty.
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

    /// Verifies that each slot has exactly one use.
    pub(crate) fn check(&self, held: impl Iterator<Item = StateSlot>) -> Result<(), String> {
        let kept = self.kept.values().map(|(slot, _)| *slot);
        let due = self.copies.iter().flat_map(|copies| &copies.kept).map(|(_, slot)| *slot);
        let free = self.free.iter().chain(&self.cooling).copied();
        let mut is_taken = vec![false; self.num_slots];
        for slot in free.chain(held).chain(kept).chain(due) {
            if std::mem::replace(&mut is_taken[slot.0 as usize], true) {
                return Err(format!("{slot:?} is listed twice"));
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

    /// Takes a free slot, or that of the least recently used state except `except`. If there is neither, states that
    /// the next steps would keep are not kept.
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

    /// Frees a slot as soon as no copy reads it.
    fn release(&mut self, slot: StateSlot) {
        let free = if self.is_read(slot) { &mut self.cooling } else { &mut self.free };
        free.push(slot);
    }

    /// Whether a step has yet to read a slot.
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

    /// Removes a kept state, and returns its slot.
    fn forget(&mut self, state: &KeptState) -> Option<StateSlot> {
        let (slot, age) = self.kept.remove(state)?;
        self.by_age.remove(&age);
        Some(slot)
    }

    /// Slot of a kept state, which counts as used now.
    fn use_kept(&mut self, state: &KeptState) -> StateSlot {
        let (slot, age) = self.kept.get_mut(state).expect("it was found");
        self.by_age.remove(age);
        self.last_use += 1;
        *age = self.last_use;
        self.by_age.insert(*age, state.clone());
        *slot
    }
}
