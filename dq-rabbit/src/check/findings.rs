//! The texts of what `check` finds.

use std::collections::BTreeSet;
use std::time::Duration;

use dq_core::{Error, ErrorKind, Finding, JobId, QueueStats, Severity, Timestamp};
use lapin::types::ShortString;
use serde_json::Value;

use crate::engine::Engine;
use crate::log::generation::Generation;
use crate::log::{LOSS_REMEDY, LOSSES, SkippedMessages};
use crate::topology::names::ObjectNames;

const REPLICAS: usize = 3;

/// The largest clock skew that is not reported.
const MAX_SKEW: Duration = Duration::from_secs(5);
/// How old a response's date may be, because it has whole seconds and changes once a second.
const MAX_DATE_AGE: Duration = Duration::from_secs(2);

fn warning(code: &'static str, cause: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(Severity::Warning, code, cause, remedy)
}

fn info(code: &'static str, cause: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(Severity::Info, code, cause, remedy)
}

fn error(code: &'static str, cause: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(Severity::Error, code, cause, remedy)
}

pub(super) fn orphans(messages: u32, queue: &ShortString) -> Finding {
    warning(
        "rabbitmq.orphans",
        format!("{messages} messages in {queue} matched no queue"),
        "a ready queue or a binding was deleted: start a runner of that queue, which declares it \
         again. The jobs run from the log, so job messages in this queue can be purged",
    )
}

pub(super) fn dead_letters(messages: u32, queue: &ShortString) -> Finding {
    warning(
        "rabbitmq.dead-letters",
        format!(
            "{messages} messages that another program has published or rejected are in {queue}"
        ),
        "let nothing else use the queues of this prefix, and purge this one once you have seen its \
         messages: no job needs them. An ingress makes jobs of messages",
    )
}

pub(super) fn classic() -> Finding {
    info(
        "rabbitmq.classic",
        "queues are classic: a crash of the broker loses messages that move between queues",
        "their jobs run from the log, a little late; use quorum queues to avoid it",
    )
}

pub(super) fn plugin() -> Finding {
    warning(
        "rabbitmq.plugin",
        "the plugin for delayed messages keeps them on one node, for at most 49 days",
        "lost messages are replaced by the log; set `topology` to \"declare\" to do without the plugin",
    )
}

pub(super) fn messages_late(with: u64, without: u64) -> Finding {
    warning(
        "rabbitmq.messages-late",
        format!(
            "since this process started, {without} jobs were claimed without their messages, and \
             {with} jobs with them"
        ),
        "after a restart the broker delays dead letters for three minutes unless \
         `dead_letter_worker_publisher_confirm_timeout` is 5000 and \
         `dead_letter_worker_consumer_prefetch` 512, in advanced.config",
    )
}

pub(super) fn messages_lost(jobs: u64) -> Finding {
    warning(
        "rabbitmq.messages-lost",
        format!("since this process started, the messages of {jobs} jobs could not be published"),
        "the jobs run from the log, the first some 250 ms late. See the log of this process for the \
         reason",
    )
}

pub(super) fn objects_missing(failure: &str) -> Finding {
    warning(
        "rabbitmq.topology",
        format!("exchanges or queues are missing: {failure}"),
        "jobs run from the log meanwhile, the first some 250 ms late",
    )
}

/// Reports the numbers that operators watch.
pub(super) fn gauges(stats: &[QueueStats], engine: &Engine) -> Finding {
    let sum = |count: fn(&QueueStats) -> u64| stats.iter().map(count).sum::<u64>();
    let active = stats.iter().filter(|stats| !stats.paused);
    let first_due = active.filter_map(|stats| stats.next_due).min();
    let overdue = first_due.map_or(Duration::ZERO, |due| engine.log.now().since(due));
    info(
        "rabbitmq.gauges",
        format!(
            "{} jobs are pending, {} run and {} are dead; the oldest has been due for {} s; {} jobs \
             were claimed before their messages, and {} have none; the log uses {} % of its capacity",
            sum(|stats| stats.scheduled + stats.ready),
            sum(|stats| stats.running),
            sum(|stats| stats.dead),
            overdue.as_secs(),
            engine.misses.without_message(),
            engine.publisher.lost(),
            engine.log.usage().percent(),
        ),
        "none needed",
    )
}

pub(super) fn log_full(used_percent: u64) -> Finding {
    error(
        "rabbitmq.log-full",
        format!(
            "jobs that are not done take {used_percent} % of what the log may hold of them; \
             `schedule` fails when it is full"
        ),
        "run jobs, remove dead ones, or set a larger `log_size_mib`",
    )
}

pub(super) fn log_stuck(failure: &Error) -> Finding {
    error(
        "rabbitmq.log-stuck",
        format!(
            "the log cannot go on in its next stream, and `schedule` fails once this one has grown by \
             a quarter of `log_size_mib`: {}",
            failure.message()
        ),
        failure.remedy_text().unwrap_or("check that the broker runs"),
    )
}

