//! The state that the log makes: the same in every process that has read as far.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use dq_core::machine::{Affinity, Machine};
use dq_core::{
    Cancelled, Claimed, DeadKind, DeadReason, Job, JobId, JobRef, Renewal, Renewed, Reschedule,
    Rescheduled, Scheduled, Settled, Settlement, Timestamp, Want,
};

use super::command::{Command, Entry, Scheduling};
use super::compact::Founding;

/// How long before its due time a job can be claimed by those that are near: about as long as a call
/// takes. They wait for the rest of it.
pub(crate) const AHEAD: Duration = Duration::from_millis(2);

/// How long after its due time a job is left to those that have its message at hand.
const PATIENCE: Duration = Duration::from_millis(250);

/// A job that was stored this recently is near to everybody: its payload came by a moment ago.
const RECENT: Duration = Duration::from_secs(2);

/// After this many messages, an origin that has said nothing is forgotten.
const SILENCE: u64 = 1_000_000;

/// What the call that an entry stands for answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The state can be looked at.
    Seen,
    Scheduled(Vec<Scheduled>),
    Cancelled(Vec<Cancelled>),
    Rescheduled(Vec<Rescheduled>),
    Claimed(Claimed),
    Settled(Vec<Settled>),
    Renewed(Vec<Renewed>),
    Operated(u64),
}

/// What an entry came to.
#[derive(Debug)]
pub(crate) enum Applied {
    /// It took effect, and this is the answer.
    Reply(Reply),
    /// It was written twice; the first time counted.
    Again,
    /// An entry of its origin before it is missing, so it does not count: all from there on have to
    /// be written again.
    Gap {
        /// The last that counted; 0 if none is known.
        last: u64,
    },
    /// It will count when the state before it is known.
    Later,
}

/// Where a payload stands in the log: it is kept in a job in place of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The message.
    pub(crate) offset: u64,
    /// The entry of that message.
    pub(crate) entry: u32,
    /// The job of that entry.
    pub(crate) job: u32,
}

impl Place {
    pub(crate) fn to_bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(16);
        bytes.put_u64(self.offset);
        bytes.put_u32(self.entry);
        bytes.put_u32(self.job);
        bytes.into()
    }

    /// Where the payload of this job of a replica stands.
    pub(crate) fn of(job: &Job) -> Self {
        let mut bytes = &job.payload[..];
        Self { offset: bytes.get_u64(), entry: bytes.get_u32(), job: bytes.get_u32() }
    }
}

/// The machine, and what it takes to feed it from the log.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(super) machine: Machine,
    /// Tells one log from another under the same name, by the first entry of all; 0 if it is not known.
    pub(super) epoch: u64,
    /// By origin: the number of its last entry that counted, and the offset of it.
    pub(super) origins: HashMap<u64, (u64, u64)>,
    /// While the state before the first entry that was read is not known.
    pub(super) founding: Option<Founding>,
}

impl Replica {
    /// One that has seen no entry, and does not know yet whether it will see the first of all.
    pub(crate) fn unfounded() -> Self {
        Self {
            machine: Machine::default(),
            epoch: 0,
            origins: HashMap::new(),
            founding: Some(Founding::default()),
        }
    }

    /// One that has seen no entry. `first`: the offset of the first that it will see.
    pub(crate) fn starting_at(first: u64) -> Self {
        let mut replica = Self::unfounded();
        if first == 0 {
            replica.founding = None;
        }
        replica
    }

    /// Whether the state is known.
    pub(crate) fn is_founded(&self) -> bool {
        self.founding.is_none()
    }

    /// Applies the entry with this number of the message at this offset.
    pub(crate) fn apply(&mut self, offset: u64, index: u32, entry: Entry) -> Applied {
        if let Some(founding) = &mut self.founding {
            founding.take(offset, index, entry);
            return Applied::Later;
        }
        self.forget_the_silent(offset);
        if (offset, index) == (0, 0) {
            // Whether it counts or not: whoever goes on in a new log begins in the middle. And never by
            // the origin alone, which may have begun the log before this one too.
            self.epoch = entry.origin.wrapping_add(entry.number).max(1);
        }
        let last = self.origins.get(&entry.origin).map_or(0, |(number, _)| *number);
        if entry.number <= last {
            return Applied::Again;
        }
        if entry.number > last + 1 {
            return Applied::Gap { last };
        }
        self.origins.insert(entry.origin, (entry.number, offset));
        Applied::Reply(self.execute(offset, index, entry))
    }

