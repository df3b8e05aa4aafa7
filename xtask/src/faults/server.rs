//! The store of a storm, soak or upgrade, with its server.

use std::path::Path;
use std::thread;
use std::time::Duration;

use dq_servers::{PgBouncer, Postgres, RabbitCluster, RabbitMq, Redis, install};

use super::disk_postgres::DiskPostgres;
use super::durable_redis::DurableRedis;
use super::fault::{Fault, OF_PROCESSES, OF_SERVERS};
use super::postgres_pair::PostgresPair;
use super::redis_cluster::Replicated;
use super::sentinel::Watched;
use super::small_disk::SmallDisk;
use crate::run::Result;

#[derive(Debug, Clone, Copy)]
enum Control {
    Kill,
    Stop,
    Restart,
    Freeze,
    Thaw,
}

/// Controls a server of any type.
macro_rules! control {
    ($server:expr, $control:expr) => {
        match $control {
            Control::Kill => $server.kill(),
            Control::Stop => $server.stop(),
            Control::Restart => $server.restart(),
            Control::Freeze => $server.freeze(),
            Control::Thaw => $server.thaw(),
        }
    };
}

/// PostgreSQL with a pooler, in transaction mode, for some of the processes.
#[derive(Debug)]
pub(crate) struct Pooled {
    pooler: PgBouncer,
    server: Postgres,
}

#[derive(Debug)]
pub(crate) enum Server {
    /// On a small disk, if one can be mounted.
    Sqlite(String, Option<SmallDisk>),
    /// Also the stores `redisson` and `redis-expiry`.
    Redis(DurableRedis),
    RabbitMq(RabbitMq),
    Postgres(DiskPostgres),
    Pooled(Box<Pooled>),
    PostgresPair(Box<PostgresPair>),
    RedisCluster(Replicated),
    Sentinel(Box<Watched>),
    RabbitCluster(RabbitCluster),
}

impl Server {
    pub(crate) const STORES: [&str; 6] =
        ["sqlite", "postgres", "redis", "redisson", "redis-expiry", "rabbitmq"];

    pub(crate) const CLUSTERS: [&str; 5] = [
        "postgres-pgbouncer",
        "postgres-failover",
        "redis-cluster",
        "redis-sentinel",
        "rabbitmq-cluster",
    ];

    pub(crate) fn install(store: &str) -> Result {
        match store {
            "sqlite" => Ok(()),
            "postgres" | "postgres-pgbouncer" | "postgres-failover" => install::postgres(),
            "rabbitmq" | "rabbitmq-cluster" => install::rabbitmq(),
            _ => install::redis(),
        }
    }

    pub(crate) fn start(store: &str, dir: &Path) -> Self {
        match store {
            "sqlite" => Self::Sqlite(format!("sqlite://{}/jobs.db", dir.display()), None),
            "postgres" => Self::Postgres(DiskPostgres::start()),
            "postgres-pgbouncer" => {
                let server = Postgres::start();
                Self::Pooled(Box::new(Pooled { pooler: PgBouncer::start(&server), server }))
            }
            "postgres-failover" => Self::PostgresPair(Box::new(PostgresPair::start())),
            "rabbitmq" => Self::RabbitMq(RabbitMq::start()),
            "redis-cluster" => Self::RedisCluster(Replicated::start()),
            "redis-sentinel" => Self::Sentinel(Box::new(Watched::start())),
            "rabbitmq-cluster" => Self::RabbitCluster(RabbitMq::options().start_cluster(3)),
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
            "postgres" => Self::Postgres(DiskPostgres::start_on_small_disk()?),
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
            Self::Postgres(postgres) => postgres.server.url(),
            Self::Pooled(pooled) => pooled.server.url(),
            Self::PostgresPair(pair) => pair.url(),
            Self::RedisCluster(replicated) => replicated.url(),
            Self::Sentinel(watched) => watched.url(),
            Self::RabbitCluster(cluster) => {
                let first = &cluster.nodes()[0];
                let nodes: Vec<String> = cluster.nodes().iter().map(RabbitMq::address).collect();
                first.url().replace(&first.address(), &nodes.join(","))
            }
        }
    }

