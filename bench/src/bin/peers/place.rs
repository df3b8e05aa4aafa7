//! Where a measurement stores its jobs: on a Redis server or in a file.

use std::fs;
use std::path::Path;

use dq_servers::Redis;
use tempfile::TempDir;

use crate::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    File,
}

pub(crate) enum Place {
    Redis(Box<Redis>),
    File(TempDir),
}

impl Place {
    pub(crate) fn start(kind: Kind, directory: &Path) -> Result<Self> {
        Ok(match kind {
            Kind::Redis => Self::Redis(Box::new(Redis::start())),
            Kind::File => Self::File(tempfile::tempdir_in(directory)?),
        })
    }

    /// `HOST:PORT`, or the file path.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Redis(redis) => redis.address(),
            Self::File(directory) => directory.path().join("jobs.db").display().to_string(),
        }
    }

    /// Removes all jobs. No process may be using them.
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

    /// The server's memory or the files' size, in bytes.
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

    pub(crate) fn busy(&self) -> Result<Option<f64>> {
        match self {
            Self::Redis(redis) => {
                Ok(Some(info(redis, "used_cpu_user")? + info(redis, "used_cpu_sys")?))
            }
            Self::File(_) => Ok(None),
        }
    }
}

/// Commands the server has run, excluding this one: Redis counts a command once it has run.
pub(crate) fn commands(redis: &Redis) -> Result<f64> {
    info(redis, "total_commands_processed")
}

fn info(redis: &Redis, field: &str) -> Result<f64> {
    let text = redis.command(&["INFO"]).text();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(name, _)| *name == field);
    Ok(found.ok_or_else(|| format!("INFO has no {field}"))?.1.trim().parse()?)
}
