//! Changes of the log's generation, with faults. Processes write jobs, and the *books* say which
//! jobs must be there afterwards.

mod kills;
mod losses;

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::sync::lock;
use dq_core::{Backend, BrowseParams, Cancelled, JobId, JobState, NewJob, Scheduled};
use dq_servers::shared_rabbitmq;
use dq_testkit::fixture::{by_id, in_an_hour, job, retry, wait_until};

use super::fixture::{config_for, queue, topology};
use crate::RabbitBackend;
use crate::config::{LadderKind, QueueKind, RabbitConfig};
use crate::log::generation::Generation;

const CHANGES_TIMEOUT: Duration = Duration::from_secs(300);

/// In bytes; the job stays.
const STAYS: usize = 1_000;
/// The job is cancelled.
const GOES: usize = 100_000;

/// Settings with which a generation is closed after 2 MiB.
fn small(vhost: &str) -> RabbitConfig {
    small_at(shared_rabbitmq().vhost(vhost))
}

fn small_at(url: String) -> RabbitConfig {
    let mut config = config_for(url);
    config.queues = QueueKind::Classic;
    config.ladder = LadderKind::None;
    config.log_size_mib = 16;
    config
}

async fn open(config: &RabbitConfig) -> Arc<RabbitBackend> {
    Arc::new(RabbitBackend::connect(config, &Environment::default()).await.unwrap())
}

fn sized(bytes: usize) -> NewJob {
    let new = in_an_hour(job("q"));
    let payload = payload(new.id, bytes);
    new.payload(payload)
}

fn payload(id: JobId, bytes: usize) -> Vec<u8> {
    id.to_bytes().into_iter().cycle().take(bytes).collect()
}

#[derive(Default)]
struct Books {
    /// Accepted and not cancelled.
    kept: HashSet<JobId>,
    /// Their calls have not succeeded, so they may be there.
    unknown: HashSet<JobId>,
    is_printed: bool,
}

impl Books {
    /// `begin` comes before the call, because the process may end with it; `keep` or `cancel`
    /// after.
    fn record(&mut self, change: &str, id: JobId) {
        if self.is_printed {
            println!("{change} {id}");
        }
        match change {
            "begin" => drop(self.unknown.insert(id)),
            "keep" => drop((self.unknown.remove(&id), self.kept.insert(id))),
            "cancel" => drop(self.unknown.remove(&id)),
            other => panic!("{other}"),
        }
    }
}

/// Writes 300 KB. Repeats calls, because on a busy machine a process may be far behind.
async fn write(backend: &RabbitBackend, books: &Mutex<Books>) {
    let stays = sized(STAYS);
    lock(books).record("begin", stays.id);
    let scheduled = retry(|| backend.schedule(vec![stays.clone()])).await;
    assert!(matches!(scheduled[..], [Scheduled::Created(_)]), "{scheduled:?}");
    lock(books).record("keep", stays.id);

    let goes: Vec<_> = (0..3).map(|_| sized(GOES)).collect();
    let names: Vec<_> = goes.iter().map(by_id).collect();
    goes.iter().for_each(|job| lock(books).record("begin", job.id));
    retry(|| backend.schedule(goes.clone())).await;
    retry(|| backend.cancel(&names)).await;
    goes.iter().for_each(|job| lock(books).record("cancel", job.id));
}

async fn write_until(
    what: &str,
    backends: &[&Arc<RabbitBackend>],
    books: &Mutex<Books>,
    is_reached: impl Fn() -> bool,
) {
    let writing = async {
        while !is_reached() {
            for backend in backends {
                write(backend, books).await;
            }
        }
    };
    tokio::time::timeout(CHANGES_TIMEOUT, writing).await.expect(what);
}

async fn found(backend: &RabbitBackend) -> HashSet<JobId> {
    let queue = queue("q");
    let mut found = HashSet::new();
    for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
        let params = BrowseParams::new(&queue, state).limit(10_000).payloads(true);
        let page = backend.browse(params).await.unwrap();
        assert!(state == JobState::Scheduled || page.jobs.is_empty(), "{state:?}");
        for view in page.jobs {
            let (id, bytes) = (view.job.id, view.job.payload);
            assert!(
                !bytes.is_empty() && bytes == payload(id, bytes.len()),
                "{id}: another payload"
            );
            assert!(found.insert(id), "{id} is there twice");
        }
    }
    found
}

/// Expects all accepted jobs, and of the others only jobs whose calls may have taken effect.
async fn assert_kept(backend: &RabbitBackend, books: &Mutex<Books>) {
    let found = found(backend).await;
    let Books { kept, unknown, .. } = &*lock(books);
    assert!(kept.is_subset(&found), "lost: {:?}", kept - &found);
    assert!(found.is_subset(&(kept | unknown)), "cancelled: {:?}", &found - kept);
}

async fn delete_generations(config: &RabbitConfig, numbers: RangeInclusive<u32>) {
    let (_connection, topology) = topology(config);
    topology.delete_generations(numbers.map(Generation::new)).await.unwrap();
}

fn generation(backend: &RabbitBackend) -> u32 {
    backend.log().generation().map_or(0, Generation::number)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_comes_late_to_a_generation_gets_its_replies() {
    let mut config = small("late");
    config.response_timeout = CHANGES_TIMEOUT;
    let books = Mutex::new(Books::default());
    let (late, other) = (open(&config).await, open(&config).await);
    let job = sized(STAYS);
    late.schedule(vec![job.clone()]).await.unwrap();
    let held = late.log().hold_before_next_generation().await;
    write_until("the first change", &[&other], &books, || generation(&other) == 1).await;
    wait_until("its close is read", async || generation(&late) == 1).await;
    let cancelling = tokio::spawn({
        let (late, job) = (Arc::clone(&late), by_id(&job));
        async move { late.cancel(&[job]).await }
    });
    wait_until("the call takes effect", async || {
        let view = other.get(&by_id(&job)).await.unwrap();
        view.is_none_or(|view| view.state != JobState::Scheduled)
    })
    .await;
    assert_eq!((generation(&late), generation(&other)), (1, 1));
    let is_announced = || other.log().announced() == Some(Generation::new(3));
    write_until("the second change", &[&other], &books, is_announced).await;
    assert!(!cancelling.is_finished());
    drop(held);
    let cancelled = tokio::time::timeout(CHANGES_TIMEOUT, cancelling).await;
    let cancelled = cancelled.expect("the reply of the call").unwrap().unwrap();
    assert_eq!(cancelled, [Cancelled::Cancelled]);
    for backend in [&late, &other] {
        assert_kept(backend, &books).await;
    }
}
