//! `dq serve --demo`: example queues with jobs that come, run, fail and go.

mod feed;
mod handlers;
mod operators;
mod schedules;

use dq_core::{Dq, Runner};
use dq_ops::Ops;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use feed::Feed;
use handlers::{ALL, Example};

pub(crate) struct Demo {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Demo {
    pub(crate) async fn start(ops: &Ops) -> Result<Self> {
        let dq = ops.dq();
        let mut feed = Feed::new(dq.clone());
        feed.fill().await?;
        schedules::declare(dq).await?;
        operators::act(ops).await?;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        // The second runner serves some of the queues, as another service does.
        for (name, served) in [("shop", ALL.as_slice()), ("warehouse", &ALL[..2])] {
            let runner = runner(dq, name, served)?;
            let stopped = stop.clone().cancelled_owned();
            tasks.spawn(async move {
                // The runner ends early only if the store is closed.
                let _ = runner.run_until(stopped).await;
            });
        }
        let stopped = stop.clone();
        tasks.spawn(async move {
            let _ = stopped.run_until_cancelled(feed.run()).await;
        });
        Ok(Self { tasks, stop })
    }

    /// Stops the runners after their current jobs.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.join_all().await;
    }
}

fn runner(dq: &Dq, name: &str, served: &'static [Example]) -> Result<Runner> {
    let runner = dq.runner().without_linked_handlers().name(name).concurrency(24);
    let runner = served.iter().fold(runner, |runner, example| runner.handler(*example));
    Ok(runner.build()?)
}
