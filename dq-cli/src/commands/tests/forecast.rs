use super::{Fixture, SET};

#[test]
fn the_forecast_of_a_queue_that_only_a_schedule_names_is_printed() {
    let fixture = Fixture::new();
    fixture.run(&SET);
    let by_hour = fixture.run(&["forecast", "REPORT"]);
    assert!(by_hour.contains("2027-02-01T01:00:00.000Z    1          ?\n"), "{by_hour}");
    fixture.run(&["pause", "REPORT"]);
    fixture.expect(
        &["forecast", "--window", "20h"],
        "QUEUE   OVERDUE  DUE  PEAK  PEAK AT                   DRAINED  CAPACITY/MIN\n\
         REPORT        0    1     1  2027-02-01T01:30:00.000Z  paused              ?\n",
    );
}

#[test]
fn the_forecast_and_a_simulation_are_printed() {
    let fixture = Fixture::new();
    fixture.expect(&["forecast", "--window", "3h"], "# no job is due in this time\n");
    for due in ["now", "30m", "30m", "90m", "3d"] {
        fixture.run(&["enqueue", "MAIL", "1", "--due", due]);
    }
    fixture.expect(
        &["forecast"],
        "QUEUE  OVERDUE  DUE  PEAK  PEAK AT                   DRAINED  CAPACITY/MIN\n\
         MAIL         1    3     2  2027-01-31T10:30:00.000Z                      ?\n",
    );
    fixture.expect(
        &["forecast", "MAIL", "--window", "2h"],
        "FROM                      DUE  LEFT OVER\n\
         2027-01-31T10:00:00.001Z    2          ?\n\
         2027-01-31T11:00:00.000Z    1          ?\n",
    );
    assert!(fixture.run(&["forecast", "NOPE"]).ends_with("exit code 3\n"));
    for window in ["30s", "8d"] {
        let refused = fixture.run(&["forecast", "--window", window]);
        let range = "it must be 1m to 7d\nexit code 4\n";
        assert!(refused.ends_with(range), "{refused}");
    }
    assert_eq!(fixture.run(&["forecast", "--window", "7d", "--json"]).lines().count(), 1);

    let unknown = fixture.run(&["simulate"]);
    let remedy = "remedy: give --concurrency 4 and --run-time 1s, or for one queue MAIL=4 and MAIL=1s\nexit code 4\n";
    assert!(unknown.ends_with(remedy), "{unknown}");
    let line = ["simulate", "--window", "2h", "--load", "3"];
    fixture.expect(
        &[&line[..], &["--concurrency", "1", "--run-time", "MAIL=1m"]].concat(),
        "2027-01-31T10:00:00.000Z to 2027-01-31T12:00:00.000Z\n\
         QUEUE  SLOTS  JOBS  SKIPPED  P50 LATE  P99 LATE  MAX LATE  BACKLOG  DRAINED                   LIMITS\n\
         MAIL       1    12        0        1m        5m        5m        5  2027-01-31T10:35:00.000Z\n",
    );
    let json = [&line[..], &["--concurrency", "MAIL=1", "--run-time", "1m", "--json"]].concat();
    assert_eq!(fixture.run(&json).lines().count(), 1);
    for wrong in [["--concurrency", "MAIL=x"], ["--run-time", "soon"], ["--start", "yesterday"]] {
        let refused = fixture.run(&[&line[..], &wrong].concat());
        assert!(refused.ends_with("exit code 2\n"), "{refused}");
    }
}

#[test]
fn limits_are_shown_where_they_are_counted() {
    let fixture = Fixture::new();
    for _ in 0..3 {
        fixture.run(&["enqueue", "MAIL", "--due", "30m"]);
    }
    fixture.run(&["limit", "MAIL", "--rate", "1/1m"]);
    let simulate = ["simulate", "--concurrency", "9", "--run-time", "1s"];
    let played = fixture.run(&simulate);
    let limits = "2  2027-01-31T10:32:00.000Z  1/1m (set by an operator)\n";
    assert!(played.ends_with(limits), "{played}");
    let said = fixture.run(&["limit", "MAIL", "--group-max-running", "2"]);
    assert!(said.starts_with("MAIL: 2 of a group at once"), "{said}");
    let note = "# MAIL: the limit of groups is not counted; `dq simulate` counts it\n";
    let forecast = fixture.run(&["forecast"]);
    assert!(forecast.contains(note), "{forecast}");
}
