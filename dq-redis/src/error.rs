//! What went wrong at the server, as our errors, with what to do about it.

use dq_core::{Error, ErrorKind, Result};
use redis::{RedisError, ServerErrorKind};

use crate::connect::{Address, Effect};

/// The error of a call on a backend that was closed.
pub(crate) fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, "the Redis backend was closed").operation(operation)
}

/// An answer of a script that is not what the script says.
pub(crate) fn unexpected<T>(operation: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::Internal, "a script answered something unexpected")
        .remedy("is another program writing to our keys? If not, please report this")
        .operation(operation))
}

/// An error in what was configured.
pub(crate) fn of_settings(error: &RedisError) -> Error {
    // The text may repeat the address; the category never does.
    Error::new(ErrorKind::Config, format!("the Redis URL cannot be used: {}", error.category()))
        .remedy("write it like redis://user:password@host:6379/0")
        .operation("connect")
}

/// Whether the connection is of no use any more, or leads to a server that cannot help.
pub(crate) fn breaks_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_unrecoverable_error()
        || has_code(error, &["READONLY", "MASTERDOWN"])
}

/// Whether the server does not have the script.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

/// An error of a command.
pub(crate) fn of_command(
    operation: &'static str,
    effect: Effect,
    address: &Address,
    error: &RedisError,
) -> Error {
    let (kind, remedy) = classify(error, effect);
    let said = match error.detail() {
        Some(detail) => format!("{} {detail}", error.code().unwrap_or_default()),
        None => error.to_string(),
    };
    Error::new(kind, format!("Redis at {}: {}", address.shown(), said.trim()))
        .remedy(remedy)
        .operation(operation)
}

/// Server errors inside a script come as they are from Redis 7 on, and inside a text before.
fn has_code(error: &RedisError, codes: &[&str]) -> bool {
    let code = error.code().unwrap_or_default();
    let detail = error.detail().unwrap_or_default();
    codes.iter().any(|known| code == *known || detail.contains(&format!("{known} ")))
}

fn classify(error: &RedisError, effect: Effect) -> (ErrorKind, &'static str) {
    let known: [(&[&str], ErrorKind, &'static str); 12] = [
        (
            &["WRONGPASS", "NOAUTH"],
            ErrorKind::Config,
            "give the user and the password in the URL: redis://user:password@host:6379/0",
        ),
        (
            &["NOPERM"],
            ErrorKind::Config,
            "grant this user what the documentation of dq-redis lists under rights",
        ),
        (&["OOM"], ErrorKind::Full, "raise `maxmemory`, or remove dead jobs and other keys"),
        (
            &["READONLY"],
            ErrorKind::ReadOnly,
            "connect to the primary, by redis+sentinel:// if it changes",
        ),
        (
            &["MISCONF", "NOREPLICAS"],
            ErrorKind::ReadOnly,
            "the server refuses writes until its persistence or replication works: see its log",
        ),
        (&["LOADING"], ErrorKind::Unavailable, "wait: the server is loading its data"),
        (
            &["BUSY"],
            ErrorKind::Unavailable,
            "somebody's script has run for seconds: end it with SCRIPT KILL",
        ),
        (
            &["MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"],
            ErrorKind::Unavailable,
            "wait until the fail-over or resharding is over; see CLUSTER INFO",
        ),
        (
            &["WRONGTYPE"],
            ErrorKind::Incompatible,
            "a key under our names holds something else: choose another `prefix`, or remove it",
        ),
        (&["CROSSSLOT"], ErrorKind::Internal, "please report this with the name of the queue"),
        (
            &["DENIED"],
            ErrorKind::Config,
            "the server runs in protected mode: set a password, or bind it to an address",
        ),
        (&["UNKILLABLE"], ErrorKind::Unavailable, "restart the server with SHUTDOWN NOSAVE"),
    ];
    for (codes, kind, remedy) in known {
        if has_code(error, codes) {
            return (kind, remedy);
        }
    }
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        return (ErrorKind::Config, "check user and password of the URL");
    }
    let detail = error.detail().unwrap_or_default();
    if detail.contains("DB index is out of range") {
        return (ErrorKind::Config, "the server has fewer databases: see its setting `databases`");
    }
    if detail.contains("unknown command") {
        return (ErrorKind::Incompatible, "use Redis 6.2 or newer with scripting enabled");
    }
    let lost = error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error();
    match (lost, effect) {
        (true, Effect::Lasting) => (
            ErrorKind::OutcomeUnknown,
            "repeat the call with the same job ids: what took effect already is kept",
        ),
        (true, Effect::None) => {
            (ErrorKind::Unavailable, "check that the server runs and can be reached from here")
        }
        (false, _) => (ErrorKind::Internal, "please report this with the message"),
    }
}
