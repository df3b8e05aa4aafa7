//! A run's store.

use std::path::Path;
use std::thread;
use std::time::Duration;

use dq_servers::{RabbitMq, Redis, install};

use super::cluster::Cluster;
use super::durable_redis::DurableRedis;
use super::fault::{Fault, OF_PROCESSES, OF_SERVERS};
use super::small_disk::SmallDisk;
use crate::run::Result;

#[derive(Debug)]
pub(crate) enum Server {
    /// On a small disk, if one can be mounted.
    Sqlite(String, Option<SmallDisk>),
    Redis(DurableRedis),
    RabbitMq(RabbitMq),
    Cluster(Cluster),
}

impl Server {
    pub(crate) const STORES: [&str; 5] =
        ["sqlite", "redis", "redisson", "redis-expiry", "rabbitmq"];

    /// The clusters, as names for `cargo xtask faults --backend`.
    pub(crate) const CLUSTERS: [&str; 3] = ["redis-cluster", "redis-sentinel", "rabbitmq-cluster"];

    pub(crate) fn install(store: &str) -> Result {
        match store {
            "sqlite" => Ok(()),
            "rabbitmq" | "rabbitmq-cluster" => install::rabbitmq(),
            _ => install::redis(),
        }
    }

    /// Starts the store's server, or sets its file's path below `dir`.
    pub(crate) fn start(store: &str, dir: &Path) -> Self {
        match store {
            "sqlite" => Self::Sqlite(format!("sqlite://{}/jobs.db", dir.display()), None),
            "rabbitmq" => Self::RabbitMq(RabbitMq::start()),
            "redis-cluster" => Self::Cluster(Cluster::redis()),
            "redis-sentinel" => Self::Cluster(Cluster::sentinel()),
            "rabbitmq-cluster" => Self::Cluster(Cluster::rabbitmq()),
            scheme => Self::Redis(DurableRedis::start(scheme)),
        }
    }

