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
use dq_servers::{RabbitMq, Redis, install};

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
        })
    }

    /// The URL of one more empty store on the same server.
    pub(crate) fn another(&self) -> String {
        match &self.kind {
            Kind::Memory => "memory:".to_owned(),
            Kind::Files(dir) => format!("sqlite://{}/another.db", dir.display()),
            Kind::Redis(redis) => format!("{}?prefix=another", redis.url()),
            Kind::RabbitMq(rabbit, vhosts) => {
                let number = vhosts.borrow().end;
                vhosts.borrow_mut().end += 1;
                rabbit.vhost(&format!("bench-{number}"))
            }
        }
    }

    /// `HOST:PORT` of the Redis server, or the file's path.
    pub(crate) fn address(&self) -> String {
        match &self.kind {
            Kind::Memory => String::new(),
            Kind::Files(dir) => dir.join("jobs.db").display().to_string(),
            Kind::Redis(redis) => redis.address(),
            Kind::RabbitMq(rabbit, ..) => rabbit.address(),
        }
    }

    /// Bytes in the files, in Redis's memory, or in this process for `memory`.
    pub(crate) fn bytes(&self) -> Result<f64> {
        match &self.kind {
            Kind::Memory => Ok(resident("self") as f64),
            Kind::Files(dir) => size(dir),
            Kind::Redis(_) => self.info("used_memory"),
            Kind::RabbitMq(rabbit, ..) => size(rabbit.dir()),
        }
    }

    /// The server's CPU time so far; `None` without a server.
    pub(crate) fn cpu(&self) -> Result<Option<Duration>> {
        let seconds = match &self.kind {
            Kind::Memory | Kind::Files(_) => return Ok(None),
            Kind::Redis(_) => self.info("used_cpu_user")? + self.info("used_cpu_sys")?,
            Kind::RabbitMq(rabbit, ..) => {
                let process = rabbit.process_id().ok_or("the broker has ended")?;
                let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
                // The program name, in parentheses, may contain spaces. User and kernel time are in
                // hundredths of a second; the first field here is the state.
                let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
                let spent = fields.split_whitespace().skip(11).take(2);
                spent.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
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
            Kind::Memory | Kind::Files(_) => None,
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
