//! Places in the queue: how many sequences may run or wait, of one caller and of all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use candlepower_scheduler::CallerId;

use crate::SubmitError;

/// Queue places, one for each sequence that runs or waits.
///
/// One caller has at most `limit` of them, and all callers together twice as many. A caller also has at most as many as are left free.
/// So a newcomer finds places beside a caller that takes all it gets, and where several do, as soon as one of theirs ends.
/// Source of that rule: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
/// packet switches", 1998.
#[derive(Debug)]
pub(crate) struct Places {
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    of_all: usize,
    /// Callers with places.
    of_callers: HashMap<CallerId, usize>,
}

/// One place, for as long as it lives.
#[derive(Debug)]
pub(crate) struct TakenPlace {
    places: Arc<Places>,
    caller: CallerId,
}

impl Places {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::default() })
    }

    /// Most places of one caller.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Places that are taken.
    pub(crate) fn num_taken(&self) -> usize {
        self.taken().of_all
    }

    /// Whether a caller could take `n` places now. While no place is taken, it could take any number.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`], with the places that this caller has and may have.
    pub(crate) fn check(&self, caller: CallerId, n: usize) -> Result<(), SubmitError> {
        self.check_taken(&self.taken(), caller, n)
    }

    /// Takes `n` places for a caller.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`], as for [`Self::check`].
    pub(crate) fn take(
        self: &Arc<Self>,
        caller: CallerId,
        n: usize,
    ) -> Result<Vec<Arc<TakenPlace>>, SubmitError> {
        let mut taken = self.taken();
        self.check_taken(&taken, caller, n)?;
        Ok((0..n).map(|_| self.add(&mut taken, caller)).collect())
    }

    /// Takes the place of a sequence that is given up. If that sequence has ended meanwhile, a free place is taken, or one above the
    /// limit: a request that was accepted is not refused later.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        caller: CallerId,
        given_up: &Weak<TakenPlace>,
    ) -> Arc<TakenPlace> {
        given_up.upgrade().unwrap_or_else(|| self.add(&mut self.taken(), caller))
    }

    fn add(self: &Arc<Self>, taken: &mut Taken, caller: CallerId) -> Arc<TakenPlace> {
        taken.of_all += 1;
        *taken.of_callers.entry(caller).or_default() += 1;
        Arc::new(TakenPlace { places: Arc::clone(self), caller })
    }

    fn check_taken(&self, taken: &Taken, caller: CallerId, n: usize) -> Result<(), SubmitError> {
        let in_flight = taken.of_callers.get(&caller).copied().unwrap_or(0);
        let free = self.limit.saturating_mul(2).saturating_sub(taken.of_all);
        let limit = self.limit.min(free);
        match taken.of_all == 0 || in_flight.saturating_add(n) <= limit {
            true => Ok(()),
            false => Err(SubmitError::QueueFull { in_flight, limit }),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.of_all -= 1;
        if let Some(of_caller) = taken.of_callers.get_mut(&self.caller) {
            *of_caller -= 1;
            if *of_caller == 0 {
                taken.of_callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places one by one until the next one is refused.
    fn fill(places: &Arc<Places>, caller: u64) -> Vec<Arc<TakenPlace>> {
        let take = || places.take(CallerId(caller), 1).ok();
        std::iter::from_fn(take).flatten().collect()
    }

    #[test]
    fn one_caller_has_the_limit() {
        let places = Places::new(6);
        let taken = fill(&places, 1);
        assert_eq!((taken.len(), places.num_taken()), (6, 6));
        let refused = places.check(CallerId(1), 1).unwrap_err();
        assert!(matches!(refused, SubmitError::QueueFull { in_flight: 6, limit: 6 }), "{refused}");
        drop(taken);
        assert_eq!(places.num_taken(), 0);
        assert!(places.taken().of_callers.is_empty());
    }

    #[test]
    fn a_place_is_taken_over_and_counted_once() {
        let places = Places::new(2);
        let given_up = places.take(CallerId(1), 1).unwrap().remove(0);
        let taken_over = places.take_over(CallerId(1), &Arc::downgrade(&given_up));
        assert_eq!(places.num_taken(), 1);
        let other = places.take(CallerId(1), 1).unwrap();
        drop(given_up);
        assert_eq!(places.num_taken(), 2);
        assert!(places.take(CallerId(1), 1).is_err());
        drop(taken_over);
        assert_eq!(places.num_taken(), 1);
        drop(other);
        assert_eq!(places.num_taken(), 0);
    }

    #[test]
    fn a_place_of_a_sequence_that_has_ended_is_taken_anew() {
        let places = Places::new(1);
        let given_up = places.take(CallerId(1), 1).unwrap().remove(0);
        let weak = Arc::downgrade(&given_up);
        drop(given_up);
        let other = places.take(CallerId(2), 1).unwrap();
        let taken_over = places.take_over(CallerId(1), &weak);
        assert_eq!(places.num_taken(), 2);
        drop((other, taken_over));
        assert!(places.taken().of_callers.is_empty());
    }

    #[test]
    fn newcomers_find_places_beside_callers_that_take_all_they_get() {
        let places = Places::new(120);
        let held: Vec<_> = (0..6).map(|caller| fill(&places, caller)).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [120, 60, 30, 15, 8, 4]);
    }

    #[test]
    fn nobody_is_left_without_places_for_long() {
        let places = Places::new(120);
        let mut held: Vec<_> = (0..30).map(|caller| fill(&places, caller)).collect();
        assert_eq!(places.num_taken(), 240);
        for turn in 0..300 {
            // One sequence of somebody ends, and everybody tries to add one.
            held[turn % 30].pop();
            for (caller, held) in held.iter_mut().enumerate() {
                held.extend(places.take(CallerId(caller as u64), 1).into_iter().flatten());
            }
        }
        let counts = held.iter().map(Vec::len);
        assert!(counts.clone().min() >= Some(1), "{:?}", counts.collect::<Vec<_>>());
    }

    #[test]
    fn with_nothing_in_flight_a_request_may_be_larger() {
        let places = Places::new(2);
        let large = places.take(CallerId(1), 5).unwrap();
        assert_eq!(large.len(), 5);
        assert!(places.check(CallerId(2), 1).is_err());
        drop(large);
        places.check(CallerId(2), 9).unwrap();
    }
}
