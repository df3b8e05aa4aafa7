//! Processes and brokers are killed during a change.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use dq_core::Backend;
use dq_core::config::Environment;
use dq_core::sync::lock;
use dq_servers::RabbitMq;
use dq_testkit::fixture::{blocking, stats, wait_until};

use super::{
    Books, CHANGES_TIMEOUT, STAYS, assert_kept, generation, open, sized, small, small_at, write,
    write_until,
};
use crate::RabbitBackend;
use crate::config::RabbitConfig;
use crate::parts::fixture::queue;

/// The steps of a change, and of the deletions after some changes.
const STEPS: [&str; 8] =
    ["declared", "closed", "begun", "half", "complete", "announced", "retired", "deleted"];

const URL: &str = "DQ_RABBIT_TEST_URL";
const STEP: &str = "DQ_RABBIT_TEST_STEP";

/// Writes until it has taken a step. Its drop kills it.
struct DyingProcess(Child);

impl DyingProcess {
    fn start(config: &RabbitConfig, step: &str) -> Self {
        let test = "parts::generations::kills::dying_process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"])
            .env(URL, config.url.expose())
            .env(STEP, step)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Records what the process prints until it has reached the step.
    fn follow(&mut self, books: &Mutex<Books>) {
        for line in BufReader::new(self.0.stdout.take().unwrap()).lines() {
            match line.unwrap().split_once(' ') {
                Some(("reached", _)) => return,
                // The test harness prints other lines.
                Some((change, id)) => {
                    if let Ok(id) = id.parse() {
                        lock(books).record(change, id);
                    }
                }
                None => {}
            }
        }
        panic!("the process has ended");
    }
}

impl Drop for DyingProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "other tests start this as a process, and kill it"]
async fn dying_process() {
    let url = std::env::var(URL).expect("this test is started by another test");
    let step = std::env::var(STEP).unwrap();
    let step = STEPS.into_iter().find(|known| *known == step).unwrap();
    println!();
    let config = small_at(url);
    let backend = RabbitBackend::connect(&config, &Environment::default()).await.unwrap();
    let reached = backend.log().crash_at(step);
    let books = Mutex::new(Books { is_printed: true, ..Books::default() });
    let writing = reached.run_until_cancelled(async {
        loop {
            write(&backend, &books).await;
        }
    });
    tokio::time::timeout(CHANGES_TIMEOUT, writing).await.expect("the step is reached");
    println!("reached {step}");
    tokio::time::sleep(CHANGES_TIMEOUT).await;
}

async fn kill_after(step: &'static str, config: RabbitConfig) -> Arc<Mutex<Books>> {
    let books = Arc::new(Mutex::new(Books::default()));
    let survivor = open(&config).await;
    let (dying_config, dying_books) = (config.clone(), Arc::clone(&books));
    blocking(move || DyingProcess::start(&dying_config, step).follow(&dying_books)).await;

    let late = open(&config).await;
    let target = generation(&survivor) + 5;
    let has_changed = || generation(&survivor) >= target;
    write_until("the changes that follow", &[&survivor, &late], &books, has_changed).await;
    let fresh = open(&config).await;
    for backend in [&survivor, &late, &fresh] {
        assert_kept(backend, &books).await;
    }
    assert_eq!(stats(&*fresh, "q").await, stats(&*survivor, "q").await);
    // The last job and the cancelled ones of the killed process.
    assert!(lock(&books).unknown.len() <= 4, "a call of a process that runs has failed");
    for backend in [survivor, late, fresh] {
        backend.close().await.unwrap();
    }
    books
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_generation_outlives_its_process_after_each_step() {
    // At once, because some steps make another process wait.
    let killing = STEPS.map(|step| kill_after(step, small(&format!("kill-{step}"))));
    futures_util::future::join_all(killing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_after_a_change_loses_no_job() {
    let server = Arc::new(blocking(RabbitMq::start).await);
    let config = small_at(server.url());
    let books = Mutex::new(Books::default());
    let processes = [open(&config).await, open(&config).await];
    server.sync_declarations();
    for _ in 0..2 {
        let before = generation(&processes[0]);
        let writing = async {
            loop {
                write(&processes[1], &books).await;
            }
        };
        let changed = wait_until("the generation changes", async || {
            write(&processes[0], &books).await;
            generation(&processes[0]) > before
        });
        tokio::select! {
            () = writing => {}
            () = changed => {}
        }
        // The broker has confirmed this call when it is killed.
        let job = sized(STAYS);
        lock(&books).record("begin", job.id);
        if processes[0].schedule(vec![job.clone()]).await.is_ok() {
            lock(&books).record("keep", job.id);
        }
        let server = Arc::clone(&server);
        blocking(move || {
            server.kill();
            server.restart();
        })
        .await;
        wait_until("the log can be written", async || {
            processes[0].stats(&[queue("q")]).await.is_ok()
        })
        .await;
    }
    let fresh = open(&config).await;
    for backend in processes.iter().chain([&fresh]) {
        assert_kept(backend, &books).await;
    }
}
