//! What light processes cost beside those with a replica: memory, time to connect, and the broker's
//! CPU time. Measures, so it runs only by hand:
//!
//! ```text
//! cargo test --release -p dq-rabbit --test light_cost -- --ignored --nocapture processes
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use dq_core::config::Environment;
use dq_core::{Backend, Clock, Due, Entropy, NewJob, QueueName, SystemClock};
use dq_rabbit::{RabbitBackend, RabbitConfig, ReplicaMode};
use dq_servers::RabbitMq;

/// Jobs that wait.
const PENDING: usize = 100_000;
/// Processes that schedule.
const PROCESSES: usize = 50;
/// Jobs that they schedule each second, together.
const RATE: usize = 50;
/// How long they do.
const WINDOW: Duration = Duration::from_secs(20);

/// Set for a child process: the URL of the broker, and `lazy` or `eager`.
const CHILD: &str = "DQ_LIGHT_COST";

fn config(url: &str, replica: ReplicaMode) -> RabbitConfig {
    let mut config = RabbitConfig::new(url);
    config.replica = replica;
    config.response_timeout = Duration::from_secs(60);
    config
}

fn jobs(count: usize) -> Vec<NewJob> {
    let entropy = Entropy::from_os();
    let queue = QueueName::new("q").unwrap();
    let payload = bytes::Bytes::from_static(&[b'x'; 100]);
    let due = Due::After(Duration::from_secs(86_400));
    (0..count)
        .map(|_| {
            NewJob::new(entropy.job_id(SystemClock.now()), queue.clone(), due, payload.clone())
        })
        .collect()
}

/// Resident memory of a process in MiB.
fn resident_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// CPU time of a process so far, in milliseconds.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // `utime` and `stime`, in ticks of 10 ms.
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

/// A child process: connects, says how long that took, and schedules a job for each line of its
/// input.
#[tokio::test(flavor = "current_thread")]
#[ignore = "a part of the measurement"]
async fn child() {
    let Ok(settings) = std::env::var(CHILD) else { return };
    let (url, mode) = settings.rsplit_once(' ').unwrap();
    let replica = if mode == "lazy" { ReplicaMode::Lazy } else { ReplicaMode::Eager };
    let started = Instant::now();
    let backend =
        RabbitBackend::connect(&config(url, replica), &Environment::default()).await.unwrap();
    assert_eq!(backend.is_light(), replica == ReplicaMode::Lazy);
    println!("\nconnected {}", started.elapsed().as_micros());
    let (lines, mut requests) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            lines.send(line.unwrap()).ok();
        }
    });
    while requests.recv().await.is_some() {
        let called = Instant::now();
        let _ = backend.schedule(jobs(1)).await.unwrap();
        println!("\ncalled {}", called.elapsed().as_micros());
    }
    backend.close().await.unwrap();
}

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(url: &str, mode: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child", "--nocapture"])
            .env(CHILD, format!("{url} {mode}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The number of microseconds that the child prints next after this word.
    fn read(&mut self, word: &str) -> u64 {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the child has ended");
            if let Some(micros) = line.trim().strip_prefix(word) {
                return micros.trim().parse().unwrap();
            }
        }
    }

    fn schedule(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn stop(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for minutes"]
async fn processes() {
    let server = RabbitMq::start();
    server.eval("vm_memory_monitor:set_vm_memory_high_watermark({absolute, \"4GB\"})");
    let url = server.url();
    let broker: u32 = server
        .eval("list_to_binary(os:getpid()).")
        .chars()
        .filter(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap();
    let backend =
        RabbitBackend::connect(&config(&url, ReplicaMode::Eager), &Environment::default())
            .await
            .unwrap();
    // As a runner does.
    let _wakeups = backend.listen(&[QueueName::new("q").unwrap()]).await.unwrap();
    for _ in 0..PENDING / 5_000 {
        let _ = backend.schedule(jobs(5_000)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    println!("{PENDING} jobs wait");
    for mode in ["lazy", "eager"] {
        let mut times = Vec::new();
        let mut memory = 0;
        for _ in 0..5 {
            let mut process = Process::start(&url, mode);
            times.push(process.read("connected"));
            std::thread::sleep(Duration::from_secs(1));
            memory = resident_mib(process.child.id());
            process.stop();
        }
        println!("{mode}: connect {} µs (median of 5), {memory} MiB", median(times));
    }
    for mode in ["none", "lazy", "eager"] {
        let count = if mode == "none" { 0 } else { PROCESSES };
        // One after the other: those with a replica keep the machine busy while they connect.
        let mut processes = Vec::new();
        for _ in 0..count {
            let mut process = Process::start(&url, mode);
            process.read("connected");
            processes.push(process);
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (cpu, began) = (cpu_ms(broker), Instant::now());
        let mut latencies = Vec::new();
        let ticks = RATE * WINDOW.as_secs() as usize;
        for tick in 0..ticks {
            let at = Duration::from_secs(1) * tick as u32 / RATE as u32;
            tokio::time::sleep(at.saturating_sub(began.elapsed())).await;
            if processes.is_empty() {
                let _ = backend.schedule(jobs(1)).await.unwrap();
            } else {
                processes[tick % count].schedule();
            }
        }
        for tick in 0..if count == 0 { 0 } else { ticks } {
            latencies.push(processes[tick % count].read("called"));
        }
        let (cpu, elapsed) = (cpu_ms(broker) - cpu, began.elapsed());
        let share = cpu as f64 / elapsed.as_millis() as f64 * 100.0;
        let memory: u64 = processes.iter().map(|process| resident_mib(process.child.id())).sum();
        println!(
            "{mode}: {count} processes, {memory} MiB in all, {:.0} jobs/s: broker {share:.0} % of a \
             core, {:.1} ms per job, {} MiB; call {} µs (median)",
            ticks as f64 / elapsed.as_secs_f64(),
            cpu as f64 / ticks as f64,
            resident_mib(broker),
            if latencies.is_empty() { 0 } else { median(latencies) },
        );
        processes.into_iter().for_each(Process::stop);
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    backend.close().await.unwrap();
}
