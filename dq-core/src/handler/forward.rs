//! Handlers that the configuration of a queue selects, registered by crates that this one does not
//! know.

use std::sync::Arc;

use super::function::{Handler, RawHandler};
use crate::config::{TypedSettings, registration};
use crate::error::Result;
use crate::model::QueueName;

/// A type of `[queues.NAME.forward]`; created by [`register_forward!`](crate::register_forward).
#[derive(Debug)]
pub struct ForwardRegistration {
    /// The value of `type`.
    pub name: &'static str,
    /// Makes the handler of a queue. Does not connect.
    pub open: fn(&TypedSettings) -> Result<Arc<dyn RawHandler>>,
    /// Source location of the registration, as `file:line`.
    pub location: &'static str,
}

inventory::collect!(ForwardRegistration);

/// Registers a type of `[queues.NAME.forward]`: its name, and a function from
/// [`TypedSettings`](crate::config::TypedSettings) to the handler.
#[macro_export]
macro_rules! register_forward {
    (name: $name:literal, open: $open:expr $(,)?) => {
        $crate::__private::inventory::submit! {
            $crate::ForwardRegistration {
                name: $name,
                open: $open,
                location: ::core::concat!(::core::file!(), ":", ::core::line!()),
            }
        }
    };
}

/// Maximum number of attempts of forwards, unless it is configured. By the default backoff the last
/// one is after about an hour: longer than a receiver takes to be deployed or restarted.
const MAX_ATTEMPTS: u32 = 15;

/// The handler that the configuration of a queue selects.
///
/// # Errors
/// `Config` if no linked crate has registered the type or a setting cannot be used; `Duplicate` if two
/// have.
pub(crate) fn forward_handler(queue: &QueueName, settings: &TypedSettings) -> Result<Handler> {
    let place = format!("queues.{queue}.forward");
    let all = inventory::iter::<ForwardRegistration>;
    let opened = registration("forward", settings.kind(), all, |it| (it.name, it.location))
        .and_then(|found| Ok((found.name, (found.open)(settings)?)));
    let (name, handler) = opened.map_err(|error| error.within(&place))?;
    let mut handler = Handler::from_raw(queue.clone(), name, place, handler);
    handler.settings.max_attempts = Some(MAX_ATTEMPTS);
    Ok(handler)
}
