//! Readiness: the store answers, and the server is not shutting down.

use std::time::Duration;

use dq_core::{Backend as _, Dq, QueueName};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cached::Cached;

/// How long the store may take to answer. Kubernetes waits one second by default.
const TIMEOUT: Duration = Duration::from_millis(800);

/// How long an answer is reused, so that frequent probes do not load the store.
const AGE: Duration = Duration::from_secs(1);

/// A queue name closed to jobs, so that its counts cost nothing.
const QUEUE: &str = "dq.readiness";

/// Whether the store answers and the server is not shutting down.
#[derive(Debug)]
pub(crate) struct Readiness {
    stop: Option<watch::Receiver<bool>>,
    answered: Cached<bool>,
}

impl Readiness {
    pub(crate) fn new(stop: Option<watch::Receiver<bool>>) -> Self {
        Self { stop, answered: Cached::new(AGE) }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| *stop.borrow())
    }

    pub(crate) async fn has_answered(&self, dq: &Dq) -> bool {
        let asked = async {
            let Ok(queue) = QueueName::new(QUEUE) else { return false };
            let answer = timeout(TIMEOUT, dq.backend().stats(&[queue])).await;
            matches!(answer, Ok(Ok(_)))
        };
        self.answered.get(asked).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dq_core::{Backend, MemoryBackend, QueueStats, SystemClock, async_trait};

    use super::*;

    /// A store that does not answer.
    #[derive(Debug)]
    struct Silent(MemoryBackend);

    #[async_trait]
    impl dq_core::Layer for Silent {
        fn inner(&self) -> &dyn Backend {
            &self.0
        }

        async fn stats(&self, _: &[QueueName]) -> dq_core::Result<Vec<QueueStats>> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_or_a_server_that_stops_is_not_ready() {
        let store = Arc::new(Silent(MemoryBackend::new(Arc::new(SystemClock))));
        let dq = Dq::builder().backend(store).connect().await.unwrap();
        let (stop, stopped) = watch::channel(false);
        let readiness = Readiness::new(Some(stopped));
        assert!(!readiness.has_answered(&dq).await && !readiness.is_stopping());
        stop.send_replace(true);
        assert!(readiness.is_stopping() && !Readiness::new(None).is_stopping());
    }
}
