//! The examples named after features: each prints what the feature did.

use crate::program::{Program, about, lines};
use crate::server::Server;

#[test]
fn debounce_by_key_runs_once_after_the_last_edit() {
    let lines = lines("debounce_by_key");
    assert_eq!(about(&lines, "index: "), ["plan at revision 5"], "{lines:#?}");
    assert_eq!(about(&lines, "mail: "), ["plan has changed since revision 1"], "{lines:#?}");
}

#[test]
fn rate_limited_api_spaces_calls_and_waits_after_a_429() {
    let lines = lines("rate_limited_api");
    let is_refused = |line: &&String| line.ends_with("429, no call for 300ms");
    assert_eq!(lines.iter().filter(is_refused).count(), 1, "{lines:#?}");
    let is_sent = |line: &&String| line.ends_with(": sent at attempt 1");
    assert_eq!(lines.iter().filter(is_sent).count(), 8, "{lines:#?}");
    // No less on any machine: 9 calls have 8 times 50 ms between them, one of which is now 300 ms.
    let [millis] = about(&lines, "8 SMS in ")[..] else { panic!("{lines:#?}") };
    let millis: u32 = millis.trim_end_matches(" ms").parse().unwrap();
    assert!(millis >= 600, "too fast: {lines:#?}");
}

#[test]
fn cron_in_a_time_zone_follows_its_clock_changes() {
    let lines = lines("cron_in_a_time_zone");
    let days = |name: &str| {
        let times = about(&lines, name).into_iter();
        times.map(|time| time.trim_end_matches(":00.000Z")).collect::<Vec<_>>()
    };
    let spring = ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"];
    let autumn = ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"];
    assert_eq!(days("NIGHTLY_REPORT: "), [spring, autumn].concat(), "{lines:#?}");
    let polls = days("POLL_PRICES: ");
    let on = |day: &str| polls.iter().filter(|time| time.starts_with(day)).count();
    assert_eq!(["2026-03-29", "2026-03-30", "2026-10-25"].map(on), [0, 2, 4], "{lines:#?}");
}

#[test]
fn multi_tenant_fairness_lets_a_small_tenant_pass_a_large_one() {
    let lines = lines("multi_tenant_fairness");
    assert_eq!(about(&lines, "acme: row 200, ").len(), 1, "{lines:#?}");
    let [globex] = about(&lines, "globex: row 1, ")[..] else { panic!("{lines:#?}") };
    let before: u32 = globex.trim_end_matches(" rows before it").parse().unwrap();
    assert!(before < 100, "the import delays it: {lines:#?}");
}

#[test]
fn graceful_shutdown_finishes_or_hands_back_its_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let stop = |options: &[&str]| {
        let mut server = Server::start("graceful_shutdown", dir.path(), options);
        let first = server.program.line().unwrap();
        let ready = server.request("GET", "/ops/dq/readyz").0;
        assert!([200, 503].contains(&ready), "503 on a very busy machine: {ready}");
        server.program.signal("TERM");
        let lines = [vec![first], server.program.rest()].concat();
        assert!(server.program.wait().success(), "{lines:#?}");
        lines
    };
    let videos = |lines: &[String], end: &str| {
        lines
            .iter()
            .filter_map(|line| line.strip_suffix(end).map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let waiting = |jobs: usize| format!("{jobs} jobs wait for the next start");

    let lines = stop(&["--work", "5"]);
    let done = videos(&lines, ": done");
    assert_eq!(videos(&lines, ": starts"), done, "a started job finishes: {lines:#?}");
    assert_eq!(lines.last(), Some(&waiting(3 - done.len())), "{lines:#?}");

    // Without a `done`, and with the running job among the waiting ones.
    let lines = stop(&["--work", "3600", "--grace", "0"]);
    assert_eq!(lines[1..], ["stopping, 1 running".to_owned(), waiting(3 - done.len() % 3)]);

    let lines = Program::start("graceful_shutdown", dir.path(), &["--work", "0"]).rest();
    assert_eq!(videos(&lines, ": done").len(), 3 - done.len() % 3, "{lines:#?}");
    assert_eq!(lines.last(), Some(&waiting(0)), "{lines:#?}");
}

#[test]
fn retries_and_dead_letters_retries_gives_up_and_replays() {
    let lines = lines("retries_and_dead_letters");
    let attempt = |attempt: u32| format!("attempt {attempt} of 3");
    let charged = || "charged".to_owned();
    let dead = |why: &str| format!("dead, {why}");
    let first = [attempt(1), attempt(2), attempt(3), charged()];
    assert_eq!(about(&lines, "order 1: "), first, "{lines:#?}");
    let second = [attempt(1), dead("rejected: the card has expired"), attempt(1), charged()];
    assert_eq!(about(&lines, "order 2: "), second, "{lines:#?}");
    let third = dead("exhausted: the bank does not answer");
    let third = [attempt(1), attempt(2), attempt(3), third, attempt(1), charged()];
    assert_eq!(about(&lines, "order 3: "), third, "{lines:#?}");
    assert_eq!(about(&lines, "dead: "), ["0"], "{lines:#?}");
}

#[test]
fn idempotency_key_ships_once_for_a_repeated_request() {
    let lines = lines("idempotency_key");
    let repeated = ["accepted", "accepted", "shipped", "this request was done before"];
    assert_eq!(about(&lines, "order 17: "), repeated, "{lines:#?}");
    assert_eq!(about(&lines, "order 18: "), ["accepted", "shipped"], "{lines:#?}");
    assert_eq!(about(&lines, "jobs: "), ["1", "1"], "{lines:#?}");
}

#[test]
fn long_running_job_goes_on_where_it_was_killed() {
    let parts = ["rows 0 to 1000", "rows 1000 to 2000", "rows 2000 to 3000", "rows 3000 to 4000"];
    let parts = [&parts[..], &["exported"]].concat();
    let dir = tempfile::tempdir().unwrap();
    let mut killed = Program::start("long_running_job", dir.path(), &[]);
    let before: Vec<String> = (0..3).map_while(|_| killed.line()).collect();
    assert_eq!(before[1..], parts[..2]);
    killed.kill();
    let last = before.into_iter().chain(killed.rest()).next_back().unwrap();
    let last = parts.iter().position(|part| *part == last).unwrap();
    if last > 2 {
        return; // The machine was so busy that the job has ended before the kill.
    }
    let lines = Program::start("long_running_job", dir.path(), &[]).rest();
    assert_ne!(lines[0], "0 of 4000 rows are exported");
    // The kill may have come between two parts.
    let goes_on = [last, last + 1].iter().any(|part| lines[1..] == parts[*part..]);
    assert!(goes_on, "{}, then {lines:#?}", parts[last]);
}

#[test]
fn the_readme_lists_every_example() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = "));
    let mut paths: Vec<String> = paths.map(|path| path.trim_matches('"').to_owned()).collect();
    for bin in std::fs::read_dir(folder.join("transactions/src/bin")).unwrap() {
        let name = bin.unwrap().file_name().into_string().unwrap();
        paths.push(format!("transactions/src/bin/{name}"));
    }
    for path in paths {
        let name = path.trim_end_matches("/main.rs").trim_end_matches(".rs");
        let name = name.rsplit('/').next().unwrap();
        let row = readme.lines().find(|line| line.contains(&format!("]({path})")));
        let row = row.unwrap_or_else(|| panic!("the table has no {path}"));
        let commands = ["example", "bin"].map(|kind| format!("--{kind} {name}"));
        assert!(commands.iter().any(|command| row.contains(command)), "{row}");
    }
}
