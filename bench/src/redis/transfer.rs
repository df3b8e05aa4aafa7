//! Time of one claim for due jobs, compared to one transfer: the script with which Redisson's
//! clients move due jobs to the queue's list. Both take one batch from the same number of pending,
//! due jobs.
//!
//! Redisson stores each delayed job twice: in a sorted set by due time and in a list by arrival.
//! For each due job, its script searches the list from the front (`LREM`), which is slow if jobs
//! are not due in arrival order. The script here does the same with members of the same size.

use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{connect, send};
use crate::measure::{Plan, Result, block_on, median, millis};
use crate::store::{Store, open};
use crate::table::{Figure, grouped};
use crate::workload::{BATCH, PAYLOAD, WEEK, Workload, a_week_ago, claim, fill, now, settle};

/// Redisson's keys: the sorted set by due time, the list by arrival, and the destination list.
const KEYS: [&str; 3] =
    ["redisson_delay_queue_timeout:{BENCH}", "redisson_delay_queue:{BENCH}", "BENCH"];

/// The transfer. ARGV: the current time in milliseconds and the maximum job count. Returns how many
/// jobs it moved. A member is a 1-byte length and the id (`Bc0`; here 8 bytes), then an 8-byte
/// length and the payload (`Lc0`).
const TRANSFER: &str = "\
local due = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, ARGV[2])
for _, member in ipairs(due) do
  local id, payload = struct.unpack('Bc0Lc0', member)
  redis.call('RPUSH', KEYS[3], payload)
  redis.call('LREM', KEYS[2], 1, member)
end
if #due > 0 then
  redis.call('ZREM', KEYS[1], unpack(due))
end
return #due";

pub(crate) fn transfer(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let sizes = plan.full_or_quick(
        [(100_000, 15, 100.0), (1_000_000, 5, 1_000.0)],
        [(2_000, 2, 1.0), (4_000, 2, 1.0)],
    );
    let mut figures = Vec::new();
    for (pending, calls, target) in sizes {
        let transfer = transfers(store, pending, calls)?;
        let claim = block_on(claims(store, pending, plan.full_or_quick(101, 5)))?;
        let taken = format!("{BATCH} of {} due at random", grouped(pending as f64));
        let name = format!("{}: claim of {taken}", store.name);
        figures.extend([
            Figure::new(format!("Redisson's transfer of {taken}"), transfer, "ms"),
            Figure::new(name, claim, "ms")
                .compared_to(transfer, "transfers")
                .target(format!("≥ {target} times as fast"), transfer / claim >= target),
        ]);
    }
    Ok(figures)
}

fn transfers(store: &Store, pending: usize, calls: usize) -> Result<f64> {
    store.fresh()?;
    let mut connection = connect(store)?;
    fill_as_redisson(&mut connection, pending)?;
    let mut call = redis::cmd("EVAL");
    call.arg(TRANSFER).arg(KEYS.len()).arg(&KEYS).arg(now().as_millis()).arg(BATCH);
    let mut times = Vec::new();
    for _ in 0..calls {
        let start = Instant::now();
        let moved: usize = call.query(&mut connection)?;
        times.push(millis(start.elapsed()));
        if moved != BATCH {
            return Err(format!("a transfer moved {moved} jobs").into());
        }
    }
    Ok(median(times))
}

fn fill_as_redisson(connection: &mut redis::Connection, pending: usize) -> Result<()> {
    const DEPTH: usize = 500;
    let mut rng = SmallRng::seed_from_u64(13);
    let from = a_week_ago().as_millis();
    for done in (0..pending).step_by(DEPTH) {
        let batch = DEPTH.min(pending - done);
        let mut pipeline = redis::Pipeline::with_capacity(2 * batch);
        for _ in 0..batch {
            let mut member = vec![8];
            member.extend(rng.random::<[u8; 8]>());
            member.extend((PAYLOAD as u64).to_le_bytes());
            member.extend([0x5a; PAYLOAD]);
            let due = from + rng.random_range(0..WEEK);
            pipeline.cmd("ZADD").arg(KEYS[0]).arg(due).arg(&member);
            pipeline.cmd("RPUSH").arg(KEYS[1]).arg(&member);
        }
        send(connection, &pipeline, 2 * batch)?;
    }
    Ok(())
}

async fn claims(store: &Store, pending: usize, calls: usize) -> Result<f64> {
    let backend = open(&store.fresh()?).await?;
    let mut workload = Workload::keyless(13);
    fill(&*backend, pending, |bulk| workload.random(a_week_ago(), bulk)).await?;
    let mut times = Vec::new();
    for _ in 0..calls.min(pending / BATCH) {
        let start = Instant::now();
        let leases = claim(&*backend, BATCH).await?;
        times.push(millis(start.elapsed()));
        settle(&*backend, &leases).await?;
    }
    backend.close().await?;
    Ok(median(times))
}
