//! One trial.

use std::ops::Deref;
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
    pub(super) applies: fn(&Features) -> bool,
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
        let virtual_time = matches!(clock, StoreClock::Virtual(_));
        let capabilities = *capabilities;
        (self.applies)(&Features { capabilities, virtual_time, real_time: !virtual_time })
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

/// What a trial may require: a capability, or a clock.
#[derive(Debug)]
pub(super) struct Features {
    capabilities: Capabilities,
    pub(super) virtual_time: bool,
    pub(super) real_time: bool,
}

impl Deref for Features {
    type Target = Capabilities;

    fn deref(&self) -> &Capabilities {
        &self.capabilities
    }
}

/// Lists one file's trials, each with the [`Features`] that it requires in brackets.
macro_rules! topic {
    ($topic:literal: $($trial:ident $([$($requirement:ident),+])?),+ $(,)?) => {
        pub(super) const TRIALS: &[$crate::behaviour::Trial] = &[$(
            $crate::behaviour::Trial {
                name: concat!($topic, "/", stringify!($trial)),
                applies: |_features| true $($(&& _features.$requirement)+)?,
                run: |store| Box::pin($trial(store)),
            }
        ),+];
    };
}

pub(super) use topic;
