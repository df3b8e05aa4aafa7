//! The rights documented in the crate are sufficient and necessary for the calls made here.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Announcement, Backend, Dq, DurationExt, ErrorKind, Severity, Timestamp};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::{Redis, RedisCluster, Sentinel};
use futures_util::FutureExt;

use crate::faults::fixture::{
    TIMEOUT, TestRunner, assert_error, claim, connect, found, job, open, queue,
};
use crate::faults::flow::{flow_beside_java, flow_with_expiry, whole_flow};

const SCHEMES: [&str; 3] = ["redis", "redisson", "redis-expiry"];

/// `words[2]` is the user.
fn acl_commands(text: &str) -> Vec<Vec<String>> {
    let words = |block: &str| {
        let (line, _) = block.split_once("```")?;
        let words = line.split_whitespace().filter(|word| *word != "\\");
        Some(["ACL", "SETUSER"].into_iter().chain(words).map(str::to_owned).collect())
    };
    text.split("ACL SETUSER").skip(1).filter_map(words).collect()
}

/// The command of lib.rs for this scheme, with the tests' queue names. `redis-expiry` adds to the
/// command of `redis`.
fn documented(scheme: &str) -> Vec<String> {
    let lines = include_str!("../../src/lib.rs").lines();
    let text: Vec<&str> = lines.filter_map(|line| line.strip_prefix("//!")).collect();
    let commands = acl_commands(&text.join("\n").replace("~orders", "~flow*"));
    let [native, redisson, expiry] = &commands[..] else { panic!("{commands:?}") };
    match scheme {
        "redisson" => redisson.clone(),
        "redis-expiry" => [native, &expiry[3..]].concat(),
        _ => native.clone(),
    }
}

/// The command of the guide with this ending.
fn in_the_guide(ending: &str) -> Vec<String> {
    let commands = acl_commands(include_str!("../../../docs/guide/redis.md"));
    let found = commands.into_iter().find(|words| words.join(" ").ends_with(ending));
    found.unwrap_or_else(|| panic!("no line of the guide ends with {ending}"))
}

fn login(words: &[String]) -> (&str, &str) {
    let password = words.iter().find_map(|word| word.strip_prefix('>'));
    (&words[2], password.expect("a password"))
}

fn set_user(redis: &Redis, words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = redis.command(&words);
    assert!(answer.is_ok(), "{answer:?}");
}

fn prepare(scheme: &str) -> (Redis, String) {
    let redis = Redis::options().set("notify-keyspace-events", "Ex").start();
    let words = documented(scheme);
    set_user(&redis, &words);
    let (user, password) = login(&words);
    let url = format!("{scheme}://{user}:{password}@{}/0", redis.address());
    (redis, url)
}

/// A backend for each `java_visibility` that needs other rights, without `configure` and `shards`.
struct Backends(Vec<Arc<dyn Backend>>);

impl Backends {
    async fn open(scheme: &str, url: &str) -> Self {
        let options = match scheme {
            "redisson" => &["?java_visibility=approximate", "?java_visibility=exact"][..],
            _ => &[""],
        };
        let mut backends = Vec::new();
        for options in options {
            backends.push(open(&format!("{url}{options}")).await);
        }
        Self(backends)
    }

    /// Leaves out `forecast`, `announce`, `runners`, removing dead jobs, and all verdicts except
    /// done and dead.
    async fn flow(&self, scheme: &str, redis: &Redis, max_wait: Duration) {
        whole_flow(&self.0[0], max_wait).await;
        match scheme {
            "redisson" => flow_beside_java(redis, &self.0[0], &self.0[1], max_wait).await,
            "redis-expiry" => flow_with_expiry(&self.0[0]).await,
            _ => {}
        }
    }
}

const USUAL: &str = "+@all -@admin -@dangerous";

/// Allows all keys and channels. Returns the URL's login part.
fn set_restricted_user(redis: &Redis, denied: &[&str]) -> &'static str {
    let words = format!("ACL SETUSER app reset on >secret1 ~* &* {USUAL} {}", denied.join(" "));
    set_user(redis, &words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    "app:secret1@"
}

async fn assert_settings_are_unknown(backend: &Arc<dyn Backend>) {
    let findings = backend.check().await;
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((finding.code, finding.severity), ("redis.settings-unknown", Severity::Info));
    assert!(finding.remedy.contains("+info"));
}

