//! The measured store and its size.

use std::fs;
use std::path::{Path, PathBuf};

use dq_servers::{RabbitMq, Redis, install};

use crate::measure::resident;
use crate::plan::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Sqlite,
    Redis,
    RabbitMq,
}

impl Kind {
    pub(super) fn parse(name: &str) -> Result<Self> {
        match name {
            "sqlite" => Ok(Self::Sqlite),
            "redis" => Ok(Self::Redis),
            "rabbitmq" => Ok(Self::RabbitMq),
            _ => Err(format!("scale: {name:?} is not one of sqlite, redis, rabbitmq").into()),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::RabbitMq => "rabbitmq",
        }
    }
}

#[derive(Debug)]
pub(super) enum Store {
    Sqlite(PathBuf),
    Redis(Redis),
    RabbitMq(RabbitMq),
}

impl Store {
    pub(super) fn start(kind: Kind, dir: &Path) -> Result<Self> {
        Ok(match kind {
            Kind::Sqlite => Self::Sqlite(dir.to_owned()),
            Kind::Redis => {
                install::redis()?;
                Self::Redis(Redis::start())
            }
            Kind::RabbitMq => {
                install::rabbitmq()?;
                Self::RabbitMq(RabbitMq::start())
            }
        })
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Sqlite(dir) => format!("sqlite://{}/jobs.db", dir.display()),
            Self::Redis(redis) => redis.url(),
            // The measured process has a replica from the start. A fifth of the log is for jobs,
            // some 300 bytes each.
            Self::RabbitMq(rabbit) => format!("{}?log_size_mib=8192", rabbit.url()),
        }
    }

    /// Bytes in the files, or in Redis's memory.
    pub(super) fn bytes(&self) -> Result<f64> {
        match self {
            Self::Sqlite(dir) => files(dir),
            Self::Redis(redis) => number(&info(redis), "used_memory"),
            Self::RabbitMq(rabbit) => files(rabbit.dir()),
        }
    }

    /// CPU seconds and commands so far; `None` without a server or without such counters.
    pub(super) fn work(&self) -> Result<Option<Work>> {
        match self {
            Self::Sqlite(_) | Self::RabbitMq(_) => Ok(None),
            Self::Redis(redis) => {
                // One INFO command, which counts itself.
                let info = info(redis);
                Ok(Some(Work {
                    cpu: number(&info, "used_cpu_user")? + number(&info, "used_cpu_sys")?,
                    commands: number(&info, "total_commands_processed")?,
                }))
            }
        }
    }

    pub(super) fn resident(&self) -> u64 {
        let id = match self {
            Self::Sqlite(_) => None,
            Self::Redis(redis) => redis.process_id(),
            Self::RabbitMq(rabbit) => rabbit.process_id(),
        };
        id.map_or(0, |id| resident(&id.to_string()))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) cpu: f64,
    /// Includes commands in scripts.
    pub(super) commands: f64,
}

fn info(redis: &Redis) -> String {
    redis.command(&["INFO"]).text()
}

fn number(info: &str, field: &str) -> Result<f64> {
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    let value = fields.find(|(name, _)| *name == field).map(|(_, value)| value);
    Ok(value.ok_or_else(|| format!("Redis has no {field}"))?.parse()?)
}

fn files(dir: &Path) -> Result<f64> {
    let mut bytes = 0.0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // A file may disappear meanwhile.
        match entry.metadata() {
            Ok(data) if data.is_dir() => bytes += files(&entry.path()).unwrap_or_default(),
            Ok(data) => bytes += data.len() as f64,
            Err(_) => {}
        }
    }
    Ok(bytes)
}
