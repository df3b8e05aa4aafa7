//! Renews leases.

use dq_core::{QueueName, Renewal, Renewed, Result, async_trait};
use redis::Value;

use crate::args::millis_arg;
use crate::batch::{Chunk, Item};
use crate::handle;
use crate::reply::Reply;
use crate::script::{Call, Script, Scripts};
use crate::shards::leases::LeaseShards;
use crate::shards::partitions::QueuePartitions;
use crate::store::RedisBackend;

impl RedisBackend {
    pub(crate) async fn renew_leases(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let answers = self.run_batch(renewals).await?;
        let lost = renewals.iter().zip(&answers).filter(|(_, answer)| Renewal::is_absent(answer));
        self.leases.remove(lost.map(|(renewal, _)| &renewal.lease));
        Ok(answers)
    }
}

#[async_trait]
impl Item for Renewal {
    type Answer = Renewed;

    fn queue(&self) -> &QueueName {
        &self.lease.queue
    }

    fn shards(&self, partitions: &QueuePartitions, leases: &LeaseShards) -> (u16, Vec<u16>) {
        leases.candidates(&self.lease, partitions)
    }

    fn is_absent(answer: &Renewed) -> bool {
        *answer == Renewed::LostLease
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.renew
    }

    fn add_arguments(_: &RedisBackend, chunk: &Chunk<'_, Self>, call: &mut Call<'_>) -> Result<()> {
        for renewal in &chunk.items {
            let lease = &renewal.lease;
            call.arg(&handle::handle(lease.job)[..])
                .arg(lease.token.0)
                .arg(millis_arg(renewal.lease_for));
        }
        Ok(())
    }

    async fn read(_: &RedisBackend, reply: Value, chunk: &Chunk<'_, Self>) -> Result<Vec<Renewed>> {
        let mut reply = Reply::new(reply)?;
        let mut renewed = || {
            let until = reply.time()?;
            Ok(if until.as_millis() == 0 { Renewed::LostLease } else { Renewed::Until(until) })
        };
        chunk.items.iter().map(|_| renewed()).collect()
    }
}