    fn execute(&mut self, offset: u64, index: u32, entry: Entry) -> Reply {
        let (machine, at) = (&mut self.machine, entry.at);
        match entry.command {
            Command::Look => {
                // Whoever looks, looks at this time, so it has to pass for all.
                machine.expire_leases(at);
                Reply::Seen
            }
            Command::Schedule(jobs) => {
                let schedule = |(job, new): (usize, &Scheduling)| {
                    let place = Place { offset, entry: index, job: job as u32 };
                    machine.schedule(new.job(place.to_bytes()), at)
                };
                Reply::Scheduled(jobs.iter().enumerate().map(schedule).collect())
            }
            Command::Cancel(jobs) => {
                let cancel = |job| machine.cancel(&JobRef::from(job), at);
                Reply::Cancelled(jobs.iter().map(cancel).collect())
            }
            Command::Reschedule(moves) => {
                let reschedule = |moving| machine.reschedule(&Reschedule::from(moving), at);
                Reply::Rescheduled(moves.iter().map(reschedule).collect())
            }
            Command::Claim(claiming) => {
                let at_hand: HashSet<JobId> = claiming.at_hand.iter().copied().collect();
                let limit = usize::try_from(claiming.limit).unwrap_or(usize::MAX);
                let nearness = nearness(at, |id| at_hand.contains(&id));
                Reply::Claimed(machine.claim_preferring(&claiming.wants(), limit, &nearness, at))
            }
            Command::Settle(settlements) => {
                let settle = |settling| machine.settle(&Settlement::from(settling), at);
                Reply::Settled(settlements.iter().map(settle).collect())
            }
            Command::Renew(renewals) => {
                let renew = |renewing| machine.renew(&Renewal::from(renewing), at);
                Reply::Renewed(renewals.iter().map(renew).collect())
            }
            Command::Operate(queue, operating) => {
                Reply::Operated(machine.operate(&queue, &(&operating).into(), at))
            }
            Command::Park(found) => {
                for (job, (scheduling, what)) in found.iter().enumerate() {
                    let place = Place { offset, entry: index, job: job as u32 };
                    let reason = DeadReason::new(DeadKind::Quarantined, what.as_str());
                    machine.insert_dead(scheduling.job(place.to_bytes()), reason, at);
                }
                Reply::Seen
            }
            Command::Copy(piece) => {
                self.copied(offset, index, &piece);
                Reply::Seen
            }
        }
    }

    /// When a claim of these could bring something, without writing to the log.
    pub(crate) fn next_due(
        &mut self,
        wants: &[Want],
        at_hand: impl Fn(JobId) -> bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.machine.next_due(wants, &nearness(now, at_hand), now)
    }

    /// Whether a claim of these would bring nothing, since all that is due is left to others.
    pub(crate) fn leaves_all(
        &mut self,
        wants: &[Want],
        at_hand: impl Fn(JobId) -> bool,
        now: Timestamp,
    ) -> bool {
        self.machine.all_due_reserved(wants, &nearness(now, at_hand), now)
    }

    /// Tells this log from another under the same name; 0 while that is not known.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The state, for a look at it.
    pub(crate) fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn forget_the_silent(&mut self, offset: u64) {
        // By offsets, which are the same for all, so that all forget the same.
        if offset.is_multiple_of(SILENCE / 4) {
            self.origins.retain(|_, (_, last)| *last + SILENCE > offset);
        }
    }
}

fn nearness(now: Timestamp, at_hand: impl Fn(JobId) -> bool) -> Affinity<impl Fn(&Job) -> bool> {
    let recent = now - RECENT;
    let near = move |job: &Job| job.created >= recent || at_hand(job.id);
    Affinity { prefers: near, claim_ahead: AHEAD, reserved_for: PATIENCE }
}
