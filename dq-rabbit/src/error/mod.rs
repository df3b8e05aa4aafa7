//! What went wrong at the broker, as our errors, with what to do about it.

mod broker;

use std::borrow::Cow;

use dq_core::{Error, ErrorKind};
use lapin::Confirmation;
use lapin::message::BasicReturnMessage;

pub(crate) use broker::Right;
use broker::{is_of_connection, of_broker};

use crate::connect::Server;

/// What is unknown when the answer of the broker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing that matters: the call can be repeated.
    None,
    /// Whether it took effect.
    Lasting,
}

/// What of a call decides how its error is told.
struct Call<'a> {
    effect: Effect,
    /// What the call needs, where a broker refuses without saying which.
    right: Option<Right>,
    tls: bool,
    prefix: &'a str,
}

impl<'a> Call<'a> {
    fn of(server: &'a Server, effect: Effect, right: Option<Right>) -> Self {
        Self { effect, right, tls: server.address.tls, prefix: &server.prefix }
    }
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
    told(operation, server, classify(&Call::of(server, effect, None), error))
}

/// An error of declaring, which needs this right where the broker does not say which.
pub(crate) fn of_declaring(server: &Server, right: Option<Right>, error: &lapin::Error) -> Error {
    told("declare", server, classify(&Call::of(server, Effect::None, right), error))
}

fn told(operation: &'static str, server: &Server, said: Said) -> Error {
    let Said { kind, what, remedy } = said;
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

/// What is left of an error where the call, or a part of it, may have taken effect all the same.
pub(crate) fn in_doubt(error: &Error) -> Error {
    Error::new(ErrorKind::OutcomeUnknown, error.message().to_owned())
        .remedy("repeat the call with the same job ids: what took effect already is kept")
        .operation(error.failed_operation())
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

/// A message came back because no binding knew it. When the broker confirms several at once, the
/// client hands what came back to any of them: the message itself tells which it is.
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

/// Why the broker did not take a message, without the message.
pub(crate) fn not_taken(confirmation: &Confirmation) -> String {
    let (how, returned) = match confirmation {
        Confirmation::Nack(returned) => ("nacked", returned.as_ref()),
        Confirmation::Ack(returned) => ("returned", returned.as_ref()),
        Confirmation::NotRequested => ("not confirmed", None),
    };
    match returned {
        Some(message) => format!("{how}: {} {}", message.reply_code, message.reply_text),
        None => how.to_owned(),
    }
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

fn classify(call: &Call<'_>, error: &lapin::Error) -> Said {
    use lapin::ErrorKind as Kind;
    match error.kind() {
        Kind::ProtocolError(error) => {
            let text = error.get_message().as_str();
            of_broker(call, error.get_id(), text)
        }
        Kind::IOError(error) => of_socket(call, error),
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
        // What a port of TLS answers to those who speak without.
        Kind::ParsingError(_) => said(
            ErrorKind::Config,
            "it does not speak AMQP 0-9-1",
            "check the port; if it is that of TLS, begin the URL with amqps://",
        ),
        Kind::RuntimeShutdownError(_)
        | Kind::InvalidChannel(_)
        | Kind::InvalidChannelState(..)
        | Kind::InvalidConnectionState(_)
        | Kind::MissingHeartbeatError => lost(call, &error.to_string()),
        _ => said(ErrorKind::Internal, error.to_string(), REPORT),
    }
}

/// What is said of a connection or channel that ended while it was used.
fn lost(call: &Call<'_>, what: &str) -> Said {
    match call.effect {
        Effect::Lasting => said(
            ErrorKind::OutcomeUnknown,
            what,
            "repeat the call with the same job ids: what took effect already is kept",
        ),
        Effect::None if call.tls => said(ErrorKind::Unavailable, what, UNREACHED_BY_TLS),
        Effect::None => said(ErrorKind::Unavailable, what, UNREACHED),
    }
}

fn of_socket(call: &Call<'_>, error: &std::io::Error) -> Said {
    let text = error.to_string();
    if call.tls && text.contains("certificate") {
        let remedy = "give the certificate of the broker's authority as `ca`, and the host as it is \
             named there";
        return said(ErrorKind::Config, text, remedy);
    }
    if error.kind() == std::io::ErrorKind::TimedOut {
        return lost(call, "no answer in time");
    }
    lost(call, &text)
}

#[cfg(test)]
mod tests {
    use std::io;

    use lapin::message::Delivery;

    use super::*;

    fn of(effect: Effect, tls: bool, error: impl Into<lapin::Error>) -> Said {
        classify(&Call { effect, right: None, tls, prefix: "dq" }, &error.into())
    }

    #[test]
    fn what_was_lost_on_the_way_may_have_taken_effect() {
        let gone = || lapin::ErrorKind::InvalidConnectionState(lapin::ConnectionState::Error);
        let silent = || lapin::ErrorKind::MissingHeartbeatError;
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        for error in [lapin::Error::from(gone()), silent().into(), late().into()] {
            assert!(breaks_connection(&error));
            let said = of(Effect::Lasting, false, error.clone());
            assert_eq!(said.kind, ErrorKind::OutcomeUnknown);
            let said = of(Effect::None, true, error);
            assert_eq!((said.kind, said.remedy), (ErrorKind::Unavailable, UNREACHED_BY_TLS.into()));
        }
    }

    #[test]
    fn a_wrong_certificate_is_a_matter_of_settings() {
        let error = || io::Error::other("invalid peer certificate: UnknownIssuer");
        assert_eq!(of(Effect::None, true, error()).kind, ErrorKind::Config);
        assert_eq!(of(Effect::None, false, error()).kind, ErrorKind::Unavailable);
    }

    /// A message for the log holds payloads.
    #[test]
    fn a_message_that_was_not_taken_is_not_repeated() {
        let returned = || {
            let mut delivery = Delivery::mock(0, "dq.v1.log".into(), "".into(), false, Vec::new());
            delivery.data = b"hunter2".to_vec();
            Some(BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() })
        };
        assert_eq!(not_taken(&Confirmation::Ack(returned())), "returned: 312 NO_ROUTE");
        assert_eq!(not_taken(&Confirmation::Nack(returned())), "nacked: 312 NO_ROUTE");
        assert_eq!(not_taken(&Confirmation::Nack(None)), "nacked");
    }

    #[test]
    fn a_full_connection_is_not_broken() {
        let error = lapin::Error::from(lapin::ErrorKind::ChannelsLimitReached);
        assert!(!breaks_connection(&error));
        assert_eq!(of(Effect::Lasting, false, error).kind, ErrorKind::Unavailable);
    }
}
