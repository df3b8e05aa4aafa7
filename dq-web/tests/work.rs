use std::sync::Arc;

use dq_core::{Backend, Due, DurationExt, QueueName};
use dq_ops::{Actor, Ops};
use dq_web::Auth;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::support::{Fixture, OPERATOR, READER, Reply, VIEWER, WORKER};

async fn post(fixture: &Fixture, token: &str, path: &str, body: &Value) -> Reply {
    fixture.send(token, "POST", path, Some(&body.to_string())).await
}

async fn claim(fixture: &Fixture, body: &Value) -> Reply {
    post(fixture, WORKER, "/v1/claims", body).await
}

/// Schedules a job and claims it.
async fn job(fixture: &Fixture, key: &str) -> Value {
    fixture.schedule("MAIL", key, r#"{"to":"ann"}"#, Due::NOW).await;
    let mut claimed =
        claim(fixture, &json!({"queues": {"MAIL": 1}, "worker": "py-7f3"})).await.json();
    claimed["jobs"][0].take()
}

async fn settle(fixture: &Fixture, results: Value) -> Vec<Value> {
    let reply = post(fixture, WORKER, "/v1/leases:settle", &json!({"results": results})).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["now"].is_string());
    reply.json()["results"].as_array().unwrap().clone()
}

async fn renew(fixture: &Fixture, token: &str, leases: Value) -> Value {
    let reply = post(fixture, token, "/v1/leases:renew", &json!({"leases": leases})).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["leases"].clone()
}

#[tokio::test]
async fn a_worker_claims_renews_and_settles_a_job() {
    let fixture = Fixture::start("").await;
    assert_eq!(claim(&fixture, &json!({"queues": {"MAIL": 1}})).await.status, 204);
    let job = job(&fixture, "a").await;
    assert_eq!((&job["payload"], &job["key"]), (&json!({"to": "ann"}), &json!("a")));
    assert_eq!((&job["attempt"], &job["max_attempts"]), (&json!(1), &json!(5)));
    assert_eq!(job["headers"], json!({"origin": "<b>header</b>"}));
    assert!(job["token"].is_string() && job["lease_ends"].is_string(), "{job}");

    let path = format!("/v1/queues/MAIL/jobs/{}", job["id"].as_str().unwrap());
    for path in [path.clone(), format!("{path}/timeline")] {
        let seen = fixture.get(VIEWER, &path).await.json();
        let summary = if seen["job"].is_object() { &seen["job"] } else { &seen };
        let worker = summary["worker"].as_str().unwrap();
        assert!(worker.starts_with("py-7f3@serve-"), "{worker}");
    }
    fixture.clock.advance(20.seconds());
    let renewed = renew(&fixture, WORKER, json!([job["lease"]])).await;
    assert_eq!(renewed[0]["result"], json!("renewed"));
    fixture.clock.advance(20.seconds());
    let done = json!({"lease": job["lease"], "outcome": "done"});
    // The second answer is the same: the first may be lost.
    for _ in 0..2 {
        assert_eq!(settle(&fixture, json!([done])).await, [json!({"result": "settled"})]);
    }
    let other = json!({"lease": job["lease"], "outcome": "failed", "error": "no"});
    assert_eq!(settle(&fixture, json!([other])).await, [json!({"result": "lost", "why": "done"})]);
    assert_eq!(fixture.get(VIEWER, &path).await.json()["ended"]["ending"], json!("done"));
}

