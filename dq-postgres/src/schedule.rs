//! Schedules, cancels and reschedules jobs.

use dq_core::{
    Cancelled, JobRef, NewJob, OnConflict, OnRunning, Receipt, Reschedule, Rescheduled, Result,
    Scheduled, Target, Timestamp,
};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{after_a_part, unexpected};
use crate::params;
use crate::store::Store;

/// Other callers can write between the chunks of a long batch.
const CHUNK_ITEMS: usize = 1_000;

const CHUNK_BYTES: usize = 4 * 1024 * 1024;

impl Store {
    /// Stores each chunk in a transaction of its own.
    pub(crate) async fn store_jobs(&self, jobs: &[NewJob]) -> Result<Vec<Scheduled>> {
        let mut results = Vec::with_capacity(jobs.len());
        let mut rest = jobs;
        while !rest.is_empty() {
            let mut bytes = 0;
            let has_room = |job: &&NewJob| {
                let fits = bytes < CHUNK_BYTES;
                bytes += job.payload.len() + job.headers.size_bytes();
                fits
            };
            let items = rest.iter().take(CHUNK_ITEMS).take_while(has_room).count();
            let (chunk, others) = rest.split_at(items);
            let stored = self.store_chunk(chunk).await;
            results.extend(stored.map_err(|error| after_a_part(results.len(), error))?);
            rest = others;
        }
        Ok(results)
    }

