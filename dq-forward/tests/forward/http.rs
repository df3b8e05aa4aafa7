use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::{Dq, Verdict};
use dq_forward::{HttpForward, HttpSettings, Resolve};

use crate::common::{Running, client, client_with_default_attempts, schedule};
use crate::receiver::{HANG, Receiver, Request, UNFINISHED};

const OK: &str = "HTTP/1.1 204 No Content\r\n\r\n";

async fn webhook(receiver: &Receiver, more: &str) -> Dq {
    let url = receiver.url("/hook?x=1");
    client(&format!(
        "[queues.HOOK.forward]\ntype = 'http'\nurl = '{url}'\nallow = ['127.0.0.1']\n{more}"
    ))
    .await
}

#[tokio::test]
async fn a_job_is_done_when_the_receiver_has_taken_it() {
    let receiver = Receiver::start("127.0.0.1:0", &[OK]).await;
    let dq = webhook(&receiver, "headers = { Authorization = \"Bearer hunter2\" }").await;
    let mut running = Running::start(dq.runner());
    let id = schedule(&dq, "HOOK", "{\"order\":1}").await;
    assert_eq!(running.next().await, (id, Verdict::Done));
    running.stop().await;
    let [request] = receiver.requests().try_into().unwrap();
    assert_eq!(request.line, "POST /hook?x=1 HTTP/1.1");
    assert_eq!(request.body, b"{\"order\":1}");
    assert_eq!(request.header("webhook-id"), Some(id.to_string().as_str()));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("authorization"), Some("Bearer hunter2"));
    assert_eq!(request.header("host"), Some(receiver.address.to_string().as_str()));
    assert_eq!(request.header("webhook-signature"), None, "there is no key");
}

/// A proxy would resolve the name itself.
#[test]
fn a_proxy_in_the_environment_is_not_used() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "http::a_job_is_done_when_the_receiver_has_taken_it"]);
    // Nobody listens there.
    let child = child.env("http_proxy", "http://127.0.0.1:1").env_remove("no_proxy").output();
    let output = String::from_utf8(child.unwrap().stdout).unwrap();
    assert!(output.contains("1 passed"), "{output}");
}

#[tokio::test]
async fn a_request_says_which_job_it_is_for() {
    let receiver = Receiver::start("127.0.0.1:0", &[OK]).await;
    let dq = webhook(&receiver, "").await;
    let key = "ключ 17%";
    let job = dq.queue("HOOK").unwrap().schedule("1", "application/json").key(key);
    let due = job.await.unwrap().due();
    let _ = dq.recurring_in("HOOK", "tick").every(Duration::from_secs(1)).upsert().await.unwrap();
    let mut running = Running::start(dq.runner());
    let mut done = 0;
    while done < 2 {
        // Other verdicts belong to the schedule job.
        done += usize::from(running.next().await.1 == Verdict::Done);
    }
    running.stop().await;
    let requests = receiver.requests();
    assert!(requests.iter().all(|request| request.header("dq-queue") == Some("HOOK")));
    let of_key = |request: &&Request| request.header("dq-key").is_some_and(|it| it.contains('%'));
    let request = requests.iter().find(of_key).unwrap();
    assert_eq!(request.header("dq-key"), Some("%D0%BA%D0%BB%D1%8E%D1%87%2017%25"));
    assert_eq!(request.header("dq-due"), Some(due.to_string().as_str()));
    assert_eq!(request.header("dq-first-due"), Some(due.to_string().as_str()));
    assert_eq!(request.header("dq-occurrence"), None);
    let occurrence = requests.iter().find_map(|request| request.header("dq-occurrence")).unwrap();
    assert!(occurrence.ends_with(".000Z"), "{occurrence}");
}