#[tokio::test]
async fn each_bad_result_is_refused_by_itself() {
    let fixture = Fixture::start("").await;
    let job = job(&fixture, "a").await;
    let lease = job["lease"].as_str().unwrap();
    let forged = format!("{}x", &lease[..lease.len() - 1]);
    let mut bad = vec![
        (json!({"lease": forged, "outcome": "done"}), "not from this server"),
        (json!({"lease": "", "outcome": "done"}), "not from this server"),
        (json!({"lease": lease, "outcome": "done", "error": "x"}), "`error`"),
        (json!({"lease": lease, "outcome": "snoozed"}), "`delay` is missing"),
        (json!({"lease": lease, "outcome": "snoozed", "delay": "soon"}), "soon"),
        (json!({"lease": lease, "outcome": "snoozed", "delay": "200y"}), "snoozed"),
        (json!({"lease": lease, "outcome": "failed", "delay": "now"}), "now"),
        (json!({"lease": lease, "outcome": "again", "delay": "1h"}), "`payload`"),
        (
            json!({"lease": lease, "outcome": "again", "delay": "1h", "payload_base64": "?"}),
            "Base64",
        ),
        (
            json!({"lease": lease, "outcome": "again", "delay": "1h", "payload_base64": "A".repeat(1_500_000)}),
            "bytes",
        ),
    ];
    bad.push((json!({"lease": lease, "outcome": "done"}), ""));
    let results: Vec<_> = bad.iter().map(|(result, _)| result.clone()).collect();
    let answers = settle(&fixture, json!(results)).await;
    let (last, refused) = answers.split_last().unwrap();
    for (answer, (result, expected)) in refused.iter().zip(&bad) {
        assert_eq!(answer["result"], json!("refused"), "{result}");
        let detail = answer["error"]["detail"].as_str().unwrap();
        assert!(detail.contains(expected), "{detail}");
    }
    assert_eq!(last, &json!({"result": "settled"}), "the good one counts");
}

#[tokio::test]
async fn results_of_another_form_are_refused_together() {
    let fixture = Fixture::start("").await;
    let job = job(&fixture, "a").await;
    let good = json!({"lease": job["lease"], "outcome": "done"});
    for (bad, expected) in [
        (json!({"outcome": "done"}), "`lease`"),
        (json!({"lease": 5, "outcome": "done"}), "`results[1].lease`"),
        (json!({"lease": job["lease"]}), "`outcome`"),
        (json!({"lease": job["lease"], "outcome": "great"}), "`results[1].outcome`"),
        (json!({"lease": job["lease"], "outcome": "done", "result": 5}), "`result`"),
        (json!([null, null]), "an object"),
        (json!("done"), "an object"),
    ] {
        let body = json!({"results": [good, bad]});
        let answer = post(&fixture, WORKER, "/v1/leases:settle", &body).await;
        let detail = answer.json()["detail"].to_string();
        assert!(answer.status == 400 && detail.contains(expected), "{expected}: {detail}");
    }
    assert_eq!(settle(&fixture, json!([good])).await[0], json!({"result": "settled"}));
}

#[tokio::test]
async fn a_lease_counts_for_its_own_token_and_once() {
    let fixture = Fixture::start("").await;
    let job = job(&fixture, "a").await;
    let others = renew(&fixture, OPERATOR, json!([job["lease"]])).await;
    assert!(others[0]["error"]["detail"].as_str().unwrap().contains("another token"), "{others}");

    let result = |outcome: &str| json!({"lease": job["lease"], "outcome": outcome});
    let answers = settle(&fixture, json!([result("done"), result("done"), result("dead")])).await;
    let [first, second, third] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((first, second), (&json!({"result": "settled"}), &json!({"result": "settled"})));
    assert_eq!(third, &json!({"result": "lost", "why": "done"}));
    let ended = renew(&fixture, WORKER, json!([job["lease"]])).await;
    assert_eq!(ended[0], json!({"result": "lost", "why": "done"}));
}

