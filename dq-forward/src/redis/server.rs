//! A Redis server, to which forwards and ingresses connect.

use std::fmt;
use std::time::Duration;

use dq_core::config::{Secret, authority};
use dq_core::{BoxError, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo};
use tokio::sync::Mutex;

use crate::error::invalid_setting;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit per job, including the wait for another job's connection attempt.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A Redis server and one connection to it.
///
/// The first command connects. The command after a failed one connects again.
pub(crate) struct Server {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Server {
    /// Checks the URL without connecting; `Config` if it is malformed.
    pub(crate) fn new(url: &Secret) -> Result<Self> {
        let invalid = || {
            invalid_setting(
                "`url` is not the URL of a Redis server",
                "write it like redis://user:password@host:6379/0",
            )
        };
        crate::tls::install_provider();
        let info = url.expose().into_connection_info().map_err(|_| invalid())?;
        let client = Client::open(info).map_err(|_| invalid())?;
        Ok(Self { client, connection: Mutex::default() })
    }

    /// Host, port and database, without the password.
    pub(crate) fn address(&self) -> String {
        let info = self.client.get_connection_info();
        let server = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                authority(host, *port)
            }
            other => other.to_string(),
        };
        format!("{server}/{}", info.redis_settings().db())
    }

    /// Runs a command. After an error it may still have taken effect.
    pub(super) async fn run(&self, command: &Cmd) -> Result<(), BoxError> {
        // Covers the wait, too: each waiting job connects in turn.
        let ran = tokio::time::timeout(TIMEOUT, self.try_run(command)).await;
        ran.map_err(|_| format!("Redis has not answered within {TIMEOUT:?}"))?
    }

    async fn try_run(&self, command: &Cmd) -> Result<(), BoxError> {
        let mut connection = self.connection().await?;
        let result: redis::RedisResult<redis::Value> = command.query_async(&mut connection).await;
        if result.is_err() {
            // Reconnect after an error reply, too: a server that became a replica rejects writes.
            *self.connection.lock().await = None;
        }
        result?;
        Ok(())
    }

    async fn connection(&self) -> Result<MultiplexedConnection, BoxError> {
        // The lock is held while connecting, so that concurrent jobs share the connection.
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let new = self.connect().await?;
        *connection = Some(new.clone());
        Ok(new)
    }

    /// Opens a connection of the caller's own.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, BoxError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

impl fmt::Debug for Server {
    /// Hides the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use redis::cmd;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn an_ipv6_address_is_shown_in_brackets() {
        for (url, shown) in [
            ("redis://u:p@[::1]:7/2", "[::1]:7/2"),
            ("rediss://[fd00::5]", "[fd00::5]:6379/0"),
            ("redis://h", "h:6379/0"),
            ("unix:///run/redis.sock", "/run/redis.sock/0"),
        ] {
            assert_eq!(Server::new(&Secret::new(url)).unwrap().address(), shown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_jobs_wait_no_longer_than_one_for_a_server_that_does_not_answer() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}/", silent.local_addr().unwrap());
        let server = Arc::new(Server::new(&Secret::new(url)).unwrap());
        let start = Instant::now();
        let mut jobs = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let server = Arc::clone(&server);
            jobs.spawn(async move { server.run(&cmd("PING")).await.map_err(|e| e.to_string()) });
        }
        while let Some(ran) = jobs.join_next().await {
            assert!(ran.unwrap().is_err());
        }
        let waited = start.elapsed();
        assert!(waited < TIMEOUT + Duration::from_secs(1), "{waited:?}");
    }
}
