//! Handlers selected by a queue's configuration and registered by other crates.

use std::sync::Arc;

use super::callable::Handler;
use super::object::RawHandler;
use crate::config::{TypedSettings, registration};
use crate::error::Result;
use crate::model::QueueName;

/// A type for `[queues.NAME.forward]`, from [`register_forward!`](crate::register_forward).
#[derive(Debug)]
pub struct ForwardRegistration {
    /// The value of `type`.
    pub name: &'static str,
    /// Creates a queue's handler. Does not connect.
    pub open: fn(&TypedSettings) -> Result<Arc<dyn RawHandler>>,
    /// Source location, as `file:line`.
    pub location: &'static str,
}

inventory::collect!(ForwardRegistration);

/// Registers a type for `[queues.NAME.forward]`.
///
/// Give its name, and a function from [`TypedSettings`](crate::config::TypedSettings) to the
/// handler.
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

/// The default for forwards. With the default backoff the last attempt is after about an hour,
/// longer than a receiver's deployment or restart.
const MAX_ATTEMPTS: u32 = 15;

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
