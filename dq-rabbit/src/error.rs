//! What went wrong at the broker, as our errors, with what to do about it.

use std::borrow::Cow;

use dq_core::{Error, ErrorKind};
use lapin::message::BasicReturnMessage;

use crate::connect::Server;

/// What is unknown when the answer of the broker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing that matters: the call can be repeated.
    None,
    /// Whether it took effect.
    Lasting,
}

/// The error of a call on a backend that was closed.
pub(crate) fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, "the RabbitMQ backend was closed").operation(operation)
}

/// Whether the connection is of no use any more.
pub(crate) fn breaks_connection(error: &lapin::Error) -> bool {
    use lapin::ErrorKind as Kind;
    match error.kind() {
        Kind::IOError(_)
        | Kind::RuntimeShutdownError(_)
        | Kind::ParsingError(_)
        | Kind::InvalidConnectionState(_)
        | Kind::MissingHeartbeatError => true,
        Kind::ProtocolError(error) => is_of_connection(error.get_id()),
        _ => false,
    }
}

/// An error of a call.
pub(crate) fn of_call(
    operation: &'static str,
    effect: Effect,
    server: &Server,
    error: &lapin::Error,
) -> Error {
    let Said { kind, what, remedy } = classify(effect, server.address.tls, error);
    Error::new(kind, format!("RabbitMQ at {}: {what}", server.address.shown()))
        .remedy(remedy)
        .operation(operation)
}

/// No answer came in time.
pub(crate) fn timed_out(operation: &'static str, effect: Effect, server: &Server) -> Error {
    let error = std::io::Error::from(std::io::ErrorKind::TimedOut);
    of_call(operation, effect, server, &error.into())
}

/// The broker has an alarm and takes nothing on a connection that publishes.
pub(crate) fn blocked(operation: &'static str, server: &Server, why: &str) -> Error {
    Error::new(
        ErrorKind::Full,
        format!("RabbitMQ at {} takes no more messages: {why}", server.address.shown()),
    )
    .remedy(
        "free memory or disk of the broker, or raise `vm_memory_high_watermark` or lower \
         `disk_free_limit`; `rabbitmq-diagnostics alarms` says which",
    )
    .operation(operation)
}

/// The broker refused to take a message on itself.
pub(crate) fn nacked(operation: &'static str, server: &Server) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("RabbitMQ at {}: a queue refused the message", server.address.shown()),
    )
    .remedy(
        "check that a majority of the queue's replicas runs (`rabbitmq-queues quorum_status`), and \
         that no policy limits its length",
    )
    .operation(operation)
}

/// A message came back because no binding knew it.
pub(crate) fn returned(
    operation: &'static str,
    server: &Server,
    message: &BasicReturnMessage,
) -> Error {
    let text = format!(
        "RabbitMQ at {}: the exchange {} has no queue for {}: {} {}",
        server.address.shown(),
        message.delivery.exchange,
        message.delivery.routing_key,
        message.reply_code,
        message.reply_text,
    );
    Error::new(ErrorKind::Unavailable, text)
        .remedy("repeat the call; if that does not help, somebody has deleted queues or bindings")
        .operation(operation)
}

/// Objects that others were to declare.
pub(crate) fn missing(operation: &'static str, server: &Server, names: &str) -> Error {
    Error::new(ErrorKind::Config, format!("RabbitMQ at {} lacks {names}", server.address.shown()))
        .remedy("declare them, or set `topology` to \"declare\"")
        .operation(operation)
}

const UNREACHED: &str = "check that the broker runs and can be reached from here";
const UNREACHED_BY_TLS: &str = "check that the broker runs, can be reached from here, and speaks TLS \
     at this port: without TLS, begin the URL with amqp:// in place of amqps://";
const REPORT: &str = "please report this with the message";

struct Said {
    kind: ErrorKind,
    what: String,
    remedy: Cow<'static, str>,
}

