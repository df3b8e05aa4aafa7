//! Levels: which kinds of entries may be written, so that versions can share a log.
//!
//! Each process says which levels it understands when it arrives (*hello*), and again at intervals.
//! The level in force is raised by an entry, which has an effect only if every live process
//! understands the new level. So the log decides whether a process was admitted before a raise or
//! is too old for it, and an entry of a new level is never read by a process that does not know it.
//! The level is never lowered.
//!
//! A hello ends when it is withdrawn, or like a lease: once a process has seen no renewal for as long
//! as it lasts, by elapsed time.

use std::collections::BTreeMap;
use std::time::Duration;

use dq_core::{Error, ErrorKind};

use super::wire::{Hello, Levels, LiveProcess};

/// The level of a new log.
const FIRST: u16 = 1;

/// What this version understands.
const OWN_LEVELS: Levels = Levels { min: FIRST, max: FIRST };

/// The levels of this process, and the times of hellos and raises.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LevelSettings {
    pub(crate) levels: Levels,
    /// How often the hello is renewed.
    pub(crate) renew_every: Duration,
    /// How long it lasts.
    pub(crate) ttl: Duration,
    /// How long all live processes must have understood the next level before this process raises it.
    /// Until then, a deployment can be rolled back. Must be longer than `renew_every`, in which the
    /// processes of a log that was deleted say hello to the new one.
    pub(crate) raise_after: Duration,
}

impl Default for LevelSettings {
    fn default() -> Self {
        Self {
            levels: OWN_LEVELS,
            renew_every: Duration::from_secs(60),
            ttl: Duration::from_secs(180),
            raise_after: Duration::from_secs(600),
        }
    }
}

/// Result of a hello, with the level in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted(u16),
    /// The process understands only lower levels.
    TooOld(u16),
    /// The process understands only higher levels, and a live process does not understand these.
    TooNew(u16),
}

impl Admission {
    /// # Errors
    /// `Incompatible` if the process with these levels was refused.
    pub(crate) fn check(self, own: Levels) -> dq_core::Result<()> {
        match self {
            Self::Admitted(_) => Ok(()),
            Self::TooOld(level) => Err(too_old(level, own)),
            Self::TooNew(level) => Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the log is at level {level}, and a process that still runs keeps it there; this \
                     version needs level {} or higher",
                    own.min
                ),
            )
            .remedy("first deploy a version between the two to all processes of the prefix")
            .operation("connect")),
        }
    }
}

/// The error of a process that does not understand the level in force.
pub(crate) fn too_old(level: u16, own: Levels) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "the log is at level {level}, and this version understands levels up to {}",
            own.max
        ),
    )
    .remedy("run the newer version that the other processes of the prefix run")
    .operation("connect")
}

/// The level in force, and the live processes.
#[derive(Debug)]
pub(crate) struct ProcessLevels {
    level: u16,
    processes: BTreeMap<u64, ObservedProcess>,
}

#[derive(Debug)]
struct ObservedProcess {
    process: LiveProcess,
    /// The elapsed time of this process at which the hello lapses.
    lapses_at: Duration,
}

impl ObservedProcess {
    fn new(process: LiveProcess, seen: Duration) -> Self {
        let lapses_at = seen.saturating_add(Duration::from_millis(process.ttl));
        Self { process, lapses_at }
    }
}

impl Default for ProcessLevels {
    fn default() -> Self {
        Self { level: FIRST, processes: BTreeMap::new() }
    }
}

impl ProcessLevels {
    /// Restores the state of a snapshot.
    pub(crate) fn restore(level: u16, processes: Vec<LiveProcess>, seen: Duration) -> Self {
        let observed = |process: LiveProcess| (process.id, ObservedProcess::new(process, seen));
        Self { level, processes: processes.into_iter().map(observed).collect() }
    }

    /// The level in force.
    pub(crate) fn level(&self) -> u16 {
        self.level
    }

    /// Admits a process, renews its hello, or withdraws it.
    pub(crate) fn hello(&mut self, hello: Hello, seen: Duration) -> Admission {
        let Hello { process: id, levels, ttl } = hello;
        let renewals =
            self.processes.remove(&id).map_or(0, |known| known.process.renewals.wrapping_add(1));
        if ttl == 0 {
            return Admission::Admitted(self.level);
        }
        if levels.max < self.level {
            return Admission::TooOld(self.level);
        }
        if levels.min > self.level && !self.raise(levels.min) {
            return Admission::TooNew(self.level);
        }
        let process = LiveProcess { id, levels, ttl, renewals };
        self.processes.insert(id, ObservedProcess::new(process, seen));
        Admission::Admitted(self.level)
    }

    /// Raises the level, if all live processes understand the new one.
    pub(crate) fn raise(&mut self, level: u16) -> bool {
        let mut live = self.processes.values();
        let is_understood = live.all(|live| live.process.levels.max >= level);
        let raises = level > self.level && is_understood;
        if raises {
            self.level = level;
        }
        raises
    }

