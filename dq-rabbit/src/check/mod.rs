//! The operator's `check`.
//!
//! The broker does not tell whether a ladder queue holds messages for too long: for quorum queues,
//! the management API has neither `head_message_timestamp` nor `idle_since`, and getting a message
//! would change its position. So `check` sends a test message, the *canary*, through the lowest
//! level, and reports how many jobs were claimed before their message came.

pub(crate) mod findings;
pub(crate) mod management;
pub(crate) mod policy;

use std::time::Duration;

use dq_core::{Entropy, Error, ErrorKind, Finding, QueueStats, Result, Severity};
use futures_util::StreamExt;
use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Consumer};

use self::findings::{
    check_failed, clock_skew, ladder_stalled, ladder_untested, losses, lost_payloads,
    node_findings, replica_findings, skipped_messages,
};
use self::management::ManagementApi;
use crate::config::{LadderKind, QueueKind, RabbitConfig, TopologyMode};
use crate::connect::{AmqpChannel, AmqpConnection};
use crate::engine::Engine;
use crate::error::{LostReply, from_lapin};
use crate::topology::Topology;
use crate::topology::ladder::{Route, TICK_MS};
use crate::topology::names::Topic;

/// How late the canary may be.
const CANARY_MARGIN: Duration = Duration::from_secs(4);
/// Late messages are reported if at least one in this many jobs was claimed without its message.
const LATE_RATIO: u64 = 100;

/// What the management API tells about a queue. Only replicated queues have members.
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

/// Why the canary does not return.
enum CanaryError {
    /// Its queue could not be declared, or there is no channel.
    NotSent(Error),
    /// The broker did not take it.
    Refused(Error),
}

