//! One trial.

use std::time::Duration;

use dq_core::Capabilities;
use futures_util::future::BoxFuture;

use super::failure::{Failure, TrialResult};
use super::store::TrialStore;
use super::under_test::{BackendUnderTest, StoreClock};

/// A slower trial fails, because the backend hangs.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(600);

/// A test for one promise in the contract.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    pub(super) name: &'static str,
    pub(super) requires: &'static [Requirement],
    pub(super) run: fn(TrialStore) -> BoxFuture<'static, TrialResult>,
}

impl Trial {
    /// Returns the name, as `topic/promise`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether the trial applies to these capabilities and this clock.
    #[must_use]
    pub fn applies(&self, capabilities: &Capabilities, clock: &StoreClock) -> bool {
        self.requires.iter().all(|requirement| requirement.is_met(capabilities, clock))
    }

    /// Runs the trial on its own store.
    ///
    /// # Errors
    /// If the backend breaks the promise, returns an unexpected error or panics, or if the trial
    /// takes longer than ten minutes.
    pub async fn run(&self, subject: &dyn BackendUnderTest) -> TrialResult {
        let store = TrialStore::open(subject).await?;
        // In its own task, so that a panic in the backend fails only this trial.
        let task = tokio::spawn((self.run)(store));
        let abort = task.abort_handle();
        match tokio::time::timeout(TRIAL_TIMEOUT, task).await {
            Ok(Ok(passed)) => passed,
            Ok(Err(panic)) => Err(Failure::new(format_args!("the trial panicked: {panic}"))),
            Err(_) => {
                abort.abort();
                Err(Failure::new(format_args!("the trial did not end within {TRIAL_TIMEOUT:?}")))
            }
        }
    }
}

/// A capability or a clock.
#[derive(Debug, Clone, Copy)]
pub(super) enum Requirement {
    Keys,
    Cancel,
    Reschedule,
    Browse,
    DeadLetters,
    Pause,
    Totals,
    Durable,
    Shared,
    Fifo,
    Detach,
    Again,
    Reasons,
    History,
    Registry,
    Forecast,
    VirtualTime,
    RealTime,
}

impl Requirement {
    fn is_met(self, capabilities: &Capabilities, clock: &StoreClock) -> bool {
        match self {
            Self::Keys => capabilities.keys,
            Self::Cancel => capabilities.cancel,
            Self::Reschedule => capabilities.reschedule,
            Self::Browse => capabilities.browse,
            Self::DeadLetters => capabilities.dead_letters,
            Self::Pause => capabilities.pause,
            Self::Totals => capabilities.totals,
            Self::Durable => capabilities.durable,
            Self::Shared => capabilities.shared,
            Self::Fifo => capabilities.fifo,
            Self::Detach => capabilities.detach,
            Self::Again => capabilities.again,
            Self::Reasons => capabilities.reasons,
            Self::History => capabilities.history,
            Self::Registry => capabilities.registry,
            Self::Forecast => capabilities.forecast,
            Self::VirtualTime => matches!(clock, StoreClock::Virtual(_)),
            Self::RealTime => matches!(clock, StoreClock::Real),
        }
    }
}

/// Lists one file's trials, each with its [`Requirement`]s in brackets.
macro_rules! topic {
    ($topic:literal: $($trial:ident $([$($requirement:ident),+])?),+ $(,)?) => {
        pub(super) const TRIALS: &[$crate::behaviour::Trial] = &[$(
            $crate::behaviour::Trial {
                name: concat!($topic, "/", stringify!($trial)),
                requires: &[$($($crate::behaviour::trial::Requirement::$requirement),+)?],
                run: |store| Box::pin($trial(store)),
            }
        ),+];
    };
}

pub(super) use topic;
