//! Callers that need the log at the same time share one attempt to open it, or to get a turn to do so.
//! The attempt for the turn waits for that of the log, so each needs an [`Opening`] of its own.

use std::sync::Mutex;

use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, Result};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

/// The last attempt.
#[derive(Debug, Default)]
pub(crate) struct Opening(Mutex<Option<Attempt>>);

#[derive(Debug)]
struct Attempt {
    /// Tells whether the task has ended. `result` cannot, since it advances only while a caller waits
    /// for it, and all of them may have given up.
    progress: AbortHandle,
    result: Shared<BoxFuture<'static, Result<()>>>,
}

impl Opening {
    /// Waits for the attempt in progress; starts one if there is none.
    ///
    /// # Errors
    /// That of the attempt. Every caller that came before it ended gets the same one: if each then made
    /// an attempt of its own, one after the other, the last would wait for the sum of their timeouts.
    ///
    /// # Cancellation safety
    /// The attempt goes on in a task of its own.
    pub(crate) async fn share<F>(&self, open: impl FnOnce() -> F) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let result = {
            let mut last = lock(&self.0);
            match &*last {
                Some(attempt) if !attempt.progress.is_finished() => attempt.result.clone(),
                _ => last.insert(Attempt::start(open())).result.clone(),
            }
        };
        result.await
    }
}

impl Attempt {
    fn start(open: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        let task = tokio::spawn(open);
        let failed = |error| {
            Error::new(ErrorKind::Internal, "the task that opens the log has failed").source(error)
        };
        let progress = task.abort_handle();
        let result = async move { task.await.map_err(failed)? };
        Self { progress, result: result.boxed().shared() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn calls_at_the_same_time_share_an_attempt_and_its_error() {
        let (opening, attempts, end) =
            (Opening::default(), AtomicU32::new(0), Arc::new(Notify::new()));
        let open = || {
            attempts.fetch_add(1, Ordering::Relaxed);
            let end = Arc::clone(&end);
            async move {
                end.notified().await;
                Err(Error::new(ErrorKind::Unavailable, "no reply"))
            }
        };
        // A caller that gives up does not end the attempt.
        assert!(opening.share(open).now_or_never().is_none());
        let callers = join_all((0..3).map(|_| opening.share(open)));
        let (results, ()) = tokio::join!(callers, async { end.notify_one() });
        for result in results {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(attempts.load(Ordering::Relaxed), 1);

        end.notify_one();
        opening.share(open).await.unwrap_err();
        assert_eq!(attempts.load(Ordering::Relaxed), 2, "a later call makes another one");
    }
}
