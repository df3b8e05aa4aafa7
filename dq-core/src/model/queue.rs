//! Queues: a checked name, and the type that ties a name to its payload.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::limits::{Limits, check_name};
use crate::error::{Error, Result};

/// The name of a queue, which is also the code of its handler: 1 to 128 bytes of UTF-8 without
/// control characters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Checks and wraps a name.
    ///
    /// # Errors
    /// `InvalidInput` if it is empty, too long, or holds a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        check_name("queue name", name, Limits::QUEUE_NAME)?;
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for QueueName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for QueueName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for QueueName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&str> for QueueName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl From<QueueName> for String {
    fn from(name: QueueName) -> Self {
        name.as_str().to_owned()
    }
}

/// A queue as a type: its code and the payload that its jobs carry.
///
/// `#[delay_handler]` implements it for the handler's own name, [`queue!`](crate::queue) for
/// producers that have no handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a queue",
    label = "expected the name of a `#[delay_handler]` function or of a `queue!`",
    note = "in a service that only schedules, write `dq::queue!(pub {Self}: Payload = \"CODE\");`"
)]
pub trait Queue {
    /// What a job of this queue carries.
    type Payload;

    /// The code, which names the queue in the store.
    fn code() -> Cow<'static, str>;

    /// The code as a checked name.
    ///
    /// # Errors
    /// `InvalidInput` if the code is no valid queue name.
    fn queue() -> Result<QueueName> {
        QueueName::new(Self::code())
    }
}

/// What may stand in `#[delay_handler(…)]`: a string, a constant, or a variant of an enum of
/// yours that implements this (`#[derive(QueueCode)]`).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot name a queue",
    note = "use a string, a `&'static str` constant, or an enum with `#[derive(dq::QueueCode)]`"
)]
pub trait QueueCode {
    /// The name of the queue.
    fn code(&self) -> Cow<'static, str>;
}

impl QueueCode for &'static str {
    fn code(&self) -> Cow<'static, str> {
        Cow::Borrowed(self)
    }
}

impl QueueCode for String {
    fn code(&self) -> Cow<'static, str> {
        Cow::Owned(self.clone())
    }
}

/// Declares a queue for code that schedules without having the handler.
///
/// ```
/// # use dq_core as dq;
/// #[derive(serde::Serialize)]
/// pub struct UnpaidOrder { id: u64 }
///
/// dq::queue!(pub ORDER_TIMEOUT: UnpaidOrder);               // the code is the name
/// dq::queue!(pub OrderTimeout: UnpaidOrder = "ORDER_TIMEOUT"); // or is given
/// # use dq::Queue;
/// # assert_eq!(ORDER_TIMEOUT::code(), OrderTimeout::code());
/// ```
#[macro_export]
macro_rules! queue {
    ($(#[$meta:meta])* $vis:vis $name:ident : $payload:ty) => {
        $crate::queue!($(#[$meta])* $vis $name : $payload = ::core::stringify!($name));
    };
    ($(#[$meta:meta])* $vis:vis $name:ident : $payload:ty = $code:expr) => {
        $(#[$meta])*
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Debug, Clone, Copy)]
        // Braces, so that the name is no pattern: a variable may be called the same.
        $vis struct $name {}

        impl $crate::Queue for $name {
            type Payload = $payload;

            fn code() -> $crate::__private::Cow<'static, $crate::__private::str> {
                $crate::QueueCode::code(&$code)
            }
        }
    };
}
