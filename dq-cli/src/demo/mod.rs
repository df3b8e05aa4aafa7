//! `dq serve --demo`: example queues in which jobs come, run, fail and go.

mod feed;
mod handlers;
mod operators;
mod schedules;

use std::time::Duration;

use dq_core::{Dq, Runner};
use dq_ops::Ops;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::failure::Result;
use feed::Feed;
use handlers::{ALL, Example};
use operators::Operators;

/// Time between two visits of the operators.
const VISITS: Duration = Duration::from_secs(120);

/// The tasks of a demo.
pub(crate) struct Demo {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Demo {
    /// Fills the store, and starts two runners, what adds jobs, and operators.
    pub(crate) async fn start(ops: &Ops) -> Result<Self> {
        let dq = ops.dq();
        let mut feed = Feed::new(dq.clone());
        feed.fill().await?;
        schedules::declare(dq).await?;
        let operators = Operators::new(ops);
        operators.prepare().await?;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        // The second runner serves a part of the queues, as a service of its own would.
        for (name, served) in [("shop-1", ALL.as_slice()), ("shop-2", &ALL[..2])] {
            let runner = runner(dq, name, served)?;
            let stopped = wait(stopped.clone());
            tasks.spawn(async move {
                // It ends early only if the store is closed.
                let _ = runner.run_until(stopped).await;
            });
        }
        let stopped = wait(stopped);
        tasks.spawn(async move {
            tokio::select! {
                () = feed.run() => {}
                () = visits(&operators) => {}
                () = stopped => {}
            }
        });
        Ok(Self { tasks, stop })
    }

    /// Stops the runners, after the jobs in progress.
    pub(crate) async fn stop(self) {
        // Fails if all tasks have ended.
        let _ = self.stop.send(true);
        self.tasks.join_all().await;
    }
}

/// Lets the operators do something now and then, until it is dropped.
async fn visits(operators: &Operators) {
    loop {
        tokio::time::sleep(VISITS).await;
        // A job that they look at may run before they change it.
        if let Err(error) = operators.work().await {
            tracing::debug!(%error, "an operator of the demo was refused");
        }
    }
}

fn runner(dq: &Dq, name: &str, served: &'static [Example]) -> Result<Runner> {
    let runner = dq.runner().without_linked_handlers().name(name).concurrency(24);
    let runner = served.iter().fold(runner, |runner, example| runner.handler(*example));
    Ok(runner.build()?)
}

/// Completes when the demo is to stop.
async fn wait(mut stopped: watch::Receiver<bool>) {
    // An error means that the demo is gone.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
