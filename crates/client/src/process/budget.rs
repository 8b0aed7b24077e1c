//! The restart budget: number of restarts of a server that ended by itself, and the pause before each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Restarts within [`WINDOW`]. One more end is a failure.
pub(super) const MAX_RESTARTS: usize = 5;
/// Time for which a restart counts.
pub(super) const WINDOW: Duration = Duration::from_secs(600);
/// The first pause. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The restarts that count.
#[derive(Debug, Default)]
pub(super) struct RestartBudget(VecDeque<Instant>);

impl RestartBudget {
    /// The pause before the next restart; `None` after too many restarts.
    pub(super) fn next_pause(&mut self, now: Instant) -> Option<Duration> {
        while self.0.front().is_some_and(|restart| now.duration_since(*restart) > WINDOW) {
            self.0.pop_front();
        }
        let spent = self.0.len();
        if spent >= MAX_RESTARTS {
            return None;
        }
        self.0.push_back(now);
        // `spent` is less than `MAX_RESTARTS`, so the shift cannot overflow.
        Some(FIRST_PAUSE * (1 << spent))
    }

    /// Number of restarts that count now.
    pub(super) fn spent(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_the_budget_is_spent_and_old_restarts_are_forgotten() {
        let mut budget = RestartBudget::default();
        let begin = Instant::now();
        let pauses: Vec<_> = (0..6).map(|_| budget.next_pause(begin)).collect();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(pauses, [ms(200), ms(400), ms(800), ms(1600), ms(3200), None]);
        assert_eq!(budget.next_pause(begin + WINDOW * 2), ms(200));
        assert_eq!(budget.spent(), 1);
    }
}
