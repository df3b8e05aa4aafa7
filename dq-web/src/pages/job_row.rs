//! A job in lists and in its own page's head.

use dq_core::{JobId, JobState};
use dq_ops::JobSummary;

use super::chrome::Chrome;
use super::format::When;
use super::queue_table::LATE_MS;

impl Chrome {
    pub(super) fn state_name(&self, state: JobState) -> &'static str {
        match state {
            JobState::Ended => self.t.ev_ended,
            state => self.t.get(&state.to_string()).unwrap_or_default(),
        }
    }

    pub(super) fn job_href(&self, job: &JobSummary) -> String {
        self.link("job", &[("queue", job.queue.as_str()), ("id", &job.id.to_string())])
    }

    /// Returns the time at which the job got its state.
    pub(super) fn job_when(&self, job: &JobSummary) -> When {
        let at = match job.state {
            JobState::Dead => job.dead.as_ref().map(|dead| dead.at),
            JobState::Ended => job.ended.as_ref().map(|ended| ended.at),
            JobState::Running => job.claimed_at,
            _ => None,
        };
        self.when(&at.unwrap_or(job.due))
    }

    /// Whether a job has been due for longer than healthy runners let it wait.
    pub(super) fn job_is_late(&self, job: &JobSummary) -> bool {
        let late = self.now.since(job.due).as_millis() >= u128::from(LATE_MS);
        job.state == JobState::Ready && late
    }

    /// Returns the most important fact about a job, and whether it is an error.
    pub(super) fn job_detail(&self, job: &JobSummary) -> (Option<String>, bool) {
        if let Some(dead) = &job.dead {
            return (Some(dead.message.clone()), true);
        }
        if let Some(ended) = &job.ended {
            let ending = self.t.of("end", ended.ending.as_str());
            let reason = ended.reason.as_ref().map(|reason| format!(": {reason}"));
            return (Some(format!("{ending}{}", reason.unwrap_or_default())), false);
        }
        if job.state == JobState::Running {
            return (job.worker.clone(), false);
        }
        (job.last_error.clone(), true)
    }
}

/// Shortens an id to its last part, in which ids differ most.
pub(super) fn short_id(id: &JobId) -> String {
    let id = id.to_string();
    format!("…{}", &id[id.len() - 12..])
}
