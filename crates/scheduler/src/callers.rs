//! Callers: their waiting sequences, the tokens computed for each, and the order in which they take turns.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;

use crate::SeqId;
use crate::sequence::WaitingKey;

/// Number of callers without sequences whose counters are kept.
const MAX_IDLE: usize = 1024;

/// Identifies a caller, such as the owner of a key. The scheduler only compares ids for equality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallerId(pub u64);

/// A caller and its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Identifier of the caller.
    pub id: CallerId,
    /// Weight of its share, relative to the weights of the others. The newest value of a caller counts.
    pub weight: NonZeroU32,
}

impl Default for Caller {
    fn default() -> Self {
        Self { id: CallerId::default(), weight: NonZeroU32::MIN }
    }
}

/// Computed tokens divided by a weight, in units of 2^-32.
type VirtualTokens = u128;

/// Takes turns between callers by virtual token counters ("Fairness in Serving Large Language Models", OSDI 2024).
/// The caller with the smallest counter is next. Tokens from the cache are not counted.
#[derive(Default)]
pub(crate) struct Callers {
    accounts: HashMap<CallerId, Account>,
    /// Turns of the callers with waiting sequences.
    turns: BTreeSet<CallerTurn>,
    /// Number of accounts with sequences.
    num_active: usize,
    /// Number of accounts with more than one running sequence.
    num_with_several: usize,
    num_waiting: usize,
    /// Smallest counter with which a caller returns after it had nothing waiting. So an idle caller saves nothing up.
    virtual_time: VirtualTokens,
}

/// Order of callers; the first one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallerTurn {
    /// Caller priority of its first sequence, which is compared among all callers.
    caller_priority: i32,
    counter: VirtualTokens,
    /// Whether a sequence of it runs, or has run since it arrived.
    pub(crate) was_served: bool,
    /// Its first waiting sequence.
    pub(crate) first: SeqId,
    pub(crate) caller: CallerId,
}

/// Counter and weight of a caller, for comparisons with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) weight: NonZeroU32,
    counter: VirtualTokens,
    pub(crate) was_served: bool,
}

impl Standing {
    /// Number of tokens that this caller is owed before the other one. Returns `None` if the other one is owed some.
    pub(crate) fn num_owed_before(&self, other: &Self) -> Option<u128> {
        let behind = other.counter.checked_sub(self.counter)?;
        Some((behind * u128::from(self.weight.get())) >> 32)
    }
}

struct Account {
    weight: NonZeroU32,
    counter: VirtualTokens,
    waiting: BTreeSet<WaitingKey>,
    num_running: usize,
    was_served: bool,
}

impl Account {
    fn is_active(&self) -> bool {
        self.num_running > 0 || !self.waiting.is_empty()
    }

    fn turn(&self, caller: CallerId) -> Option<CallerTurn> {
        let (caller_priority, .., first) = *self.waiting.first()?;
        let (counter, was_served) = (self.counter, self.was_served);
        Some(CallerTurn { caller_priority, counter, was_served, first, caller })
    }
}

impl Callers {
    /// Registers a caller whose request is about to wait. If it had nothing waiting, its counter rises to the
    /// smallest one of those that wait.
    pub(crate) fn arrive(&mut self, caller: Caller, caller_priority: i32) {
        self.forget_idle();
        let account = self.accounts.entry(caller.id).or_insert_with(|| Account {
            weight: caller.weight,
            counter: 0,
            waiting: BTreeSet::new(),
            num_running: 0,
            was_served: false,
        });
        account.weight = caller.weight;
        if !account.waiting.is_empty() {
            return;
        }
        account.was_served = account.num_running > 0;
        self.virtual_time = self.level(caller_priority);
        let account = self.accounts.get_mut(&caller.id).expect("it was just looked up");
        account.counter = account.counter.max(self.virtual_time);
    }

    /// The smallest counter of the callers that wait. If none waits, the largest one of those with sequences.
    fn level(&self, caller_priority: i32) -> VirtualTokens {
        let (counter, was_served, first, caller) = (0, false, SeqId(0), CallerId(0));
        let lowest = CallerTurn { caller_priority, counter, was_served, first, caller };
        let least = self.turns.range(lowest..).next();
        let least = least.filter(|turn| turn.caller_priority == caller_priority);
        let active = || self.accounts.values().filter(|account| account.is_active());
        let most = || active().map(|account| account.counter).max();
        least.map(|turn| turn.counter).or_else(most).unwrap_or(self.virtual_time)
    }

    /// Removes half of the accounts without sequences if there are too many: those with the smallest counters.
    fn forget_idle(&mut self) {
        let num_idle = self.accounts.len() - self.num_active;
        if num_idle <= MAX_IDLE {
            return;
        }
        let idle = self.accounts.iter().filter(|(_, account)| !account.is_active());
        let mut idle: Vec<_> = idle.map(|(caller, account)| (account.counter, *caller)).collect();
        idle.sort_unstable();
        for (_, caller) in &idle[..num_idle / 2] {
            self.accounts.remove(caller);
        }
    }