impl BrokerCheck<'_> {
    /// All findings, most severe first.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.check_queues(&mut findings).await {
            Ok(()) if self.config.ladder == LadderKind::None => {}
            Ok(()) => match self.canary_returns().await {
                Ok(true) => {}
                Ok(false) => findings.push(ladder_stalled(self.canary_timeout())),
                // With passive topology, the user may not be allowed to declare the canary's queue.
                Err(CanaryError::NotSent(error))
                    if self.config.topology == TopologyMode::Passive
                        && error.kind() == ErrorKind::Config =>
                {
                    let prefix = &self.connection.broker_info().prefix;
                    findings.push(ladder_untested(&error, prefix));
                }
                Err(CanaryError::NotSent(error) | CanaryError::Refused(error)) => {
                    findings.push(check_failed(&error));
                }
            },
            Err(error) => findings.push(check_failed(&error)),
        }
        self.check_late_messages(&mut findings);
        self.check_lost_messages(&mut findings);
        let log = &self.engine.log;
        // There are no counts if the log does not respond.
        let stats = self.engine.stats(&[]).await.ok();
        findings.extend(stats.as_deref().map(|stats| self.gauges(stats)));
        let used = log.usage().percent();
        if used >= FULL_PERCENT {
            findings.push(Finding::new(
                Severity::Error,
                "rabbitmq.log-full",
                format!(
                    "jobs that are not done take {used} % of what the log may hold of them; \
                     `schedule` fails when it is full"
                ),
                "run jobs, remove dead ones, or set a larger `log_size_mib`",
            ));
        }
        findings.extend(log.change_failure().map(|error| {
            Finding::new(
                Severity::Error,
                "rabbitmq.log-stuck",
                format!(
                    "the log cannot go on in its next stream, and `schedule` fails once this one has \
                     grown by a quarter of `log_size_mib`: {}",
                    error.message()
                ),
                error.remedy_text().unwrap_or("check that the broker runs"),
            )
        }));
        findings.extend(stats.as_deref().and_then(losses));
        findings.extend(skipped_messages(&log.skipped()));
        findings.extend(lost_payloads(&log.lost_payloads()));
        if let Some(management) = self.management
            && let Err(error) = self.check_management(management, &mut findings).await
        {
            findings.push(check_failed(&error));
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    async fn check_queues(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let names = self.topology.names();
        let orphans = self.message_count(names.orphan()).await?;
        if orphans > 0 {
            findings.push(Finding::new(
                Severity::Warning,
                "rabbitmq.orphans",
                format!("{orphans} messages in {} matched no queue", names.orphan()),
                "a ready queue or a binding was deleted: start a runner of that queue, which declares \
                 it again. The jobs run from the log, so job messages in this queue can be purged",
            ));
        }
        let dead = self.message_count(names.dead()).await?;
        if dead > 0 {
            findings.push(Finding::new(
                Severity::Warning,
                "rabbitmq.dead-letters",
                format!("{dead} messages that another program has published or rejected are in {}",
                    names.dead()),
                "let nothing else use the queues of this prefix, and purge this one once you have seen \
                 its messages: no job needs them. An ingress makes jobs of messages",
            ));
        }
        if self.config.queues == QueueKind::Classic {
            findings.push(Finding::new(
                Severity::Info,
                "rabbitmq.classic",
                "queues are classic: a crash of the broker loses messages that move between queues"
                    .to_owned(),
                "their jobs run from the log, a little late; use quorum queues to avoid it",
            ));
        }
        if self.config.topology == TopologyMode::Plugin {
            findings.push(Finding::new(
                Severity::Warning,
                "rabbitmq.plugin",
                "the plugin for delayed messages keeps them on one node, for at most 49 days"
                    .to_owned(),
                "lost messages are replaced by the log; set `topology` to \"declare\" to do without the \
                 plugin",
            ));
        }
        Ok(())
    }

    fn check_late_messages(&self, findings: &mut Vec<Finding>) {
        let (with, without) = self.engine.claim_counts();
        if without > 0 && without * LATE_RATIO >= with {
            findings.push(Finding::new(
                Severity::Warning,
                "rabbitmq.messages-late",
                format!(
                    "since this process started, {without} jobs were claimed without their messages, \
                     and {with} jobs with them"
                ),
                "after a restart the broker delays dead letters for three minutes unless \
                 `dead_letter_worker_publisher_confirm_timeout` is 5000 and \
                 `dead_letter_worker_consumer_prefetch` 512, in advanced.config",
            ));
        }
    }

    fn gauges(&self, stats: &[QueueStats]) -> Finding {
        let sum = |count: fn(&QueueStats) -> u64| stats.iter().map(count).sum::<u64>();
        let first_due =
            stats.iter().filter(|stats| !stats.paused).filter_map(|it| it.next_due).min();
        let overdue = first_due.map_or(Duration::ZERO, |due| self.engine.log.now().since(due));
        let (_, without_message) = self.engine.claim_counts();
        let log = &self.engine.log;
        Finding::new(
            Severity::Info,
            "rabbitmq.gauges",
            format!(
                "{} jobs are pending, {} run and {} are dead; the oldest has been due for {} s; \
                 {without_message} jobs were claimed before their messages, and {} have none; the log \
                 uses {} % of its capacity",
                sum(|stats| stats.scheduled + stats.ready),
                sum(|stats| stats.running),
                sum(|stats| stats.dead),
                overdue.as_secs(),
                self.engine.publisher.lost(),
                log.usage().percent(),
            ),
            "none needed",
        )
    }

    fn check_lost_messages(&self, findings: &mut Vec<Finding>) {
        let lost_messages = self.engine.publisher.lost();
        if lost_messages > 0 {
            findings.push(Finding::new(
                Severity::Warning,
                "rabbitmq.messages-lost",
                format!(
                    "since this process started, the messages of {lost_messages} jobs could not be published"
                ),
                "the jobs run from the log, the first some 250 ms late. See the log of this process \
                 for the reason",
            ));
        }
        if let Some(failure) = self.topology.failure() {
            findings.push(Finding::new(
                Severity::Warning,
                "rabbitmq.topology",
                format!("exchanges or queues are missing: {failure}"),
                "jobs run from the log meanwhile, the first some 250 ms late",
            ));
        }
    }

    async fn message_count(&self, queue: ShortString) -> Result<u32> {
        let channel = self.connection.channel("check").await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.declare_queue(queue, options, FieldTable::default());
        let count = declared.received().await.map_err(|error| self.error(&error))?;
        channel.close().await;
        Ok(count)
    }

    fn canary_timeout(&self) -> Duration {
        Duration::from_millis(TICK_MS.unsigned_abs()) + CANARY_MARGIN
    }

    /// Whether a message through the lowest level comes back in time.
    async fn canary_returns(&self) -> Result<bool, CanaryError> {
        let channel = self.connection.channel("check").await.map_err(CanaryError::NotSent)?;
        let returned = match self.send_canary(&channel).await {
            Ok(mut consumer) => {
                match tokio::time::timeout(self.canary_timeout(), consumer.next()).await {
                    Ok(Some(Ok(_))) => Ok(true),
                    // The connection is lost, or the broker closed the channel because the exchange
                    // is missing or may not be written.
                    Ok(Some(Err(error))) => Err(CanaryError::Refused(self.error(&error))),
                    Ok(None) | Err(_) => Ok(false),
                }
            }
            Err(error) => Err(CanaryError::NotSent(self.error(&error))),
        };
        channel.close().await;
        returned
    }

    async fn send_canary(&self, channel: &AmqpChannel) -> lapin::Result<Consumer> {
        let names = self.topology.names();
        let queue = names.canary(self.entropy.bits() as u64);
        let expires = self.connection.response_timeout() * 2;
        channel.declare_exclusive_queue(queue.clone(), expires).await?;
        let topic = Topic::canary(&queue);
        channel.bind_queue(names.due(), queue.clone(), topic.binding_key()).received().await?;
        let consumer = channel.consume(queue, FieldTable::default()).await?;
        let now = self.engine.log.now();
        let due = now + Duration::from_millis(TICK_MS.unsigned_abs());
        let Route { exchange, routing_key, delay_ms } =
            self.topology.ladder().route(&topic, due, now);
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(delay) = delay_ms {
            let mut table = FieldTable::default();
            table.insert("x-delay".into(), delay.into());
            properties = properties.with_headers(table);
        }
        channel.publish(exchange, routing_key, false, b"", properties).await?;
        Ok(consumer)
    }

    async fn check_management(
        &self,
        management: &ManagementApi,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let clock = self.engine.log.clock();
        let requested = clock.now();
        let overview = management.response("overview").await?;
        let skew = overview.date.and_then(|date| clock_skew(requested, date, clock.now()));
        findings.extend(skew);
        let queues = management.queues(QUEUE_COLUMNS).await?;
        if let Some(cause) = policy::harmful(&queues, self.topology) {
            findings.push(Finding::new(Severity::Error, "rabbitmq.policy", cause, policy::REMEDY));
        }
        let nodes = management.get("nodes").await?;
        let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
        findings.extend(replica_findings(&queues, self.topology.names(), nodes.len()));
        for node in nodes {
            findings.extend(node_findings(node));
        }
        if nodes.len() == 1 {
            findings.push(Finding::new(
                Severity::Info,
                "rabbitmq.single-node",
                "the broker is a single node: a power failure may lose the last moments of the log"
                    .to_owned(),
                "use a cluster of three nodes",
            ));
        }
        Ok(())
    }

    fn error(&self, error: &lapin::Error) -> Error {
        from_lapin("check", LostReply::Unavailable, self.connection.broker_info(), error)
    }
}
