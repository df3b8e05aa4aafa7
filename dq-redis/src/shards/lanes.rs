//! The lanes in use: those of each queue, one per shard, made once for each layout.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dq_core::{QueueName, Target};

use crate::keys::{Lane, Naming};
use crate::shards::layout::Layout;

/// One queue as far as is known: its layout, and the lane of each shard.
#[derive(Debug)]
pub(crate) struct Spread {
    pub(crate) layout: Layout,
    /// Never empty.
    pub(crate) lanes: Vec<Arc<Lane>>,
}

impl Spread {
    /// Whether it never had shards.
    pub(crate) fn is_single(&self) -> bool {
        self.lanes.len() == 1
    }

    /// Where a job is looked for first, and where if it is not there.
    pub(crate) fn search(&self, target: &Target) -> (u16, Vec<u16>) {
        match target {
            // A job that has no key is at its id's home; one that has, at its key's.
            Target::Id(id) => self.search_all(self.layout.home(&id.to_bytes())),
            Target::Key(key) => {
                let key = key.as_str().as_bytes();
                (self.layout.home(key), self.layout.former_homes(key))
            }
        }
    }

    /// This shard first, then all others.
    pub(crate) fn search_all(&self, first: u16) -> (u16, Vec<u16>) {
        (first, (0..self.layout.width()).filter(|shard| *shard != first).collect())
    }

    /// The lane of a shard.
    pub(crate) fn lane(&self, shard: u16) -> &Arc<Lane> {
        &self.lanes[usize::from(shard)]
    }
}

/// The lanes in use.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) naming: Naming,
    known: Mutex<HashMap<QueueName, Arc<Spread>>>,
}

impl Lanes {
    pub(crate) fn new(naming: Naming) -> Self {
        Self { naming, known: Mutex::default() }
    }

    /// The only lane of a queue without shards; the first of one with.
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<Lane> {
        Arc::clone(self.spread(queue).lane(0))
    }

    /// A queue as far as is known.
    pub(crate) fn spread(&self, queue: &QueueName) -> Arc<Spread> {
        let mut known = self.known();
        if let Some(spread) = known.get(queue) {
            return Arc::clone(spread);
        }
        let spread = Arc::new(self.make(queue, Layout::single()));
        known.insert(queue.clone(), Arc::clone(&spread));
        spread
    }

    /// Takes a layout over that a shard holds. `false` if it is not later than what is known.
    pub(crate) fn learn(&self, queue: &QueueName, held: &str) -> bool {
        self.replace(queue, held, |held, known| held.is_newer(known))
    }

    /// Takes the layout of the first shard over, which is right where two differ.
    pub(crate) fn follow(&self, queue: &QueueName, held: &str) {
        self.replace(queue, held, |held, known| !known.is_newer(held) && held != known);
    }

    fn replace(
        &self,
        queue: &QueueName,
        held: &str,
        replaces: impl Fn(&Layout, &Layout) -> bool,
    ) -> bool {
        let Some(layout) = Layout::parse(held) else {
            return false;
        };
        let mut known = self.known();
        if known.get(queue).is_some_and(|spread| !replaces(&layout, &spread.layout)) {
            return false;
        }
        known.insert(queue.clone(), Arc::new(self.make(queue, layout)));
        true
    }

    fn make(&self, queue: &QueueName, layout: Layout) -> Spread {
        let belief = layout.to_string();
        let lane = |shard| Arc::new(self.naming.lane(queue, shard, belief.clone()));
        Spread { lanes: (0..layout.width()).map(lane).collect(), layout }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<QueueName, Arc<Spread>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
