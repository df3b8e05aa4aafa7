use clap::Parser as _;
use dq_core::DurationExt;

use super::{Fixture, with_dead};
use crate::args::Args;

#[test]
fn queues_are_shown_paused_resumed_and_purged() {
    let (fixture, _) = with_dead();
    fixture.expect(
        &["queues"],
        "QUEUE  SCHEDULED  READY  RUNNING  DEAD  NEXT DUE                  OLDEST  RUNNERS  FREE  \
         P99 LATE  LIMITS  PAUSED\n\
         MAIL           1      1        0     3  2027-01-31T10:00:01.000Z     0ms        0     0\n",
    );
    fixture.expect(&["pause", "MAIL"], "paused MAIL\n");
    fixture.expect(&["pause", "MAIL"], "MAIL is paused already\n");
    assert!(fixture.run(&["queues", "MAIL"]).ends_with("paused\n"));
    let misspelt = fixture.run(&["pause", "MIAL"]);
    assert!(misspelt.starts_with("error: there is no queue MIAL\n"), "{misspelt}");
    assert!(misspelt.contains("`dq pause --create`") && misspelt.ends_with("exit code 3\n"));
    assert_eq!(fixture.run(&["queues", "--json"]).lines().count(), 1, "it is not created");
    fixture.expect(&["pause", "SOON", "--create"], "paused SOON\n");
    fixture.expect(&["pause", "SOON"], "SOON is paused already\n");
    fixture.expect(&["resume", "SOON"], "resumed SOON\n");
    fixture.expect(
        &["resume", "MAIL", "--json"],
        "{\"changed\":true,\"paused\":false,\"queue\":\"MAIL\"}\n",
    );
    fixture.expect(&["resume", "MAIL"], "MAIL is not paused\n");
    fixture.expect(
        &["resume", "MIAL"],
        "error: there is no queue MIAL\n\
         remedy: check the spelling: a queue appears with its first job or its first runner\n\
         exit code 3\n",
    );
    fixture.expect(
        &["purge", "MAIL", "--confirm", "mail"],
        "# MAIL: 5 jobs would be deleted\n\
         error: the confirmation is not the queue's name, MAIL\n\
         remedy: to delete its jobs, type MAIL: on the page, after --confirm, or as `confirm` in the \
         request's body\nexit code 4\n",
    );
    fixture.expect(
        &["purge", "MAIL", "--confirm", "MAIL"],
        "deleted 5 jobs of MAIL\n# MAIL: 5 jobs would be deleted\n",
    );
    assert!(fixture.run(&["queues", "NOPE"]).ends_with("exit code 3\n"));
    assert!(fixture.run(&["jobs", "ls", "NOPE"]).ends_with("exit code 3\n"));
    fixture.expect(&["check"], "no problem found\n");
}

#[test]
fn a_queue_is_limited_and_the_limits_are_removed() {
    let fixture = Fixture::new();
    fixture.run(&["enqueue", "MAIL"]);
    let limit = |rest: &[&str], said: &str| {
        fixture.expect(&[&["limit", "MAIL"], rest].concat(), &format!("MAIL: {said}\n"));
    };
    limit(&["--max-running", "3", "--rate", "10/1s"], "3 at once, 10/1s (set by an operator)");
    limit(&["--max-running", "3"], "3 at once, 10/1s (set by an operator), as before");
    limit(
        &["--group-max-running", "2"],
        "3 at once, 2 of a group at once, 10/1s (set by an operator)",
    );
    limit(&["--max-running", "none", "--group-max-running", "none"], "10/1s (set by an operator)");
    let queues = fixture.run(&["queues"]);
    assert!(queues.contains("  10/1s (set by an operator)\n"), "{queues}");
    limit(&["--rate", "none"], "no limit (set by an operator)");
    limit(&["--clear"], "no limit");
    limit(&["--clear"], "no limit, as before");
    let json = fixture.run(&["limit", "MAIL", "--rate", "100/1m burst 5", "--json"]);
    let limits = r#""limits":{"group_max_running":null,"max_running":null,"opens_at":null,"overridden":true,"rate":"100/1m burst 5","throttled":false}"#;
    assert!(json.contains(limits), "{json}");
    for (arguments, problem) in [
        (&["--max-running", "0"][..], "to stop the queue, use `dq pause`"),
        (&["--rate", "10"], "it has no '/'"),
        (&["--rate", "10/1s", "--clear"], "cannot be used with"),
        (&[], "<--max-running <N>|--group-max-running <N>|--rate <RATE>|--clear>"),
    ] {
        let line = [&["dq", "limit", "MAIL"], arguments].concat();
        let refused = Args::try_parse_from(line).unwrap_err().to_string();
        assert!(refused.contains(problem), "{refused}");
    }
    assert!(fixture.run(&["limit", "MIAL", "--rate", "1/1s"]).ends_with("exit code 3\n"));
}

#[test]
fn a_missed_lateness_objective_is_a_finding_with_cause_and_remedy() {
    let fixture = Fixture::new();
    let info = r#"{"format":1,"host":"h","pid":1,"version":"0.1.0","started":0,
        "stopping":false,"concurrency":4,"running":0,"skew_ms":0,"omitted_queues":0,"queues":[
        {"queue":"MAIL","concurrency":4,"running":4,"lateness":[],"run_time":[39,4],
        "objective":{"objective":"99% < 100ms","in_time":98,"late":1}}]}"#;
    fixture.announce("web-1", info.to_owned());
    fixture.run(&["enqueue", "MAIL"]);
    fixture.advance(100.millis());
    fixture.expect(
        &["check"],
        "warning  lateness.objective\n  \
           cause   jobs of queue MAIL are late: all slots are busy, and the handlers are slow; the \
         objective is 99% < 100ms; of 99 starts in the last hour 1 were late, and 1 late jobs wait\n  \
           remedy  make the handler quicker, set a shorter timeout, raise the concurrency, or add \
         runners\n",
    );
    let queue = fixture.run(&["queues", "MAIL", "--json"]);
    let objective =
        r#""objective":{"objective":"99% < 100ms","missed":true,"in_time":98,"late":1,"#;
    assert!(queue.contains(objective), "{queue}");
}

#[test]
fn the_queues_are_watched() {
    let fixture = Fixture::new();
    fixture.run(&["enqueue", "MAIL", "1"]);
    let line = ["watch", "--count", "2", "--interval", "1ms"];
    let watched = fixture.run(&line);
    assert!(watched.starts_with("1 job waiting, 0 running\nQUEUE "), "{watched}");
    // Two readings, an empty line between, and no terminal codes.
    assert_eq!((watched.lines().count(), watched.contains('\u{1b}')), (7, false), "{watched}");
    assert_eq!(fixture.run(&[&line[..], &["--json"]].concat()).lines().count(), 2);
    assert!(fixture.run(&["watch", "NOPE", "--count", "1"]).ends_with("exit code 3\n"));
}
