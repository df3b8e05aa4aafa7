//! Diagnoses error replies of the broker: a code and a text.
//!
//! AMQP's codes are coarse: 403 is a refused login, a reserved name or a missing permission, 406
//! nearly everything about declarations. Only the text tells them apart, and only this module reads
//! it.

use std::borrow::Cow;

use dq_core::ErrorKind;

/// Which error a call returns if its reply is lost or late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LostReply {
    /// The call can be repeated, for one of three reasons:
    /// - it changes nothing;
    /// - it is a claim, and its unused leases expire;
    /// - this process repeats it.
    Unavailable,
    /// The call may have changed jobs.
    OutcomeUnknown,
}

/// How the broker refuses a request, as far as the caller's next step depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    /// The node of this queue does not run.
    Inaccessible,
    Forbidden,
    /// Another connection or consumer uses the queue exclusively.
    Locked,
    /// There is no reply, the connection was lost, or the reply closes the connection.
    NoReply,
    Other,
}

impl Refusal {
    pub(super) fn of(code: u16, text: &str) -> Self {
        match code {
            404 if text.contains(DOWN) => Self::Inaccessible,
            404 => Self::NotFound,
            403 if text.contains(IN_USE) => Self::Locked,
            403 => Self::Forbidden,
            405 => Self::Locked,
            code if closes_connection(code) && !text.contains("exchange type") => Self::NoReply,
            _ => Self::Other,
        }
    }
}

const DOWN: &str = "down or inaccessible";

const IN_USE: &str = "in exclusive use";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Declare and delete.
    Configure,
    /// Publish to an exchange, and bind a queue.
    Write,
    /// Consume from a queue, and bind to an exchange.
    Read,
}

impl Permission {
    const ALL: [Self; 3] = [Self::Configure, Self::Write, Self::Read];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// The permission that a call needs on an object, from the broker's text about it: `queue 'q' in
/// vhost '/' refused for user 'u'`. Older brokers do not name the permission.
pub(crate) type RequiredPermission<'a> = &'a dyn Fn(&str) -> Permission;

#[derive(Clone, Copy)]
pub(super) struct CallContext<'a> {
    pub(super) lost_reply: LostReply,
    pub(super) required: Option<RequiredPermission<'a>>,
    pub(super) tls: bool,
    pub(super) prefix: &'a str,
}

pub(super) struct Diagnosis {
    pub(super) kind: ErrorKind,
    pub(super) what: String,
    pub(super) remedy: Cow<'static, str>,
}

