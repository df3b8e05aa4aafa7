//! A move from one store to another and back, with jobs pending in both: jobs of the drained store run
//! and are found by their keys.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq::config::Config;
use dq::prelude::*;
use dq_servers::{Redis, shared_rabbitmq};
use dq_testkit::fixture::wait_until;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The names of the jobs that have run, in order.
type Ran = Arc<Mutex<Vec<String>>>;

#[derive(Serialize, Deserialize)]
struct Parcel {
    name: String,
}

#[delay_handler("PARCEL")]
async fn deliver(State(ran): State<Ran>, parcel: Parcel) {
    ran.lock().unwrap().push(parcel.name);
}

/// An application on one store that drains another, with its runner.
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

    /// Waits until jobs have run since the last call, and requires that they are exactly these.
    async fn expect_runs(&self, ran: &Ran, mut names: Vec<&str>) {
        names.sort_unstable();
        wait_until("the jobs run", async || ran.lock().unwrap().len() >= names.len()).await;
        // A duplicate would run soon.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut ran = std::mem::take(&mut *ran.lock().unwrap());
        ran.sort_unstable();
        assert_eq!(ran, names);
    }
}

/// Schedules a job whose name is its key.
async fn schedule(dq: &Dq, name: &str, delay: Duration, on_conflict: OnConflict) -> Scheduled {
    let job = dq.schedule::<deliver>(Parcel { name: name.to_owned() });
    job.after(delay).key(name).on_conflict(on_conflict).await.unwrap()
}

/// The keys of all jobs in a store, all of which must be waiting, read by a client of its own.
async fn waiting_in(store: &str) -> Vec<String> {
    let config = Config::from_toml(&format!("[backend]\n{store}")).unwrap();
    let dq = Dq::builder().config(config).connect().await.unwrap();
    let queue = dq.queue_of::<deliver>().unwrap();
    let page = queue.browse(dq::JobState::Scheduled, None, 100).await.unwrap();
    let key = |view: dq::JobView| view.job.key.map_or_else(String::new, |key| key.to_string());
    let mut keys: Vec<String> = page.jobs.into_iter().map(key).collect();
    let stored = queue.stats().await.unwrap().stored();
    assert_eq!(stored, keys.len() as u64, "every stored job is waiting");
    keys.sort_unstable();
    dq.close().await.unwrap();
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_survive_a_move_from_redisson_to_rabbitmq_and_back() {
    let (redis, vhost) = tokio::task::block_in_place(|| {
        (Redis::start(), shared_rabbitmq().vhost("from_redisson_and_back"))
    });
    // Longer than any answer takes on a busy machine.
    let patient = "response_timeout = \"60s\"";
    let redisson =
        format!("type = \"redisson\"\nurl = {:?}\ncodec = \"json\"\n{patient}", redis.url());
    let rabbitmq = format!("type = \"rabbitmq\"\nurl = {vhost:?}\n{patient}");
    let ran = Ran::default();

    // First Redisson alone.
    let before =
        Dq::builder().config(Config::from_toml(&format!("[backend]\n{redisson}")).unwrap());
    let before = before.connect().await.unwrap();
    for (name, delay) in [
        ("due soon", 2.seconds()),
        ("cancelled there", 1.hours()),
        ("moved there", 1.hours()),
        ("replaced there", 1.hours()),
        ("left there", 1.hours()),
    ] {
        assert!(schedule(&before, name, delay, OnConflict::Keep).await.is_stored());
    }
    before.close().await.unwrap();

    // Then RabbitMQ, while Redisson is drained.
    let app = Application::open(&rabbitmq, &redisson, &ran).await;
    for (name, delay) in [
        ("new", 1.seconds()),
        ("cancelled back", 1.hours()),
        ("moved back", 1.hours()),
        ("left back", 1.hours()),
    ] {
        assert!(matches!(app.schedule(name, delay).await, Scheduled::Created(_)), "{name}");
    }
    assert!(matches!(app.schedule("left there", 1.seconds()).await, Scheduled::Kept(_)));
    let replaced = schedule(&app.dq, "replaced there", 1.hours(), OnConflict::Replace).await;
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(app.cancel("cancelled there").await, Cancelled::Cancelled);
    assert_eq!(app.cancel("cancelled there").await, Cancelled::NotFound);
    app.make_due_soon("moved there").await;
    app.expect_runs(&ran, vec!["due soon", "new", "moved there"]).await;
    app.close().await;
    assert_eq!(waiting_in(&redisson).await, ["left there"]);
    let in_rabbitmq = ["cancelled back", "left back", "moved back", "replaced there"];
    assert_eq!(waiting_in(&rabbitmq).await, in_rabbitmq);

    // Then Redisson again, while RabbitMQ is drained.
    let app = Application::open(&redisson, &rabbitmq, &ran).await;
    assert!(matches!(app.schedule("new again", 1.seconds()).await, Scheduled::Created(_)));
    assert!(matches!(app.schedule("left back", 1.seconds()).await, Scheduled::Kept(_)));
    let replaced = schedule(&app.dq, "replaced there", 1.seconds(), OnConflict::Replace).await;
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(app.cancel("cancelled back").await, Cancelled::Cancelled);
    assert_eq!(app.cancel("cancelled back").await, Cancelled::NotFound);
    for key in ["moved back", "left back", "left there"] {
        app.make_due_soon(key).await;
    }
    let all = vec!["new again", "moved back", "left back", "left there", "replaced there"];
    app.expect_runs(&ran, all).await;
    app.close().await;
    for store in [&redisson, &rabbitmq] {
        assert_eq!(waiting_in(store).await, [""; 0], "{store}");
    }
}
