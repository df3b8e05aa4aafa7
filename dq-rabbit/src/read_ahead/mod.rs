//! Reads the payloads of jobs that are due soon from the log, when their messages do not arrive.
//!
//! Messages bring payloads up to ten seconds before the due time. If the ladder has lost them, is
//! slow, or is turned off, a claim has to read each payload from where it is in the log, which
//! takes longer the larger the log is. So for a minute after a job was claimed without its message,
//! and always if the ladder is turned off, runners read ahead: what is due within the next ten
//! seconds, in the order of the log, in one pass.

mod state;
mod task;

pub(crate) use self::state::ReadAhead;
pub(crate) use self::task::run;