impl Diagnosis {
    pub(super) fn new(
        kind: ErrorKind,
        what: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { kind, what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn lost(call: &CallContext<'_>, what: &str) -> Self {
        match call.lost_reply {
            LostReply::OutcomeUnknown => Self::new(ErrorKind::OutcomeUnknown, what, REPEAT),
            LostReply::Unavailable if call.tls => {
                Self::new(ErrorKind::Unavailable, what, UNREACHABLE_BY_TLS)
            }
            LostReply::Unavailable => Self::new(ErrorKind::Unavailable, what, UNREACHABLE),
        }
    }
}

pub(super) const REPEAT: &str =
    "repeat the call with the same job ids: what has taken effect is not applied twice";
pub(super) const REPORT: &str = "please report this with the message";
const UNREACHABLE: &str = "check that the broker runs and can be reached from this host";
pub(super) const UNREACHABLE_BY_TLS: &str = "check that the broker runs, can be reached from this host, \
     and speaks TLS at this port: for a port without TLS, begin the URL with amqp:// instead of amqps://";
const SEE_LOG: &str = "see the log of the broker";
const LOGIN: &str =
    "check user and password of the URL; `guest` may connect from the broker's own host only";
const VHOST: &str = "the path of the URL names the virtual host: create it with `rabbitmqctl \
     add_vhost`, or name another";
const PERMISSIONS: &str =
    "grant this user the permissions listed in the documentation of dq-rabbit";
const IN_USE_BY_ANOTHER: &str =
    "another connection uses this queue exclusively: choose another `prefix`";
const NOT_FOUND: &str = "it was deleted or is not declared yet: connect again, or declare it if \
     `topology` is \"passive\"";
const LIMIT: &str = "raise the limit with `rabbitmqctl set_vhost_limits` or `set_user_limits`, or that of rabbitmq.conf";
const QUEUE_LIMIT: &str = "raise the limit with `rabbitmqctl set_vhost_limits`, or that of rabbitmq.conf; a \
     prefix has about 300 queues, and 5 with `ladder = \"none\"`";
const MAX_MESSAGE_SIZE: &str = "raise `max_message_size` in rabbitmq.conf";
const PLUGIN: &str = "enable the plugin with `rabbitmq-plugins enable \
     rabbitmq_delayed_message_exchange`, or set `topology` to \"declare\"";
const UPGRADE: &str = "use RabbitMQ 3.10 or newer, with its feature flags `quorum_queue` and \
     `stream_queue` enabled: `rabbitmqctl enable_feature_flag all`";
const STREAM_REPLICA: &str = "list all nodes of the cluster in the URL, and check which of them have a \
     replica: `rabbitmq-streams stream_status`, `rabbitmq-streams add_replica`";
const LATE_ACK: &str = "none needed: deliveries that are unacknowledged for longer than the broker's \
     `consumer_timeout` are delivered again";
const REDECLARED: &str = "the arguments of a declared object cannot be changed: choose another \
     `prefix`, restore the settings it was declared with, or delete it once it is empty";

/// Whether the broker closes the connection with this code. Other codes close only the channel.
pub(super) const fn closes_connection(code: u16) -> bool {
    matches!(code, 320 | 402 | 501..=506 | 530 | 540 | 541)
}

pub(super) fn diagnose(call: &CallContext<'_>, code: u16, text: &str) -> Diagnosis {
    use ErrorKind::{Config, Full, Incompatible, Internal, Unavailable};
    let has = |words: &str| text.contains(words);
    let mismatch = argument_mismatch(text);
    let is_limit = has("reached") && (has("limit") || has("maximum"));
    match code {
        // These limits do not depend on stored jobs.
        320 | 530 if is_limit => Diagnosis::new(Unavailable, text, LIMIT),
        _ if is_limit => Diagnosis::new(Full, text, QUEUE_LIMIT),
        403 if has("Login was refused") || has("can only connect via localhost") => {
            Diagnosis::new(Config, text, LOGIN)
        }
        403 if has("reserved") => Diagnosis::new(Config, text, "choose another `prefix`"),
        403 if has(IN_USE) => Diagnosis::new(Incompatible, text, IN_USE_BY_ANOTHER),
        403 => permission_missing(call, text),
        404 if has(DOWN) => Diagnosis::new(
            Unavailable,
            text,
            "start the cluster node that hosts this queue; quorum queues do not depend on one node",
        ),
        404 => Diagnosis::new(Unavailable, text, NOT_FOUND),
        405 => Diagnosis::new(Incompatible, text, IN_USE_BY_ANOTHER),
        // 503 from brokers before 4.0, 406 since.
        _ if has("unknown exchange type") || has("invalid exchange type") => {
            Diagnosis::new(Incompatible, text, PLUGIN)
        }
        406 if has("acknowledgement") && has("timed out") => {
            Diagnosis::new(Unavailable, text, LATE_ACK)
        }
        // The delivery was settled twice, or on another channel. The broker closes the channel,
        // other requests on it may be lost, and deliveries come again.
        406 if has("unknown delivery tag") => Diagnosis::lost(call, text),
        // The node has just started, or it has joined after the stream was declared.
        406 if has("replica on the local node") => {
            Diagnosis::new(Unavailable, text, STREAM_REPLICA)
        }
        // First, because the text has names that users chose.
        406 if mismatch.is_some() => {
            Diagnosis::new(Incompatible, mismatch.unwrap_or_default(), REDECLARED)
        }
        406 if has("message size") => Diagnosis::new(Config, text, MAX_MESSAGE_SIZE),
        406 if has("invalid arg") || has("invalid property") => {
            Diagnosis::new(Incompatible, text, UPGRADE)
        }
        _ if has("feature flag") => Diagnosis::new(Incompatible, text, UPGRADE),
        406 => Diagnosis::new(Config, text, SEE_LOG),
        530 if has("not found") => Diagnosis::new(Config, text, VHOST),
        530 if has("access to vhost") => {
            permission_missing(&CallContext { required: None, ..*call }, text)
        }
        530 => Diagnosis::new(Config, text, SEE_LOG),
        503 | 540 => Diagnosis::new(Incompatible, text, UPGRADE),
        // 504: the client library used a channel that was closing, which ends the connection.
        320 | 504 => Diagnosis::lost(call, text),
        311 | 506 | 541 if call.lost_reply == LostReply::OutcomeUnknown => {
            Diagnosis::lost(call, text)
        }
        311 | 506 | 541 => Diagnosis::new(Unavailable, text, SEE_LOG),
        // 501, 502 and 505: the broker did not understand the request, so it has no effect.
        _ => Diagnosis::new(Internal, text, REPORT),
    }
}

/// Reads `access to queue 'q' in vhost 'v' refused for user 'u'`. Newer brokers begin with the
/// permission: `write access to …`.
fn permission_missing(call: &CallContext<'_>, text: &str) -> Diagnosis {
    let named = |permission: &Permission| text.contains(&format!("{} access", permission.as_str()));
    let object = text.split_once("access to ").map_or(text, |(_, object)| object);
    let permission = Permission::ALL
        .into_iter()
        .find(named)
        .or_else(|| call.required.map(|required| required(object)));
    let (Some(user), Some(vhost)) = (quoted_after(text, "user "), quoted_after(text, "vhost "))
    else {
        return Diagnosis::new(ErrorKind::Config, text, PERMISSIONS);
    };
    let pattern = format!(r"^{}\.v1\.", call.prefix.replace('.', r"\."));
    let missing = permission.map_or(String::new(), |permission| {
        format!("the permission to {} is missing: ", permission.as_str())
    });
    let remedy = format!(
        "{missing}rabbitmqctl set_permissions -p '{vhost}' '{user}' '{pattern}' '{pattern}' \
         '{pattern}'"
    );
    Diagnosis::new(ErrorKind::Config, text, remedy)
}

/// Reads the broker's message about an object that exists with another argument: `inequivalent arg
/// 'a' for queue 'q' in vhost 'v': received the value '1' of type 'long' but current is none`. Some
/// versions leave out the types.
fn argument_mismatch(text: &str) -> Option<String> {
    let argument = quoted_after(text, "inequivalent arg ")?;
    let (_, rest) = text.split_once("' for ")?;
    let (object, rest) = rest.split_once(": received ")?;
    let object = object.split_once(" in vhost").map_or(object, |(object, _)| object);
    let (requested, current) = rest.split_once(" but current is ")?;
    let [requested, current] = [requested, current].map(value);
    Some(format!("{object} has `{argument}` {current}, but {requested} is requested"))
}

/// Returns the quoted value, or the whole text, as in `none`.
fn value(text: &str) -> &str {
    text.split('\'').nth(1).unwrap_or(text).trim()
}

fn quoted_after<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("{words}'"))?;
    rest.split('\'').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CallContext<'static> = CallContext {
        lost_reply: LostReply::Unavailable,
        required: None,
        tls: false,
        prefix: "my.shop",
    };

    fn diagnosis_of(code: u16, text: &str) -> Diagnosis {
        diagnose(&CALL, code, text)
    }

    #[test]
    fn an_argument_mismatch_is_parsed_in_the_form_of_every_version() {
        let object = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'a.v1.l0.1' in \
             vhost '/': ";
        for (values, requested, current) in [
            ("received '225' but current is '200'", "225", "200"),
            ("received the value '225' of type 'signedint' but current is none", "225", "none"),
            ("received none but current is the value '200' of type 'long'", "none", "200"),
        ] {
            let diagnosis = diagnosis_of(406, &format!("{object}{values}"));
            assert_eq!(diagnosis.kind, ErrorKind::Incompatible);
            let expected = format!(
                "queue 'a.v1.l0.1' has `x-message-ttl` {current}, but {requested} is requested"
            );
            assert_eq!(diagnosis.what, expected);
        }
        assert_eq!(
            diagnosis_of(406, "PRECONDITION_FAILED - invalid arg").what,
            "PRECONDITION_FAILED - invalid arg"
        );
    }

    #[test]
    fn a_missing_permission_is_named_by_the_broker_or_else_by_the_call() {
        let text = "access to exchange 'my.shop.v1.due' in vhost 'a' refused for user 'b'";
        let all = r"'^my\.shop\.v1\.'";
        let command = format!("rabbitmqctl set_permissions -p 'a' 'b' {all} {all} {all}");
        assert_eq!(diagnosis_of(403, text).remedy, command);
        let required = |object: &str| {
            assert!(object.starts_with("exchange 'my.shop.v1.due'"), "{object}");
            Permission::Write
        };
        let writing = CallContext { required: Some(&required), ..CALL };
        let diagnosis = diagnose(&writing, 403, text);
        assert_eq!(diagnosis.remedy, format!("the permission to write is missing: {command}"));
        let diagnosis = diagnose(&writing, 403, &format!("read {text}"));
        assert_eq!(diagnosis.remedy, format!("the permission to read is missing: {command}"));
        assert_eq!(diagnosis_of(403, "ACCESS_REFUSED").remedy, PERMISSIONS);
        // A virtual host's name does not contain the prefix.
        let text = "NOT_ALLOWED - access to vhost 'a' refused for user 'b'";
        assert_eq!(diagnose(&writing, 530, text).remedy, command);
    }

    #[test]
    fn each_reply_has_a_kind_and_a_remedy() {
        use ErrorKind::{Config, Full, Incompatible, Unavailable};
        const QUEUES: &str = "cannot declare queue 'q': queue limit in";
        const USER: &str = "refused for user 'u'";
        const TYPE: &str = "exchange type 'x-delayed-message'";
        for (code, text, kind, remedy) in [
            (503, format!("COMMAND_INVALID - unknown {TYPE}"), Incompatible, PLUGIN),
            (406, format!("PRECONDITION_FAILED - unknown {TYPE}"), Incompatible, PLUGIN),
            (406, format!("{QUEUES} vhost '/' (3) is reached"), Full, QUEUE_LIMIT),
            (506, format!("{QUEUES} vhost '/' (3) is reached"), Full, QUEUE_LIMIT),
            (406, format!("{QUEUES} cluster (3) is reached"), Full, QUEUE_LIMIT),
            (406, "exchange limit of 3 is reached".into(), Full, QUEUE_LIMIT),
            (530, format!("{USER}: user connection limit (1) is reached"), Unavailable, LIMIT),
            (530, format!("access to vhost '/' {USER}: limit (1) is reached"), Unavailable, LIMIT),
            (530, "channels has reached the maximum (1)".into(), Unavailable, LIMIT),
            (530, "reached maximum (1) of consumers per channel".into(), Unavailable, LIMIT),
            (406, "invalid arg 'x-dead-letter-strategy'".into(), Incompatible, UPGRADE),
            (406, "feature flag is disabled".into(), Incompatible, UPGRADE),
            (406, "message size 20 is larger than 10".into(), Config, MAX_MESSAGE_SIZE),
            (406, "of an unknown kind".into(), Config, SEE_LOG),
            (406, "no replica on the local node".into(), Unavailable, STREAM_REPLICA),
            (404, "no queue 'a.v1.q.b'".into(), Unavailable, NOT_FOUND),
            (320, "CONNECTION_FORCED".into(), Unavailable, UNREACHABLE),
            (504, "CHANNEL_ERROR - expected 'channel.open'".into(), Unavailable, UNREACHABLE),
            (541, "INTERNAL_ERROR".into(), Unavailable, SEE_LOG),
        ] {
            let diagnosis = diagnosis_of(code, &text);
            assert_eq!((diagnosis.kind, &*diagnosis.remedy), (kind, remedy), "{code} {text}");
        }
        let late_ack = diagnosis_of(406, "delivery acknowledgement on channel 1 timed out");
        assert_eq!(late_ack.kind, Unavailable);
        let change = CallContext { lost_reply: LostReply::OutcomeUnknown, ..CALL };
        assert_eq!(diagnose(&change, 320, "FORCED").kind, ErrorKind::OutcomeUnknown);
    }

    #[test]
    fn a_queue_that_is_down_is_not_missing() {
        let down = "NOT_FOUND - home node 'x' of queue 'q' in vhost '/' is down or inaccessible";
        assert_eq!(diagnosis_of(404, down).kind, ErrorKind::Unavailable);
        for (code, text, refusal) in [
            (404, down, Refusal::Inaccessible),
            (404, "NOT_FOUND - no queue 'q' in vhost '/'", Refusal::NotFound),
            (403, "ACCESS_REFUSED", Refusal::Forbidden),
            (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use", Refusal::Locked),
            (405, "RESOURCE_LOCKED", Refusal::Locked),
            (406, "PRECONDITION_FAILED - feature flag is disabled", Refusal::Other),
            (503, "COMMAND_INVALID - unknown exchange type 'x-delayed-message'", Refusal::Other),
            (320, "CONNECTION_FORCED", Refusal::NoReply),
        ] {
            assert_eq!(Refusal::of(code, text), refusal, "{text}");
        }
    }
}
