//! The operator's `check`: decides what to report. [`findings`] has the texts.

mod canary;
pub(crate) mod findings;
pub(crate) mod management;
pub(crate) mod policy;

use dq_core::{Entropy, Error, Finding, Result, Severity};
use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};

use self::management::ManagementApi;
use crate::config::{LadderKind, QueueKind, RabbitConfig, TopologyMode};
use crate::connect::AmqpConnection;
use crate::engine::Engine;
use crate::error::{LostReply, from_lapin};
use crate::topology::Topology;

/// Late messages are reported if at least one in this many jobs was claimed without its message.
const LATE_RATIO: u64 = 100;

/// Only replicated queues have members.
const QUEUE_COLUMNS: &str = "name,effective_policy_definition,members,online";

/// A log is reported as full from here on, because one large job may not fit any more.
const FULL_PERCENT: u64 = 90;

#[derive(Debug)]
pub(crate) struct BrokerCheck<'a> {
    pub(crate) connection: &'a AmqpConnection,
    pub(crate) topology: &'a Topology,
    pub(crate) config: &'a RabbitConfig,
    pub(crate) management: Option<&'a ManagementApi>,
    pub(crate) entropy: &'a Entropy,
    pub(crate) engine: &'a Engine,
}

impl BrokerCheck<'_> {
    /// Lists all findings, most severe first.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        match self.check_queues().await {
            Ok(found) => {
                all.extend(found);
                if self.config.ladder != LadderKind::None {
                    all.extend(self.check_ladder().await);
                }
            }
            Err(error) => all.push(findings::check_failed(&error)),
        }
        all.extend(self.check_messages());
        all.extend(self.check_log().await);
        if let Some(management) = self.management {
            match self.check_management(management).await {
                Ok(found) => all.extend(found),
                Err(error) => all.push(findings::check_failed(&error)),
            }
        }
        all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        all
    }

    async fn check_queues(&self) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        let names = self.topology.names();
        let orphans = self.message_count(names.orphan()).await?;
        if orphans > 0 {
            found.push(findings::orphans(orphans, &names.orphan()));
        }
        let dead_letters = self.message_count(names.dead()).await?;
        if dead_letters > 0 {
            found.push(findings::dead_letters(dead_letters, &names.dead()));
        }
        if self.config.queues == QueueKind::Classic {
            found.push(findings::classic());
        }
        if self.config.topology == TopologyMode::Plugin {
            found.push(findings::plugin());
        }
        Ok(found)
    }

    fn check_messages(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let misses = &self.engine.misses;
        let (with, without) = (misses.with_message(), misses.without_message());
        if without > 0 && without * LATE_RATIO >= with {
            found.push(findings::messages_late(with, without));
        }
        let lost = self.engine.publisher.lost();
        if lost > 0 {
            found.push(findings::messages_lost(lost));
        }
        found.extend(self.topology.failure().map(|failure| findings::objects_missing(&failure)));
        found
    }

    async fn check_log(&self) -> Vec<Finding> {
        let log = &self.engine.log;
        let mut found = Vec::new();
        if let Ok(stats) = self.engine.stats(&[]).await {
            found.push(findings::gauges(&stats, self.engine));
            found.extend(findings::losses(&stats));
        }
        let used_percent = log.usage().percent();
        if used_percent >= FULL_PERCENT {
            found.push(findings::log_full(used_percent));
        }
        found.extend(log.change_failure().map(|error| findings::log_stuck(&error)));
        found.extend(findings::skipped_messages(&log.skipped()));
        found.extend(findings::lost_payloads(&log.lost_payloads()));
        found
    }

    async fn check_management(&self, management: &ManagementApi) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        let clock = self.engine.log.clock();
        let requested = clock.now();
        let overview = management.response("overview").await?;
        let skew = |date| findings::clock_skew(requested, date, clock.now());
        found.extend(overview.date.and_then(skew));
        let queues = management.queues(QUEUE_COLUMNS).await?;
        if let Some(cause) = policy::harmful(&queues, self.topology) {
            found.push(Finding::new(Severity::Error, "rabbitmq.policy", cause, policy::REMEDY));
        }
        let nodes = management.get("nodes").await?;
        let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
        found.extend(findings::replica_findings(&queues, self.topology.names(), nodes.len()));
        found.extend(nodes.iter().flat_map(findings::node_findings));
        if nodes.len() == 1 {
            found.push(findings::single_node());
        }
        Ok(found)
    }

    async fn message_count(&self, queue: ShortString) -> Result<u32> {
        let channel = self.connection.channel("check").await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.declare_queue(queue, options, FieldTable::default());
        let count = declared.received().await.map_err(|error| self.error(&error))?;
        channel.close().await;
        Ok(count)
    }

    fn error(&self, error: &lapin::Error) -> Error {
        from_lapin("check", LostReply::Unavailable, self.connection.broker_info(), error)
    }
}
