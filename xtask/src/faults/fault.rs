//! A storm's faults, their order, and the client's defects.

use rand::Rng;
use rand::rngs::SmallRng;

/// A fault. It is instantaneous or lasts up to five seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    KillProcess,
    FreezeProcess,
    InterruptProcess,
    /// Kills a process; its replacement has a wrong, jumping clock.
    WrongClock,
    KillServer,
    StopServer,
    FreezeServer,
    /// Kills the pooler between some processes and the server, and starts it again.
    KillPooler,
    CutOff,
    FailOver,
    /// Leaves the server without memory, so it refuses calls that need memory.
    FillMemory,
    /// Fills the disk, or makes the server believe it is full.
    FillDisk,
    /// Keeps connections open but passes nothing.
    PauseConnections,
    PauseRequests,
    PauseReplies,
    DelayConnections,
    /// Resets all connections (RST).
    ResetConnections,
    /// Silently drops everything on open connections. Neither side notices.
    AbandonConnections,
    /// Cuts the connection that first sends this many bytes.
    CutRequests,
    /// Same for received bytes: the server has the request, but its reply is lost.
    CutReplies,
    /// Same, with an RST.
    ResetReplies,
}

pub(super) const OF_PROCESSES: [Fault; 3] =
    [Fault::KillProcess, Fault::FreezeProcess, Fault::InterruptProcess];
pub(super) const OF_SERVERS: [Fault; 12] = [
    Fault::KillServer,
    Fault::StopServer,
    Fault::FreezeServer,
    Fault::PauseConnections,
    Fault::PauseRequests,
    Fault::PauseReplies,
    Fault::DelayConnections,
    Fault::ResetConnections,
    Fault::AbandonConnections,
    Fault::CutRequests,
    Fault::CutReplies,
    Fault::ResetReplies,
];

/// The client's deliberate defects, each with the beginning of the violation that the judge must
/// report. They prove that a storm can fail.
pub(super) const DEFECTS: [(&str, &str); 13] = [
    ("loses-jobs", "promise 1: "),
    ("exchanges-payloads", "promise 1: "),
    ("starts-early", "promise 2: "),
    ("ends-leases-early", "promise 4: "),
    ("drops-settlements", "promise 4: "),
    ("ignores-cancels", "promise 5: "),
    ("restores-replaced", "promise 5: "),
    ("forgets-failures", "promise 6: "),
    ("forgets-pins", "promise 4: "),
    ("miscounts", "the counts of "),
    ("exceeds-limits", "the limit of FAULTS"),
    ("exceeds-group-limits", "the limit of a group of FAULTS"),
    ("exceeds-rates", "the rate of FAULTS"),
];

/// A store's faults in random order: each comes once before any comes again.
#[derive(Debug)]
pub(super) struct Deck {
    all: Vec<Fault>,
    left: Vec<Fault>,
    dealt: usize,
}

impl Deck {
    pub(super) fn new(all: Vec<Fault>) -> Self {
        Self { all, left: Vec::new(), dealt: 0 }
    }

    pub(super) fn draw(&mut self, rng: &mut SmallRng) -> Fault {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        self.dealt += 1;
        self.left.swap_remove(rng.random_range(0..self.left.len()))
    }

    /// Whether each fault has come once, and at least `faults` in all.
    pub(super) fn has_dealt(&self, faults: usize) -> bool {
        self.dealt >= self.all.len().max(faults)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn each_fault_comes_once_before_any_comes_again() {
        let (mut deck, mut rng) = (Deck::new(OF_SERVERS.to_vec()), SmallRng::seed_from_u64(1));
        let mut rounds = [(); 2].map(|()| OF_SERVERS.map(|_| deck.draw(&mut rng)));
        assert_ne!(rounds[0], rounds[1], "the order is random");
        rounds.iter_mut().for_each(|round| round.sort_unstable());
        assert_eq!(rounds[0], rounds[1]);
    }
}
