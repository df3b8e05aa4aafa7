//! Schedules that a program declares, by attributes of its handlers and by its configuration.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use super::store;
use super::ticker::{SEEN_INTERVAL, require_support};
use crate::client::Dq;
use crate::error::{Error, ErrorKind, Result};
use crate::model::ScheduleSpec;
use crate::sync::lock;

/// Delay after a failed call.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The schedules that a program declares.
///
/// Each is stored once, when a runner starts: so the process that has started last decides, and an
/// older one that still runs does not change it back. After that, each process says once an hour
/// that it declares them.
#[derive(Debug)]
pub(crate) struct Declarations {
    dq: Dq,
    schedules: BTreeMap<String, Declaration>,
    /// When all of them were last stored or refreshed, as elapsed time of this process.
    refreshed: Mutex<Option<Duration>>,
}

#[derive(Debug)]
struct Declaration {
    spec: ScheduleSpec,
    /// The names that it had earlier.
    aliases: &'static [&'static str],
    /// The source location or the configuration.
    place: String,
    is_stored: Mutex<bool>,
}

impl Declarations {
    pub(crate) fn new(dq: &Dq) -> Self {
        Self { dq: dq.clone(), schedules: BTreeMap::new(), refreshed: Mutex::default() }
    }

    /// Adds a schedule that is declared at this place.
    ///
    /// # Errors
    /// `Duplicate` naming both places if there is one of this name; `Unsupported` if the store lacks
    /// a capability that schedules need.
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

    /// Stores the schedules that this process has not stored yet, and says of the others, once an
    /// hour, that it declares them, unless another process has said so within the hour.
    ///
    /// # Errors
    /// The first retryable error of a schedule, else the first one. The others are stored all the
    /// same.
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
                    // `run` repeats the call soon because of a retryable one.
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
            // The program may have another schedule of that name.
            if !self.schedules.contains_key(*alias) {
                store::rename(&self.dq, alias, name).await?;
            }
        }
        store::declare(&self.dq, name, &declaration.spec).await
    }

    /// [`keep`](Self::keep), for ever.
    pub(crate) async fn run(&self) -> Infallible {
        if self.schedules.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let wait = match self.keep().await {
                // Another error is not mended by a repetition; the next hour shows it again.
                Err(error) if error.is_retryable() => RETRY_DELAY,
                _ => SEEN_INTERVAL,
            };
            self.dq.sleep(wait).await;
        }
    }
}
