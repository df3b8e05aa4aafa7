//! Which handler runs which queue.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::{Handler, Registration, StateMap};
use crate::error::{Error, ErrorKind, Result};
use crate::model::QueueName;

/// Handlers by queue. One handler per code.
#[derive(Debug, Default)]
pub struct Registry {
    handlers: BTreeMap<QueueName, Arc<Handler>>,
}

impl Registry {
    /// All annotated functions of the linked crates.
    ///
    /// # Errors
    /// `Duplicate` naming both places, if two have one code; `InvalidInput` if a code is no valid
    /// queue name.
    pub fn linked() -> Result<Self> {
        let mut registry = Self::default();
        for registration in inventory::iter::<Registration> {
            registry.insert(registration.handler()?)?;
        }
        Ok(registry)
    }

    /// Adds a handler. The same function a second time is no mistake: it may be linked and
    /// registered by hand.
    ///
    /// # Errors
    /// `Duplicate` naming both places, if another handler has the code.
    pub fn insert(&mut self, handler: Handler) -> Result<()> {
        if let Some(other) = self.handlers.get(&handler.queue) {
            // Name and place: a macro can write two functions in one line.
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

    /// The handler of a queue.
    #[must_use]
    pub fn get(&self, queue: &str) -> Option<&Arc<Handler>> {
        self.handlers.get(queue)
    }

    /// All handlers in order of their queues.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Handler>> {
        self.handlers.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.handlers.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    /// Keeps the handlers of these queues only.
    ///
    /// # Errors
    /// `Unhandled` if one of them has none.
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
    /// `Unhandled`, with the codes that are known and the usual reason.
    pub fn expect(&self, queue: &QueueName) -> Result<()> {
        if self.handlers.contains_key(queue) {
            return Ok(());
        }
        Err(unhandled(queue, self.handlers.keys()))
    }

    /// Checks that all state that handlers ask for is there.
    ///
    /// # Errors
    /// `MissingState` naming the handler and the type.
    pub fn expect_state(&self, state: &StateMap) -> Result<()> {
        self.handlers.values().try_for_each(|handler| expect_state_of(handler, state))
    }

    /// Removes the handlers whose state is missing, and returns the error of each by its queue.
    pub fn remove_without_state(&mut self, state: &StateMap) -> BTreeMap<QueueName, Error> {
        let check = |handler: &Handler| expect_state_of(handler, state).err();
        let missing: BTreeMap<_, _> = self
            .handlers
            .iter()
            .filter_map(|(queue, handler)| Some((queue.clone(), check(handler)?)))
            .collect();
        self.handlers.retain(|queue, _| !missing.contains_key(queue));
        missing
    }

    /// The table that is logged at start: code, function, place.
    #[must_use]
    pub fn table(&self) -> String {
        let width = self.handlers.keys().map(|queue| queue.as_str().len()).max().unwrap_or(0);
        let mut table = String::new();
        for handler in self.handlers.values() {
            // Writing to a String cannot fail.
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
            "{} at {} asks for State<{}>, which the runner was not given",
            handler.name,
            handler.location,
            missing.join(">, State<")
        ),
    )
    .remedy("add `.state(value)` to the runner; the type must be the very same"))
}

/// The answer to a queue that nobody handles.
fn unhandled<'a>(queue: &QueueName, known: impl Iterator<Item = &'a QueueName>) -> Error {
    let known: Vec<_> = known.map(QueueName::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Error::new(
        ErrorKind::Unhandled,
        format!("no linked handler has the code {queue}; known: {known}"),
    )
    .remedy("is the handlers' crate linked? a crate that is never named in code registers nothing: write `use my_handlers as _;`, or register the handler by hand")
}
