//! Acknowledges deliveries of one channel, many at once where possible.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use tokio::sync::Notify;

use crate::connect::AmqpChannel;

#[derive(Debug)]
pub(crate) struct AckTracker {
    channel: AmqpChannel,
    tags: Mutex<Tags>,
    processed: Notify,
}

/// Delivery tags, by which the broker numbers a channel's deliveries from 1.
#[derive(Debug, Default)]
struct Tags {
    /// All tags up to this one have arrived. Several consumers share the channel, so tags may come
    /// out of order.
    contiguous: u64,
    /// Arrived before a smaller tag.
    out_of_order: BTreeSet<u64>,
    pending: BTreeSet<u64>,
    processed: BTreeSet<u64>,
}

/// One acknowledgement for all tags up to `up_to`, and one for each other tag.
#[derive(Debug, Default, PartialEq, Eq)]
struct AckPlan {
    up_to: Option<u64>,
    single: Vec<u64>,
}

impl Tags {
    fn arrive(&mut self, tag: u64) {
        self.pending.insert(tag);
        self.out_of_order.insert(tag);
        while self.out_of_order.remove(&(self.contiguous + 1)) {
            self.contiguous += 1;
        }
    }

    /// One acknowledgement covers all before the first pending or missing tag.
    fn plan(&mut self) -> AckPlan {
        let mut processed = std::mem::take(&mut self.processed);
        let before_pending = self.pending.first().map_or(u64::MAX, |first| first - 1);
        let single = processed.split_off(&self.contiguous.min(before_pending).saturating_add(1));
        AckPlan { up_to: processed.last().copied(), single: single.into_iter().collect() }
    }
}

/// Acknowledges a delivery, or one share of it. A handle that is dropped leaves the delivery
/// unacknowledged; the broker redelivers it when the channel closes.
#[derive(Debug)]
pub(crate) struct AckHandle {
    delivery: Arc<PendingDelivery>,
}

#[derive(Debug)]
struct PendingDelivery {
    tracker: Arc<AckTracker>,
    tag: u64,
    shares: AtomicUsize,
}

impl AckHandle {
    /// Splits the handle into shares. The delivery is acknowledged after the last one.
    pub(crate) fn split(self, shares: usize) -> impl Iterator<Item = Self> {
        self.delivery.shares.fetch_add(shares, Ordering::Relaxed);
        let delivery = Arc::clone(&self.delivery);
        self.ack();
        (0..shares).map(move |_| Self { delivery: Arc::clone(&delivery) })
    }

    pub(crate) fn ack(self) {
        let PendingDelivery { tracker, tag, shares } = &*self.delivery;
        if shares.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut tags = lock(&tracker.tags);
            if tags.pending.remove(tag) {
                tags.processed.insert(*tag);
                drop(tags);
                tracker.processed.notify_one();
            }
        }
    }
}

impl AckTracker {
    pub(crate) fn new(channel: AmqpChannel) -> Arc<Self> {
        Arc::new(Self { channel, tags: Mutex::default(), processed: Notify::new() })
    }

    pub(crate) fn channel(&self) -> &AmqpChannel {
        &self.channel
    }

    pub(crate) fn track(self: &Arc<Self>, tag: u64) -> AckHandle {
        lock(&self.tags).arrive(tag);
        let shares = AtomicUsize::new(1);
        AckHandle { delivery: Arc::new(PendingDelivery { tracker: Arc::clone(self), tag, shares }) }
    }

    /// Ends [`run`](Self::run) once the channel is closed.
    pub(crate) fn wake(&self) {
        self.processed.notify_one();
    }

    /// Runs until the channel closes; on an idle channel, until it is [woken](Self::wake).
    pub(crate) async fn run(self: Arc<Self>) {
        while self.channel.is_open() {
            self.processed.notified().await;
            let plan = lock(&self.tags).plan();
            if self.send(plan).await.is_err() {
                // The channel is still open, but the broker redelivers only after it is closed.
                return self.channel.clone().close().await;
            }
        }
    }

    async fn send(&self, plan: AckPlan) -> lapin::Result<()> {
        if let Some(tag) = plan.up_to {
            self.channel.ack(tag, true).await?;
        }
        for tag in plan.single {
            self.channel.ack(tag, false).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(arrived: &[u64], processed: &[u64]) -> Tags {
        let mut tags = Tags::default();
        arrived.iter().for_each(|tag| tags.arrive(*tag));
        for tag in processed {
            assert!(tags.pending.remove(tag) && tags.processed.insert(*tag));
        }
        tags
    }

    #[test]
    fn deliveries_before_the_first_pending_one_are_acknowledged_together() {
        let mut tags = tags(&[1, 2, 3, 4, 5, 6, 7], &[1, 2, 3, 5, 7]);
        assert_eq!(tags.plan(), AckPlan { up_to: Some(3), single: vec![5, 7] });
        assert_eq!(tags.plan(), AckPlan::default(), "each delivery is acknowledged once");
        for tag in [4, 6] {
            tags.pending.remove(&tag);
            tags.processed.insert(tag);
        }
        assert_eq!(tags.plan(), AckPlan { up_to: Some(6), single: Vec::new() });
    }

    #[test]
    fn deliveries_that_have_not_arrived_are_not_acknowledged_with_others() {
        let mut tags = tags(&[1, 2, 4, 6], &[1, 2, 4, 6]);
        assert_eq!(tags.plan(), AckPlan { up_to: Some(2), single: vec![4, 6] });
        tags.arrive(3);
        tags.arrive(5);
        tags.pending.clear();
        tags.processed.extend([3, 5]);
        assert_eq!(tags.plan(), AckPlan { up_to: Some(5), single: Vec::new() });
    }
}
