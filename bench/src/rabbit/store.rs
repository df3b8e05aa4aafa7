//! The backend, opened by URL as in applications.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dq::backend::backend_from_url;
use dq::backend::{Backend, ClaimParams, Want};
use dq::config::Environment;
use dq::{Dq, Entropy, QueueName, SystemClock, Timestamp};

use super::server::Vhost;
use crate::plan::Result;
use crate::workload::{PAYLOAD, QUEUE, Workload};

pub(super) async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    let environment = Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
    Ok(backend_from_url(url)?.connect(&environment).await?)
}

pub(super) async fn dq(vhost: &Vhost<'_>) -> Result<Dq> {
    Ok(Dq::connect(vhost.url()).await?)
}

pub(super) fn keyless_with_seed(seed: u64) -> Workload {
    Workload::with_seed(seed).payloads(PAYLOAD).without_keys()
}

pub(super) fn now() -> Timestamp {
    SystemTime::now().into()
}

pub(super) const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn after(workload: &mut Workload, delay: Duration, count: usize) -> Vec<dq::NewJob> {
    let now = now();
    (0..count).map(|_| workload.job(now, now + delay)).collect()
}

/// The next due time in the backend's log replica. Claims no jobs, which sends nothing.
pub(super) async fn next_due(backend: &dyn Backend) -> Result<Option<Timestamp>> {
    let wants = [Want::new(QueueName::new(QUEUE)?, 0, Duration::from_secs(300))];
    let params = ClaimParams::new(&wants, 0, "dq-bench");
    Ok(backend.claim(params).await?.next_due)
}
