//! What it takes to remember a job that has ended.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dq::backend::{Backend, backend_from_url};
use dq::config::Environment;
use dq::{Entropy, HistoryLimit, HistoryLimits, SystemClock, Timestamp};

use crate::lease::drain;
use crate::plan::{Result, progress};
use crate::table::Figure;
use crate::workload::{BATCH, PAYLOAD, WEEK, Workload};

/// Opens a store that remembers all jobs of a measurement.
pub(crate) async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    let mut environment = Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
    let limit = HistoryLimit::new(u32::MAX, Duration::from_secs(86_400));
    environment.history = HistoryLimits::all(limit);
    Ok(backend_from_url(url)?.connect(&environment).await?)
}

/// Growth of the store for each job that has ended. `used` returns its size in bytes; `jobs` is a
/// multiple of [`BATCH`].
pub(crate) async fn bytes_per_ended_job(
    name: &str,
    backend: &dyn Backend,
    jobs: usize,
    used: impl Fn() -> Result<f64>,
) -> Result<Figure> {
    let mut workload = Workload::with_seed(16).payloads(PAYLOAD);
    let now = Timestamp::from(SystemTime::now());
    // Random due times are within a week from then, so all jobs are due.
    let week_ago = Timestamp::from_millis(now.as_millis() - WEEK);
    let mut before = 0.0;
    // The first batch loads scripts and takes the memory of pending jobs.
    for done in (0..jobs + BATCH).step_by(BATCH) {
        if done == BATCH {
            before = used()?;
        }
        let _ = backend.schedule(workload.random(week_ago, BATCH)).await?;
        drain(backend, BATCH).await?;
    }
    let each = (used()? - before) / jobs as f64;
    progress(format_args!("{name}: {jobs} ended jobs take {each:.0} bytes each"));
    Ok(Figure::new(format!("{name}: an ended job in the history"), each, "bytes"))
}