#[tokio::test]
async fn each_answer_has_its_outcome_and_nothing_is_lost() {
    let elsewhere = Receiver::start("127.0.0.1:0", &[OK]).await;
    let redirect = format!("HTTP/1.1 307 T\r\nLocation: {}\r\n\r\n", elsewhere.url("/"));
    let metadata = "HTTP/1.1 302 F\r\nLocation: http://169.254.169.254/latest/\r\n\r\n";
    for (answers, verdicts) in [
        (&["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"][..], &["done"][..]),
        (&["HTTP/1.1 429 T\r\nRetry-After: 1\r\n\r\n", OK], &["retry answered 429", "done"]),
        // A receiver that puts the job off for ever: the last attempt ends it.
        (
            &["HTTP/1.1 429 T\r\nRetry-After: 1\r\n\r\n"; 2],
            &["retry answered 429", "dead exhausted: answered 429"],
        ),
        (&["HTTP/1.1 503 U\r\nRetry-After: 1\r\n\r\n", OK], &["retry answered 503", "done"]),
        (
            &["HTTP/1.1 500 E\r\nContent-Length: 4\r\n\r\nbusy", OK],
            &["retry answered 500 Internal Server Error: busy", "done"],
        ),
        (
            &["HTTP/1.1 410 Gone\r\nContent-Length: 8\r\n\r\nmoved\r\n!"],
            &["dead rejected: answered 410 Gone: moved  !"],
        ),
        (&["HTTP/1.1 422 U\r\n\r\n"], &["dead rejected: answered 422"]),
        (&[metadata, OK], &["retry answered 302", "done"]),
        (&[&redirect, OK], &["retry answered 307", "done"]),
        // The connection closes before the answer, in the middle of it, or never.
        (&["", OK], &["retry no answer", "done"]),
        (&["HTTP/1.1 20", OK], &["retry no answer", "done"]),
        (&["garbage\r\n\r\n", OK], &["retry no answer", "done"]),
        (&[UNFINISHED], &["dead rejected: answered 410 Gone: moved"]),
        (&[HANG, OK], &["retry no answer within 10s", "done"]),
    ] {
        let receiver = Receiver::start("127.0.0.1:0", answers).await;
        let two_attempts = "[queues.HOOK]\nmax_attempts = 2";
        let is_slow = [HANG, UNFINISHED].contains(&answers[0]);
        let timeout = if is_slow { "timeout = \"10s\"" } else { "" };
        let dq = webhook(&receiver, &format!("dead_on = [422]\n{timeout}\n{two_attempts}")).await;
        let mut running = Running::start(dq.runner());
        schedule(&dq, "HOOK", "1").await;
        for expected in verdicts {
            let verdict = running.next_text().await;
            assert!(verdict.starts_with(expected), "{answers:?}: {verdict}");
            assert!(!verdict.contains("hook"), "the URL may hold a token: {verdict}");
        }
        running.stop().await;

        // Each request names its attempt; the job id stays.
        let requests = receiver.requests();
        assert_eq!(requests.len(), answers.len(), "{answers:?}");
        let (first, last) = (&requests[0], requests.last().unwrap());
        let is_retry = requests.len() > 1;
        assert_eq!(first.header("webhook-id"), last.header("webhook-id"), "{answers:?}");
        assert_eq!(last.header("dq-due") != last.header("dq-first-due"), is_retry, "{answers:?}");
        for number in ["dq-attempt", "dq-deliveries"] {
            assert_eq!(last.header(number), Some(requests.len().to_string().as_str()), "{number}");
        }
        let token = |request: &Request| request.header("dq-fencing-token").unwrap().parse::<u64>();
        assert_eq!(token(first).unwrap() < token(last).unwrap(), is_retry, "{answers:?}");
    }
    assert_eq!(elsewhere.connections(), 0, "redirects are not followed");
}

#[tokio::test]
async fn a_queue_with_a_forward_tries_fifteen_times() {
    const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\n\r\n";
    let receiver = Receiver::start("127.0.0.1:0", &[NOT_FOUND]).await;
    let url = receiver.url("/");
    let dq = client_with_default_attempts(&format!(
        "[queues.HOOK.forward]\ntype = 'http'\nurl = '{url}'\nallow = ['127.0.0.1']"
    ))
    .await;
    let mut running = Running::start(dq.runner());
    schedule(&dq, "HOOK", "1").await;
    for _ in 0..14 {
        assert_eq!(running.next_text().await, "retry answered 404 Not Found");
    }
    assert_eq!(running.next_text().await, "dead exhausted: answered 404 Not Found");
    running.stop().await;
    assert_eq!(receiver.requests().len(), 15);
}

