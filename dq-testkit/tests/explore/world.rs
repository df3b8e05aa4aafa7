//! A world (the store, a producer, two runners and the time) and its possible steps.

use std::collections::BTreeSet;
use std::fmt;

use dq_core::machine::{JobPlacement, MachineSnapshot};
use dq_core::{Renewed, Settled};

use super::monitor::{Begun, Monitor, Violation};
use super::store::{Answer, Call, Ending, FirstStep, Progress, Variant, number, step};

pub(crate) const JOBS: usize = 2;
const RUNNERS: usize = 2;
/// The producer's number among the clients. The runners follow.
const PRODUCER: usize = 0;
/// A time at which every lease has expired and every job is due.
const LATE: i64 = 1_000;

/// How often each kind of step may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Milliseconds.
    time: i64,
    schedules: [u8; JOBS],
    cancels: u8,
    claims: u8,
    renewals: u8,
    settlements: u8,
    /// Lost answers and crashes.
    losses: u8,
}

impl Budget {
    /// One job, whose leases expire and are granted again.
    pub(crate) const fn one_job() -> Self {
        Self {
            time: 4,
            schedules: [2, 0],
            cancels: 1,
            claims: 3,
            renewals: 1,
            settlements: 2,
            losses: 1,
        }
    }

    /// Two jobs with one key.
    pub(crate) const fn two_jobs() -> Self {
        Self {
            time: 3,
            schedules: [1, 2],
            cancels: 1,
            claims: 2,
            renewals: 0,
            settlements: 2,
            losses: 1,
        }
    }
}

/// One step of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A millisecond passes.
    Tick,
    /// A client makes a call. If `lost`, it does not get the answer.
    Begin { client: usize, call: Call, lost: bool },
    /// A call of two steps makes its second one.
    Continue { client: usize, lost: bool },
    /// The client forgets its lease and call.
    Crash { client: usize },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = |lost| if lost { ", and the answer is lost" } else { "" };
        let name = |client| ["the producer", "runner 1", "runner 2"][client];
        match *self {
            Self::Tick => write!(f, "a millisecond passes"),
            Self::Begin { client, call, lost: is_lost } => {
                write!(f, "{} calls {call:?}{}", name(client), lost(is_lost))
            }
            Self::Continue { client, lost: is_lost } => {
                write!(f, "the call of {} continues{}", name(client), lost(is_lost))
            }
            Self::Crash { client } => write!(f, "{} crashes", name(client)),
        }
    }
}

/// A call between its two steps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Unfinished {
    call: Call,
    first: FirstStep,
    begun: Begun,
}

/// The producer or a runner.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Client {
    /// The job and the token of a runner's lease.
    lease: Option<(usize, u64)>,
    unfinished: Option<Unfinished>,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    variant: Variant,
    store: MachineSnapshot,
    now: i64,
    clients: [Client; 1 + RUNNERS],
    monitor: Monitor,
    budget: Budget,
}

impl World {
    pub(crate) fn new(variant: Variant, budget: Budget) -> Self {
        Self {
            variant,
            store: MachineSnapshot::default(),
            now: 0,
            clients: Default::default(),
            monitor: Monitor::default(),
            budget,
        }
    }

