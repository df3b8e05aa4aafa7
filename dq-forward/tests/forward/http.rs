//! Webhooks to real local servers.

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::{Dq, Due, ErrorKind, Rescheduled, Verdict};
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
        (&["HTTP/1.1 503 U\r\nRetry-After: 1\r\n\r\n", OK], &["retry answered 503", "done"]),
        (&["HTTP/1.1 429 T\r\n\r\n", OK], &["retry answered 429", "done"]),
        (
            &["HTTP/1.1 500 E\r\nContent-Length: 4\r\n\r\nbusy", OK],
            &["retry answered 500 Internal Server Error: busy", "done"],
        ),
        (&["HTTP/1.1 408 T\r\n\r\n", OK], &["retry answered 408", "done"]),
        (
            &["HTTP/1.1 410 Gone\r\nContent-Length: 8\r\n\r\nmoved\r\n!"],
            &["dead rejected: answered 410 Gone: moved  !"],
        ),
        (&["HTTP/1.1 400 B\r\n\r\n", OK], &["retry answered 400", "done"]),
        (&["HTTP/1.1 401 U\r\n\r\n", OK], &["retry answered 401", "done"]),
        (&["HTTP/1.1 422 U\r\n\r\n"], &["dead rejected: answered 422"]),
        (&[metadata, OK], &["retry answered 302", "done"]),
        (&[&redirect, OK], &["retry answered 307", "done"]),
        // The connection closes before the answer, in the middle of it, or never.
        (&["", OK], &["retry no answer", "done"]),
        (&["HTTP/1.1 20", OK], &["retry no answer", "done"]),
        (&["garbage\r\n\r\n", OK], &["retry no answer", "done"]),
        (&[UNFINISHED], &["dead rejected: answered 410 Gone: moved"]),
        (&[HANG, OK], &["retry no answer within 3s", "done"]),
    ] {
        let receiver = Receiver::start("127.0.0.1:0", answers).await;
        let timeout =
            if [HANG, UNFINISHED].contains(&answers[0]) { "timeout = \"3s\"" } else { "" };
        let dq = webhook(&receiver, &format!("dead_on = [422]\n{timeout}")).await;
        let mut running = Running::start(dq.runner());
        schedule(&dq, "HOOK", "1").await;
        for expected in verdicts {
            let verdict = running.next_text().await;
            assert!(verdict.starts_with(expected), "{answers:?}: {verdict}");
            assert!(!verdict.contains("hook"), "the URL may hold a token: {verdict}");
        }
        running.stop().await;
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
async fn a_receiver_that_is_down_gets_the_job_later() {
    let receiver = Receiver::start("127.0.0.1:0", &[OK]).await;
    let address = receiver.address;
    let dq = webhook(&receiver, "").await;
    drop(receiver);
    let mut running = Running::start(dq.runner());
    let id = schedule(&dq, "HOOK", "1").await;
    let verdict = running.next_text().await;
    assert!(verdict.starts_with("retry cannot connect: Connection refused"), "{verdict}");
    let receiver = Receiver::start(&address.to_string(), &[OK]).await;
    loop {
        let (job, verdict) = running.next().await;
        assert_eq!(job, id);
        if verdict == Verdict::Done {
            break;
        }
    }
    assert_eq!(receiver.requests().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_route_that_is_deployed_late_gets_the_job() {
    const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\n\r\n";
    // With the default attempt limit for forwards.
    let last = [[NOT_FOUND; 14].as_slice(), &[OK]].concat();
    for (answers, expected) in
        [(&last[..], "done"), (&[NOT_FOUND], "dead exhausted: answered 404 Not Found")]
    {
        let receiver = Receiver::start("127.0.0.1:0", answers).await;
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
        assert_eq!(running.next_text().await, expected);
        running.stop().await;
        assert_eq!(receiver.requests().len(), 15);
    }
}

#[tokio::test]
async fn a_receiver_that_always_says_later_is_counted_and_given_up() {
    let answer = "HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nslow";
    let receiver = Receiver::start("127.0.0.1:0", &[answer]).await;
    let url = receiver.url("/");
    let dq = client(&format!(
        "[queues.HOOK]\nmax_attempts = 3\nbackoff = {{ initial = \"1h\", max = \"1h\" }}\n\
         [queues.HOOK.forward]\ntype = \"http\"\nurl = \"{url}\"\nallow = [\"127.0.0.1\"]"
    ))
    .await;
    let mut running = Running::start(dq.runner());
    let id = schedule(&dq, "HOOK", "1").await;
    let queue = dq.queue("HOOK").unwrap();
    for failed in [1, 2] {
        let verdict = running.next_text().await;
        assert_eq!(verdict, "retry answered 429 Too Many Requests: slow");
        let view = queue.get(id).await.unwrap().unwrap();
        assert_eq!(view.job.attempts, failed, "it is counted");
        assert_eq!(view.last_error.unwrap(), "answered 429 Too Many Requests: slow");
        let moved = queue.reschedule(id, Due::NOW).await.unwrap();
        assert!(matches!(moved, Rescheduled::Moved(_)), "{moved:?}");
    }
    let verdict = running.next_text().await;
    assert_eq!(verdict, "dead exhausted: answered 429 Too Many Requests: slow");
    running.stop().await;
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
    let (mut done, mut refused) = (0, 0);
    while done < JOBS {
        match running.next_text().await {
            verdict if verdict == "done" => done += 1,
            verdict => {
                let expected = ["127.0.0.3", "169.254.169.254"].map(|address| {
                    format!(
                        "retry cannot connect: hooks.example.com has no public address, but \
                         {address}; if requests should go there, add it to `allow`"
                    )
                });
                assert!(expected.contains(&verdict), "{verdict}");
                refused += 1;
            }
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

/// Resolves every name to localhost.
#[derive(Debug)]
struct Fixed;

#[dq_core::async_trait]
impl Resolve for Fixed {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    }
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_by_name() {
    for (keys, expected) in [
        ("type = 'http'", "missing field `url`"),
        (
            "type = 'htp'\nurl = 'https://h'",
            "no forward is called \"htp\"; known: amqp, http, redis-list, redis-stream",
        ),
        ("type = 'http'\nurl = 'https://h'\nretries = 3", "unknown field `retries`"),
        ("type = 'http'\nurl = 'hunter2'", "`url` is not a URL"),
        ("type = 'http'\nurl = 'ftp://hunter2'", "`url` begins neither"),
        ("type = 'http'\nurl = 'https://user:hunter2@h'", "`url` has a login"),
        ("type = 'http'\nurl = 'http://169.254.169.254/'", "169.254.169.254, which is not public"),
        ("type = 'http'\nurl = 'http://[::1]:8080/'", "::1, which is not public"),
        ("type = 'http'\nurl = 'http://localhost:8080/'", "localhost, which is not public"),
        ("type = 'http'\nurl = 'https://h'\ndead_on = [204]", "`dead_on` has 204"),
        ("type = 'http'\nurl = 'https://h'\nsecrets = ['hunter2']", "24 to 64 bytes"),
        ("type = 'http'\nurl = 'https://h'\nallow = ['localhost']", "`allow` has \"localhost\""),
        (
            "type = 'http'\nurl = 'https://h'\nheaders = { Host = 'hunter2' }",
            "`headers` has \"Host\"",
        ),
        (
            "type = 'http'\nurl = 'https://h'\nheaders = { X = \"a\\nhunter2\" }",
            "the value of \"X\"",
        ),
        ("type = 'http'\nurl = 'https://h'\ntimeout = '0s'", "`timeout`"),
        ("type = 'http'\nurl = 'https://h'\nca = '/does/not/exist'", "/does/not/exist"),
        (
            "type = 'amqp'\nurl = 'hunter2'\nrouting_key = 'k'",
            "`url` is not the URL of an AMQP broker",
        ),
        ("type = 'amqp'\nurl = 'amqp://h'", "missing field `routing_key`"),
        (
            "type = 'redis-stream'\nurl = 'hunter2'\nstream = 's'",
            "`url` is not the URL of a Redis server",
        ),
        (
            "type = 'redis-list'\nurl = 'redis://h'\nlist = [1]",
            "`list`: found a list, expected a string",
        ),
    ] {
        let dq = client(&format!("[queues.HOOK.forward]\n{keys}")).await;
        let error = dq.runner().build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains("queues.HOOK.forward: ") && text.contains(expected), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(error.remedy_text().is_some_and(|remedy| !remedy.is_empty()), "{text}");
    }
}

#[tokio::test]
async fn a_queue_has_either_a_handler_or_a_forward() {
    let receiver = Receiver::start("127.0.0.1:0", &[OK]).await;
    let dq = webhook(&receiver, "").await;
    let forward = || HttpForward::new(HttpSettings::new("https://h")).unwrap();
    let error = dq.runner().raw_handler("HOOK", forward()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    let text = error.to_string();
    assert!(text.contains("queues.HOOK.forward") && text.contains("forward/http.rs"), "{text}");
    // A runner for other queues does not need it.
    assert!(dq.runner().raw_handler("OTHER", forward()).only(["OTHER"]).build().is_ok());
}
