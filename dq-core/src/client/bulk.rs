//! Bulk changes of a queue's jobs, in steps.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::browse::{PAGE, find_by_id};
use super::filter::Filter;
use super::shared::ClientShared;
use crate::backend::{
    Backend, BrowseParams, Cancelled, Checked, Operation, Order, Reschedule, Rescheduled,
};
use crate::error::Result;
use crate::model::{Due, JobId, JobRef, JobState, JobView, QueueName, Timestamp};

/// A bulk change; `.await` returns the number of changed jobs.
///
/// It works in steps of up to 1,000 jobs, so that other calls get through. After an error,
/// completed steps stay changed; repeat the call for the rest.
///
/// Jobs are listed and filtered just before their step. A job rescheduled in between changes even
/// if it no longer matches. Jobs scheduled meanwhile may change too; jobs that die meanwhile do
/// not. A purge continues until the queue is empty: pause or stop faster producers.
///
/// ```
/// # use dq_core::{Dq, DurationExt, Filter};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> dq_core::Result<()> {
/// # let dq = Dq::connect("memory:").await?;
/// let queue = dq.queue("ORDER_TIMEOUT")?;
/// let cancelled = queue
///     .cancel_where(Filter::new().key_prefix("order-17-"))
///     .on_progress(|progress| println!("{} of {}", progress.changed, progress.examined))
///     .await?;
/// # assert_eq!(cancelled, 0);
/// # Ok(())
/// # }
/// ```
///
/// **Cancellation safety:** if you drop the future, no further step begins; the current one may or
/// may not have taken effect.
#[must_use = "nothing is changed until this is awaited"]
pub struct Bulk<'a> {
    client: Arc<ClientShared>,
    queue: QueueName,
    change: Change,
    filter: Filter,
    on_progress: Box<dyn FnMut(Progress) + Send + 'a>,
}

/// The progress of a [`Bulk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Number of jobs compared with the filter.
    pub examined: u64,
    /// Number of changed jobs.
    pub changed: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Cancel,
    Reschedule(Due),
    Replay,
    Remove,
    Purge,
}

impl Bulk<'static> {
    pub(super) fn new(
        client: &Arc<ClientShared>,
        queue: &QueueName,
        change: Change,
        filter: Filter,
    ) -> Self {
        let (client, queue) = (Arc::clone(client), queue.clone());
        Self { client, queue, change, filter, on_progress: Box::new(|_| ()) }
    }
}

