//! Errors of the server and of settings: kinds, messages and remedies.

use dq_core::config::invalid_setting;
use dq_core::{Error, ErrorKind, QueueName};
use redis::{RedisError, ServerErrorKind};

/// The kind of the error if a command's reply is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// `Unavailable`: the command can be repeated, or its effect expires by itself, like a lease.
    Repeatable,
    /// `OutcomeUnknown`: the effect stays.
    Lasting,
}

#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) address: String,
    pub(crate) is_cluster: bool,
    /// Whether the client finds the new primary after a failover: with Sentinel and clusters.
    pub(crate) finds_primary: bool,
    pub(crate) tls: bool,
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the Redis backend was closed")
}

pub(crate) fn replica() -> Error {
    Error::new(ErrorKind::ReadOnly, "the Redis server is a replica").remedy(PRIMARY)
}

/// For a reply that the script or command never gives.
pub(crate) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "a script gave an unexpected reply").remedy(
        "check whether another program writes to the keys of this `prefix`; if not, please report \
         this",
    )
}

/// For an operation, verdict or policy from a later dq-core.
pub(crate) fn unsupported(what: String) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the Redis backends do not know {what}"))
}

pub(crate) fn invalid_url(error: &RedisError) -> Error {
    // The text may contain the address; the category never does.
    invalid_setting(
        format!("the Redis URL cannot be used: {}", error.category()),
        "write it like redis://user:password@host:6379/0",
    )
}

/// Whether the connection must be replaced: it is broken, or its server is not a primary.
pub(crate) fn breaks_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_unrecoverable_error()
        || has_code(error, &["READONLY", "MASTERDOWN"])
}

/// Whether a cluster refused a command without effect and may accept it a moment later.
pub(crate) fn is_cluster_refusal(error: &RedisError) -> bool {
    has_code(error, CLUSTER_CODES)
        || has_code(error, &["READONLY"])
        || error.kind() == redis::ErrorKind::ClusterConnectionNotFound
}

pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

pub(crate) fn is_refused(error: &RedisError) -> bool {
    has_code(error, &["NOPERM"])
}

pub(crate) fn is_from_replica(error: &RedisError) -> bool {
    has_code(error, &["READONLY"])
}

pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    text.contains("unknown command") || text.contains("wrong number of arguments")
}

pub(crate) fn command_error(effect: Effect, origin: &Origin, error: &RedisError) -> Error {
    let (kind, remedy) = match classify(error, effect) {
        // The server is a cluster node, although HELLO did not say so when connecting.
        _ if !origin.is_cluster && has_code(error, &["MOVED", "ASK"]) => {
            (ErrorKind::Config, CLUSTER)
        }
        (kind, UNREACHED) if origin.tls => (kind, UNREACHED_BY_TLS),
        // The next call asks Sentinel or the cluster for the new primary.
        (ErrorKind::ReadOnly, _) if origin.finds_primary && is_from_replica(error) => {
            (ErrorKind::Unavailable, "repeat the call: another server has become the primary")
        }
        classified => classified,
    };
    let message = match error.detail() {
        Some(detail) => format!("{} {detail}", error.code().unwrap_or_default()),
        None => error.to_string(),
    };
    // Only bug reports need the line of the script.
    let message = if kind == ErrorKind::Internal { &message } else { without_line(&message) };
    Error::new(kind, format!("Redis at {}: {}", origin.address, message.trim())).remedy(remedy)
}

fn without_line(text: &str) -> &str {
    if let Some((message, line)) = text.rsplit_once(" script: ")
        && line.contains(", on @")
    {
        return message;
    }
    // Before Redis 7 the line comes first, and twice if the server itself refused a command.
    let rest = text.strip_prefix("ERR Error running script ");
    let rest = rest.and_then(|rest| rest.split_once(": @user_script:")?.1.split_once(": "));
    let Some((_line, message)) = rest else { return text };
    let rest = message.strip_prefix("@user_script: ").and_then(|rest| rest.split_once(": "));
    rest.map_or(message, |(_line, message)| message.trim_start_matches('-'))
}

/// Cluster nodes and replicas with these codes do not serve a key, or not yet.
const CLUSTER_CODES: &[&str] = &["MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"];

