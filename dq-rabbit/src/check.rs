//! The operator's `check`: reports problems of the broker as findings.
//!
//! Whether a queue of the ladder holds a message longer than its time to live cannot be observed:
//! for quorum queues the management API reports neither `head_message_timestamp` nor `idle_since`,
//! and to get the message would change its position. Instead, a test message, the *canary*, waits
//! in a queue of the lowest level, and claims of jobs whose message has not arrived are counted.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::{Clock, Entropy, Error, ErrorKind, Finding, QueueStats, Result, Severity, Timestamp};
use futures_util::StreamExt;
use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Consumer};
use serde_json::Value;

use crate::config::{LadderKind, QueueKind, TopologyMode};
use crate::connect::{AmqpChannel, AmqpConnection};
use crate::error::{LostReply, from_lapin};
use crate::generation::Generation;
use crate::ladder::TICK_MS;
use crate::log::{LostPayloads, SkippedMessages, Usage};
use crate::management::ManagementApi;
use crate::names::ObjectNames;
use crate::policy;
use crate::topology::Topology;

/// How long after its delay the canary may be delivered.
const CANARY_MARGIN: Duration = Duration::from_secs(4);
/// Claims without messages are reported if there is at least one for this many claims with
/// messages.
const WITHOUT_RATIO: u64 = 100;

/// What is asked of each queue. Only replicated queues have members.
const QUEUE_COLUMNS: &str = "name,effective_policy_definition,members,online,leader";

/// Number of replicas that a queue should have if there are as many nodes.
const REPLICAS: usize = 3;

/// So many queues should have leaders on more than one node.
const MIN_LEADERS: usize = 50;

/// Clock skew that is not reported.
const MAX_SKEW: Duration = Duration::from_secs(5);
/// Maximum age of the date of a response: it is in whole seconds, and renewed each second.
const MAX_DATE_AGE: Duration = Duration::from_secs(2);

/// From this part of its capacity on, a log is reported: a single large job may not fit any more.
const FULL_PERCENT: u64 = 90;

/// The oldest supported version of RabbitMQ.
const MIN_VERSION: [u32; 2] = [3, 10];

/// What a check needs of an open backend.
#[derive(Debug)]
pub(crate) struct BrokerCheck<'a> {
    pub(crate) connection: &'a AmqpConnection,
    pub(crate) topology: &'a Topology,
    pub(crate) queues: QueueKind,
    pub(crate) ladder: LadderKind,
    pub(crate) mode: TopologyMode,
    pub(crate) management: Option<&'a ManagementApi>,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) entropy: &'a Entropy,
    /// Number of claimed jobs whose message had arrived, and of those whose message had not.
    pub(crate) claim_counts: (u64, u64),
    /// Of all queues; `None` if the log does not respond.
    pub(crate) stats: Option<Vec<QueueStats>>,
    /// Number of jobs whose messages could not be published.
    pub(crate) lost_messages: u64,
    pub(crate) log_usage: Usage,
    /// The level of the log in force.
    pub(crate) level: u16,
    pub(crate) skipped: SkippedMessages,
    pub(crate) lost_payloads: LostPayloads,
    /// The largest skew of another process that writes to the log, in milliseconds.
    pub(crate) skew: Option<i64>,
}

/// Why the canary cannot return.
enum CanaryError {
    /// Its queue could not be declared, or the channel not be used.
    NotSent(Error),
    /// It was sent, and the broker did not take it.
    Refused(Error),
}

