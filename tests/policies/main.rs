//! Escalations, guards, late policies and payload versions, as an application uses them.

mod escalations;
mod forged;
mod guards;
mod late;
mod spread;
mod versions;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dq::{Dq, VirtualClock};
use dq_testkit::TestKit;
use dq_testkit::fixture::memory;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default)]
struct Shop {
    paid: Arc<Mutex<BTreeSet<u64>>>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Shop {
    fn pay(&self, order: u64) {
        self.paid.lock().unwrap().insert(order);
    }

    fn is_paid(&self, order: u64) -> bool {
        self.paid.lock().unwrap().contains(&order)
    }

    fn write(&self, line: impl Into<String>) {
        self.lines.lock().unwrap().push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
}

async fn clocked() -> (Arc<VirtualClock>, Dq) {
    let clock = Arc::new(VirtualClock::default());
    let backend = Arc::new(memory(clock.clone()));
    let dq = Dq::builder().backend(backend).clock(clock.clone()).connect().await.unwrap();
    (clock, dq)
}

async fn kit(shop: &Shop) -> TestKit {
    TestKit::with(|runner| runner.state(shop.clone())).await.unwrap()
}
