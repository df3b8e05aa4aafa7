//! Replies to commands.

use dq_core::{
    Cancelled, Claimed, Error, ErrorKind, OperateReport, Renewed, Rescheduled, Result, Scheduled,
    Settled,
};

/// The result of applying a command.
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
    /// The command had no effect: its jobs would exceed the log's capacity.
    Full,
}

/// Converts a reply to its contents: `Full` for a command without effect, `Internal` for the reply
/// of another command.
macro_rules! contents {
    ($($contents:ty: $reply:pat => $result:expr;)+) => {$(
        impl TryFrom<CommandReply> for $contents {
            type Error = Error;

            fn try_from(reply: CommandReply) -> Result<Self> {
                match reply {
                    $reply => Ok($result),
                    CommandReply::Full => Err(full()),
                    _ => Err(mismatch()),
                }
            }
        }
    )+};
}

contents! {
    (): CommandReply::Done => ();
    Vec<Scheduled>: CommandReply::Scheduled(results) => results;
    Vec<Cancelled>: CommandReply::Cancelled(results) => results;
    Vec<Rescheduled>: CommandReply::Rescheduled(results) => results;
    Claimed: CommandReply::Claimed(claimed) => claimed;
    Vec<Settled>: CommandReply::Settled(results) => results;
    Vec<Renewed>: CommandReply::Renewed(results) => results;
    OperateReport: CommandReply::Operated(report) => report;
}

pub(crate) fn full() -> Error {
    Error::new(
        ErrorKind::Full,
        "with these jobs, all pending and dead jobs, their payloads and the history would take \
         more than a fifth of the log",
    )
    .remedy("run or remove jobs, keep a shorter `history`, or set a larger `log_size_mib`")
}

fn mismatch() -> Error {
    Error::new(ErrorKind::Internal, "the log gave a command the reply of another command")
        .remedy("please report this with the message")
}
