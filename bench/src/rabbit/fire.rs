//! The *fire side* rows (see `mod.rs`): broker CPU time per delayed job, from publish to ack, on
//! the backend's delay ladder and on the ladder that NServiceBus and Celery use.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};
use tokio::time::{MissedTickBehavior, interval};

use super::ladder::{self, BINARY, CALENDAR, Layout, READY};
use super::raw::{Raw, confirmed};
use super::server::{RabbitServer, cost_of};
use crate::measure::{io_runtime, median, micros};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::{PAYLOAD, scatter};

/// Jobs per second. The rate decides how many jobs share a sync, hence the CPU time per job: do not
/// compare figures taken at different rates. At much higher rates, the binary layout overloads a
/// small machine.
const PER_SECOND: u64 = 400;

const TARGET: f64 = 0.5;

const MINUTE: u64 = 60_000;
const DAY: u64 = 86_400_000;

type Delay = fn(u64) -> u64;

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let jobs = PER_SECOND * plan.full_or_quick(8, 3);
    let vhost = server.vhost();
    let runtime = io_runtime();
    let raw = runtime.block_on(async {
        let raw = Raw::connect(vhost.url()).await?;
        ladder::ready(&raw.channel).await?;
        CALENDAR.declare(&raw.channel).await?;
        BINARY.declare(&raw.channel).await?;
        Result::Ok(raw)
    })?;
    let cases: [(&str, Delay); 3] = [
        ("no delay", |_| 0),
        ("15 min", |_| 15 * MINUTE),
        ("random, less than a day", |job| scatter(job) % DAY),
    ];
    let mut figures = Vec::new();
    for (name, delay) in cases {
        let cost = |layout: &Layout| {
            let run = || runtime.block_on(run(&raw, layout, jobs, delay));
            let ((), cost) = cost_of(server, run)?;
            Result::Ok(micros(cost.broker) / jobs as f64)
        };
        let (mut costs, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..plan.full_or_quick(5, 2) {
            let (own, binary) = (cost(&CALENDAR)?, cost(&BINARY)?);
            progress(format_args!(
                "{name}: {own:.0} µs, binary {binary:.0} µs: {:.2}",
                own / binary
            ));
            costs.push(own);
            ratios.push(own / binary);
        }
        let own = median(costs);
        if delay(1) == 0 {
            figures.push(Figure::new("fire side, broker CPU, no delay", own, "µs/job"));
            continue;
        }
        // The median of the per-turn ratios (see `mod.rs`). The reference is calculated from it.
        figures.push(
            Figure::new(format!("fire side, broker CPU, {name}"), own, "µs/job")
                .compared_to(own / median(ratios), "binary")
                .ratio_at_most(TARGET),
        );
        let hops = |layout: &Layout| {
            (0..jobs).map(|job| layout.hops(delay(job))).sum::<usize>() as f64 / jobs as f64
        };
        let row = format!("fire side, queues on the way, {name}");
        figures.push(Figure::new(row, hops(&CALENDAR), "").compared_to(hops(&BINARY), "binary"));
    }
    runtime.block_on(raw.close())?;
    Ok(figures)
}

async fn run(raw: &Raw, layout: &Layout, jobs: u64, delay: Delay) -> Result<()> {
    let consuming = raw.connection.create_channel().await?;
    consuming.basic_qos(2_000, BasicQosOptions::default()).await?;
    let ((), ()) =
        tokio::try_join!(publish(&raw.channel, layout, jobs, delay), consume(&consuming, jobs))?;
    Ok(consuming.close(200, "done".into()).await?)
}

async fn publish(channel: &Channel, layout: &Layout, jobs: u64, delay: Delay) -> Result<()> {
    let payload = [0x5a; PAYLOAD];
    let mut waiting = Vec::new();
    let mut steps = interval(Duration::from_micros(1_000_000 / PER_SECOND));
    steps.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for job in 0..jobs {
        steps.tick().await;
        let (exchange, key) = layout.route(delay(job));
        let confirm = channel.basic_publish(
            exchange.into(),
            key.into(),
            BasicPublishOptions::default(),
            &payload,
            BasicProperties::default().with_delivery_mode(2),
        );
        waiting.push(confirm.await?);
    }
    for confirm in waiting {
        confirmed(confirm).await?;
    }
    Ok(())
}

/// Acknowledges all available deliveries at once.
async fn consume(channel: &Channel, jobs: u64) -> Result<()> {
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = channel.basic_consume(READY.into(), "".into(), options, none).await?;
    let mut consumed = 0;
    while consumed < jobs {
        let mut delivery = consumer.next().await.ok_or("the broker cancelled the consumer")??;
        consumed += 1;
        while let Some(Some(next)) = consumer.next().now_or_never() {
            delivery = next?;
            consumed += 1;
        }
        channel.basic_ack(delivery.delivery_tag, BasicAckOptions { multiple: true }).await?;
    }
    Ok(())
}
