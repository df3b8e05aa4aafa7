//! Measurements of processes and stores.

use std::fs;
use std::path::{Path, PathBuf};

use dq_servers::{RabbitMq, Redis};

use crate::faults::Server;
use crate::run::Result;

pub(super) const JOBS: &str = "jobs in the store";

pub(super) const PROCESS_MEMORY: &str = "memory of a process";

const MIB: f64 = 1_048_576.0;

/// A series' name, unit and slack, and its value now.
pub(super) type Sample = (&'static str, &'static str, f64, f64);

/// The series' values, always in the same order. Of the processes' values, the highest.
pub(super) fn sample(server: &Server, processes: &[(u32, PathBuf)]) -> Result<Vec<Sample>> {
    let highest = |of: fn(u32) -> Result<f64>| -> Result<f64> {
        let values: Result<Vec<f64>> = processes.iter().map(|(id, _)| of(*id)).collect();
        Ok(values?.into_iter().fold(0.0, f64::max))
    };
    let jobs = processes.iter().filter_map(|(_, log)| jobs(log)).fold(0.0, f64::max);
    let mut all = vec![
        (PROCESS_MEMORY, "MiB", 8.0, highest(resident)?),
        ("open files of a process", "", 8.0, highest(open_files)?),
        ("threads of a process", "", 4.0, highest(threads)?),
        // Waiting or running jobs; a busy machine has more late ones.
        (JOBS, "", 300.0, jobs),
    ];
    match server {
        Server::Sqlite(url, _) => all.push(("files of the store", "MiB", 4.0, sqlite(url)?)),
        Server::Redis(redis) => all.extend(of_redis(&redis.server)?),
        Server::RabbitMq(rabbit) => all.extend(of_rabbitmq(rabbit)?),
        // No soak runs on a cluster.
        _ => {}
    }
    Ok(all)
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
fn sqlite(url: &str) -> Result<f64> {
    let file = Path::new(url.strip_prefix("sqlite://").unwrap_or(url));
    let dir = file.parent().unwrap_or(file);
    Ok(size(dir)? / MIB)
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

fn of_redis(redis: &Redis) -> Result<[Sample; 4]> {
    let info = redis.command(&["INFO"]).text();
    let number = |field: &str| -> Result<f64> {
        let value = info.lines().find_map(|line| line.strip_prefix(field));
        value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("Redis has no {field}"))
    };
    let id = redis.process_id().ok_or("Redis has ended")?;
    Ok([
        ("memory of the server", "MiB", 16.0, resident(id)?),
        ("connections", "", 8.0, number("connected_clients:")?),
        ("keys", "", 20.0, redis.command(&["DBSIZE"]).int() as f64),
        ("data", "MiB", 4.0, number("used_memory:")? / MIB),
    ])
}

fn of_rabbitmq(rabbit: &RabbitMq) -> Result<[Sample; 5]> {
    let count = |list: &str| -> Result<f64> {
        let count = rabbit.try_eval(&format!("length({list}())"))?;
        count.trim().parse().map_err(|_| format!("RabbitMQ answers {count:?}"))
    };
    let id = rabbit.process_id().ok_or("RabbitMQ has ended")?;
    Ok([
        ("memory of the server", "MiB", 64.0, resident(id)?),
        ("connections", "", 8.0, count("rabbit_networking:connections")?),
        ("channels", "", 16.0, count("rabbit_channel:list")?),
        ("queues", "", 4.0, count("rabbit_amqqueue:list")?),
        // Two log segments.
        ("files of the store", "MiB", 16.0, size(rabbit.dir())? / MIB),
    ])
}
