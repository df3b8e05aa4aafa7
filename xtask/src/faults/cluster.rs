//! Stores with several servers.

use dq_servers::RabbitCluster;

use super::fault::Fault;
use super::redis_cluster::Replicated;
use super::sentinel::Watched;
use crate::run::Result;

#[derive(Debug)]
pub(crate) enum Cluster {
    Redis(Replicated),
    Sentinel(Box<Watched>),
    RabbitMq(RabbitCluster),
}

impl Cluster {
    pub(super) fn redis() -> Self {
        Self::Redis(Replicated::start())
    }

    pub(super) fn sentinel() -> Self {
        Self::Sentinel(Box::new(Watched::start()))
    }

    pub(super) fn rabbitmq() -> Self {
        Self::RabbitMq(RabbitCluster::start(3))
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Redis(replicated) => replicated.url(),
            Self::Sentinel(watched) => watched.url(),
            Self::RabbitMq(cluster) => {
                let first = &cluster.nodes()[0];
                let nodes: Vec<String> =
                    cluster.nodes().iter().map(|node| node.address()).collect();
                first.url().replace(&first.address(), &nodes.join(","))
            }
        }
    }

    pub(super) fn faults(&self) -> &'static [Fault] {
        match self {
            // Redis replicates asynchronously. If a primary dies, a failover may lose writes it has
            // just acknowledged, as documented. A requested failover loses nothing.
            Self::Redis(_) => &[Fault::FailOver, Fault::FreezeServer, Fault::WrongClock],
            // Both write to disk before they reply, and no failover happens unasked.
            Self::Sentinel(_) => {
                &[Fault::FailOver, Fault::KillServer, Fault::FreezeServer, Fault::WrongClock]
            }
            Self::RabbitMq(_) => &[Fault::KillServer, Fault::FreezeServer, Fault::CutOff],
        }
    }

    pub(super) fn sync(&self) {
        if let Self::RabbitMq(cluster) = self {
            cluster.nodes().iter().for_each(dq_servers::RabbitMq::sync_declarations);
        }
    }

    /// Swaps primary and replica.
    pub(super) fn fail_over(&self) -> Result {
        match self {
            Self::Redis(replicated) => replicated.fail_over(),
            Self::Sentinel(watched) => watched.fail_over(),
            Self::RabbitMq(_) => Ok(()),
        }
    }
}
