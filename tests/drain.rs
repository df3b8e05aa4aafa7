//! Moves from one store to another and back, with pending jobs in both. Jobs in the drained store
//! run and are found by key. A job's name, also its key, says where it was first scheduled and what
//! happens to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq::config::Config;
use dq::prelude::*;
use dq_servers::{Redis, shared_rabbitmq};
use dq_testkit::fixture::wait_until;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

type Ran = Arc<Mutex<Vec<String>>>;

#[derive(Serialize, Deserialize)]
struct Parcel {
    name: String,
}

#[delay_handler("PARCEL")]
async fn deliver(State(ran): State<Ran>, parcel: Parcel) {
    ran.lock().unwrap().push(parcel.name);
}

struct Application {
    dq: Dq,
    stop: oneshot::Sender<()>,
    runner: JoinHandle<dq::Result<()>>,
}

impl Application {
    async fn open(store: &str, drained: &str, ran: &Ran) -> Self {
        let config = Config::from_toml(&format!("[backend]\n{store}\n[[drain]]\n{drained}"));
        let dq = Dq::builder().config(config.unwrap()).connect().await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let runner = dq.runner().state(Arc::clone(ran)).run_until(async {
            stopped.await.ok();
        });
        Self { dq, stop, runner: tokio::spawn(runner) }
    }

    async fn close(self) {
        self.stop.send(()).unwrap();
        self.runner.await.unwrap().unwrap();
        self.dq.close().await.unwrap();
    }

    async fn schedule(&self, name: &str, delay: Duration) -> Scheduled {
        schedule(&self.dq, name, delay, OnConflict::Keep).await
    }

    async fn cancel(&self, key: &str) -> Cancelled {
        self.dq.cancel::<deliver>(key).await.unwrap()
    }

    async fn make_due_soon(&self, key: &str) {
        let moved = self.dq.reschedule::<deliver>(key, 1.seconds()).await.unwrap();
        assert!(matches!(moved, Rescheduled::Moved(_)), "{key}: {moved:?}");
    }

    /// Waits for this many runs since the last call. Exactly these jobs must have run.
    async fn expect_runs(&self, ran: &Ran, mut names: Vec<&str>) {
        names.sort_unstable();
        wait_until("the jobs run", async || ran.lock().unwrap().len() >= names.len()).await;
        // Time for a duplicate to run.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut ran = std::mem::take(&mut *ran.lock().unwrap());
        ran.sort_unstable();
        assert_eq!(ran, names);
    }
}

async fn schedule(dq: &Dq, name: &str, delay: Duration, on_conflict: OnConflict) -> Scheduled {
    let job = dq.schedule::<deliver>(Parcel { name: name.to_owned() });
    job.after(delay).key(name).on_conflict(on_conflict).await.unwrap()
}

/// Reads all job keys with a separate client. All jobs must be scheduled.
async fn scheduled_in(store: &str) -> Vec<String> {
    let config = Config::from_toml(&format!("[backend]\n{store}")).unwrap();
    let dq = Dq::builder().config(config).connect().await.unwrap();
    let queue = dq.queue_of::<deliver>().unwrap();
    let page = queue.browse(dq::JobState::Scheduled).await.unwrap();
    let key = |view: dq::JobView| view.job.key.map_or_else(String::new, |key| key.to_string());
    let mut keys: Vec<String> = page.jobs.into_iter().map(key).collect();
    let stored = queue.stats().await.unwrap().stored();
    assert_eq!(stored, keys.len() as u64, "every stored job is scheduled");
    keys.sort_unstable();
    dq.close().await.unwrap();
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_survive_a_move_from_redisson_to_rabbitmq_and_back() {
    let (redis, vhost) = tokio::task::block_in_place(|| {
        (Redis::start(), shared_rabbitmq().vhost("from_redisson_and_back"))
    });
    // Longer than any call takes on a busy machine.
    let timeout = "response_timeout = \"60s\"";
    let redisson =
        format!("type = \"redisson\"\nurl = {:?}\ncodec = \"json\"\n{timeout}", redis.url());
    let rabbitmq = format!("type = \"rabbitmq\"\nurl = {vhost:?}\n{timeout}");
    let ran = Ran::default();

    // First Redisson alone.
    let before =
        Dq::builder().config(Config::from_toml(&format!("[backend]\n{redisson}")).unwrap());
    let before = before.connect().await.unwrap();
    for (name, delay) in [
        ("redisson: due soon", 2.seconds()),
        ("redisson: cancelled", 1.hours()),
        ("redisson: moved", 1.hours()),
        ("redisson: replaced", 1.hours()),
        ("redisson: left", 1.hours()),
    ] {
        assert!(schedule(&before, name, delay, OnConflict::Keep).await.is_stored());
    }
    before.close().await.unwrap();

    // Then RabbitMQ, while Redisson is drained.
    let app = Application::open(&rabbitmq, &redisson, &ran).await;
    for (name, delay) in [
        ("rabbitmq: new", 1.seconds()),
        ("rabbitmq: cancelled", 1.hours()),
        ("rabbitmq: moved", 1.hours()),
        ("rabbitmq: left", 1.hours()),
    ] {
        assert!(matches!(app.schedule(name, delay).await, Scheduled::Created(_)), "{name}");
    }
    assert!(matches!(app.schedule("redisson: left", 1.seconds()).await, Scheduled::Kept(_)));
    let replaced = schedule(&app.dq, "redisson: replaced", 1.hours(), OnConflict::Replace).await;
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(app.cancel("redisson: cancelled").await, Cancelled::Cancelled);
    assert_eq!(app.cancel("redisson: cancelled").await, Cancelled::NotFound);
    app.make_due_soon("redisson: moved").await;
    app.expect_runs(&ran, vec!["redisson: due soon", "rabbitmq: new", "redisson: moved"]).await;
    app.close().await;
    assert_eq!(scheduled_in(&redisson).await, ["redisson: left"]);
    let in_rabbitmq =
        ["rabbitmq: cancelled", "rabbitmq: left", "rabbitmq: moved", "redisson: replaced"];
    assert_eq!(scheduled_in(&rabbitmq).await, in_rabbitmq);

    // Then Redisson again, while RabbitMQ is drained.
    let app = Application::open(&redisson, &rabbitmq, &ran).await;
    assert!(matches!(app.schedule("redisson: new", 1.seconds()).await, Scheduled::Created(_)));
    assert!(matches!(app.schedule("rabbitmq: left", 1.seconds()).await, Scheduled::Kept(_)));
    let replaced = schedule(&app.dq, "redisson: replaced", 1.seconds(), OnConflict::Replace).await;
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(app.cancel("rabbitmq: cancelled").await, Cancelled::Cancelled);
    assert_eq!(app.cancel("rabbitmq: cancelled").await, Cancelled::NotFound);
    for key in ["rabbitmq: moved", "rabbitmq: left", "redisson: left"] {
        app.make_due_soon(key).await;
    }
    let all = vec![
        "redisson: new",
        "rabbitmq: moved",
        "rabbitmq: left",
        "redisson: left",
        "redisson: replaced",
    ];
    app.expect_runs(&ran, all).await;
    app.close().await;
    for store in [&redisson, &rabbitmq] {
        assert_eq!(scheduled_in(store).await, [""; 0], "{store}");
    }
}
