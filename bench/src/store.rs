//! The stores to measure, each with a private server if it has one.

use std::cell::RefCell;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq::backend::{Backend, backend_from_url};
use dq::config::Environment;
use dq::{Entropy, SystemClock};
use dq_servers::{Postgres, RabbitMq, Redis, install};

use crate::measure::{Result, process_cpu, resident};

pub(crate) struct Store {
    /// The backend's name, which is also its URL scheme.
    pub(crate) name: &'static str,
    kind: Kind,
}

enum Kind {
    Memory,
    Files(PathBuf),
    Redis(Redis),
    /// Each store is a virtual host, named by its number. The numbers in use.
    RabbitMq(RabbitMq, RefCell<Range<usize>>),
    /// Each store is a database. The URL of the one in use.
    Postgres(Postgres, RefCell<String>),
}

/// What a call took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    /// Zero without a server.
    pub(crate) server_cpu: Duration,
    pub(crate) client_cpu: Duration,
}

impl Store {
    pub(crate) fn start(name: &'static str, dir: &Path) -> Result<Self> {
        let kind = match name {
            "memory" => Kind::Memory,
            "sqlite" => {
                let dir = dir.join(name);
                fs::create_dir_all(&dir)?;
                Kind::Files(dir.canonicalize()?)
            }
            "rabbitmq" => {
                install::rabbitmq()?;
                // Pending messages exceed a test server's memory limit.
                let options = RabbitMq::options().set("vm_memory_high_watermark.absolute", "4GB");
                Kind::RabbitMq(options.start(), RefCell::default())
            }
            "postgres" => {
                install::postgres()?;
                let options = POSTGRES_SETTINGS
                    .iter()
                    .fold(Postgres::options(), |options, (name, value)| options.set(name, value));
                Kind::Postgres(options.start(), RefCell::default())
            }
            _ => {
                install::redis()?;
                Kind::Redis(Redis::options().set("slowlog-log-slower-than", "-1").start())
            }
        };
        Ok(Self { name, kind })
    }

    /// Removes all jobs, which no process may be using. Returns the URL of the empty store.
    pub(crate) fn fresh(&self) -> Result<String> {
        Ok(match &self.kind {
            Kind::Memory => "memory:".to_owned(),
            Kind::Files(dir) => {
                for file in fs::read_dir(dir)? {
                    fs::remove_file(file?.path())?;
                }
                format!("sqlite://{}", self.address())
            }
            Kind::Redis(redis) => {
                // Waits until the memory is free.
                if !redis.command(&["FLUSHALL", "SYNC"]).is_ok() {
                    return Err("the server cannot be emptied".into());
                }
                let options = if self.name == "redis-expiry" { "?configure=true" } else { "" };
                format!("{}://{}/0{options}", self.name, redis.address())
            }
            Kind::RabbitMq(rabbit, vhosts) => {
                for number in &mut *vhosts.borrow_mut() {
                    rabbit
                        .eval(&format!("rabbit_vhost:delete(<<\"bench-{number}\">>, <<\"dq\">>)"));
                }
                self.another()
            }
            Kind::Postgres(postgres, database) => {
                let url = postgres.create_database();
                let old = database.replace(url.clone());
                if let Some((_, name)) = old.rsplit_once('/') {
                    postgres.try_execute(&format!("DROP DATABASE {name} WITH (FORCE)"))?;
                }
                url
            }
        })
    }

    /// The URL of one more empty store on the same server.
    pub(crate) fn another(&self) -> String {
        match &self.kind {
            Kind::Memory => "memory:".to_owned(),
            Kind::Files(dir) => format!("sqlite://{}/another.db", dir.display()),
            Kind::Redis(redis) => {
                format!("{}://{}/0?prefix=another", self.name, redis.address())
            }
            Kind::RabbitMq(rabbit, vhosts) => {
                let number = vhosts.borrow().end;
                vhosts.borrow_mut().end += 1;
                rabbit.vhost(&format!("bench-{number}"))
            }
            Kind::Postgres(_, database) => format!("{}?schema=another", database.borrow()),
        }
    }

    /// `HOST:PORT` of the Redis server, the database's URL, or the file's path.
    pub(crate) fn address(&self) -> String {
        match &self.kind {
            Kind::Memory => String::new(),
            Kind::Files(dir) => dir.join("jobs.db").display().to_string(),
            Kind::Redis(redis) => redis.address(),
            Kind::RabbitMq(rabbit, ..) => rabbit.address(),
            Kind::Postgres(_, database) => database.borrow().clone(),
        }
    }

    /// Bytes in the files, in the database, in Redis's memory, or in this process for `memory`.
    pub(crate) fn bytes(&self) -> Result<f64> {
        match &self.kind {
            Kind::Memory => Ok(resident("self") as f64),
            Kind::Files(dir) => size(dir),
            Kind::Redis(_) => self.info("used_memory"),
            Kind::RabbitMq(rabbit, ..) => size(rabbit.dir()),
            Kind::Postgres(..) => self.sql("SELECT pg_database_size(current_database())"),
        }
    }

    /// The server's CPU time so far; `None` without a server.
    pub(crate) fn cpu(&self) -> Result<Option<Duration>> {
        let seconds = match &self.kind {
            Kind::Memory | Kind::Files(_) => return Ok(None),
            Kind::Redis(_) => self.info("used_cpu_user")? + self.info("used_cpu_sys")?,
            Kind::RabbitMq(rabbit, ..) => {
                let process = rabbit.process_id().ok_or("the broker has ended")?;
                stat(&process.to_string())?[PROCESS_CPU].iter().sum::<f64>() / 100.0
            }
            Kind::Postgres(postgres, ..) => {
                family_ticks(postgres.process_id().ok_or("the server has ended")?)? / 100.0
            }
        };
        Ok(Some(Duration::from_secs_f64(seconds)))
    }

