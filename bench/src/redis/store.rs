//! The measured backends, opened by URL as in applications.

use std::sync::Arc;
use std::time::SystemTime;

use dq::backend::Backend;
use dq::backend::backend_from_url;
use dq::config::Environment;
use dq::{Dq, Entropy, SystemClock, Timestamp};

use super::server::RedisServer;
use crate::plan::Result;
use crate::workload::{BULK, PAYLOAD, WEEK, Workload};

#[derive(Debug)]
pub(super) struct RedisStore {
    pub(super) name: &'static str,
    scheme: &'static str,
    options: &'static str,
    /// For bulk `schedule` calls, as a share of the limit (see `limit.rs`).
    pub(super) bulk_target: Option<f64>,
    /// Bytes per pending job with a 100-byte payload.
    pub(super) memory_target: Option<f64>,
    /// Run all measurements, or only rates and sizes.
    pub(super) all_measurements: bool,
}

pub(super) const STORES: [RedisStore; 3] = [
    RedisStore {
        name: "redis",
        scheme: "redis",
        options: "",
        bulk_target: Some(0.75),
        memory_target: Some(300.0),
        all_measurements: true,
    },
    RedisStore {
        name: "redisson",
        scheme: "redisson",
        options: "",
        bulk_target: Some(0.6),
        memory_target: None,
        all_measurements: true,
    },
    // Only jobs due in the future get an expiring key. The rates come from jobs already due, so
    // they include no expiring keys; only `memory` stores future jobs.
    RedisStore {
        name: "redis-expiry",
        scheme: "redis-expiry",
        options: "?configure=true",
        bulk_target: None,
        memory_target: None,
        all_measurements: false,
    },
];

impl RedisStore {
    pub(super) fn url(&self, server: &RedisServer) -> String {
        format!("{}://{}/0{}", self.scheme, server.address(), self.options)
    }

    pub(super) async fn open(&self, server: &RedisServer) -> Result<Arc<dyn Backend>> {
        let environment = Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
        Ok(backend_from_url(&self.url(server))?.connect(&environment).await?)
    }

    pub(super) async fn dq(&self, server: &RedisServer) -> Result<Dq> {
        Ok(Dq::connect(&self.url(server)).await?)
    }
}

pub(super) fn keyless_with_seed(seed: u64) -> Workload {
    Workload::with_seed(seed).payloads(PAYLOAD).without_keys()
}

/// A week ago: random jobs within a week from then are all due.
pub(super) fn a_week_ago() -> Timestamp {
    let now = Timestamp::from(SystemTime::now());
    Timestamp::from_millis(now.as_millis() - WEEK)
}

pub(super) async fn fill(
    backend: &dyn Backend,
    workload: &mut Workload,
    from: Timestamp,
    jobs: usize,
) -> Result<()> {
    for done in (0..jobs).step_by(BULK) {
        let bulk = workload.random(from, BULK.min(jobs - done));
        let _ = backend.schedule(bulk).await?;
    }
    Ok(())
}
