//! From one store to another and back on real servers, with jobs pending in both: what is drained runs,
//! and is found by its key, wherever it is.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq::config::Config;
use dq::prelude::*;
use dq_servers::{Redis, shared_rabbitmq};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine; reached only when the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// What has run, in order.
type Ran = Arc<Mutex<Vec<String>>>;

#[derive(Serialize, Deserialize)]
struct Parcel {
    name: String,
}

#[delay_handler("PARCEL")]
async fn deliver(State(ran): State<Ran>, parcel: Parcel) {
    ran.lock().unwrap().push(parcel.name);
}

/// An application on one store that drains another, and its runner.
struct Shop {
    dq: Dq,
    stop: oneshot::Sender<()>,
    runner: JoinHandle<dq::Result<()>>,
}

impl Shop {
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

    async fn put(&self, name: &str, delay: Duration) -> Scheduled {
        put(&self.dq, name, delay, OnConflict::Keep).await
    }

    async fn cancel(&self, key: &str) -> Cancelled {
        self.dq.cancel::<deliver>(key).await.unwrap()
    }

    async fn bring_forward(&self, key: &str) {
        let moved = self.dq.reschedule::<deliver>(key, 1.seconds()).await.unwrap();
        assert!(matches!(moved, Rescheduled::Moved(_)), "{key}: {moved:?}");
    }

    /// Waits until exactly these have run since the last time.
    async fn ran(&self, ran: &Ran, mut names: Vec<&str>) {
        names.sort_unstable();
        let start = Instant::now();
        while ran.lock().unwrap().len() < names.len() {
            assert!(start.elapsed() < PATIENCE, "only {:?} of {names:?} ran", ran.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Whatever runs twice does so soon.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut ran = std::mem::take(&mut *ran.lock().unwrap());
        ran.sort_unstable();
        assert_eq!(ran, names);
    }
}

/// Schedules a job whose name is its key.
async fn put(dq: &Dq, name: &str, delay: Duration, on_conflict: OnConflict) -> Scheduled {
    let job = dq.schedule::<deliver>(Parcel { name: name.to_owned() });
    job.after(delay).key(name).on_conflict(on_conflict).await.unwrap()
}

/// The keys of all that waits in a store, asked behind everybody's back.
async fn waiting_in(store: &str) -> Vec<String> {
    let config = Config::from_toml(&format!("[backend]\n{store}")).unwrap();
    let dq = Dq::builder().config(config).connect().await.unwrap();
    let queue = dq.queue_of::<deliver>().unwrap();
    let page = queue.browse(dq::JobState::Scheduled, None, 100).await.unwrap();
    let key = |view: dq::JobView| view.job.key.map_or_else(String::new, |key| key.to_string());
    let mut keys: Vec<String> = page.jobs.into_iter().map(key).collect();
    let stored = queue.stats().await.unwrap().stored();
    assert_eq!(stored, keys.len() as u64, "all that is stored waits");
    keys.sort_unstable();
    dq.close().await.unwrap();
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_redisson_to_rabbitmq_and_back_with_jobs_pending_in_both() {
    let (redis, vhost) = tokio::task::block_in_place(|| {
        (Redis::start(), shared_rabbitmq().vhost("from_redisson_and_back"))
    });
    // No answer takes so long, whatever the machine.
    let patient = "response_timeout = \"60s\"";
    let redisson =
        format!("type = \"redisson\"\nurl = {:?}\ncodec = \"json\"\n{patient}", redis.url());
    let rabbitmq = format!("type = \"rabbitmq\"\nurl = {vhost:?}\n{patient}");
    let ran = Ran::default();

    // Before: Redisson alone, whose process has ended.
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
        assert!(put(&before, name, delay, OnConflict::Keep).await.is_stored());
    }
    before.close().await.unwrap();

    // There: RabbitMQ, while Redisson is drained.
    let shop = Shop::open(&rabbitmq, &redisson, &ran).await;
    for (name, delay) in [
        ("new", 1.seconds()),
        ("cancelled back", 1.hours()),
        ("moved back", 1.hours()),
        ("left back", 1.hours()),
    ] {
        assert!(matches!(shop.put(name, delay).await, Scheduled::Created(_)), "{name}");
    }
    assert!(matches!(shop.put("left there", 1.seconds()).await, Scheduled::Kept(_)));
    let replaced = put(&shop.dq, "replaced there", 1.hours(), OnConflict::Replace).await;
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(shop.cancel("cancelled there").await, Cancelled::Cancelled);
    assert_eq!(shop.cancel("cancelled there").await, Cancelled::NotFound);
    shop.bring_forward("moved there").await;
    shop.ran(&ran, vec!["due soon", "new", "moved there"]).await;
    shop.close().await;
    assert_eq!(waiting_in(&redisson).await, ["left there"]);
    let in_rabbitmq = ["cancelled back", "left back", "moved back", "replaced there"];
    assert_eq!(waiting_in(&rabbitmq).await, in_rabbitmq);

    // And back: Redisson, while RabbitMQ is drained.
    let shop = Shop::open(&redisson, &rabbitmq, &ran).await;
    assert!(matches!(shop.put("new again", 1.seconds()).await, Scheduled::Created(_)));
    assert!(matches!(shop.put("left back", 1.seconds()).await, Scheduled::Kept(_)));
    let replaced = put(&shop.dq, "replaced there", 1.seconds(), OnConflict::Replace).await;
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(shop.cancel("cancelled back").await, Cancelled::Cancelled);
    assert_eq!(shop.cancel("cancelled back").await, Cancelled::NotFound);
    for key in ["moved back", "left back", "left there"] {
        shop.bring_forward(key).await;
    }
    let all = vec!["new again", "moved back", "left back", "left there", "replaced there"];
    shop.ran(&ran, all).await;
    shop.close().await;
    for store in [&redisson, &rabbitmq] {
        assert_eq!(waiting_in(store).await, [""; 0], "{store}");
    }
}
