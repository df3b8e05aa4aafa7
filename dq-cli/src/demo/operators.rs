//! Demo operators, who change jobs, queues and schedules and so fill the audit.

use dq_core::{Due, DurationExt, JobState, QueueName, Target};
use dq_ops::{Actor, BulkAction, JobFilter, JobQuery, Ops, Result, Role, Session};

use super::handlers::{MEETINGS, NEWSLETTER, ORDERS, TICKETS};

pub(super) async fn act(ops: &Ops) -> Result<()> {
    let admin = ops.session(Actor::new("mei", Role::Admin));
    let operator = ops.session(Actor::new("jonas", Role::Operator));
    let viewer = ops.session(Actor::new("visitor", Role::Viewer));
    let [orders, meetings] = [ORDERS, MEETINGS].map(queue);

    admin.pause(&queue(NEWSLETTER)).await?;
    admin.pause_schedule("weekly-digest").await?;
    if let Some(meeting) = latest_scheduled(&operator, &meetings).await? {
        operator.reschedule(&meetings, &meeting, Due::After(45.minutes())).await?;
    }
    if let Some(order) = latest_scheduled(&operator, &orders).await? {
        operator.cancel(&orders, &order).await?;
        // A viewer may not cancel. The audit also lists refused actions.
        let _ = viewer.cancel(&orders, &order).await;
    }
    let mut called_off = JobFilter::default();
    called_off.key_prefix = Some("meeting-10".to_owned());
    operator.bulk(&meetings, BulkAction::Cancel, &called_off, None).await?;
    // An operator may not purge. The audit lists this refusal, too.
    let _ = operator.purge(&queue(TICKETS), TICKETS).await;
    Ok(())
}

async fn latest_scheduled(session: &Session, queue: &QueueName) -> Result<Option<Target>> {
    let mut query = JobQuery::new(JobState::Scheduled);
    (query.limit, query.descending) = (1, true);
    let page = session.jobs(queue, &query).await?;
    Ok(page.jobs.first().map(|job| Target::Id(job.id)))
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}
