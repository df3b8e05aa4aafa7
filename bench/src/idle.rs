//! The cost of a runner with empty queues: calls, CPU time, requests and messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq::backend::{Backend, Layer};
use dq::{Dq, Flow};

use crate::measure::{Plan, Result, Stopwatch, block_on, in_task, millis};
use crate::probe::{Bench, Probe};
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::{claim, queues};

const QUEUES: usize = 100;

/// Runs something beside an idle runner, after its startup.
pub(crate) async fn beside_idle_runner<T>(
    dq: &Dq,
    probe: Probe,
    startup: Duration,
    run: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut result = None;
    let until_run = async {
        tokio::time::sleep(startup).await;
        result = Some(run.await);
    };
    probe.runner(dq).run_until(until_run).await?;
    result.ok_or("the runner has ended early")?
}

fn idle() -> Probe {
    Probe::counting(usize::MAX).serving(queues(QUEUES))
}

pub(crate) fn calls(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    // Covers several announcements, one every 15 s. The ten-minute store check runs before the
    // window.
    let window = plan.full_or_quick(Duration::from_secs(61), Duration::from_secs(1));
    let url = store.fresh()?;
    let (calls, cpu) = in_task(async move {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = CallCounter { backend: open(&url).await?, calls: Arc::clone(&calls) };
        let dq = Dq::builder().backend(Arc::new(counter)).connect().await?;
        let observe = async {
            let (before, watch) = (calls.load(Ordering::Relaxed), Stopwatch::start());
            tokio::time::sleep(window).await;
            Ok((calls.load(Ordering::Relaxed) - before, watch.cpu()))
        };
        let observed = beside_idle_runner(&dq, idle(), Duration::from_millis(500), observe).await?;
        dq.close().await?;
        Ok(observed)
    })?;
    let name = format!("{}, {QUEUES} queues", store.name);
    let seconds = window.as_secs_f64();
    Ok(vec![
        Figure::new(format!("{name}: store calls"), calls as f64 / seconds, "/s").at_most(1.1),
        Figure::new(format!("{name}: CPU"), millis(cpu) / seconds, "ms/s"),
    ])
}

/// The calls of a runner with due jobs in a queue without room.
pub(crate) fn blocked(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let window = plan.full_or_quick(Duration::from_secs(30), Duration::from_secs(2));
    let url = store.fresh()?;
    let calls = in_task(async move {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = CallCounter { backend: open(&url).await?, calls: Arc::clone(&calls) };
        let dq = Dq::builder().backend(Arc::new(counter)).connect().await?;
        dq.queue_of::<Bench>()?.override_limits(Flow::UNLIMITED.max_running(1)).await?;
        let jobs = (0..10).map(|_| dq.schedule::<Bench>(String::new()));
        let _ = dq.schedule_many(jobs).await?;
        let _running = claim(&**dq.backend(), 1).await?;
        let observe = async {
            let before = calls.load(Ordering::Relaxed);
            tokio::time::sleep(window).await;
            Ok(calls.load(Ordering::Relaxed) - before)
        };
        let probe = Probe::counting(usize::MAX);
        let observed = beside_idle_runner(&dq, probe, Duration::from_secs(2), observe).await?;
        dq.close().await?;
        Ok(observed)
    })?;
    let name = format!("{}, a queue without room: store calls", store.name);
    Ok(vec![Figure::new(name, calls as f64 / window.as_secs_f64(), "/s").at_most(1.1)])
}

#[derive(Debug)]
struct CallCounter {
    backend: Arc<dyn Backend>,
    calls: Arc<AtomicUsize>,
}

#[dq::async_trait]
impl Layer for CallCounter {
    fn inner(&self) -> &dyn Backend {
        &*self.backend
    }

