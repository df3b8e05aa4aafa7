//! Rate and CPU time of claims and settlements.

use std::time::Duration;

use super::server::{RabbitServer, cost_of};
use super::store;
use crate::lease;
use crate::measure::{io_runtime, median, micros, rate};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::{BATCH, BULK};

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(50_000, 5_000);
    let vhost = server.vhost();
    let runtime = io_runtime();
    let backend = runtime.block_on(store::open(vhost.url()))?;
    let mut workload = store::keyless_with_seed(27);
    let (mut rates, mut brokers, mut clients) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.full_or_quick(5, 2) {
        runtime.block_on(async {
            for _ in 0..jobs / BULK {
                let bulk = store::after(&mut workload, Duration::ZERO, BULK);
                let _ = backend.schedule(bulk).await?;
            }
            Result::Ok(())
        })?;
        let draining = backend.clone();
        let drain = async move { lease::drain(&*draining, jobs).await };
        let run = || runtime.block_on(async { tokio::spawn(drain).await? });
        let ((), cost) = cost_of(server, run)?;
        rates.push(rate(jobs, cost.wall));
        brokers.push(micros(cost.broker) / jobs as f64);
        clients.push(micros(cost.client) / jobs as f64);
    }
    runtime.block_on(backend.close())?;
    let (rate, broker, client) = (median(rates), median(brokers), median(clients));
    let name = format!("claim and settle by {BATCH}");
    progress(format_args!(
        "{name}: {rate:.0} jobs/s, broker {broker:.1} µs, client {client:.1} µs"
    ));
    Ok(vec![
        Figure::new(&*name, rate, "jobs/s"),
        Figure::new(format!("{name}: broker CPU"), broker, "µs/job"),
        Figure::new(format!("{name}: client CPU"), client, "µs/job"),
    ])
}
