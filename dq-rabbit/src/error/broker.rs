//! What the broker itself says: a number and a sentence.

use dq_core::ErrorKind;

use super::{Call, Effect, REPORT, Said, lost, said};

/// What a user may do to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Declare it.
    Configure,
    /// Put messages into it.
    Write,
    /// Take messages out of it.
    Read,
}

impl Right {
    const ALL: [Self; 3] = [Self::Configure, Self::Write, Self::Read];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

const LOG: &str = "see the log of the broker";
const LOGIN: &str =
    "check user and password of the URL; `guest` may connect from the broker's own host only";
const VHOST: &str = "the path of the URL names the virtual host: create it with `rabbitmqctl \
     add_vhost`, or name another";
const PERMISSIONS: &str = "grant this user what the documentation of dq-rabbit lists under rights";
const GONE: &str = "it was deleted, or is not declared yet: connect again, or declare it if \
     `topology` is \"passive\"";
const LIMIT: &str = "raise the limit of this user or virtual host: `rabbitmqctl set_vhost_limits`, \
     `set_user_limits`";
const PLUGIN: &str = "enable the plugin with `rabbitmq-plugins enable \
     rabbitmq_delayed_message_exchange`, or set `topology` to \"declare\"";
const OLD: &str = "use RabbitMQ 3.10 or newer, with its feature flags `quorum_queue` and \
     `stream_queue` enabled: `rabbitmqctl enable_feature_flag all`";
const REPLICA: &str = "name all nodes of the cluster in the URL, and see which of them have a replica: \
     `rabbitmq-streams stream_status`, `rabbitmq-streams add_replica`";
const DECLARED: &str = "what is declared cannot be changed: choose another `prefix`, go back to the \
     settings it was declared with, or delete it once it is empty";

/// Numbers of errors that end the connection, not just the channel.
pub(super) fn is_of_connection(code: u16) -> bool {
    matches!(code, 320 | 402 | 501..=505 | 530 | 540 | 541)
}

/// An error by its number in AMQP and its text.
pub(super) fn of_broker(call: &Call<'_>, code: u16, text: &str) -> Said {
    use ErrorKind::{Config, Incompatible, Internal, Unavailable};
    let effect = call.effect;
    let has = |words: &str| text.contains(words);
    match code {
        403 if has("Login was refused") || has("can only connect via localhost") => {
            said(Config, text, LOGIN)
        }
        403 if has("reserved") => said(Config, text, "choose another `prefix`"),
        403 => refused(call, text),
        404 if has("down or inaccessible") => said(
            Unavailable,
            text,
            "start the node of the cluster that has this queue; quorum queues do not depend on one",
        ),
        404 => said(Unavailable, text, GONE),
        405 => said(
            Incompatible,
            text,
            "another connection has this queue for itself: choose another `prefix`",
        ),
        // 503 from brokers before 4.0, 406 since.
        _ if has("unknown exchange type") || has("invalid exchange type") => {
            said(Incompatible, text, PLUGIN)
        }
        406 => failed_precondition(call, text),
        _ if has("feature flag") => said(Incompatible, text, OLD),
        320 | 530 | 506 if has("limit") => said(Unavailable, text, LIMIT),
        530 if has("not found") => said(Config, text, VHOST),
        530 if has("access to vhost") => refused(&Call { right: None, ..*call }, text),
        530 => said(Config, text, LOG),
        503 | 540 => said(Incompatible, text, OLD),
        320 => lost(call, text),
        311 | 506 | 541 if effect == Effect::Lasting => lost(call, text),
        311 | 506 | 541 => said(Unavailable, text, LOG),
        _ => said(Internal, text, REPORT),
    }
}

/// A right is lacking: `access to queue 'q' in vhost 'v' refused for user 'u'`, before which newer
/// brokers say which right.
fn refused(call: &Call<'_>, text: &str) -> Said {
    let named = |right: &Right| text.contains(&format!("{} access", right.as_str()));
    let right = Right::ALL.into_iter().find(named).or(call.right);
    let (Some(user), Some(vhost)) = (quoted_after(text, "user "), quoted_after(text, "vhost "))
    else {
        return said(ErrorKind::Config, text, PERMISSIONS);
    };
    let pattern = format!(r"^{}\.v1\.", call.prefix.replace('.', r"\."));
    let lacking = right
        .map_or(String::new(), |right| format!("the right to {} is lacking: ", right.as_str()));
    let remedy = format!(
        "{lacking}rabbitmqctl set_permissions -p '{vhost}' '{user}' '{pattern}' '{pattern}' \
         '{pattern}'"
    );
    said(ErrorKind::Config, text, remedy)
}

/// Mostly that something is there which was declared otherwise.
fn failed_precondition(call: &Call<'_>, text: &str) -> Said {
    if text.contains("acknowledgement") && text.contains("timed out") {
        return said(
            ErrorKind::Unavailable,
            text,
            "nothing: what was held for longer than `consumer_timeout` of the broker is delivered again",
        );
    }
    if text.contains("unknown delivery tag") {
        return lost(call, text);
    }
    // A node that was just started, or that joined after the stream was declared.
    if text.contains("replica on the local node") {
        return said(ErrorKind::Unavailable, text, REPLICA);
    }
    if let Some(Mismatch { object, argument, wanted, current }) = Mismatch::read(text) {
        return said(
            ErrorKind::Incompatible,
            format!("{object} has `{argument}` {current}, but {wanted} is wanted"),
            DECLARED,
        );
    }
    said(ErrorKind::Incompatible, text, OLD)
}

/// `inequivalent arg 'a' for queue 'q' in vhost 'v': received the value '1' of type 'long' but current
/// is none`, with and without the words about types.
#[derive(Debug, PartialEq, Eq)]
struct Mismatch<'a> {
    object: &'a str,
    argument: &'a str,
    wanted: &'a str,
    current: &'a str,
}