    async fn store_chunk(&self, jobs: &[NewJob]) -> Result<Vec<Scheduled>> {
        if let [job] = jobs {
            return Ok(vec![self.store_job(job).await?]);
        }
        if let Some(stored) = self.store_new(jobs).await? {
            return Ok(stored);
        }
        let ids: Vec<Uuid> = jobs.iter().map(|job| params::uuid(job.id)).collect();
        let queues: Vec<&str> = jobs.iter().map(|job| job.queue.as_str()).collect();
        let keys: Vec<Option<&str>> = jobs.iter().map(key).collect();
        let (times, are_delays): (Vec<i64>, Vec<bool>) =
            jobs.iter().map(|job| params::due(job.due)).unzip();
        let policies: Vec<i32> = jobs.iter().map(|job| policy(job.on_conflict)).collect();
        let detaches: Vec<bool> = jobs.iter().map(detaches).collect();
        let pin_times: Vec<Option<i64>> = jobs.iter().map(pin_time).collect();
        let limits: Vec<Option<i64>> = jobs.iter().map(attempt_limit).collect();
        let headers: Vec<Option<String>> = jobs.iter().map(headers).collect();
        let payloads: Vec<&[u8]> = jobs.iter().map(|job| &job.payload[..]).collect();
        let rows = self
            .change(
                "SELECT * FROM dq.store($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                &[
                    (&ids, Type::UUID_ARRAY),
                    (&queues, Type::TEXT_ARRAY),
                    (&keys, Type::TEXT_ARRAY),
                    (&times, Type::INT8_ARRAY),
                    (&are_delays, Type::BOOL_ARRAY),
                    (&policies, Type::INT4_ARRAY),
                    (&detaches, Type::BOOL_ARRAY),
                    (&pin_times, Type::INT8_ARRAY),
                    (&limits, Type::INT8_ARRAY),
                    (&headers, Type::TEXT_ARRAY),
                    (&payloads, Type::BYTEA_ARRAY),
                ],
            )
            .await?;
        let row = rows.first().ok_or_else(unexpected)?;
        let outcomes: Vec<i32> = row.try_get(0).map_err(|_| unexpected())?;
        let ids: Vec<Uuid> = row.try_get(1).map_err(|_| unexpected())?;
        let dues: Vec<i64> = row.try_get(2).map_err(|_| unexpected())?;
        let receipts = ids.into_iter().zip(dues).map(|(id, due)| receipt(id, due));
        outcomes
            .into_iter()
            .zip(receipts)
            .zip(jobs)
            .map(|((outcome, receipt), job)| self.scheduled(job, outcome, receipt))
            .collect()
    }

    async fn store_job(&self, job: &NewJob) -> Result<Scheduled> {
        let (due, is_delay) = params::due(job.due);
        let rows = self
            .change(
                "SELECT dq.store_job($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                &[
                    (&params::uuid(job.id), Type::UUID),
                    (&job.queue.as_str(), Type::TEXT),
                    (&key(job), Type::TEXT),
                    (&due, Type::INT8),
                    (&is_delay, Type::BOOL),
                    (&policy(job.on_conflict), Type::INT4),
                    (&detaches(job), Type::BOOL),
                    (&pin_time(job), Type::INT8),
                    (&attempt_limit(job), Type::INT8),
                    (&headers(job), Type::TEXT),
                    (&&job.payload[..], Type::BYTEA),
                ],
            )
            .await?;
        let reply: Option<&str> = rows.first().and_then(|row| row.try_get(0).ok());
        let mut fields = reply.ok_or_else(unexpected)?.split(' ');
        let outcome = fields.next().and_then(|outcome| outcome.parse().ok());
        let id = fields.next().and_then(|id| id.parse().ok());
        let due = fields.next().and_then(|due| due.parse().ok());
        let (Some(outcome), Some(id), Some(due)) = (outcome, id, due) else {
            return Err(unexpected());
        };
        self.scheduled(job, outcome, receipt(id, due))
    }

    /// Stores jobs by the cheapest statement. Returns nothing if it does not suit them.
    async fn store_new(&self, jobs: &[NewJob]) -> Result<Option<Vec<Scheduled>>> {
        let queue = &jobs[0].queue;
        let (_, are_delays) = params::due(jobs[0].due);
        let suits = |job: &NewJob| {
            job.key.is_none() && job.queue == *queue && params::due(job.due).1 == are_delays
        };
        if !jobs.iter().all(suits) {
            return Ok(None);
        }
        let ids: Vec<Uuid> = jobs.iter().map(|job| params::uuid(job.id)).collect();
        let times: Vec<i64> = jobs.iter().map(|job| params::due(job.due).0).collect();
        let payloads: Vec<&[u8]> = jobs.iter().map(|job| &job.payload[..]).collect();
        let rows = self
            .change(
                "SELECT dq.store_new($1, $2, $3, $4, $5, $6, $7, $8)",
                &[
                    (&ids, Type::UUID_ARRAY),
                    (&queue.as_str(), Type::TEXT),
                    (&times, Type::INT8_ARRAY),
                    (&are_delays, Type::BOOL),
                    (&present(jobs, pin_time), Type::INT8_ARRAY),
                    (&present(jobs, attempt_limit), Type::INT8_ARRAY),
                    (&present(jobs, headers), Type::TEXT_ARRAY),
                    (&payloads, Type::BYTEA_ARRAY),
                ],
            )
            .await?;
        let row = rows.first().ok_or_else(unexpected)?;
        let now: Option<i64> = row.try_get(0).map_err(|_| unexpected())?;
        Ok(now.map(|now| {
            let origin = if are_delays { now } else { 0 };
            let receipts = ids.into_iter().zip(times).map(|(id, time)| receipt(id, origin + time));
            receipts.map(Scheduled::Created).collect()
        }))
    }

    fn scheduled(&self, job: &NewJob, outcome: i32, receipt: Receipt) -> Result<Scheduled> {
        Ok(match outcome {
            0 => Scheduled::Created(receipt),
            1 => {
                self.mark_ended(&job.queue);
                Scheduled::Replaced(receipt)
            }
            2 => Scheduled::Kept(receipt),
            3 => Scheduled::AlreadyRunning(receipt),
            4 => Scheduled::Ended(receipt),
            _ => return Err(unexpected()),
        })
    }

    pub(crate) async fn cancel_jobs(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let mut results = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(CHUNK_ITEMS) {
            let targets = Targets::new(chunk.iter());
            let rows = self
                .change(
                    "SELECT dq.cancel_jobs($1, $2, $3)",
                    &[
                        (&targets.queues, Type::TEXT_ARRAY),
                        (&targets.ids, Type::UUID_ARRAY),
                        (&targets.keys, Type::TEXT_ARRAY),
                    ],
                )
                .await
                .map_err(|error| after_a_part(results.len(), error))?;
            let row = rows.first().ok_or_else(unexpected)?;
            let outcomes: Vec<i32> = row.try_get(0).map_err(|_| unexpected())?;
            for (outcome, job) in outcomes.into_iter().zip(chunk) {
                results.push(match outcome {
                    0 => {
                        self.mark_ended(&job.queue);
                        Cancelled::Cancelled
                    }
                    1 => Cancelled::NotFound,
                    2 => Cancelled::AlreadyRunning,
                    _ => return Err(unexpected()),
                });
            }
        }
        Ok(results)
    }

    pub(crate) async fn reschedule_jobs(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let mut results = Vec::with_capacity(moves.len());
        for chunk in moves.chunks(CHUNK_ITEMS) {
            let targets = Targets::new(chunk.iter().map(|change| &change.job));
            let (times, are_delays): (Vec<i64>, Vec<bool>) =
                chunk.iter().map(|change| params::due(change.due)).unzip();
            let rows = self
                .change(
                    "SELECT * FROM dq.reschedule_jobs($1, $2, $3, $4, $5)",
                    &[
                        (&targets.queues, Type::TEXT_ARRAY),
                        (&targets.ids, Type::UUID_ARRAY),
                        (&targets.keys, Type::TEXT_ARRAY),
                        (&times, Type::INT8_ARRAY),
                        (&are_delays, Type::BOOL_ARRAY),
                    ],
                )
                .await
                .map_err(|error| after_a_part(results.len(), error))?;
            let row = rows.first().ok_or_else(unexpected)?;
            let outcomes: Vec<i32> = row.try_get(0).map_err(|_| unexpected())?;
            let ids: Vec<Option<Uuid>> = row.try_get(1).map_err(|_| unexpected())?;
            let dues: Vec<i64> = row.try_get(2).map_err(|_| unexpected())?;
            for (outcome, (id, due)) in outcomes.into_iter().zip(ids.into_iter().zip(dues)) {
                results.push(match (outcome, id) {
                    (0, Some(id)) => Rescheduled::Moved(receipt(id, due)),
                    (1, _) => Rescheduled::NotFound,
                    (2, _) => Rescheduled::AlreadyRunning,
                    _ => return Err(unexpected()),
                });
            }
        }
        Ok(results)
    }
}

