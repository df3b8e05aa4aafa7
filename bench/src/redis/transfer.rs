//! Time of one claim for due jobs, compared to one transfer: the script with which Redisson's
//! clients move due jobs to the queue's list. Both take one batch from the same number of pending,
//! due jobs.
//!
//! Redisson stores each delayed job twice: in a sorted set by due time and in a list by arrival.
//! For each due job, its script searches the list from the front (`LREM`), which is slow if jobs
//! are not due in arrival order. The script here does the same with members of the same size.

use std::time::{Duration, Instant, SystemTime};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::server::RedisServer;
use super::store::{self, RedisStore, a_week_ago};
use super::wire::{Wire, command};
use crate::lease;
use crate::measure::{io_runtime, median, millis};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::{BATCH, PAYLOAD, WEEK};

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

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
) -> Result<Vec<Figure>> {
    let sizes = plan
        .full_or_quick([(100_000, "100k", 15, 100.0), (1_000_000, "1M", 5, 1_000.0)], {
            [(2_000, "2k", 2, 1.0), (4_000, "4k", 2, 1.0)]
        });
    let mut figures = Vec::new();
    for (pending, count, calls, target) in sizes {
        let transfer = transfers(server, pending, calls)?;
        let claim = claims(server, store, pending, plan.full_or_quick(101, 5))?;
        progress(format_args!(
            "{count} pending, {BATCH} taken: transfer {transfer:.2} ms, {} {claim:.2} ms",
            store.name
        ));
        let name = |what: &str| format!("{what}, {count} pending, due at random");
        figures.push(Figure::new(
            name(&format!("Redisson's transfer of {BATCH} due jobs")),
            transfer,
            "ms",
        ));
        figures.push(
            Figure::new(name(&format!("{}: claim of {BATCH} due jobs", store.name)), claim, "ms")
                .compared_to(transfer, "transfers")
                .target(format!("≥ {target} times as fast"), transfer / claim >= target),
        );
    }
    server.clear();
    Ok(figures)
}

fn transfers(server: &RedisServer, pending: usize, calls: usize) -> Result<f64> {
    server.clear();
    fill(server, pending)?;
    let mut connection = server.connect();
    let sha = connection.command(&["SCRIPT", "LOAD", TRANSFER]).text();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis().to_string();
    let batch = BATCH.to_string();
    let [by_time, by_arrival, destination] = KEYS;
    let mut times = Vec::new();
    for _ in 0..calls {
        let start = Instant::now();
        let moved = connection.command(&[
            "EVALSHA",
            &sha,
            "3",
            by_time,
            by_arrival,
            destination,
            &now,
            &batch,
        ]);
        times.push(millis(start.elapsed()));
        if usize::try_from(moved.int())? != BATCH {
            return Err(format!("a transfer moved {moved:?}").into());
        }
    }
    Ok(median(times))
}

/// Fills a queue as Redisson's clients do; all jobs are due.
fn fill(server: &RedisServer, pending: usize) -> Result<()> {
    const DEPTH: usize = 500;
    let mut rng = SmallRng::seed_from_u64(13);
    let from = a_week_ago().as_millis();
    let mut wire = Wire::connect(&server.address())?;
    let mut commands = Vec::new();
    for done in (0..pending).step_by(DEPTH) {
        commands.clear();
        let batch = DEPTH.min(pending - done);
        for _ in 0..batch {
            let mut member = vec![8];
            member.extend(rng.random::<[u8; 8]>());
            member.extend((PAYLOAD as u64).to_le_bytes());
            member.extend([0x5a; PAYLOAD]);
            let due = (from + rng.random_range(0..WEEK)).to_string();
            command(&mut commands, &[b"ZADD", KEYS[0].as_bytes(), due.as_bytes(), &member]);
            command(&mut commands, &[b"RPUSH", KEYS[1].as_bytes(), &member]);
        }
        wire.exchange(&commands, 2 * batch)?;
    }
    Ok(())
}

fn claims(server: &RedisServer, store: &RedisStore, pending: usize, calls: usize) -> Result<f64> {
    server.clear();
    let runtime = io_runtime();
    let backend = runtime.block_on(store.open(server))?;
    let times = runtime.block_on(async {
        store::fill(&*backend, &mut store::keyless_with_seed(13), a_week_ago(), pending).await?;
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..calls.min(pending / BATCH) {
            let start = Instant::now();
            let leases = lease::claim(&*backend, BATCH).await?;
            times.push(start.elapsed());
            lease::settle(&*backend, &leases).await?;
        }
        backend.close().await?;
        Result::Ok(times)
    })?;
    Ok(median(times.into_iter().map(millis).collect()))
}
