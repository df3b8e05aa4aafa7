//! Close: later calls are rejected, and calls in flight return.

use dq_core::{ClaimParams, Due, ErrorKind, Operation, Result, Settlement, Verdict};

use super::failure::{Failure, TrialResult, ensure_eq};
use super::store::TrialStore;
use super::trial::topic;

topic! { "close":
    calls_after_close_are_refused,
    closing_twice_is_allowed,
    calls_in_flight_return,
}

async fn calls_after_close_are_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    let backend = store.backend();
    backend.close().await?;
    closed("schedule", backend.schedule(vec![store.job(&queue, Due::NOW)]).await)?;
    let wants = [super::client::want(&queue, 1)];
    let params = ClaimParams::new(&wants, 1, "suite");
    closed("claim", backend.claim(params).await)?;
    let settlement = Settlement::new(leased.lease(), Verdict::Done);
    closed("settle", backend.settle(&[settlement]).await)?;
    closed("stats", backend.stats(std::slice::from_ref(&queue)).await)?;
    closed("purge", backend.operate(Operation::Purge { queue: &queue }).await)
}

fn closed<T: std::fmt::Debug>(call: &str, answer: Result<T>) -> TrialResult {
    match answer {
        Ok(answer) => Err(Failure::new(format_args!("{call} after close returned {answer:?}"))),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::Closed, "{call} after close is refused: {error}");
            Ok(())
        }
    }
}

async fn closing_twice_is_allowed(store: TrialStore) -> TrialResult {
    store.backend().close().await?;
    store.backend().close().await?;
    Ok(())
}

async fn calls_in_flight_return(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let calls = (0..20).map(|_| {
        let (client, job) = (store.client(), store.job(&queue, Due::NOW));
        tokio::spawn(async move { client.backend().schedule(vec![job]).await })
    });
    let calls: Vec<_> = calls.collect();
    tokio::task::yield_now().await;
    store.backend().close().await?;
    for call in calls {
        // The store may accept or reject the job. The trial's timeout detects a hanging call.
        if let Err(error) = call.await.map_err(Failure::new)? {
            ensure_eq!(error.kind(), ErrorKind::Closed, "a call after close: {error}");
        }
    }
    Ok(())
}
