//! Actions on single jobs and whole queues.

use dq_core::{
    Backend, Cancelled, Due, Error, ErrorKind, JobId, JobState, QueueHandle, QueueName,
    Rescheduled, Target, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::actor::Role;
use crate::bulk::{BulkAction, BulkReport};
use crate::error::{OpsError, Result};
use crate::jobs::{id_of, name_of, not_found};
use crate::ops::Session;
use crate::text;

/// A job with its new due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Moved {
    /// The job id.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// The due time.
    #[serde(with = "text")]
    pub due: Timestamp,
}

/// These need the role operator, except [`purge`](Self::purge). Each fails with `Forbidden` below
/// it, and with the errors of the store.
impl Session {
    /// Cancels a waiting job.
    ///
    /// # Errors
    /// `NotFound` if no live job has this id or key, `Conflict` if it is running.
    pub async fn cancel(&self, queue: &QueueName, target: &Target) -> Result<()> {
        let cancel = async {
            match self.open(queue)?.cancel(target).await? {
                Cancelled::Cancelled => Ok(()),
                Cancelled::AlreadyRunning => Err(is_running(target)),
                Cancelled::NotFound => Err(self.not_waiting(queue, target).await),
                _ => Err(unknown_result("cancel")),
            }
        };
        self.audited("cancel", queue, Some(name_of(target)), |()| 1, cancel).await
    }

    /// Moves a waiting job to another due time.
    ///
    /// # Errors
    /// As [`Self::cancel`], and `InvalidInput` if the due time is out of range.
    pub async fn reschedule(&self, queue: &QueueName, target: &Target, due: Due) -> Result<Moved> {
        self.move_to("reschedule", queue, target, due).await
    }

    /// Makes a waiting job due now.
    pub async fn run_now(&self, queue: &QueueName, target: &Target) -> Result<Moved> {
        self.move_to("run_now", queue, target, Due::NOW).await
    }

    async fn move_to(
        &self,
        action: &str,
        queue: &QueueName,
        target: &Target,
        due: Due,
    ) -> Result<Moved> {
        let reschedule = async {
            match self.open(queue)?.reschedule(target, due).await? {
                Rescheduled::Moved(receipt) => Ok(Moved { id: receipt.id, due: receipt.due }),
                Rescheduled::AlreadyRunning => Err(is_running(target)),
                Rescheduled::NotFound => Err(self.not_waiting(queue, target).await),
                _ => Err(unknown_result("reschedule")),
            }
        };
        self.audited(action, queue, Some(name_of(target)), |_| 1, reschedule).await
    }

    /// Makes a dead job due now, with all its attempts again.
    ///
    /// # Errors
    /// `NotFound` if there is no such job, `Conflict` if it is not dead or a live job has its key,
    /// `InvalidInput` if you name it by key.
    pub async fn replay(&self, queue: &QueueName, target: &Target) -> Result<()> {
        self.change_dead(BulkAction::Replay, queue, target).await
    }

    /// Removes a dead job.
    pub async fn remove(&self, queue: &QueueName, target: &Target) -> Result<()> {
        self.change_dead(BulkAction::Remove, queue, target).await
    }

    async fn change_dead(
        &self,
        action: BulkAction,
        queue: &QueueName,
        target: &Target,
    ) -> Result<()> {
        let change = async {
            let handle = self.open(queue)?;
            let id = id_of(target)?;
            let changed = match action {
                BulkAction::Replay => handle.replay(&[id]).await?,
                _ => handle.remove(&[id]).await?,
            };
            if changed > 0 {
                return Ok(());
            }
            let view = self.view(queue, target).await?;
            let may_be_kept_dead = action == BulkAction::Replay && view.job.key.is_some();
            match view.state {
                JobState::Dead if may_be_kept_dead => Err(OpsError::conflict(
                    format!("job {id} stays dead: a live job has its key"),
                    "replay it when that job has ended, or cancel that job",
                )),
                JobState::Dead => Err(OpsError::conflict(
                    format!("job {id} was alive at the call, and is dead now"),
                    format!("{} it again", action.as_str()),
                )),
                state => Err(OpsError::conflict(
                    format!("job {id} is not dead but {state}"),
                    "only dead jobs can be replayed and removed",
                )),
            }
        };
        self.audited(action.as_str(), queue, Some(name_of(target)), |()| 1, change).await
    }

