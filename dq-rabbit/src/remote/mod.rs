//! Calls of light processes. A process that serves no queue needs no replica of the log: it sends
//! its calls as requests to the processes that have one, and these send back the replies.
//!
//! ```text
//! light process ──request──▶ exchange ─▶ queue of requests ─▶ one of the processes with a replica
//!               ◀──reply─── the same exchange ◀──────────────  applies it through its own log
//! ```
//!
//! Requests and replies only transport calls: the log alone decides, as for any other call.
//!
//! - **A request that changes jobs is executed at most once.** If the process that took it ends without
//!   a reply, the broker delivers it to another one, marked as redelivered. That process executes it
//!   only if doing so twice makes no difference, such as a read; else it replies `OutcomeUnknown`.
//! - **A request hardly outlives its caller**, who may repeat it elsewhere, and act upon the result.
//!   The broker drops it after half of the caller's timeout, and a process that has not executed it
//!   after the other half gives it up, as it does when it loses its connection: then its log sends the
//!   call no more. A process that was suspended for so long gives back what it received before. Two cases
//!   remain, in which the caller has `OutcomeUnknown`: if the broker stops reading, buffers may hold
//!   the request for as long as that lasts; and a process may be suspended while it executes one.
//! - **Nobody has to serve.** If no process does, the callers take turns: one opens the log, and
//!   serves the others from then on, and its own waiting requests.
//! - **Only names with the prefix.** The broker's direct reply-to would need the permission to write
//!   to the default exchange, and with it to every queue of the virtual host. So each light process
//!   has an exclusive queue for its replies.
//!
//! Modules: `wire`: requests and replies as bytes; `view`: jobs in replies; `client`: sends
//! requests; `turn`: which process opens the log if nobody serves; `server`: executes requests;
//! `stall`: how old they are at most.

mod client;
#[cfg(test)]
mod fuzz;
mod server;
mod stall;
#[cfg(test)]
mod tests;
mod turn;
mod view;
mod wire;

pub(crate) use client::{Answer, NotServed, RemoteClient};
pub(crate) use server::RequestServer;
pub(crate) use turn::Turn;
pub(crate) use wire::{PAGE_ITEMS, Reply, Request, pages};
