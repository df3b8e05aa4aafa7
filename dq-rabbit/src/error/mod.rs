//! Turns errors of the broker and of its client library, lapin, into [`dq_core::Error`]s with
//! remedies.

mod reply;

use dq_core::{Error, ErrorKind};
use lapin::Confirmation;
use lapin::message::BasicReturnMessage;

use reply::{CallContext, Diagnosis, REPEAT, REPORT, closes_connection, diagnose};
pub(crate) use reply::{LostReply, Permission, Refusal, RequiredPermission};

#[derive(Debug, Clone)]
pub(crate) struct BrokerInfo {
    /// Without user and password.
    pub(crate) hosts: String,
    pub(crate) tls: bool,
    /// Permission patterns begin with it.
    pub(crate) prefix: String,
}

pub(crate) fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, "the RabbitMQ backend was closed").operation(operation)
}

/// The broker blocks the connection, for this reason. The inner error of I/O errors of the kind
/// `TimedOut`.
#[derive(Debug)]
pub(crate) struct Blocked(pub(crate) String);

impl std::fmt::Display for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "accepts no messages: {}", self.0)
    }
}

impl std::error::Error for Blocked {}

pub(crate) fn refusal(error: &lapin::Error) -> Refusal {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => {
            Refusal::of(error.get_id(), error.get_message().as_str())
        }
        _ => Refusal::NoReply,
    }
}

/// Whether the connection broke for no reason in the request: by a fault, or because the broker
/// stops.
pub(crate) fn is_lost(error: &lapin::Error) -> bool {
    const CONNECTION_FORCED: u16 = 320;
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_id() == CONNECTION_FORCED,
        _ => breaks_connection(error),
    }
}

/// Whether the connection is not usable after this error.
pub(crate) fn breaks_connection(error: &lapin::Error) -> bool {
    use lapin::ErrorKind as Kind;
    match error.kind() {
        Kind::IOError(_)
        | Kind::RuntimeShutdownError(_)
        | Kind::ParsingError(_)
        | Kind::InvalidConnectionState(_)
        | Kind::MissingHeartbeatError => true,
        Kind::ProtocolError(error) => closes_connection(error.get_id()),
        _ => false,
    }
}

pub(crate) fn from_lapin(
    operation: &'static str,
    lost_reply: LostReply,
    broker: &BrokerInfo,
    error: &lapin::Error,
) -> Error {
    from_call(operation, lost_reply, None, broker, error)
}

/// Diagnoses an error of using the log, which needs this permission.
pub(crate) fn from_use(
    operation: &'static str,
    permission: Permission,
    broker: &BrokerInfo,
    error: &lapin::Error,
) -> Error {
    from_call(operation, LostReply::Unavailable, Some(&|_| permission), broker, error)
}

pub(crate) fn from_call(
    operation: &'static str,
    lost_reply: LostReply,
    required: Option<RequiredPermission<'_>>,
    broker: &BrokerInfo,
    error: &lapin::Error,
) -> Error {
    let call = CallContext { lost_reply, required, tls: broker.tls, prefix: &broker.prefix };
    let Diagnosis { kind, what, remedy } = diagnose_lapin(&call, error);
    Error::new(kind, format!("RabbitMQ at {}: {what}", broker.hosts))
        .remedy(remedy)
        .operation(operation)
}

pub(crate) fn timed_out(
    operation: &'static str,
    lost_reply: LostReply,
    broker: &BrokerInfo,
) -> Error {
    let error = std::io::Error::from(std::io::ErrorKind::TimedOut);
    from_lapin(operation, lost_reply, broker, &error.into())
}

pub(crate) fn blocked(operation: &'static str, broker: &BrokerInfo, reason: &str) -> Error {
    let blocked = Blocked(reason.to_owned());
    let error = std::io::Error::new(std::io::ErrorKind::TimedOut, blocked);
    from_lapin(operation, LostReply::Unavailable, broker, &error.into())
}