    /// For the processes, by turns.
    pub(super) fn urls(&self) -> Vec<String> {
        match self {
            Self::Pooled(pooled) => vec![pooled.pooler.url(), pooled.server.url()],
            _ => vec![self.url()],
        }
    }

    /// The server's name and version; `None` for SQLite, which is linked in.
    pub(super) fn version(&self) -> Option<String> {
        let of_redis = |redis: &Redis| {
            let info = redis.command(&["INFO", "server"]).text();
            let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
            format!("Redis {}", version.unwrap_or_default().trim())
        };
        let of_postgres = |server: &Postgres| {
            format!("PostgreSQL {}", server.execute("SHOW server_version").trim())
        };
        let of_rabbit = |rabbit: &RabbitMq| format!("RabbitMQ {}", rabbit.ctl(&["version"]).trim());
        Some(match self {
            Self::Sqlite(..) => return None,
            Self::Redis(durable) => of_redis(&durable.server),
            Self::RedisCluster(cluster) => of_redis(cluster.node(0)),
            Self::Sentinel(watched) => of_redis(watched.node(0)),
            Self::RabbitMq(server) => of_rabbit(server),
            Self::RabbitCluster(cluster) => of_rabbit(&cluster.nodes()[0]),
            Self::Postgres(postgres) => of_postgres(&postgres.server),
            Self::Pooled(pooled) => of_postgres(&pooled.server),
            Self::PostgresPair(pair) => of_postgres(pair.node(0)),
        })
    }

    /// `host:port` of the server or its pooler, for a proxy; `None` for SQLite and clusters.
    /// Cluster nodes announce their own addresses.
    pub(super) fn address(&self) -> Option<String> {
        match self {
            Self::Redis(redis) => Some(redis.server.address()),
            Self::RabbitMq(rabbit) => Some(rabbit.address()),
            Self::Postgres(postgres) => Some(postgres.server.address()),
            Self::Pooled(pooled) => Some(pooled.pooler.address()),
            _ => None,
        }
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        use Fault::{
            CutOff, FailOver, FillDisk, FillMemory, FreezeServer, KillPooler, KillServer,
            WrongClock,
        };
        // `WrongClock` is for stores whose server's clock decides. With SQLite and RabbitMQ, the
        // claiming process's clock decides: if it is wrong, jobs start at the wrong time, as
        // documented.
        let (of_servers, more): (&[Fault], &[Fault]) = match self {
            Self::Sqlite(_, None) => (&[], &[]),
            Self::Sqlite(_, Some(_)) => (&[], &[FillDisk]),
            Self::Redis(redis) if redis.disk.is_some() => {
                (&OF_SERVERS, &[FillMemory, FillDisk, WrongClock])
            }
            Self::Redis(_) => (&OF_SERVERS, &[FillMemory, WrongClock]),
            Self::RabbitMq(_) => (&OF_SERVERS, &[FillMemory, FillDisk]),
            Self::Postgres(postgres) if postgres.disk.is_some() => {
                (&OF_SERVERS, &[FillDisk, WrongClock])
            }
            Self::Postgres(_) => (&OF_SERVERS, &[WrongClock]),
            Self::Pooled(_) => (&OF_SERVERS, &[KillPooler, WrongClock]),
            // Redis replicates asynchronously. If a primary dies, a failover may lose writes it has
            // just acknowledged, as documented. A requested failover loses nothing.
            Self::RedisCluster(_) => (&[], &[FailOver, FreezeServer, WrongClock]),
            // Both write to disk before they reply, and no failover happens unasked.
            Self::PostgresPair(_) | Self::Sentinel(_) => {
                (&[], &[FailOver, KillServer, FreezeServer, WrongClock])
            }
            Self::RabbitCluster(_) => (&[], &[KillServer, FreezeServer, CutOff]),
        };
        [&OF_PROCESSES[..], of_servers, more].concat()
    }