    /// Pauses a queue in all processes; returns `false` if it is paused already.
    ///
    /// Running jobs finish. An unknown queue is rejected because its name may be misspelt; use
    /// [`create_paused`](Self::create_paused) for a new one.
    ///
    /// # Errors
    /// `NothingToPause` if no job, runner, schedule or configuration names the queue; `Unsupported`
    /// if the store cannot pause queues.
    pub async fn pause(&self, queue: &QueueName) -> Result<bool> {
        let pause = async {
            let handle = self.open(queue)?;
            self.require_known(queue).await.map_err(|error| match error {
                OpsError::NotFound { queue, job: None } => OpsError::NothingToPause { queue },
                error => error,
            })?;
            Ok(handle.pause().await?)
        };
        self.audited("pause", queue, None, |changed| u64::from(*changed), pause).await
    }

    /// Pauses a queue that may not exist yet, for example before its first deployment.
    pub async fn create_paused(&self, queue: &QueueName) -> Result<bool> {
        let pause = async { Ok(self.open(queue)?.pause().await?) };
        self.audited("pause", queue, None, |changed| u64::from(*changed), pause).await
    }

    /// Resumes a paused queue, and opens one that a handler has throttled; returns `false` if it was
    /// neither.
    ///
    /// # Errors
    /// `NotFound` if no job, runner, schedule or configuration names the queue.
    pub async fn resume(&self, queue: &QueueName) -> Result<bool> {
        let resume = async {
            let handle = self.open(queue)?;
            self.require_known(queue).await?;
            Ok(handle.resume().await?)
        };
        self.audited("resume", queue, None, |changed| u64::from(*changed), resume).await
    }

    /// Deletes every job of a queue except running ones.
    ///
    /// Pass in `typed` what a person typed to confirm: the queue name. Needs the role admin.
    ///
    /// # Errors
    /// `Conflict` if `typed` is not the queue name.
    pub async fn purge(&self, queue: &QueueName, typed: &str) -> Result<BulkReport> {
        let purge = async {
            self.may_change(queue, Role::Admin)?;
            if typed != queue.as_str() {
                return Err(OpsError::conflict(
                    format!("the confirmation is not the queue's name, {queue}"),
                    format!(
                        "to delete its jobs, type {queue}: on the page, after --confirm, or as \
                         `confirm` in the request's body"
                    ),
                ));
            }
            Ok(BulkReport { changed: self.ops.dq().queue(queue)?.purge().await? })
        };
        self.audited("purge", queue, None, |report| report.changed, purge).await
    }

    pub(crate) async fn require_known(&self, queue: &QueueName) -> Result<()> {
        let dq = self.ops.dq();
        if dq.is_configured(queue) {
            return Ok(());
        }
        let Err(unknown) = self.queue(queue).await else { return Ok(()) };
        // A schedule may precede its first job; a store without schedules names none.
        let schedules = match dq.schedules().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
            schedules => schedules?,
        };
        match schedules.iter().any(|schedule| schedule.spec.queue == *queue) {
            true => Ok(()),
            false => Err(unknown),
        }
    }

    pub(crate) fn open(&self, queue: &QueueName) -> Result<QueueHandle> {
        self.may_change(queue, Role::Operator)?;
        Ok(self.ops.dq().queue(queue)?)
    }

    async fn not_waiting(&self, queue: &QueueName, target: &Target) -> OpsError {
        if !self.ops.dq().backend().capabilities().browse {
            return not_found(queue, target);
        }
        // Keys of dead and ended jobs are not searched: services often cancel by key too late.
        let found = async { Ok(self.ops.dq().queue(queue)?.get(target).await?) };
        match found.await {
            Ok(Some(view)) => OpsError::conflict(
                format!("job {} is {}", name_of(target), view.state),
                "only waiting jobs can be cancelled and moved; dead jobs can be replayed",
            ),
            Ok(None) => not_found(queue, target),
            Err(error) => error,
        }
    }
}

fn is_running(target: &Target) -> OpsError {
    OpsError::conflict(
        format!("job {} is running", name_of(target)),
        "a running job is not stopped; wait for its end",
    )
}

fn unknown_result(call: &str) -> OpsError {
    Error::new(ErrorKind::Internal, format!("{call} has a result of a later version"))
        .remedy("update dq")
        .into()
}
