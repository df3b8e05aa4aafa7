//! What was read of the log before it was replayed, to find out what it has lost.

use super::producers::Producers;
use crate::generation::Generation;

/// What this process knew before it replayed the log.
#[derive(Debug, Default)]
pub(super) struct ReadBefore {
    /// The entries that it had read.
    producers: Producers,
    /// The generation that it read, or could not find.
    generation: Generation,
    /// Whether the log goes on without that generation.
    is_lost: bool,
    replays: u64,
}

/// Acknowledged entries that are gone.
pub(super) struct Loss {
    pub(super) generation: Generation,
    /// How many of them this process had read.
    pub(super) entries: u64,
}

impl ReadBefore {
    /// The log is read again, after these entries were read of it up to this generation.
    pub(super) fn begin_replay(&mut self, read: Producers, generation: Option<Generation>) {
        self.replays += 1;
        self.producers.merge(read);
        if let Some(generation) = generation.filter(|_| !self.is_lost) {
            self.generation = generation;
        }
    }

    /// The log goes on without this generation.
    pub(super) fn lose(&mut self, generation: Generation) {
        tracing::error!(
            generation = generation.number(),
            "the broker has lost a stream of the log, which goes on without it"
        );
        (self.generation, self.is_lost) = (generation, true);
    }

    /// Number of replays.
    pub(super) fn replays(&self) -> u64 {
        self.replays
    }

    /// What is missing in the entries that this replay has found. `None` if nothing is, or another
    /// replay has begun, which finds it.
    pub(super) fn compare(&mut self, replay: u64, found: &Producers) -> Option<Loss> {
        if self.replays != replay {
            return None;
        }
        let entries = found.missing(&self.producers);
        if entries == 0 && !self.is_lost {
            self.forget(replay);
            return None;
        }
        Some(Loss { generation: self.generation, entries })
    }

    /// Forgets what was read before this replay, unless another one has begun.
    pub(super) fn forget(&mut self, replay: u64) {
        if self.replays == replay {
            *self = Self { replays: replay, ..Self::default() };
        }
    }
}
