//! The references, through the client library alone, with prepared statements: inserts of the same
//! rows into a table like the backend's, and calls of the backend's functions.

use std::time::{Duration, Instant};

use dq::{Due, NewJob};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

use crate::measure::Result;
use crate::workload::{BATCH, BULK, QUEUE, now};

pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A table with the columns, constraints and indexes of `dq.job`.
pub(super) struct Table {
    client: Client,
    one: Statement,
    many: Statement,
}

impl Table {
    pub(super) async fn create(url: &str) -> Result<Self> {
        const INSERT: &str = "INSERT INTO bare.job (id, at, due, created, q, payload)";
        let client = connect(url).await?;
        let create = "CREATE SCHEMA bare
            CREATE SEQUENCE number
            CREATE TABLE job (LIKE dq.job INCLUDING ALL);
            ALTER TABLE bare.job ALTER seq SET DEFAULT nextval('bare.number')";
        client.batch_execute(create).await?;
        let one = client.prepare(&format!("{INSERT} VALUES ($1, $2, $2, $3, 1, $4)")).await?;
        let many = "SELECT id, due, due, $3, 1, payload
            FROM unnest($1::uuid[], $2::bigint[], $4::bytea[]) AS new (id, due, payload)";
        let many = client.prepare(&format!("{INSERT} {many}")).await?;
        Ok(Self { client, one, many })
    }

    pub(super) async fn one_by_one(&self, jobs: &[NewJob]) -> Result<Duration> {
        let start = Instant::now();
        for job in jobs {
            let (id, due) = id_and_due(job);
            let created = now().as_millis();
            self.client.execute(&self.one, &[&id, &due, &created, &&job.payload[..]]).await?;
        }
        Ok(start.elapsed())
    }

    pub(super) async fn bulks(&self, jobs: &[NewJob]) -> Result<Duration> {
        let mut spent = Duration::ZERO;
        for bulk in jobs.chunks(BULK) {
            let (ids, dues): (Vec<Uuid>, Vec<i64>) = bulk.iter().map(id_and_due).unzip();
            let payloads: Vec<&[u8]> = bulk.iter().map(|job| &job.payload[..]).collect();
            let created = now().as_millis();
            let start = Instant::now();
            self.client.execute(&self.many, &[&ids, &dues, &created, &payloads]).await?;
            spent += start.elapsed();
        }
        Ok(spent)
    }
}

fn id_and_due(job: &NewJob) -> (Uuid, i64) {
    let Due::At(due) = job.due else { panic!("the jobs have due times") };
    (Uuid::from_bytes(job.id.to_bytes()), due.as_millis())
}

/// Calls `claim` and `settle` in the schema `another`.
pub(super) struct Functions {
    client: Client,
    claim: Statement,
    settle: Statement,
    /// From where the next claim reads: a position in the queue, the first expiry, and the last
    /// rewind.
    from: (i64, i64, i64, i64),
}

impl Functions {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        let client = connect(url).await?;
        let claim = "SELECT * FROM another.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let claim = client.prepare(claim).await?;
        let settle = "SELECT another.settle($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let settle = client.prepare(settle).await?;
        Ok(Self { client, claim, settle, from: (i64::MIN, 0, i64::MIN, 0) })
    }

    /// As `workload::drain`.
    pub(super) async fn drain(&mut self, jobs: usize) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..jobs / BATCH {
            let (ids, tokens) = self.claim().await?;
            let (done, delays) = (vec![0_i32; BATCH], vec![0_i64; BATCH]);
            let (flags, texts) = (vec![false; BATCH], vec![None::<&str>; BATCH]);
            let payloads = vec![None::<&[u8]>; BATCH];
            let arguments: [&(dyn ToSql + Sync); 9] =
                [&ids, &tokens, &done, &delays, &flags, &flags, &texts, &texts, &payloads];
            let row = self.client.query_one(&self.settle, &arguments).await?;
            if row.try_get::<_, Vec<Uuid>>(0)?.len() != BATCH {
                return Err("a lease was lost".into());
            }
        }
        Ok(start.elapsed())
    }

    async fn claim(&mut self) -> Result<(Vec<Uuid>, Vec<i64>)> {
        let (at, seq, expiry, rewind) = self.from;
        let max = i32::try_from(BATCH)?;
        let (queues, maxes, lease_times, from_expired) =
            (vec![QUEUE], vec![max], vec![300_000_i64], vec![i64::MIN]);
        let [at, seq, expiry, rewind, seen] = [at, seq, expiry, rewind, 0].map(|from| vec![from]);
        let arguments: [&(dyn ToSql + Sync); 11] = [
            &queues,
            &maxes,
            &lease_times,
            &max,
            &"bare",
            &at,
            &seq,
            &from_expired,
            &expiry,
            &rewind,
            &seen,
        ];
        let rows = self.client.query(&self.claim, &arguments).await?;
        let (mut ids, mut tokens) = (Vec::new(), Vec::new());
        for row in &rows {
            if let Some(id) = row.try_get("id")? {
                ids.push(id);
                tokens.push(row.try_get("token")?);
            } else if let Some(rewind) = row.try_get("last_rewind")? {
                let next = |column| row.try_get::<_, Option<i64>>(column);
                let [at, seq, expiry] = [next("next_at")?, next("next_seq")?, next("next_expiry")?]
                    .map(|next| next.unwrap_or(i64::MAX));
                self.from = (at, seq, expiry, rewind);
            }
        }
        if ids.len() != BATCH {
            return Err(format!("a claim returned {} of {BATCH} jobs", ids.len()).into());
        }
        Ok((ids, tokens))
    }
}
