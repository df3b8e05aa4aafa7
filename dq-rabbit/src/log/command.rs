//! Commands with the types of their replies. A caller makes one of these; the log holds it as a
//! [`wire::Command`].

use dq_core::{
    Cancelled, Claimed, Error, ErrorKind, OperateReport, QueueName, Renewed, Rescheduled, Result,
    Scheduled, Settled,
};

use super::wire;

/// Result of applying a log entry.
#[derive(Debug)]
pub(crate) enum CommandReply {
    /// The command has no result.
    Done,
    Scheduled(Vec<Scheduled>),
    Cancelled(Vec<Cancelled>),
    Rescheduled(Vec<Rescheduled>),
    Claimed(Claimed),
    Settled(Vec<Settled>),
    Renewed(Vec<Renewed>),
    /// Jobs or queues that changed.
    Operated(OperateReport),
    /// The command had no effect, because the jobs would exceed the capacity of the log.
    Full,
}

impl CommandReply {
    fn name(&self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Scheduled(_) => "Scheduled",
            Self::Cancelled(_) => "Cancelled",
            Self::Rescheduled(_) => "Rescheduled",
            Self::Claimed(_) => "Claimed",
            Self::Settled(_) => "Settled",
            Self::Renewed(_) => "Renewed",
            Self::Operated(_) => "Operated",
            Self::Full => "Full",
        }
    }
}

/// A command that knows the type of its reply.
pub(crate) trait TypedCommand: Send + 'static {
    type Reply;

    /// The command as it is stored in the log.
    fn into_wire(self) -> wire::Command;

    /// The reply of this command.
    ///
    /// # Errors
    /// `Full` if the command had no effect because of the capacity of the log; `Internal` for the
    /// reply of another command.
    fn reply(reply: CommandReply) -> Result<Self::Reply>;
}

macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($($field:ident: $content:ty),+))? -> $reply:ty {
            $variant:pat => $result:expr
        }
    )+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub(crate) struct $name $(($(pub(crate) $content),+))?;

        impl TypedCommand for $name {
            type Reply = $reply;

            fn into_wire(self) -> wire::Command {
                let Self $(($($field),+))? = self;
                wire::Command::$name $(($($field),+))?
            }

            fn reply(reply: CommandReply) -> Result<$reply> {
                match reply {
                    $variant => Ok($result),
                    CommandReply::Full => Err(full()),
                    other => Err(mismatch(stringify!($name), &other)),
                }
            }
        }
    )+};
}

commands! {
    /// Changes nothing. When it is applied, the replica contains the effects of all earlier
    /// entries.
    Barrier -> () { CommandReply::Done => () }
    /// Stores jobs.
    Schedule(jobs: Vec<wire::NewJob>) -> Vec<Scheduled> {
        CommandReply::Scheduled(results) => results
    }
    /// Cancels waiting jobs.
    Cancel(jobs: Vec<wire::JobRef>) -> Vec<Cancelled> {
        CommandReply::Cancelled(results) => results
    }
    /// Changes the due times of waiting jobs.
    Reschedule(moves: Vec<wire::Reschedule>) -> Vec<Rescheduled> {
        CommandReply::Rescheduled(results) => results
    }
    /// Leases due jobs.
    Claim(claim: wire::Claim) -> Claimed {
        CommandReply::Claimed(claimed) => claimed
    }
    /// Ends leases.
    Settle(settlements: Vec<wire::Settlement>) -> Vec<Settled> {
        CommandReply::Settled(results) => results
    }
    /// Extends leases.
    Renew(renewals: Vec<wire::Renewal>) -> Vec<Renewed> {
        CommandReply::Renewed(results) => results
    }
    /// An operator's intervention in one queue. Replies how many jobs or queues changed.
    Operate(queue: QueueName, operation: wire::QueueOperation) -> OperateReport {
        CommandReply::Operated(report) => report
    }
    /// Stores foreign messages as dead jobs, each with the reason.
    Park(messages: Vec<(wire::NewJob, String)>) -> () { CommandReply::Done => () }
    /// Changes the limits of the history.
    SetHistory(limits: wire::HistoryLimits) -> () { CommandReply::Done => () }
    /// Limits what a snapshot may take.
    SetCapacity(bytes: u64) -> () { CommandReply::Done => () }
    /// Ends a generation of the log.
    Close(generation: u32) -> () { CommandReply::Done => () }
    /// Announces a runner.
    Announce(announcement: wire::Announcement) -> () { CommandReply::Done => () }
    /// Appends one entry of a snapshot.
    Snapshot(entry: wire::SnapshotEntry) -> () { CommandReply::Done => () }
}

/// The error of a command that stores jobs, when the log has no room for them.
pub(crate) fn full() -> Error {
    Error::new(ErrorKind::Full, "the jobs that are not done take a fifth of the log")
        .remedy("run or remove jobs, or set a larger `log_size_mib`")
}

fn mismatch(command: &str, reply: &CommandReply) -> Error {
    let what =
        format!("the log replied to the command {command} with a reply of kind {}", reply.name());
    Error::new(ErrorKind::Internal, what).remedy("please report this with the message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies() -> [CommandReply; 8] {
        let now = dq_core::Timestamp::EPOCH;
        [
            CommandReply::Done,
            CommandReply::Scheduled(Vec::new()),
            CommandReply::Cancelled(Vec::new()),
            CommandReply::Rescheduled(Vec::new()),
            CommandReply::Claimed(Claimed::new(Vec::new(), None, now)),
            CommandReply::Settled(Vec::new()),
            CommandReply::Renewed(Vec::new()),
            CommandReply::Operated(OperateReport::default()),
        ]
    }

    fn accepts_only<C: TypedCommand>(command: &str, expected: &str) {
        for reply in replies() {
            let kind = reply.name();
            match C::reply(reply) {
                Ok(_) => assert_eq!(kind, expected, "{command} accepts it"),
                Err(error) => {
                    assert_ne!(kind, expected, "{command} refuses it");
                    assert_eq!(error.kind(), ErrorKind::Internal);
                    let names_both =
                        error.message().contains(command) && error.message().contains(kind);
                    assert!(names_both, "{error}");
                }
            }
        }
    }

    #[test]
    fn a_reply_of_another_kind_is_an_internal_error_that_names_both() {
        accepts_only::<Barrier>("Barrier", "Done");
        accepts_only::<Schedule>("Schedule", "Scheduled");
        accepts_only::<Cancel>("Cancel", "Cancelled");
        accepts_only::<Reschedule>("Reschedule", "Rescheduled");
        accepts_only::<Claim>("Claim", "Claimed");
        accepts_only::<Settle>("Settle", "Settled");
        accepts_only::<Renew>("Renew", "Renewed");
        accepts_only::<Operate>("Operate", "Operated");
        accepts_only::<Park>("Park", "Done");
        accepts_only::<SetHistory>("SetHistory", "Done");
        accepts_only::<SetCapacity>("SetCapacity", "Done");
        accepts_only::<Close>("Close", "Done");
        accepts_only::<Announce>("Announce", "Done");
        accepts_only::<Snapshot>("Snapshot", "Done");
    }
}
