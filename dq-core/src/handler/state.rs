//! Application state, extracted by type.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Application state, one value per type.
#[derive(Default, Clone)]
pub struct StateMap {
    values: HashMap<TypeId, (&'static str, Arc<dyn Any + Send + Sync>)>,
}

impl StateMap {
    /// Inserts a value; replaces one of the same type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.values.insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(value)));
    }

    /// Returns the value with this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.values.get(&TypeId::of::<T>()).and_then(|(_, value)| value.downcast_ref())
    }
}

impl fmt::Debug for StateMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = self.values.values().map(|(name, _)| *name).collect();
        names.sort_unstable();
        f.debug_set().entries(names).finish()
    }
}

/// State types a handler needs.
///
/// [`RunnerBuilder::build`](crate::RunnerBuilder::build) fails if the runner lacks one.
#[derive(Debug, Default)]
pub struct Requirements {
    types: Vec<(TypeId, &'static str)>,
}

impl Requirements {
    /// Requires a value with this type.
    pub fn state<T: Send + Sync + 'static>(&mut self) {
        self.types.push((TypeId::of::<T>(), type_name::<T>()));
    }

    /// Returns the names of required types missing from `state`.
    pub fn missing_from(&self, state: &StateMap) -> Vec<&'static str> {
        let missing = self.types.iter().filter(|(id, _)| !state.values.contains_key(id));
        missing.map(|(_, name)| *name).collect()
    }
}