    pub(crate) fn insert_waiting(&mut self, caller: CallerId, key: WaitingKey) {
        self.num_waiting += 1;
        self.update(caller, |account| account.waiting.insert(key));
    }

    pub(crate) fn remove_waiting(&mut self, caller: CallerId, key: &WaitingKey) {
        self.num_waiting -= 1;
        self.update(caller, |account| account.waiting.remove(key));
    }

    pub(crate) fn add_running(&mut self, caller: CallerId) {
        self.update(caller, |account| account.num_running += 1);
    }

    pub(crate) fn remove_running(&mut self, caller: CallerId) {
        self.update(caller, |account| account.num_running -= 1);
    }

    /// Moves a waiting sequence to the running ones.
    pub(crate) fn start(&mut self, caller: CallerId, key: &WaitingKey) {
        self.num_waiting -= 1;
        self.update(caller, |account| {
            account.waiting.remove(key);
            account.num_running += 1;
            account.was_served = true;
        });
    }

    /// Moves a running sequence to the waiting ones.
    pub(crate) fn stop(&mut self, caller: CallerId, key: WaitingKey) {
        self.num_waiting += 1;
        self.update(caller, |account| {
            account.num_running -= 1;
            account.waiting.insert(key);
        });
    }

    /// Counts tokens that are computed for a caller.
    pub(crate) fn charge(&mut self, caller: CallerId, num_tokens: usize) {
        let virtual_time = self.virtual_time;
        self.update(caller, |account| {
            if account.waiting.is_empty() {
                account.counter = account.counter.max(virtual_time);
            }
            account.counter += cost(num_tokens, account.weight);
        });
    }

    /// Turns of the callers with waiting sequences, the next one first.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &CallerTurn> {
        self.turns.iter()
    }

    /// The turn of a caller for one of its running sequences.
    pub(crate) fn turn_of(
        &self,
        caller: CallerId,
        caller_priority: i32,
        first: SeqId,
    ) -> CallerTurn {
        let counter = self.standing(caller).counter;
        CallerTurn { caller_priority, counter, was_served: true, first, caller }
    }

    pub(crate) fn standing(&self, caller: CallerId) -> Standing {
        let account = &self.accounts[&caller];
        let counter = match account.waiting.is_empty() {
            true => account.counter.max(self.virtual_time),
            false => account.counter,
        };
        Standing { weight: account.weight, counter, was_served: account.was_served }
    }

    /// The waiting sequences of a caller.
    pub(crate) fn waiting(&self, caller: CallerId) -> &BTreeSet<WaitingKey> {
        &self.accounts[&caller].waiting
    }

    /// Number of waiting sequences of all callers.
    pub(crate) fn num_waiting(&self) -> usize {
        self.num_waiting
    }

    /// Number of callers with sequences.
    pub(crate) fn num_active(&self) -> usize {
        self.num_active
    }

    /// Whether a caller has more than one running sequence, or only two callers have sequences.
    pub(crate) fn may_spare_a_slot(&self) -> bool {
        self.num_with_several > 0 || self.num_active == 2
    }

    /// Sorts sequences that cost one token each, so that their callers take turns.
    pub(crate) fn interleave(&self, sequences: &[(CallerId, SeqId)]) -> Vec<SeqId> {
        let mut of_callers: HashMap<CallerId, Vec<SeqId>> = HashMap::new();
        for (caller, id) in sequences.iter().rev() {
            of_callers.entry(*caller).or_default().push(*id);
        }
        let callers = of_callers.keys();
        let mut turns: BTreeSet<_> =
            callers.map(|caller| (self.standing(*caller).counter, *caller)).collect();
        let mut ordered = Vec::with_capacity(sequences.len());
        while let Some((counter, caller)) = turns.pop_first() {
            let next = of_callers.get_mut(&caller).and_then(Vec::pop);
            let Some(id) = next else { continue };
            ordered.push(id);
            turns.insert((counter + cost(1, self.accounts[&caller].weight), caller));
        }
        ordered
    }

    /// Verifies that turns and counts agree with the accounts. `num_running` counts each caller's running sequences.
    pub(crate) fn check(&self, num_running: &HashMap<CallerId, usize>) -> Result<(), String> {
        for (caller, account) in &self.accounts {
            let num_running = num_running.get(caller).copied().unwrap_or(0);
            if account.num_running != num_running {
                let counted = account.num_running;
                return Err(format!("{caller:?} counts {counted} of {num_running} that run"));
            }
            if account.turn(*caller).is_some_and(|turn| !self.turns.contains(&turn)) {
                return Err(format!("{caller:?} has no turn"));
            }
        }
        let accounts = || self.accounts.values();
        let num_waiting: usize = accounts().map(|account| account.waiting.len()).sum();
        let num_turns = accounts().filter(|account| !account.waiting.is_empty()).count();
        let num_active = accounts().filter(|account| account.is_active()).count();
        let num_with_several = accounts().filter(|account| account.num_running > 1).count();
        let counted = (self.num_waiting, self.turns.len(), self.num_active, self.num_with_several);
        match counted == (num_waiting, num_turns, num_active, num_with_several) {
            true => Ok(()),
            false => Err(format!("callers are counted as {counted:?}")),
        }
    }

    fn update<T>(&mut self, caller: CallerId, change: impl FnOnce(&mut Account) -> T) {
        let account = self.accounts.get_mut(&caller).expect("callers of sequences are known");
        let (turn, was_active) = (account.turn(caller), account.is_active());
        let had_several = account.num_running > 1;
        change(account);
        let has_several = account.num_running > 1;
        let (new_turn, is_active, counter) =
            (account.turn(caller), account.is_active(), account.counter);
        if new_turn != turn {
            turn.iter().for_each(|turn| _ = self.turns.remove(turn));
            self.turns.extend(new_turn);
        }
        if is_active != was_active {
            self.num_active = if is_active { self.num_active + 1 } else { self.num_active - 1 };
        }
        if has_several != had_several {
            let num = self.num_with_several;
            self.num_with_several = if has_several { num + 1 } else { num - 1 };
        }
        if self.num_active == 0 {
            self.virtual_time = self.virtual_time.max(counter);
        }
    }
}