/// Jobs by id or key, as parallel arrays.
struct Targets<'a> {
    queues: Vec<&'a str>,
    ids: Vec<Option<Uuid>>,
    keys: Vec<Option<&'a str>>,
}

impl<'a> Targets<'a> {
    fn new(jobs: impl Iterator<Item = &'a JobRef>) -> Self {
        let mut targets = Self { queues: Vec::new(), ids: Vec::new(), keys: Vec::new() };
        for job in jobs {
            targets.queues.push(job.queue.as_str());
            let (id, key) = match &job.target {
                Target::Id(id) => (Some(params::uuid(*id)), None),
                Target::Key(key) => (None, Some(key.as_str())),
            };
            targets.ids.push(id);
            targets.keys.push(key);
        }
        targets
    }
}

fn receipt(id: Uuid, due: i64) -> Receipt {
    Receipt { id: params::job_id(id), due: Timestamp::from_millis(due) }
}

fn key(job: &NewJob) -> Option<&str> {
    job.key.as_ref().map(|key| key.as_str())
}

/// As in `schedule.sql`.
fn policy(on_conflict: OnConflict) -> i32 {
    match on_conflict {
        OnConflict::Replace => 1,
        OnConflict::Earliest => 2,
        OnConflict::Latest => 3,
        _ => 0,
    }
}

fn detaches(job: &NewJob) -> bool {
    job.on_running == OnRunning::Detach
}

fn pin_time(job: &NewJob) -> Option<i64> {
    (!job.remember.is_zero()).then(|| params::millis(job.remember).max(1))
}

fn attempt_limit(job: &NewJob) -> Option<i64> {
    job.max_attempts.map(i64::from)
}

fn headers(job: &NewJob) -> Option<String> {
    (!job.headers.is_empty()).then(|| {
        serde_json::to_string(&job.headers).expect("a map of strings to strings is always JSON")
    })
}

/// The jobs' values of an optional field; null, which costs least, if no job has it.
fn present<T>(jobs: &[NewJob], field: impl Fn(&NewJob) -> Option<T>) -> Option<Vec<Option<T>>> {
    let values: Vec<Option<T>> = jobs.iter().map(field).collect();
    values.iter().any(Option::is_some).then_some(values)
}
