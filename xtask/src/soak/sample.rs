//! Measurements of processes and stores.

use std::fs;
use std::path::{Path, PathBuf};

use dq_servers::{RabbitMq, Redis};

use super::flat::Series;
use crate::faults::Server;
use crate::run::Result;

pub(super) const JOBS: &str = "jobs in the store";

pub(super) const PROCESS_MEMORY: &str = "memory of a process";

const MIB: f64 = 1_048_576.0;

/// A run's series, in the order used by [`sample`].
pub(super) fn series(server: &Server) -> Vec<Series> {
    let mut all = vec![
        Series::new(PROCESS_MEMORY, "MiB", 8.0),
        Series::new("open files of a process", "", 8.0),
        Series::new("threads of a process", "", 4.0),
        // Waiting or running jobs; a busy machine has more late ones.
        Series::new(JOBS, "", 300.0),
    ];
    let store: &[(&'static str, &'static str, f64)] = match server {
        Server::Sqlite(..) => &[("files of the store", "MiB", 4.0)],
        Server::Redis(..) => &[
            ("memory of the server", "MiB", 16.0),
            ("connections", "", 8.0),
            ("keys", "", 20.0),
            ("data", "MiB", 4.0),
        ],
        Server::RabbitMq(_) => &[
            ("memory of the server", "MiB", 64.0),
            ("connections", "", 8.0),
            ("channels", "", 16.0),
            ("queues", "", 4.0),
            // Two log segments.
            ("files of the store", "MiB", 16.0),
        ],
        // No soak runs on a cluster.
        _ => &[],
    };
    all.extend(store.iter().map(|(name, unit, slack)| Series::new(name, unit, *slack)));
    all
}

/// One value per series: the maximum over processes.
pub(super) fn sample(server: &Server, processes: &[(u32, PathBuf)]) -> Result<Vec<f64>> {
    let highest = |of: fn(u32) -> Result<f64>| -> Result<f64> {
        let values: Result<Vec<f64>> = processes.iter().map(|(id, _)| of(*id)).collect();
        Ok(values?.into_iter().fold(0.0, f64::max))
    };
    let jobs = processes.iter().filter_map(|(_, log)| jobs(log)).fold(0.0, f64::max);
    let mut values = vec![highest(resident)?, highest(open_files)?, highest(threads)?, jobs];
    values.extend(match server {
        Server::Sqlite(url, _) => sqlite(url)?,
        Server::Redis(redis) => of_redis(&redis.server)?,
        Server::RabbitMq(rabbit) => of_rabbitmq(rabbit)?,
        _ => Vec::new(),
    });
    Ok(values)
}

fn jobs(log: &Path) -> Option<f64> {
    fs::read_to_string(log).ok()?.trim().parse().ok()
}

fn resident(id: u32) -> Result<f64> {
    Ok(status(id, "VmRSS:")? / 1_024.0)
}

fn threads(id: u32) -> Result<f64> {
    status(id, "Threads:")
}

fn open_files(id: u32) -> Result<f64> {
    let path = format!("/proc/{id}/fd");
    let files = fs::read_dir(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(files.count() as f64)
}

fn status(id: u32, field: &str) -> Result<f64> {
    let path = format!("/proc/{id}/status");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    let number = value.and_then(|value| value.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("{path} has no number {field} (has the process ended?)"))
}

/// The size of the database and SQLite's files beside it.
fn sqlite(url: &str) -> Result<Vec<f64>> {
    let file = Path::new(url.strip_prefix("sqlite://").unwrap_or(url));
    let dir = file.parent().unwrap_or(file);
    Ok(vec![size(dir)? / MIB])
}

fn size(dir: &Path) -> Result<f64> {
    let mut bytes = 0.0;
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for entry in entries.flatten() {
        match entry.metadata() {
            Ok(data) if data.is_dir() => bytes += size(&entry.path()).unwrap_or_default(),
            Ok(data) => bytes += data.len() as f64,
            // The file has been removed meanwhile.
            Err(_) => {}
        }
    }
    Ok(bytes)
}

fn of_redis(redis: &Redis) -> Result<Vec<f64>> {
    let info = redis.command(&["INFO"]).text();
    let number = |field: &str| -> Result<f64> {
        let value = info.lines().find_map(|line| line.strip_prefix(field));
        value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("Redis has no {field}"))
    };
    let id = redis.process_id().ok_or("Redis has ended")?;
    let keys = redis.command(&["DBSIZE"]).int() as f64;
    let used = number("used_memory:")? / MIB;
    Ok(vec![resident(id)?, number("connected_clients:")?, keys, used])
}

fn of_rabbitmq(rabbit: &RabbitMq) -> Result<Vec<f64>> {
    let counts = rabbit.try_eval(
        "{length(rabbit_networking:connections()), length(rabbit_channel:list()), \
         length(rabbit_amqqueue:list())}",
    )?;
    let numbers = counts.trim_matches(['{', '}']).split(',').map(|number| number.trim().parse());
    let counts: Vec<f64> = numbers
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| format!("RabbitMQ answers {counts:?}"))?;
    let id = rabbit.process_id().ok_or("RabbitMQ has ended")?;
    let mut values = vec![resident(id)?];
    values.extend(counts);
    values.push(size(rabbit.dir())? / MIB);
    Ok(values)
}
