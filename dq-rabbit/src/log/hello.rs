//! Says hello: which levels this process understands. Renews that at intervals, ends the hellos of
//! processes that are gone, and raises the level.

use std::sync::Arc;
use std::time::Duration;

use dq_core::Result;

use super::command::{EndHellos, Hello, Raise};
use super::levels::{Admission, LevelSettings};
use super::shared::LogShared;
use super::wire;
use crate::error::LostReply;

/// How long closing waits until the hello is withdrawn. Without that it lapses.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(1);

/// Says hello for as long as `ttl`; zero withdraws the hello.
///
/// # Errors
/// `Incompatible` if this process is too old or too new for the log.
pub(super) async fn say(shared: &LogShared, ttl: Duration) -> Result<()> {
    append(shared, ttl).await?.check(shared.settings.levels.levels)
}

async fn append(shared: &LogShared, ttl: Duration) -> Result<Admission> {
    let levels = shared.settings.levels.levels;
    let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let hello = Hello(wire::Hello { process: shared.process_id, levels, ttl });
    shared.call("connect", LostReply::Unavailable, hello, |_, admission, _| admission).await
}

/// Withdraws the hello, so that it does not hold up a raise.
pub(super) async fn withdraw(shared: &LogShared) {
    let withdrawn = tokio::time::timeout(WITHDRAW_TIMEOUT, say(shared, Duration::ZERO));
    if !matches!(withdrawn.await, Ok(Ok(()))) {
        tracing::debug!("the hello of this process was not withdrawn; it lapses");
    }
}

/// Renews the hello until this task is stopped, until this process is refused, or until the log cannot
/// be read any further.
pub(super) async fn run(shared: Arc<LogShared>) {
    let LevelSettings { levels, renew_every, ttl, .. } = shared.settings.levels;
    // The next level, and since when all live processes understand it.
    let mut raisable = None;
    loop {
        shared.clock.sleep(renew_every).await;
        match append(&shared, ttl).await.map(|admission| admission.check(levels)) {
            Ok(Ok(())) => {}
            Ok(Err(refused)) => return shared.fail(refused),
            Err(_) if shared.fatal_error("connect").is_some() => return,
            // Even `Incompatible` may pass: it comes from the broker, not from the log.
            Err(error) => {
                tracing::debug!(%error, "the hello could not be renewed now");
                continue;
            }
        }
        if let Err(error) = advance(&shared, &mut raisable).await {
            tracing::debug!(%error, "the level could not be raised now");
        }
    }
}

/// Ends the hellos of processes that are gone, and raises the level if it is time.
async fn advance(shared: &LogShared, raisable: &mut Option<(u16, Duration)>) -> Result<()> {
    const OPERATION: &str = "raise the level of the log";
    let now = shared.clock.elapsed();
    let gone = shared.state().replica.levels().lapsed(now);
    if !gone.is_empty() {
        let end = EndHellos(gone);
        shared.call(OPERATION, LostReply::Unavailable, end, |_, (), _| ()).await?;
    }
    let next = shared.state().replica.levels().next_level();
    *raisable = match (next, *raisable) {
        (Some(next), Some((level, since))) if next == level => Some((level, since)),
        (next, _) => next.map(|level| (level, now)),
    };
    if let Some((level, since)) = *raisable
        && now.saturating_sub(since) >= shared.settings.levels.raise_after
    {
        tracing::info!(level, "all processes understand the next level of the log; raising it");
        shared.call(OPERATION, LostReply::Unavailable, Raise(level), |_, (), _| ()).await?;
    }
    Ok(())
}
