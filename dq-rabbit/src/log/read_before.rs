//! Remembers how far this process had read before a replay, to find losses.

use super::generation::Generation;
use super::state::producers::Producers;

#[derive(Debug, Default)]
pub(super) struct ReadBefore {
    producers: Producers,
    generation: Generation,
    is_lost: bool,
    replays: u64,
}

/// Acknowledged entries that the log does not have any more.
pub(super) struct Loss {
    pub(super) generation: Generation,
    pub(super) entries: u64,
}

impl ReadBefore {
    pub(super) fn begin_replay(&mut self, read: Producers, generation: Option<Generation>) {
        self.replays += 1;
        self.producers.merge(read);
        if let Some(generation) = generation.filter(|_| !self.is_lost) {
            self.generation = generation;
        }
    }

    pub(super) fn lose(&mut self, generation: Generation) {
        tracing::error!(
            generation = generation.number(),
            "the broker has lost a stream of the log, which goes on without it"
        );
        (self.generation, self.is_lost) = (generation, true);
    }

    pub(super) fn replays(&self) -> u64 {
        self.replays
    }

    /// Returns the loss that this replay shows; `None` if there is none, or if another replay has
    /// begun.
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

    pub(super) fn forget(&mut self, replay: u64) {
        if self.replays == replay {
            *self = Self { replays: replay, ..Self::default() };
        }
    }
}