#[tokio::test]
async fn the_usual_restriction_is_enough() {
    for scheme in SCHEMES {
        let redis = Redis::options().set("notify-keyspace-events", "Ex").start();
        let login = set_restricted_user(&redis, &[]);
        let url = format!("{scheme}://{login}{}/0", redis.address());
        let backends = Backends::open(scheme, &url).await;
        backends.flow(scheme, &redis, TIMEOUT).await;
        assert_settings_are_unknown(&backends.0[0]).await;

        let other_database = open(&url.replace("/0", "/1")).await;
        whole_flow(&other_database, TIMEOUT).await;
    }
}

#[tokio::test]
async fn the_usual_restriction_of_the_guide_is_enough() {
    let redis = Redis::start();
    let words = in_the_guide(USUAL);
    set_user(&redis, &words);
    let (user, password) = login(&words);
    let url = format!("redis://{user}:{password}@{}/0", redis.address());
    let backend = open(&url).await;
    whole_flow(&backend, TIMEOUT).await;
    assert_settings_are_unknown(&backend).await;
    assert_eq!(
        in_the_guide("+pttl +pexpire +persist"),
        documented("redis"),
        "the guide and lib.rs"
    );
}

#[tokio::test]
async fn the_usual_restriction_is_enough_with_sentinel_and_cluster() {
    let primary = Redis::options().set("notify-keyspace-events", "Ex").start();
    let sentinel = Sentinel::start(&primary, "jobs");
    let login = set_restricted_user(&primary, &[]);
    let cluster = RedisCluster::start(3);
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "notify-keyspace-events", "Ex"]);
        set_restricted_user(node, &[]);
    }
    for scheme in SCHEMES {
        for url in [
            format!("{scheme}+sentinel://{login}{}/jobs/0", sentinel.address()),
            format!("{scheme}+cluster://{login}{}", cluster.nodes()[0].address()),
        ] {
            let backend = open(&url).await;
            whole_flow(&backend, TIMEOUT).await;
            assert_settings_are_unknown(&backend).await;
        }
    }
}

/// Only `check` sends some of these commands.
#[tokio::test]
async fn each_optional_command_may_be_denied() {
    for scheme in SCHEMES {
        let redis = Redis::options().set("notify-keyspace-events", "Ex").start();
        for denied in [
            "-hello", "-info", "-ping", "-client", "-config", "-cluster", "-command", "-role",
            "-select", "-script", "-keys", "-acl", "-wait",
        ] {
            println!("{scheme} {denied}");
            let login = set_restricted_user(&redis, &["+@all", denied]);
            let url = format!("{scheme}://{login}{}/0", redis.address());
            Backends::open(scheme, &url).await.flow(scheme, &redis, TIMEOUT).await;
        }
    }
    let cluster = RedisCluster::start(3);
    for denied in ["-hello", "-info", "-client", "-config", "-role", "-readonly", "-asking"] {
        println!("cluster {denied}");
        let logins =
            cluster.nodes().iter().map(|node| set_restricted_user(node, &["+@all", denied]));
        let login = logins.last().unwrap_or_default();
        whole_flow(
            &open(&format!("redis+cluster://{login}{}", cluster.nodes()[0].address())).await,
            TIMEOUT,
        )
        .await;
    }
}

#[tokio::test]
async fn without_the_right_to_subscribe_jobs_run_and_check_names_it() {
    for scheme in SCHEMES {
        let redis = Redis::start();
        let login = set_restricted_user(&redis, &["-subscribe"]);
        let backend = open(&format!("{scheme}://{login}{}/0", redis.address())).await;
        backend.listen(&[queue("q")], "test").await.unwrap();
        backend.schedule(vec![job("q")]).await.unwrap();
        assert_eq!(claim(&*backend, &["q"], 9).await.unwrap().jobs.len(), 1, "{scheme}");
        let findings = backend.check().await;
        let finding = found(&findings, "redis.no-wakeups");
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.cause.contains("subscribe") && finding.remedy.contains("rights"));
    }
}

