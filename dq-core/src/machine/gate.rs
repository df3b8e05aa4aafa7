//! A queue's gate: how many more of its jobs may start now.

use std::time::Duration;

use crate::backend::QueueFlow;
use crate::model::{Flow, RateState, Timestamp};

/// The limits of a queue and what they have let pass, without the running jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gate {
    /// The runners' latest declaration.
    pub declared: Flow,
    /// An operator's limits in its place.
    pub overriding: Option<Flow>,
    /// What the rate has used.
    pub rate: RateState,
    /// No job starts before this time, because a handler has throttled the queue.
    pub closed_until: Option<Timestamp>,
}

/// How many jobs may start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// At most this many; `usize::MAX` without a limit.
    Jobs(usize),
    /// None, until a running job ends.
    Full,
    /// None until this time.
    Until(Timestamp),
}

impl Room {
    /// Returns when a waiting job that is due at `due` may start; `None` if only an ended run makes
    /// room.
    pub fn opens_at(self, due: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Jobs(_) => Some(due),
            Self::Full => Some(due).filter(|due| *due > now),
            Self::Until(opens_at) => Some(due.max(opens_at)),
        }
    }
}

impl Gate {
    /// Returns the limits in force.
    pub fn flow(&self) -> Flow {
        self.overriding.unwrap_or(self.declared)
    }

    /// Returns the state for `stats`.
    pub fn state(&self, now: Timestamp) -> QueueFlow {
        let mut state = QueueFlow::new(self.declared, self.overriding);
        if let Room::Until(opens_at) = self.room(0, now) {
            state.opens_at = Some(opens_at);
        }
        state.throttled_until = self.closed_until.filter(|until| *until > now);
        if let Some(rate) = self.flow().rate {
            state.used = rate.tokens(self.rate, now).used();
        }
        state
    }

    /// Lets no job start before this time.
    pub fn close_until(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(Some(until));
    }

    /// Returns how many jobs may start now, beside those that run.
    pub fn room(&self, running: usize, now: Timestamp) -> Room {
        let Flow { max_running, rate, .. } = self.flow();
        let free = max_running.map_or(usize::MAX, |max| (max as usize).saturating_sub(running));
        if free == 0 {
            return Room::Full;
        }
        if let Some(until) = self.closed_until.filter(|until| *until > now) {
            return Room::Until(until);
        }
        let Some(tokens) = rate.map(|rate| rate.tokens(self.rate, now)) else {
            return Room::Jobs(free);
        };
        match tokens.left() {
            0 => Room::Until(tokens.next()),
            left => Room::Jobs(free.min(left)),
        }
    }

    /// Returns how many jobs a claim gets that wants `max`, of which `starting` would start at
    /// once, if `room` may start. The others wait in the runner, where they count as running: so
    /// they come only if half of the room stays free, and half of their group's limit (see
    /// [`group_stays_half_free`](Self::group_stays_half_free)). Builds that share a log must agree
    /// on both.
    pub fn allowed(&self, room: usize, max: usize, starting: usize) -> usize {
        if room / 2 >= max { max } else { room.min(max).min(starting) }
    }

    /// Returns whether a group with `running` jobs is full.
    pub fn group_is_full(&self, running: usize) -> bool {
        self.flow().group_max_running.is_some_and(|max| running >= max as usize)
    }

    /// Returns whether a group with `running` jobs uses at most half of its limit with one more.
    pub fn group_stays_half_free(&self, running: usize) -> bool {
        let max = self.flow().group_max_running;
        max.is_none_or(|max| running < max as usize / 2)
    }

    /// Counts jobs that start.
    pub fn start(&mut self, jobs: usize, now: Timestamp) {
        if let Some(rate) = self.flow().rate {
            self.rate = rate.tokens(self.rate, now).take(jobs);
        }
    }

    /// Returns when the claimer at this position of the line should claim: the first one when the
    /// gate opens, each following one an interval later.
    pub(super) fn turn(&self, position: usize, opens_at: Timestamp) -> Timestamp {
        let interval = self.flow().rate.map_or(Duration::ZERO, |rate| rate.interval());
        opens_at + interval.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX))
    }
}
