//! A runner with forwards, and the verdicts on its jobs.

// Each test binary uses a part of it.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use dq_core::config::Config;
use dq_core::{Dq, Event, JobId, Result, RunnerBuilder, Verdict};
use dq_forward as _;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A client of a memory store; `text` is the rest of the configuration. Retries come soon, and there are
/// many of them.
pub(crate) async fn client(text: &str) -> Dq {
    let text = format!(
        "[backend]\ntype = \"memory\"\n[defaults]\nmax_attempts = 100000\n\
         backoff = {{ initial = \"20ms\", max = \"20ms\", jitter = 0.0 }}\n{text}"
    );
    Dq::builder().config(Config::from_toml(&text).unwrap()).connect().await.unwrap()
}

/// Schedules a payload of JSON that is due now.
pub(crate) async fn schedule(dq: &Dq, queue: &str, payload: &str) -> JobId {
    let payload = payload.as_bytes().to_vec();
    let scheduled = dq.queue(queue).unwrap().schedule(payload, "application/json").await;
    scheduled.unwrap().id()
}

/// A runner in the background.
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

    /// The next verdict that the store has accepted.
    pub(crate) async fn next(&mut self) -> (JobId, Verdict) {
        let verdict = tokio::time::timeout(Duration::from_secs(120), self.verdicts.recv());
        verdict.await.expect("a job ends").expect("the runner runs")
    }

    /// The error or the reason of the next verdict, after its name.
    pub(crate) async fn next_text(&mut self) -> String {
        match self.next().await.1 {
            Verdict::Done => "done".to_owned(),
            Verdict::Snooze(due) => format!("snooze {due:?}"),
            Verdict::Retry { error, .. } => format!("retry {error}"),
            Verdict::Dead { reason, .. } => format!("dead {reason}"),
            other => format!("{other:?}"),
        }
    }

    /// Waits until `jobs` are done. Kills the server when a quarter of them is, and restarts it after 20
    /// failures. Returns the number of failures, each of which is retried.
    pub(crate) async fn done_over_a_crash(
        &mut self,
        jobs: usize,
        kill: impl FnOnce(),
        restart: impl FnOnce(),
    ) -> usize {
        let (mut kill, mut restart) = (Some(kill), Some(restart));
        let (mut done, mut failed, mut last_error) = (0, 0, String::new());
        let deadline = Instant::now() + Duration::from_secs(300);
        while done < jobs {
            assert!(
                Instant::now() < deadline,
                "{done} of {jobs} are done; the last error: {last_error}"
            );
            match self.next().await.1 {
                Verdict::Done => done += 1,
                Verdict::Retry { error, .. } => {
                    failed += 1;
                    last_error = error.to_string();
                }
                verdict => panic!("{verdict:?}"),
            }
            if done == jobs / 4
                && let Some(kill) = kill.take()
            {
                kill();
            } else if failed == 20
                && let Some(restart) = restart.take()
            {
                tokio::task::block_in_place(restart);
            }
        }
        failed
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}
