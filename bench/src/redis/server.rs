//! The private server and its metrics.

use std::time::Duration;

use dq_servers::{Connection, Redis, install};

use crate::plan::Result;

#[derive(Debug)]
pub(super) struct RedisServer {
    redis: Redis,
}

impl RedisServer {
    pub(super) fn start() -> Result<Self> {
        install::redis()?;
        // Only `record_calls` turns the slow log on.
        Ok(Self { redis: Redis::options().set("slowlog-log-slower-than", "-1").start() })
    }

    pub(super) fn address(&self) -> String {
        self.redis.address()
    }

    /// Removes all keys and waits until their memory is free.
    pub(super) fn clear(&self) {
        assert!(self.redis.command(&["FLUSHALL", "SYNC"]).is_ok());
    }

    /// Opens a blocking connection through the server's Unix socket, without a client library.
    pub(super) fn connect(&self) -> Connection {
        self.redis.connect()
    }

    /// A field from `INFO`, or an empty string.
    pub(super) fn info(&self, field: &str) -> String {
        let info = self.redis.command(&["INFO"]).text();
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| *name == field).map_or("", |(_, value)| value).to_owned()
    }

    fn number(&self, field: &str) -> f64 {
        self.info(field).parse().unwrap_or(f64::NAN)
    }

    pub(super) fn cpu(&self) -> Duration {
        Duration::from_secs_f64(self.number("used_cpu_user") + self.number("used_cpu_sys"))
    }

    pub(super) fn memory(&self) -> f64 {
        self.number("used_memory")
    }

    pub(super) fn received(&self) -> f64 {
        self.number("total_net_input_bytes")
    }

    /// Starts recording calls longer than this.
    pub(super) fn record_calls(&self, longer_than: Duration) {
        let micros = longer_than.as_micros().to_string();
        let mut connection = self.redis.connect();
        for setting in [["slowlog-max-len", "100000"], ["slowlog-log-slower-than", &micros]] {
            assert!(connection.command(&["CONFIG", "SET", setting[0], setting[1]]).is_ok());
        }
    }

    /// The sorted call durations since [`Self::record_calls`]. Stops recording and clears the slow
    /// log, because it uses memory and removing it is itself a long call.
    pub(super) fn recorded_calls(&self) -> Vec<Duration> {
        let mut connection = self.redis.connect();
        let log = connection.command(&["SLOWLOG", "GET", "-1"]);
        let micros = log.list().iter().map(|call| call.list()[2].int().unsigned_abs());
        let mut calls: Vec<Duration> = micros.map(Duration::from_micros).collect();
        calls.sort_unstable();
        for command in
            [&["CONFIG", "SET", "slowlog-log-slower-than", "-1"][..], &["SLOWLOG", "RESET"]]
        {
            assert!(connection.command(command).is_ok());
        }
        calls
    }
}

pub(super) fn cpu_of<T>(
    server: &RedisServer,
    run: impl FnOnce() -> Result<T>,
) -> Result<(T, Duration)> {
    let before = server.cpu();
    let result = run()?;
    Ok((result, server.cpu().saturating_sub(before)))
}
