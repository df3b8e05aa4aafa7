//! Rows of your own tables as jobs, which a query reads.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use dq_core::config::ConnectUrl;
use dq_core::{
    Due, Error, ErrorKind, Headers, JobId, JobKey, NewJob, QueueName, Result, Timestamp,
};
use serde::de::IgnoredAny;
use tokio::task::AbortHandle;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use crate::config::PostgresConfig;
use crate::connect::Server;
use crate::error::{self, Effect};
use crate::params;

/// Rows in one reply.
const ROWS: usize = 1_000;

/// How long a job's id stays pinned after its end: a repeated import does not run it again.
const REMEMBERED: Duration = Duration::from_secs(7 * 86_400);

/// For ids that are not UUIDs.
const NAMESPACE: Uuid = Uuid::from_u128(0x5f0c_6d3e_91a2_4c0b_8a57_3d0f_2b61_c9e4);

const COLUMNS: [&str; 7] = ["id", "queue", "payload", "due", "key", "headers", "max_attempts"];

/// A query whose rows are jobs, for the command `dq import postgres`.
///
/// | Column | Type | |
/// |---|---|---|
/// | `id` | `uuid`, text or an integer | the same in each run, so that an import can be repeated; unique in its queue |
/// | `payload` | `json`, `jsonb`, text or `bytea` | |
/// | `due` | `timestamptz` | |
/// | `queue` | text | required unless [`queue`](Self::queue) names one for all rows |
/// | `key` | text | optional, or null |
/// | `headers` | `json` or `jsonb` | optional, or null: an object whose values are strings |
/// | `max_attempts` | an integer | optional, or null |
///
/// An `id` that is a UUID is the job's id; other ids are hashed with the queue's name.
#[derive(Clone)]
pub struct QuerySource {
    server: Server,
    query: String,
    queue: Option<QueueName>,
}

impl QuerySource {
    /// Creates a source from a URL as in [`PostgresConfig::from_url`] and a `SELECT`.
    ///
    /// # Errors
    /// `Config` for a malformed URL.
    pub fn new(url: &str, query: &str) -> Result<Self> {
        let config = PostgresConfig::from_url(&ConnectUrl::parse(url)?)?;
        let query = query.trim_end_matches([';', ' ', '\n']).to_owned();
        Ok(Self { server: config.server()?, query, queue: None })
    }

    /// Sets the queue of all rows; the query then has no column `queue`.
    #[must_use]
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Runs the query in a transaction that only reads.
    ///
    /// # Errors
    /// `InvalidInput` if the server refuses the query; `Config` for wrong credentials;
    /// `Unavailable` if it cannot be reached.
    pub async fn open(&self) -> Result<QueryRows> {
        let connected = self.server.config.connect(self.server.tls.clone()).await;
        let (client, connection) =
            connected.map_err(|error| error::from_connect(&self.server, &error))?;
        let connection = tokio::spawn(async move {
            // The calls report its errors.
            let _ = connection.await;
        });
        let source = self.clone();
        let rows = QueryRows { source, client, connection: connection.abort_handle(), read: 0 };
        rows.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        // Such a cursor can be read twice.
        rows.execute(&format!("DECLARE dq_import SCROLL CURSOR FOR {}", self.query)).await?;
        Ok(rows)
    }
}

impl fmt::Debug for QuerySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuerySource")
            .field("server", &self.server.shown)
            .field("query", &self.query)
            .field("queue", &self.queue)
            .finish()
    }
}

/// The rows of a [`QuerySource`], in one snapshot.
pub struct QueryRows {
    source: QuerySource,
    client: tokio_postgres::Client,
    connection: AbortHandle,
    read: u64,
}

impl QueryRows {
    /// Returns the next rows, up to 1,000; none at the end.
    ///
    /// # Errors
    /// `InvalidInput` if the query fails, or its columns are not those of [`QuerySource`];
    /// `Unavailable` if the connection is lost.
    pub async fn next(&mut self) -> Result<Vec<QueryRow>> {
        let rows = self.execute(&format!("FETCH {ROWS} FROM dq_import")).await?;
        if let Some(row) = rows.first() {
            self.check_columns(row)?;
        }
        let first = self.read + 1;
        self.read += rows.len() as u64;
        let job = |row| self.job(row).map_err(|(column, why)| format!("column {column}: {why}"));
        Ok((first..).zip(&rows).map(|(number, row)| QueryRow { number, job: job(row) }).collect())
    }

