//! A PostgreSQL server on a small disk.

use std::process::Command;
use std::time::Duration;

use dq_servers::Postgres;

use super::small_disk::SmallDisk;
use crate::run::{Result, output};

#[derive(Debug)]
pub(crate) struct DiskPostgres {
    /// Mounted below the server's directory, so it must be dropped first.
    pub(super) disk: Option<SmallDisk>,
    pub(crate) server: Postgres,
}

impl DiskPostgres {
    pub(super) fn start() -> Self {
        Self { disk: None, server: Postgres::start() }
    }

    /// Starts a server and moves its data to a small disk, if one can be mounted.
    pub(super) fn start_on_small_disk() -> Result<Self> {
        let options = Postgres::options().set("max_wal_size", "64MB").set("min_wal_size", "32MB");
        let server = options.start();
        server.stop();
        let (data, copy) = (server.dir().join("data"), server.dir().join("copy"));
        std::fs::rename(&data, &copy).map_err(|error| format!("{}: {error}", data.display()))?;
        let disk = SmallDisk::mount(&data);
        output("cp", Command::new("cp").arg("-a").arg(copy.join(".")).arg(&data))?;
        server.restart();
        Ok(Self { disk, server })
    }

    /// Fills the disk for a while. The server then may have stopped, so this restarts it.
    pub(super) fn fill_disk(&self, lasts: Duration) -> Result {
        let Some(disk) = &self.disk else { return Ok(()) };
        disk.fill_for(lasts)?;
        self.server.kill();
        self.server.restart();
        Ok(())
    }
}
