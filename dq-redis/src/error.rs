//! What went wrong at the server, as our errors, with what to do about it.

use dq_core::{Error, ErrorKind, QueueName, Result};
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

/// Whether a cluster refused a call, without effect, and may take it a moment later.
pub(crate) fn is_refusal_of_cluster(error: &RedisError) -> bool {
    has_code(error, ELSEWHERE)
        || has_code(error, &["READONLY"])
        || error.kind() == redis::ErrorKind::ClusterConnectionNotFound
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
    let (kind, remedy) = match classify(error, effect) {
        // A server of a cluster that did not say so when it was connected to.
        _ if !address.is_cluster() && has_code(error, &["MOVED", "ASK"]) => {
            (ErrorKind::Config, CLUSTER)
        }
        (kind, UNREACHED) if address.tls => (kind, UNREACHED_BY_TLS),
        // Who asks Sentinels or a cluster for the primary finds the new one at the next call.
        (ErrorKind::ReadOnly, _) if address.finds_primary() && has_code(error, &["READONLY"]) => {
            (ErrorKind::Unavailable, "repeat the call: another server has become the primary")
        }
        known => known,
    };
    let said = match error.detail() {
        Some(detail) => format!("{} {detail}", error.code().unwrap_or_default()),
        None => error.to_string(),
    };
    // Which line of which script it was is of use to nobody else.
    let said = if kind == ErrorKind::Internal { &said } else { without_place(&said) };
    Error::new(kind, format!("Redis at {}: {}", address.shown(), said.trim()))
        .remedy(remedy)
        .operation(operation)
}

/// What a server says of a script, without the script's hash and the line.
fn without_place(said: &str) -> &str {
    if let Some((said, place)) = said.rsplit_once(" script: ")
        && place.contains(", on @")
    {
        return said;
    }
    // Before Redis 7, the place comes first, and twice if the server refused a command by itself.
    let told = said.strip_prefix("ERR Error running script ");
    let told = told.and_then(|told| told.split_once(": @user_script:")?.1.split_once(": "));
    let Some((_line, told)) = told else { return said };
    let twice = told.strip_prefix("@user_script: ").and_then(|told| told.split_once(": "));
    twice.map_or(told, |(_line, told)| told.trim_start_matches('-'))
}

/// What nodes of a cluster and replicas say when others are to be asked, or nobody yet.
const ELSEWHERE: &[&str] = &["MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"];

/// An error of one queue inside a script that serves several.
pub(crate) fn of_queue(
    operation: &'static str,
    address: &Address,
    queue: &QueueName,
    why: &str,
) -> Error {
    let (code, detail) = why.split_once(' ').unwrap_or((why, ""));
    let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
    let (kind, remedy) = classify(&error, Effect::None);
    Error::new(kind, format!("Redis at {}: queue {queue}: {why}", address.shown()))
        .remedy(remedy)
        .operation(operation)
}

pub(crate) const CLUSTER: &str =
    "begin the URL with redis+cluster://, or rediss+cluster:// for TLS";
pub(crate) const SENTINEL: &str = "write the URL like redis+sentinel://host:26379/mymaster/0, with \
     the name of the primary, or connect to the primary itself";
const NO_DATABASES: &str = "leave out the number of the database; if that server is a Sentinel, \
     write the URL like redis+sentinel://host:26379/mymaster/0";
const NO_SENTINEL: &str = "that server is no Sentinel: begin the URL with redis://, or with redis+cluster:// if it is in a cluster";
const NO_CLUSTER: &str = "begin the URL with redis://: that server is in no cluster";
const UNREACHED: &str = "check that the server runs and can be reached from here";
const UNREACHED_BY_TLS: &str = "check that the server runs, can be reached from here, and speaks \
     TLS at this port: without TLS, begin the URL with redis:// in place of rediss://";
const CREDENTIALS: &str =
    "check user and password of the URL, or leave them out if the server has none";