fn said(kind: ErrorKind, what: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Said {
    Said { kind, what: what.into(), remedy: remedy.into() }
}

fn classify(effect: Effect, tls: bool, error: &lapin::Error) -> Said {
    use lapin::ErrorKind as Kind;
    match error.kind() {
        Kind::ProtocolError(error) => {
            let text = error.get_message().as_str();
            of_broker(effect, tls, error.get_id(), text)
        }
        Kind::IOError(error) => of_socket(effect, tls, error),
        Kind::ChannelsLimitReached => said(
            ErrorKind::Unavailable,
            "no more channels on this connection",
            "raise `channel_max` of the broker",
        ),
        Kind::InvalidProtocolVersion(version) => said(
            ErrorKind::Incompatible,
            format!("it speaks AMQP {version}"),
            "use RabbitMQ 3.10 or newer, at its port for AMQP 0-9-1",
        ),
        Kind::RuntimeShutdownError(_)
        | Kind::InvalidChannel(_)
        | Kind::InvalidChannelState(..)
        | Kind::InvalidConnectionState(_)
        | Kind::MissingHeartbeatError => lost(effect, tls, &error.to_string()),
        _ => said(ErrorKind::Internal, error.to_string(), REPORT),
    }
}

/// What is said of a connection or channel that ended while it was used.
fn lost(effect: Effect, tls: bool, what: &str) -> Said {
    match effect {
        Effect::Lasting => said(
            ErrorKind::OutcomeUnknown,
            what,
            "repeat the call with the same job ids: what took effect already is kept",
        ),
        Effect::None if tls => said(ErrorKind::Unavailable, what, UNREACHED_BY_TLS),
        Effect::None => said(ErrorKind::Unavailable, what, UNREACHED),
    }
}

fn of_socket(effect: Effect, tls: bool, error: &std::io::Error) -> Said {
    let text = error.to_string();
    if tls && text.contains("certificate") {
        let remedy = "give the certificate of the broker's authority as `ca`, and the host as it is \
             named there";
        return said(ErrorKind::Config, text, remedy);
    }
    if error.kind() == std::io::ErrorKind::TimedOut {
        return lost(effect, tls, "no answer in time");
    }
    lost(effect, tls, &text)
}

/// Numbers of errors that end the connection, not just the channel.
fn is_of_connection(code: u16) -> bool {
    matches!(code, 320 | 402 | 501..=505 | 530 | 540 | 541)
}

/// What the broker says, by the numbers of AMQP.
fn of_broker(effect: Effect, tls: bool, code: u16, text: &str) -> Said {
    match code {
        // Anything else about what is not there.
        404 if text.contains("no exchange") || text.contains("no queue") => said(
            ErrorKind::Unavailable,
            text,
            "it was deleted, or nobody has declared it yet: connect again, or with `topology` \
             \"passive\" declare it",
        ),
        403 => refused(text),
        405 => said(
            ErrorKind::Incompatible,
            text,
            "another connection has this queue for itself: choose another `prefix`",
        ),
        406 => mismatch(effect, tls, text),
        // A policy, or the limits of a virtual host or user.
        320 if text.contains("limit") => of_limit(text),
        530 if text.contains("limit") => of_limit(text),
        530 if text.contains("vhost") && text.contains("not found") => said(
            ErrorKind::Config,
            text,
            "the path of the URL names the virtual host: create it with `rabbitmqctl add_vhost`, or \
             name another",
        ),
        530 if text.contains("access to vhost") => said(
            ErrorKind::Config,
            text,
            rights_remedy(text).unwrap_or_else(|| PERMISSIONS.to_owned()),
        ),
        320 | 541 | 311 => lost(effect, tls, text),
        503 if text.contains("unknown exchange type") => no_plugin(text),
        _ if text.contains("invalid exchange type") || text.contains("x-delayed-message") => {
            no_plugin(text)
        }
        540 | 503 => said(
            ErrorKind::Incompatible,
            text,
            "use RabbitMQ 3.10 or newer with the feature flags `quorum_queue` and `stream_queue` \
             enabled: `rabbitmqctl enable_feature_flag all`",
        ),
        530 => said(ErrorKind::Config, text, "see the log of the broker"),
        404 => said(ErrorKind::Unavailable, text, "see the log of the broker"),
        _ => said(ErrorKind::Internal, text, REPORT),
    }
}

fn of_limit(text: &str) -> Said {
    said(
        ErrorKind::Unavailable,
        text,
        "raise the limit of connections or channels of this user or virtual host \
         (`rabbitmqctl set_vhost_limits`, `set_user_limits`)",
    )
}

fn no_plugin(text: &str) -> Said {
    said(
        ErrorKind::Incompatible,
        text,
        "enable the plugin with `rabbitmq-plugins enable rabbitmq_delayed_message_exchange`, or set \
         `topology` to \"declare\"",
    )
}

const PERMISSIONS: &str = "grant this user what the documentation of dq-rabbit lists under rights";

/// 403: a login, or a right that is lacking.
fn refused(text: &str) -> Said {
    if text.contains("Login was refused") || text.contains("can only connect via localhost") {
        return said(
            ErrorKind::Config,
            text,
            "check user and password of the URL; `guest` may connect from the broker's own host only",
        );
    }
    if text.contains("reserved") {
        return said(ErrorKind::Config, text, "choose another `prefix`");
    }
    let remedy = rights_remedy(text).unwrap_or_else(|| PERMISSIONS.to_owned());
    said(ErrorKind::Config, text, remedy)
}

/// The command that grants a right, from `configure access to queue 'q' in vhost 'v' refused for user
/// 'u'` and its likes.
fn rights_remedy(text: &str) -> Option<String> {
    let user = quoted_after(text, "for user ")?;
    let vhost = quoted_after(text, "vhost ")?;
    let right = ["configure", "write", "read"]
        .into_iter()
        .find(|right| text.contains(&format!("{right} access")));
    // A prefix ends where the version begins.
    let pattern = quoted_after(text, "queue ")
        .or_else(|| quoted_after(text, "exchange "))
        .and_then(|name| name.split_once(".v1.").map(|(prefix, _)| prefix.to_owned()))
        .map_or_else(
            || "^PREFIX\\.v1\\.".to_owned(),
            |prefix| format!("^{}\\.v1\\.", prefix.replace('.', "\\.")),
        );
    let lacking =
        right.map_or_else(String::new, |right| format!("the right to {right} is lacking: "));
    Some(format!(
        "{lacking}rabbitmqctl set_permissions -p '{vhost}' '{user}' '{pattern}' '{pattern}' '{pattern}'"
    ))
}

/// 406: mostly that something is there which was declared otherwise.
fn mismatch(effect: Effect, tls: bool, text: &str) -> Said {
    if text.contains("delivery acknowledgement") && text.contains("timed out") {
        return said(
            ErrorKind::Unavailable,
            text,
            "jobs must end within `consumer_timeout` of the broker, which is 30 minutes unless set",
        );
    }
    if text.contains("unknown delivery tag") {
        return lost(effect, tls, text);
    }
    if let Some(found) = Mismatch::read(text) {
        let Mismatch { object, argument, expected, current } = found;
        return said(
            ErrorKind::Incompatible,
            format!("{object} has `{argument}` {current}, but {expected} is wanted"),
            "what is declared cannot be changed: choose another `prefix`, go back to the settings it \
             was declared with, or delete it once it is empty",
        );
    }
    said(
        ErrorKind::Incompatible,
        text,
        "something else has this name, or the broker is too old: choose another `prefix`, or use \
         RabbitMQ 3.10 or newer",
    )
}

/// `inequivalent arg 'a' for queue 'q' in vhost 'v': received the value '1' of type 'long' but current
/// is none`, and what older and newer brokers write in its place.
#[derive(Debug, PartialEq, Eq)]
struct Mismatch {
    object: String,
    argument: String,
    expected: String,
    current: String,
}

impl Mismatch {
    fn read(text: &str) -> Option<Self> {
        let argument = quoted_after(text, "inequivalent arg ")?;
        let (_, rest) = text.split_once("' for ")?;
        let (object, rest) = rest.split_once(": received ")?;
        let (object, _vhost) = object.split_once(" in vhost").unwrap_or((object, ""));
        let (received, current) = rest.split_once(" but current is ")?;
        Some(Self {
            object: object.to_owned(),
            argument,
            expected: value(received),
            current: value(current),
        })
    }
}

/// A value without the words around it.
fn value(text: &str) -> String {
    match text.split_once('\'') {
        Some((_, rest)) => rest.split('\'').next().unwrap_or_default().to_owned(),
        None => text.trim_start_matches("the value ").trim().to_owned(),
    }
}

fn quoted_after(text: &str, words: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("{words}'"))?;
    Some(rest.split_once('\'')?.0.to_owned())
}
