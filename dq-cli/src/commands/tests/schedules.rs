use super::{Fixture, SET};

#[test]
fn a_schedule_is_stored_shown_changed_and_removed() {
    let fixture = Fixture::new();
    for name in ["schedules", "cron"] {
        fixture.expect(&[name, "ls"], "# there is no schedule\n");
    }
    fixture.expect(&SET, "stored report\n");
    fixture.expect(&SET, "is stored already: report\n");
    fixture.expect(
        &["schedules", "set", "sync", "SYNC", "--every", "15m", "--jitter", "1s", "--json"],
        "{\"changed\":true,\"schedule\":\"sync\"}\n",
    );
    fixture.expect(
        &["schedules", "ls"],
        "SCHEDULE  QUEUE   TIMES                        NEXT DUE                  STATE\n\
         sync      SYNC    every 15m                    2027-01-31T10:00:00.293Z  active\n\
         report    REPORT  30 2 * * * Europe/Stockholm  2027-02-01T01:30:00.000Z  active\n",
    );
    fixture.expect(
        &["schedules", "show", "report", "--next", "2"],
        "schedule   report\n\
         queue      REPORT\n\
         times      30 2 * * * Europe/Stockholm\n\
         state      active\n\
         catch up   last\n\
         overlap    skip\n\
         next       2027-02-01T01:30:00.000Z   2027-02-01T02:30:00+01:00\n\
         \u{20}          2027-02-02T01:30:00.000Z   2027-02-02T02:30:00+01:00\n\
         payload    15 bytes\n{\n  \"region\": \"eu\"\n}\n",
    );
    fixture.expect(&["schedules", "pause", "report"], "paused report\n");
    fixture.expect(&["schedules", "pause", "report"], "was paused before: report\n");
    let listed = fixture.run(&["schedules", "ls"]);
    assert!(listed.ends_with("Europe/Stockholm  –                         paused\n"), "{listed}");
    fixture.expect(
        &["schedules", "resume", "report", "--json"],
        "{\"changed\":true,\"paused\":false,\"schedule\":\"report\"}\n",
    );
    fixture.expect(&["schedules", "resume", "report"], "is not paused: report\n");
    fixture.expect(&["schedules", "skip", "report"], "skipped the next occurrence of report\n");
    let shown = fixture.run(&["schedules", "show", "report", "--json", "--next", "1"]);
    assert!(shown.contains(r#""next_due":"2027-02-02T01:30:00.000Z""#), "{shown}");
    fixture.expect(
        &[
            "schedules",
            "backfill",
            "report",
            "--after",
            "2027-01-01T00:00:00Z",
            "--until",
            "2027-01-04T00:00:00Z",
        ],
        "scheduled 3 jobs of report\n",
    );
    fixture.advance(std::time::Duration::from_millis(1));
    fixture.expect(
        &[
            "schedules",
            "backfill",
            "report",
            "--after",
            "2027-01-02T00:00:00Z",
            "--until",
            "2027-01-04T00:00:00Z",
        ],
        "scheduled 0 jobs of report; 2 occurrences had a job before\n",
    );
    fixture.expect(&["schedules", "rm", "report"], "removed report\n");
    fixture.expect(
        &["schedules", "rm", "report"],
        "error: there is no schedule report\n\
         remedy: the list of schedules has all names; check the spelling\nexit code 3\n",
    );
    assert_eq!(fixture.run(&["schedules", "ls", "--json"]).lines().count(), 1);
}

#[test]
fn a_job_of_a_schedule_runs_now_unless_one_is_live() {
    let fixture = Fixture::new();
    fixture.run(&SET);
    let first = fixture.run(&["schedules", "run", "report"]);
    assert!(first.starts_with("scheduled ") && first.contains(" of report, due "), "{first}");
    let second = fixture.run(&["schedules", "run", "report"]);
    assert!(second.starts_with("not scheduled: job ") && second.contains("waits"), "{second}");
    assert!(second.ends_with("exit code 4\n"), "{second}");
    fixture.claim("REPORT", "web-1");
    let third = fixture.run(&["schedules", "run", "report"]);
    assert!(third.ends_with(" of report is running\nexit code 4\n"), "{third}");
}

#[test]
fn wrong_schedules_are_usage_and_names_of_any_kind_travel() {
    let fixture = Fixture::new();
    for line in [
        &["schedules", "set", "x", "Q", "--cron", "30 2 *"][..],
        &["schedules", "set", "x", "Q", "--every", "soon"],
        &["schedules", "set", "x", "Q", "{", "--every", "1h"],
        &["schedules", "set", "x", "dq.x", "--every", "1h"],
        &["schedules", "set", "", "Q", "--every", "1h"],
        &["schedules", "show", ""],
    ] {
        let refused = fixture.run(line);
        assert!(refused.ends_with("exit code 2\n"), "{line:?}: {refused}");
    }
    let name = "a/../b?c#d e";
    fixture.run(&["schedules", "set", name, "Q", "--every", "1h", "--overlap", "allow"]);
    for line in [
        &["schedules", "show", name][..],
        &["schedules", "pause", name],
        &["schedules", "resume", name],
        &["schedules", "skip", name],
        &["schedules", "run", name],
        &["schedules", "rm", name],
    ] {
        let done = fixture.run(line);
        assert!(!done.contains("exit code"), "{line:?}: {done}");
    }
}