pub(crate) fn wrong_type(origin: &Origin, queue: &QueueName) -> Error {
    let what = format!(
        "Redis at {}: queue {queue}: WRONGTYPE: one of its keys holds another type of value",
        origin.address
    );
    Error::new(ErrorKind::Incompatible, what).remedy(WRONG_TYPE)
}

pub(crate) const CLUSTER: &str =
    "begin the URL with redis+cluster://, or rediss+cluster:// for TLS";
pub(crate) const SENTINEL: &str = "write the URL like redis+sentinel://host:26379/mymaster/0, with \
     the name of the primary, or connect to the primary itself";
const NO_CLUSTER: &str = "begin the URL with redis://: that server is in no cluster";
const UNREACHED: &str = "check that the server runs and can be reached from this host";
const UNREACHED_BY_TLS: &str = "check that the server runs, can be reached from this host, and speaks \
     TLS at this port: without TLS, begin the URL with redis:// in place of rediss://";
const CREDENTIALS: &str =
    "check user and password of the URL, or leave them out if the server has none";
const WRONG_TYPE: &str = "another program uses a key of this backend: choose another `prefix`, or remove \
     that key, which `check` names";
const BUSY: &str = "a script of another client has run for seconds: end it with SCRIPT KILL";
const PRIMARY: &str = "connect to the primary, by redis+sentinel:// if it changes";
const NO_COMMAND: &str = "use a server with Lua scripts and all commands under their own names: Redis 6.2 or \
     newer, or Valkey with its Lua module";
pub(crate) const RIGHTS: &str =
    "grant this user what the documentation of dq-redis lists under rights";

/// For an error inside a script, Redis 7 passes the code on; older versions have it only in the
/// message.
fn has_code(error: &RedisError, codes: &[&str]) -> bool {
    let code = error.code().unwrap_or_default();
    let detail = error.detail().unwrap_or_default();
    codes.iter().any(|known| code == *known || detail.contains(&format!("{known} ")))
}