const END_ALARM: &str = "free memory or disk of the broker, or raise `vm_memory_high_watermark` or \
     lower `disk_free_limit`; `rabbitmq-diagnostics alarms` shows which";

pub(crate) fn outcome_unknown(error: &Error) -> Error {
    Error::new(ErrorKind::OutcomeUnknown, error.message().to_owned())
        .remedy(REPEAT)
        .operation(error.failed_operation())
}

impl LostReply {
    /// The error of a call with this cause.
    pub(crate) fn in_error(self, cause: Error) -> Error {
        match self {
            Self::OutcomeUnknown => outcome_unknown(&cause),
            Self::Unavailable => cause,
        }
    }
}

/// Turns `Incompatible` into `Unavailable`. The broker may accept a refused request later; only the
/// log's entries make a process incompatible for good.
pub(crate) fn may_pass(error: Error) -> Error {
    if error.kind() != ErrorKind::Incompatible {
        return error;
    }
    copy(&error, ErrorKind::Unavailable, error.failed_operation())
}

/// [`Error::operation`] would keep the first operation.
pub(crate) fn copy(error: &Error, kind: ErrorKind, operation: &'static str) -> Error {
    let copy = Error::new(kind, error.message().to_owned()).operation(operation);
    match error.remedy_text() {
        Some(remedy) => copy.remedy(remedy.to_owned()),
        None => copy,
    }
}

/// The error if the broker rejected a message or returned it; `None` if a queue has it.
///
/// When the broker confirms several messages at once, the client library attaches a returned
/// message to any of them. So the text names the message's own exchange and routing key.
pub(crate) fn unconfirmed(
    operation: &'static str,
    broker: &BrokerInfo,
    confirmation: &Confirmation,
) -> Option<Error> {
    let (what, remedy) = match confirmation {
        Confirmation::Ack(None) | Confirmation::NotRequested => return None,
        Confirmation::Nack(_) => ("a queue rejected the message".to_owned(), REJECTED),
        Confirmation::Ack(Some(message)) => {
            let BasicReturnMessage { delivery, reply_code, reply_text } = message;
            let (exchange, key) = (&delivery.exchange, &delivery.routing_key);
            (
                format!(
                    "the exchange {exchange} has no queue for {key}: {reply_code} {reply_text}"
                ),
                RETURNED,
            )
        }
    };
    let what = format!("RabbitMQ at {}: {what}", broker.hosts);
    Some(Error::new(ErrorKind::Unavailable, what).remedy(remedy).operation(operation))
}

const REJECTED: &str = "check that a majority of the queue's replicas runs (`rabbitmq-queues \
     quorum_status`), and that no policy limits its length";
const RETURNED: &str =
    "repeat the call; if it fails again, check whether queues or bindings are deleted";

fn diagnose_lapin(call: &CallContext<'_>, error: &lapin::Error) -> Diagnosis {
    use lapin::ErrorKind as Kind;
    match error.kind() {
        Kind::ProtocolError(error) => diagnose(call, error.get_id(), error.get_message().as_str()),
        Kind::IOError(error) => diagnose_io(call, error),
        Kind::ChannelsLimitReached => Diagnosis::new(
            ErrorKind::Unavailable,
            "no more channels on this connection",
            "raise `channel_max` of the broker",
        ),
        Kind::InvalidProtocolVersion(version) => Diagnosis::new(
            ErrorKind::Incompatible,
            format!("it speaks AMQP {version}"),
            "use RabbitMQ 3.10 or newer, at its port for AMQP 0-9-1",
        ),
        // A TLS port replies like this to a client without TLS.
        Kind::ParsingError(_) => Diagnosis::new(
            ErrorKind::Config,
            "it does not speak AMQP 0-9-1",
            "check the port; if it is the TLS port, begin the URL with amqps://",
        ),
        Kind::RuntimeShutdownError(_)
        | Kind::InvalidChannel(_)
        | Kind::InvalidChannelState(..)
        | Kind::InvalidConnectionState(_)
        | Kind::MissingHeartbeatError => Diagnosis::lost(call, &error.to_string()),
        _ => Diagnosis::new(ErrorKind::Internal, error.to_string(), REPORT),
    }
}

