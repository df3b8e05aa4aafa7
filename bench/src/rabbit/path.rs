//! The whole way of a job: scheduled, claimed by a runner, handled by nothing, settled.

use super::server::{Server, cost_of};
use super::store;
use super::{BULK, PAYLOAD, runtime};
use crate::measure::{median, micros, rate};
use crate::probe::{Bench, Probe};
use crate::table::Figure;
use crate::{Plan, Result, progress};

pub(super) fn measure(plan: &Plan, server: &Server) -> Result<Vec<Figure>> {
    let mut figures = through(plan, server, Some(256))?;
    figures.extend(through(plan, server, None)?);
    Ok(figures)
}

fn through(plan: &Plan, server: &Server, concurrency: Option<usize>) -> Result<Vec<Figure>> {
    let jobs = plan.size(50_000, 5_000);
    let (mut brokers, mut clients, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.size(5, 1) {
        let vhost = server.vhost();
        let runtime = runtime();
        let dq = runtime.block_on(store::dq(&vhost))?;
        let mut probe = Probe::counting(jobs);
        if let Some(concurrency) = concurrency {
            probe = probe.concurrency(concurrency);
        }
        let closing = dq.clone();
        let whole = async move {
            for _ in 0..jobs / BULK {
                // Two quotes are added by the encoding.
                let job = |_| dq.schedule::<Bench>("x".repeat(PAYLOAD - 2));
                let _ = dq.schedule_many((0..BULK).map(job)).await?;
            }
            probe.run(&dq).await?;
            Result::Ok(())
        };
        let ((), cost) =
            cost_of(server, || runtime.block_on(async { tokio::spawn(whole).await? }))?;
        runtime.block_on(closing.close())?;
        brokers.push(micros(cost.broker) / jobs as f64);
        clients.push(micros(cost.client) / jobs as f64);
        rates.push(rate(jobs, cost.wall));
    }
    let (broker, client, rate) = (median(brokers), median(clients), median(rates));
    let with = concurrency
        .map_or_else(|| "default concurrency".to_owned(), |jobs| format!("concurrency {jobs}"));
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