fn classify(error: &RedisError, effect: Effect) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Full, Incompatible, Internal, OutcomeUnknown, ReadOnly, Unavailable};
    let known: [(&[&str], ErrorKind, &'static str); 12] = [
        (
            &["WRONGPASS", "NOAUTH"],
            Config,
            "give the user and the password in the URL: redis://user:password@host:6379/0",
        ),
        (&["NOPERM"], Config, RIGHTS),
        (&["OOM"], Full, "raise `maxmemory`, or remove dead jobs and other keys"),
        (&["READONLY"], ReadOnly, PRIMARY),
        (
            &["MISCONF"],
            ReadOnly,
            "the server refuses writes until it can save its data: see its log, free its disk",
        ),
        (
            &["NOREPLICAS"],
            Unavailable,
            "the server waits for its replicas: see `min-replicas-to-write` and INFO replication",
        ),
        (&["LOADING"], Unavailable, "wait: the server is loading its data"),
        (&["BUSY"], Unavailable, BUSY),
        (
            CLUSTER_CODES,
            Unavailable,
            "wait until the fail-over or resharding is over; see CLUSTER INFO",
        ),
        (&["WRONGTYPE"], Incompatible, WRONG_TYPE),
        (&["CROSSSLOT"], Internal, "please report this with the name of the queue"),
        (&["UNKILLABLE"], Unavailable, "restart the server with SHUTDOWN NOSAVE"),
    ];
    if let Some((_, kind, remedy)) = known.into_iter().find(|(codes, ..)| has_code(error, codes)) {
        return (kind, remedy);
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => return (Config, CREDENTIALS),
        redis::ErrorKind::ClusterConnectionNotFound => {
            return (Unavailable, "check that the nodes of the cluster run");
        }
        redis::ErrorKind::MasterNameNotFoundBySentinel => {
            return (
                Unavailable,
                "check the name of the primary in the URL, and that the Sentinels know one that runs",
            );
        }
        _ => {}
    }
    // Errors without a code. A missing right inside a script has three texts. Redis 6.2 quotes
    // command names with backticks, later versions with apostrophes. Only this file reads error
    // texts.
    let text = error.to_string().replace('`', "'");
    let phrases: [(&str, ErrorKind, &'static str); 15] = [
        ("cluster support disabled", Config, NO_CLUSTER),
        (
            "unknown command 'SENTINEL'",
            Config,
            "that server is no Sentinel: begin the URL with redis://, or with redis+cluster:// if it is in a cluster",
        ),
        ("not allowed in cluster mode", Config, CLUSTER),
        (
            "DB index is out of range",
            Config,
            "the server has fewer databases: see its setting `databases`",
        ),
        (
            "max number of clients",
            Unavailable,
            "raise `maxclients` of the server, or close connections that CLIENT LIST shows",
        ),
        ("has no permissions", Config, RIGHTS),
        ("user executing the script", Config, RIGHTS),
        ("ACL failure", Config, RIGHTS),
        (
            "unknown command 'SELECT'",
            Config,
            "leave out the number of the database; if that server is a Sentinel, write the URL like \
             redis+sentinel://host:26379/mymaster/0",
        ),
        ("unknown command 'CLUSTER'", Config, NO_CLUSTER),
        ("unknown command", Incompatible, NO_COMMAND),
        ("'struct'", Incompatible, NO_COMMAND),
        (
            "certificate",
            Config,
            "give the certificate of the server's authority as `ca`, and the host as it is named there",
        ),
        ("Password authentication failed", Config, CREDENTIALS),
        (
            "protected mode",
            Config,
            "the server runs in protected mode: set a password, or bind it to an address",
        ),
    ];
    if let Some((_, kind, remedy)) = phrases.into_iter().find(|(phrase, ..)| text.contains(phrase))
    {
        return (kind, remedy);
    }
    let lost = error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error();
    match (lost, effect) {
        (true, Effect::Lasting) => {
            (OutcomeUnknown, "repeat the call with the same job ids: what has taken effect is kept")
        }
        (true, Effect::Repeatable) => (Unavailable, UNREACHED),
        (false, _) => (Internal, "please report this with the message"),
    }
}

pub(crate) fn too_old() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "a later version has changed how jobs are stored, and this version is too old for that",
    )
    .remedy("update this program to the version of the other processes, or use another `prefix`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(is_cluster: bool, code: &str, detail: &str) -> Error {
        let address = "h:6379".to_owned();
        let origin = Origin { address, is_cluster, finds_primary: is_cluster, tls: false };
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        command_error(Effect::Repeatable, &origin, &error)
    }

    #[test]
    fn a_redirection_names_the_scheme_of_a_cluster_unless_it_is_one() {
        let error = converted(false, "MOVED", "866 h:7001");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.remedy_text().unwrap().contains("redis+cluster://"), "{error}");
        assert_eq!(converted(true, "MOVED", "866 h:7001").kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn the_line_of_a_script_is_left_out_unless_it_is_to_be_reported() {
        let oops = "ERR Oops script: 75c1, on @user_script:12.";
        for (code, detail, shown) in [
            ("WRONGTYPE", "Op script: 75c1, on @user_script:12.", "WRONGTYPE Op"),
            (
                "ERR",
                "Error running script (call to f_7): @user_script:1: WRONGTYPE Op",
                "WRONGTYPE Op",
            ),
            (
                "ERR",
                "Error running script (call to f_7): @user_script:1: @user_script: 1: -OOM no",
                "OOM no",
            ),
            ("ERR", &oops[4..], oops),
        ] {
            let error = converted(false, code, detail);
            assert_eq!(error.message(), format!("Redis at h:6379: {shown}"));
        }
    }

    #[test]
    fn a_missing_right_inside_a_script_is_recognized_in_every_version() {
        let line = "script: 75c1, on @user_script:12.";
        for (code, detail) in [
            ("NOPERM", "this user has no permissions to access one of the keys used as arguments"),
            ("ERR", "The user executing the script can't run this command or subcommand"),
            ("ERR", "ACL failure in script: No permissions to access a channel"),
        ] {
            let error = converted(false, code, &format!("{detail} {line}"));
            assert_eq!((error.kind(), error.remedy_text()), (ErrorKind::Config, Some(RIGHTS)));
            assert_eq!(error.message(), format!("Redis at h:6379: {code} {detail}"));
        }
    }
}