    async fn before(&self, _method: &'static str) -> dq::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Requests to a Redis server: scripts, and the pings of the subscription.
pub(crate) fn requests(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    const COMMANDS: [&str; 2] = ["cmdstat_evalsha", "cmdstat_ping"];
    let window = plan.full_or_quick(Duration::from_secs(10), Duration::from_secs(1));
    let seconds = window.as_secs_f64();
    let [requests] = growth(store, window, || {
        // Lines such as `cmdstat_ping:calls=3,usec=…`.
        let stats = store.redis()?.command(&["INFO", "commandstats"]).text();
        let commands = stats.lines().filter_map(|line| line.split_once(":calls="));
        let counts =
            commands.filter(|(name, _)| COMMANDS.contains(name)).filter_map(|(_, rest)| {
                let (calls, _) = rest.split_once(',')?;
                calls.parse::<f64>().ok()
            });
        Ok([counts.sum()])
    })?;
    let name = format!("{}, {QUEUES} queues, idle: requests", store.name);
    // Besides the sweeps, the runner announces itself and the subscriber pings, each every 15 s.
    Ok(vec![Figure::new(name, requests / seconds, "/s").at_most(1.0 + 2.0 / seconds)])
}

/// Messages to and from a RabbitMQ server.
pub(crate) fn messages(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    /// Each announcement is published, delivered and acknowledged.
    const MESSAGES: [&str; 3] =
        ["messages_received_total", "messages_delivered_total", "messages_acknowledged_total"];
    const INTERVAL: f64 = 15.0;
    /// Upper limit for an announcement, its confirm and its ack on the wire.
    const BYTES: f64 = 4_096.0;
    const HEARTBEAT: f64 = 8.0;

    let window = plan.full_or_quick(Duration::from_secs(60), Duration::from_secs(12));
    let number = |expression: String| -> Result<f64> {
        let value = store.rabbit()?.eval(&expression);
        value.parse().map_err(|_| format!("{expression} is {value}").into())
    };
    let messages = || {
        let counters = MESSAGES.iter().map(|counter| {
            number(format!(
                "lists:sum([maps:get({counter}, Counters, 0) || \
                 Counters <- maps:values(rabbit_global_counters:overview())])"
            ))
        });
        counters.sum::<Result<f64>>()
    };
    let received = |counter: &str| {
        number(format!(
            "lists:sum([Value || [{{{counter}, Value}}] <- \
             rabbit_networking:connection_info_all([{counter}])])"
        ))
    };
    // The broker does not count heartbeats, but each is its own packet. Without other traffic, the
    // difference is zero; a larger packet adds its bytes beyond a heartbeat.
    let bytes = || Result::Ok(received("recv_oct")? - HEARTBEAT * received("recv_cnt")?);
    let [messages, bytes] = growth(store, window, || Ok([messages()?, bytes()?]))?;
    let minutes = window.as_secs_f64() / 60.0;
    let announcements = (window.as_secs_f64() / INTERVAL).ceil() / minutes;
    let name = format!("idle, {QUEUES} queues");
    Ok(vec![
        Figure::new(
            format!("{name}: published, delivered, acknowledged"),
            messages / minutes,
            "/min",
        )
        .at_most(announcements * MESSAGES.len() as f64),
        Figure::new(format!("{name}: sent beyond heartbeats"), bytes / minutes, "B/min")
            .at_most(announcements * BYTES),
    ])
}

fn growth<const N: usize>(
    store: &Store,
    window: Duration,
    look: impl Fn() -> Result<[f64; N]>,
) -> Result<[f64; N]> {
    // Covers the startup, in which RabbitMQ's runner declares each queue.
    const STARTUP: Duration = Duration::from_secs(5);
    let url = store.fresh()?;
    block_on(async {
        let dq = Dq::connect(&url).await?;
        let observe = async {
            let before = look()?;
            tokio::time::sleep(window).await;
            let after = look()?;
            Ok(std::array::from_fn(|number| after[number] - before[number]))
        };
        let grown = beside_idle_runner(&dq, idle(), STARTUP, observe).await?;
        dq.close().await?;
        Ok(grown)
    })
}