    /// Measures a call.
    pub(crate) fn cost<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
        let server_before = self.cpu()?.unwrap_or_default();
        let (client_before, began) = (process_cpu(), Instant::now());
        let result = run()?;
        let wall = began.elapsed();
        let client_cpu = process_cpu().saturating_sub(client_before);
        let server_cpu = self.cpu()?.unwrap_or_default().saturating_sub(server_before);
        Ok((result, Cost { wall, server_cpu, client_cpu }))
    }

    pub(crate) fn server_resident(&self) -> u64 {
        let process = match &self.kind {
            // PostgreSQL's processes share most of their memory.
            Kind::Memory | Kind::Files(_) | Kind::Postgres(..) => None,
            Kind::Redis(redis) => redis.process_id(),
            Kind::RabbitMq(rabbit, ..) => rabbit.process_id(),
        };
        process.map_or(0, |process| resident(&process.to_string()))
    }

    pub(crate) fn version(&self) -> Option<String> {
        match &self.kind {
            Kind::Memory | Kind::Files(_) => None,
            Kind::Redis(redis) => {
                let info = redis.command(&["INFO"]).text();
                let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
                Some(format!("Redis {}, without persistence", version.unwrap_or_default().trim()))
            }
            Kind::RabbitMq(rabbit, ..) => {
                let [version, erlang] = ["rabbit_misc:version()", "rabbit_misc:otp_release()"]
                    .map(|call| rabbit.eval(call).trim_matches('"').to_owned());
                Some(format!("RabbitMQ {version}, Erlang {erlang}, one node, two schedulers"))
            }
            Kind::Postgres(postgres, ..) => {
                let settings = POSTGRES_SETTINGS.map(|(name, value)| format!("{name} = {value}"));
                let version = postgres.execute("SHOW server_version");
                Some(format!("PostgreSQL {version}, durable, {}", settings.join(", ")))
            }
        }
    }

    pub(crate) fn info(&self, field: &str) -> Result<f64> {
        let info = self.redis()?.command(&["INFO"]).text();
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(name, _)| *name == field);
        Ok(found.ok_or_else(|| format!("INFO has no {field}"))?.1.trim().parse()?)
    }

    pub(crate) fn redis(&self) -> Result<&Redis> {
        match &self.kind {
            Kind::Redis(redis) => Ok(redis),
            _ => Err(format!("{} has no Redis server", self.name).into()),
        }
    }

    pub(crate) fn rabbit(&self) -> Result<&RabbitMq> {
        match &self.kind {
            Kind::RabbitMq(rabbit, ..) => Ok(rabbit),
            _ => Err(format!("{} has no RabbitMQ server", self.name).into()),
        }
    }

    /// A number from the PostgreSQL database in use.
    pub(crate) fn sql(&self, query: &str) -> Result<f64> {
        match &self.kind {
            Kind::Postgres(postgres, database) => {
                Ok(postgres.psql(&database.borrow(), query)?.parse()?)
            }
            _ => Err(format!("{} has no PostgreSQL server", self.name).into()),
        }
    }

    /// Bytes of write-ahead log so far; `None` without PostgreSQL.
    pub(crate) fn wal(&self) -> Option<f64> {
        self.sql("SELECT pg_current_wal_insert_lsn() - '0/0'").ok()
    }
}

/// A server with some memory, and without a checkpoint in the middle of a measurement: after one,
/// the log has a copy of each page that changes.
const POSTGRES_SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
    ("max_connections", "200"),
];

const PARENT: usize = 1;
const PROCESS_CPU: Range<usize> = 11..13;
const ENDED_CHILDREN_CPU: Range<usize> = 13..15;

/// Reads the fields of `/proc/PROCESS/stat` after the program's name. A field that is no number,
/// like the state, is NaN. CPU times are in hundredths of a second.
fn stat(process: &str) -> Result<Vec<f64>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, in brackets, may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    Ok(fields.take(15).map(|field| field.parse().unwrap_or(f64::NAN)).collect())
}

/// The CPU time of a process and its children.
fn family_ticks(process: u32) -> Result<f64> {
    loop {
        let own = stat(&process.to_string())?;
        let mut ticks: f64 = own[PROCESS_CPU].iter().chain(&own[ENDED_CHILDREN_CPU]).sum();
        for other in fs::read_dir("/proc")?.flatten() {
            // Not a process, or one that has ended meanwhile.
            let Ok(fields) = stat(&other.file_name().to_string_lossy()) else { continue };
            if fields[PARENT] == f64::from(process) {
                ticks += fields[PROCESS_CPU].iter().sum::<f64>();
            }
        }
        // If a child has ended meanwhile, its time may be missing or counted twice.
        if stat(&process.to_string())?[ENDED_CHILDREN_CPU] == own[ENDED_CHILDREN_CPU] {
            return Ok(ticks);
        }
    }
}

pub(crate) fn environment() -> Environment {
    Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()))
}

pub(crate) async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(backend_from_url(url)?.connect(&environment()).await?)
}

fn size(dir: &Path) -> Result<f64> {
    let mut bytes = 0.0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // A file may disappear meanwhile.
        match entry.metadata() {
            Ok(data) if data.is_dir() => bytes += size(&entry.path()).unwrap_or_default(),
            Ok(data) => bytes += data.len() as f64,
            Err(_) => {}
        }
    }
    Ok(bytes)
}