impl BrokerCheck<'_> {
    /// All problems, most severe first.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.check_queues(&mut findings).await {
            Ok(()) if self.ladder == LadderKind::None => {}
            Ok(()) => match self.canary_returns().await {
                Ok(true) => {}
                Ok(false) => findings.push(ladder_stalled(self.canary_timeout())),
                // With passive topology, the user may lack the permission to declare the canary's
                // queue.
                Err(CanaryError::NotSent(error))
                    if self.mode == TopologyMode::Passive && error.kind() == ErrorKind::Config =>
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
        findings.extend(self.stats.as_deref().map(|stats| self.gauges(stats)));
        let used = self.log_usage.percent();
        if used >= FULL_PERCENT {
            findings.push(finding(
                Severity::Error,
                "rabbitmq.log-full",
                format!(
                    "jobs that are not done take {used} % of what the log may hold of them; \
                     `schedule` fails when it is full, and foreign messages stay in their queues"
                ),
                "run jobs, remove dead ones, or set a larger `log_size_mib`",
            ));
        }
        findings.extend(skipped_messages(&self.skipped));
        findings.extend(lost_payloads(&self.lost_payloads));
        findings.extend(self.skew.and_then(process_skew));
        if let Some(management) = self.management
            && let Err(error) = self.check_management(management, &mut findings).await
        {
            findings.push(check_failed(&error));
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Checks queues that should be empty, and settings of limited durability.
    async fn check_queues(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let names = self.topology.names();
        let orphans = self.message_count(names.orphan()).await?;
        if orphans > 0 {
            findings.push(finding(
                Severity::Warning,
                "rabbitmq.orphans",
                format!("{orphans} messages in {} matched no queue", names.orphan()),
                "a ready queue or a binding was deleted: start a runner of that queue, which declares \
                 it again. The jobs run from the log, so job messages in this queue can be purged",
            ));
        }
        let dead = self.message_count(names.dead()).await?;
        if dead > 0 {
            findings.push(finding(
                Severity::Info,
                "rabbitmq.dead-letters",
                format!("{dead} messages wait in {}", names.dead()),
                "start a runner: it adds them to the dead jobs, which can be inspected and replayed",
            ));
        }
        if self.queues == QueueKind::Classic {
            findings.push(finding(
                Severity::Info,
                "rabbitmq.classic",
                "queues are classic: a crash of the broker loses messages that move between queues"
                    .to_owned(),
                "their jobs run from the log, a little late; use quorum queues to avoid it",
            ));
        }
        if self.mode == TopologyMode::Plugin {
            findings.push(finding(
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
        let (with, without) = self.claim_counts;
        if without > 0 && without * WITHOUT_RATIO >= with {
            findings.push(finding(
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

    /// Figures to watch.
    fn gauges(&self, stats: &[QueueStats]) -> Finding {
        let sum = |count: fn(&QueueStats) -> u64| stats.iter().map(count).sum::<u64>();
        let first_due =
            stats.iter().filter(|stats| !stats.paused).filter_map(|it| it.next_due).min();
        let overdue = first_due.map_or(Duration::ZERO, |due| self.clock.now().since(due));
        let (_, without_message) = self.claim_counts;
        let seconds = self.skew.map(|skew| (skew.unsigned_abs() / 1_000, direction(skew)));
        let skew = match seconds.filter(|(seconds, _)| *seconds > 0) {
            None => "no clock of another process differs by a second".to_owned(),
            Some((seconds, direction)) => {
                format!("the clock of another process is {seconds} s {direction} that of this one")
            }
        };
        finding(
            Severity::Info,
            "rabbitmq.gauges",
            format!(
                "{} jobs are pending, {} run and {} are dead; the oldest has been due for {} s; \
                 {without_message} jobs were claimed before their messages, and {} have none; the log \
                 uses {} % of its capacity, and its level is {}; {skew}",
                sum(|stats| stats.scheduled + stats.ready),
                sum(|stats| stats.running),
                sum(|stats| stats.dead),
                overdue.as_secs(),
                self.lost_messages,
                self.log_usage.percent(),
                self.level,
            ),
            "none needed",
        )
    }

    fn check_lost_messages(&self, findings: &mut Vec<Finding>) {
        if self.lost_messages > 0 {
            findings.push(finding(
                Severity::Warning,
                "rabbitmq.messages-lost",
                format!(
                    "since this process started, the messages of {} jobs could not be published",
                    self.lost_messages
                ),
                "the jobs run from the log, the first some 250 ms late. See the log of this process \
                 for the reason",
            ));
        }
        if let Some(failure) = self.topology.failure() {
            findings.push(finding(
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

    /// How long the canary may take to be delivered.
    fn canary_timeout(&self) -> Duration {
        Duration::from_millis(self.ladder.first_delay_ms().unsigned_abs()) + CANARY_MARGIN
    }

    /// Publishes a message to the lowest level of the ladder. Returns whether it comes back in
    /// time.
    async fn canary_returns(&self) -> Result<bool, CanaryError> {
        let channel = self.connection.channel("check").await.map_err(CanaryError::NotSent)?;
        let returned = match self.send_canary(&channel).await {
            Ok(mut consumer) => {
                match tokio::time::timeout(self.canary_timeout(), consumer.next()).await {
                    Ok(Some(Ok(_))) => Ok(true),
                    // The broker has closed the channel, as it does if the exchange is missing or may
                    // not be written, or the connection was lost.
                    Ok(Some(Err(error))) => Err(CanaryError::Refused(self.error(&error))),
                    Ok(None) | Err(_) => Ok(false),
                }
            }
            Err(error) => Err(CanaryError::NotSent(self.error(&error))),
        };
        channel.close().await;
        returned
    }

    /// The consumer that gets the canary.
    async fn send_canary(&self, channel: &AmqpChannel) -> lapin::Result<Consumer> {
        let names = self.topology.names();
        let queue = names.canary(self.entropy.bits() as u64);
        let expires = self.connection.response_timeout() * 2;
        channel.declare_exclusive_queue(queue.clone(), expires).await?;
        // Not the topic of any job queue: in a topic, `%` is followed by one of `d s h % x`.
        let topic = format!("%canary%{}", queue.as_str().replace('.', "-"));
        let key = ShortString::from(format!("#.{topic}"));
        channel.bind_queue(names.due(), queue.clone(), key).received().await?;
        let consumer = channel.consume(queue, FieldTable::default()).await?;
        let (exchange, delay) = match self.mode {
            TopologyMode::Plugin => (names.delayed(), Some(TICK_MS)),
            TopologyMode::Declare | TopologyMode::Passive => {
                (names.level(self.ladder.letter(), 0), None)
            }
        };
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(delay) = delay {
            let mut table = FieldTable::default();
            table.insert("x-delay".into(), delay.into());
            properties = properties.with_headers(table);
        }
        let key = ShortString::from(format!("1.{topic}"));
        channel.publish(exchange, key, false, b"", properties).await?;
        Ok(consumer)
    }

    /// Checks what only the management API reports.
    async fn check_management(
        &self,
        management: &ManagementApi,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let requested = self.clock.now();
        let overview = management.response("overview").await?;
        let skew = overview.date.and_then(|date| clock_skew(requested, date, self.clock.now()));
        findings.extend(skew);
        let version = overview.body["rabbitmq_version"].as_str().unwrap_or("unknown");
        let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
        if numbers.len() >= 2 && numbers[..2] < MIN_VERSION[..] {
            findings.push(finding(
                Severity::Error,
                "rabbitmq.version",
                format!("RabbitMQ {version} is too old"),
                "use 3.10 or newer: older quorum queues do not support a time to live of messages",
            ));
        }
        let flags = management.get("feature-flags").await?;
        for flag in flags.as_array().into_iter().flatten() {
            let name = flag["name"].as_str().unwrap_or_default();
            let needed = ["quorum_queue", "stream_queue"].contains(&name);
            if needed && flag["state"].as_str() != Some("enabled") {
                findings.push(finding(
                    Severity::Error,
                    "rabbitmq.feature-flag",
                    format!("the feature flag {name} is not enabled"),
                    "run `rabbitmqctl enable_feature_flag all`",
                ));
            }
        }
        let queues = management.queues(QUEUE_COLUMNS).await?;
        if let Some(cause) = policy::harmful(&queues, self.topology) {
            findings.push(finding(Severity::Error, "rabbitmq.policy", cause, policy::REMEDY));
        }
        let nodes = management.get("nodes").await?;
        let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
        findings.extend(replica_findings(&queues, self.topology.names(), nodes.len()));
        for node in nodes {
            findings.extend(node_findings(node));
        }
        if nodes.len() == 1 {
            findings.push(finding(
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

/// Reports skew between this clock and the broker's, as far as a response with this date, between
/// these times of the request and the response, proves it.
fn clock_skew(requested: Timestamp, date: Timestamp, responded: Timestamp) -> Option<Finding> {
    let ahead = requested.since(date + MAX_DATE_AGE);
    let behind = date.since(responded);
    let (skew, direction) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    (skew > MAX_SKEW).then(|| {
        finding(
            Severity::Warning,
            "rabbitmq.clock-skew",
            format!("the clock of this process is {} s {direction} the broker's", skew.as_secs()),
            "synchronize the clocks of all hosts by NTP: jobs run by the clock of the process that \
             claims them, early if it is ahead and late if it is behind",
        )
    })
}

/// Reports queues with too few replicas, and leaders that are all on one node.
fn replica_findings(queues: &Value, names: &ObjectNames, nodes: usize) -> Vec<Finding> {
    let name_of = |queue: &Value| queue["name"].as_str().unwrap_or_default().to_owned();
    let count = |queue: &Value, field: &str| queue[field].as_array().map_or(0, Vec::len);
    let all = queues.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_replicated = |queue: &&Value| {
        names.contains(queue["name"].as_str().unwrap_or_default()) && count(queue, "members") > 0
    };
    let replicated: Vec<_> = all.iter().filter(is_replicated).collect();
    let wanted = nodes.min(REPLICAS);
    let mut findings = Vec::new();
    let few: Vec<_> = replicated.iter().filter(|it| count(it, "members") < wanted).collect();
    if let Some(first) = few.first() {
        findings.push(finding(
            Severity::Warning,
            "rabbitmq.few-replicas",
            format!(
                "{} of {} queues have fewer than {wanted} replicas, among them {}",
                few.len(),
                replicated.len(),
                name_of(first)
            ),
            "they were declared while nodes were missing: run `rabbitmq-queues grow NODE all`, and \
             `rabbitmq-streams add_replica` for the log",
        ));
    }
    let is_degraded = |queue: &&&Value| count(queue, "online") < count(queue, "members");
    let degraded: Vec<_> = replicated.iter().filter(is_degraded).collect();
    if let Some(first) = degraded.first() {
        findings.push(finding(
            Severity::Warning,
            "rabbitmq.replicas-down",
            format!(
                "replicas of {} queues do not run, among them {}",
                degraded.len(),
                name_of(first)
            ),
            "start all nodes of the cluster",
        ));
    }
    let leaders: HashSet<_> = replicated.iter().filter_map(|it| it["leader"].as_str()).collect();
    if nodes > 1 && replicated.len() >= MIN_LEADERS && leaders.len() == 1 {
        findings.push(finding(
            Severity::Info,
            "rabbitmq.leaders",
            format!("all {} queues have their leaders on one node", replicated.len()),
            "run `rabbitmq-queues rebalance all`",
        ));
    }
    findings
}

fn node_findings(node: &Value) -> Vec<Finding> {
    let name = node["name"].as_str().unwrap_or("a node");
    let mut findings = Vec::new();
    let mut push = |severity, code, what: &str, remedy| {
        findings.push(finding(severity, code, format!("{name} {what}"), remedy));
    };
    if node["running"].as_bool() == Some(false) {
        let remedy = "start it, or remove it from the cluster";
        push(Severity::Warning, "rabbitmq.node-down", "does not run", remedy);
    }
    for (alarm, what) in [
        ("mem_alarm", "has a memory alarm: it accepts no messages"),
        ("disk_free_alarm", "has a disk space alarm: it accepts no messages"),
    ] {
        if node[alarm].as_bool() == Some(true) {
            let remedy = "free memory or disk space, or change the limits";
            push(Severity::Error, "rabbitmq.alarm", what, remedy);
        }
    }
    if node["partitions"].as_array().is_some_and(|partitions| !partitions.is_empty()) {
        let remedy = "see `rabbitmqctl cluster_status`, and restart the nodes of the minority";
        push(Severity::Error, "rabbitmq.partition", "cannot reach all other nodes", remedy);
    }
    findings
}

/// Reports jobs whose payload the log does not have any more.
fn lost_payloads(lost: &LostPayloads) -> Option<Finding> {
    let first = lost.jobs.first()?;
    Some(finding(
        Severity::Error,
        "rabbitmq.payload-lost",
        format!(
            "the log does not have the payloads of {} jobs any more, the first is {first}",
            lost.jobs.len()
        ),
        "a policy of the broker has deleted messages of the log, or disks have failed: such a job is \
         dead when it is claimed; schedule it again with its payload, and remove the dead one",
    ))
}

fn direction(skew: i64) -> &'static str {
    if skew > 0 { "ahead of" } else { "behind" }
}

/// Reports the skew between the clocks of two processes.
fn process_skew(skew: i64) -> Option<Finding> {
    (Duration::from_millis(skew.unsigned_abs()) > MAX_SKEW).then(|| {
        finding(
            Severity::Warning,
            "rabbitmq.process-clock-skew",
            format!(
                "the clock of a process that uses this prefix is {} s {} that of this one",
                (skew.unsigned_abs() + 500) / 1_000,
                direction(skew)
            ),
            "synchronize the clocks of all hosts by NTP: delays begin at the time of the process that \
             schedules, and jobs are due by the clock of the one that claims them. Leases are not \
             affected",
        )
    })
}

/// Reports messages of the log that are not entries.
fn skipped_messages(skipped: &SkippedMessages) -> Option<Finding> {
    let SkippedMessages { foreign, damaged, last_offset } = skipped;
    (foreign + damaged > 0).then(|| {
        finding(
            Severity::Warning,
            "rabbitmq.log-skipped",
            format!(
                "{foreign} foreign and {damaged} damaged messages in the log are skipped, the last \
                 at offset {} in generation {}",
                Generation::offset_in_stream(*last_offset),
                Generation::of(*last_offset).number(),
            ),
            "find the program that writes to the log of this prefix: run one version of this \
             library, and let nothing else publish to it; if messages are damaged, check the disks",
        )
    })
}

fn ladder_stalled(waited: Duration) -> Finding {
    finding(
        Severity::Error,
        "rabbitmq.ladder",
        format!("a test message through the ladder was not delivered within {waited:?}"),
        "jobs run from the log meanwhile. Right after a restart, wait three minutes, or set \
         `dead_letter_worker_publisher_confirm_timeout` to 5000 in advanced.config; else check that \
         the queues of the ladder have a leader (`rabbitmq-queues quorum_status`)",
    )
}

fn ladder_untested(error: &Error, prefix: &str) -> Finding {
    let prefix = prefix.replace('.', r"\.");
    finding(
        Severity::Info,
        "rabbitmq.ladder-untested",
        format!("the delay ladder was not tested: {}", error.message()),
        &format!(
            "give this user the configure pattern `^{prefix}\\.v1\\.canary\\.` with `rabbitmqctl \
             set_permissions`, or check as a user with the permission to configure"
        ),
    )
}

pub(crate) fn check_failed(error: &Error) -> Finding {
    let severity =
        if error.kind() == ErrorKind::Config { Severity::Warning } else { Severity::Error };
    let remedy = error.remedy_text().unwrap_or("check that the broker runs").to_owned();
    Finding { severity, code: "rabbitmq.unreachable", cause: error.message().to_owned(), remedy }
}

fn finding(severity: Severity, code: &'static str, what: String, remedy: &str) -> Finding {
    Finding { severity, code, cause: what, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_of_the_own_queues_are_counted() {
        let queue = |name: &str, members: usize, online: usize| {
            json!({"name": name, "members": vec!["n"; members], "online": vec!["n"; online],
                   "leader": "n"})
        };
        let codes = |queues: Vec<Value>, nodes| {
            let found = replica_findings(&Value::Array(queues), &ObjectNames::new("dq"), nodes);
            found.into_iter().map(|finding| finding.code).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(codes(vec![queue("dq.v1.log", 1, 1)], 1), none);
        assert_eq!(codes(vec![queue("other", 1, 0), queue("dq.v1.log", 3, 3)], 5), none);
        assert_eq!(codes(vec![queue("dq.v1.log", 2, 2)], 3), ["rabbitmq.few-replicas"]);
        assert_eq!(codes(vec![queue("dq.v1.log", 3, 2)], 3), ["rabbitmq.replicas-down"]);
        assert_eq!(codes(vec![queue("dq.v1.l0.1", 3, 3); 50], 3), ["rabbitmq.leaders"]);
        // A classic queue has no members.
        assert_eq!(codes(vec![json!({"name": "dq.v1.dead"})], 3), none);
    }

    #[test]
    fn clock_skew_is_reported_only_if_latency_does_not_explain_it() {
        let skew = |requested, date, responded| {
            let [requested, date, responded] =
                [requested, date, responded].map(Timestamp::from_millis);
            clock_skew(requested, date, responded).map(|finding| finding.cause)
        };
        for (requested, date, responded) in [
            (0, 0, 0),
            (7_000, 0, 7_010),
            (0, 5_000, 0),
            (0, 4_000, 60_000),
            (60_000, 60_000, 60_001),
        ] {
            assert_eq!(skew(requested, date, responded), None, "{requested} {date} {responded}");
        }
        let ahead = skew(7_001, 0, 9_000).unwrap();
        assert_eq!(ahead, "the clock of this process is 5 s ahead of the broker's");
        let behind = skew(0, 65_001, 5_000).unwrap();
        assert_eq!(behind, "the clock of this process is 60 s behind the broker's");
    }
}
