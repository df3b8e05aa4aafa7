//! Errors: their kind and remedy, by the server's code.

use std::time::Duration;

use dq_core::{Error, ErrorKind};
use tokio_postgres::error::{DbError, SqlState};

use crate::connect::Server;

/// What a statement may have done if its reply is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing that matters: it only reads, or it is a claim, whose leases expire.
    Reads,
    /// Nothing, but it may read all jobs of a queue, so its reply takes longer.
    Scans,
    Changes,
}

const REACHABLE: &str = "check that the server runs and can be reached from this host";
const RESTORE: &str = "the schema differs from the one that dq-postgres has created: connect \
    again, which restores its functions, after dropping those with other results; or set another `schema`";
const REPEAT: &str = "repeat the call with the same job ids: nothing takes effect twice";

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store has been closed")
}

pub(crate) fn timed_out(server: &Server, effect: Effect, limit: Duration) -> Error {
    lost(server, effect, &format!("no reply within {limit:?}"))
}

pub(crate) fn no_connection(server: &Server, limit: Duration) -> Error {
    let what = format!("PostgreSQL at {}: no free connection within {limit:?}", server.shown);
    Error::new(ErrorKind::Unavailable, what).remedy(
        "check that the server runs and can be reached; if calls are slow or many, raise `connections`",
    )
}

fn lost(server: &Server, effect: Effect, what: &str) -> Error {
    let (kind, remedy) = match effect {
        Effect::Reads | Effect::Scans => (ErrorKind::Unavailable, REACHABLE),
        Effect::Changes => (ErrorKind::OutcomeUnknown, REPEAT),
    };
    Error::new(kind, format!("PostgreSQL at {}: {what}", server.shown)).remedy(remedy)
}

/// A pooler's own reply, for example after it lost the server. PostgreSQL has this code for
/// statements that another session prepared, and names them.
fn is_from_pooler(refusal: &DbError) -> bool {
    *refusal.code() == SqlState::PROTOCOL_VIOLATION
        && !refusal.message().contains("prepared statement")
}

pub(crate) fn from_connect(server: &Server, error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(refusal) if is_from_pooler(refusal) => lost(server, Effect::Reads, refusal.message()),
        Some(refusal) => from_server(server, refusal),
        None => {
            let text = full_text(error);
            let (kind, remedy) = if text.contains("session is not read-write")
                || text.contains("database does not allow writes")
            {
                (ErrorKind::ReadOnly, "name the primary, or all servers: postgres://a,b/database")
            } else if text.contains("password missing") {
                (ErrorKind::Config, "write the password in the URL")
            } else if text.contains("certificate") || text.contains("TLS") {
                (
                    ErrorKind::Config,
                    "set `ca` to the certificate of the server's authority, or \
                 `sslmode=disable` on your own machine",
                )
            } else {
                (ErrorKind::Unavailable, REACHABLE)
            };
            Error::new(kind, format!("PostgreSQL at {}: {text}", server.shown)).remedy(remedy)
        }
    }
}

pub(crate) fn from_statement(
    server: &Server,
    effect: Effect,
    error: &tokio_postgres::Error,
) -> Error {
    match error.as_db_error() {
        Some(refusal) if is_from_pooler(refusal) => lost(server, effect, refusal.message()),
        Some(refusal) => from_server(server, refusal),
        None if error.is_closed()
            || std::error::Error::source(error)
                .is_some_and(|source| source.is::<std::io::Error>()) =>
        {
            lost(server, effect, &full_text(error))
        }
        None => Error::new(
            ErrorKind::Internal,
            format!("PostgreSQL at {}: {}", server.shown, full_text(error)),
        )
        .remedy("please report this with the message"),
    }
}

/// The statement was rolled back.
fn from_server(server: &Server, refusal: &DbError) -> Error {
    let (kind, remedy) = diagnose(refusal.code());
    let mut what = format!("PostgreSQL at {}: {}", server.shown, refusal.message());
    if let Some(detail) = refusal.detail() {
        what.push_str(&format!(" ({detail})"));
    }
    Error::new(kind, what).remedy(remedy)
}

fn diagnose(code: &SqlState) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Full, Incompatible, Internal, InvalidInput, ReadOnly, Unavailable};
    match *code {
        SqlState::READ_ONLY_SQL_TRANSACTION => (
            ReadOnly,
            "this server is a standby, or the role or database is read-only: name the primary, or all \
             servers: postgres://a,b/database",
        ),
        SqlState::INSUFFICIENT_PRIVILEGE => (
            Config,
            "grant the role what dq's PostgreSQL guide lists under rights; to create or upgrade the \
             schema, run `dq migrate` as a role that may",
        ),
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (Config, "check user and password of the URL, and the server's pg_hba.conf")
        }
        SqlState::INVALID_CATALOG_NAME => {
            (Config, "create the database, or name another at the end of the URL")
        }
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::UNDEFINED_COLUMN
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::DATATYPE_MISMATCH
        | SqlState::WRONG_OBJECT_TYPE
        | SqlState::INVALID_FUNCTION_DEFINITION => (Incompatible, RESTORE),
        SqlState::INVALID_SQL_STATEMENT_NAME
        | SqlState::DUPLICATE_PSTATEMENT
        | SqlState::PROTOCOL_VIOLATION => {
            (Config, "a pooler in transaction mode seems to be in between: set `prepare` to false")
        }
        SqlState::DISK_FULL => (Full, "free disk space of the server"),
        SqlState::PROGRAM_LIMIT_EXCEEDED | SqlState::STATEMENT_TOO_COMPLEX => {
            (InvalidInput, "store the data elsewhere and schedule a reference to it")
        }
        SqlState::CHECK_VIOLATION
        | SqlState::CHARACTER_NOT_IN_REPERTOIRE
        | SqlState::UNTRANSLATABLE_CHARACTER => {
            (InvalidInput, "correct the value; the database's encoding should be UTF8")
        }
        SqlState::TOO_MANY_CONNECTIONS => {
            (Unavailable, "lower `connections`, or raise the server's `max_connections`")
        }
        SqlState::QUERY_CANCELED => {
            (Unavailable, "raise `statement_timeout` of the role, or `options` in the URL")
        }
        _ => match &code.code()[..2] {
            // Connection, resources, rolled back, operator intervention, system error.
            "08" | "40" | "53" | "55" | "57" | "58" => (Unavailable, "see the server's log"),
            _ => (Internal, "please report this with the message"),
        },
    }
}

/// The client library's messages leave out the cause.
fn full_text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
        source = cause.source();
    }
    text
}

/// The server's reply has another form than our functions give it.
pub(crate) fn unexpected() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "PostgreSQL: a function of the schema gave an unexpected reply",
    )
    .remedy(RESTORE)
}

/// For a variant of a `non_exhaustive` enum that this version does not support.
pub(crate) fn unsupported(variant: &impl std::fmt::Debug) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the postgres backend does not support {variant:?}"))
        .remedy("use versions of dq-core and dq-postgres that were released together")
}

/// One of several transactions failed after `done` items were committed. Errors that repeating does
/// not fix keep their kind.
pub(crate) fn after_a_part(done: usize, error: Error) -> Error {
    if done == 0 {
        return error;
    }
    let kind = if error.is_retryable() { ErrorKind::OutcomeUnknown } else { error.kind() };
    let message = format!("{done} items took effect, and the next ones failed: {error}");
    Error::new(kind, message).remedy(REPEAT).source(error)
}
