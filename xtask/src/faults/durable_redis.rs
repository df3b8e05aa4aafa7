//! A Redis server that writes everything to disk before it replies. With weaker settings, a kill
//! may lose data as configured.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use dq_servers::{Redis, RedisOptions};

use super::replication::expect_ok;
use super::small_disk::SmallDisk;
use crate::run::Result;

#[derive(Debug)]
pub(crate) struct DurableRedis {
    /// Mounted below the server's directory, so it must be dropped first.
    pub(super) disk: Option<SmallDisk>,
    pub(crate) server: Redis,
    scheme: String,
}

impl DurableRedis {
    pub(super) fn start(scheme: &str) -> Self {
        Self { disk: None, server: options().start(), scheme: scheme.to_owned() }
    }

    /// Starts a server and moves its files to a small disk, if one can be mounted.
    pub(super) fn start_on_small_disk(scheme: &str) -> Result<Self> {
        let server = options().start();
        server.stop();
        let dir = server.dir().join("appendonlydir");
        let failed = |error: io::Error| format!("{}: {error}", dir.display());
        let files = read(&dir).map_err(failed)?;
        let disk = SmallDisk::mount(&dir);
        for (name, content) in files {
            fs::write(dir.join(name), content).map_err(failed)?;
        }
        server.restart();
        if disk.is_some() {
            // Redis writes a rewritten file to another disk and cannot move it here.
            server.command(&["CONFIG", "SET", "auto-aof-rewrite-percentage", "0"]);
            expect_ok(&server, &["CONFIG", "REWRITE"]);
        }
        Ok(Self { disk, server, scheme: scheme.to_owned() })
    }

    pub(super) fn url(&self) -> String {
        self.server.url().replacen("redis", &self.scheme, 1)
    }

    /// Fills the disk for a while. Redis then exits, so this restarts it.
    pub(super) fn fill_disk(&self, lasts: Duration) -> Result {
        let Some(disk) = &self.disk else { return Ok(()) };
        disk.fill_for(lasts)?;
        self.server.kill();
        self.server.restart();
        Ok(())
    }
}

fn options() -> RedisOptions {
    Redis::options().aof().set("notify-keyspace-events", "Ex")
}

fn read(dir: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    fs::read_dir(dir)?
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name(), fs::read(entry.path())?))
        })
        .collect()
}
