//! A sliding window: one value for each recent period, such as each of the last five minutes.

use std::collections::VecDeque;
use std::time::Duration;

/// All times are by [`Clock::elapsed`](crate::Clock::elapsed).
#[derive(Debug)]
pub(super) struct Window<T> {
    period: Duration,
    kept_periods: u64,
    /// Period numbers and values, oldest first. Periods without a value are left out.
    values: VecDeque<(u64, T)>,
}

impl<T: Default> Window<T> {
    /// Creates a window over the current period and those before it, `kept_periods` in all.
    pub(super) const fn new(period: Duration, kept_periods: u64) -> Self {
        Self { period, kept_periods, values: VecDeque::new() }
    }

    /// Returns the current period's value.
    pub(super) fn current(&mut self, now: Duration) -> &mut T {
        let period_number = self.drop_old(now);
        if self.values.back().is_none_or(|(last, _)| *last != period_number) {
            self.values.push_back((period_number, T::default()));
        }
        let (_, value) = self.values.back_mut().expect("it was just added");
        value
    }

    /// Returns the values of all kept periods, oldest first.
    pub(super) fn recent(&mut self, now: Duration) -> impl Iterator<Item = &T> {
        self.drop_old(now);
        self.values.iter().map(|(_, value)| value)
    }

    /// Returns the current period's number.
    fn drop_old(&mut self, now: Duration) -> u64 {
        let current = now.as_secs() / self.period.as_secs();
        while self.values.front().is_some_and(|(number, _)| number + self.kept_periods <= current) {
            self.values.pop_front();
        }
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_for_the_given_number_of_periods() {
        let secs = Duration::from_secs;
        let mut window: Window<u64> = Window::new(secs(60), 5);
        for second in 0..1_000 {
            *window.current(secs(second)) += 1;
        }
        assert_eq!(window.values.len(), 5);
        // The oldest period begins at 720 s; the current one began at 960 s.
        let sum = |window: &mut Window<u64>, now| window.recent(now).sum::<u64>();
        for (now, wanted) in [(999, 280), (1_020, 220), (1_200, 40), (1_260, 0)] {
            assert_eq!(sum(&mut window, secs(now)), wanted, "at {now} s");
        }
    }
}
