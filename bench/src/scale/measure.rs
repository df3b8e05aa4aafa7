//! The measurements at a given number of pending jobs.

use std::time::{Duration, Instant};

use dq::backend::{Backend, Cancelled, ClaimParams, Settlement, Want};
use dq::{Dq, Due, JobRef, QueueName, Timestamp, Verdict};
use serde::Serialize;

use crate::idle::beside_idle_runner;
use crate::measure::{Plan, Result, Stopwatch, Times, millis, progress, rate, resident};
use crate::probe::Probe;
use crate::store::Store;
use crate::workload::{self, BULK, PAYLOAD, Workload, fill, now};

/// Milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Quantiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl From<Times> for Quantiles {
    fn from(times: Times) -> Self {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| times.millis_at(share));
        Self { p50, p99, max }
    }
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Point {
    pub(super) pending: usize,
    /// Jobs stored per second, in calls of [`BULK`], since the previous point.
    pub(super) bulk_rate: f64,
    /// Growth of the store in bytes per pending job.
    pub(super) store_bytes: f64,
    /// Growth of this process in bytes per pending job.
    pub(super) process_bytes: f64,
    pub(super) server_resident: u64,
    pub(super) schedule: Quantiles,
    pub(super) cancel: Quantiles,
    /// Milliseconds for one due job.
    pub(super) claim_and_settle: Quantiles,
    pub(super) stats: Quantiles,
    /// Milliseconds from due time to start, through the runner.
    pub(super) lateness: Quantiles,
    pub(super) idle: Idle,
}

/// The extra cost of an idle runner, compared to a client without one.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Idle {
    /// Process CPU, in ms per second.
    pub(super) process_cpu: f64,
    /// Server CPU, in ms per second; `None` if unknown.
    pub(super) server_cpu: Option<f64>,
    /// Server commands per second, including scripts'; `None` if not counted.
    pub(super) commands: Option<f64>,
}

pub(super) async fn points(
    plan: &Plan,
    store: &Store,
    queues: usize,
    steps: &[usize],
) -> Result<Vec<Point>> {
    let mut url = store.fresh()?;
    if store.rabbit().is_ok() {
        // A fifth of the log is for jobs, some 300 bytes each.
        url += "?log_size_mib=8192";
    }
    let dq = Dq::connect(&url).await?;
    let mut growing = GrowingStore::new(plan, &dq, store, workload::queues(queues)).await?;
    let mut points = Vec::new();
    for pending in steps {
        points.push(growing.measure(*pending).await?);
    }
    dq.close().await?;
    Ok(points)
}

/// A store that gets more and more pending jobs.
struct GrowingStore<'a> {
    plan: &'a Plan,
    dq: &'a Dq,
    store: &'a Store,
    queues: Vec<QueueName>,
    workload: Workload,
    /// Jobs stored so far for later.
    pending: usize,
    empty_store_bytes: f64,
    empty_process_bytes: u64,
}

impl<'a> GrowingStore<'a> {
    /// Claims one job first, so that scripts and queues of the first calls count as empty.
    async fn new(
        plan: &'a Plan,
        dq: &'a Dq,
        store: &'a Store,
        queues: Vec<QueueName>,
    ) -> Result<Self> {
        let workload = Workload::with_seed(21).payloads(PAYLOAD).spread_over(queues.clone());
        let (pending, empty_store_bytes, empty_process_bytes) = (0, 0.0, 0);
        let mut growing = Self {
            plan,
            dq,
            store,
            queues,
            workload,
            pending,
            empty_store_bytes,
            empty_process_bytes,
        };
        growing.claim_and_settle(1).await?;
        growing.empty_store_bytes = store.bytes()?;
        growing.empty_process_bytes = resident("self");
        Ok(growing)
    }

    /// Fills the store up to `pending` jobs and measures it.
    async fn measure(&mut self, pending: usize) -> Result<Point> {
        let calls = self.plan.full_or_quick(1_000, 20);
        let bulk_rate = self.fill(pending).await?;
        let store_bytes = (self.store.bytes()? - self.empty_store_bytes) / pending as f64;
        let process_grown = resident("self").saturating_sub(self.empty_process_bytes);
        let [schedule, cancel] = self.schedule_and_cancel(calls).await?;
        let claim_and_settle = self.claim_and_settle(calls).await?;
        let stats = self.stats(calls.min(50)).await?;
        let lateness = self.lateness(calls).await?;
        let idle = self.idle().await?;
        progress(format_args!(
            "{pending} pending: {bulk_rate:.0} stored/s, late by {:.2} ms (p99)",
            lateness.p99
        ));
        Ok(Point {
            pending,
            bulk_rate,
            store_bytes,
            process_bytes: process_grown as f64 / pending as f64,
            server_resident: self.store.server_resident(),
            schedule,
            cancel,
            claim_and_settle,
            stats,
            lateness,
            idle,
        })
    }

    /// Stores jobs up to `pending`, due at random within a week from tomorrow. Returns the rate.
    async fn fill(&mut self, pending: usize) -> Result<f64> {
        let (from, workload) = (tomorrow(), &mut self.workload);
        let jobs = pending.saturating_sub(self.pending);
        let spent = fill(&**self.dq.backend(), jobs, |bulk| workload.random(from, bulk)).await?;
        self.pending += jobs;
        Ok(rate(jobs, spent))
    }

