//! Asking for jobs where they may be: where they are by the present layout, then elsewhere.

use dq_core::{JobRef, Lease, Renewal, Reschedule, Result, Settlement, Target};
use futures_util::future::BoxFuture;

use crate::batch::{self, Ask, Chunk, InQueue};
use crate::shards::lanes::Spread;
use crate::shards::leases::Leases;
use crate::store::Store;

/// What is looked for in the shards of its queue.
pub(crate) trait Sought: InQueue {
    /// The shard to ask first, and those to ask if it is not there.
    fn search(&self, spread: &Spread, leases: &Leases) -> (u16, Vec<u16>);
}

impl Sought for JobRef {
    fn search(&self, spread: &Spread, _: &Leases) -> (u16, Vec<u16>) {
        spread.search(&self.target)
    }
}

impl Sought for Reschedule {
    fn search(&self, spread: &Spread, _: &Leases) -> (u16, Vec<u16>) {
        spread.search(&self.job.target)
    }
}

impl Sought for Settlement {
    fn search(&self, spread: &Spread, leases: &Leases) -> (u16, Vec<u16>) {
        search_lease(&self.lease, spread, leases)
    }
}

impl Sought for Renewal {
    fn search(&self, spread: &Spread, leases: &Leases) -> (u16, Vec<u16>) {
        search_lease(&self.lease, spread, leases)
    }
}

fn search_lease(lease: &Lease, spread: &Spread, leases: &Leases) -> (u16, Vec<u16>) {
    match leases.shard(lease) {
        // Jobs do not move.
        Some(shard) if shard < spread.layout.width() => (shard, Vec::new()),
        _ => spread.search(&Target::Id(lease.job)),
    }
}

impl Store {
    /// Asks about each item until it is found; the answers come in the order of the items. `absent`
    /// tells answers that say that it is not here. Of a queue without shards one lane is asked, once.
    pub(crate) async fn seek<'a, I: Sought, T>(
        &'a self,
        operation: &'static str,
        items: &'a [I],
        absent: impl Fn(&T) -> bool,
        call: impl Fn(Chunk<'a, I>) -> BoxFuture<'a, Result<Vec<(usize, T)>>>,
    ) -> Result<Vec<T>> {
        self.adopt(operation, items.iter().map(InQueue::queue)).await?;
        let mut answers: Vec<Option<T>> = items.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..items.len()).collect();
        while !open.is_empty() {
            let spreads = self.spreads(open.iter().map(|place| items[*place].queue()));
            let (mut first, mut rest) = (Vec::with_capacity(open.len()), Vec::new());
            for &place in &open {
                let item = &items[place];
                let spread = &spreads[item.queue()];
                if spread.is_single() {
                    first.push(Ask { place, item, lane: spread.lane(0) });
                    continue;
                }
                let (home, others) = item.search(spread, &self.leases);
                first.push(Ask { place, item, lane: spread.lane(home) });
                let ask = |shard| Ask { place, item, lane: spread.lane(shard) };
                rest.extend(others.into_iter().map(ask));
            }
            for asks in [first, rest] {
                let is_open =
                    |ask: &Ask<'_, '_, I>| answers[ask.place].as_ref().is_none_or(&absent);
                let asks = asks.into_iter().filter(is_open).collect();
                for (place, answer) in batch::run(asks, &call).await? {
                    if answers[place].as_ref().is_none_or(&absent) {
                        answers[place] = Some(answer);
                    }
                }
            }
            // What was not found may be in a shard that was heard of only meanwhile.
            open.retain(|place| {
                let queue = items[*place].queue();
                answers[*place].as_ref().is_none_or(&absent)
                    && self.lanes.spread(queue).layout.is_newer(&spreads[queue].layout)
            });
        }
        Ok(answers.into_iter().flatten().collect())
    }
}
