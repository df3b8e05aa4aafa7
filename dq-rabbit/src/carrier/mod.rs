//! Carriers: messages that bring jobs with their payloads through the ladder to where they are run, in
//! time.
//!
//! They decide nothing: the [log](crate::log) does. One that is lost is replaced by what the log holds,
//! one that comes twice or for jobs that have ended is dropped, and jobs that come too early are sent
//! again.

mod acks;
mod bundle;
mod courier;
mod hold;
mod inbox;
mod message;

pub(crate) use acks::Ticket;
pub(crate) use bundle::SPAN;
pub(crate) use courier::Courier;
pub(crate) use hold::{Held, Hold};
pub(crate) use inbox::{Inbox, Sorter};
pub(crate) use message::Carried;
