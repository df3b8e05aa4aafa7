//! `dq serve --demo`: example queues with jobs that come, run, fail and go.

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

/// Time between operator visits.
const VISITS: Duration = Duration::from_secs(120);

pub(crate) struct Demo {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Demo {
    /// Fills the store, and starts two runners, the feed and the operators.
    pub(crate) async fn start(ops: &Ops) -> Result<Self> {
        let dq = ops.dq();
        let mut feed = Feed::new(dq.clone());
        feed.fill().await?;
        schedules::declare(dq).await?;
        let operators = Operators::new(ops);
        operators.first_round().await?;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        // The second runner serves some of the queues, as another service does.
        for (name, served) in [("shop-1", ALL.as_slice()), ("shop-2", &ALL[..2])] {
            let runner = runner(dq, name, served)?;
            let stopped = wait(stopped.clone());
            tasks.spawn(async move {
                // Ends early only if the store is closed.
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

    /// Stops the runners after their current jobs.
    pub(crate) async fn stop(self) {
        // Fails if all tasks have ended.
        let _ = self.stop.send(true);
        self.tasks.join_all().await;
    }
}

/// Lets the operators work now and then, until dropped.
async fn visits(operators: &Operators) {
    loop {
        tokio::time::sleep(VISITS).await;
        // A job may run before the operator changes it.
        if let Err(error) = operators.next_round().await {
            tracing::debug!(%error, "an operator of the demo was refused");
        }
    }
}

fn runner(dq: &Dq, name: &str, served: &'static [Example]) -> Result<Runner> {
    let runner = dq.runner().without_linked_handlers().name(name).concurrency(24);
    let runner = served.iter().fold(runner, |runner, example| runner.handler(*example));
    Ok(runner.build()?)
}

async fn wait(mut stopped: watch::Receiver<bool>) {
    // An error means the demo is gone.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
