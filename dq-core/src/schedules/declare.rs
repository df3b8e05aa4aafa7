//! Schedules declared by handler attributes and configuration.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use super::schedule_job::{SEEN_INTERVAL, require_support};
use super::store;
use crate::client::Dq;
use crate::error::{Error, ErrorKind, Result};
use crate::model::ScheduleSpec;
use crate::sync::lock;

const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The schedules a program declares.
///
/// Each is stored once, when a runner starts: the process that started last decides, and an older
/// one does not change it back. Later, each process refreshes its declarations hourly.
#[derive(Debug)]
pub(crate) struct Declarations {
    dq: Dq,
    schedules: BTreeMap<String, Declaration>,
    /// When all were last stored or refreshed, as this process's elapsed time.
    refreshed: Mutex<Option<Duration>>,
}

#[derive(Debug)]
struct Declaration {
    spec: ScheduleSpec,
    aliases: &'static [&'static str],
    place: String,
    is_stored: Mutex<bool>,
}

impl Declarations {
    pub(crate) fn new(dq: &Dq) -> Self {
        Self { dq: dq.clone(), schedules: BTreeMap::new(), refreshed: Mutex::default() }
    }

    pub(crate) fn insert(
        &mut self,
        name: &str,
        spec: ScheduleSpec,
        aliases: &'static [&'static str],
        place: &str,
    ) -> Result<()> {
        require_support(&**self.dq.backend())
            .map_err(|error| error.remedy(format!("the schedule {name} is declared by {place}")))?;
        match self.schedules.entry(name.to_owned()) {
            Entry::Occupied(other) => {
                let other = &other.get().place;
                let message =
                    format!("two schedules have the name {name}: by {other} and by {place}");
                Err(Error::new(ErrorKind::Duplicate, message).remedy("rename or remove one"))
            }
            Entry::Vacant(entry) => {
                let place = place.to_owned();
                entry.insert(Declaration { spec, aliases, place, is_stored: Mutex::new(false) });
                Ok(())
            }
        }
    }

    pub(crate) async fn keep(&self) -> Result<()> {
        let now = self.dq.shared().environment.clock.elapsed();
        let is_fresh = |refreshed: Duration| now.saturating_sub(refreshed) < SEEN_INTERVAL;
        if lock(&self.refreshed).is_some_and(is_fresh) {
            return Ok(());
        }
        let mut result: Result<()> = Ok(());
        for (name, declaration) in &self.schedules {
            let is_stored = *lock(&declaration.is_stored);
            let kept = if is_stored {
                store::refresh(&self.dq, name).await
            } else {
                self.store(name, declaration).await
            };
            match kept {
                Ok(()) => *lock(&declaration.is_stored) = true,
                Err(error) => {
                    tracing::warn!(schedule = %name, place = declaration.place, %error,
                        "the schedule was not stored");
                    // `run` repeats the call soon after a retryable error.
                    result = match result {
                        Err(first) if first.is_retryable() || !error.is_retryable() => Err(first),
                        _ => Err(error),
                    };
                }
            }
        }
        if result.is_ok() {
            *lock(&self.refreshed) = Some(now);
        }
        result
    }

    async fn store(&self, name: &str, declaration: &Declaration) -> Result<()> {
        for alias in declaration.aliases {
            // The program may have another schedule with that name.
            if !self.schedules.contains_key(*alias) {
                store::rename(&self.dq, alias, name).await?;
            }
        }
        store::declare(&self.dq, name, &declaration.spec).await
    }

    pub(crate) async fn run(&self) -> Infallible {
        if self.schedules.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let wait = match self.keep().await {
                // Repeating does not help with other errors; the next hour shows them again.
                Err(error) if error.is_retryable() => RETRY_DELAY,
                _ => SEEN_INTERVAL,
            };
            self.dq.sleep(wait).await;
        }
    }
}
