//! Checks whether this build's handlers can read the waiting jobs, without running them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::backend::{Backend, BrowseParams};
use crate::client::{Dq, Pages};
use crate::error::Result;
use crate::handler::{Registry, panics};
use crate::model::{Headers, Job, JobId, JobState, JobView, QueueName};
use crate::schedules;

const PAGE: usize = 1_000;

type PendingQueues = BTreeMap<QueueName, BTreeMap<String, PendingVersion>>;

/// Which waiting jobs this build can read; see [`Dq::check_pending`].
///
/// `Display` writes a line for each queue and version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingReport {
    /// Queues with live jobs, by name.
    pub queues: Vec<PendingQueue>,
}

/// One queue's live jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingQueue {
    /// The queue.
    pub queue: QueueName,
    /// Whether this build has a handler for it. Without one, jobs are counted but not read.
    pub has_handler: bool,
    /// Jobs by payload schema version.
    pub versions: Vec<PendingVersion>,
}

/// One queue's live jobs with the same payload version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingVersion {
    /// The header `schema-version`, or 1 without it.
    pub version: String,
    /// Job count.
    pub jobs: u64,
    /// Jobs whose payload does not decode.
    pub unreadable: u64,
    /// The first unreadable job, and why it is unreadable.
    pub example: Option<(JobId, String)>,
}

impl PendingReport {
    /// Returns whether every job has a handler that decodes its payload.
    pub fn is_readable(&self) -> bool {
        self.queues.iter().all(|queue| {
            queue.has_handler && queue.versions.iter().all(|version| version.unreadable == 0)
        })
    }
}

impl fmt::Display for PendingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PendingQueue { queue, has_handler, versions } in &self.queues {
            for PendingVersion { version, jobs, unreadable, example } in versions {
                write!(f, "{queue} version {version}: {jobs} jobs")?;
                match example {
                    _ if !has_handler => f.write_str(
                        ", no handler (has its code changed? keep the old one in `aliases`)",
                    )?,
                    Some((id, why)) => write!(f, ", {unreadable} unreadable; job {id}: {why}")?,
                    None => f.write_str(", readable")?,
                }
                f.write_str("\n")?;
            }
        }
        Ok(())
    }
}

impl Dq {
    /// Checks whether the linked `#[delay_handler]` functions can read all waiting and running
    /// jobs.
    ///
    /// Use it before a deployment or as a readiness check; no job runs. It decodes the payloads of
    /// all live jobs in all stores, with their upgrades. A schedule counts as one job in its queue.
    /// Dead jobs are not read.
    ///
    /// # Errors
    /// `Unsupported` if a store cannot list jobs; `Duplicate` or `InvalidInput` if the linked
    /// handlers are not valid; store errors.
    pub async fn check_pending(&self) -> Result<PendingReport> {
        let registry = Registry::linked()?;
        let mut queues: PendingQueues = BTreeMap::new();
        for store in self.shared().stores.iter() {
            for stats in store.stats(&[]).await?.into_iter().filter(|stats| stats.live() > 0) {
                for state in [JobState::Scheduled, JobState::Ready, JobState::Running] {
                    let params = BrowseParams::new(&stats.queue, state).limit(PAGE).payloads(true);
                    let mut pages = Pages::new(store, params);
                    while let Some(page) = pages.next().await? {
                        for JobView { job, .. } in &page.jobs {
                            count_job(&mut queues, &registry, job);
                        }
                    }
                }
            }
        }
        let queues = queues.into_iter().map(|(queue, versions)| PendingQueue {
            has_handler: registry.get(queue.as_str()).is_some() || queue.is_reserved(),
            versions: versions.into_values().collect(),
            queue,
        });
        Ok(PendingReport { queues: queues.collect() })
    }
}

/// Returns the job whose payload an application handler reads; for a schedule job, the job it will
/// create. `None` for other internal jobs.
fn job_to_read(job: &Job) -> Result<Option<Cow<'_, Job>>> {
    if !job.queue.is_reserved() {
        return Ok(Some(Cow::Borrowed(job)));
    }
    if job.queue != schedules::queue() {
        return Ok(None);
    }
    let next = schedules::job_of_schedule(job)?.map(|next| {
        let mut of_schedule = Job::new(next.id, next.queue, job.due, job.created, next.payload);
        of_schedule.headers = next.headers;
        Cow::Owned(of_schedule)
    });
    Ok(next)
}

fn count_job(queues: &mut PendingQueues, registry: &Registry, job: &Job) {
    let (job, result) = match job_to_read(job) {
        Ok(None) => return,
        Ok(Some(job)) => {
            let result = read(registry, &job);
            (job, result)
        }
        Err(error) => (Cow::Borrowed(job), Err(error.to_string())),
    };
    let version_name = job.headers.get(Headers::SCHEMA_VERSION).unwrap_or("1");
    let versions = queues.entry(job.queue.clone()).or_default();
    let version = versions.entry(version_name.to_owned()).or_default();
    version_name.clone_into(&mut version.version);
    version.jobs += 1;
    if let Err(why) = result {
        version.unreadable += 1;
        version.example.get_or_insert((job.id, why));
    }
}

/// Returns why the job's payload is unreadable. Without a handler, it is not read.
fn read(registry: &Registry, job: &Job) -> Result<(), String> {
    let Some(handler) = registry.get(job.queue.as_str()) else { return Ok(()) };
    // Decoding runs application code, which may panic.
    match panics::catch(|| (handler.read)(job)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("panicked: {panic}")),
    }
}
