//! Lateness: how long after its due time a handler starts, through the whole runner.

use std::time::Duration;

use dq::{Dq, Timestamp};

use crate::measure::{Plan, Result, Times, in_task, millis, rate};
use crate::probe::{Bench, Probe, concurrency_name};
use crate::store::Store;
use crate::table::Figure;
use crate::workload::{BULK, HOUR, PAYLOAD, Workload, fill, now};

/// Single jobs that arrive one after the other and are due soon. On RabbitMQ many pending jobs are
/// due much later.
pub(crate) fn single(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let url = store.fresh()?;
    let is_rabbit = store.rabbit().is_ok();
    let jobs = plan.full_or_quick(500, 20);
    let pending = if is_rabbit { plan.full_or_quick(100_000, 10_000) } else { 0 };
    // RabbitMQ has no message for a job due within a second.
    let delay = move |job| if is_rabbit { 1_000 } else { 5 + job % 7 };
    let times = in_task(async move {
        let dq = Dq::connect(&url).await?;
        let mut workload = Workload::keyless(24);
        fill(&**dq.backend(), pending, |bulk| workload.after(HOUR, bulk)).await?;
        let probe = Probe::timing(jobs);
        let producer = {
            let dq = dq.clone();
            tokio::spawn(async move {
                for number in 0..jobs as u64 {
                    // Not a whole number of milliseconds: jobs arrive at every fraction of the
                    // millisecond to which due times are rounded up.
                    tokio::time::sleep(Duration::from_micros(15_300)).await;
                    let job = dq.schedule::<Bench>(String::new());
                    let _ = job.after(Duration::from_millis(delay(number))).await?;
                }
                Result::Ok(())
            })
        };
        probe.run(&dq).await?;
        producer.await??;
        dq.close().await?;
        Ok(probe.lateness())
    })?;
    let situation = match pending {
        0 => "idle".to_owned(),
        _ => format!("1 s jobs behind {pending} of an hour"),
    };
    Ok(figures(&format!("{}, {situation}", store.name), &times, Some(target(store))))
}

/// The most that is allowed at the median and at the 99th percentile, in milliseconds.
fn target(store: &Store) -> [f64; 2] {
    match store.name {
        "memory" | "sqlite" => [1.5, 5.0],
        "rabbitmq" => [2.0, 10.0],
        _ => [2.0, 8.0],
    }
}

/// Jobs due one after the other, at a steady rate, while many pending jobs are due much later.
pub(crate) fn steady(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let (pending, per_second, lead) = match store.name {
        "memory" | "sqlite" | "postgres" => (1_000_000, 1_000, 8),
        "rabbitmq" => (0, 2_500, 15),
        _ => (1_000_000, 2_000, 4),
    };
    let pending = plan.full_or_quick(pending, pending / 200);
    let jobs = plan.full_or_quick(10, 1) * per_second;
    let lead = plan.full_or_quick(Duration::from_secs(lead), Duration::from_secs(1));
    // On RabbitMQ a claim, a round trip to the log, returns at most one job per free slot: with the
    // default 16 slots, jobs queue up whenever it takes over 16 / 2,500 s = 6.4 ms.
    let concurrency = store.rabbit().is_ok().then_some(256);
    let url = store.fresh()?;
    let times = in_task(async move {
        let dq = Dq::connect(&url).await?;
        let (mut workload, later) = (Workload::with_seed(5).payloads(PAYLOAD), now() + HOUR);
        fill(&**dq.backend(), pending, |bulk| workload.random(later, bulk)).await?;
        let first = now() + lead;
        let due = |job| first + Duration::from_millis((job * 1_000 / per_second) as u64);
        schedule(&dq, jobs, first, due).await?;
        let probe = Probe::timing(jobs).concurrency(concurrency);
        probe.run(&dq).await?;
        dq.close().await?;
        Ok(probe.lateness())
    })?;
    let name = format!("{}, {pending} pending, {per_second} due/s", store.name);
    Ok(figures(&name, &times, Some(target(store))))
}

