//! The operator's `check`: reports problems of the broker as findings.
//!
//! Whether a queue of the ladder holds a message longer than its time to live cannot be observed:
//! for quorum queues the management API reports neither `head_message_timestamp` nor `idle_since`,
//! and to get the message would change its position. Instead, a test message, the *canary*, waits
//! in a queue of the lowest level, and claims of jobs whose message has not arrived are counted.

use std::time::Duration;

use dq_core::{Clock, Entropy, Error, ErrorKind, Finding, Result, Severity, Timestamp};
use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel};
use serde_json::Value;

use crate::config::{QueueKind, TopologyMode};
use crate::connect::AmqpConnection;
use crate::error::{LostReply, from_lapin};
use crate::ladder::TICK_MS;
use crate::management::ManagementApi;
use crate::names::ObjectNames;
use crate::topology::Topology;

/// How long the canary, which is delayed by one second, may take to be delivered.
const CANARY_TIMEOUT: Duration = Duration::from_secs(5);
/// Claims without messages are reported if there is at least one for this many claims with
/// messages.
const WITHOUT_RATIO: u64 = 100;

/// Clock skew that is not reported.
const MAX_SKEW: Duration = Duration::from_secs(5);
/// Maximum age of the date of a response: it is in whole seconds, and renewed each second.
const MAX_DATE_AGE: Duration = Duration::from_secs(2);

/// The oldest supported version of RabbitMQ.
const MIN_VERSION: [u32; 2] = [3, 10];

/// What a check needs of an open backend.
#[derive(Debug)]
pub(crate) struct BrokerCheck<'a> {
    pub(crate) connection: &'a AmqpConnection,
    pub(crate) topology: &'a Topology,
    pub(crate) queues: QueueKind,
    pub(crate) mode: TopologyMode,
    pub(crate) management: Option<&'a ManagementApi>,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) entropy: &'a Entropy,
    /// Number of claimed jobs whose message had arrived, and of those whose message had not.
    pub(crate) claim_counts: (u64, u64),
    pub(crate) log_is_full: bool,
}

impl BrokerCheck<'_> {
    /// All problems, most severe first.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.check_queues(&mut findings).await {
            Ok(()) => match self.canary_returns().await {
                Ok(true) => {}
                Ok(false) => findings.push(ladder_stalled()),
                // With passive topology, the user may lack the permission to declare the canary's
                // queue.
                Err(error)
                    if self.mode == TopologyMode::Passive && error.kind() == ErrorKind::Config =>
                {
                    let prefix = &self.connection.broker_info().prefix;
                    findings.push(ladder_untested(&error, prefix));
                }
                Err(error) => findings.push(check_failed(&error)),
            },
            Err(error) => findings.push(check_failed(&error)),
        }
        self.check_late_messages(&mut findings);
        if self.log_is_full {
            findings.push(finding(
                Severity::Error,
                "rabbitmq.log-full",
                "jobs that are not done take more than a fifth of the log; `schedule` fails"
                    .to_owned(),
                "remove dead jobs, or set a larger `log_size_mib` with another `prefix` and drain \
                 this one",
            ));
        }
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

    async fn message_count(&self, queue: ShortString) -> Result<u32> {
        let channel = self.connection.channel("check").await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue, options, FieldTable::default()).await;
        let count = declared.map_err(|error| self.error(&error))?.message_count();
        close(channel).await;
        Ok(count)
    }

    /// Publishes a message to the lowest level of the ladder. Returns whether it comes back in
    /// time.
    async fn canary_returns(&self) -> Result<bool> {
        let channel = self.connection.channel("check").await?;
        let returned = self.send_canary(&channel).await;
        close(channel).await;
        returned
    }

    async fn send_canary(&self, channel: &Channel) -> Result<bool> {
        let to_error = |error: lapin::Error| self.error(&error);
        // Exclusive, and deleted with the connection.
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let names = self.topology.names();
        let queue = names.canary(self.entropy.bits() as u64);
        let declared = channel.queue_declare(queue.clone(), options, FieldTable::default()).await;
        declared.map_err(to_error)?;
        // Not the topic of any job queue: in a topic, `%` is followed by one of `d s h % x`.
        let topic = format!("%canary%{}", queue.as_str().replace('.', "-"));
        let key = ShortString::from(format!("#.{topic}"));
        let options = QueueBindOptions::default();
        channel
            .queue_bind(queue.clone(), names.due(), key, options, FieldTable::default())
            .await
            .map_err(to_error)?;
        let mut consumer = channel
            .basic_consume(
                queue,
                "".into(),
                BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() },
                FieldTable::default(),
            )
            .await
            .map_err(to_error)?;
        let (exchange, delay) = match self.mode {
            TopologyMode::Plugin => (names.delayed(), Some(TICK_MS)),
            TopologyMode::Declare | TopologyMode::Passive => (names.level(0), None),
        };
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(delay) = delay {
            let mut table = FieldTable::default();
            table.insert("x-delay".into(), delay.into());
            properties = properties.with_headers(table);
        }
        let key = ShortString::from(format!("1.{topic}"));
        let options = BasicPublishOptions::default();
        channel.basic_publish(exchange, key, options, b"", properties).await.map_err(to_error)?;
        let delivered = tokio::time::timeout(CANARY_TIMEOUT, consumer.next()).await;
        Ok(delivered.is_ok_and(|delivery| delivery.is_some()))
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
        let queues = management.get("queues?columns=name,effective_policy_definition").await?;
        findings.extend(harmful_policy(&queues, self.topology.names()));
        let nodes = management.get("nodes").await?;
        let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
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

/// Reports policies of the broker that drop messages.
fn harmful_policy(queues: &Value, names: &ObjectNames) -> Option<Finding> {
    let harmful_key = |queue: &Value| {
        let keys = ["message-ttl", "expires", "max-length", "max-length-bytes", "max-age"];
        let policy = queue["effective_policy_definition"].as_object()?;
        let key = keys.into_iter().find(|key| policy.contains_key(*key))?;
        let name = queue["name"].as_str().filter(|name| names.contains(name))?;
        Some((name.to_owned(), key))
    };
    let affected: Vec<_> = queues.as_array()?.iter().filter_map(harmful_key).collect();
    let (name, key) = affected.first()?;
    let what = format!(
        "a policy sets `{key}` for {name} and {} more queues of this backend",
        affected.len() - 1
    );
    let remedy = "exclude names that begin with the prefix and .v1. from the policy";
    Some(finding(Severity::Error, "rabbitmq.policy", what, remedy))
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

fn ladder_stalled() -> Finding {
    finding(
        Severity::Error,
        "rabbitmq.ladder",
        format!("a message with a delay of one second was not delivered within {CANARY_TIMEOUT:?}"),
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

fn check_failed(error: &Error) -> Finding {
    let severity =
        if error.kind() == ErrorKind::Config { Severity::Warning } else { Severity::Error };
    let remedy = error.remedy_text().unwrap_or("check that the broker runs").to_owned();
    Finding { severity, code: "rabbitmq.unreachable", cause: error.message().to_owned(), remedy }
}

fn finding(severity: Severity, code: &'static str, what: String, remedy: &str) -> Finding {
    Finding { severity, code, cause: what, remedy: remedy.to_owned() }
}

async fn close(channel: Channel) {
    let closing = channel.close(200, "done".into());
    tokio::time::timeout(Duration::from_millis(500), closing).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

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
