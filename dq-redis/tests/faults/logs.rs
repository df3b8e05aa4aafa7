//! An outage is logged once, and so is its end.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_servers::Redis;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::faults::fixture::{open, queue, wait_until};

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        if text.0.contains("connection for wake-ups") {
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Log {
    fn events(&self) -> Vec<(Level, String)> {
        self.0.lock().unwrap().clone()
    }
}

// On one thread, so that the subscriber gets all events.
#[tokio::test]
async fn an_outage_is_logged_once_and_so_is_its_end() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let _wakeups = backend.listen(&[queue("q")]).await.unwrap();
    assert_eq!(log.events(), []);
    for outage in 1..=2 {
        redis.kill();
        wait_until("it is noticed", async || log.events().len() == outage * 2 - 1).await;
        // Time for more attempts, after 100 ms, 200 ms and 400 ms.
        tokio::time::sleep(Duration::from_secs(1)).await;
        redis.restart();
        wait_until("it is back", async || log.events().len() == outage * 2).await;
    }
    let events = log.events();
    let levels: Vec<Level> = events.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::WARN, Level::INFO, Level::WARN, Level::INFO], "{events:?}");
    assert!(events.iter().all(|(_, text)| text.contains(&redis.address())), "{events:?}");
}
