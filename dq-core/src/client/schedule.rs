//! Builders for new jobs.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::shared::ClientShared;
use super::stores::single;
use super::target::IntoKey;
use crate::backend::{Scheduled, SqlStatement};
use crate::error::{Error, Result};
use crate::model::{Due, Headers, JobId, NewJob, OnConflict, OnRunning, QueueName, Timestamp};

/// A new job; `.await` schedules it.
///
/// An invalid key, due time, header or payload is an `InvalidInput` or `Codec` error, and nothing
/// is stored.
///
/// A call with an unknown outcome (a lost connection, a failed commit) repeats up to two times with
/// the same id. If the job has already ended, the queue's history or [`remember`](Self::remember)
/// prevents a second run, and the result is [`Scheduled::Ended`]; otherwise the job runs again.
///
/// **Cancellation safety:** if you drop the future, the job may or may not be stored. To repeat the
/// call safely, set an [`id`](Self::id) or a [`key`](Self::key).
#[must_use = "nothing is scheduled until this is awaited"]
#[derive(Debug)]
pub struct Schedule {
    client: Arc<ClientShared>,
    job: Result<NewJob>,
    spread: Option<Duration>,
}

impl Schedule {
    pub(super) fn new(
        client: &Arc<ClientShared>,
        queue: Result<QueueName>,
        encode: impl FnOnce(&mut Headers) -> Result<Bytes>,
    ) -> Self {
        let job = queue.and_then(|queue| {
            let mut headers = Headers::new();
            let payload = encode(&mut headers)
                .map_err(|error| error.remedy(format!("it is the payload for queue {queue}")))?;
            if let Some(context) = client.propagator.current(&client.environment.entropy) {
                headers.insert(Headers::TRACEPARENT, context.to_string());
            }
            Ok(NewJob::new(client.new_id(), queue, Due::NOW, payload).headers(headers))
        });
        let job = job.map_err(|error| error.operation("schedule"));
        Self { client: Arc::clone(client), job, spread: None }
    }

    /// Makes the job due this long after the store receives it.
    pub fn after(self, delay: Duration) -> Self {
        self.with(|job| job.due = Due::After(delay))
    }

    /// Sets the due time: a [`Timestamp`], a `SystemTime`, or a chrono, time or jiff value.
    ///
    /// A past time starts the job at once, late. A time in 1970 is refused as probable seconds
    /// instead of milliseconds.
    pub fn at(self, due: impl IntoTimestamp) -> Self {
        self.with(|job| job.due = Due::At(due.into_timestamp()))
    }

    /// Delays the job by up to `window`, by a hash of its id, so that many jobs do not start at
    /// once.
    ///
    /// Zero switches off the queue's `spread` setting for this job.
    pub fn spread(mut self, window: Duration) -> Self {
        self.spread = Some(window);
        self
    }

    /// Sets the key: text or an integer. A queue has at most one live job with a given key.
    pub fn key(mut self, key: impl IntoKey) -> Self {
        if let Ok(job) = &mut self.job {
            match key.into_key() {
                Ok(key) => job.key = Some(key),
                Err(error) => self.job = Err(error.operation("schedule")),
            }
        }
        self
    }

    /// Sets the id instead of generating one.
    ///
    /// Scheduling an id again changes nothing while it is in the store or the queue's history.
    pub fn id(self, id: JobId) -> Self {
        self.with(|job| job.id = id)
    }

    /// Sets the policy if a live job has the key; [`OnConflict::Keep`] by default.
    pub fn on_conflict(self, policy: OnConflict) -> Self {
        self.with(|job| job.on_conflict = policy)
    }

    /// Sets the policy if a running job has the key; [`OnRunning::Refuse`] by default.
    ///
    /// [`OnRunning::Detach`] loses no change during a run: the new job takes the key and is stored.
    ///
    /// ```
    /// # use dq_core::{Dq, DurationExt, OnConflict, OnRunning};
    /// # dq_core::queue!(SYNC_ACCOUNT: u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// let scheduled = dq
    ///     .schedule::<SYNC_ACCOUNT>(17)
    ///     .after(5.seconds())
    ///     .key(17)
    ///     .on_conflict(OnConflict::Replace)
    ///     .on_running(OnRunning::Detach)
    ///     .await?;
    /// assert!(scheduled.is_stored());
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_running(self, policy: OnRunning) -> Self {
        self.with(|job| job.on_running = policy)
    }

