use dq_core::{Clock, Due, DurationExt, Verdict};

use super::{Fixture, id_of};

#[test]
fn where_tells_of_claims_retries_runners_and_slots() {
    let fixture = Fixture::new();
    let id = id_of(&fixture.run(&[
        "enqueue",
        "MAIL",
        "1",
        "--max-attempts",
        "6",
        "--json",
        "--due",
        "1s",
    ]));
    fixture.advance(1_004.millis());
    let verdict = Verdict::Retry {
        due: Due::After(60.seconds()),
        error: "connect refused\nby \u{1b}[31mhost".to_owned(),
    };
    fixture.settle("MAIL", "web-3", &verdict);
    for (name, running) in [("web-1", 4), ("web-2", 2)] {
        let started = fixture.clock.now().as_millis();
        let info = format!(
            r#"{{"format":1,"host":"h","pid":812,"version":"0.1.0","started":{started},
                "stopping":false,"concurrency":8,"running":{running},"skew_ms":null,
                "queues":[{{"queue":"MAIL","concurrency":4,"running":{running},
                "lateness":[],"run_time":[]}}],"omitted_queues":0}}"#
        );
        fixture.announce(name, info);
    }
    fixture.advance(19.seconds());
    fixture.expect(
        &["where", "MAIL", &id],
        &format!(
            "MAIL/{id}   scheduled, retry 1 of 5, due in 41s\n  \
               10:00:00.000  scheduled\n  \
               -             failed, attempt 1: connect refused\\nby \u{fffd}[31mhost; retry at 10:01:01.004\n  \
               now           not due; 2 runners listen, 2 of 8 slots free\n"
        ),
    );
    fixture.expect(
        &["runners"],
        "RUNNER  HOST  PID  VERSION  RUNNING  STATE      QUEUES\n\
         web-1   h     812  0.1.0        4/8  listening  MAIL 4/4\n\
         web-2   h     812  0.1.0        2/8  listening  MAIL 2/4\n",
    );
    fixture.advance(1.minutes());
    fixture.claim("MAIL", "web-1");
    fixture.advance(3.seconds());
    let running = fixture.run(&["where", "MAIL", &id]);
    assert!(running.contains("running, retry 1 of 5, for 3s"), "{running}");
    assert!(running.contains("10:01:20.004  claimed by web-1, 19s late"), "{running}");
    assert!(running.ends_with("now           runs on web-1; 2 runners listen\n"));
    fixture.expect(
        &["jobs", "cancel", "MAIL", &id],
        &format!(
            "error: job {id} is running\nremedy: a running job is not stopped; wait for its end\n\
             exit code 4\n"
        ),
    );
    for line in [&["where", "MAIL", &id][..], &["runners"], &["jobs", "get", "MAIL", &id]] {
        let json = fixture.run(&[line, &["--json"]].concat());
        assert!(json.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{json}");
    }
}
