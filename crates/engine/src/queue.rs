//! Queue slots: a limit on the sequences that run or wait, of one caller and of all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use candlepower_scheduler::CallerId;

use crate::error::SubmitError;

/// The queue slots of an engine, one for each sequence that runs or waits.
///
/// One caller has at most `limit` of them, and all callers together twice as many. A caller also has at most as many as are left free.
/// So a newcomer finds slots beside a caller that takes all it gets. Where several callers do, it finds one as soon as one of their
/// sequences ends. Source of that policy: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
/// packet switches", 1998.
#[derive(Debug)]
pub(crate) struct Queue {
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    of_all: usize,
    /// Callers with slots.
    of_callers: HashMap<CallerId, usize>,
}

/// One slot, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct QueueSlot {
    queue: Arc<Queue>,
    caller: CallerId,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::default() })
    }

    /// Most slots of one caller.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Slots that are taken.
    pub(crate) fn num_taken(&self) -> usize {
        self.taken().of_all
    }

    /// Checks that a caller could take `n` slots now. While no slot is taken, it could take any number.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`], with the slots that this caller has and may have.
    pub(crate) fn check(&self, caller: CallerId, n: usize) -> Result<(), SubmitError> {
        self.check_taken(&self.taken(), caller, n)
    }

    /// Takes `n` slots for a caller.
    ///
    /// # Errors
    /// The same as those of [`Self::check`].
    pub(crate) fn take(
        self: &Arc<Self>,
        caller: CallerId,
        n: usize,
    ) -> Result<Vec<Arc<QueueSlot>>, SubmitError> {
        let mut taken = self.taken();
        self.check_taken(&taken, caller, n)?;
        Ok((0..n).map(|_| self.add(&mut taken, caller)).collect())
    }

    /// Takes over the slot of a sequence that is given up. If that sequence has ended meanwhile, another slot is taken, even above the
    /// limit: a request that was accepted is not refused later.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        caller: CallerId,
        given_up: &Weak<QueueSlot>,
    ) -> Arc<QueueSlot> {
        given_up.upgrade().unwrap_or_else(|| self.add(&mut self.taken(), caller))
    }

    fn add(self: &Arc<Self>, taken: &mut Taken, caller: CallerId) -> Arc<QueueSlot> {
        taken.of_all += 1;
        *taken.of_callers.entry(caller).or_default() += 1;
        Arc::new(QueueSlot { queue: Arc::clone(self), caller })
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

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut taken = self.queue.taken();
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

    /// Takes slots one by one until the next one is refused.
    fn fill(queue: &Arc<Queue>, caller: u64) -> Vec<Arc<QueueSlot>> {
        let take = || queue.take(CallerId(caller), 1).ok();
        std::iter::from_fn(take).flatten().collect()
    }

    #[test]
    fn one_caller_has_the_limit() {
        let queue = Queue::new(6);
        let taken = fill(&queue, 1);
        assert_eq!((taken.len(), queue.num_taken()), (6, 6));
        let refused = queue.check(CallerId(1), 1).unwrap_err();
        assert!(matches!(refused, SubmitError::QueueFull { in_flight: 6, limit: 6 }), "{refused}");
        drop(taken);
        assert_eq!(queue.num_taken(), 0);
        assert!(queue.taken().of_callers.is_empty());
    }

    #[test]
    fn a_place_is_taken_over_and_counted_once() {
        let queue = Queue::new(2);
        let given_up = queue.take(CallerId(1), 1).unwrap().remove(0);
        let taken_over = queue.take_over(CallerId(1), &Arc::downgrade(&given_up));
        assert_eq!(queue.num_taken(), 1);
        let other = queue.take(CallerId(1), 1).unwrap();
        drop(given_up);
        assert_eq!(queue.num_taken(), 2);
        assert!(queue.take(CallerId(1), 1).is_err());
        drop(taken_over);
        assert_eq!(queue.num_taken(), 1);
        drop(other);
        assert_eq!(queue.num_taken(), 0);
    }

    #[test]
    fn a_place_of_a_sequence_that_has_ended_is_taken_anew() {
        let queue = Queue::new(1);
        let given_up = queue.take(CallerId(1), 1).unwrap().remove(0);
        let weak = Arc::downgrade(&given_up);
        drop(given_up);
        let other = queue.take(CallerId(2), 1).unwrap();
        let taken_over = queue.take_over(CallerId(1), &weak);
        assert_eq!(queue.num_taken(), 2);
        drop((other, taken_over));
        assert!(queue.taken().of_callers.is_empty());
    }

    #[test]
    fn newcomers_find_places_beside_callers_that_take_all_they_get() {
        let queue = Queue::new(120);
        let held: Vec<_> = (0..6).map(|caller| fill(&queue, caller)).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [120, 60, 30, 15, 8, 4]);
    }

    #[test]
    fn nobody_is_left_without_places_for_long() {
        let queue = Queue::new(120);
        let mut held: Vec<_> = (0..30).map(|caller| fill(&queue, caller)).collect();
        assert_eq!(queue.num_taken(), 240);
        for turn in 0..300 {
            // One sequence of somebody ends, and everybody tries to add one.
            held[turn % 30].pop();
            for (caller, held) in held.iter_mut().enumerate() {
                held.extend(queue.take(CallerId(caller as u64), 1).into_iter().flatten());
            }
        }
        let counts = held.iter().map(Vec::len);
        assert!(counts.clone().min() >= Some(1), "{:?}", counts.collect::<Vec<_>>());
    }

    #[test]
    fn with_nothing_in_flight_a_request_may_be_larger() {
        let queue = Queue::new(2);
        let large = queue.take(CallerId(1), 5).unwrap();
        assert_eq!(large.len(), 5);
        assert!(queue.check(CallerId(2), 1).is_err());
        drop(large);
        queue.check(CallerId(2), 9).unwrap();
    }
}