pub(super) fn single_node() -> Finding {
    info(
        "rabbitmq.single-node",
        "the broker is a single node: a power failure may lose the last moments of the log",
        "use a cluster of three nodes",
    )
}

/// Reports skew between this clock and the broker's, as far as a response with this date proves it.
pub(crate) fn clock_skew(
    requested: Timestamp,
    date: Timestamp,
    responded: Timestamp,
) -> Option<Finding> {
    let ahead = requested.since(date + MAX_DATE_AGE);
    let behind = date.since(responded);
    let (skew, direction) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    (skew > MAX_SKEW).then(|| {
        warning(
            "rabbitmq.clock-skew",
            format!("the clock of this process is {} s {direction} the broker's", skew.as_secs()),
            "synchronize the clocks of all hosts by NTP: jobs run by the clock of the process that \
             claims them, early if it is ahead and late if it is behind",
        )
    })
}

/// Reports replicated queues that have too few replicas, or replicas that do not run.
pub(crate) fn replica_findings(queues: &Value, names: &ObjectNames, nodes: usize) -> Vec<Finding> {
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
        findings.push(warning(
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
        findings.push(warning(
            "rabbitmq.replicas-down",
            format!(
                "replicas of {} queues do not run, among them {}",
                degraded.len(),
                name_of(first)
            ),
            "start all nodes of the cluster",
        ));
    }
    findings
}

/// Reports a node that does not run, has an alarm, or is partitioned.
pub(crate) fn node_findings(node: &Value) -> Vec<Finding> {
    let name = node["name"].as_str().unwrap_or("a node");
    let mut findings = Vec::new();
    let mut push = |severity, code, what: &str, remedy| {
        findings.push(Finding::new(severity, code, format!("{name} {what}"), remedy));
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

/// Reports the dead jobs that name lost streams.
pub(crate) fn losses(stats: &[QueueStats]) -> Option<Finding> {
    let notes = stats.iter().find(|it| it.queue.as_str() == LOSSES).map_or(0, |it| it.dead);
    (notes > 0).then(|| {
        let what = format!(
            "the broker has lost acknowledged entries of the log, and jobs with them: {notes} dead jobs \
             of the queue `{LOSSES}` say which"
        );
        error("rabbitmq.log-lost", what, LOSS_REMEDY)
    })
}

pub(crate) fn lost_payloads(lost: &BTreeSet<JobId>) -> Option<Finding> {
    let first = lost.first()?;
    Some(error(
        "rabbitmq.payload-lost",
        format!(
            "the log does not have the payloads of {} jobs any more, the first is {first}",
            lost.len()
        ),
        "a policy of the broker has deleted messages of the log, or disks have failed: such a job is \
         dead when it is claimed; schedule it again with its payload, and remove the dead one",
    ))
}

pub(crate) fn skipped_messages(skipped: &SkippedMessages) -> Option<Finding> {
    let SkippedMessages { foreign, damaged, last_offset } = skipped;
    (foreign + damaged > 0).then(|| {
        warning(
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

pub(crate) fn ladder_stalled(waited: Duration) -> Finding {
    error(
        "rabbitmq.ladder",
        format!("a test message through the ladder was not delivered within {waited:?}"),
        "jobs run from the log meanwhile. Right after a restart, wait three minutes, or set \
         `dead_letter_worker_publisher_confirm_timeout` to 5000 in advanced.config; else check that \
         the queues of the ladder have a leader (`rabbitmq-queues quorum_status`)",
    )
}

pub(crate) fn ladder_untested(error: &Error, prefix: &str) -> Finding {
    let prefix = prefix.replace('.', r"\.");
    info(
        "rabbitmq.ladder-untested",
        format!("the delay ladder was not tested: {}", error.message()),
        format!(
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_of_the_own_queues_are_counted() {
        let queue = |name: &str, members: usize, online: usize| {
            let (members, online) = (vec!["n"; members], vec!["n"; online]);
            json!({"name": name, "members": members, "online": online})
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
        // A classic queue has no members.
        assert_eq!(codes(vec![json!({"name": "dq.v1.dead"})], 3), none);
    }

    #[test]
    fn clock_skew_is_reported_only_if_latency_does_not_explain_it() {
        for (requested, date, responded, expected) in [
            (7_000, 0, 7_010, None),
            (0, 5_000, 0, None),
            (0, 4_000, 60_000, None),
            (7_001, 0, 9_000, Some("5 s ahead of")),
            (0, 65_001, 5_000, Some("60 s behind")),
        ] {
            let [asked, date, answered] = [requested, date, responded].map(Timestamp::from_millis);
            let cause = clock_skew(asked, date, answered).map(|finding| finding.cause);
            let expected =
                expected.map(|skew| format!("the clock of this process is {skew} the broker's"));
            assert_eq!(cause, expected, "{requested} {date} {responded}");
        }
    }
}
