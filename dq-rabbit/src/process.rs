//! One process of the application: light, until it has to open the log.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dq_core::Result;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::error::closed;
use crate::member::{Member, MemberContext};
use crate::opening::Opening;
use crate::remote::{NotServed, RemoteClient, Turn};

/// What calls share with the task that opens the log.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) context: MemberContext,
    pub(crate) remote: RemoteClient,
    /// Empty while the process is light.
    pub(crate) member: OnceCell<Member>,
    pub(crate) opening: Opening,
    /// Waits for the turn of this process to open the log.
    pub(crate) turn: Opening,
    pub(crate) is_closed: AtomicBool,
    pub(crate) stop: CancellationToken,
}

impl Process {
    /// Opens the log, unless it is open.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<()> {
        let process = Arc::clone(self);
        self.opening.share(|| async move { process.open_now().await }).await
    }

    async fn open_now(&self) -> Result<()> {
        let opening = async {
            let opened = self.stop.run_until_cancelled(Member::open(&self.context)).await;
            opened.unwrap_or_else(|| Err(closed("connect")))
        };
        match self.member.get_or_try_init(|| opening).await {
            Ok(_) => self.remote.replace().await,
            Err(error) => {
                self.remote.ask_again();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Opens the log, unless another process serves this one by the time that it is its turn. Callers
    /// share one attempt, with the reason and the patience of the first.
    pub(crate) async fn open_in_turn(
        self: &Arc<Self>,
        reason: NotServed,
        patience: Duration,
    ) -> Result<()> {
        let process = Arc::clone(self);
        self.turn.share(|| async move { process.take_turn(reason, patience).await }).await
    }

    async fn take_turn(self: &Arc<Self>, reason: NotServed, patience: Duration) -> Result<()> {
        let waiting = self.remote.wait_for_turn(reason, patience);
        let waiting = self.stop.run_until_cancelled(waiting);
        let Some(turn) = waiting.await.ok_or_else(|| closed("connect"))?? else {
            // If nobody replied before, another process does now.
            self.remote.ask_again();
            return Ok(());
        };
        tracing::info!(?reason, "no process with a replica serves this one, so it opens the log");
        self.open().await?;
        // Until this process serves the others, they would open the log, too.
        tokio::spawn(Arc::clone(self).hold(turn));
        Ok(())
    }

    /// Holds the turn until this process serves.
    async fn hold(self: Arc<Self>, turn: Turn) {
        if let Some(member) = self.member.get() {
            member.server.started().await;
        }
        drop(turn);
    }
}
