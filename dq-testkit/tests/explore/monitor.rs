//! Judges by what clients see whether the store keeps its promises.
//!
//! The monitor reports a violation only if no order of the overlapping calls explains it, whether
//! calls with a lost answer took effect or not. *Maybe* in a name means that only such a call, or
//! one in flight, could have had the effect.

use dq_core::{Cancelled, Renewed, Scheduled, Settled};

use super::store::{Answer, Call, DELAY, Ending, number};
use super::world::JOBS;

/// What went wrong, as a noun phrase.
pub(crate) type Violation = &'static str;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Monitor {
    pub(crate) jobs: [Known; JOBS],
}

/// What the clients know of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    /// Whether a `schedule` was confirmed; `Some(false)` if its answer was lost.
    stored: Option<bool>,
    /// The job may not start before this time.
    not_before: i64,
    /// Confirmed as done, cancelled or replaced.
    ended: bool,
    /// A call with a lost answer may have ended it.
    maybe_ended: bool,
    /// The other job's `schedule`, with a lost answer, may have replaced it.
    maybe_replaced: bool,
    /// The retries that were confirmed.
    failures: u32,
    /// The retries with a lost answer.
    maybe_failures: u32,
    pub(crate) leases: Vec<KnownLease>,
}

impl Known {
    /// Unconfirmed calls may be repeated.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.stored == Some(true)
    }

    pub(crate) fn was_scheduled(&self) -> bool {
        self.stored.is_some()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KnownLease {
    pub(crate) token: u64,
    /// The lease is certainly held until then.
    until: i64,
    /// A settlement has begun, so the lease may be over.
    maybe_settled: bool,
}

/// What the clients knew when a call began.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Begun {
    ended: [bool; JOBS],
    /// The call uses a lease although a newer one was known.
    is_stale: bool,
    at: i64,
}

impl Monitor {
    /// A client makes a call.
    pub(crate) fn begin(&mut self, call: Call, now: i64) -> Begun {
        let mut is_stale = false;
        if let Call::Renew(job, token) | Call::Settle(job, token, _) = call {
            is_stale = self.newer(job, token);
        }
        if let Call::Settle(job, token, _) = call {
            self.lease(job, token, |lease| lease.maybe_settled = true);
        }
        Begun { ended: self.jobs.each_ref().map(|job| job.ended), is_stale, at: now }
    }

    /// A client gets an answer, which may show a violation.
    pub(crate) fn returns(
        &mut self,
        call: Call,
        begun: &Begun,
        answer: &Answer,
        now: i64,
    ) -> Result<(), Violation> {
        match (call, answer) {
            (Call::Schedule(job), Answer::Scheduled(answer)) => self.scheduled(job, begun, answer),
            (Call::Cancel(job), Answer::Cancelled(answer)) => self.cancelled(job, *answer),
            (_, Answer::Claimed(Some(leased))) => {
                let job = number(leased.job.id);
                let until = leased.leased_until.as_millis();
                self.claimed(job, begun, leased.token.0, until, now)?;
                let Known { not_before, failures, maybe_failures, .. } = self.jobs[job];
                if leased.job.due.as_millis() > now || not_before > now {
                    return Err("an early start");
                }
                if !(failures..=failures + maybe_failures).contains(&leased.job.attempts) {
                    return Err("a wrong number of failed attempts");
                }
                Ok(())
            }
            (Call::Renew(job, token), Answer::Renewed(answer)) => {
                self.renewed(job, token, begun, *answer, now)
            }
            (Call::Settle(job, token, ending), Answer::Settled(answer)) => {
                self.settled(job, token, ending, begun, *answer, now)
            }
            (_, Answer::Claimed(None)) => Ok(()),
            _ => Err("an answer to another call"),
        }
    }

    /// The answer to a call is lost. The call may have taken effect.
    pub(crate) fn loses(&mut self, call: Call, begun: &Begun) {
        match call {
            Call::Schedule(job) => {
                if self.jobs[job].stored.is_none() {
                    self.jobs[job].stored = Some(false);
                    self.jobs[job].not_before = begun.at + DELAY;
                }
                if job == 1 {
                    self.jobs[0].maybe_replaced = true;
                }
            }
            Call::Cancel(job) => self.jobs[job].maybe_ended = true,
            // Its lease expires at the old time, which is earlier, or at the new one.
            Call::Claim | Call::Renew(..) => {}
            Call::Settle(job, token, ending) => {
                // A repeated settlement may find the lease lost.
                self.lease(job, token, |lease| lease.until = i64::MIN);
                match ending {
                    Ending::Done => self.jobs[job].maybe_ended = true,
                    Ending::Retry => self.jobs[job].maybe_failures += 1,
                    Ending::Release => {}
                }
            }
        }
    }

    /// A late claim returned these jobs. All waiting jobs must be among them.
    pub(crate) fn drained(&self, claimed: &[usize]) -> Result<(), Violation> {
        let present = |job: usize| claimed.contains(&job);
        for (number, job) in self.jobs.iter().enumerate() {
            if present(number) && job.ended {
                return Err("a start after the end");
            }
            if present(number) && job.stored.is_none() {
                return Err("a job that was never stored");
            }
            let lives = job.stored == Some(true) && !job.ended && !job.maybe_ended;
            // If it was replaced, the other job is there instead.
            let other = &self.jobs[1];
            let replaced = job.maybe_replaced && (present(1) || other.ended || other.maybe_ended);
            if lives && !present(number) && !replaced {
                return Err("a lost job");
            }
        }
        Ok(())
    }

