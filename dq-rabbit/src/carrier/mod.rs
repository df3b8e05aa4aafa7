//! Carriers: messages that bring payloads through the ladder to where they are run, in time.
//!
//! They decide nothing: the [log](crate::log) does. One that is lost is replaced by what the log holds,
//! one that comes twice or for a job that has ended is dropped, and one that comes too early is sent
//! again.

mod acks;
mod courier;
mod hold;
mod inbox;
mod message;

pub(crate) use acks::Ticket;
pub(crate) use courier::Courier;
pub(crate) use hold::{Held, Hold};
pub(crate) use inbox::{Inbox, Sorter};
pub(crate) use message::Carrier;
