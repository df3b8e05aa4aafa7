//! Stores that are consumed and not produced to.

use std::sync::Arc;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, Cancelled, Dq, DurationExt, MemoryBackend, Rescheduled, Result, VirtualClock,
    async_trait,
};

use crate::rig::{Handle, QUEUE, Rig};

/// A store that was opened before.
#[derive(Debug, serde::Deserialize)]
struct Old {
    #[serde(skip)]
    store: Option<Arc<MemoryBackend>>,
}

#[typetag::deserialize(name = "test-old-store")]
#[async_trait]
impl BackendConfig for Old {
    async fn connect(&self, _: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(self.store.clone().expect("it is made by hand"))
    }
}

#[tokio::test]
async fn what_is_pending_in_the_old_store_runs_down_and_can_be_changed_there() {
    let clock = Arc::new(VirtualClock::default());
    let old = Arc::new(MemoryBackend::new(clock.clone()));
    let before = Rig::on(old.clone(), clock.clone()).await;
    let queue = before.dq.queue(QUEUE).unwrap();
    for key in ["runs", "is cancelled", "is moved"] {
        let job = queue.schedule(r#""old""#, "application/json").after(1.hours()).key(key);
        assert!(job.await.unwrap().is_stored());
    }
    let dq = Dq::builder()
        .backend(Arc::new(MemoryBackend::new(clock.clone())))
        .drain(Box::new(Old { store: Some(old) }))
        .clock(clock.clone());
    let mut rig = Rig::over(dq.connect().await.unwrap(), clock);
    let queue = rig.dq.queue(QUEUE).unwrap();
    assert_eq!(queue.cancel("is cancelled").await.unwrap(), Cancelled::Cancelled);
    let moved = queue.reschedule("is moved", 2.hours()).await.unwrap();
    assert!(matches!(moved, Rescheduled::Moved(_)));
    assert!(queue.get("runs").await.unwrap().is_some());
    rig.schedule("new").await;
    rig.start(|runner| runner.handler(Handle::done()));
    rig.until_settled().await;
    rig.clock.advance(1.hours());
    rig.until_settled().await;
    rig.clock.advance(1.hours());
    rig.until_settled().await;
    rig.stop().await;
    let (new, old) = (rig.stats().await, before.stats().await);
    assert_eq!(new.totals.unwrap().done, 1, "new jobs go to the new store");
    assert_eq!((old.totals.unwrap().done, old.stored()), (2, 0));
}