fn diagnose_io(call: &CallContext<'_>, error: &std::io::Error) -> Diagnosis {
    if let Some(
        error @ (rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented),
    ) = error.get_ref().and_then(|inner| inner.downcast_ref())
    {
        let remedy = "set `ca` to the certificate of the broker's certificate authority, and use a host \
             name that the broker's certificate contains";
        return Diagnosis::new(ErrorKind::Config, error.to_string(), remedy);
    }
    let blocked = error.get_ref().and_then(|inner| inner.downcast_ref::<Blocked>());
    if let Some(blocked) = blocked.filter(|_| call.lost_reply == LostReply::Unavailable) {
        return Diagnosis::new(ErrorKind::Full, blocked.to_string(), END_ALARM);
    }
    if error.kind() == std::io::ErrorKind::TimedOut {
        let what = blocked.map_or("no reply in time".to_owned(), Blocked::to_string);
        return Diagnosis::lost(call, &what);
    }
    Diagnosis::lost(call, &error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::reply::UNREACHABLE_BY_TLS;
    use super::*;

    fn diagnosis_of(lost_reply: LostReply, tls: bool, error: impl Into<lapin::Error>) -> Diagnosis {
        diagnose_lapin(
            &CallContext { lost_reply, required: None, tls, prefix: "dq" },
            &error.into(),
        )
    }

    #[test]
    fn a_change_whose_reply_is_lost_has_an_unknown_outcome() {
        let closed = || lapin::ErrorKind::InvalidConnectionState(lapin::ConnectionState::Error);
        let silent = || lapin::ErrorKind::MissingHeartbeatError;
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        for error in [lapin::Error::from(closed()), silent().into(), late().into()] {
            assert!(breaks_connection(&error));
            let diagnosis = diagnosis_of(LostReply::OutcomeUnknown, false, error.clone());
            assert_eq!(diagnosis.kind, ErrorKind::OutcomeUnknown);
            let diagnosis = diagnosis_of(LostReply::Unavailable, true, error);
            assert_eq!(
                (diagnosis.kind, diagnosis.remedy),
                (ErrorKind::Unavailable, UNREACHABLE_BY_TLS.into())
            );
        }
    }

    #[test]
    fn a_broker_that_stops_does_not_refuse_the_request() {
        use lapin::protocol::{AMQPError, AMQPHardError::*};
        let replied = |error: lapin::protocol::AMQPHardError| {
            let error = AMQPError::new(error.into(), "a reason".into());
            lapin::Error::from(lapin::ErrorKind::ProtocolError(error))
        };
        assert!(is_lost(&replied(CONNECTIONFORCED)));
        assert!(!is_lost(&replied(NOTALLOWED)));
        assert!(is_lost(&io::Error::from(io::ErrorKind::ConnectionReset).into()));
    }

    #[test]
    fn what_the_broker_refuses_may_pass() {
        let refused = Error::new(ErrorKind::Incompatible, "refused").remedy("upgrade");
        let passing = may_pass(refused.operation("declare"));
        assert_eq!((passing.kind(), passing.message()), (ErrorKind::Unavailable, "refused"));
        assert_eq!(passing.remedy_text(), Some("upgrade"));
        assert_eq!(may_pass(closed("claim")).kind(), ErrorKind::Closed);
    }

    #[test]
    fn errors_without_a_reply_have_a_kind() {
        let untrusted = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let untrusted = io::Error::new(io::ErrorKind::InvalidData, untrusted);
        for (error, kind) in [
            (lapin::Error::from(untrusted), ErrorKind::Config),
            (lapin::ErrorKind::ChannelsLimitReached.into(), ErrorKind::Unavailable),
        ] {
            assert_eq!(diagnosis_of(LostReply::Unavailable, true, error).kind, kind);
        }
    }
}
