use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dq_core::config::Config;
use dq_core::{Dq, Event, JobId, Result, RunnerBuilder, Verdict};
use dq_forward as _;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A client on a memory store with many quick retries; `toml` is further configuration.
pub(crate) async fn client(toml: &str) -> Dq {
    connect("max_attempts = 100000\n", toml).await
}

pub(crate) async fn client_with_default_attempts(toml: &str) -> Dq {
    connect("", toml).await
}

async fn connect(defaults: &str, toml: &str) -> Dq {
    let toml = format!(
        "[backend]\ntype = \"memory\"\n[defaults]\n{defaults}\
         backoff = {{ initial = \"20ms\", max = \"20ms\", jitter = 0.0 }}\n{toml}"
    );
    Dq::builder().config(Config::from_toml(&toml).unwrap()).connect().await.unwrap()
}

pub(crate) async fn schedule(dq: &Dq, queue: &str, payload: &str) -> JobId {
    let payload = payload.as_bytes().to_vec();
    let scheduled = dq.queue(queue).unwrap().schedule(payload, "application/json").await;
    scheduled.unwrap().id()
}

/// A runner, and the verdicts that the store accepted from it.
pub(crate) struct Running {
    verdicts: mpsc::UnboundedReceiver<(JobId, Verdict)>,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Running {
    pub(crate) fn start(runner: RunnerBuilder) -> Self {
        let (sender, verdicts) = mpsc::unbounded_channel();
        let runner = runner.observer(move |event: &Event<'_>| {
            if let Event::Settled { lease, verdict, .. } = event {
                // The test may have ended.
                let _ = sender.send((lease.job, (*verdict).clone()));
            }
        });
        let runner = runner.build().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = async move { runner.run_until(stopped.cancelled()).await };
        Self { verdicts, stop, task: tokio::spawn(run) }
    }

    pub(crate) async fn next(&mut self) -> (JobId, Verdict) {
        let next = tokio::time::timeout(Duration::from_secs(120), self.verdicts.recv());
        next.await.expect("a job ends").expect("the runner runs")
    }

    pub(crate) async fn next_text(&mut self) -> String {
        match self.next().await.1 {
            Verdict::Done => "done".to_owned(),
            Verdict::Snooze(due) => format!("snooze {due:?}"),
            Verdict::Retry { error, .. } => format!("retry {error}"),
            Verdict::Dead { reason, .. } => format!("dead {reason}"),
            other => format!("{other:?}"),
        }
    }

    /// Schedules jobs over a server crash until 20 runs have failed, so that some jobs outlive the
    /// server. Returns the job ids with their numbers, once all are done.
    pub(crate) async fn done_over_a_crash(
        &mut self,
        schedule: impl AsyncFn(usize) -> JobId,
        kill: impl FnOnce() + Send + 'static,
        restart: impl FnOnce() + Send + 'static,
    ) -> BTreeMap<String, usize> {
        const BEFORE: usize = 100;
        let mut jobs = BTreeMap::new();
        for job in 0..BEFORE {
            jobs.insert(schedule(job).await.to_string(), job);
        }
        let (mut done, mut failed, mut last_error) = (0, 0, String::new());
        let mut count = |verdict: Verdict| {
            match verdict {
                Verdict::Done => done += 1,
                Verdict::Retry { error, .. } => {
                    failed += 1;
                    last_error = error.to_string();
                }
                verdict => panic!("{verdict:?}"),
            }
            (done, failed, last_error.clone())
        };
        loop {
            let (done, ..) = count(self.next().await.1);
            if done >= BEFORE / 4 {
                break;
            }
        }
        let deadline = Instant::now() + Duration::from_secs(300);
        let in_time = |error: &str| {
            assert!(Instant::now() < deadline, "not all are done; the last error: {error}");
        };
        let killed = tokio::task::spawn_blocking(kill);
        loop {
            jobs.insert(schedule(jobs.len()).await.to_string(), jobs.len());
            let (_, failed, error) = count(self.next().await.1);
            in_time(&error);
            if failed >= 20 {
                break;
            }
        }
        killed.await.unwrap();
        tokio::task::spawn_blocking(restart).await.unwrap();
        loop {
            let (done, _, error) = count(self.next().await.1);
            in_time(&error);
            if done == jobs.len() {
                return jobs;
            }
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}