/// Many jobs due in the same millisecond. On Redis also the longest call that blocks the server.
pub(crate) fn at_once(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    const LONGEST_CALL_TARGET: Duration = Duration::from_millis(5);
    let jobs = plan.full_or_quick(100_000, 2_000);
    let lead = plan.full_or_quick(Duration::from_secs(8), Duration::from_secs(1));
    let mut all = Vec::new();
    for concurrency in [None, Some(256)] {
        let url = store.fresh()?;
        let (dq, due) = in_task(async move {
            let (dq, due) = (Dq::connect(&url).await?, now() + lead);
            schedule(&dq, jobs, due, |_| due).await?;
            Ok((dq, due))
        })?;
        let probe = Probe::timing(jobs).concurrency(concurrency);
        let running = probe.clone();
        let run_all = async move {
            running.run(&dq).await?;
            let drained = now().since(due);
            dq.close().await?;
            Ok(drained)
        };
        let (drained, longest_call) = longest_call(store, || in_task(run_all))?;
        let slots = concurrency_name(concurrency);
        let name = format!("{}, {jobs} due at once, {slots}", store.name);
        all.extend(figures(&name, &probe.lateness(), None));
        all.push(Figure::new(format!("{name}: until all are settled"), drained.as_secs_f64(), "s"));
        all.push(Figure::new(format!("{name}: drained"), rate(jobs, drained), "jobs/s"));
        if let Some(call) = longest_call {
            let call = Figure::new(format!("{name}: longest call"), millis(call), "ms");
            all.push(call.at_most(millis(LONGEST_CALL_TARGET)));
        }
    }
    Ok(all)
}

fn longest_call<T>(
    store: &Store,
    run: impl FnOnce() -> Result<T>,
) -> Result<(T, Option<Duration>)> {
    let Ok(redis) = store.redis() else { return Ok((run()?, None)) };
    let mut connection = redis.connect();
    // Skips short calls, in microseconds.
    for setting in [["slowlog-max-len", "100000"], ["slowlog-log-slower-than", "200"]] {
        assert!(connection.command(&["CONFIG", "SET", setting[0], setting[1]]).is_ok());
    }
    let result = run()?;
    let log = connection.command(&["SLOWLOG", "GET", "-1"]);
    let longest = log.list().iter().map(|call| call.list()[2].int().unsigned_abs()).max();
    // The log uses memory, and removing it is itself a long call.
    let off = ["CONFIG", "SET", "slowlog-log-slower-than", "-1"];
    for command in [&off[..], &["SLOWLOG", "RESET"]] {
        assert!(connection.command(command).is_ok());
    }
    Ok((result, Some(Duration::from_micros(longest.unwrap_or(0)))))
}

/// Schedules jobs, each due as `due` says for its number. Fails if the first one, due at `first`,
/// is due before the last is stored.
async fn schedule(
    dq: &Dq,
    jobs: usize,
    first: Timestamp,
    due: impl Fn(usize) -> Timestamp,
) -> Result<()> {
    for from in (0..jobs).step_by(BULK) {
        let numbers = from..jobs.min(from + BULK);
        let job = |number| dq.schedule::<Bench>(String::new()).at(due(number));
        dq.schedule_many(numbers.map(job)).await?;
    }
    if now() > first {
        return Err("the first job was due before the last was stored".into());
    }
    Ok(())
}

/// Median, 99th percentile and maximum. `target` limits the first two, in milliseconds.
fn figures(name: &str, times: &Times, target: Option<[f64; 2]>) -> Vec<Figure> {
    let quantiles = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)];
    let limits = target.into_iter().flatten().map(Some).chain(std::iter::repeat(None));
    let figure = |((quantile, share), limit): ((&str, f64), Option<f64>)| {
        let figure = Figure::new(format!("{name}: {quantile}"), times.millis_at(share), "ms");
        match limit {
            Some(limit) => figure.at_most(limit),
            None => figure,
        }
    };
    quantiles.into_iter().zip(limits).map(figure).collect()
}