impl<'a> Mismatch<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let argument = quoted_after(text, "inequivalent arg ")?;
        let (_, rest) = text.split_once("' for ")?;
        let (object, rest) = rest.split_once(": received ")?;
        let object = object.split_once(" in vhost").map_or(object, |(object, _)| object);
        let (wanted, current) = rest.split_once(" but current is ")?;
        Some(Self { object, argument, wanted: value(wanted), current: value(current) })
    }
}

/// What stands in quotes, or a word without any, such as `none`.
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

    const CALL: Call<'static> =
        Call { effect: Effect::None, right: None, tls: false, prefix: "my.shop" };

    fn of(code: u16, text: &str) -> Said {
        of_broker(&CALL, code, text)
    }

    #[test]
    fn a_mismatch_is_read_as_every_version_writes_it() {
        let object = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'a.v1.l0.1' in \
             vhost '/': ";
        for (values, wanted, current) in [
            ("received '225' but current is '200'", "225", "200"),
            ("received the value '225' of type 'signedint' but current is none", "225", "none"),
            ("received none but current is the value '200' of type 'long'", "none", "200"),
        ] {
            let said = of(406, &format!("{object}{values}"));
            assert_eq!(said.kind, ErrorKind::Incompatible);
            let expected =
                format!("queue 'a.v1.l0.1' has `x-message-ttl` {current}, but {wanted} is wanted");
            assert_eq!(said.what, expected);
        }
        assert_eq!(
            of(406, "PRECONDITION_FAILED - invalid arg").what,
            "PRECONDITION_FAILED - invalid arg"
        );
    }

    #[test]
    fn a_lacking_right_is_named_by_the_broker_or_else_by_the_call() {
        let text = "access to exchange 'my.shop.v1.due' in vhost 'a' refused for user 'b'";
        let all = r"'^my\.shop\.v1\.'";
        let command = format!("rabbitmqctl set_permissions -p 'a' 'b' {all} {all} {all}");
        assert_eq!(of(403, text).remedy, command);
        let writing = Call { right: Some(Right::Write), ..CALL };
        let said = of_broker(&writing, 403, text);
        assert_eq!(said.remedy, format!("the right to write is lacking: {command}"));
        let said = of_broker(&writing, 403, &format!("read {text}"));
        assert_eq!(said.remedy, format!("the right to read is lacking: {command}"));
        assert_eq!(of(403, "ACCESS_REFUSED").remedy, PERMISSIONS);
        // A virtual host holds no name from which the prefix could be read.
        let text = "NOT_ALLOWED - access to vhost 'a' refused for user 'b'";
        assert_eq!(of_broker(&writing, 530, text).remedy, command);
    }

    #[test]
    fn a_lacking_plugin_is_told_as_every_version_tells_it() {
        for (code, text) in [
            (503, "COMMAND_INVALID - unknown exchange type 'x-delayed-message'"),
            (406, "PRECONDITION_FAILED - unknown exchange type 'x-delayed-message'"),
        ] {
            assert_eq!(of(code, text).remedy, PLUGIN);
        }
    }

    #[test]
    fn what_ends_by_itself_may_be_tried_again() {
        for (code, text) in [
            (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"),
            (404, "NOT_FOUND - no queue 'a.v1.q.b' in vhost '/'"),
            (
                404,
                "NOT_FOUND - home node 'x' of durable queue 'q' in vhost '/' is down or inaccessible",
            ),
            (406, "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out"),
            (
                406,
                "PRECONDITION_FAILED - queue 'queue 'q' in vhost '/'' does not have a replica on the \
                 local node",
            ),
            (
                530,
                "NOT_ALLOWED - access to vhost '/' refused for user 'u': connection limit (1) is reached",
            ),
            (541, "INTERNAL_ERROR"),
        ] {
            assert_eq!(of(code, text).kind, ErrorKind::Unavailable, "{text}");
        }
        let forced = of_broker(&Call { effect: Effect::Lasting, ..CALL }, 320, "CONNECTION_FORCED");
        assert_eq!(forced.kind, ErrorKind::OutcomeUnknown);
    }
}