    /// Pins the job id for this long after the job's end.
    ///
    /// Scheduling the id again then stores nothing and returns [`Scheduled::Ended`].
    ///
    /// ```
    /// # use dq_core::{Dq, DurationExt, Scheduled};
    /// # dq_core::queue!(CHARGE: u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// # let request_id = dq.new_id();
    /// let charge = || dq.schedule::<CHARGE>(99).id(request_id).remember(7.days());
    /// assert!(charge().await?.is_stored());
    /// # let _ = dq.cancel::<CHARGE>(request_id).await?;
    /// // The job has ended, and the request arrives again:
    /// assert!(matches!(charge().await?, Scheduled::Ended(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn remember(self, duration: Duration) -> Self {
        self.with(|job| job.remember = duration)
    }

    /// Sets a header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|job| {
            job.headers.insert(name, value);
        })
    }

    /// Puts the job in a group of 1 to 128 bytes, such as a customer's.
    ///
    /// A queue with `group_max_running = 2` runs at most two jobs of each group at once, in all
    /// processes together. Later jobs of other groups start before those that wait for their group.
    ///
    /// ```
    /// # use dq_core::Dq;
    /// # dq_core::queue!(IMPORT_ROW: u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// let scheduled = dq.schedule::<IMPORT_ROW>(17).group("tenant-42").await?;
    /// assert!(scheduled.is_stored());
    /// # Ok(())
    /// # }
    /// ```
    pub fn group(self, group: impl Into<String>) -> Self {
        self.header(Headers::GROUP, group)
    }

    /// Sets this job's maximum attempts instead of the queue's; 1 means no retry.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|job| job.max_attempts = Some(attempts))
    }

    /// Converts to the form that stores take.
    ///
    /// # Errors
    /// `InvalidInput` if the queue name, the key, or its combination with a policy is invalid;
    /// `Codec` if the payload does not encode.
    pub fn into_job(self) -> Result<NewJob> {
        let mut job = self.job?;
        let spread = self.spread.or_else(|| match job.due {
            // You asked for no due time.
            Due::NOW => None,
            _ => self.client.spread_of(&job.queue),
        });
        if let Some(window) = spread {
            job.due = spread_due(job.due, window, job.id);
        }
        if job.key.is_none() {
            refuse_key_policies(&job)?;
        }
        Ok(job)
    }

    /// Returns an SQL statement that schedules the job in your own transaction.
    ///
    /// Execute it with your driver, with [`argument`](SqlStatement::argument) as its only
    /// parameter. The job exists if and only if your transaction commits, and the commit wakes the
    /// runners.
    ///
    /// ```ignore
    /// let job = dq.schedule::<ORDER_TIMEOUT>(order).after(15.minutes()).key(order.id);
    /// let job = job.statement()?;
    /// sqlx::query(job.sql()).bind(job.argument()).execute(&mut *tx).await?;
    /// ```
    ///
    /// A delay begins when the statement is executed on PostgreSQL, and now on SQLite.
    ///
    /// # Errors
    /// As [`Self::into_job`]; `InvalidInput` for a job over the [`Limits`](crate::Limits);
    /// `Unsupported` for a store without SQL, or a policy that its statement lacks.
    pub fn statement(self) -> Result<SqlStatement> {
        let client = Arc::clone(&self.client);
        client.stores.schedule_statement(vec![self.into_job()?])
    }

    fn with(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        if let Ok(job) = &mut self.job {
            change(job);
        }
        self
    }
}

impl IntoFuture for Schedule {
    type Output = Result<Scheduled>;
    type IntoFuture = BoxFuture<'static, Result<Scheduled>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let client = Arc::clone(&self.client);
            single(client.stores.schedule(vec![self.into_job()?]).await?)
        })
    }
}

/// Refuses policies that only mean something for a job with a key.
fn refuse_key_policies(job: &NewJob) -> Result<()> {
    let (policy, setter) = if job.on_conflict != OnConflict::Keep {
        ("has a conflict policy but no key", "on_conflict")
    } else if job.on_running != OnRunning::Refuse {
        ("is to take a key from a running job, but has no key", "on_running")
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("a job for queue {} {policy}", job.queue))
        .remedy(format!("add `.key(…)`, or remove `.{setter}(…)`"))
        .operation("schedule"))
}

/// Delays a job by a part of `window` that depends only on the id, so that a repeated call gets the
/// same due time.
fn spread_due(due: Due, window: Duration, id: JobId) -> Due {
    // A 64-bit FNV-1a hash, because ids from one moment differ only in some bytes.
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = id
        .to_bytes()
        .into_iter()
        .fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    // The upper half: the lower bits depend on few bits of the id.
    let part = f64::from((hash >> 32) as u32) / f64::from(u32::MAX);
    let later = Duration::from_millis((window.as_millis() as f64 * part) as u64);
    match due {
        Due::At(at) => Due::At(at.saturating_add(later)),
        Due::After(delay) => Due::After(delay.saturating_add(later)),
    }
}

/// Many new jobs; `.await` schedules them in one call.
#[must_use = "nothing is scheduled until this is awaited"]
#[derive(Debug)]
pub struct ScheduleMany {
    client: Arc<ClientShared>,
    jobs: Result<Vec<NewJob>>,
}

impl ScheduleMany {
    pub(super) fn new(
        client: &Arc<ClientShared>,
        jobs: impl IntoIterator<Item = Schedule>,
    ) -> Self {
        Self {
            client: Arc::clone(client),
            jobs: jobs.into_iter().map(Schedule::into_job).collect(),
        }
    }

    /// Returns an SQL statement that schedules all jobs; see [`Schedule::statement`].
    ///
    /// # Errors
    /// As [`Schedule::statement`].
    pub fn statement(self) -> Result<SqlStatement> {
        self.client.stores.schedule_statement(self.jobs?)
    }
}

impl IntoFuture for ScheduleMany {
    type Output = Result<Vec<Scheduled>>;
    type IntoFuture = BoxFuture<'static, Result<Vec<Scheduled>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.client.stores.schedule(self.jobs?).await })
    }
}

/// A point in time for [`Schedule::at`]: any type that converts to a [`Timestamp`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a point in time",
    label = "expected a `Timestamp` or a `SystemTime`",
    note = "a delay goes to `.after(…)`"
)]
pub trait IntoTimestamp {
    /// Converts to a timestamp.
    fn into_timestamp(self) -> Timestamp;
}

#[diagnostic::do_not_recommend]
impl<T: Into<Timestamp>> IntoTimestamp for T {
    fn into_timestamp(self) -> Timestamp {
        self.into()
    }
}