/// HELLO reveals the replica. If HELLO is denied, the first write does.
#[tokio::test]
async fn a_replica_is_refused_without_the_right_to_hello() {
    let primary = Redis::start();
    let replica = Redis::options().replica_of(&primary).start();
    for denied in [&[][..], &["-hello"]] {
        let login = set_restricted_user(&replica, denied);
        for scheme in SCHEMES {
            let url = format!("{scheme}://{login}{}/0", replica.address());
            assert_error(connect(&url).await, ErrorKind::ReadOnly, &["replica", "primary"]);
        }
    }
}

#[tokio::test]
async fn the_documented_rights_are_sufficient() {
    for scheme in SCHEMES {
        let (redis, url) = prepare(scheme);
        Backends::open(scheme, &url).await.flow(scheme, &redis, TIMEOUT).await;
        let words = documented(scheme);
        let mut user = redis.connect();
        let (name, password) = login(&words);
        assert!(user.command(&["AUTH", name, password]).is_ok());
        for words in [
            &["ZADD", "other", "1", "x"][..],
            &["PUBLISH", "other", "x"],
            &["FLUSHALL"],
            &["DEL", "{dq}:due:q"],
            &["CONFIG", "GET", "*"],
        ] {
            assert!(user.command(words).error().starts_with("NOPERM"), "{scheme}: {words:?}");
        }
    }
}

#[tokio::test]
async fn the_documented_rights_are_sufficient_for_shards_schedules_and_announcements() {
    let (redis, url) = prepare("redis");
    let user = &documented("redis")[2];
    set_user(&redis, &["ACL", "SETUSER", user, "~{dq#*}:*"].map(str::to_owned));
    let mut config = RedisConfig::new(url);
    config.shards.insert(queue("q"), 4);
    let backend = RedisBackend::connect(&config, &Environment::default()).await.unwrap();
    backend.schedule((0..8).map(|_| job("q")).collect()).await.unwrap();
    assert_eq!(claim(&backend, &["q"], 9).await.unwrap().jobs.len(), 8);
    let times = [Timestamp::EPOCH, Timestamp::from_millis(1)];
    backend.forecast(&queue("q"), &times).await.unwrap();
    let announcement = Announcement::new("web", "{}", Duration::from_secs(60));
    backend.announce(announcement).await.unwrap();
    assert_eq!(backend.runners().await.unwrap().len(), 1);
}

async fn assert_each_right_is_needed(scheme: &str) {
    let (redis, url) = prepare(scheme);
    let words = documented(scheme);
    let rights: Vec<&String> = words.iter().filter(|word| word.starts_with('+')).collect();
    assert!(rights.len() > 20, "{words:?}");
    let mut unnecessary = Vec::new();
    for right in rights {
        set_user(&redis, &words);
        let backends = Backends::open(scheme, &url).await;
        let user = &words[2];
        let without = right.replacen('+', "-", 1);
        set_user(&redis, &["ACL".into(), "SETUSER".into(), user.clone(), without]);
        // Connecting fails without this right, unless only some calls need it.
        if !["+sadd", "+smembers", "+subscribe"].contains(&right.as_str()) {
            let answer = connect(&url).await;
            let error = assert_error(answer, ErrorKind::Config, &["rights"]);
            let name = right.trim_start_matches('+');
            assert!(error.message().to_lowercase().contains(name), "{name}: {error}");
        }
        redis.command(&["SCRIPT", "FLUSH"]);
        let flow = backends.flow(scheme, &redis, Duration::from_secs(1));
        if AssertUnwindSafe(flow).catch_unwind().await.is_ok() {
            unnecessary.push(right.as_str());
        }
    }
    assert!(unnecessary.is_empty(), "no call needs {unnecessary:?}");
}

#[tokio::test]
async fn each_right_is_needed() {
    assert_each_right_is_needed("redis").await;
}

#[tokio::test]
async fn each_right_of_redisson_is_needed() {
    assert_each_right_is_needed("redisson").await;
}

#[tokio::test]
async fn each_right_of_redis_expiry_is_needed() {
    assert_each_right_is_needed("redis-expiry").await;
}