    async fn schedule_and_cancel(&mut self, calls: usize) -> Result<[Quantiles; 2]> {
        let backend = self.dq.backend();
        let (mut scheduled, mut cancelled) = (Vec::new(), Vec::new());
        let mut jobs = Vec::new();
        for _call in 0..calls {
            let job = self.workload.random(tomorrow(), 1);
            jobs.extend(job.iter().map(|job| JobRef::new(job.queue.clone(), job.id)));
            let begin = Instant::now();
            let _ = backend.schedule(job).await?;
            scheduled.push(begin.elapsed());
        }
        for job in &jobs {
            let begin = Instant::now();
            let answers = backend.cancel(std::slice::from_ref(job)).await?;
            cancelled.push(begin.elapsed());
            if answers != [Cancelled::Cancelled] {
                return Err(format!("{job:?} was not cancelled: {answers:?}").into());
            }
        }
        Ok([scheduled, cancelled].map(|times| Times::new(times).into()))
    }

    async fn claim_and_settle(&mut self, calls: usize) -> Result<Quantiles> {
        let backend = self.dq.backend();
        let mut times = Vec::new();
        for _call in 0..calls {
            let mut job = self.workload.job(now());
            job.due = Due::NOW;
            let id = job.id;
            let wants = [Want::new(job.queue.clone(), 1, Duration::from_secs(60))];
            let _ = backend.schedule(vec![job]).await?;
            let begin = Instant::now();
            let claimed = backend.claim(ClaimParams::new(&wants, 1, "scale")).await?;
            let Some(leased) = claimed.jobs.first().filter(|leased| leased.job.id == id) else {
                return Err(format!("{id} is due, and was not claimed: {claimed:?}").into());
            };
            backend.settle(&[Settlement::new(leased.lease(), Verdict::Done)]).await?;
            times.push(begin.elapsed());
        }
        Ok(Times::new(times).into())
    }

    async fn stats(&self, calls: usize) -> Result<Quantiles> {
        let mut times = Vec::new();
        for _call in 0..calls {
            let begin = Instant::now();
            let stats = self.dq.backend().stats(&[]).await?;
            times.push(begin.elapsed());
            let live: u64 = stats.iter().map(dq::QueueStats::live).sum();
            if live != self.pending as u64 {
                return Err(format!("{live} jobs are live instead of {}", self.pending).into());
            }
        }
        Ok(Times::new(times).into())
    }

    /// Jobs 10 ms apart.
    async fn lateness(&self, jobs: usize) -> Result<Quantiles> {
        let first = now() + Duration::from_secs(2);
        let handles: Vec<_> =
            self.queues.iter().map(|queue| self.dq.queue(queue)).collect::<dq::Result<_>>()?;
        for from in (0..jobs).step_by(BULK) {
            let job = |job: usize| {
                let due = first + Duration::from_millis(10 * job as u64);
                // An empty JSON string. Neighbours are in different queues.
                handles[job % handles.len()].schedule("\"\"", "application/json").at(due)
            };
            self.dq.schedule_many((from..jobs.min(from + BULK)).map(job)).await?;
        }
        if now() > first && !self.plan.quick {
            return Err("the first job was due before the last was stored".into());
        }
        let probe = Probe::timing(jobs).serving(self.queues.clone());
        let dq = self.dq.clone();
        let running = probe.clone();
        tokio::spawn(async move { running.run(&dq).await.map(drop) }).await??;
        Ok(probe.lateness().into())
    }

    /// Observes the client without a runner, then with a runner whose next job is due tomorrow.
    async fn idle(&self) -> Result<Idle> {
        // Covers the runner's announcements, one every 15 s.
        let window = self.plan.full_or_quick(Duration::from_secs(31), Duration::from_secs(1));
        let without = self.observe(window).await?;
        let probe = Probe::counting(usize::MAX).serving(self.queues.clone());
        let startup = Duration::from_secs(1);
        let with = beside_idle_runner(self.dq, probe, startup, self.observe(window)).await?;
        let more = |with: Option<f64>, without: Option<f64>| Some(with? - without?);
        Ok(Idle {
            process_cpu: with.process_cpu - without.process_cpu,
            server_cpu: more(with.server_cpu, without.server_cpu),
            commands: more(with.commands, without.commands),
        })
    }

    async fn observe(&self, window: Duration) -> Result<Idle> {
        let look = || {
            let commands = self.store.info("total_commands_processed").ok();
            Result::Ok((self.store.cpu()?.map(millis), commands))
        };
        let (server_cpu, commands) = look()?;
        let watch = Stopwatch::start();
        tokio::time::sleep(window).await;
        let (seconds, process_cpu) = (watch.wall().as_secs_f64(), millis(watch.cpu()));
        let (server_cpu_after, commands_after) = look()?;
        let per_second =
            |after: Option<f64>, before: Option<f64>| Some((after? - before?) / seconds);
        Ok(Idle {
            process_cpu: process_cpu / seconds,
            server_cpu: per_second(server_cpu_after, server_cpu),
            commands: per_second(commands_after, commands),
        })
    }
}

fn tomorrow() -> Timestamp {
    now() + Duration::from_secs(86_400)
}
