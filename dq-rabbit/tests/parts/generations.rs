//! Changes of generation, with faults.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::sync::lock;
use dq_core::{
    Backend, BrowseParams, Cancelled, ErrorKind, Finding, JobId, JobRef, JobState, NewJob,
    Operation, Scheduled, Severity,
};
use dq_servers::{RabbitCluster, RabbitMq, shared_rabbitmq};
use dq_testkit::fixture::{
    blocking, by_id, claim_for, dead_ids, in_an_hour, job, poll, retry, stats, wait_until,
};
use lapin::BasicProperties;
use lapin::options::QueueDeleteOptions;

use super::fixture::{assert_error, config_for, connect, queue, topology};
use crate::RabbitBackend;
use crate::config::{LadderKind, QueueKind, RabbitConfig};
use crate::log::generation::Generation;
use crate::topology::names::DIRECTORY_KEY;

/// Of a change, and of the deletions after some changes.
const STEPS: [&str; 8] =
    ["declared", "closed", "begun", "half", "complete", "announced", "retired", "deleted"];

/// For a child process: its broker, and the step at which it is killed.
const URL: &str = "DQ_RABBIT_TEST_URL";
const STEP: &str = "DQ_RABBIT_TEST_STEP";

const CHANGES_TIMEOUT: Duration = Duration::from_secs(300);

/// Payload sizes of a job that stays, and of a cancelled one.
const STAYS: usize = 1_000;
const GOES: usize = 100_000;

/// Generations are closed after 2 MiB.
fn small(vhost: &str) -> RabbitConfig {
    small_at(shared_rabbitmq().vhost(vhost))
}

fn small_at(url: String) -> RabbitConfig {
    let is_cluster = url.contains(',');
    let mut config = config_for(url);
    if is_cluster {
        // Without one of its nodes, a cluster takes long to declare a stream.
        config.response_timeout = Duration::from_secs(30);
    }
    config.queues = QueueKind::Classic;
    config.ladder = LadderKind::None;
    config.log_size_mib = 16;
    config
}

async fn open(config: &RabbitConfig) -> Arc<RabbitBackend> {
    Arc::new(RabbitBackend::connect(config, &Environment::default()).await.unwrap())
}

type Jobs = HashMap<JobId, Bytes>;

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
    kept: Jobs,
    /// Their calls have not succeeded, so they may be there.
    unknown: Jobs,
    /// For the process that has started this one.
    is_printed: bool,
}

impl Books {
    /// Before the call, because the process may end with it.
    fn begin(&mut self, job: &NewJob) {
        self.print("begin", job.id, job.payload.len());
        self.unknown.insert(job.id, job.payload.clone());
    }

    fn keep(&mut self, id: JobId) {
        self.print("keep", id, 0);
        let payload = self.unknown.remove(&id).unwrap();
        self.kept.insert(id, payload);
    }

    fn cancel(&mut self, id: JobId) {
        self.print("cancel", id, 0);
        self.unknown.remove(&id).unwrap();
    }

    fn print(&self, change: &str, id: JobId, bytes: usize) {
        if self.is_printed {
            println!("{change} {id} {bytes}");
        }
    }

    /// Another process has printed the line.
    fn read(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(change), Some(id), Some(bytes)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let (Ok(id), Ok(bytes)) = (id.parse::<JobId>(), bytes.parse()) else { return };
        match change {
            "begin" => drop(self.unknown.insert(id, payload(id, bytes).into())),
            "keep" => self.keep(id),
            "cancel" => self.cancel(id),
            _ => {}
        }
    }
}

/// 300 KB altogether. Repeats calls, because on a busy machine a process may be far behind.
async fn write(backend: &RabbitBackend, books: &Mutex<Books>) {
    let stays = sized(STAYS);
    lock(books).begin(&stays);
    let scheduled = retry(|| backend.schedule(vec![stays.clone()])).await;
    assert!(matches!(scheduled[..], [Scheduled::Created(_)]), "{scheduled:?}");
    lock(books).keep(stays.id);
    let goes: Vec<_> = (0..3).map(|_| sized(GOES)).collect();
    let names: Vec<_> = goes.iter().map(by_id).collect();
    goes.iter().for_each(|job| lock(books).begin(job));
    retry(|| backend.schedule(goes.clone())).await;
    retry(|| backend.cancel(&names)).await;
    goes.iter().for_each(|job| lock(books).cancel(job.id));
}

/// Writes with these processes in turn.
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

async fn found(backend: &RabbitBackend) -> Jobs {
    let queue = queue("q");
    let mut jobs = Jobs::new();
    for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
        let params = BrowseParams::new(&queue, state).limit(10_000).payloads(true);
        let page = backend.browse(params).await.unwrap();
        assert!(state == JobState::Scheduled || page.jobs.is_empty(), "{state:?}");
        for view in page.jobs {
            let before = jobs.insert(view.job.id, view.job.payload);
            assert_eq!(before, None, "a job is there twice");
        }
    }
    jobs
}

