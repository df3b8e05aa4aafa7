//! The reserved queue of schedules, and the capabilities that a store needs for it.

use crate::backend::{Backend, Capabilities};
use crate::error::{Error, Result};
use crate::model::QueueName;

pub(super) const QUEUE: &str = "dq.schedules";

/// Returns the reserved queue's name.
pub(crate) fn queue() -> QueueName {
    QueueName::new(QUEUE).expect("a valid queue name")
}

/// Checks that a store can keep schedules.
///
/// # Errors
/// `Unsupported` if it cannot.
pub(super) fn require_support(store: &dyn Backend) -> Result<()> {
    match missing(store.capabilities()) {
        None => Ok(()),
        Some(missing) => {
            let feature = format!("recurring schedules, which need {missing}");
            Err(Error::unsupported(store.name(), &feature))
        }
    }
}

/// Returns whether a store can keep schedules.
pub(crate) fn is_supported(store: Capabilities) -> bool {
    missing(store).is_none()
}

/// Returns the first capability that a store lacks.
fn missing(store: Capabilities) -> Option<&'static str> {
    let needed = [
        (store.keys, "keys"),
        (store.browse, "reading of single jobs"),
        (store.cancel, "cancel"),
        (store.again, "next steps of jobs"),
        (store.history, "remembering ended jobs"),
    ];
    needed.into_iter().find_map(|(has, name)| (!has).then_some(name))
}