#[tokio::test]
async fn bad_claims_are_refused_with_the_field_and_the_remedy() {
    let fixture = Fixture::start("").await;
    let long = "Q".repeat(129);
    for (body, status, expected) in [
        (json!({}), 400, "0 queues"),
        (json!({"queues": {}}), 400, "0 queues"),
        (json!({"queues": {"": 1}}), 403, "among your queues"),
        (json!({"queues": {"MAIL": 0}}), 400, "MAIL"),
        (json!({"queues": {"MAIL": -1}}), 400, "`queues.MAIL`"),
        (json!({"queues": {"MAIL": 1.5}}), 400, "`queues.MAIL`"),
        (json!({"queues": {"MAIL": "4"}}), 400, "`queues.MAIL`"),
        (json!({"queues": ["MAIL"]}), 400, "`queues`"),
        (json!({"queues": {"MAIL": 1}, "max": 0}), 400, "at most 0"),
        (json!({"queues": {"MAIL": 1}, "wait": 20}), 400, "`wait`"),
        (json!({"queues": {"MAIL": 1}, "wait": "soon"}), 400, "soon"),
        (json!({"queues": {"MAIL": 1}, "lease": "-1s"}), 400, "-1s"),
        (json!({"queues": {"MAIL": 1}, "worker": ""}), 400, "worker's name"),
        (json!({"queues": {"MAIL": 1}, "worker": "a\nb"}), 400, "worker's name"),
        (json!({"queues": {"MAIL": 1}, "limit": 5}), 400, "limit"),
    ] {
        let refused = claim(&fixture, &body).await;
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        // An empty name is refused as a name.
        let status = if body["queues"][""].is_number() { 400 } else { status };
        let expected =
            if status == 400 && expected == "among your queues" { "empty" } else { expected };
        assert!(refused.status == status && detail.contains(expected), "{body}: {refused:?}");
    }
    for queue in [long.as_str(), "a\u{7}b", "dq.schedules"] {
        let refused = post(&fixture, OPERATOR, "/v1/claims", &json!({"queues": {queue: 1}})).await;
        assert_eq!(refused.status, 400, "{refused:?}");
    }
    for leases in [json!([]), json!(vec!["x"; 1_001])] {
        let body = json!({"leases": leases});
        assert_eq!(post(&fixture, WORKER, "/v1/leases:renew", &body).await.status, 400);
    }
    // Large values count as the largest; a queue that nobody uses is empty.
    for body in [
        json!({"queues": {"MAIL": 1e9}, "max": 1e9, "lease": "1y"}),
        json!({"queues": {"SMS": 1}, "worker": "py-7f3"}),
    ] {
        assert_eq!(claim(&fixture, &body).await.status, 204, "{body}");
    }
}

#[tokio::test]
async fn a_worker_is_confined_to_its_queues_and_others_may_not_work() {
    let fixture = Fixture::start("").await;
    fixture.schedule("OTHER", "a", "1", Due::NOW).await;
    let body = json!({"queues": {"OTHER": 1}});
    let refused = claim(&fixture, &body).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.json()["detail"].as_str().unwrap().contains("OTHER"), "{refused:?}");
    for token in [VIEWER, READER] {
        for (path, body) in [
            ("/v1/claims", &body),
            ("/v1/leases:renew", &json!({"leases": ["x"]})),
            ("/v1/leases:settle", &json!({"results": [{"lease": "x", "outcome": "done"}]})),
        ] {
            let refused = post(&fixture, token, path, body).await;
            assert_eq!(refused.status, 403, "{path}");
            assert!(refused.json()["detail"].as_str().unwrap().contains("role worker"));
        }
    }
    for path in ["/", "/v1/overview", "/v1/queues/MAIL/jobs", "/metrics", "/openapi.json"] {
        assert_eq!(fixture.get(WORKER, path).await.status, 403, "{path}");
    }
    let schedule = post(&fixture, WORKER, "/v1/queues/MAIL/jobs", &json!({"payload": 1})).await;
    assert_eq!(schedule.status, 403);
    assert_eq!(post(&fixture, OPERATOR, "/v1/claims", &body).await.status, 200);
}

