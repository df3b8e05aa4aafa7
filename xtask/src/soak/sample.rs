//! Measurements of processes and stores.

use std::fs;
use std::path::{Path, PathBuf};

use dq_servers::{Postgres, RabbitMq, Redis};

use super::flat::Series;
use crate::faults::Server;
use crate::run::Result;

pub(super) const JOBS: &str = "jobs in the store";

pub(super) const PROCESS_MEMORY: &str = "memory of a process";

const MIB: f64 = 1_048_576.0;

fn mebibytes(name: &'static str, slack: f64, value: f64) -> Series {
    Series { name, unit: "MiB", slack, samples: vec![value] }
}

fn count(name: &'static str, slack: f64, value: f64) -> Series {
    Series { name, unit: "", slack, samples: vec![value] }
}

/// Measures the store, and the processes with these ids, each of which writes its number of jobs to
/// a file. Returns a value for each series; for the processes, the highest value counts.
pub(super) fn sample(server: &Server, processes: &[(u32, PathBuf)]) -> Result<Vec<Series>> {
    let highest = |measure: fn(u32) -> Result<f64>| -> Result<f64> {
        let values: Result<Vec<f64>> = processes.iter().map(|(id, _)| measure(*id)).collect();
        Ok(values?.into_iter().fold(0.0, f64::max))
    };
    let jobs = processes.iter().filter_map(|(_, file)| jobs(file)).fold(0.0, f64::max);
    let mut samples = vec![
        mebibytes(PROCESS_MEMORY, 8.0, highest(resident)?),
        count("open files of a process", 8.0, highest(open_files)?),
        count("threads of a process", 4.0, highest(threads)?),
        // Waiting or running jobs; a busy machine has more late ones.
        count(JOBS, 300.0, jobs),
    ];
    match server {
        Server::Sqlite(url, _) => samples.push(mebibytes("files of the store", 4.0, sqlite(url)?)),
        Server::Redis(redis) => samples.extend(of_redis(&redis.server)?),
        Server::Postgres(postgres) => samples.extend(of_postgres(&postgres.server)?),
        Server::RabbitMq(rabbit) => samples.extend(of_rabbitmq(rabbit)?),
        _ => {}
    }
    Ok(samples)
}

fn jobs(file: &Path) -> Option<f64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
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

/// MiB of the database and SQLite's files beside it.
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

fn of_redis(redis: &Redis) -> Result<[Series; 4]> {
    let info = redis.command(&["INFO"]).text();
    let number = |field: &str| -> Result<f64> {
        let value = info.lines().find_map(|line| line.strip_prefix(field));
        value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("Redis has no {field}"))
    };
    let id = redis.process_id().ok_or("Redis has ended")?;
    Ok([
        mebibytes("memory of the server", 16.0, resident(id)?),
        count("connections", 8.0, number("connected_clients:")?),
        count("keys", 20.0, redis.command(&["DBSIZE"]).int() as f64),
        mebibytes("data", 4.0, number("used_memory:")? / MIB),
    ])
}

fn of_postgres(postgres: &Postgres) -> Result<[Series; 4]> {
    let number = |sql: &str| -> Result<f64> {
        let answer = postgres.try_execute(&format!("SELECT {sql}"))?;
        answer.parse().map_err(|_| format!("PostgreSQL answers {answer:?} to {sql}"))
    };
    let id = postgres.process_id().ok_or("PostgreSQL has ended")?;
    let path = format!("/proc/{id}/task/{id}/children");
    let sessions = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // Without the memory that they share. A session may have ended meanwhile.
    let memory = |id: &str| status(id.parse().ok()?, "RssAnon:").ok();
    let memory: f64 = sessions.split_whitespace().filter_map(memory).sum();
    let connections = "count(*) FROM pg_stat_activity WHERE application_name = 'dq'";
    let notes = "(SELECT count(*) FROM dq.tally) + (SELECT count(*) FROM dq.rewind)";
    Ok([
        mebibytes("memory of the server", 16.0, memory / 1_024.0),
        count("connections", 8.0, number(connections)?),
        // Totals that are not added up yet, and jobs that came late.
        count("rows beside the jobs", 300.0, number(notes)?),
        mebibytes("data", 4.0, number("pg_database_size(current_database())")? / MIB),
    ])
}

fn of_rabbitmq(rabbit: &RabbitMq) -> Result<[Series; 5]> {
    let length = |list: &str| -> Result<f64> {
        let length = rabbit.try_eval(&format!("length({list}())"))?;
        length.trim().parse().map_err(|_| format!("RabbitMQ answers {length:?}"))
    };
    let id = rabbit.process_id().ok_or("RabbitMQ has ended")?;
    Ok([
        mebibytes("memory of the server", 64.0, resident(id)?),
        count("connections", 8.0, length("rabbit_networking:connections")?),
        count("channels", 16.0, length("rabbit_channel:list")?),
        count("queues", 4.0, length("rabbit_amqqueue:list")?),
        // Two log segments.
        mebibytes("files of the store", 16.0, size(rabbit.dir())? / MIB),
    ])
}