const RIGHTS: &str = "grant this user what the documentation of dq-redis lists under rights";

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
        (&["NOPERM"], ErrorKind::Config, RIGHTS),
        (&["OOM"], ErrorKind::Full, "raise `maxmemory`, or remove dead jobs and other keys"),
        (
            &["READONLY"],
            ErrorKind::ReadOnly,
            "connect to the primary, by redis+sentinel:// if it changes",
        ),
        (
            &["MISCONF"],
            ErrorKind::ReadOnly,
            "the server refuses writes until it can save its data: see its log, free its disk",
        ),
        (
            &["NOREPLICAS"],
            ErrorKind::Unavailable,
            "the server waits for its replicas: see `min-replicas-to-write` and INFO replication",
        ),
        (&["LOADING"], ErrorKind::Unavailable, "wait: the server is loading its data"),
        (
            &["BUSY"],
            ErrorKind::Unavailable,
            "somebody's script has run for seconds: end it with SCRIPT KILL",
        ),
        (
            ELSEWHERE,
            ErrorKind::Unavailable,
            "wait until the fail-over or resharding is over; see CLUSTER INFO",
        ),
        (
            &["WRONGTYPE"],
            ErrorKind::Incompatible,
            "a key under our names holds something else: choose another `prefix`, or remove it",
        ),
        (&["CROSSSLOT"], ErrorKind::Internal, "please report this with the name of the queue"),
        (&["UNKILLABLE"], ErrorKind::Unavailable, "restart the server with SHUTDOWN NOSAVE"),
    ];
    for (codes, kind, remedy) in known {
        if has_code(error, codes) {
            return (kind, remedy);
        }
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            return (ErrorKind::Config, CREDENTIALS);
        }
        redis::ErrorKind::ClusterConnectionNotFound => {
            return (ErrorKind::Unavailable, "check that the nodes of the cluster run");
        }
        redis::ErrorKind::MasterNameNotFoundBySentinel => {
            return (
                ErrorKind::Unavailable,
                "check the name of the primary in the URL, and that the Sentinels know one that runs",
            );
        }
        _ => {}
    }
    // These have no code of their own, some not even as answers of a server.
    let text = error.to_string().replace('`', "'");
    let phrases: [(&str, ErrorKind, &'static str); 14] = [
        ("cluster support disabled", ErrorKind::Config, NO_CLUSTER),
        ("does not point to a sentinel", ErrorKind::Config, NO_SENTINEL),
        ("not allowed in cluster mode", ErrorKind::Config, CLUSTER),
        (
            "DB index is out of range",
            ErrorKind::Config,
            "the server has fewer databases: see its setting `databases`",
        ),
        (
            "max number of clients",
            ErrorKind::Unavailable,
            "raise `maxclients` of the server, or find out who holds so many connections",
        ),
        // What a script is told in place of NOPERM, and what the client leaves of it.
        ("has no permissions", ErrorKind::Config, RIGHTS),
        ("user executing the script", ErrorKind::Config, RIGHTS),
        ("ACL failure", ErrorKind::Config, RIGHTS),
        ("unknown command 'SELECT'", ErrorKind::Config, NO_DATABASES),
        ("unknown command 'CLUSTER'", ErrorKind::Config, NO_CLUSTER),
        (
            "unknown command",
            ErrorKind::Incompatible,
            "use Redis 6.2 or newer with scripting enabled",
        ),
        (
            "certificate",
            ErrorKind::Config,
            "give the certificate of the server's authority as `ca`, and the host as it is named there",
        ),
        ("Password authentication failed", ErrorKind::Config, CREDENTIALS),
        (
            "protected mode",
            ErrorKind::Config,
            "the server runs in protected mode: set a password, or bind it to an address",
        ),
    ];
    for (phrase, kind, remedy) in phrases {
        if text.contains(phrase) {
            return (kind, remedy);
        }
    }
    let lost = error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error();
    match (lost, effect) {
        (true, Effect::Lasting) => (
            ErrorKind::OutcomeUnknown,
            "repeat the call with the same job ids: what took effect already is kept",
        ),
        (true, Effect::None) => (ErrorKind::Unavailable, UNREACHED),
        (false, _) => (ErrorKind::Internal, "please report this with the message"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(scheme: &str, code: &str, detail: &str) -> Error {
        let address = Address::parse(scheme, "h").unwrap();
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        of_command("claim", Effect::None, &address, &error)
    }

    #[test]
    fn a_redirection_tells_of_a_cluster_unless_that_is_known() {
        let error = told("redis", "MOVED", "866 h:7001");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.remedy_text().unwrap().contains("redis+cluster://"), "{error}");
        assert_eq!(told("redis+cluster", "MOVED", "866 h:7001").kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn the_hash_of_a_script_is_left_out_unless_it_is_to_be_reported() {
        let place = "script: 75c1, on @user_script:12.";
        let known = told("redis", "WRONGTYPE", &format!("Operation against a key {place}"));
        assert_eq!(known.message(), "Redis at h:6379: WRONGTYPE Operation against a key");
        let before = "Error running script (call to f_75c1): @user_script:12: WRONGTYPE Operation";
        assert_eq!(told("redis", "ERR", before).message(), "Redis at h:6379: WRONGTYPE Operation");
        let twice = "Error running script (call to f_75c1): @user_script:41: @user_script: 41: -OOM not \
             allowed";
        assert_eq!(told("redis", "ERR", twice).message(), "Redis at h:6379: OOM not allowed");
        assert!(told("redis", "ERR", &format!("Oops {place}")).message().ends_with(place));
    }

    #[test]
    fn a_lacking_right_inside_a_script_is_told_as_every_version_tells_it() {
        let place = "script: 75c1, on @user_script:12.";
        for (code, detail) in [
            ("NOPERM", "this user has no permissions to access one of the keys used as arguments"),
            ("ERR", "The user executing the script can't run this command or subcommand"),
            ("ERR", "ACL failure in script: No permissions to access a channel"),
        ] {
            let error = told("redis", code, &format!("{detail} {place}"));
            assert_eq!((error.kind(), error.remedy_text()), (ErrorKind::Config, Some(RIGHTS)));
            assert_eq!(error.message(), format!("Redis at h:6379: {code} {detail}"));
        }
    }
}
