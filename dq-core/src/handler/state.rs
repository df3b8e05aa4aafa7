//! Application state that handlers extract by type.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Application state: one value for each type.
#[derive(Default, Clone)]
pub struct StateMap {
    values: HashMap<TypeId, (&'static str, Arc<dyn Any + Send + Sync>)>,
}

impl StateMap {
    /// Inserts a value; returns whether it replaced one of the same type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) -> bool {
        self.values.insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(value))).is_some()
    }

    /// The value of this type.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.values.get(&TypeId::of::<T>()).and_then(|(_, value)| value.downcast_ref())
    }

    /// The names of all types in the map, sorted.
    #[must_use]
    pub fn type_names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.values.values().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }
}

impl fmt::Debug for StateMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.type_names()).finish()
    }
}

/// The types of state that a handler needs.
///
/// [`RunnerBuilder::build`](crate::RunnerBuilder::build) fails if the runner's state lacks one.
#[derive(Debug, Default)]
pub struct Requirements {
    types: Vec<(TypeId, &'static str)>,
}

impl Requirements {
    /// Requires a value of this type.
    pub fn state<T: Send + Sync + 'static>(&mut self) {
        self.types.push((TypeId::of::<T>(), type_name::<T>()));
    }

    /// The names of the required types that `state` lacks.
    #[must_use]
    pub fn missing_from(&self, state: &StateMap) -> Vec<&'static str> {
        let missing = self.types.iter().filter(|(id, _)| !state.values.contains_key(id));
        missing.map(|(_, name)| *name).collect()
    }
}
