//! Demo operators, who change jobs, queues and schedules and so fill the audit.

use dq_core::{Due, DurationExt, JobState, QueueName, Target};
use dq_ops::{Actor, BulkAction, JobFilter, JobQuery, Ops, Result, Role, Session};

use super::handlers::{MEETINGS, NEWSLETTER, ORDERS, TICKETS};

/// Dead tickets replayed per round; few, so that some remain to look at.
const REPLAYED: usize = 2;

pub(super) struct Operators {
    mei: Session,
    jonas: Session,
    visitor: Session,
}

impl Operators {
    pub(super) fn new(ops: &Ops) -> Self {
        Self {
            mei: ops.session(Actor::new("mei", Role::Admin)),
            jonas: ops.session(Actor::new("jonas", Role::Operator)),
            visitor: ops.session(Actor::new("visitor", Role::Viewer)),
        }
    }

    pub(super) async fn first_round(&self) -> Result<()> {
        self.mei.pause(&queue(NEWSLETTER)).await?;
        self.mei.pause_schedule("weekly-digest").await?;
        self.move_a_meeting().await?;
        let orders = queue(ORDERS);
        if let Some(latest) = self.latest_in(&orders, JobState::Scheduled).await? {
            self.jonas.cancel(&orders, &latest).await?;
            // A viewer may not cancel. The audit also lists refused actions.
            let _ = self.visitor.cancel(&orders, &latest).await;
        }
        let mut called_off = JobFilter::default();
        called_off.key_prefix = Some("meeting-10".to_owned());
        self.jonas.bulk(&queue(MEETINGS), BulkAction::Cancel, &called_off, None).await?;
        // An operator may not purge. The audit lists this refusal, too.
        let _ = self.jonas.purge(&queue(TICKETS), TICKETS).await;
        Ok(())
    }

    pub(super) async fn next_round(&self) -> Result<()> {
        self.move_a_meeting().await?;
        let tickets = queue(TICKETS);
        for _ in 0..REPLAYED {
            if let Some(dead) = self.latest_in(&tickets, JobState::Dead).await? {
                self.jonas.replay(&tickets, &dead).await?;
            }
        }
        Ok(())
    }

    async fn move_a_meeting(&self) -> Result<()> {
        let meetings = queue(MEETINGS);
        if let Some(meeting) = self.latest_in(&meetings, JobState::Scheduled).await? {
            self.jonas.reschedule(&meetings, &meeting, Due::After(45.minutes())).await?;
        }
        Ok(())
    }

    async fn latest_in(&self, queue: &QueueName, state: JobState) -> Result<Option<Target>> {
        let mut query = JobQuery::new(state);
        (query.limit, query.descending) = (1, true);
        let page = self.jonas.jobs(queue, &query).await?;
        Ok(page.jobs.first().map(|job| Target::Id(job.id)))
    }
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}
