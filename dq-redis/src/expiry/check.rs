//! The finding about keyspace notifications for `check`.

use dq_core::{Finding, Severity};

use super::configure::configure;
use super::probe::ExpiryProbe;
use super::subscriptions::Subscriptions;
use crate::connect::Link;

/// Returns `None` if the server notifies this process when keys expire. Takes about two seconds if
/// it does not. No finding is an error, because jobs run in time anyway.
pub(super) async fn finding(
    link: &Link,
    subscriptions: &Subscriptions,
    probe: &ExpiryProbe,
    should_configure: bool,
) -> Option<Finding> {
    subscriptions.connect().await;
    let refusal = if should_configure { configure(link).await.err() } else { None };
    if !subscriptions.all_connected() {
        return Some(unknown());
    }
    match (probe.run().await, refusal) {
        (Ok(true), _) => None,
        // Without a connection, a missing event says nothing about the server's settings.
        (Ok(false), _) if !subscriptions.all_connected() => Some(unknown()),
        (Ok(false), Some(message)) => Some(refused(&message)),
        (Ok(false), None) => Some(off()),
        (Err(_), _) => Some(unknown()),
    }
}

fn off() -> Finding {
    Finding::new(
        Severity::Warning,
        "redis-expiry.notifications-off",
        "the server does not send events for expired keys: jobs are started by timers alone",
        "set `notify-keyspace-events Ex` at the server, or `configure = true` in the settings of this \
         backend",
    )
}

fn refused(message: &str) -> Finding {
    Finding::new(
        Severity::Warning,
        "redis-expiry.config-refused",
        format!(
            "the server does not send events for expired keys and refuses to be configured \
             ({message}): jobs are started by timers alone"
        ),
        "set `notify-keyspace-events Ex` where the server is administered, or grant this user \
         CONFIG GET and CONFIG SET",
    )
}

fn unknown() -> Finding {
    Finding::new(
        Severity::Info,
        "redis-expiry.notifications-unknown",
        "it is not known whether the server sends events for expired keys, since no connection \
         could subscribe to them or a key that was to test it could not be set: jobs are started by \
         timers alone",
        "check that the server is reachable, and that this user may run SET, TOUCH and SUBSCRIBE, \
         write keys that match `{<prefix>}:*` (the braces are part of the name) with this backend's \
         prefix, and receive the channel __keyevent@*__:expired",
    )
}
