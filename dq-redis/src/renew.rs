//! Renews leases.

use dq_core::{Renewal, Renewed, Result, Timestamp};

use crate::args::millis_arg;
use crate::batch::Chunk;
use crate::error::unexpected;
use crate::handle;
use crate::reply::Reply;
use crate::store::Store;

const RENEW: &str = "renew";

impl Store {
    pub(crate) async fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> Result<Vec<Renewed>> {
        let is_lost = |answer: &Renewed| *answer == Renewed::Lost;
        let answers =
            self.route(RENEW, renewals, is_lost, |chunk| Box::pin(self.renew_chunk(chunk))).await?;
        let lost = renewals.iter().zip(&answers).filter(|(_, answer)| is_lost(answer));
        self.leases.remove(lost.map(|(renewal, _)| &renewal.lease));
        Ok(answers)
    }

    async fn renew_chunk(&self, chunk: Chunk<'_, Renewal>) -> Result<Option<Vec<Renewed>>> {
        let mut call = self.scripts.renew.on([&*chunk.partition]);
        for renewal in &chunk.items {
            let lease = &renewal.lease;
            call.arg(&handle::handle(lease.job)[..])
                .arg(lease.token.0)
                .arg(millis_arg(renewal.lease_for));
        }
        let Some(answer) = self.run_on(RENEW, &chunk.partition, call).await? else {
            return Ok(None);
        };
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            let renewed = |until| match until {
                0 => Renewed::Lost,
                until => Renewed::Until(Timestamp::from_millis(until)),
            };
            chunk.items.iter().map(|_| reply.number().map(renewed)).collect::<Option<Vec<_>>>()
        };
        match read(answer) {
            Some(answers) => Ok(Some(answers)),
            None => unexpected(RENEW),
        }
    }
}
