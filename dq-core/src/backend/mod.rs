//! The interface between the framework and a store.
//!
//! A store implements [`Backend`], whose documentation is the contract. Most other types are its
//! arguments and results, except:
//! - [`SqlStatement`], for your own transaction;
//! - [`Checked`], which validates input;
//! - [`Layer`], which wraps another backend;
//! - [`Listeners`], [`Waker`] and [`Wakeups`], which deliver hints within a process.

mod capability;
mod check;
mod checked;
mod claim;
mod contract;
pub(crate) mod envelope;
mod inspect;
mod layer;
mod operate;
mod schedule;
mod settle;
mod statement;
mod wakeup;

pub use capability::Capabilities;
pub use check::{Finding, Severity};
pub use checked::Checked;
pub use claim::{ClaimParams, Claimed, FencingToken, Lease, LeasedJob, Renewal, Renewed, Want};
pub use contract::Backend;
#[doc(hidden)]
pub use envelope::escape_payload;
pub use inspect::{
    Announced, Announcement, BrowseParams, Cursor, Order, Page, QueueFlow, QueueStats, Totals,
};
pub use layer::Layer;
pub use operate::{OperateReport, Operation};
pub use schedule::{Cancelled, Receipt, Reschedule, Rescheduled, Scheduled};
pub use settle::{Settled, Settlement, Verdict};
pub use statement::SqlStatement;
pub use wakeup::{Hint, Listeners, Waker, Wakeups};
