//! The faults of a storm, and their order.

use super::dice::Dice;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    KillProcess,
    FreezeProcess,
    InterruptProcess,
    /// A process is killed, and the one that replaces it has a clock that is wrong and jumps.
    WrongClock,
    KillServer,
    StopServer,
    FreezeServer,
    /// A node of a cluster is cut off from the others.
    CutOff,
    /// A replica becomes the primary.
    FailOver,
    /// The server has no memory left, and refuses what needs some.
    FillMemory,
    /// The disk is full, or the server takes it for full.
    FillDisk,
    /// Connections stay open, and nothing passes.
    PauseConnections,
    /// Replies pass, requests do not.
    PauseRequests,
    /// Requests pass, replies do not.
    PauseReplies,
    /// Requests and replies pass late.
    DelayConnections,
    /// All connections are reset (RST).
    ResetConnections,
    /// Nothing passes on the open connections any more, and neither side learns of it.
    AbandonConnections,
    /// The connection that is the first to send so many bytes is cut.
    CutRequests,
    /// The same for what it receives: the server has the request, and its reply is lost.
    CutReplies,
    /// The same, with an RST.
    ResetReplies,
}

/// Faults of the processes that every store must stand. Not `WrongClock`: see `Server::faults`.
pub(super) const OF_PROCESSES: [Fault; 3] =
    [Fault::KillProcess, Fault::FreezeProcess, Fault::InterruptProcess];
/// Faults of a server and of the connections to it.
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

/// The faults of a store in random order: each comes once before any comes again.
#[derive(Debug)]
pub(super) struct Deck {
    all: Vec<Fault>,
    /// Those of this round that have not come.
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

    /// Whether each fault has come.
    pub(super) fn has_dealt_all(&self) -> bool {
        self.dealt >= self.all.len()
    }

    /// The number of faults that have come.
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