    /// Begins at the first row again.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn rewind(&mut self) -> Result<()> {
        self.read = 0;
        self.execute("MOVE ABSOLUTE 0 FROM dq_import").await.map(drop)
    }

    /// Executes one statement, without preparing it by name: a pooler may be in between.
    async fn execute(&self, sql: &str) -> Result<Vec<Row>> {
        self.client.query_typed(sql, &[]).await.map_err(|error| {
            let server = &self.source.server;
            match error.as_db_error() {
                // Class 22: data. 25: the query writes. 42: syntax, names, or rights on its tables.
                Some(refusal) if ["22", "25", "42"].contains(&&refusal.code().code()[..2]) => {
                    let what = format!("PostgreSQL at {}: {}", server.shown, refusal.message());
                    Error::new(ErrorKind::InvalidInput, what).remedy("correct the query")
                }
                _ => error::from_statement(server, Effect::Reads, &error),
            }
        })
    }

    fn check_columns(&self, row: &Row) -> Result<()> {
        let names: Vec<&str> = row.columns().iter().map(|column| column.name()).collect();
        let required = ["id", "payload", "due"].into_iter();
        let queue = self.source.queue.is_none().then_some("queue");
        let missing = required.chain(queue).find(|name| !names.contains(name));
        let unknown = names.iter().find(|name| !COLUMNS.contains(name));
        let twice = COLUMNS.iter().find(|name| names.iter().filter(|it| it == name).count() > 1);
        let what = if let Some(name) = missing {
            format!("the query has no column {name}")
        } else if let Some(name) = unknown {
            format!("the query has a column {name}, which no job has")
        } else if let Some(name) = twice {
            format!("the query has two columns {name}")
        } else if queue.is_none() && names.contains(&"queue") {
            "the queue is given, and the query has a column queue".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid(what).remedy(format!("name the columns by AS: {}", COLUMNS.join(", "))))
    }

    fn job(&self, row: &Row) -> Result<NewJob, (&'static str, String)> {
        let queue = match &self.source.queue {
            Some(queue) => queue.clone(),
            None => field(row, "queue", |value| named(value, QueueName::new))?,
        };
        let id = field(row, "id", |value| job_id(&queue, value))?;
        let due = field(row, "due", timestamp)?;
        let payload = field(row, "payload", bytes)?;
        let key = optional(row, "key", |value| named(value, JobKey::new))?;
        let headers = optional(row, "headers", headers)?.unwrap_or_default();
        let max_attempts = optional(row, "max_attempts", |value| {
            let limit = integer(value)?;
            u32::try_from(limit).map_err(|_| format!("{limit} is not from 1 to {}", u32::MAX))
        })?;
        let is_json = headers.get(Headers::CONTENT_TYPE).is_none_or(Headers::is_json);
        if is_json && let Err(error) = serde_json::from_slice::<IgnoredAny>(&payload) {
            let what = format!("it is not JSON ({error}), and headers have no other content-type");
            return Err(("payload", what));
        }
        let mut job = NewJob::new(id, queue, Due::At(due), payload);
        job.key = key;
        job.headers = headers;
        job.max_attempts = max_attempts;
        job.remember = REMEMBERED;
        Ok(job)
    }
}

impl Drop for QueryRows {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl fmt::Debug for QueryRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryRows").field("source", &self.source).finish_non_exhaustive()
    }
}

/// A row of a [`QuerySource`].
#[derive(Debug, Clone)]
pub struct QueryRow {
    /// Its number, from 1.
    pub number: u64,
    /// The job, or the column that is invalid, and why.
    pub job: Result<NewJob, String>,
}

/// A value as the server has sent it.
#[derive(Clone, Copy)]
struct Value<'a> {
    kind: &'a Type,
    bytes: &'a [u8],
}

struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

type Read<T> = Result<T, String>;

