//! Commands with the types of their replies.

use dq_core::{
    Cancelled, Claimed, Error, ErrorKind, OperateReport, QueueName, Renewed, Rescheduled, Result,
    Scheduled, Settled,
};

use super::wire;

/// What applying a command gives.
#[derive(Debug)]
pub(crate) enum CommandReply {
    Done,
    Scheduled(Vec<Scheduled>),
    Cancelled(Vec<Cancelled>),
    Rescheduled(Vec<Rescheduled>),
    Claimed(Claimed),
    Settled(Vec<Settled>),
    Renewed(Vec<Renewed>),
    Operated(OperateReport),
    /// The command had no effect, because its jobs would exceed the capacity of the log.
    Full,
}

/// A command with the type of its reply.
pub(crate) trait TypedCommand: Send + 'static {
    type Reply;

    fn into_wire(self) -> wire::Command;

    /// # Errors
    /// `Full` for a command without effect; `Internal` for the reply of another command.
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
                    _ => Err(mismatch(stringify!($name))),
                }
            }
        }
    )+};
}

commands! {
    Barrier -> () { CommandReply::Done => () }
    Schedule(jobs: Vec<wire::NewJob>) -> Vec<Scheduled> {
        CommandReply::Scheduled(results) => results
    }
    Cancel(jobs: Vec<wire::JobRef>) -> Vec<Cancelled> {
        CommandReply::Cancelled(results) => results
    }
    Reschedule(moves: Vec<wire::Reschedule>) -> Vec<Rescheduled> {
        CommandReply::Rescheduled(results) => results
    }
    Claim(claim: wire::Claim) -> Claimed {
        CommandReply::Claimed(claimed) => claimed
    }
    Settle(settlements: Vec<wire::Settlement>) -> Vec<Settled> {
        CommandReply::Settled(results) => results
    }
    Renew(renewals: Vec<wire::Renewal>) -> Vec<Renewed> {
        CommandReply::Renewed(results) => results
    }
    /// Replies how many jobs or queues changed.
    Operate(queue: QueueName, operation: wire::QueueOperation) -> OperateReport {
        CommandReply::Operated(report) => report
    }
    /// Stores jobs that are dead, each with the reason.
    Park(messages: Vec<(wire::NewJob, String)>) -> () { CommandReply::Done => () }
    SetHistory(limits: wire::HistoryLimits) -> () { CommandReply::Done => () }
    SetCapacity(bytes: u64) -> () { CommandReply::Done => () }
    Close(generation: u32) -> () { CommandReply::Done => () }
    Announce(announcement: wire::Announcement) -> () { CommandReply::Done => () }
    Snapshot(entry: wire::SnapshotEntry) -> () { CommandReply::Done => () }
}

/// The error if the log has no room for the jobs of a command.
pub(crate) fn full() -> Error {
    Error::new(ErrorKind::Full, "the jobs that are not done take a fifth of the log")
        .remedy("run or remove jobs, or set a larger `log_size_mib`")
}

fn mismatch(command: &str) -> Error {
    let what = format!("the log gave the command {command} the reply of another command");
    Error::new(ErrorKind::Internal, what).remedy("please report this with the message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_of_another_command_is_an_internal_error() {
        assert!(Schedule::reply(CommandReply::Scheduled(Vec::new())).is_ok());
        let errors = [CommandReply::Full, CommandReply::Done].map(Schedule::reply);
        let kinds = errors.map(|reply| reply.unwrap_err().kind());
        assert_eq!(kinds, [ErrorKind::Full, ErrorKind::Internal]);
    }
}
