//! Isolation: a call for one queue does not affect others.

use dq_core::{Due, Operation, QueueName};

use super::client::Counts;
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "isolation":
    purge_reports_whether_more_is_left,
    similar_queue_names_are_distinct,
}

async fn purge_reports_whether_more_is_left(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    // Not a multiple of a store's step size: after exactly that many jobs, a store may set `more`
    // although no job is left.
    store.create_many(&queue, 2_500, LATER).await?;
    let (mut left, mut steps) = (2_500, 0);
    loop {
        let report = store.backend().operate(Operation::Purge { queue: &queue }).await?;
        left -= report.affected.min(left);
        ensure!(left > 0 || steps > 0, "one call removes a limited number of jobs");
        steps += 1;
        store.expect_counts(&queue, Counts::scheduled(left), "after a step of a purge").await?;
        ensure_eq!(report.more, left > 0, "`more` says whether another call would remove jobs");
        if left == 0 {
            return Ok(());
        }
        ensure!(report.affected > 0, "each step of a purge removes jobs");
    }
}

async fn similar_queue_names_are_distinct(store: TrialStore) -> TrialResult {
    let start = store.queue();
    // Prefixes, case, pattern characters, blanks, separators, composed and decomposed letters.
    let ends = ["", ":", ":a", "*", "%", "_", "?", "[a]", " ", "a", "A", "é", "e\u{301}", "{a}"];
    let mut queues = Vec::new();
    for end in ends {
        let queue = QueueName::new(format!("{start}{end}"))?;
        store.create(store.job(&queue, Due::NOW)).await?;
        queues.push(queue);
    }
    for (n, queue) in queues.iter().enumerate() {
        for other in &queues[n..] {
            store.expect_counts(other, Counts::ready(1), "after calls for similar names").await?;
        }
        if n % 2 == 0 {
            store.lease_one(queue).await?;
        } else {
            let purged = store.operate(Operation::Purge { queue }).await?;
            ensure!(purged == 1, "queue {queue} has one job, not {purged}");
        }
    }
    Ok(())
}