fn field<T>(
    row: &Row,
    name: &'static str,
    read: impl FnOnce(Value<'_>) -> Read<T>,
) -> Result<T, (&'static str, String)> {
    optional(row, name, read)?.ok_or_else(|| (name, "it is null".to_owned()))
}

/// Reads a column; `None` if it is null, or the query has no such column.
fn optional<T>(
    row: &Row,
    name: &'static str,
    read: impl FnOnce(Value<'_>) -> Read<T>,
) -> Result<Option<T>, (&'static str, String)> {
    let Some(index) = row.columns().iter().position(|column| column.name() == name) else {
        return Ok(None);
    };
    let Some(Raw(bytes)) = row.get(index) else { return Ok(None) };
    read(Value { kind: row.columns()[index].type_(), bytes }).map(Some).map_err(|why| (name, why))
}

/// Decodes a value whose type matches.
fn decode<'a, T: FromSql<'a>>(Value { kind, bytes }: Value<'a>) -> Read<T> {
    T::from_sql(kind, bytes).map_err(|error| error.to_string())
}

fn wrong_type<T>(kind: &Type, expected: &str) -> Read<T> {
    Err(format!("it is of type {kind}; {expected}"))
}

fn text(value: Value<'_>) -> Read<&str> {
    match *value.kind {
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => decode(value),
        _ => wrong_type(value.kind, "cast it to text"),
    }
}

fn named<T>(value: Value<'_>, new: impl FnOnce(String) -> Result<T>) -> Read<T> {
    new(text(value)?.to_owned()).map_err(|error| error.message().to_owned())
}

fn integer(value: Value<'_>) -> Read<i64> {
    match *value.kind {
        Type::INT2 => decode::<i16>(value).map(i64::from),
        Type::INT4 => decode::<i32>(value).map(i64::from),
        Type::INT8 => decode(value),
        _ => wrong_type(value.kind, "cast it to bigint"),
    }
}

fn job_id(queue: &QueueName, value: Value<'_>) -> Read<JobId> {
    let id = match *value.kind {
        Type::UUID => return decode(value).map(params::job_id),
        Type::INT2 | Type::INT4 | Type::INT8 => integer(value)?.to_string(),
        _ => text(value)?.to_owned(),
    };
    // No queue name has a line feed.
    let name = format!("{queue}\n{id}");
    Ok(params::job_id(Uuid::new_v5(&NAMESPACE, name.as_bytes())))
}

/// Rounds up to milliseconds, so that no job is early.
fn timestamp(value: Value<'_>) -> Read<Timestamp> {
    /// Microseconds from 1970 to 2000, where PostgreSQL's times begin. The smallest and the largest
    /// number are infinite.
    const START: i64 = 946_684_800_000_000;
    let zoned = "use a timestamptz, such as due AT TIME ZONE 'UTC'";
    if *value.kind != Type::TIMESTAMPTZ {
        return wrong_type(value.kind, zoned);
    }
    let micros = value.bytes.try_into().map(i64::from_be_bytes).ok();
    match micros.filter(|&micros| micros != i64::MIN).and_then(|it| it.checked_add(START)) {
        Some(micros) => {
            Ok(Timestamp::from_millis(micros.div_euclid(1_000) + i64::from(micros % 1_000 != 0)))
        }
        _ => Err("it is infinite".to_owned()),
    }
}

fn bytes(value: Value<'_>) -> Read<Bytes> {
    match *value.kind {
        Type::JSON | Type::BYTEA => Ok(Bytes::copy_from_slice(value.bytes)),
        // After the format's version.
        Type::JSONB => Ok(Bytes::copy_from_slice(value.bytes.get(1..).unwrap_or_default())),
        _ => text(value)
            .map(|text| Bytes::copy_from_slice(text.as_bytes()))
            .or_else(|_| wrong_type(value.kind, "make it JSON by to_jsonb")),
    }
}

fn headers(value: Value<'_>) -> Read<Headers> {
    match *value.kind {
        Type::JSON | Type::JSONB => serde_json::from_slice(&bytes(value)?)
            .map_err(|error| format!("it is not a JSON object of strings: {error}")),
        _ => wrong_type(value.kind, "use jsonb_build_object"),
    }
}
