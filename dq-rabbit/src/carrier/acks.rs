//! Acknowledges deliveries of one channel, as many at once as can be.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapin::Channel;
use lapin::options::BasicAckOptions;
use tokio::sync::Notify;

/// What was delivered on one channel and not acknowledged yet.
#[derive(Debug)]
pub(super) struct Acks {
    channel: Channel,
    tags: Mutex<Tags>,
    done: Notify,
}

#[derive(Debug, Default)]
struct Tags {
    /// All up to this one have arrived. Several consumers share the channel, so one tag may be seen after
    /// another that is larger.
    arrived: u64,
    /// Those that arrived before others that are smaller.
    ahead: BTreeSet<u64>,
    /// In hand.
    open: BTreeSet<u64>,
    /// Done with, but not acknowledged.
    done: BTreeSet<u64>,
}

/// What is to be told: all up to the first, and each of the others.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    up_to: Option<u64>,
    single: Vec<u64>,
}

impl Tags {
    fn arrive(&mut self, tag: u64) {
        self.open.insert(tag);
        self.ahead.insert(tag);
        // The broker counts from one, without gaps.
        while self.ahead.remove(&(self.arrived + 1)) {
            self.arrived += 1;
        }
    }

    /// Takes everything that is done with.
    fn plan(&mut self) -> Plan {
        let mut done = std::mem::take(&mut self.done);
        let before_open = self.open.first().map_or(u64::MAX, |first| first - 1);
        let single = done.split_off(&self.arrived.min(before_open).saturating_add(1));
        Plan { up_to: done.last().copied(), single: single.into_iter().collect() }
    }
}

/// A share of one delivery. If one is dropped without [`done`](Self::done), the delivery stays in hand
/// until the channel goes, and then comes again.
#[derive(Debug)]
pub(crate) struct Ticket {
    delivery: Arc<Taken>,
}

/// A delivery that is in hand.
#[derive(Debug)]
struct Taken {
    acks: Arc<Acks>,
    tag: u64,
    /// Shares that are not done with.
    shares: AtomicUsize,
}

impl Ticket {
    /// Cuts this share into so many.
    pub(crate) fn split(self, shares: usize) -> impl Iterator<Item = Self> {
        self.delivery.shares.fetch_add(shares, Ordering::Relaxed);
        let delivery = Arc::clone(&self.delivery);
        self.done();
        (0..shares).map(move |_| Self { delivery: Arc::clone(&delivery) })
    }

    /// This share of the message is done with; after the last, the message can go.
    pub(crate) fn done(self) {
        if self.delivery.shares.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.delivery.done();
        }
    }
}

impl Taken {
    fn done(&self) {
        let mut tags = self.acks.tags();
        if tags.open.remove(&self.tag) {
            tags.done.insert(self.tag);
            drop(tags);
            self.acks.done.notify_one();
        }
    }
}

impl Acks {
    pub(super) fn new(channel: Channel) -> Arc<Self> {
        Arc::new(Self { channel, tags: Mutex::default(), done: Notify::new() })
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Takes a delivery into account.
    pub(super) fn arrived(self: &Arc<Self>, tag: u64) -> Ticket {
        self.tags().arrive(tag);
        let shares = AtomicUsize::new(1);
        Ticket { delivery: Arc::new(Taken { acks: Arc::clone(self), tag, shares }) }
    }

    /// Tells the broker, for as long as the channel lasts.
    pub(super) async fn run(self: Arc<Self>) {
        while self.channel.status().connected() {
            self.done.notified().await;
            let plan = self.tags().plan();
            if self.tell(plan).await.is_err() {
                // With the channel, all that was not acknowledged comes again.
                return;
            }
        }
    }

    async fn tell(&self, plan: Plan) -> lapin::Result<()> {
        if let Some(tag) = plan.up_to {
            self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
        }
        for tag in plan.single {
            self.channel.basic_ack(tag, BasicAckOptions::default()).await?;
        }
        Ok(())
    }

    fn tags(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(arrived: &[u64], done: &[u64]) -> Tags {
        let mut tags = Tags::default();
        arrived.iter().for_each(|tag| tags.arrive(*tag));
        for tag in done {
            assert!(tags.open.remove(tag) && tags.done.insert(*tag));
        }
        tags
    }

    #[test]
    fn all_before_the_first_in_hand_go_at_once() {
        let mut tags = tags(&[1, 2, 3, 4, 5, 6, 7], &[1, 2, 3, 5, 7]);
        assert_eq!(tags.plan(), Plan { up_to: Some(3), single: vec![5, 7] });
        assert_eq!(tags.plan(), Plan::default(), "nothing is told twice");
        for tag in [4, 6] {
            tags.open.remove(&tag);
            tags.done.insert(tag);
        }
        assert_eq!(tags.plan(), Plan { up_to: Some(6), single: Vec::new() });
    }

    #[test]
    fn what_was_not_seen_yet_is_not_acknowledged_with_others() {
        let mut tags = tags(&[1, 2, 4, 6], &[1, 2, 4, 6]);
        assert_eq!(tags.plan(), Plan { up_to: Some(2), single: vec![4, 6] });
        tags.arrive(3);
        tags.arrive(5);
        tags.open.clear();
        tags.done.extend([3, 5]);
        assert_eq!(tags.plan(), Plan { up_to: Some(5), single: Vec::new() });
    }
}
