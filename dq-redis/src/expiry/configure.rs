//! Turns keyspace notifications on at the server, for the setting `configure`.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Client, RedisError};

use super::subscriptions::primaries;
use crate::connect::{Link, ServerClient, connect};
use crate::error::breaks_connection;

const SETTING: &str = "notify-keyspace-events";

const TIMEOUT: Duration = Duration::from_secs(3);

/// Adds the letters for `expired` events to every primary's setting, and removes none.
///
/// # Errors
/// The message of the first server that refuses; the others are set nevertheless. An unreachable
/// server is only logged.
pub(super) async fn configure(link: &Link) -> Result<(), String> {
    let clients = match clients(link).await {
        Ok(clients) => clients,
        Err(error) => {
            tracing::debug!(%error, "Redis: {SETTING} could not be read");
            return Ok(());
        }
    };
    let mut refused = Ok(());
    for client in clients {
        match Box::pin(configure_one(&client)).await {
            Ok(()) => {}
            Err(error) if breaks_connection(&error) => {
                tracing::debug!(%error, "Redis: {SETTING} could not be set");
            }
            Err(error) => refused = refused.and(Err(error.to_string())),
        }
    }
    refused
}

async fn clients(link: &Link) -> Result<Vec<Client>, RedisError> {
    let server = link.server();
    match server.client().await? {
        ServerClient::Single(client) => Ok(vec![*client]),
        ServerClient::Cluster(_) => {
            let nodes = primaries(link).await.unwrap_or_else(|| {
                tracing::debug!(
                    "Redis: {SETTING} is not set: the nodes of the cluster are unknown"
                );
                Vec::new()
            });
            nodes.iter().map(|(host, port)| server.node(host, *port)).collect()
        }
    }
}

async fn configure_one(client: &Client) -> Result<(), RedisError> {
    let mut connection = connect(client, TIMEOUT, TIMEOUT).await?;
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(SETTING);
    let settings: HashMap<String, String> = get.query_async(&mut connection).await?;
    let present = settings.get(SETTING).map_or("", String::as_str);
    let Some(new) = with_expired_events(present) else { return Ok(()) };
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg(SETTING).arg(&new);
    set.query_async::<()>(&mut connection).await?;
    tracing::info!(present, new, "Redis: {SETTING} was extended, since `configure` is set");
    Ok(())
}

/// Adds the letters for events (`E`) of expired keys (`x`); `None` if none is missing. `A` includes
/// `x`.
fn with_expired_events(present: &str) -> Option<String> {
    let mut wanted = present.to_owned();
    if !present.contains('E') {
        wanted.push('E');
    }
    if !present.contains(['x', 'A']) {
        wanted.push('x');
    }
    (wanted != present).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::with_expired_events;

    #[test]
    fn only_missing_letters_are_added() {
        assert_eq!(with_expired_events("KA").as_deref(), Some("KAE"));
        assert_eq!(with_expired_events("Eg").as_deref(), Some("Egx"));
        assert_eq!(with_expired_events("xE"), None);
    }
}
