//! Acknowledges deliveries of one channel, as many at once as can be.

use std::collections::BTreeSet;
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
    /// Takes everything that is done with.
    fn plan(&mut self) -> Plan {
        let done = std::mem::take(&mut self.done);
        let Some(first_open) = self.open.first() else {
            return Plan { up_to: done.last().copied(), single: Vec::new() };
        };
        let up_to = done.range(..first_open).next_back().copied();
        Plan { up_to, single: done.range(first_open..).copied().collect() }
    }
}

/// One delivery. Dropped without [`done`](Self::done), it stays in hand until the channel goes, and then
/// comes again.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    acks: Arc<Acks>,
    tag: u64,
}

impl Ticket {
    /// The message can go.
    pub(crate) fn done(self) {
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
        self.tags().open.insert(tag);
        Ticket { acks: Arc::clone(self), tag }
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

    #[test]
    fn all_before_the_first_in_hand_go_at_once() {
        let mut tags = Tags { open: [4, 9].into(), done: [1, 2, 3, 5, 8, 12].into() };
        assert_eq!(tags.plan(), Plan { up_to: Some(3), single: vec![5, 8, 12] });
        assert_eq!(tags.plan(), Plan::default(), "nothing is told twice");
        tags.done.insert(6);
        assert_eq!(tags.plan(), Plan { up_to: None, single: vec![6] });
        tags.open.clear();
        tags.done = [4, 9].into();
        assert_eq!(tags.plan(), Plan { up_to: Some(9), single: Vec::new() });
    }
}
