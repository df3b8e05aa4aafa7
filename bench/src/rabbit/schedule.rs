//! Rate of bulk `schedule` calls, compared to raw messages with publisher confirms.

use std::time::Duration;

use super::raw::Raw;
use super::server::{BrokerCost, RabbitServer, cost_of};
use super::store::{self, HOUR};
use crate::measure::{io_runtime, median, micros, rate};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::BULK;

/// Share of the raw rate.
const TARGET: f64 = 0.8;

#[derive(Debug, Clone, Copy)]
enum Delays {
    One,
    Random,
}

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, delays) in [("one delay", Delays::One), ("random within a day", Delays::Random)] {
        figures.extend(rows(plan, server, name, delays)?);
    }
    Ok(figures)
}

fn rows(plan: &Plan, server: &RabbitServer, name: &str, delays: Delays) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(40_000, 10_000);
    let vhost = server.vhost();
    let runtime = io_runtime();
    let backend = runtime.block_on(store::open(vhost.url()))?;
    let raw = runtime.block_on(Raw::connect(vhost.url()))?;
    let mut workload = store::keyless_with_seed(21);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..=plan.full_or_quick(9, 3) {
        let bulks: Vec<_> = (0..jobs / BULK)
            .map(|_| match delays {
                Delays::One => store::after(&mut workload, HOUR, BULK),
                Delays::Random => {
                    let now = store::now();
                    let day = |_| {
                        let in_week = workload.within_a_week(now).as_millis() - now.as_millis();
                        let in_day = Duration::from_millis((in_week / 7).unsigned_abs());
                        workload.job(now, now + in_day)
                    };
                    (0..BULK).map(day).collect()
                }
            })
            .collect();
        let filling = backend.clone();
        let schedule = async move {
            for bulk in bulks {
                let _ = filling.schedule(bulk).await?;
            }
            Result::Ok(())
        };
        // Spawned, as in an application. The bare client borrows its channel and stays on the
        // `block_on` thread; it waits only for the oldest of 1,000 confirms.
        let run = || runtime.block_on(async { tokio::spawn(schedule).await? });
        let ((), own) = cost_of(server, run)?;
        let publish = || runtime.block_on(raw.publish(jobs, BULK));
        let (_, bare) = cost_of(server, publish)?;
        runtime.block_on(raw.purge())?;
        progress(format_args!(
            "{name}: {:.0} jobs/s, raw {:.0}/s: {:.2}; broker {:.1} and {:.1} µs, client {:.1} and {:.1}",
            rate(jobs, own.wall),
            rate(jobs, bare.wall),
            bare.wall.as_secs_f64() / own.wall.as_secs_f64(),
            micros(own.broker) / jobs as f64,
            micros(bare.broker) / jobs as f64,
            micros(own.client) / jobs as f64,
            micros(bare.client) / jobs as f64,
        ));
        // The first turn is a warm-up.
        if turn > 0 {
            ours.push(own);
            theirs.push(bare);
        }
    }
    runtime.block_on(async {
        backend.close().await?;
        raw.close().await
    })?;
    let name = format!("schedule by {BULK}, {name}");
    Ok(figures(&name, jobs, &ours, &theirs))
}

fn figures(name: &str, jobs: usize, ours: &[BrokerCost], raw: &[BrokerCost]) -> Vec<Figure> {
    let median_of = |costs: &[BrokerCost], value: fn(&BrokerCost) -> Duration| {
        median(costs.iter().map(|cost| micros(value(cost)) / jobs as f64).collect())
    };
    let ratio = |value: fn(&BrokerCost) -> Duration| {
        let turn_ratio = |(own, bare): (&BrokerCost, &BrokerCost)| {
            value(own).as_secs_f64() / value(bare).as_secs_f64().max(f64::EPSILON)
        };
        median(ours.iter().zip(raw).map(turn_ratio).collect())
    };
    let rate = 1e6 / median_of(ours, |cost| cost.wall);
    let broker = median_of(ours, |cost| cost.broker);
    let client = median_of(ours, |cost| cost.client);
    vec![
        Figure::new(name, rate, "jobs/s")
            .compared_to(rate * ratio(|cost| cost.wall), "raw")
            .ratio_at_least(TARGET),
        Figure::new(format!("{name}: broker CPU"), broker, "µs/job")
            .compared_to(broker / ratio(|cost| cost.broker), "raw"),
        Figure::new(format!("{name}: client CPU"), client, "µs/job")
            .compared_to(client / ratio(|cost| cost.client), "raw"),
    ]
}