#[tokio::test]
async fn payloads_and_next_steps_keep_their_bytes() {
    let fixture = Fixture::start("").await;
    let body = r#"{"payload_base64":"AP8=","content_type":"application/x-thing"}"#;
    assert_eq!(
        fixture.send(OPERATOR, "POST", "/v1/queues/MAIL/jobs", Some(body)).await.status,
        201
    );
    let claimed = claim(&fixture, &json!({"queues": {"MAIL": 1}})).await.json();
    let job = &claimed["jobs"][0];
    assert_eq!((&job["payload_base64"], job.get("payload")), (&json!("AP8="), None));
    assert_eq!(job["content_type"], json!("application/x-thing"));

    fixture.schedule("MAIL", "big", "12345678901234567890123", Due::NOW).await;
    let reply = claim(&fixture, &json!({"queues": {"MAIL": 1}})).await;
    assert!(reply.body.contains(r#""payload":12345678901234567890123,"#), "{reply:?}");
    let again = format!(
        r#"{{"results":[{{"lease":{},"outcome":"again","delay":"now","payload":{{"b":1,"a":2}}}}]}}"#,
        reply.json()["jobs"][0]["lease"]
    );
    let settled = fixture.send(WORKER, "POST", "/v1/leases:settle", Some(&again)).await;
    assert_eq!(settled.json()["results"][0], json!({"result": "settled"}));
    let reply = claim(&fixture, &json!({"queues": {"MAIL": 1}})).await;
    assert!(reply.body.contains(r#""payload":{"b":1,"a":2},"#), "{reply:?}");
}

fn auth() -> Auth {
    Auth::token(Actor::worker("mailer", [QueueName::new("MAIL").unwrap()]), WORKER).unwrap()
}

/// Serves as `dq serve` does.
async fn serve(fixture: &Fixture, secret: &[u8]) -> (Fixture, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ops = Ops::builder(fixture.dq.clone()).lease_secret(secret).build();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    tokio::spawn(dq_web::serve(listener, ops.clone(), auth(), stopped));
    (fixture.beside(ops, address), stop)
}

#[tokio::test]
async fn a_lease_outlives_a_restart_and_counts_at_a_sibling() {
    let fixture = Fixture::start("").await;
    let (first, stop) = serve(&fixture, b"one secret").await;
    let job = job(&first, "a").await;
    let (sibling, _stop) = serve(&fixture, b"one secret").await;
    let (stranger, _stop_too) = serve(&fixture, b"another").await;
    assert_eq!(renew(&sibling, WORKER, json!([job["lease"]])).await[0]["result"], json!("renewed"));
    assert_eq!(
        renew(&stranger, WORKER, json!([job["lease"]])).await[0]["result"],
        json!("refused")
    );
    stop.send(()).unwrap();
    let done = json!({"lease": job["lease"], "outcome": "done"});
    assert_eq!(settle(&sibling, json!([done])).await, [json!({"result": "settled"})]);
}

fn request(address: std::net::SocketAddr, body: &str) -> String {
    format!(
        "POST /v1/claims HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {WORKER}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

const POLL: &str = r#"{"queues":{"MAIL":1},"wait":"60s"}"#;

/// Waits until the server's runner is announced with so many free slots.
async fn wait_for_polls(fixture: &Fixture, number: u64) {
    loop {
        let runners = fixture.dq.runners().await.unwrap();
        if runners.iter().any(|it| it.info.as_ref().is_ok_and(|info| info.concurrency == number)) {
            return;
        }
        fixture.clock.advance(15.seconds());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_works_is_on_the_page_of_runners() {
    let fixture = Fixture::start("").await;
    let (server, _stop) = serve(&fixture, b"secret").await;
    job(&server, "a").await;
    let has_worker = async |path| fixture.get(VIEWER, path).await.body.contains("py-7f3");
    for _ in 0..1_000 {
        if has_worker("/runners").await && has_worker("/v1/runners").await {
            return;
        }
        fixture.clock.advance(15.seconds());
        tokio::task::yield_now().await;
    }
    panic!("the worker is not there");
}

#[tokio::test]
async fn a_connection_that_closes_gives_up_its_jobs() {
    let fixture = Fixture::start("").await;
    let (server, _stop) = serve(&fixture, b"secret").await;
    let mut gone = TcpStream::connect(server.address).await.unwrap();
    gone.write_all(request(server.address, POLL).as_bytes()).await.unwrap();
    wait_for_polls(&fixture, 1).await;
    drop(gone);
    let mut last = None;
    while last != Some(0) {
        let runners = fixture.dq.runners().await.unwrap();
        last = runners.first().and_then(|it| it.info.as_ref().ok()).map(|info| info.concurrency);
        fixture.clock.advance(15.seconds());
        tokio::task::yield_now().await;
    }
    fixture.schedule("MAIL", "a", "1", Due::NOW).await;
    let claimed = claim(&server, &json!({"queues": {"MAIL": 1}})).await.json();
    assert_eq!(claimed["jobs"][0]["deliveries"], json!(1));
}

#[tokio::test]
async fn a_server_that_stops_answers_its_polls() {
    let fixture = Fixture::start("").await;
    let (server, stop) = serve(&fixture, b"secret").await;
    let mut polls = Vec::new();
    for _ in 0..20 {
        let mut poll = TcpStream::connect(server.address).await.unwrap();
        poll.write_all(request(server.address, POLL).as_bytes()).await.unwrap();
        polls.push(poll);
    }
    wait_for_polls(&fixture, 20).await;
    stop.send(()).unwrap();
    for mut poll in polls {
        let mut answer = String::new();
        poll.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }
    assert!(Backend::now(&*Arc::clone(&fixture.store)).await.is_ok());
}
