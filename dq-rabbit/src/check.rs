//! What an operator should know about the broker.
//!
//! Whether a queue of the ladder holds a message for longer than its time to live cannot be seen: of a
//! quorum queue the management API tells neither `head_message_timestamp` nor `idle_since`, and a
//! look at the message itself would take it out of its place. The canary on the lowest level and the
//! count of jobs that came without their carriers stand in for it, for a job whose carrier is stuck is
//! taken without it.

use std::time::Duration;

use dq_core::{Clock, Error, ErrorKind, Finding, Result, Severity, Timestamp};
use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel};
use serde_json::Value;

use crate::config::{QueueKind, TopologyMode};
use crate::connect::Link;
use crate::error::{Effect, of_call};
use crate::ladder::TICK_MS;
use crate::management::Management;
use crate::names::Names;
use crate::topology::Topology;

/// How long the canary may take for a second.
const CANARY: Duration = Duration::from_secs(5);
/// Of so many jobs that were carried, one that came without its carrier is told.
const MANY: u64 = 100;

/// Clocks may be so far apart before it is told.
const APART: Duration = Duration::from_secs(5);
/// How old the date of an answer may be: it is in whole seconds, and made anew each second.
const STALE: Duration = Duration::from_secs(2);

const OLDEST: [u32; 2] = [3, 10];

/// What `check` looks at.
#[derive(Debug)]
pub(crate) struct Inspector<'a> {
    pub(crate) link: &'a Link,
    pub(crate) topology: &'a Topology,
    pub(crate) queues: QueueKind,
    pub(crate) mode: TopologyMode,
    pub(crate) management: Option<&'a Management>,
    pub(crate) clock: &'a dyn Clock,
    /// Jobs that were taken with their carriers, and without.
    pub(crate) carried: (u64, u64),
    pub(crate) log_is_full: bool,
}

