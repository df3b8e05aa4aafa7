//! Claims due jobs, from bounds on: see `bounds.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{
    ClaimParams, Claimed, DeadKind, DeadReason, FencingToken, Job, LeasedJob, QueueName, Result,
    Settlement, Timestamp, Verdict, Want,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::bounds::{LAG, QUIET, QueueBounds};
use crate::error::{Effect, unexpected};
use crate::params;
use crate::row;
use crate::store::Store;

/// A claim's reply about one queue, beside the leased jobs.
struct QueueReply {
    next_waiting: Option<(i64, i64)>,
    next_expired: Option<i64>,
    expired_due: Option<i64>,
    next_expiry: Option<i64>,
    last_rewind: i64,
    rewinds: i64,
    /// Until when the limits let no waiting job start.
    held_until: Option<i64>,
}

/// In place of a time: only the end of a lease makes room.
const FULL: i64 = i64::MAX;

impl QueueReply {
    fn read(row: &Row) -> std::result::Result<Self, tokio_postgres::Error> {
        let next_at: Option<i64> = row.try_get("next_at")?;
        Ok(Self {
            next_waiting: next_at.zip(row.try_get("next_seq")?),
            next_expired: row.try_get("next_expired")?,
            expired_due: row.try_get("expired_due")?,
            next_expiry: row.try_get("next_expiry")?,
            last_rewind: row.try_get("last_rewind")?,
            rewinds: row.try_get("rewinds")?,
            held_until: row.try_get("until")?,
        })
    }

    fn first_waiting(&self) -> Option<i64> {
        self.next_waiting.map(|(at, _)| at).into_iter().chain(self.expired_due).min()
    }

    fn next_due(&self, now: i64) -> Option<i64> {
        let waiting = self.first_waiting();
        let startable = match self.held_until {
            None => waiting,
            // A claim at the due time waits for room, if the queue is still full.
            Some(FULL) => waiting.filter(|at| *at > now),
            Some(until) => waiting.map(|at| at.max(until)),
        };
        startable.into_iter().chain(self.next_expiry).min()
    }

    /// `changes` is from when the claim was sent.
    fn bounds(&self, now: i64, known: QueueBounds, changes: u64, is_full: bool) -> QueueBounds {
        let limit = now - LAG;
        let waiting = Some(self.next_waiting.unwrap_or((i64::MAX, 0)).min((limit, 0)));
        let expired = Some(self.next_expired.unwrap_or(i64::MAX).min(limit));
        let expiry = self.next_expiry.unwrap_or(i64::MAX);
        // Another claim of this process may have gone further, but only a full one looks behind.
        let known_rewinds = (known.last_rewind, known.rewinds);
        let may_go_back = is_full || (Some(self.last_rewind), self.rewinds) != known_rewinds;
        QueueBounds {
            waiting: if may_go_back { waiting } else { waiting.max(known.waiting) },
            expired: if is_full { expired } else { expired.max(known.expired) },
            expiry: if changes == known.changes { expiry } else { expiry.min(known.expiry) },
            last_rewind: Some(self.last_rewind),
            rewinds: self.rewinds,
            quiet_until: (self.held_until.is_some()
                && self.first_waiting().is_some_and(|at| at <= now))
            .then_some(now + QUIET),
            changes: known.changes + 1,
        }
    }
}

