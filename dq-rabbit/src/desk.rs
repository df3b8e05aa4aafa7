//! Where the log and the carriers meet: what was decided by the one is carried by the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dq_core::{Entropy, Headers, Job, JobId, Timestamp};

use crate::carrier::{Carried, Courier, Held, Hold};
use crate::log::{Log, LogPosition};

/// What is due sooner than this needs no carrier: its payload passes by everybody in the log, and is
/// still there when it is due.
const SOON: Duration = Duration::from_secs(1);

/// For how long a due job is held that nobody has a free slot for. The broker takes deliveries back after
/// half an hour unless set otherwise; what is dropped runs from the log.
const KEEP: Duration = Duration::from_secs(600);

/// What all calls of an open backend share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) log: Log,
    pub(crate) hold: Hold,
    pub(crate) courier: Arc<Courier>,
    pub(crate) entropy: Arc<Entropy>,
    /// How long before its time a job that has arrived is held; one that has longer is sent again.
    pub(crate) early: Duration,
    /// Jobs that were taken with their carriers, and those that were taken without.
    carried: [AtomicU64; 2],
    /// The payloads of jobs that are leased to us.
    leased: Mutex<HashMap<JobId, (Bytes, Headers)>>,
}

impl Desk {
    pub(crate) fn new(
        log: Log,
        courier: Arc<Courier>,
        entropy: Arc<Entropy>,
        early: Duration,
    ) -> Self {
        Self {
            log,
            hold: Hold::default(),
            courier,
            entropy,
            early,
            carried: Default::default(),
            leased: Mutex::default(),
        }
    }

    /// Which log the carriers are of; `None` while it is read anew.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.log.peek(|replica| replica.is_ready().then(|| replica.log_id()))
    }

    /// Whether a job that is due then is sent through the ladder.
    pub(crate) fn is_carried(&self, due: Timestamp, now: Timestamp) -> bool {
        due > now + SOON
    }

    /// Counts a job that should have had a carrier.
    pub(crate) fn count_carried(&self, came: bool) {
        self.carried[usize::from(!came)].fetch_add(1, Ordering::Relaxed);
    }

    /// How many jobs were taken with their carriers, and how many without.
    pub(crate) fn carried(&self) -> (u64, u64) {
        let [with, without] = &self.carried;
        (with.load(Ordering::Relaxed), without.load(Ordering::Relaxed))
    }

    /// Keeps the payload of a job that was leased to us, for when it is put off.
    pub(crate) fn lease(&self, id: JobId, payload: (Bytes, Headers)) {
        self.leased().insert(id, payload);
    }

    /// The payload of a job whose lease has ended.
    pub(crate) fn unlease(&self, id: JobId) -> Option<(Bytes, Headers)> {
        self.leased().remove(&id)
    }

    /// Drops what has been due for so long that the broker would take it back, and what does not wait any
    /// more.
    pub(crate) fn sweep(&self) {
        let now = self.log.now();
        self.let_go(self.hold.older_than(now - KEEP));
        self.drop_stale(self.hold.older_than(now));
        self.forget_lapsed();
    }

    /// Drops what is held of these jobs if they do not wait any more.
    pub(crate) fn drop_stale(&self, mut held: Vec<JobId>) {
        self.log.peek(|replica| {
            let machine = replica.machine();
            held.retain(|id| !machine.waits(*id));
        });
        self.let_go(held);
    }

    /// Drops what is held of these jobs; the messages that brought it can go.
    fn let_go(&self, ids: Vec<JobId>) {
        for held in ids.into_iter().filter_map(|id| self.hold.take(id)) {
            held.into_payload();
        }
    }

    /// Forgets payloads of jobs that were leased to us and are leased no more.
    fn forget_lapsed(&self) {
        let mut leased = self.leased();
        self.log.peek(|replica| leased.retain(|id, _| replica.machine().is_leased(*id)));
    }

    /// Sees to it that a job which waits gets to where it is run: by our own hold if it is due soon, else
    /// by a carrier with what this returns.
    #[must_use = "jobs have to be sent"]
    pub(crate) fn put_off(
        &self,
        job: &Job,
        payload: (Bytes, Headers),
        now: Timestamp,
    ) -> Option<Carried> {
        if self.is_carried(job.due, now) {
            // Without a carrier, it is run from the log.
            self.epoch().map(|log| Carried::of(log, job, payload))
        } else {
            let (payload, headers) = payload;
            let held = Held { payload, headers, ticket: None };
            self.hold.keep(&job.queue, job.id, job.due, held);
            None
        }
    }

    /// The same for jobs whose payloads have to be looked for.
    pub(crate) fn carry(self: &Arc<Self>, jobs: Vec<Job>, now: Timestamp) {
        let mut sought = Vec::new();
        let mut carried = Vec::new();
        for job in jobs.into_iter().filter(|job| self.is_carried(job.due, now)) {
            match self.hold.take(job.id) {
                Some(held) => carried.extend(self.put_off(&job, held.into_payload(), now)),
                None => sought.push(job),
            }
        }
        self.courier.post(carried, now);
        if sought.is_empty() {
            return;
        }
        let desk = Arc::clone(self);
        self.courier.errand(|_| async move {
            let found = desk.log.fetch(sought.iter().map(LogPosition::of).collect()).await?;
            let carried = sought.iter().filter_map(|job| {
                let payload = found.get(&LogPosition::of(job))?;
                desk.put_off(job, payload.clone(), now)
            });
            desk.courier.send("carry", carried.collect(), now).await
        });
    }

    fn leased(&self) -> MutexGuard<'_, HashMap<JobId, (Bytes, Headers)>> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
