//! The shared check for job keys and for queue, schedule and header names.

use crate::error::{Error, Result};

/// `kind` describes the name in the error.
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
