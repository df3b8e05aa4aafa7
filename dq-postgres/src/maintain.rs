//! Work that no call waits for: trims histories and gates, adds up totals, raises the queues'
//! floors, and looks behind the bounds of claims.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::sync::lock;
use dq_core::{QueueName, Result};
use tokio_postgres::types::Type;

use crate::connect::Param;
use crate::error::unexpected;
use crate::store::Store;

const INTERVAL: Duration = Duration::from_secs(1);

/// Trims begin where the last one ended, because an old snapshot keeps the removed entries. Jobs of
/// a transaction that was committed after the trim wait for the next one from the beginning.
const TRIM_ALL_INTERVAL: Duration = Duration::from_secs(3600);

const FOLD_INTERVAL: Duration = Duration::from_secs(60);

/// A floor follows the bound by this many milliseconds, so that it is rarely written.
const FLOOR_LAG: i64 = 60_000;

/// Runs until the task is aborted.
pub(crate) async fn run(store: Arc<Store>) {
    let mut folded = Instant::now();
    let mut trimmed_all = Instant::now();
    let mut trimmed_to = HashMap::new();
    let mut floors = HashMap::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let mut ended = std::mem::take(&mut *lock(&store.ended));
        let folds = folded.elapsed() >= FOLD_INTERVAL;
        if folds {
            // Other programs end jobs, too.
            ended.extend(lock(&store.bounds).queues.keys().cloned());
        }
        let mut maintained = trim(&store, ended, &mut trimmed_to).await;
        if folds {
            for sql in ["SELECT dq.fold_tally()", "SELECT dq.trim_gates()"] {
                maintained = maintained.and(store.change(sql, &[]).await.map(drop));
            }
            folded = Instant::now();
        }
        if trimmed_all.elapsed() >= TRIM_ALL_INTERVAL {
            trimmed_all = Instant::now();
            trimmed_to.clear();
        }
        maintained = maintained.and(raise_floors(&store, &mut floors).await);
        if lock(&store.bounds).needs_slow_full() {
            maintained = maintained.and(store.look_behind_bounds().await);
        }
        if let Err(error) = maintained {
            tracing::debug!(%error, "maintenance goes on later");
        }
    }
}

/// Each call handles up to 1,000 rows.
const TRIMS: [&str; 2] = [
    "SELECT next_at, more FROM dq.trim_history($1, $2, 1000)",
    "SELECT next_at, more FROM dq.remove_pins($1, $2, 1000)",
];

/// Maximum calls of each trim, per queue and round.
const MAX_CALLS: usize = 20;

/// Where a queue's next trims begin; `None`: a minute ago.
type TrimStarts = [Option<i64>; TRIMS.len()];

const BEGINNING: TrimStarts = [Some(i64::MIN); TRIMS.len()];

async fn trim(
    store: &Store,
    queues: HashSet<QueueName>,
    trimmed_to: &mut HashMap<QueueName, TrimStarts>,
) -> Result<()> {
    let mut trimmed = Ok(());
    for queue in queues {
        let starts = trimmed_to.entry(queue.clone()).or_insert(BEGINNING);
        for (sql, start) in TRIMS.into_iter().zip(starts) {
            trimmed = trimmed.and(trim_queue(store, sql, &queue, start).await);
        }
    }
    trimmed
}

/// Each call is a transaction, and a later round goes on where the last call stopped. If a round's
/// first call fails, perhaps because it reads too many removed entries, the next round begins a
/// minute ago; the rest waits for [`TRIM_ALL_INTERVAL`].
async fn trim_queue(
    store: &Store,
    sql: &str,
    queue: &QueueName,
    start: &mut Option<i64>,
) -> Result<()> {
    for call in 0..MAX_CALLS {
        let params: [Param<'_>; 2] = [(&queue.as_str(), Type::TEXT), (&*start, Type::INT8)];
        let trimmed = store.change(sql, &params).await.and_then(|rows| {
            let row = rows.first().ok_or_else(unexpected)?;
            let (Ok(next), Ok(more)) = (row.try_get(0), row.try_get::<_, bool>(1)) else {
                return Err(unexpected());
            };
            Ok((next, more))
        });
        match trimmed {
            Ok((next, more)) => {
                *start = Some(next);
                if !more {
                    break;
                }
            }
            Err(error) => {
                if call == 0 {
                    *start = None;
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

async fn raise_floors(store: &Store, floors: &mut HashMap<QueueName, i64>) -> Result<()> {
    let (mut queues, mut raised) = (Vec::new(), Vec::new());
    let (mut expired, mut rewinds) = (Vec::new(), Vec::new());
    for (queue, bounds) in &lock(&store.bounds).queues {
        let Some((waiting, _)) = bounds.waiting else { continue };
        let floor = waiting.saturating_sub(FLOOR_LAG);
        let known = floors.get(queue).copied().unwrap_or(i64::MIN);
        if floor > known.saturating_add(FLOOR_LAG) {
            floors.insert(queue.clone(), floor);
            queues.push(queue.as_str().to_owned());
            raised.push(floor);
            expired.push(bounds.expired.map(|at| at.saturating_sub(FLOOR_LAG)));
            rewinds.push(bounds.last_rewind);
        }
    }
    if queues.is_empty() {
        return Ok(());
    }
    let params: [Param<'_>; 4] = [
        (&queues, Type::TEXT_ARRAY),
        (&raised, Type::INT8_ARRAY),
        (&expired, Type::INT8_ARRAY),
        (&rewinds, Type::INT8_ARRAY),
    ];
    store.change("SELECT dq.raise_floors($1, $2, $3, $4)", &params).await.map(drop)
}
