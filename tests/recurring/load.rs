//! The cost of many schedules compared to one. Ignored by default: it takes minutes and produces
//! figures for the guide.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use dq::backend::{Backend, Environment, Layer, async_trait, backend_from_url};
use dq::prelude::*;
use dq::{CatchUp, Clock, Entropy, SystemClock};
use libtest_mimic::Failed;

use crate::trial::Store;

/// Milliseconds of lateness for jobs in this full minute.
#[derive(Debug, Clone, Default)]
struct Late(Arc<Mutex<Vec<u64>>>);

#[delay_handler("LOAD", concurrency = 256)]
async fn load(ctx: JobContext, State(late): State<Late>) {
    late.0.lock().unwrap().push(ctx.lateness().as_millis() as u64);
}

#[derive(Debug)]
struct Counting {
    store: Arc<dyn Backend>,
    calls: Arc<AtomicU64>,
}

#[async_trait]
impl Layer for Counting {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    async fn before(&self, _method: &'static str) -> dq::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::main]
pub(crate) async fn run(store: Store, schedules: usize) -> Result<(), Failed> {
    let environment = Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
    let inner = backend_from_url(&store.url)?.connect(&environment).await?;
    let calls = Arc::new(AtomicU64::new(0));
    let counting = Counting { store: inner, calls: Arc::clone(&calls) };
    let dq = Dq::builder().backend(Arc::new(counting)).connect().await?;
    let started = Instant::now();
    let names: Vec<String> = (0..schedules).map(|number| format!("load-{number}")).collect();
    for names in names.chunks(64) {
        let upserts = names.iter().map(|name| {
            let schedule =
                dq.recurring::<load>(name.as_str()).cron("* * * * *", "Europe/Stockholm");
            tokio::spawn(schedule.catch_up(CatchUp::None).upsert())
        });
        for upsert in upserts.collect::<Vec<_>>() {
            assert!(upsert.await??, "the schedule is new");
        }
    }
    let upserts = started.elapsed();
    let late = Late::default();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let runner = tokio::spawn(
        dq.runner()
            .without_linked_handlers()
            .register::<load>()
            .state(late.clone())
            .run_until(stopped),
    );
    // The first full minute only shows that all schedules run. Idle cost is measured from second 25
    // to 50, lateness at the next full minute.
    let second_of_minute = || SystemClock.now().as_millis() / 1_000 % 60;
    while late.0.lock().unwrap().len() < schedules {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    late.0.lock().unwrap().clear();
    while !(25..30).contains(&second_of_minute()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (idle, cpu) = (calls.load(Ordering::Relaxed), cpu_time());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let idle = (calls.load(Ordering::Relaxed) - idle) as f64 / 20.0;
    let cpu = (cpu_time() - cpu) / 20.0;
    while late.0.lock().unwrap().len() < schedules {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut late = late.0.lock().unwrap().clone();
    late.sort_unstable();
    let percentile = |part: usize| late[(late.len() - 1) * part / 100];
    println!(
        "{}: {schedules} schedules stored in {upserts:?}; idle: {idle:.2} calls/s, {:.2} % of a core; \
         late at the full minute: median {} ms, 99 % {} ms, worst {} ms ({:?})",
        store.url.split(':').next().unwrap_or_default(),
        cpu * 100.0,
        percentile(50),
        percentile(99),
        percentile(100),
        SystemTime::now(),
    );
    let _ = stop.send(());
    runner.await??;
    dq.close().await?;
    Ok(())
}

fn cpu_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let ticks =
        |index: usize| fields.get(index).and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0);
    // User and system time, in hundredths of a second.
    (ticks(12) + ticks(13)) / 100.0
}