impl Store {
    /// Leases due jobs. If the caller is dropped meanwhile, hands them back.
    pub(crate) async fn claim_jobs(self: &Arc<Self>, params: ClaimParams<'_>) -> Result<Claimed> {
        let (store, wants) = (Arc::clone(self), params.wants.to_vec());
        let (limit, worker) = (params.limit, params.worker.to_owned());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            store.record_claim(&wants);
            let is_full = lock(&store.bounds).claims_fully();
            let claimed = store.lease_due(wants, limit, &worker, is_full).await;
            if let Err(Ok(unwanted)) = sender.send(claimed) {
                store.hand_back(&unwanted).await;
            }
        });
        receiver.await.map_err(|_| unexpected())?
    }

    /// Looks behind the bounds of all queues, without leasing, and wakes claimers if it finds a
    /// job.
    pub(crate) async fn look_behind_bounds(&self) -> Result<()> {
        let found = self.lease_due(self.other_queues(&[]), 0, "", true).await?;
        if found.next_due.is_some_and(|due| due <= found.now) {
            self.listeners.wake_all(found.now);
        }
        Ok(())
    }

    /// Wants nothing from this process's other queues.
    fn other_queues(&self, wants: &[Want]) -> Vec<Want> {
        let is_other = |queue: &&QueueName| wants.iter().all(|want| want.queue != **queue);
        let bounds = lock(&self.bounds);
        let others = bounds.queues.keys().filter(is_other);
        others.map(|queue| Want::new(queue.clone(), 0, Duration::ZERO)).collect()
    }

    async fn lease_due(
        &self,
        mut wants: Vec<Want>,
        limit: usize,
        worker: &str,
        is_full: bool,
    ) -> Result<Claimed> {
        let wanted = wants.len();
        if is_full {
            // One for all claimers of this process.
            wants.extend(self.other_queues(&wants));
        }
        let bounds: Vec<QueueBounds> = {
            let bounds = lock(&self.bounds);
            wants.iter().map(|want| bounds.of(&want.queue, is_full)).collect()
        };
        let start = Instant::now();
        let rows = self.call_claim(&wants, limit, worker, &bounds).await;
        if is_full {
            // Also after a failure: one that takes too long must not be repeated at once.
            let mut bounds = lock(&self.bounds);
            let took = start.elapsed();
            // One that has failed at once says nothing about how long they take.
            let took = if rows.is_err() { took.max(bounds.last_full.1) } else { took };
            bounds.last_full = (Instant::now(), took);
        }
        let (mut claimed, unreadable) =
            self.read_reply(&rows?, &wants[..], &bounds, wanted, is_full)?;
        for (leased, reason) in unreadable {
            self.quarantine(leased, reason, &mut claimed).await;
        }
        Ok(claimed)
    }

    /// Returns the leased jobs, and separately jobs with invalid rows, each with the reason. Only
    /// the first `wanted` queues count for `next_due`.
    fn read_reply(
        &self,
        rows: &[Row],
        wants: &[Want],
        sent: &[QueueBounds],
        wanted: usize,
        is_full: bool,
    ) -> Result<(Claimed, Vec<(LeasedJob, String)>)> {
        let (end, rows) = rows.split_last().ok_or_else(unexpected)?;
        let now: i64 = end.try_get("now").map_err(|_| unexpected())?;
        let mut claimed = Claimed::new(Vec::new(), None, Timestamp::from_millis(now));
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        let mut all_bounds = lock(&self.bounds);
        for row in rows {
            let want: i32 = row.try_get("want").map_err(|_| unexpected())?;
            let index = usize::try_from(want - 1).map_err(|_| unexpected())?;
            let queue = &wants.get(index).ok_or_else(unexpected)?.queue;
            if row.try_get::<_, Option<uuid::Uuid>>("id").map_err(|_| unexpected())?.is_some() {
                let (leased, seq, invalid) = leased(row, queue).map_err(|_| unexpected())?;
                match invalid {
                    None => jobs.push((index, leased.job.due, seq, leased)),
                    Some(reason) => unreadable.push((leased, reason)),
                }
                continue;
            }
            let reply = QueueReply::read(row).map_err(|_| unexpected())?;
            let next_due =
                reply.next_due(now).filter(|_| index < wanted).map(Timestamp::from_millis);
            claimed.next_due = claimed.next_due.into_iter().chain(next_due).min();
            let known = all_bounds.queues.get(queue).copied().unwrap_or(QueueBounds::NEW);
            let new = reply.bounds(now, known, sent[index].changes, is_full);
            all_bounds.queues.insert(queue.clone(), new);
        }
        jobs.sort_by_key(|(index, due, seq, _)| (*index, *due, *seq));
        claimed.jobs = jobs.into_iter().map(|(.., leased)| leased).collect();
        Ok((claimed, unreadable))
    }

    async fn call_claim(
        &self,
        wants: &[Want],
        limit: usize,
        worker: &str,
        bounds: &[QueueBounds],
    ) -> Result<Vec<Row>> {
        let queues: Vec<&str> = wants.iter().map(|want| want.queue.as_str()).collect();
        let maxes: Vec<i32> = wants.iter().map(|want| params::count(want.max)).collect();
        let leases: Vec<i64> =
            wants.iter().map(|want| params::millis(want.lease_for).max(1)).collect();
        let starting: Vec<i32> = wants.iter().map(|want| params::count(want.starting)).collect();
        let (total, worker) = (params::count(limit), params::text(worker));
        let from_at: Vec<Option<i64>> =
            bounds.iter().map(|bounds| bounds.waiting.map(|(at, _)| at)).collect();
        let from_seq: Vec<i64> =
            bounds.iter().map(|bounds| bounds.waiting.map_or(0, |(_, seq)| seq)).collect();
        let from_expired: Vec<Option<i64>> = bounds.iter().map(|bounds| bounds.expired).collect();
        let from_expiry: Vec<i64> = bounds.iter().map(|bounds| bounds.expiry).collect();
        let last_rewinds: Vec<Option<i64>> =
            bounds.iter().map(|bounds| bounds.last_rewind).collect();
        let rewinds: Vec<i64> = bounds.iter().map(|bounds| bounds.rewinds).collect();
        self.query(
            Effect::Reads,
            "SELECT * FROM dq.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            &[
                (&queues, Type::TEXT_ARRAY),
                (&maxes, Type::INT4_ARRAY),
                (&leases, Type::INT8_ARRAY),
                (&total, Type::INT4),
                (&worker, Type::TEXT),
                (&from_at, Type::INT8_ARRAY),
                (&from_seq, Type::INT8_ARRAY),
                (&from_expired, Type::INT8_ARRAY),
                (&from_expiry, Type::INT8_ARRAY),
                (&last_rewinds, Type::INT8_ARRAY),
                (&rewinds, Type::INT8_ARRAY),
                (&starting, Type::INT4_ARRAY),
            ],
        )
        .await
    }

    /// Lowers the bound on leases, after a lease was set to expire earlier.
    pub(crate) fn lower_expiry(&self, queue: &QueueName, until: i64) {
        if let Some(bounds) = lock(&self.bounds).queues.get_mut(queue) {
            bounds.expiry = bounds.expiry.min(until);
            bounds.changes += 1;
        }
    }

    /// Marks an unreadable job dead. If that fails, its lease expires, and the next claim tries
    /// again.
    async fn quarantine(&self, leased: LeasedJob, reason: String, claimed: &mut Claimed) {
        let reason = DeadReason::new(DeadKind::Quarantined, reason);
        let dead = Settlement::new(leased.lease(), Verdict::dead(reason.clone()));
        match self.settle_leases(&[dead]).await {
            Ok(_) => claimed.quarantined.push((leased.job, reason)),
            Err(error) => tracing::warn!(%error, queue = %leased.job.queue,
                "a job that cannot be read could not be made dead yet"),
        }
    }

    /// Notes when these queues were last claimed from.
    fn record_claim(&self, wants: &[Want]) {
        let now = Instant::now();
        let mut last_claims = lock(&self.last_claims);
        for want in wants {
            last_claims.insert(want.queue.clone(), now);
        }
    }

    async fn hand_back(&self, claimed: &Claimed) {
        let release = Verdict::Release { started: false };
        let releases: Vec<Settlement> =
            claimed.jobs.iter().map(|job| Settlement::new(job.lease(), release.clone())).collect();
        if let Err(error) = self.settle_leases(&releases).await {
            tracing::debug!(%error, "an abandoned claim's leases expire");
        }
    }
}

/// Reads a leased job with its position among equal due times, and why the row is invalid, if it
/// is.
fn leased(
    row: &Row,
    queue: &QueueName,
) -> std::result::Result<(LeasedJob, i64, Option<String>), tokio_postgres::Error> {
    let payload = Bytes::copy_from_slice(row.try_get("payload")?);
    let (job, invalid): (Job, _) = row::job(row, queue, payload)?;
    let token: i64 = row.try_get("token")?;
    let until = Timestamp::from_millis(row.try_get("until")?);
    let leased = LeasedJob::new(job, FencingToken(token.unsigned_abs()), until);
    Ok((leased, row.try_get("seq")?, invalid))
}
