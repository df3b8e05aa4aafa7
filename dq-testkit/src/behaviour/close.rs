//! Closing: an end that is told, and can be told twice.

use dq_core::{ClaimParams, Due, ErrorKind, Operation, Result, Settlement, Verdict};

use super::failure::{Failure, Passed, ensure_eq};
use super::stand::Stand;
use super::trial::topic;

topic! { "close":
    later_calls_are_told,
    closing_twice_is_no_error,
    calls_in_flight_are_answered,
}

async fn later_calls_are_told(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one(&queue).await?;
    let backend = stand.backend();
    backend.close().await?;
    closed("schedule", backend.schedule(vec![stand.job(&queue, Due::NOW)]).await)?;
    let wants = [super::handle::want(&queue, 1)];
    let params = ClaimParams { wants: &wants, limit: 1, worker: "suite" };
    closed("claim", backend.claim(params).await)?;
    let settlement = Settlement { lease: taken.lease(), verdict: Verdict::Done };
    closed("settle", backend.settle(&[settlement]).await)?;
    closed("stats", backend.stats(std::slice::from_ref(&queue)).await)?;
    closed("purge", backend.operate(Operation::Purge { queue: &queue }).await)
}

fn closed<T: std::fmt::Debug>(call: &str, answer: Result<T>) -> Passed {
    match answer {
        Ok(answer) => Err(Failure::new(format_args!("{call} after close answered {answer:?}"))),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::Closed, "{call} after close is told so: {error}");
            Ok(())
        }
    }
}

async fn closing_twice_is_no_error(stand: Stand) -> Passed {
    stand.backend().close().await?;
    stand.backend().close().await?;
    Ok(())
}

async fn calls_in_flight_are_answered(stand: Stand) -> Passed {
    let queue = stand.queue();
    let calls = (0..20).map(|_| {
        let (handle, job) = (stand.handle(), stand.job(&queue, Due::NOW));
        tokio::spawn(async move { handle.backend().schedule(vec![job]).await })
    });
    let calls: Vec<_> = calls.collect();
    tokio::task::yield_now().await;
    stand.backend().close().await?;
    for call in calls {
        // Stored or refused; a call that hangs is caught by the trial's own bound.
        if let Err(error) = call.await.map_err(Failure::new)? {
            ensure_eq!(error.kind(), ErrorKind::Closed, "a call that came too late: {error}");
        }
    }
    Ok(())
}
