//! The check's page, which does not wait for a slow check, and the marks of a missed objective.

use std::sync::Arc;

use dq_core::{Backend, Dq, Finding, MemoryBackend, VirtualClock, async_trait};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::{Fixture, VIEWER};

/// A store with checks that wait for a permit.
#[derive(Debug)]
struct SlowCheck {
    store: MemoryBackend,
    permits: Semaphore,
}

#[async_trait]
impl dq_core::Layer for SlowCheck {
    fn inner(&self) -> &dyn Backend {
        &self.store
    }

    async fn check(&self) -> Vec<Finding> {
        self.permits.acquire().await.unwrap().forget();
        Backend::check(&self.store).await
    }
}

async fn serve_slow_check(permits: usize) -> (Fixture, Arc<SlowCheck>) {
    let store = MemoryBackend::new(Arc::new(VirtualClock::default()));
    let store = Arc::new(SlowCheck { store, permits: Semaphore::new(permits) });
    let dq = Dq::builder().backend(store.clone()).connect().await.unwrap();
    (Fixture::of(dq, tempfile::tempdir().unwrap()).await, store)
}

#[tokio::test]
async fn the_page_of_a_check_that_takes_long_says_so_and_then_has_the_result() {
    let (fixture, store) = serve_slow_check(0).await;
    for _ in 0..2 {
        let running = fixture.send_as(VIEWER, "GET", "/check", None, "").await;
        assert_eq!((running.status, running.header("refresh")), (200, Some("1")));
        assert!(running.body.contains("takes longer than this page waits"), "{running:?}");
    }

    // All pages share one check, so one permit suffices.
    store.permits.add_permits(1);
    let pages = tokio::join!(fixture.get(VIEWER, "/check"), fixture.get(VIEWER, "/check"));

    for page in [pages.0, pages.1] {
        assert!(page.body.contains("no problem that you should know of"), "{page:?}");
    }
}

#[tokio::test]
async fn the_page_of_a_quick_check_shows_a_new_one_each_time() {
    let (fixture, store) = serve_slow_check(2).await;
    fixture.get(VIEWER, "/check").await;
    // On a busy machine, the first check may be slow, and so kept for a moment.
    while store.permits.available_permits() > 0 {
        fixture.get(VIEWER, "/check").await;
    }
}

#[tokio::test]
async fn a_missed_lateness_objective_is_marked_with_its_cause() {
    let fixture = Fixture::start("").await;
    // At the objective of 99 %, ten late starts of a thousand are met, and eleven are missed.
    let announce = async |late: u64| {
        let objective = json!({
            "objective": "99% < 100ms", "in_time": 990, "late": late, "cause": "slots_full",
        });
        let queue = json!({
            "queue": "MAIL", "concurrency": 4, "running": 0, "lateness": [], "run_time": [],
            "objective": objective,
        });
        fixture.announce("web-1", json!({"queues": [queue]})).await;
    };
    let body = async |path: &str| fixture.get(VIEWER, path).await.body;

    announce(10).await;
    assert!(body("/metrics").await.contains(r#"dq_queue_lateness_missed{queue="MAIL"} 0"#));
    assert!(!body("/").await.contains("objective missed"));
    let page = body("/queue?name=MAIL").await;
    assert!(page.contains("99% &#60; 100ms · met · in time 990 · late 10"), "{page}");

    announce(11).await;
    for (path, mark) in [
        ("/metrics", r#"dq_queue_lateness_missed{queue="MAIL"} 1"#),
        ("/", r#"title="all slots are busy">objective missed</span>"#),
        ("/?lang=zh", r#"title="槽位全部占用">未达延迟目标</span>"#),
        ("/queue?name=MAIL", "objective missed: all slots are busy · in time 990 · late 11"),
        ("/check", "jobs of queue MAIL are late: all slots are busy"),
    ] {
        let page = body(path).await;
        assert!(page.contains(mark), "{path}: {page}");
    }
}