    fn scheduled(
        &mut self,
        job: usize,
        begun: &Begun,
        answer: &Scheduled,
    ) -> Result<(), Violation> {
        let known = &mut self.jobs[job];
        match answer {
            Scheduled::Created(_) | Scheduled::Replaced(_) => {
                if begun.ended[job] {
                    return Err("an ended job that is stored again");
                }
                // A repeated call may have found the first call's job.
                if known.stored.is_none() {
                    known.not_before = begun.at + DELAY;
                }
                known.stored = Some(true);
                if let Scheduled::Replaced(_) = answer {
                    self.jobs[0].ended = true;
                }
            }
            Scheduled::Ended(_) => {
                if known.stored.is_none() {
                    return Err("an end of a job that was never stored");
                }
                (known.stored, known.ended) = (Some(true), true);
            }
            // The other job stays, and this one is not stored.
            _ if known.stored == Some(true) => {
                return Err("a repeated call that is not recognized");
            }
            _ => {}
        }
        Ok(())
    }

    fn cancelled(&mut self, job: usize, answer: Cancelled) -> Result<(), Violation> {
        let known = &mut self.jobs[job];
        match answer {
            Cancelled::Cancelled if known.ended => return Err("two ends of one job"),
            Cancelled::Cancelled => {
                known.stored.get_or_insert(true);
                known.ended = true;
            }
            Cancelled::NotFound => {
                let may_be_gone = known.ended || known.maybe_ended || known.maybe_replaced;
                // A settlement in flight may have ended it.
                let maybe_settled = known.leases.iter().any(|lease| lease.maybe_settled);
                if known.stored == Some(true) && !may_be_gone && !maybe_settled {
                    return Err("a live job that is not found");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn claimed(
        &mut self,
        job: usize,
        begun: &Begun,
        token: u64,
        until: i64,
        now: i64,
    ) -> Result<(), Violation> {
        let known = &mut self.jobs[job];
        if known.stored.is_none() {
            return Err("a job that was never stored");
        }
        if begun.ended[job] {
            return Err("a start after the end");
        }
        if known.leases.iter().any(|lease| !lease.maybe_settled && lease.until > now) {
            return Err("two live leases");
        }
        if known.leases.iter().any(|lease| lease.token >= token) {
            return Err("a token that is not larger than the last");
        }
        known.leases.push(KnownLease { token, until, maybe_settled: false });
        Ok(())
    }

    fn renewed(
        &mut self,
        job: usize,
        token: u64,
        begun: &Begun,
        answer: Renewed,
        now: i64,
    ) -> Result<(), Violation> {
        match answer {
            Renewed::Until(_) if begun.is_stale || begun.ended[job] => {
                Err("a stale token that renews")
            }
            Renewed::Until(until) => {
                self.lease(job, token, |lease| lease.until = until.as_millis());
                Ok(())
            }
            _ if self.is_live(job, token, now) => Err("a live lease that is refused"),
            _ => Ok(()),
        }
    }

    fn settled(
        &mut self,
        job: usize,
        token: u64,
        ending: Ending,
        begun: &Begun,
        answer: Settled,
        now: i64,
    ) -> Result<(), Violation> {
        if answer != Settled::Accepted {
            let known = &self.jobs[job];
            let is_live = |lease: &KnownLease| lease.token == token && lease.until > now;
            let may_have_ended = known.ended || known.maybe_ended;
            return if known.leases.iter().any(is_live) && !may_have_ended {
                Err("a live lease that is refused")
            } else {
                Ok(())
            };
        }
        // No lease can follow a job's end.
        let is_final = ending == Ending::Done;
        if begun.is_stale || begun.ended[job] || is_final && self.newer(job, token) {
            return Err("a stale token that settles");
        }
        let known = &mut self.jobs[job];
        match ending {
            Ending::Done => known.ended = true,
            Ending::Retry => {
                known.failures += 1;
                known.not_before = begun.at + DELAY;
            }
            Ending::Release => {}
        }
        Ok(())
    }

    /// Changes what is known of a lease.
    fn lease(&mut self, job: usize, token: u64, change: impl FnOnce(&mut KnownLease)) {
        if let Some(lease) = self.jobs[job].leases.iter_mut().find(|lease| lease.token == token) {
            change(lease);
        }
    }

    /// Whether a client knows of a later lease.
    fn newer(&self, job: usize, token: u64) -> bool {
        self.jobs[job].leases.iter().any(|lease| lease.token > token)
    }

    /// Whether a lease is certainly held.
    fn is_live(&self, job: usize, token: u64, now: i64) -> bool {
        let known = &self.jobs[job];
        let is_live = |it: &KnownLease| it.token == token && it.until > now && !it.maybe_settled;
        !known.ended && !known.maybe_ended && known.leases.iter().any(is_live)
    }
}
