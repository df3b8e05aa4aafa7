//! The check of names, and the macro for a type of checked names, such as a job key.

use crate::error::{Error, Result};

/// Checks that a name has 1 to `max` bytes and no control character. The error calls it `kind`.
pub(super) fn check_name(kind: &str, name: &str, max: usize) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(format!("the {kind} is empty"))
            .remedy(format!("give one of 1 to {max} bytes")));
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
        ))
        .remedy("leave the character out"));
    }
    Ok(())
}

/// Implements a checked name of at most `MAX_BYTES`: an `Arc<str>` that serde reads and writes as
/// text. `kind` describes it in errors.
macro_rules! name_type {
    ($name:ident, $kind:literal, $max:literal) => {
        impl $name {
            /// Maximum length in bytes of UTF-8.
            pub const MAX_BYTES: usize = $max;

            /// Checks and creates a name.
            ///
            /// # Errors
            /// `InvalidInput` if it is empty, too long, or contains a control character.
            pub fn new(name: impl AsRef<str>) -> Result<Self> {
                let name = name.as_ref();
                check_name($kind, name, Self::MAX_BYTES)?;
                Ok(Self(name.into()))
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(name: String) -> Result<Self> {
                Self::new(name)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;

            fn try_from(name: &str) -> Result<Self> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }
    };
}

pub(super) use name_type;
