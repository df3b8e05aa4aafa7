//! Queue names, and types that stand for a queue.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::name::{check_name, name_type};
use crate::error::{Error, Result};

/// A queue name, which is also the handler's code.
///
/// It has 1 to 128 bytes of UTF-8 without control characters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Prefix of the framework's own queues.
    ///
    /// Applications can neither schedule nor handle their jobs, and must not do so through the
    /// store.
    pub const RESERVED_PREFIX: &str = "dq.";

    /// Returns whether the name starts with [`Self::RESERVED_PREFIX`].
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(Self::RESERVED_PREFIX)
    }

    /// Refuses a reserved name.
    ///
    /// # Errors
    /// `InvalidInput` if the name is reserved.
    pub fn refuse_reserved(&self) -> Result<()> {
        if !self.is_reserved() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the queue name {self} is reserved: it begins with {:?}",
            Self::RESERVED_PREFIX
        ))
        .remedy("choose another name"))
    }
}

name_type!(QueueName, "queue name", 128);

/// A type that stands for a queue, with its code and payload type.
///
/// `#[delay_handler]` implements it for a type with the handler's name. [`queue!`](crate::queue)
/// declares one for a producer without the handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a queue",
    label = "expected the name of a `#[delay_handler]` function or of a `queue!`",
    note = "for a handler object, or in a service that only schedules, declare the queue: `dq::queue!(NAME: Payload = \"CODE\")`"
)]
pub trait Queue {
    /// The payload type.
    type Payload;

    /// Returns the code, which is the queue name in the store.
    fn code() -> Cow<'static, str>;

    /// The delays of an escalation, before each step; empty if the queue has none.
    ///
    /// A job scheduled without a due time is due after the first one.
    const STEPS: &'static [Duration] = &[];

    /// The payload's schema version, which each scheduled job carries; `None` without versions.
    const VERSION: Option<u32> = None;

    /// Returns the code as a checked queue name.
    ///
    /// # Errors
    /// `InvalidInput` if the code is not a valid queue name.
    fn queue() -> Result<QueueName> {
        QueueName::new(Self::code())
    }
}

/// A value for the code in `#[delay_handler(…)]`.
///
/// Strings implement it, and enums with `#[derive(QueueCode)]`, one code per variant.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot name a queue",
    note = "use a string, a `&'static str` constant, or an enum with `#[derive(dq::QueueCode)]`"
)]
pub trait QueueCode {
    /// Returns the queue name.
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

/// Declares a queue for code that schedules jobs but does not link the handler.
///
/// ```
/// # use dq_core as dq;
/// #[derive(serde::Serialize)]
/// pub struct UnpaidOrder { id: u64 }
///
/// dq::queue!(pub ORDER_TIMEOUT: UnpaidOrder);               // the code is the name
/// dq::queue!(pub OrderTimeout: UnpaidOrder = "ORDER_TIMEOUT"); // or is given explicitly
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
        // Braces keep the name from being a pattern, so a variable may have the same name.
        $vis struct $name {}

        impl $crate::Queue for $name {
            type Payload = $payload;

            fn code() -> $crate::__private::Cow<'static, $crate::__private::str> {
                $crate::QueueCode::code(&$code)
            }
        }
    };
}