#[tokio::test]
async fn each_key_and_channel_is_needed() {
    for (scheme, from, to, missing) in [
        ("redis", "~{dq}:*", "~{other}:*", "key"),
        ("redis", "&{dq}:", "&{other}:", "channel"),
        ("redisson", "~dq:*", "~other:*", "key"),
        ("redisson", "~redisson_delay_queue:*", "~other:*", "key"),
        ("redisson", "~redisson_delay_queue_timeout:*", "~other:*", "key"),
        ("redisson", "&redisson_delay_queue_channel:*", "&other:*", "channel"),
        ("redis-expiry", "~{dq}:*", "~{other}:*", "key"),
    ] {
        let (redis, url) = prepare(scheme);
        let with = documented(scheme);
        let words: Vec<String> = with.iter().map(|word| word.replace(from, to)).collect();
        assert_ne!(words, with, "{missing}");
        set_user(&redis, &words);
        assert_error(connect(&url).await, ErrorKind::Config, &["rights", missing]);
    }
    let (redis, url) = prepare("redis");
    let backend = open(&url).await;
    let user = &documented("redis")[2];
    redis.command(&["ACL", "SETUSER", user, "off"]);
    redis.command(&["CLIENT", "KILL", "USER", user]);
    found(&backend.check().await, "redis.unreachable");
}

/// Runners also look at the schedules, and so does `check`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_needs_no_other_rights() {
    for scheme in SCHEMES {
        let (_redis, url) = prepare(scheme);
        let backend = open(&url).await;
        let dq = Dq::builder().backend(Arc::clone(&backend)).connect().await.unwrap();
        let mut runner = TestRunner::start(&backend, &["flow"]).await;
        let job = job("flow");
        backend.schedule(vec![job.clone()]).await.unwrap();
        assert_eq!(runner.wait_for_all(&[job]).await.len(), 1, "{scheme}");
        assert!(dq.recurring_in("flow", "nightly").every(1.hours()).upsert().await.unwrap());
        assert_eq!(dq.unreadable_schedules().await.unwrap().len(), 0, "{scheme}");
    }
}

#[tokio::test]
async fn the_names_of_queues_are_needed_by_redisson() {
    let (redis, url) = prepare("redisson");
    let backend = open(&url).await;
    let answer = claim(&*backend, &["other"], 1).await;
    assert_error(answer, ErrorKind::Config, &["key", "rights"]);
    redis.command(&["ACL", "SETUSER", &documented("redisson")[2], "~other"]);
    claim(&*backend, &["other"], 1).await.unwrap();
}

#[tokio::test]
async fn redis_expiry_works_and_reports_missing_rights_to_notifications_and_config() {
    let (redis, url) = prepare("redis-expiry");
    let mut words = documented("redis-expiry");
    words.retain(|word| word != "&__keyevent@*__:expired");
    set_user(&redis, &words);
    let backend = open(&url).await;
    whole_flow(&backend, TIMEOUT).await;
    found(&backend.check().await, "redis-expiry.notifications-unknown");

    redis.command(&["CONFIG", "SET", "notify-keyspace-events", ""]);
    set_user(&redis, &documented("redis-expiry"));
    let url = format!("{url}?configure=true");
    found(&open(&url).await.check().await, "redis-expiry.config-refused");
    redis.command(&["ACL", "SETUSER", &words[2], "+config|get", "+config|set"]);
    flow_with_expiry(&open(&url).await).await;
}

#[tokio::test]
async fn databases_and_clusters_need_the_documented_rights() {
    let cluster = RedisCluster::start(3);
    let options = ["notify-keyspace-events", "Ex"];
    for scheme in SCHEMES {
        let (redis, url) = prepare(scheme);
        let words = documented(scheme);
        let user = words[2].clone();
        let other = url.replace("/0", "/1");
        assert_error(connect(&other).await, ErrorKind::Config, &["select", "rights"]);
        redis.command(&["ACL", "SETUSER", &user, "+select"]);
        whole_flow(&open(&other).await, TIMEOUT).await;

        for node in cluster.nodes() {
            node.command(&["CONFIG", "SET", options[0], options[1]]);
            set_user(node, &words);
            node.command(&["ACL", "SETUSER", &user, "-cluster|slots"]);
        }
        let (_, address) = url.split_once("://").unwrap();
        let (login, _) = address.split_once('@').unwrap();
        let url = format!("{scheme}+cluster://{login}@{}", cluster.nodes()[0].address());
        connect(&url).await.expect_err("it cannot ask for the slots");
        for node in cluster.nodes() {
            node.command(&["ACL", "SETUSER", &user, "+cluster|slots"]);
        }
        whole_flow(&open(&url).await, TIMEOUT).await;
    }
}