    /// The steps that are possible now.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let losses = if self.budget.losses > 0 { &[false, true][..] } else { &[false] };
        if self.budget.time > 0 {
            actions.push(Action::Tick);
        }
        for (client, state) in self.clients.iter().enumerate() {
            if state.unfinished.is_some() {
                actions.extend(losses.iter().map(|&lost| Action::Continue { client, lost }));
            } else {
                for call in self.calls(client) {
                    actions.extend(losses.iter().map(|&lost| Action::Begin { client, call, lost }));
                }
            }
            let has_state = state.lease.is_some() || state.unfinished.is_some();
            if has_state && self.budget.losses > 0 {
                actions.push(Action::Crash { client });
            }
        }
        actions
    }

    fn calls(&self, client: usize) -> Vec<Call> {
        let budget = &self.budget;
        let mut calls = Vec::new();
        if client == PRODUCER {
            let unconfirmed = |job: &usize| !self.monitor.jobs[*job].is_confirmed();
            let schedulable = (0..JOBS).filter(|job| budget.schedules[*job] > 0);
            calls.extend(schedulable.filter(unconfirmed).map(Call::Schedule));
            if budget.cancels > 0 {
                let scheduled = (0..JOBS).filter(|job| self.monitor.jobs[*job].was_scheduled());
                calls.extend(scheduled.map(Call::Cancel));
            }
            return calls;
        }
        match self.clients[client].lease {
            None if budget.claims > 0 => calls.push(Call::Claim),
            None => {}
            Some((job, token)) => {
                if budget.renewals > 0 {
                    calls.push(Call::Renew(job, token));
                }
                if budget.settlements > 0 {
                    let endings = [Ending::Done, Ending::Retry, Ending::Release];
                    calls.extend(endings.map(|ending| Call::Settle(job, token, ending)));
                }
            }
        }
        calls
    }

    /// Returns the world after a step, and the call's answer unless it was lost.
    pub(crate) fn after(&self, action: Action) -> Result<(Self, Option<Answer>), Violation> {
        let mut next = self.clone();
        let answer = next.take(action)?;
        Ok((next, answer))
    }

    /// While no call is in flight, the store holds every waiting job, and its counts add up.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        if self.clients.iter().any(|client| client.unfinished.is_some()) {
            return Ok(());
        }
        if !self.adds_up() {
            return Err("counts that do not add up");
        }
        self.monitor.drained(&self.drain())
    }

    /// Makes a step.
    fn take(&mut self, action: Action) -> Result<Option<Answer>, Violation> {
        match action {
            Action::Tick => {
                self.budget.time -= 1;
                self.now += 1;
                Ok(None)
            }
            Action::Begin { client, call, lost } => {
                self.pay(call);
                let begun = self.monitor.begin(call, self.now);
                match step(self.variant, &mut self.store, call, None, self.now) {
                    Progress::Answered(answer) => self.end(client, call, &begun, answer, lost),
                    Progress::Unfinished(first) => {
                        self.clients[client].unfinished = Some(Unfinished { call, first, begun });
                        Ok(None)
                    }
                }
            }
            Action::Continue { client, lost } => {
                let Some(Unfinished { call, first, begun }) =
                    self.clients[client].unfinished.take()
                else {
                    return Ok(None);
                };
                match step(self.variant, &mut self.store, call, Some(first), self.now) {
                    Progress::Answered(answer) => self.end(client, call, &begun, answer, lost),
                    Progress::Unfinished(_) => Ok(None),
                }
            }
            Action::Crash { client } => {
                self.budget.losses -= 1;
                let crashed = std::mem::take(&mut self.clients[client]);
                if let Some(Unfinished { call, begun, .. }) = crashed.unfinished {
                    self.monitor.loses(call, &begun);
                }
                Ok(None)
            }
        }
    }

    /// Takes a call from the budget.
    fn pay(&mut self, call: Call) {
        let budget = &mut self.budget;
        *match call {
            Call::Schedule(job) => &mut budget.schedules[job],
            Call::Cancel(_) => &mut budget.cancels,
            Call::Claim => &mut budget.claims,
            Call::Renew(..) => &mut budget.renewals,
            Call::Settle(..) => &mut budget.settlements,
        } -= 1;
    }

    /// A call ends with this answer, which may be lost on its way to the client.
    fn end(
        &mut self,
        client: usize,
        call: Call,
        begun: &Begun,
        answer: Answer,
        lost: bool,
    ) -> Result<Option<Answer>, Violation> {
        if lost {
            self.budget.losses -= 1;
            self.monitor.loses(call, begun);
            return Ok(None);
        }
        self.monitor.returns(call, begun, &answer, self.now)?;
        let lease = &mut self.clients[client].lease;
        match &answer {
            Answer::Claimed(Some(leased)) => {
                *lease = Some((number(leased.job.id), leased.token.0));
            }
            // A runner that has lost the lease takes the next job.
            Answer::Settled(Settled::Accepted | Settled::LostLease)
            | Answer::Renewed(Renewed::LostLease) => *lease = None,
            _ => {}
        }
        Ok(Some(answer))
    }

    /// Whether each job that was ever stored is still there or is counted as gone.
    fn adds_up(&self) -> bool {
        let stored = self.store.jobs.len() as u64;
        let totals = self.store.queues.iter().map(|(_, _, totals)| totals);
        let (created, departed) = totals.fold((0, 0), |(created, departed), totals| {
            (created + totals.created, departed + totals.departed())
        });
        created == stored + departed
    }

    /// The jobs that a much later claim returns.
    fn drain(&self) -> Vec<usize> {
        let mut store = self.store.clone();
        let mut claimed = Vec::new();
        for _job in 0..store.jobs.len() {
            let mut progress = step(self.variant, &mut store, Call::Claim, None, LATE);
            if let Progress::Unfinished(first) = progress {
                progress = step(self.variant, &mut store, Call::Claim, Some(first), LATE);
            }
            if let Progress::Answered(Answer::Claimed(Some(leased))) = progress {
                claimed.push(number(leased.job.id));
            }
        }
        claimed
    }

    /// Equal fingerprints have equal futures. Runners are interchangeable.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut jobs: Vec<_> = self.store.jobs.iter().collect();
        jobs.sort_unstable_by_key(|job| job.seq);
        let jobs = jobs.into_iter().map(|job| {
            let lease = match job.placement {
                JobPlacement::Leased { token, until } => Some((token.0, until.as_millis())),
                _ => None,
            };
            let has_key = job.job.key.is_some();
            (number(job.job.id), job.job.due.as_millis(), job.job.attempts, has_key, lease)
        });
        let pins = self.store.pins.iter().map(|(receipt, _)| number(receipt.id));
        let ended = self.store.ended.iter().map(|(_, view)| number(view.job.id));
        let mut clients = self.clients.clone();
        // Any order works if it ignores the runner numbers.
        clients[1..].sort_unstable();
        Fingerprint {
            jobs: jobs.collect(),
            remembered: pins.chain(ended).collect(),
            last_token: self.store.last_token,
            now: self.now,
            clients,
            monitor: self.monitor.clone(),
            budget: self.budget,
        }
    }
}

/// A job's number, due time and failed attempts, whether it has its key, and its lease: token and
/// end.
type JobState = (usize, i64, u32, bool, Option<(u64, i64)>);

#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    jobs: Vec<JobState>,
    /// The jobs that are pinned or in the history.
    remembered: BTreeSet<usize>,
    last_token: u64,
    now: i64,
    clients: [Client; 1 + RUNNERS],
    monitor: Monitor,
    budget: Budget,
}