fn cost(num_tokens: usize, weight: NonZeroU32) -> VirtualTokens {
    ((num_tokens as u128) << 32) / u128::from(weight.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Turn;

    fn caller(id: u64, weight: u32) -> Caller {
        Caller { id: CallerId(id), weight: NonZeroU32::new(weight).unwrap() }
    }

    /// Adds a waiting sequence.
    fn add(callers: &mut Callers, caller: Caller, seq: u64) -> WaitingKey {
        let key = (0, 0, Turn::New, SeqId(seq));
        callers.arrive(caller, 0);
        callers.insert_waiting(caller.id, key);
        key
    }

    fn order(callers: &Callers) -> Vec<u64> {
        callers.turns().map(|turn| turn.caller.0).collect()
    }

    #[test]
    fn the_one_that_has_had_the_least_for_its_weight_is_next() {
        let mut callers = Callers::default();
        add(&mut callers, caller(1, 1), 0);
        add(&mut callers, caller(2, 3), 1);
        assert_eq!(order(&callers), [1, 2], "by arrival");
        callers.charge(CallerId(1), 10);
        callers.charge(CallerId(2), 29);
        assert_eq!(order(&callers), [2, 1]);
        callers.charge(CallerId(2), 2);
        assert_eq!(order(&callers), [1, 2]);
        callers.check(&HashMap::new()).unwrap();
        let (first, second) = (callers.standing(CallerId(1)), callers.standing(CallerId(2)));
        assert_eq!(
            (first.num_owed_before(&second), second.num_owed_before(&first)),
            (Some(0), None)
        );
    }

    #[test]
    fn an_idle_caller_saves_up_nothing_and_keeps_its_debts() {
        let mut callers = Callers::default();
        let key = add(&mut callers, caller(1, 1), 0);
        callers.charge(CallerId(1), 500);
        callers.remove_waiting(CallerId(1), &key);
        add(&mut callers, caller(2, 1), 1);
        add(&mut callers, caller(1, 1), 2);
        callers.charge(CallerId(2), 1);
        assert_eq!(order(&callers), [1, 2], "both began at 500");
        let key = add(&mut callers, caller(3, 1), 3);
        callers.charge(CallerId(3), 100);
        callers.remove_waiting(CallerId(3), &key);
        add(&mut callers, caller(3, 1), 4);
        assert_eq!(order(&callers), [1, 2, 3]);
    }

    #[test]
    fn idle_callers_are_forgotten_when_they_are_many() {
        let mut callers = Callers::default();
        let busy = add(&mut callers, caller(0, 1), 0);
        for id in 1..10_000 {
            let key = add(&mut callers, caller(id, 1), id);
            callers.charge(CallerId(id), id as usize);
            callers.remove_waiting(CallerId(id), &key);
            assert!(callers.accounts.len() <= MAX_IDLE + 2);
        }
        assert!(callers.accounts.contains_key(&CallerId(9_999)), "it has had the most");
        assert!(callers.waiting(CallerId(0)).contains(&busy));
        callers.check(&HashMap::new()).unwrap();
    }
}