    /// The highest level that all live processes understand, if that is higher than the level in
    /// force.
    pub(crate) fn next_level(&self) -> Option<u16> {
        let max = self.processes.values().map(|live| live.process.levels.max).min()?;
        (max > self.level).then_some(max)
    }

    /// The processes whose hello has lapsed by this elapsed time. They are named again and again
    /// until their hellos end, because the entry that names them may fail.
    pub(crate) fn lapsed(&self, now: Duration) -> Vec<LiveProcess> {
        let lapsed = self.processes.values().filter(|live| live.lapses_at <= now);
        lapsed.map(|live| live.process).collect()
    }

    /// Ends the hello of a named process, unless it was renewed since.
    pub(crate) fn end(&mut self, named: &LiveProcess) {
        if self.processes.get(&named.id).is_some_and(|live| live.process == *named) {
            self.processes.remove(&named.id);
        }
    }

    /// The live processes, which all replicas agree on.
    pub(crate) fn live(&self) -> Vec<LiveProcess> {
        self.processes.values().map(|live| live.process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Levels = Levels { min: 1, max: 1 };
    const NEW: Levels = Levels { min: 1, max: 2 };

    fn hello(process: u64, levels: Levels) -> Hello {
        Hello { process, levels, ttl: 1_000 }
    }

    #[test]
    fn the_level_is_raised_once_all_live_processes_understand_it() {
        let mut state = ProcessLevels::default();
        for (process, levels) in [(1, OLD), (2, OLD), (3, NEW)] {
            assert_eq!(state.hello(hello(process, levels), Duration::ZERO), Admission::Admitted(1));
        }
        assert_eq!(state.next_level(), None);
        assert!(!state.raise(2), "two do not understand it");
        // The second is replaced by a new version, and that is rolled back.
        state.hello(Hello { ttl: 0, ..hello(2, OLD) }, Duration::ZERO);
        state.hello(hello(4, NEW), Duration::ZERO);
        state.hello(Hello { ttl: 0, ..hello(4, NEW) }, Duration::ZERO);
        assert_eq!(state.hello(hello(5, OLD), Duration::ZERO), Admission::Admitted(1));
        assert!(!state.raise(2));
        for process in [1, 5] {
            state.hello(Hello { ttl: 0, ..hello(process, OLD) }, Duration::ZERO);
        }
        assert_eq!(state.next_level(), Some(2));
        assert!(state.raise(2) && !state.raise(2) && !state.raise(1));
        assert_eq!(state.hello(hello(6, OLD), Duration::ZERO), Admission::TooOld(2));
        assert_eq!(state.hello(hello(6, NEW), Duration::ZERO), Admission::Admitted(2));
        assert_eq!(state.live().len(), 2);
    }

    #[test]
    fn a_process_that_needs_a_higher_level_raises_it_or_is_refused() {
        let mut state = ProcessLevels::default();
        let needs = Levels { min: 2, max: 3 };
        state.hello(hello(1, OLD), Duration::ZERO);
        assert_eq!(state.hello(hello(2, needs), Duration::ZERO), Admission::TooNew(1));
        state.hello(hello(1, NEW), Duration::ZERO);
        assert_eq!(state.hello(hello(2, needs), Duration::ZERO), Admission::Admitted(2));
    }

    #[test]
    fn a_hello_ends_by_observed_time_unless_it_was_renewed() {
        let mut state = ProcessLevels::default();
        let seconds = Duration::from_secs;
        state.hello(hello(1, OLD), seconds(10));
        assert!(state.lapsed(Duration::from_millis(10_999)).is_empty());
        let named = state.lapsed(seconds(11));
        assert_eq!(named.len(), 1);
        assert_eq!(state.lapsed(seconds(12)), named, "the first entry may have failed");
        state.hello(hello(1, OLD), seconds(12));
        state.end(&named[0]);
        assert_eq!(state.live().len(), 1, "it was renewed");
        assert!(state.lapsed(Duration::from_millis(12_999)).is_empty());
        let restarted = ProcessLevels::restore(state.level(), state.live(), seconds(500));
        assert_eq!(restarted.live(), state.live());
        assert!(restarted.lapsed(seconds(500)).is_empty(), "seen only now");
        let named = restarted.lapsed(seconds(501));
        state.end(&named[0]);
        assert!(state.live().is_empty());
    }

    #[test]
    fn refusals_are_incompatible_and_name_the_levels() {
        assert!(Admission::Admitted(7).check(OLD).is_ok());
        for (refusal, own, word) in [
            (Admission::TooOld(2), OLD, "level 2"),
            (Admission::TooNew(1), Levels { min: 2, max: 3 }, "level 1"),
        ] {
            let error = refusal.check(own).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.message().contains(word) && error.remedy_text().is_some(), "{error}");
        }
    }
}