impl<'a> Bulk<'a> {
    /// Sets a function to call after each step.
    pub fn on_progress<'b>(self, report: impl FnMut(Progress) + Send + 'b) -> Bulk<'b> {
        let Bulk { client, queue, change, filter, .. } = self;
        Bulk { client, queue, change, filter, on_progress: Box::new(report) }
    }

    async fn run(mut self) -> Result<u64> {
        let client = Arc::clone(&self.client);
        let mut progress = Progress::default();
        // All jobs get the same due time. A job that has it is done, and may be listed again.
        let began = client.stores.main.now().await?;
        if let Change::Reschedule(due) = &mut self.change {
            *due = Due::At(due.resolve(began));
        }
        for store in client.stores.iter() {
            // In the order in which a job passes through them.
            let states: &[JobState] = match self.change {
                Change::Cancel | Change::Reschedule(_) => &[JobState::Scheduled, JobState::Ready],
                Change::Replay | Change::Remove => &[JobState::Dead],
                Change::Purge => {
                    self.purge(store, &mut progress).await?;
                    continue;
                }
            };
            // Reject unsupported changes even if there is no job.
            apply(store, &self.queue, self.change, &[]).await?;
            for state in states {
                self.change_all(store, *state, &mut progress).await?;
            }
        }
        Ok(progress.changed)
    }

    /// Purges a store's jobs of the queue in steps.
    async fn purge(&mut self, store: &Checked, progress: &mut Progress) -> Result<()> {
        loop {
            let report = store.operate(Operation::Purge { queue: &self.queue }).await?;
            progress.examined += report.affected;
            progress.changed += report.affected;
            (self.on_progress)(*progress);
            if !report.more {
                return Ok(());
            }
        }
    }

    /// Changes all matching jobs of a store that are in this state now.
    async fn change_all(
        &mut self,
        store: &Checked,
        state: JobState,
        progress: &mut Progress,
    ) -> Result<()> {
        let began = store.now().await?;
        // It is later than `began` if the clock was set back since.
        let last_death = match state {
            JobState::Dead => last_death(store, &self.queue).await?.max(Some(began)),
            _ => None,
        };
        let mut after = None;
        loop {
            let (views, next) = if self.filter.id.is_some() {
                (find_by_id(store, &self.queue, state, &self.filter).await?, None)
            } else {
                let params = BrowseParams::new(&self.queue, state).after(after).limit(PAGE);
                let page = store.browse(params).await?;
                (page.jobs, page.next)
            };
            progress.examined += views.len() as u64;
            // Only dead jobs have a time of death.
            let now = match state {
                JobState::Dead => store.now().await?,
                _ => began,
            };
            // The job may have just been replayed and died again.
            let died_meanwhile = |view: &&JobView| {
                let died = died_at(view);
                died > Some(began) && (died <= Some(now) || died > last_death)
            };
            let matching = views.iter().filter(|view| self.filter.matches(view));
            let to_change = matching.filter(|view| !died_meanwhile(view) && !self.has_moved(view));
            let jobs: Vec<JobId> = to_change.map(|view| view.job.id).collect();
            if !jobs.is_empty() {
                progress.changed += apply(store, &self.queue, self.change, &jobs).await?;
            }
            (self.on_progress)(*progress);
            let is_past = |last: &JobView| self.filter.is_past(last) || died_at(last) > last_death;
            if next.is_none() || views.last().is_some_and(is_past) {
                return Ok(());
            }
            after = next;
        }
    }

    /// Returns whether an earlier step has rescheduled the job.
    fn has_moved(&self, view: &JobView) -> bool {
        matches!(self.change, Change::Reschedule(Due::At(due)) if view.job.due == due)
    }
}

/// Changes these jobs. Returns the number of changed jobs.
async fn apply(store: &Checked, queue: &QueueName, change: Change, jobs: &[JobId]) -> Result<u64> {
    let reference = |id: &JobId| JobRef::new(queue.clone(), *id);
    let operation = match change {
        Change::Cancel => {
            let jobs: Vec<_> = jobs.iter().map(reference).collect();
            let results = store.cancel(&jobs).await?;
            let cancelled = results.iter().filter(|result| **result == Cancelled::Cancelled);
            return Ok(cancelled.count() as u64);
        }
        Change::Reschedule(due) => {
            let moves: Vec<_> =
                jobs.iter().map(|id| Reschedule { job: reference(id), due }).collect();
            let results = store.reschedule(&moves).await?;
            let changed = |result: &&Rescheduled| matches!(result, Rescheduled::Moved(_));
            return Ok(results.iter().filter(changed).count() as u64);
        }
        Change::Replay => Operation::Replay { queue, jobs, due: Due::NOW },
        Change::Remove => Operation::Remove { queue, jobs },
        Change::Purge => Operation::Purge { queue },
    };
    Ok(store.operate(operation).await?.affected)
}

/// Returns when the queue's last dead job died.
async fn last_death(store: &Checked, queue: &QueueName) -> Result<Option<Timestamp>> {
    let params = BrowseParams::new(queue, JobState::Dead).order(Order::Descending).limit(1);
    Ok(store.browse(params).await?.jobs.first().and_then(died_at))
}

fn died_at(view: &JobView) -> Option<Timestamp> {
    view.dead.as_ref().map(|(_, at)| *at)
}

impl<'a> IntoFuture for Bulk<'a> {
    type Output = Result<u64>;
    type IntoFuture = BoxFuture<'a, Result<u64>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for Bulk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("queue", &self.queue)
            .field("change", &self.change)
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}