    /// Waits until all declarations of queues are on disk.
    pub(super) fn sync(&self) {
        match self {
            Self::RabbitMq(rabbit) => rabbit.sync_declarations(),
            Self::RabbitCluster(cluster) => {
                cluster.nodes().iter().for_each(RabbitMq::sync_declarations);
            }
            _ => {}
        }
    }

    /// Inflicts a fault for a while, unless the store does not know it. `node` selects a cluster
    /// node, modulo their number.
    pub(super) fn inflict(&self, fault: Fault, node: usize, lasts: Duration) -> Result {
        let alarm = |rabbit: &RabbitMq, begin: &str, end: &str| {
            rabbit.eval(begin);
            thread::sleep(lasts);
            rabbit.eval(end);
        };
        let control_twice = |begin, end| {
            self.control(node, begin);
            thread::sleep(lasts);
            self.control(node, end);
        };
        match (fault, self) {
            (Fault::KillServer, _) => control_twice(Control::Kill, Control::Restart),
            (Fault::StopServer, _) => control_twice(Control::Stop, Control::Restart),
            (Fault::FreezeServer, _) => control_twice(Control::Freeze, Control::Thaw),
            (Fault::KillPooler, Self::Pooled(pooled)) => {
                pooled.pooler.kill();
                thread::sleep(lasts);
                pooled.pooler.restart();
            }
            (Fault::CutOff, Self::RabbitCluster(cluster)) => {
                cluster.partition(node % cluster.nodes().len());
                thread::sleep(lasts);
                cluster.heal();
            }
            (Fault::FailOver, Self::PostgresPair(pair)) => pair.fail_over()?,
            (Fault::FailOver, Self::RedisCluster(replicated)) => replicated.fail_over()?,
            (Fault::FailOver, Self::Sentinel(watched)) => watched.fail_over()?,
            (Fault::FillMemory, Self::Redis(redis)) => {
                // By default, Redis refuses commands that need memory, and evicts nothing.
                set_redis_memory(&redis.server, "1")?;
                thread::sleep(lasts);
                set_redis_memory(&redis.server, "0")?;
            }
            (Fault::FillMemory, Self::RabbitMq(rabbit)) => alarm(
                rabbit,
                "vm_memory_monitor:set_vm_memory_high_watermark(0.00001)",
                "vm_memory_monitor:set_vm_memory_high_watermark({absolute, 2000000000})",
            ),
            (Fault::FillDisk, Self::Sqlite(_, Some(disk))) => disk.fill_for(lasts)?,
            (Fault::FillDisk, Self::Redis(redis)) => redis.fill_disk(lasts)?,
            (Fault::FillDisk, Self::Postgres(postgres)) => postgres.fill_disk(lasts)?,
            (Fault::FillDisk, Self::RabbitMq(rabbit)) => alarm(
                rabbit,
                "rabbit_disk_monitor:set_disk_free_limit(1000000000000000)",
                "rabbit_disk_monitor:set_disk_free_limit(10000000)",
            ),
            _ => {}
        }
        Ok(())
    }

    /// Controls the server or a cluster node; does nothing for SQLite.
    fn control(&self, node: usize, control: Control) {
        match self {
            Self::Sqlite(..) => {}
            Self::Redis(durable) => control!(durable.server, control),
            Self::RabbitMq(server) => control!(server, control),
            Self::Postgres(postgres) => control!(postgres.server, control),
            Self::Pooled(pooled) => control!(pooled.server, control),
            Self::PostgresPair(pair) => control!(pair.node(node), control),
            Self::RedisCluster(cluster) => control!(cluster.node(node), control),
            Self::Sentinel(watched) => control!(watched.node(node), control),
            Self::RabbitCluster(cluster) => {
                control!(cluster.nodes()[node % cluster.nodes().len()], control);
            }
        }
    }
}

fn set_redis_memory(redis: &Redis, bytes: &str) -> Result {
    let reply = redis.command(&["CONFIG", "SET", "maxmemory", bytes]);
    if reply.is_ok() { Ok(()) } else { Err(format!("CONFIG SET maxmemory {bytes}: {reply:?}")) }
}
