//! Rounds times in answers, so that stores with different clocks compare equal.

use dq_core::{
    Cancelled, Claimed, JobView, OperateReport, QueueStats, RateState, Renewed, Rescheduled,
    Scheduled, Settled, Timestamp,
};

pub(super) trait Rounded {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp));
}

impl<T: Rounded> Rounded for Vec<T> {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp)) {
        self.iter_mut().for_each(|answer| answer.round(round));
    }
}

impl Rounded for Scheduled {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp)) {
        match self {
            Self::Created(receipt)
            | Self::Replaced(receipt)
            | Self::Kept(receipt)
            | Self::AlreadyRunning(receipt)
            | Self::Ended(receipt) => round(&mut receipt.due),
            _ => {}
        }
    }
}

impl Rounded for Rescheduled {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp)) {
        if let Self::Moved(receipt) = self {
            round(&mut receipt.due);
        }
    }
}

impl Rounded for Claimed {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp)) {
        round(&mut self.now);
        self.next_due.iter_mut().for_each(round);
        for leased in &mut self.jobs {
            round(&mut leased.job.due);
            round(&mut leased.job.first_due);
            round(&mut leased.job.created);
            round(&mut leased.leased_until);
        }
    }
}

impl Rounded for Renewed {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp)) {
        if let Self::Until(until) = self {
            round(until);
        }
    }
}

impl Rounded for JobView {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp)) {
        round(&mut self.job.due);
        round(&mut self.job.first_due);
        round(&mut self.job.created);
        self.leased_until.iter_mut().for_each(round);
        self.leased_since.iter_mut().for_each(round);
        if let Some((_, since)) = &mut self.dead {
            round(since);
        }
        if let Some(ended) = &mut self.ended {
            round(&mut ended.at);
        }
    }
}

impl Rounded for QueueStats {
    fn round(&mut self, round: &dyn Fn(&mut Timestamp)) {
        self.next_due.iter_mut().for_each(round);
        self.flow.opens_at.iter_mut().for_each(round);
        self.flow.throttled_until.iter_mut().for_each(round);
        // In microseconds by the store's clock; claims and `opens_at` show what it lets start.
        self.flow.used = RateState::default();
    }
}

macro_rules! timeless {
    ($($answer:ty),+) => {$(
        impl Rounded for $answer {
            fn round(&mut self, _round: &dyn Fn(&mut Timestamp)) {}
        }
    )+};
}

timeless!(Cancelled, Settled, OperateReport, u64);
