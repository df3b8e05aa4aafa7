//! Settles leases with verdicts.

use std::collections::HashSet;

use dq_core::{JobId, Result, Settled, Settlement, Verdict};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{after_a_part, unexpected, unsupported};
use crate::params;
use crate::store::Store;

const CHUNK_ITEMS: usize = 1_000;

impl Store {
    pub(crate) async fn settle_leases(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut results = Vec::with_capacity(settlements.len());
        let mut rest = settlements;
        while !rest.is_empty() {
            // The function settles no job twice.
            let mut jobs = HashSet::new();
            let is_new = |settlement: &&Settlement| jobs.insert(settlement.lease.job);
            let items = rest.iter().take(CHUNK_ITEMS).take_while(is_new).count();
            let (chunk, others) = rest.split_at(items);
            let settled = self.settle_chunk(chunk).await;
            results.extend(settled.map_err(|error| after_a_part(results.len(), error))?);
            rest = others;
        }
        Ok(results)
    }

    async fn settle_chunk(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut sorted: Vec<&Settlement> = settlements.iter().collect();
        // In one order, like `renew`: calls that wait for each other's locks never do so in a
        // circle.
        sorted.sort_unstable_by_key(|settlement| settlement.lease.job);
        let mut arrays = Arrays::default();
        for settlement in sorted {
            arrays.push(settlement)?;
        }
        let rows = self
            .change(
                "SELECT dq.settle($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                &[
                    (&arrays.ids, Type::UUID_ARRAY),
                    (&arrays.tokens, Type::INT8_ARRAY),
                    (&arrays.verdicts, Type::INT4_ARRAY),
                    (&arrays.times, Type::INT8_ARRAY),
                    (&arrays.are_delays, Type::BOOL_ARRAY),
                    (&arrays.flags, Type::BOOL_ARRAY),
                    (&arrays.texts, Type::TEXT_ARRAY),
                    (&arrays.kinds, Type::TEXT_ARRAY),
                    (&arrays.payloads, Type::BYTEA_ARRAY),
                ],
            )
            .await?;
        let row = rows.first().ok_or_else(unexpected)?;
        let held: Vec<Uuid> = row.try_get(0).map_err(|_| unexpected())?;
        let held: HashSet<JobId> = held.into_iter().map(params::job_id).collect();
        let settled = settlements.iter().map(|settlement| {
            if !held.contains(&settlement.lease.job) {
                return Settled::LostLease;
            }
            if matches!(settlement.verdict, Verdict::Done | Verdict::Skip { .. }) {
                self.mark_ended(&settlement.lease.queue);
            }
            Settled::Accepted
        });
        Ok(settled.collect())
    }
}

/// The arguments of `settle` in `settle.sql`.
#[derive(Default)]
struct Arrays<'a> {
    ids: Vec<Uuid>,
    tokens: Vec<i64>,
    verdicts: Vec<i32>,
    times: Vec<i64>,
    are_delays: Vec<bool>,
    flags: Vec<bool>,
    texts: Vec<Option<String>>,
    kinds: Vec<Option<&'static str>>,
    payloads: Vec<Option<&'a [u8]>>,
}

impl<'a> Arrays<'a> {
    fn push(&mut self, settlement: &'a Settlement) -> Result<()> {
        let (mut due, mut flag, mut text, mut kind, mut payload) =
            ((0, false), false, None, None, None);
        let verdict = match &settlement.verdict {
            Verdict::Done => 0,
            Verdict::Skip { reason } => {
                text = Some(params::text(reason));
                1
            }
            Verdict::Retry { due: at, error } => {
                due = params::due(*at);
                text = Some(params::text(error));
                2
            }
            Verdict::Snooze(at) => {
                due = params::due(*at);
                3
            }
            Verdict::Again { due: at, payload: next } => {
                due = params::due(*at);
                payload = Some(&next[..]);
                4
            }
            Verdict::Dead { reason, failed } => {
                flag = *failed;
                text = Some(params::text(&reason.message));
                kind = Some(reason.kind.as_str());
                5
            }
            Verdict::Release { started } => {
                flag = *started;
                6
            }
            Verdict::Throttle(at) => {
                due = params::due(*at);
                7
            }
            other => return Err(unsupported(other)),
        };
        self.ids.push(params::uuid(settlement.lease.job));
        self.tokens.push(params::token(settlement.lease.token));
        self.verdicts.push(verdict);
        self.times.push(due.0);
        self.are_delays.push(due.1);
        self.flags.push(flag);
        self.texts.push(text);
        self.kinds.push(kind);
        self.payloads.push(payload);
        Ok(())
    }
}
