//! The whole path of a job: schedule, claim by a runner, an empty handler, settle.

use super::server::{RabbitServer, cost_of};
use super::store;
use crate::measure::{io_runtime, median, micros, rate};
use crate::plan::{Plan, Result, progress};
use crate::probe::{Probe, concurrency_name, schedule_and_run};
use crate::table::Figure;

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let mut figures = through(plan, server, Some(256))?;
    figures.extend(through(plan, server, None)?);
    Ok(figures)
}

fn through(plan: &Plan, server: &RabbitServer, concurrency: Option<usize>) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(50_000, 5_000);
    let (mut brokers, mut clients, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.full_or_quick(5, 1) {
        let vhost = server.vhost();
        let runtime = io_runtime();
        let dq = runtime.block_on(store::dq(&vhost))?;
        let mut probe = Probe::counting(jobs);
        if let Some(concurrency) = concurrency {
            probe = probe.concurrency(concurrency);
        }
        let closing = dq.clone();
        let whole = async move { schedule_and_run(&dq, &probe, jobs).await };
        let ((), cost) =
            cost_of(server, || runtime.block_on(async { tokio::spawn(whole).await? }))?;
        runtime.block_on(closing.close())?;
        brokers.push(micros(cost.broker) / jobs as f64);
        clients.push(micros(cost.client) / jobs as f64);
        rates.push(rate(jobs, cost.wall));
    }
    let (broker, client, rate) = (median(brokers), median(clients), median(rates));
    let with = concurrency_name(concurrency);
    let name = format!("whole path, {with}");
    progress(format_args!(
        "{name}: {rate:.0} jobs/s, broker {broker:.1} µs, client {client:.1} µs"
    ));
    Ok(vec![
        Figure::new(&*name, rate, "jobs/s"),
        Figure::new(format!("{name}: broker CPU"), broker, "µs/job"),
        Figure::new(format!("{name}: client CPU"), client, "µs/job"),
    ])
}
