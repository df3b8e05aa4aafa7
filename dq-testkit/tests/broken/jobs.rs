//! Defects in how jobs are stored, changed and continued.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::{
    Backend, Cancelled, Due, JobId, JobRef, JobState, Layer, Lease, NewJob, OnConflict, OnRunning,
    Receipt, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement, Target, Timestamp,
    Verdict, async_trait,
};

use super::subject::Opened;

/// Defines a layer that changes each job before it is stored.
macro_rules! changes_jobs {
    ($name:ident, $change:expr) => {
        layer!($name, {
            async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
                let change: fn(&mut NewJob) = $change;
                jobs.iter_mut().for_each(change);
                self.inner.schedule(jobs).await
            }
        });
    };
}

changes_jobs!(IgnoresKeys, |job| job.key = None);
changes_jobs!(RefusesToDetach, |job| job.on_running = OnRunning::Refuse);
changes_jobs!(IgnoresRemember, |job| job.remember = Duration::ZERO);
changes_jobs!(PinsTooLong, |job| job.remember *= 1_000);

layer!(TruncatesToSeconds, {
    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let now = self.inner.now().await?;
        for job in &mut jobs {
            let due = job.due.resolve(now).as_millis();
            job.due = Due::At(Timestamp::from_millis(due / 1_000 * 1_000));
        }
        self.inner.schedule(jobs).await
    }
});

// Keeps the existing job on a conflict, but answers `Replaced`.
layer!(KeepsReplaced, {
    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            job.on_conflict = OnConflict::Keep;
        }
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let answers = self.inner.schedule(jobs).await?;
        let wrong_answer = |(answer, id): (Scheduled, JobId)| match answer {
            Scheduled::Kept(receipt) => Scheduled::Replaced(Receipt { id, ..receipt }),
            answer => answer,
        };
        Ok(answers.into_iter().zip(ids).map(wrong_answer).collect())
    }
});

layer!(AnswersRepeatsAsKept [ids: Mutex<HashSet<JobId>>], {
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let answers = self.inner.schedule(jobs).await?;
        let mut ids = self.ids.lock().unwrap();
        let wrong_answer = |answer| match answer {
            Scheduled::Created(receipt) if !ids.insert(receipt.id) => Scheduled::Kept(receipt),
            answer => answer,
        };
        Ok(answers.into_iter().map(wrong_answer).collect())
    }
});

// Stores a job with an ended id under another id.
layer!(StoresEndedAgain, {
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let mut answers = self.inner.schedule(jobs.clone()).await?;
        for (mut job, answer) in jobs.into_iter().zip(&mut answers) {
            let in_queue = JobRef::new(job.queue.clone(), job.id);
            if let Scheduled::Ended(receipt) = *answer
                && self.inner.get(&in_queue).await?.is_some()
            {
                let mut id = job.id.to_bytes();
                id[15] ^= 1;
                job.id = JobId::from_bytes(id);
                let _stored = self.inner.schedule(vec![job]).await?;
                *answer = Scheduled::Created(receipt);
            }
        }
        Ok(answers)
    }
});

layer!(LeavesTheKey, {
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let mut answers = Vec::new();
        for mut job in jobs {
            let detach = job.on_running == OnRunning::Detach;
            job.on_running = OnRunning::Refuse;
            let mut answer = self.inner.schedule(vec![job.clone()]).await?;
            if detach && matches!(answer[0], Scheduled::AlreadyRunning(_)) {
                job.key = None;
                answer = self.inner.schedule(vec![job]).await?;
            }
            answers.append(&mut answer);
        }
        Ok(answers)
    }
});

layer!(IgnoresCancel, {
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        Ok(vec![Cancelled::Cancelled; jobs.len()])
    }
});

// Checks that the job waits, then answers without a second look.
layer!(CancelsInTwoSteps, {
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let mut answers = Vec::new();
        for job in jobs {
            let view = self.inner.get(job).await?;
            let waits = view
                .is_some_and(|view| matches!(view.state, JobState::Scheduled | JobState::Ready));
            tokio::task::yield_now().await;
            let answer = self.inner.cancel(std::slice::from_ref(job)).await?[0];
            answers.push(if waits { Cancelled::Cancelled } else { answer });
        }
        Ok(answers)
    }
});

layer!(ReportsRunningAsMoved, {
    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let now = self.inner.now().await?;
        let answers = self.inner.reschedule(moves).await?;
        let wrong_answer =
            |(answer, change): (Rescheduled, &Reschedule)| match (answer, &change.job.target) {
                (Rescheduled::AlreadyRunning, Target::Id(id)) => {
                    Rescheduled::Moved(Receipt { id: *id, due: change.due.resolve(now) })
                }
                (answer, _) => answer,
            };
        Ok(answers.into_iter().zip(moves).map(wrong_answer).collect())
    }
});

// Starts a next step with the last step's payload and counts.
changes_verdicts!(RepeatsTheStep, |verdict| {
    if let Verdict::Again { due, .. } = verdict {
        *verdict = Verdict::Snooze(*due);
    }
});

// Settles the job as done and schedules another with its id.
layer!(StepsInTwoCalls, {
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut done = settlements.to_vec();
        for settlement in &mut done {
            if matches!(settlement.verdict, Verdict::Again { .. }) {
                settlement.verdict = Verdict::Done;
            }
        }
        let answers = self.inner.settle(&done).await?;
        let steps = settlements.iter().zip(&answers).filter_map(|(settlement, answer)| {
            let Lease { queue, job, .. } = settlement.lease.clone();
            match &settlement.verdict {
                Verdict::Again { due, payload } if *answer == Settled::Accepted => {
                    Some(NewJob::new(job, queue, *due, payload.clone()))
                }
                _ => None,
            }
        });
        self.inner.schedule(steps.collect()).await?;
        Ok(answers)
    }
});
