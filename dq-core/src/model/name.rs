//! The check that names of queues, schedules and headers, and job keys, share.

use crate::error::{Error, Result};

/// Rejects a name that is empty, longer than `max` bytes, or contains a control character.
///
/// `kind` names the kind of name in the error.
pub(super) fn check_name(kind: &str, name: &str, max: usize) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(format!("the {kind} is empty")));
    }
    if name.len() > max {
        let head: String = name.chars().take(24).collect();
        return Err(Error::invalid(format!(
            "the {kind} {head:?}… has {} bytes; at most {max} are allowed",
            name.len()
        ))
        .remedy("shorten it, or hash the variable part"));
    }
    if let Some(control) = name.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(format!(
            "the {kind} {name:?} contains the control character {control:?}"
        )));
    }
    Ok(())
}
