//! Where the jobs of a measurement are stored: on a Redis server, or in a file.

use std::fs;
use std::path::Path;

use dq_servers::Redis;
use tempfile::TempDir;

use crate::Result;

/// What a peer stores its jobs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    File,
}

/// A Redis server, or a directory with the file of an embedded store.
pub(crate) enum Place {
    Redis(Box<Redis>),
    File(TempDir),
}

impl Place {
    /// Starts a server, or makes a directory in this one.
    pub(crate) fn start(kind: Kind, directory: &Path) -> Result<Self> {
        Ok(match kind {
            Kind::Redis => Self::Redis(Box::new(Redis::start())),
            Kind::File => Self::File(tempfile::tempdir_in(directory)?),
        })
    }

    /// `HOST:PORT`, or the path of the file.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Redis(redis) => redis.address(),
            Self::File(directory) => directory.path().join("jobs.db").display().to_string(),
        }
    }

    /// Removes all jobs. No process uses them.
    pub(crate) fn clear(&self) -> Result<()> {
        match self {
            Self::Redis(redis) => {
                if !redis.command(&["FLUSHALL", "SYNC"]).is_ok() {
                    return Err("the server cannot be cleared".into());
                }
            }
            Self::File(directory) => {
                for file in fs::read_dir(directory.path())? {
                    fs::remove_file(file?.path())?;
                }
            }
        }
        Ok(())
    }

    /// The memory of the server, or the size of the files, in bytes.
    pub(crate) fn bytes(&self) -> Result<f64> {
        match self {
            Self::Redis(redis) => info(redis, "used_memory"),
            Self::File(directory) => {
                let mut bytes = 0;
                for file in fs::read_dir(directory.path())? {
                    bytes += file?.metadata()?.len();
                }
                Ok(bytes as f64)
            }
        }
    }

    /// The seconds that the server was busy, if there is a server.
    pub(crate) fn busy(&self) -> Result<Option<f64>> {
        match self {
            Self::Redis(redis) => {
                Ok(Some(info(redis, "used_cpu_user")? + info(redis, "used_cpu_sys")?))
            }
            Self::File(_) => Ok(None),
        }
    }
}

/// The number of commands that the server has run, without this one: it counts a command when it has run.
pub(crate) fn commands(redis: &Redis) -> Result<f64> {
    info(redis, "total_commands_processed")
}

/// A field of `INFO`.
fn info(redis: &Redis, field: &str) -> Result<f64> {
    let text = redis.command(&["INFO"]).text();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(name, _)| *name == field);
    Ok(found.ok_or_else(|| format!("INFO has no {field}"))?.1.trim().parse()?)
}
