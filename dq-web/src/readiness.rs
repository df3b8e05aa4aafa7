//! Readiness: the store answers, and the server is not shutting down.

use std::time::Duration;

use dq_core::{Backend as _, Dq, QueueName};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

/// How long the store may take to answer. Kubernetes waits one second by default.
const TIMEOUT: Duration = Duration::from_millis(800);

/// How long an answer is reused, so that frequent probes do not load the store.
const AGE: Duration = Duration::from_secs(1);

/// A queue name closed to jobs, so that its counts cost nothing.
const QUEUE: &str = "dq.readiness";

#[derive(Debug)]
pub(crate) struct Readiness {
    stop: Option<watch::Receiver<bool>>,
    /// Time and result of the last probe. The lock is held during a probe, so that many requests
    /// cause one.
    last: Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    pub(crate) fn new(stop: Option<watch::Receiver<bool>>) -> Self {
        Self { stop, last: Mutex::default() }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| *stop.borrow())
    }

    pub(crate) async fn has_answered(&self, dq: &Dq) -> bool {
        let mut last = self.last.lock().await;
        if let Some((at, answered)) = *last
            && at.elapsed() < AGE
        {
            return answered;
        }
        let Ok(queue) = QueueName::new(QUEUE) else { return false };
        let answer = timeout(TIMEOUT, dq.backend().stats(&[queue])).await;
        let answered = matches!(answer, Ok(Ok(_)));
        *last = Some((Instant::now(), answered));
        answered
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use dq_core::{Backend, MemoryBackend, QueueStats, SystemClock, async_trait};
    use tokio::sync::Semaphore;

    use super::*;

    /// A store that needs a permit for each answer, and counts answers.
    #[derive(Debug)]
    struct Slow {
        store: MemoryBackend,
        permits: Semaphore,
        asked: AtomicU32,
    }

    #[async_trait]
    impl dq_core::Layer for Slow {
        fn inner(&self) -> &dyn Backend {
            &self.store
        }

        async fn stats(&self, queues: &[QueueName]) -> dq_core::Result<Vec<QueueStats>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.permits.acquire().await.unwrap().forget();
            Backend::stats(&self.store, queues).await
        }
    }

    async fn slow(permits: usize) -> (Arc<Slow>, Dq) {
        let store = MemoryBackend::new(Arc::new(SystemClock));
        let permits = Semaphore::new(permits);
        let store = Arc::new(Slow { store, permits, asked: AtomicU32::new(0) });
        let dq = Dq::builder().backend(store.clone()).connect().await.unwrap();
        (store, dq)
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_ask_the_store_once_a_second() {
        let (store, dq) = slow(100).await;
        let readiness = Readiness::new(None);
        assert!(readiness.has_answered(&dq).await && readiness.has_answered(&dq).await);
        tokio::time::advance(AGE - Duration::from_millis(1)).await;
        assert!(readiness.has_answered(&dq).await);
        assert_eq!(store.asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(readiness.has_answered(&dq).await);
        assert_eq!(store.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_is_asked_again_after_a_second() {
        let (store, dq) = slow(0).await;
        let readiness = Readiness::new(None);
        let both = async { tokio::join!(readiness.has_answered(&dq), readiness.has_answered(&dq)) };
        assert_eq!(both.await, (false, false));
        assert_eq!(store.asked.load(Ordering::Relaxed), 1);
        store.permits.add_permits(1);
        assert!(!readiness.has_answered(&dq).await, "the answer is kept");
        tokio::time::advance(AGE).await;
        assert!(readiness.has_answered(&dq).await);
    }

    #[tokio::test]
    async fn a_server_that_stops_is_not_ready() {
        let (stop, stopped) = watch::channel(false);
        let readiness = Readiness::new(Some(stopped));
        assert!(!readiness.is_stopping());
        stop.send_replace(true);
        assert!(readiness.is_stopping());
        assert!(!Readiness::new(None).is_stopping());
    }
}
