//! A storm's faults and their order.

use super::dice::Dice;

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
    CutOff,
    FailOver,
    /// Leaves the server without memory, so it refuses calls that need memory.
    FillMemory,
    /// Fills the disk, or makes the server believe it is full.
    FillDisk,
    /// Keeps connections open but passes nothing.
    PauseConnections,
    /// Passes replies only.
    PauseRequests,
    /// Passes requests only.
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

/// Process faults for every store. For `WrongClock`, see `Server::faults`.
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

/// A store's faults in random order: each comes once before any comes again.
#[derive(Debug)]
pub(super) struct Deck {
    all: Vec<Fault>,
    /// Faults not yet dealt in this round.
    left: Vec<Fault>,
    dealt: usize,
}

impl Deck {
    pub(super) fn new(all: Vec<Fault>) -> Self {
        Self { all, left: Vec::new(), dealt: 0 }
    }

    pub(super) fn draw(&mut self, dice: &mut Dice) -> Fault {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        self.dealt += 1;
        let number = dice.below(self.left.len() as u64) as usize;
        self.left.swap_remove(number)
    }

    pub(super) fn has_dealt_all(&self) -> bool {
        self.dealt >= self.all.len()
    }

    pub(super) fn dealt(&self) -> usize {
        self.dealt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_comes_once_before_any_comes_again() {
        let mut deck = Deck::new(OF_SERVERS.to_vec());
        let mut dice = Dice::new(1);
        let mut round =
            || OF_SERVERS.map(|_| (deck.has_dealt_all(), deck.draw(&mut dice))).to_vec();
        let dealt = [round(), round()];
        assert!(dealt[0].iter().all(|(all, _)| !all) && dealt[1].iter().all(|(all, _)| *all));
        let mut rounds = dealt.map(|round| round.into_iter().map(|(_, it)| it).collect::<Vec<_>>());
        assert_ne!(rounds[0], rounds[1], "the order is random");
        rounds.iter_mut().for_each(|round| round.sort_unstable());
        assert_eq!(rounds[0], rounds[1]);
        assert_eq!(rounds[0].len(), OF_SERVERS.len());
    }
}
