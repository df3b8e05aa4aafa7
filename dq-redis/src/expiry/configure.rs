//! Turning notifications on, where the settings allow it.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};

use super::nodes;
use crate::connect::{Link, ServerClient};
use crate::error::breaks_connection;

const SETTING: &str = "notify-keyspace-events";

/// For a connection that is used once, and for each answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Adds what is needed to the setting of every primary, and takes nothing away. Answers with the
/// server's words if it refuses; a server that cannot be reached refuses nothing.
pub(super) async fn configure(link: &Link) -> Result<(), String> {
    let clients = match clients(link).await {
        Ok(clients) => clients,
        Err(error) => {
            tracing::debug!(%error, "Redis: nobody to ask for notifications");
            return Ok(());
        }
    };
    for client in clients {
        match Box::pin(configure_one(&client)).await {
            Ok(()) => {}
            Err(error) if breaks_connection(&error) => {
                tracing::debug!(%error, "Redis: {SETTING} could not be set");
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

async fn clients(link: &Link) -> Result<Vec<Client>, RedisError> {
    let server = link.server();
    match server.client().await? {
        ServerClient::Single(client) => Ok(vec![client]),
        ServerClient::Cluster(_) => {
            let primaries = nodes::primaries(link).await.unwrap_or_default();
            primaries.iter().map(|(host, port)| server.node(host, *port)).collect()
        }
    }
}

async fn configure_one(client: &Client) -> Result<(), RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let mut connection: MultiplexedConnection =
        client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(SETTING);
    let settings: HashMap<String, String> = get.query_async(&mut connection).await?;
    let present = settings.get(SETTING).map_or("", String::as_str);
    let Some(wanted) = with_expired(present) else { return Ok(()) };
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg(SETTING).arg(&wanted);
    set.query_async::<()>(&mut connection).await?;
    tracing::info!(present, wanted, "Redis: {SETTING} was extended, as `configure` asks");
    Ok(())
}

/// The setting with what it lacks for `expired` events under the names of events; `None` if it lacks
/// nothing. `A` stands for most kinds, `x` among them.
fn with_expired(present: &str) -> Option<String> {
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
    use super::with_expired;

    #[test]
    fn only_what_is_lacking_is_added() {
        assert_eq!(with_expired("").as_deref(), Some("Ex"));
        assert_eq!(with_expired("Kg").as_deref(), Some("KgEx"));
        assert_eq!(with_expired("KA").as_deref(), Some("KAE"));
        assert_eq!(with_expired("Eg").as_deref(), Some("Egx"));
        assert_eq!(with_expired("AE"), None);
        assert_eq!(with_expired("xE"), None);
    }
}