/// Resolves to one address list after the other, in a cycle.
#[derive(Debug)]
struct Changing {
    answers: Vec<Vec<IpAddr>>,
    calls: Arc<AtomicUsize>,
}

#[dq_core::async_trait]
impl Resolve for Changing {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        assert_eq!(host, "hooks.example.com");
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(self.answers[call % self.answers.len()].clone())
    }
}

#[tokio::test]
async fn a_name_that_changes_its_address_reaches_nothing_forbidden() {
    const JOBS: usize = 20;
    let permitted = Receiver::start("127.0.0.2:0", &[OK]).await;
    let port = permitted.address.port();
    let forbidden = Receiver::start(&format!("127.0.0.3:{port}"), &[OK]).await;
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (good, bad) = (ip("127.0.0.2"), ip("127.0.0.3"));
    let mut settings = HttpSettings::new(format!("http://hooks.example.com:{port}/"));
    settings.allow = vec!["127.0.0.2".to_owned()];
    let calls = Arc::new(AtomicUsize::new(0));
    let answers = vec![vec![good], vec![bad], vec![bad, good], vec![ip("169.254.169.254")]];
    let resolver = Changing { answers, calls: Arc::clone(&calls) };
    let forward = HttpForward::with_resolver(settings, resolver).unwrap();
    let dq = client("").await;
    let mut running = Running::start(dq.runner().raw_handler("HOOK", forward));
    for job in 0..JOBS {
        schedule(&dq, "HOOK", &job.to_string()).await;
    }
    let expected_refusals = ["127.0.0.3", "169.254.169.254"].map(|address| {
        format!(
            "retry cannot connect: hooks.example.com has no public address, but {address}; if \
             requests should go there, add it to `allow`"
        )
    });
    let (mut done, mut refused) = (0, 0);
    while done < JOBS {
        let verdict = running.next_text().await;
        if verdict == "done" {
            done += 1;
        } else {
            assert!(expected_refusals.contains(&verdict), "{verdict}");
            refused += 1;
        }
    }
    running.stop().await;
    assert_eq!(forbidden.connections(), 0);
    assert_eq!(permitted.requests().len(), JOBS);
    assert_eq!(calls.load(Ordering::SeqCst), done + refused, "one answer for each request");
    assert!(refused > 0);
    for request in permitted.requests() {
        assert_eq!(request.header("host"), Some(format!("hooks.example.com:{port}").as_str()));
    }
}

#[tokio::test]
async fn only_the_host_of_the_url_with_a_trusted_certificate_gets_the_job() {
    let dir = tempfile::tempdir().unwrap();
    dq_servers::create_certificates(dir.path());
    let receiver = Receiver::start_tls("127.0.0.1:0", &[OK], dir.path()).await;
    let port = receiver.address.port();
    let ca = dir.path().join("ca.crt");
    for (host, ca, expected) in [
        ("localhost", Some(&ca), "done"),
        ("127.0.0.1", Some(&ca), "done"),
        ("localhost", None, "retry cannot connect: invalid peer certificate"),
        ("hooks.example.com", Some(&ca), "retry cannot connect: invalid peer certificate"),
    ] {
        let mut settings = HttpSettings::new(format!("https://{host}:{port}/"));
        settings.allow = vec!["127.0.0.1".to_owned()];
        settings.ca = ca.cloned();
        let forward = HttpForward::with_resolver(settings, Fixed).unwrap();
        let dq = client("").await;
        let before = receiver.requests().len();
        let mut running = Running::start(dq.runner().raw_handler("HOOK", forward));
        schedule(&dq, "HOOK", "1").await;
        let verdict = running.next_text().await;
        assert!(verdict.starts_with(expected), "{host}: {verdict}");
        running.stop().await;
        assert_eq!(receiver.requests().len() - before, usize::from(expected == "done"), "{host}");
    }
}

#[derive(Debug)]
struct Fixed;

#[dq_core::async_trait]
impl Resolve for Fixed {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    }
}