/// Accepted jobs are there with their payloads, and no others except unknown ones.
async fn assert_kept(backend: &RabbitBackend, books: &Mutex<Books>) {
    let found = found(backend).await;
    let books = lock(books);
    for (id, payload) in &books.kept {
        assert!(found.get(id) == Some(payload), "{id} is lost or has another payload");
    }
    for (id, payload) in &found {
        let expected = books.kept.get(id).or_else(|| books.unknown.get(id));
        assert!(expected == Some(payload), "{id} was cancelled or has another payload");
    }
}

fn generation(backend: &RabbitBackend) -> u32 {
    backend.log().generation().map_or(0, Generation::number)
}

/// Writes until it has taken a step. Its drop kills it.
struct DyingProcess(Child);

impl DyingProcess {
    fn start(config: &RabbitConfig, step: &str) -> Self {
        let test = "parts::generations::dying_process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"])
            .env(URL, config.url.expose())
            .env(STEP, step)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn follow(&mut self, books: &Mutex<Books>) {
        for line in BufReader::new(self.0.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "reached" {
                return;
            }
            lock(books).read(&line);
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
    // The harness has begun a line.
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
    println!("reached");
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
#[ignore = "takes minutes; a change on three nodes is also tested by the faults of a cluster"]
async fn on_three_nodes_a_change_outlives_its_process_while_one_is_cut_off() {
    let cluster = Arc::new(blocking(|| RabbitCluster::start(3)).await);
    let hosts: Vec<_> = cluster.nodes().iter().map(|node| node.address()).collect();
    let vhost = |step| {
        let name = format!("kill-{step}");
        cluster.nodes()[0].vhost(&name);
        small_at(format!("amqp://dq:secret@{}/{name}", hosts.join(",")))
    };
    let configs = tokio::task::block_in_place(|| STEPS.map(vhost));
    let cut_off = Arc::clone(&cluster);
    blocking(move || cut_off.partition(2)).await;
    let killing = STEPS.into_iter().zip(&configs);
    let killing = killing.map(|(step, config)| kill_after(step, config.clone()));
    let books = futures_util::future::join_all(killing).await;
    let healed = Arc::clone(&cluster);
    blocking(move || healed.heal()).await;
    for (config, books) in configs.iter().zip(&books) {
        let fresh = open(config).await;
        assert_kept(&fresh, books).await;
    }
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
        lock(&books).begin(&job);
        if processes[0].schedule(vec![job.clone()]).await.is_ok() {
            lock(&books).keep(job.id);
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

/// A single node may lose this with its power.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Declaration,
    Messages,
}

async fn falls_back_after(loss: Loss) {
    let config = small(&format!("fall-back-{loss:?}"));
    let books = Mutex::new(Books::default());
    let process = open(&config).await;
    // It ends before it deletes the generation before.
    let announced = process.log().crash_at("announced");
    let mut kept = Jobs::new();
    let writing = async {
        loop {
            write(&process, &books).await;
            if generation(&process) == 0 {
                kept.clone_from(&lock(&books).kept);
            }
        }
    };
    let until_announced = announced.run_until_cancelled(writing);
    tokio::time::timeout(CHANGES_TIMEOUT, until_announced).await.expect("a change of generation");
    drop(process);

    let (connection, topology) = topology(&config);
    let channel = connection.channel("test").await.unwrap().inner().clone();
    channel.queue_delete("dq.v1.log.1".into(), QueueDeleteOptions::default()).await.unwrap();
    if let Loss::Messages = loss {
        topology.declare_generation(Generation::new(1)).await.unwrap();
    }
    let backends = [open(&config).await, open(&config).await];
    for backend in &backends {
        let found = found(backend).await;
        for (id, payload) in &kept {
            assert!(found.get(id) == Some(payload), "{loss:?}: {id} is lost");
        }
        // No process is left that had read it.
        wait_until("the loss is told", async || self::loss(backend).await.is_some()).await;
    }
    let books = Mutex::new(Books { kept, ..Books::default() });
    let [one, other] = &backends;
    write_until("two more changes", &[one, other], &books, || generation(one) >= 5).await;
    let fresh = open(&config).await;
    let found = found(&fresh).await;
    for (id, payload) in &lock(&books).kept {
        assert!(found.get(id) == Some(payload), "{loss:?}: {id} is lost");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_falls_back_to_the_generation_before_one_that_is_lost() {
    tokio::join!(falls_back_after(Loss::Declaration), falls_back_after(Loss::Messages));
}

async fn loss(backend: &RabbitBackend) -> Option<Finding> {
    backend.check().await.into_iter().find(|finding| finding.code == "rabbitmq.log-lost")
}

/// Cancels are undone, as by `rabbitmqctl delete_queue` of the newest stream.
#[tokio::test(flavor = "multi_thread")]
async fn lost_calls_are_told_by_every_process_until_an_operator_has_seen_it() {
    let config = small("told");
    let books = Mutex::new(Books::default());
    let processes = [open(&config).await, open(&config).await];
    let is_announced = || processes[0].log().announced() == Some(Generation::new(1));
    write_until("a change of generation", &[&processes[0]], &books, is_announced).await;
    assert_eq!(loss(&processes[0]).await, None);
    let cancelled: Vec<_> = {
        let kept = &lock(&books).kept;
        kept.keys().map(|id| JobRef::new(queue("q"), *id)).collect()
    };
    let results = processes[1].cancel(&cancelled).await.unwrap();
    assert!(results.iter().all(|result| *result == Cancelled::Cancelled), "{results:?}");

    let connection = connect(&config);
    let channel = connection.channel("test").await.unwrap().inner().clone();
    channel.queue_delete("dq.v1.log.1".into(), QueueDeleteOptions::default()).await.unwrap();
    let fresh = open(&config).await;
    for backend in processes.iter().chain([&fresh]) {
        wait_until("check finds the loss", async || loss(backend).await.is_some()).await;
    }
    assert_eq!(loss(&fresh).await.unwrap().severity, Severity::Error);
    for backend in &processes {
        let lease = Duration::from_secs(30);
        let told = async || claim_for(&**backend, &["other"], 1, lease).await.err();
        let error = poll("the loss is reported", told).await;
        assert_error(&error, ErrorKind::Internal, &["dq.v1.log.1", "acknowledged", "cancelled"]);
        claim_for(&**backend, &["other"], 1, lease).await.expect("it is reported once");
    }
    let losses = queue("log-losses");
    let notes = dead_ids(&*fresh, &losses).await;
    assert_eq!(notes.len(), 1, "all processes tell of the same loss");
    fresh.operate(Operation::Remove { queue: &losses, jobs: &notes }).await.unwrap();
    for backend in processes.iter().chain([&fresh]) {
        assert_eq!(loss(backend).await, None);
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn old_generations_are_deleted_and_nothing_that_lives_with_them() {
    let config = small("changes");
    let processes = [open(&config).await, open(&config).await, open(&config).await];
    let books = Mutex::new(Books::default());
    let writing = processes.each_ref().map(|backend| async {
        for _ in 0..70 {
            write(backend, &books).await;
        }
    });
    futures_util::future::join_all(writing).await;
    assert_eq!(lock(&books).kept.len(), 3 * 70);
    assert!(lock(&books).unknown.is_empty());
    let fresh = open(&config).await;
    for backend in processes.iter().chain([&fresh]) {
        assert_kept(backend, &books).await;
    }
    let newest = generation(&fresh);
    assert!(newest >= 9, "{newest}");
    // After the grace time.
    let (_connection, topology) = topology(&config);
    for number in 0..newest {
        let has_generation = async || topology.has_generation(Generation::new(number)).await;
        let what = format!("generation {number} is deleted");
        wait_until(&what, async || has_generation().await.is_ok_and(|exists| !exists)).await;
    }
    assert_kept(&*open(&config).await, &books).await;
    let larger = RabbitConfig { log_size_mib: 64, ..config };
    assert_kept(&*open(&larger).await, &books).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_begins_beside_one_whose_directory_has_lost_its_records() {
    let config = small("no-records");
    let books = Mutex::new(Books::default());
    let backend = open(&config).await;
    write(&backend, &books).await;
    let (connection, topology) = topology(&config);
    let channel = connection.channel("test").await.unwrap();
    channel.confirm_select().await.unwrap();
    for _ in 0..40 {
        let (exchange, body) = (topology.names().generations(), vec![0; 60_000]);
        let properties = BasicProperties::default();
        let key = DIRECTORY_KEY.into();
        let sent = channel.publish(exchange, key, true, &body, properties).await.unwrap();
        sent.received().await.unwrap();
    }
    let mut impatient = config.clone();
    impatient.response_timeout = Duration::from_secs(5);
    wait_until("the records are deleted", async || {
        match RabbitBackend::connect(&impatient, &Environment::default()).await {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::Config => {
                assert_error(&error, ErrorKind::Config, &["records"]);
                true
            }
            Err(_) => false,
        }
    })
    .await;
    // The process that knows the log announces it again.
    write_until("a change of generation", &[&backend], &books, || generation(&backend) > 0).await;
    for backend in [&backend, &open(&config).await] {
        assert_kept(backend, &books).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_generation_is_replaced() {
    let config = small("lost");
    let backend = open(&config).await;
    let other = open(&config).await;
    let books = Mutex::new(Books::default());
    write_until("a change of generation", &[&backend], &books, || generation(&backend) > 0).await;
    let connection = connect(&config);
    let channel = connection.channel("test").await.unwrap().inner().clone();
    wait_until("the generation is announced", async || {
        let newest = generation(&*open(&config).await);
        newest == generation(&backend)
    })
    .await;
    for number in 0..=generation(&backend) {
        let name = format!("dq.v1.log.{number}");
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    }
    wait_until("the log is empty", async || {
        backend.stats(&[queue("q")]).await.is_ok_and(|all| all[0].scheduled == 0)
    })
    .await;
    wait_until("a job is stored", async || backend.schedule(vec![sized(10)]).await.is_ok()).await;
    let kept = found(&backend).await;
    assert_eq!(found(&other).await, kept);
    assert_eq!(found(&*open(&config).await).await, kept);
    assert!(generation(&backend) >= 1_000 && generation(&backend).is_multiple_of(2));
}
