//! A runner's handlers, how linked crates register them, and their validation.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::callable::Handler;
use super::function::HandlerFn;
use super::state::StateMap;
use crate::error::{Error, ErrorKind, Result};
use crate::model::QueueName;

/// A handler function registered with `inventory`.
#[derive(Debug)]
pub struct Registration {
    handlers: fn() -> Result<Vec<Handler>>,
}

inventory::collect!(Registration);

impl Registration {
    /// Creates an annotated function's registration.
    pub const fn of<H: HandlerFn>() -> Self {
        Self { handlers: Handler::of_function::<H> }
    }

    /// Creates handlers: one for the code, and one per alias.
    ///
    /// # Errors
    /// `InvalidInput` if a code is not a valid queue name; `Codec` if the schedule's payload does
    /// not encode.
    pub fn handlers(&self) -> Result<Vec<Handler>> {
        (self.handlers)()
    }
}

/// Handlers by queue, one per code.
#[derive(Debug, Default)]
pub struct Registry {
    handlers: BTreeMap<QueueName, Arc<Handler>>,
}

impl Registry {
    /// Collects the annotated functions in all linked crates.
    ///
    /// # Errors
    /// `Duplicate` with both source locations, if two functions share a code; `InvalidInput` if a
    /// code is not a valid queue name, or is reserved.
    pub fn linked() -> Result<Self> {
        let mut registry = Self::default();
        for registration in inventory::iter::<Registration> {
            for handler in registration.handlers()? {
                registry.insert(handler)?;
            }
        }
        Ok(registry)
    }

    /// Adds a handler. You may add a function twice: a linked function may also be registered
    /// explicitly.
    ///
    /// # Errors
    /// `InvalidInput` if the code is reserved; `Duplicate` with both source locations, if another
    /// handler has the code.
    pub fn insert(&mut self, handler: Handler) -> Result<()> {
        handler.queue.refuse_reserved().map_err(|error| {
            error.remedy(format!("give {} at {} another code", handler.name, handler.location))
        })?;
        if let Some(other) = self.handlers.get(&handler.queue) {
            // Also compares names, because a macro can define two functions in one line.
            let same = other.name == handler.name && other.location == handler.location;
            if handler.is_function && other.is_function && same {
                return Ok(());
            }
            return Err(Error::new(
                ErrorKind::Duplicate,
                format!(
                    "two handlers have the code {}: {} at {} and {} at {}",
                    handler.queue, other.name, other.location, handler.name, handler.location
                ),
            )
            .remedy("give one of them another code"));
        }
        self.handlers.insert(handler.queue.clone(), Arc::new(handler));
        Ok(())
    }

    /// Returns a queue's handler.
    pub fn get(&self, queue: &str) -> Option<&Arc<Handler>> {
        self.handlers.get(queue)
    }

    /// Iterates over all handlers by queue name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Handler>> {
        self.handlers.values()
    }

    /// Returns whether there are no handlers.
    pub fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    /// Keeps only the handlers for these queues.
    ///
    /// # Errors
    /// `Unhandled` if a queue has no handler.
    pub fn retain(&mut self, queues: &[QueueName]) -> Result<()> {
        for queue in queues {
            self.expect(queue)?;
        }
        self.handlers.retain(|queue, _| queues.contains(queue));
        Ok(())
    }

    /// Checks that a queue has a handler.
    ///
    /// # Errors
    /// `Unhandled` with all known codes.
    pub fn expect(&self, queue: &QueueName) -> Result<()> {
        if self.handlers.contains_key(queue) {
            return Ok(());
        }
        let known: Vec<_> = self.handlers.keys().map(QueueName::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("no linked handler has the code {queue}; known: {known}");
        Err(Error::new(ErrorKind::Unhandled, message).remedy(
            "is the handlers' crate linked? a crate that is never named in code registers nothing: \
             write `use my_handlers as _;`, or add it by `.register::<handler>()`",
        ))
    }

    /// Checks that `state` has each type the handlers require.
    ///
    /// # Errors
    /// `MissingState` with the handler and the types.
    pub fn expect_state(&self, state: &StateMap) -> Result<()> {
        self.handlers.values().try_for_each(|handler| expect_state_of(handler, state))
    }

    /// Removes handlers whose state is missing. Returns their errors.
    pub(crate) fn remove_without_state(&mut self, state: &StateMap) -> BTreeMap<QueueName, Error> {
        let missing: BTreeMap<_, _> = self
            .handlers
            .iter()
            .filter_map(|(queue, handler)| {
                Some((queue.clone(), expect_state_of(handler, state).err()?))
            })
            .collect();
        self.handlers.retain(|queue, _| !missing.contains_key(queue));
        missing
    }

    /// Formats codes, functions and source locations for the log.
    pub fn table(&self) -> String {
        let width = self.handlers.keys().map(|queue| queue.as_str().len()).max().unwrap_or(0);
        let mut table = String::new();
        for handler in self.handlers.values() {
            let _ = write!(
                table,
                "\n  {:width$}  {} ({})",
                handler.queue.as_str(),
                handler.name,
                handler.location
            );
        }
        table
    }
}

fn expect_state_of(handler: &Handler, state: &StateMap) -> Result<()> {
    let missing = handler.requirements.missing_from(state);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::MissingState,
        format!(
            "{} at {} requires State<{}>, which the runner does not have",
            handler.name,
            handler.location,
            missing.join(">, State<")
        ),
    )
    .remedy("add `.state(value)` to the runner, with a value of exactly this type"))
}