impl Inspector<'_> {
    /// Everything that is not as it should be, worst first.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.of_queues(&mut findings).await {
            Ok(()) => match self.canary().await {
                Ok(true) => {}
                Ok(false) => findings.push(stalled()),
                // Who leaves declaring to others may have no right to declare a queue for it.
                Err(error)
                    if self.mode == TopologyMode::Passive && error.kind() == ErrorKind::Config =>
                {
                    findings.push(untried(&error, &self.link.server().prefix));
                }
                Err(error) => findings.push(failed(&error)),
            },
            Err(error) => findings.push(failed(&error)),
        }
        self.of_carriers(&mut findings);
        if self.log_is_full {
            findings.push(finding(
                Severity::Error,
                "rabbitmq.log-full",
                "the jobs that are pending or dead take more than a fifth of the log; nothing more \
                 is accepted"
                    .to_owned(),
                "remove dead jobs, or set a larger `log_size_mib` with another `prefix` and drain \
                 this one",
            ));
        }
        if let Some(management) = self.management
            && let Err(error) = self.of_management(management, &mut findings).await
        {
            findings.push(failed(&error));
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Queues in which nothing should stay.
    async fn of_queues(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let names = self.topology.names();
        let orphans = self.count(names.orphan()).await?;
        if orphans > 0 {
            findings.push(finding(
                Severity::Warning,
                "rabbitmq.orphans",
                format!("{orphans} messages in {} had no queue to go to", names.orphan()),
                "a ready queue or a binding was deleted: start a runner of that queue, which declares \
                 it again; jobs of the log run nonetheless, so what is ours there can be purged",
            ));
        }
        let dead = self.count(names.dead()).await?;
        if dead > 0 {
            findings.push(finding(
                Severity::Info,
                "rabbitmq.dead-letters",
                format!("{dead} messages wait in {}", names.dead()),
                "runners put them among the dead jobs, where they can be seen and replayed: start one",
            ));
        }
        if self.queues == QueueKind::Classic {
            findings.push(finding(
                Severity::Info,
                "rabbitmq.classic",
                "queues are classic: a broker that crashes loses messages in mid-hop".to_owned(),
                "their jobs run from the log, a moment late; use quorum queues to avoid it",
            ));
        }
        if self.mode == TopologyMode::Plugin {
            findings.push(finding(
                Severity::Warning,
                "rabbitmq.plugin",
                "the plugin for delayed messages keeps them on one node, and at most 49 days"
                    .to_owned(),
                "what it loses runs from the log; set `topology` to \"declare\" to do without it",
            ));
        }
        Ok(())
    }

    fn of_carriers(&self, findings: &mut Vec<Finding>) {
        let (with, without) = self.carried;
        if without > 0 && without * MANY >= with {
            findings.push(finding(
                Severity::Warning,
                "rabbitmq.carriers-late",
                format!(
                    "{without} jobs came without their carriers since this process began, and {with} \
                     with them"
                ),
                "after a restart the broker holds dead letters back for three minutes unless \
                 `dead_letter_worker_publisher_confirm_timeout` is 5000 and \
                 `dead_letter_worker_consumer_prefetch` 512, in advanced.config",
            ));
        }
    }

    async fn count(&self, queue: ShortString) -> Result<u32> {
        let channel = self.link.channel("check").await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue, options, FieldTable::default()).await;
        let count = declared.map_err(|error| self.told(&error))?.message_count();
        close(channel).await;
        Ok(count)
    }

    /// Sends a message down the ladder and waits for it to come back; `false` if it does not.
    async fn canary(&self) -> Result<bool> {
        let channel = self.link.channel("check").await?;
        let arrived = self.fly(&channel).await;
        close(channel).await;
        arrived
    }

    async fn fly(&self, channel: &Channel) -> Result<bool> {
        let told = |error: lapin::Error| self.told(&error);
        // Ours alone, and gone with the connection.
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let names: &Names = self.topology.names();
        let nest = names.canary(self.link.server().entropy.bits() as u64);
        let declared = channel.queue_declare(nest.clone(), options, FieldTable::default()).await;
        declared.map_err(told)?;
        // A word that no queue of jobs has for its topic: a `%` is followed by something else there.
        let word = format!("%canary%{}", nest.as_str().replace('.', "-"));
        let key = ShortString::from(format!("#.{word}"));
        let options = QueueBindOptions::default();
        channel
            .queue_bind(nest.clone(), names.due(), key, options, FieldTable::default())
            .await
            .map_err(told)?;
        let mut nest = channel
            .basic_consume(
                nest,
                "".into(),
                BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() },
                FieldTable::default(),
            )
            .await
            .map_err(told)?;
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
        let key = ShortString::from(format!("1.{word}"));
        let options = BasicPublishOptions::default();
        channel.basic_publish(exchange, key, options, b"", properties).await.map_err(told)?;
        Ok(tokio::time::timeout(CANARY, nest.next()).await.is_ok_and(|bird| bird.is_some()))
    }

    /// What the management API tells.
    async fn of_management(
        &self,
        management: &Management,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let asked = self.clock.now();
        let overview = management.answer("overview").await?;
        findings.extend(overview.date.and_then(|date| of_clocks(asked, date, self.clock.now())));
        let version = overview.body["rabbitmq_version"].as_str().unwrap_or("unknown");
        let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
        if numbers.len() >= 2 && numbers[..2] < OLDEST[..] {
            findings.push(finding(
                Severity::Error,
                "rabbitmq.version",
                format!("RabbitMQ {version} is too old"),
                "use 3.10 or newer: quorum queues forget the time to live of messages before that",
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
        findings.extend(of_policies(&queues, self.topology.names()));
        let nodes = management.get("nodes").await?;
        let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
        for node in nodes {
            findings.extend(of_node(node));
        }
        if nodes.len() == 1 {
            findings.push(finding(
                Severity::Info,
                "rabbitmq.single-node",
                "the broker is one node: a power cut may take the last moments of the log"
                    .to_owned(),
                "use a cluster of three nodes",
            ));
        }
        Ok(())
    }

    fn told(&self, error: &lapin::Error) -> Error {
        of_call("check", Effect::None, self.link.server(), error)
    }
}

/// Two clocks that differ, as far as can be told from an answer of this date that came between two
/// moments of ours.
fn of_clocks(asked: Timestamp, date: Timestamp, answered: Timestamp) -> Option<Finding> {
    let ahead = asked.since(date + STALE);
    let behind = date.since(answered);
    let (apart, which) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    (apart > APART).then(|| {
        finding(
            Severity::Warning,
            "rabbitmq.clock-skew",
            format!("the clock of this process is {} s {which} the broker's", apart.as_secs()),
            "set the clocks of all hosts by NTP: jobs run by the clock of the process that takes them, \
             early where it is ahead and late where it is behind",
        )
    })
}

/// Policies of the broker that throw away what is ours.
fn of_policies(queues: &Value, names: &Names) -> Option<Finding> {
    let harmful = |queue: &Value| {
        let harms = ["message-ttl", "expires", "max-length", "max-length-bytes", "max-age"];
        let policy = queue["effective_policy_definition"].as_object()?;
        let harm = harms.into_iter().find(|key| policy.contains_key(*key))?;
        let name = queue["name"].as_str().filter(|name| names.is_ours(name))?;
        Some((name.to_owned(), harm))
    };
    let harmed: Vec<_> = queues.as_array()?.iter().filter_map(harmful).collect();
    let (name, harm) = harmed.first()?;
    let what =
        format!("a policy sets `{harm}` for {name} and {} more of our queues", harmed.len() - 1);
    let remedy = "let no policy set that for names that begin with the prefix and .v1.";
    Some(finding(Severity::Error, "rabbitmq.policy", what, remedy))
}

fn of_node(node: &Value) -> Vec<Finding> {
    let name = node["name"].as_str().unwrap_or("a node");
    let mut findings = Vec::new();
    let mut push = |severity, code, what: &str, remedy| {
        findings.push(finding(severity, code, format!("{name} {what}"), remedy));
    };
    if node["running"].as_bool() == Some(false) {
        let remedy = "start it, or take it out of the cluster";
        push(Severity::Warning, "rabbitmq.node-down", "does not run", remedy);
    }
    for (alarm, what) in [
        ("mem_alarm", "has an alarm of memory: it accepts no messages"),
        ("disk_free_alarm", "has an alarm of disk space: it accepts no messages"),
    ] {
        if node[alarm].as_bool() == Some(true) {
            let remedy = "free memory or disk, or change its limits";
            push(Severity::Error, "rabbitmq.alarm", what, remedy);
        }
    }
    if node["partitions"].as_array().is_some_and(|partitions| !partitions.is_empty()) {
        let remedy = "see `rabbitmqctl cluster_status`, and restart the nodes of the smaller part";
        push(Severity::Error, "rabbitmq.partition", "does not see all others", remedy);
    }
    findings
}

fn stalled() -> Finding {
    finding(
        Severity::Error,
        "rabbitmq.ladder",
        format!("a message that was to wait a second was not back after {CANARY:?}"),
        "jobs run from the log meanwhile. Right after a restart, wait three minutes, or set \
         `dead_letter_worker_publisher_confirm_timeout` to 5000 in advanced.config; else see whether \
         the queues of the ladder have a leader (`rabbitmq-queues quorum_status`)",
    )
}

fn untried(error: &Error, prefix: &str) -> Finding {
    let prefix = prefix.replace('.', r"\.");
    finding(
        Severity::Info,
        "rabbitmq.ladder-untried",
        format!("it was not tried whether messages move down the ladder: {}", error.message()),
        &format!(
            "give this user `^{prefix}\\.v1\\.canary\\.` as pattern for configure in `rabbitmqctl \
             set_permissions`, or check as a user that may declare"
        ),
    )
}

fn failed(error: &Error) -> Finding {
    let severity =
        if error.kind() == ErrorKind::Config { Severity::Warning } else { Severity::Error };
    let remedy = error.remedy_text().unwrap_or("see whether the broker runs").to_owned();
    Finding { severity, code: "rabbitmq.unreachable", cause: error.message().to_owned(), remedy }
}

fn finding(severity: Severity, code: &'static str, what: String, remedy: &str) -> Finding {
    Finding { severity, code, cause: what, remedy: remedy.to_owned() }
}

async fn close(channel: Channel) {
    let over = channel.close(200, "done".into());
    tokio::time::timeout(Duration::from_millis(500), over).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_apart_only_if_no_delay_explains_it() {
        let told = |asked, date, answered| {
            let [asked, date, answered] = [asked, date, answered].map(Timestamp::from_millis);
            of_clocks(asked, date, answered).map(|finding| finding.cause)
        };
        for (asked, date, answered) in [
            (0, 0, 0),
            (7_000, 0, 7_010),
            (0, 5_000, 0),
            (0, 4_000, 60_000),
            (60_000, 60_000, 60_001),
        ] {
            assert_eq!(told(asked, date, answered), None, "{asked} {date} {answered}");
        }
        let ahead = told(7_001, 0, 9_000).unwrap();
        assert_eq!(ahead, "the clock of this process is 5 s ahead of the broker's");
        let behind = told(0, 65_001, 5_000).unwrap();
        assert_eq!(behind, "the clock of this process is 60 s behind the broker's");
    }
}