    /// Same, but stores that write files use a small disk. If none can be mounted, prints a message
    /// and uses the usual disk.
    pub(super) fn start_on_small_disk(store: &str, dir: &Path) -> Result<Self> {
        let server = match store {
            "sqlite" => {
                let disk = dir.join("disk");
                let small = SmallDisk::mount(&disk);
                // Without the disk, the directory still exists and holds the store.
                Self::Sqlite(format!("sqlite://{}/jobs.db", disk.display()), small)
            }
            "redis" | "redisson" | "redis-expiry" => {
                Self::Redis(DurableRedis::start_on_small_disk(store)?)
            }
            _ => return Ok(Self::start(store, dir)),
        };
        if !server.faults().contains(&Fault::FillDisk) {
            println!("   {store}: without full disks, since this user may not mount a file system");
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(url, _) => url.clone(),
            Self::Redis(redis) => redis.url(),
            Self::RabbitMq(rabbit) => rabbit.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// The server's name and version; `None` for SQLite, which is linked in.
    pub(super) fn version(&self) -> Option<String> {
        let of_redis = |redis: &Redis| {
            let info = redis.command(&["INFO", "server"]).text();
            let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
            format!("Redis {}", version.unwrap_or_default().trim())
        };
        let of_rabbit = |rabbit: &RabbitMq| format!("RabbitMQ {}", rabbit.ctl(&["version"]).trim());
        self.act(0, of_redis, of_rabbit)
    }

    /// `host:port` for a proxy; `None` for SQLite and clusters. Cluster nodes announce their own
    /// addresses.
    pub(super) fn address(&self) -> Option<String> {
        match self {
            Self::Sqlite(..) | Self::Cluster(_) => None,
            Self::Redis(redis) => Some(redis.server.address()),
            Self::RabbitMq(rabbit) => Some(rabbit.address()),
        }
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        let more: &[Fault] = match self {
            Self::Sqlite(_, None) => return OF_PROCESSES.to_vec(),
            Self::Sqlite(_, Some(_)) => return [&OF_PROCESSES[..], &[Fault::FillDisk]].concat(),
            // Here the server's clock decides. With SQLite and RabbitMQ, the claiming process's
            // clock decides: if it is wrong, jobs start at the wrong time, as documented.
            Self::Redis(redis) if redis.disk.is_some() => {
                &[Fault::FillMemory, Fault::FillDisk, Fault::WrongClock]
            }
            Self::Redis(_) => &[Fault::FillMemory, Fault::WrongClock],
            Self::RabbitMq(_) => &[Fault::FillMemory, Fault::FillDisk],
            Self::Cluster(cluster) => return [&OF_PROCESSES[..], cluster.faults()].concat(),
        };
        [&OF_PROCESSES[..], &OF_SERVERS, more].concat()
    }

    pub(super) fn sync(&self) {
        match self {
            Self::Sqlite(..) | Self::Redis(_) => {}
            Self::RabbitMq(rabbit) => rabbit.sync_declarations(),
            Self::Cluster(cluster) => cluster.sync(),
        }
    }

    /// Kills the server and restarts it after `away`. Here and below, `node` selects a cluster
    /// node, modulo their number.
    pub(super) fn kill(&self, node: usize, away: Duration) {
        self.act(node, Redis::kill, RabbitMq::kill);
        thread::sleep(away);
        self.act(node, Redis::restart, RabbitMq::restart);
    }

    /// Stops the server cleanly and restarts it after `away`.
    pub(super) fn stop(&self, node: usize, away: Duration) {
        self.act(node, Redis::stop, RabbitMq::stop);
        thread::sleep(away);
        self.act(node, Redis::restart, RabbitMq::restart);
    }

    pub(super) fn freeze(&self, node: usize, away: Duration) {
        self.act(node, Redis::freeze, RabbitMq::freeze);
        thread::sleep(away);
        self.act(node, Redis::thaw, RabbitMq::thaw);
    }

    pub(super) fn cut_off(&self, node: usize, lasts: Duration) {
        if let Self::Cluster(Cluster::RabbitMq(cluster)) = self {
            cluster.partition(node % cluster.nodes().len());
            thread::sleep(lasts);
            cluster.heal();
        }
    }

    pub(super) fn fail_over(&self) -> Result {
        match self {
            Self::Cluster(cluster) => cluster.fail_over(),
            Self::Sqlite(..) | Self::Redis(_) | Self::RabbitMq(_) => Ok(()),
        }
    }

    pub(super) fn fill_memory(&self, lasts: Duration) -> Result {
        match self {
            Self::Sqlite(..) | Self::Cluster(_) => {}
            Self::Redis(DurableRedis { server: redis, .. }) => {
                // By default, Redis refuses commands that need memory, and evicts nothing.
                set_redis_memory(redis, "1")?;
                thread::sleep(lasts);
                set_redis_memory(redis, "0")?;
            }
            Self::RabbitMq(rabbit) => {
                let set = "vm_memory_monitor:set_vm_memory_high_watermark";
                rabbit.eval(&format!("{set}(0.00001)"));
                thread::sleep(lasts);
                rabbit.eval(&format!("{set}({{absolute, 2000000000}})"));
            }
        }
        Ok(())
    }

    /// Leaves no disk space; RabbitMQ only believes so.
    pub(super) fn fill_disk(&self, lasts: Duration) -> Result {
        match self {
            Self::Sqlite(_, Some(disk)) => {
                disk.fill()?;
                thread::sleep(lasts);
                disk.make_room()?;
            }
            Self::Redis(redis) => redis.fill_disk(|| thread::sleep(lasts))?,
            Self::Sqlite(_, None) | Self::Cluster(_) => {}
            Self::RabbitMq(rabbit) => {
                let set = "rabbit_disk_monitor:set_disk_free_limit";
                rabbit.eval(&format!("{set}(1000000000000000)"));
                thread::sleep(lasts);
                rabbit.eval(&format!("{set}(10000000)"));
            }
        }
        Ok(())
    }

    /// Acts on the server or a cluster node; `None` for SQLite.
    fn act<T>(&self, node: usize, redis: fn(&Redis) -> T, rabbit: fn(&RabbitMq) -> T) -> Option<T> {
        Some(match self {
            Self::Sqlite(..) => return None,
            Self::Redis(durable) => redis(&durable.server),
            Self::RabbitMq(server) => rabbit(server),
            Self::Cluster(Cluster::Redis(cluster)) => redis(cluster.node(node)),
            Self::Cluster(Cluster::Sentinel(watched)) => redis(watched.node(node)),
            Self::Cluster(Cluster::RabbitMq(cluster)) => {
                rabbit(&cluster.nodes()[node % cluster.nodes().len()])
            }
        })
    }
}

fn set_redis_memory(redis: &Redis, bytes: &str) -> Result {
    let reply = redis.command(&["CONFIG", "SET", "maxmemory", bytes]);
    if reply.is_ok() { Ok(()) } else { Err(format!("CONFIG SET maxmemory {bytes}: {reply:?}")) }
}
