//! One trial: its name, what it needs, and how it is run.

use std::time::Duration;

use dq_core::Capabilities;
use futures_util::future::BoxFuture;

use super::failure::{Failure, Passed};
use super::stand::Stand;
use super::subject::{Subject, Time};

/// A backend that hangs fails; no trial is near this, whatever the machine.
const HANGS: Duration = Duration::from_secs(600);

/// One thing that backends promise.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    pub(super) name: &'static str,
    pub(super) needs: &'static [Need],
    pub(super) run: fn(Stand) -> BoxFuture<'static, Passed>,
}

impl Trial {
    /// `topic/what_is_promised`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the trial says anything about a backend with these capabilities.
    #[must_use]
    pub fn applies(&self, capabilities: &Capabilities, time: &Time) -> bool {
        self.needs.iter().all(|need| need.is_met(capabilities, time))
    }

    /// Runs the trial on a store of its own.
    ///
    /// # Errors
    /// The promise that was broken.
    pub async fn run(&self, subject: &dyn Subject) -> Passed {
        let stand = Stand::open(subject).await?;
        // In a task of its own, so that a panic in the backend is a failure of this trial only.
        let task = tokio::spawn((self.run)(stand));
        let abort = task.abort_handle();
        match tokio::time::timeout(HANGS, task).await {
            Ok(Ok(passed)) => passed,
            Ok(Err(panic)) => Err(Failure::new(format_args!("the trial panicked: {panic}"))),
            Err(_) => {
                abort.abort();
                Err(Failure::new(format_args!("the backend hung for {HANGS:?}")))
            }
        }
    }
}

/// What a trial needs in order to say anything.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
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
    VirtualTime,
    RealTime,
    NoKeys,
    NoCancel,
    NoReschedule,
    NoBrowse,
    NoDeadLetters,
    NoPause,
}

impl Need {
    fn is_met(self, offered: &Capabilities, time: &Time) -> bool {
        match self {
            Self::Keys => offered.keys,
            Self::Cancel => offered.cancel,
            Self::Reschedule => offered.reschedule,
            Self::Browse => offered.browse,
            Self::DeadLetters => offered.dead_letters,
            Self::Pause => offered.pause,
            Self::Totals => offered.totals,
            Self::Durable => offered.durable,
            Self::Shared => offered.shared,
            Self::Fifo => offered.fifo,
            Self::VirtualTime => matches!(time, Time::Virtual(_)),
            Self::RealTime => matches!(time, Time::Real),
            Self::NoKeys => !offered.keys,
            Self::NoCancel => !offered.cancel,
            Self::NoReschedule => !offered.reschedule,
            Self::NoBrowse => !offered.browse,
            Self::NoDeadLetters => !offered.dead_letters,
            Self::NoPause => !offered.pause,
        }
    }
}

/// Lists the trials of one file, each with what it needs.
macro_rules! topic {
    ($topic:literal: $($trial:ident $([$($need:ident),+])?),+ $(,)?) => {
        pub(super) const TRIALS: &[$crate::behaviour::Trial] = &[$(
            $crate::behaviour::Trial {
                name: concat!($topic, "/", stringify!($trial)),
                needs: &[$($($crate::behaviour::trial::Need::$need),+)?],
                run: |stand| Box::pin($trial(stand)),
            }
        ),+];
    };
}

pub(super) use topic;
