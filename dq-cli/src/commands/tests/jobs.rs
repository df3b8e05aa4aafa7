use clap::Parser as _;

use super::{Fixture, id_of, with_dead};
use crate::args::Args;

#[test]
fn a_job_is_scheduled_moved_explained_and_cancelled() {
    let fixture = Fixture::new();
    let job = ["ORDER_TIMEOUT", "key:order-4711"];
    let line = ["enqueue", job[0], r#" {"order":4711} "#, "--key", "order-4711", "--due", "30m"];
    let created =
        fixture.run(&[&line[..], &["--header", "a=b", "--max-attempts", "6", "--json"]].concat());
    let id = id_of(&created);
    assert_eq!(
        created,
        format!(
            "{{\"result\":\"created\",\"id\":\"{id}\",\"due\":\"2027-01-31T10:30:00.000Z\"}}\n"
        )
    );
    fixture.expect(
        &line,
        &format!(
            "not scheduled: ORDER_TIMEOUT/{id} has the key, due 2027-01-31T10:30:00.000Z\nexit code 4\n"
        ),
    );
    fixture.expect(
        &["where", job[0], job[1]],
        "ORDER_TIMEOUT/order-4711   scheduled, due in 30m\n  \
           10:00:00.000  scheduled\n  \
           now           not due; no runner listens\n",
    );
    fixture.expect(
        &["jobs", "move", job[0], job[1], "--due", "1h"],
        "moved ORDER_TIMEOUT/key:order-4711, due 2027-01-31T11:00:00.000Z\n",
    );
    fixture.expect(
        &["jobs", "get", job[0], job[1]],
        &format!(
            "id        {id}\nqueue     ORDER_TIMEOUT\nkey       order-4711\nstate     scheduled\n\
             due       2027-01-31T11:00:00.000Z\ncreated   2027-01-31T10:00:00.000Z\n\
             attempts  0/6\nclaims    0\nheader    a: b\nheader    content-type: application/json\n\
             payload   application/json, 16 bytes\n{{\n  \"order\": 4711\n}}\n"
        ),
    );
    fixture.expect(
        &["jobs", "run", job[0], job[1], "--json"],
        "{\"due\":\"2027-01-31T10:00:00.000Z\",\"job\":\"key:order-4711\",\"queue\":\"ORDER_TIMEOUT\",\
         \"result\":\"moved\"}\n",
    );
    fixture.expect(&["jobs", "run", job[0], job[1]], "ORDER_TIMEOUT/key:order-4711 is due now\n");
    fixture.expect(&["jobs", "cancel", job[0], job[1]], "cancelled ORDER_TIMEOUT/key:order-4711\n");
    let misspelt = fixture.run(&["where", "MISSPELT", job[1]]);
    assert!(misspelt.starts_with("error: there is no queue MISSPELT\n"), "{misspelt}");
    fixture.expect(
        &["jobs", "cancel", job[0], job[1]],
        "error: queue ORDER_TIMEOUT has no job key:order-4711\n\
         remedy: it may have ended: ended jobs are found if the program that ended them keeps a history (the setting `history`); by key, among the latest 5,000 of the queue\n\
         exit code 3\n",
    );
    for name in [id.as_str(), job[1]] {
        fixture.expect(
            &["where", job[0], name],
            "ORDER_TIMEOUT/order-4711   cancelled 0ms ago\n  \
               10:00:00.000  scheduled\n  10:00:00.000  due\n  10:00:00.000  cancelled\n",
        );
    }
}

#[test]
fn jobs_are_listed_found_and_counted_before_many_change() {
    let (fixture, id) = with_dead();
    let listed = fixture.run(&["jobs", "ls"]);
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 6, "{listed}");
    assert!(lines[0].starts_with("QUEUE  STATE      ID"), "{listed}");
    assert!(lines[1].starts_with(&format!("MAIL   ready      {id}")), "{listed}");
    assert!(lines[5].ends_with("1  SMTP 550: no such user"), "{listed}");
    assert_eq!(fixture.run(&["jobs", "ls", "MAIL", "--json", "--all"]).lines().count(), 5);
    let two = fixture.run(&["jobs", "ls", "MAIL", "--json", "--limit", "2"]);
    assert_eq!((two.lines().count(), two.contains("# there are more jobs")), (3, true), "{two}");
    let all = fixture.run(&["jobs", "ls", "MAIL", "--json", "--limit", "5"]);
    assert!(!all.contains("# there are more jobs"), "{all}");
    let states = fixture.run(&["jobs", "ls", "--json", "--state", "dead,ready", "--error", "550"]);
    assert_eq!(states.lines().count(), 3, "{states}");
    fixture.expect(&["jobs", "ls", "--contains", "eve"], "# no job matches\n");

    for (text, jobs) in [("a-", 3), ("letter", 3), ("bob", 1), (id.as_str(), 1)] {
        let found = fixture.run(&["jobs", "find", text, "--json"]);
        assert_eq!(found.lines().count(), jobs, "{text}: {found}");
    }
    assert_eq!(fixture.run(&["jobs", "find", "a-", "--json", "--limit", "2"]).lines().count(), 2);
    assert!(fixture.run(&["jobs", "find", "eve"]).ends_with("exit code 3\n"));
    for (option, said) in [
        (["--limit", "0"], "it must be at least 1"),
        (["--state", "waiting"], "the states are running, ready, scheduled, dead and ended"),
    ] {
        let line = [&["dq", "jobs", "ls"], &option[..]].concat();
        let refused = Args::try_parse_from(line).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
    assert!(two.contains("raise --limit, or give --all"), "{two}");

    fixture.expect(
        &["jobs", "replay", "MAIL", "--key-prefix", "a-"],
        "error: 2 jobs of MAIL can be replayed; nothing was changed\n\
         remedy: repeat the command with --yes\nexit code 2\n",
    );
    fixture.expect(
        &["jobs", "rm", "MAIL", "--key-prefix", "b-", "--yes", "--json"],
        "{\"action\":\"remove\",\"changed\":1,\"queue\":\"MAIL\"}\n# 1 job of MAIL can be removed\n",
    );
    fixture.expect(
        &["jobs", "replay", "MAIL", "--all", "--yes"],
        "replayed 1 job of MAIL\n# 2 jobs of MAIL can be replayed\n\
         # 1 job stayed as before: a live job has the key, or another command was first\n",
    );
    fixture.expect(
        &["jobs", "replay", "MAIL", "--all", "--yes"],
        "replayed 0 jobs of MAIL\n# 1 job of MAIL can be replayed\n\
         # 1 job stayed as before: a live job has the key, or another command was first\nexit code 4\n",
    );
    for yes in [&[][..], &["--yes"]] {
        fixture.expect(
            &[&["jobs", "replay", "MAIL", "--key-prefix", "x-"], yes].concat(),
            "error: no job of MAIL can be replayed: none matches\n\
             remedy: `dq jobs ls MAIL --state dead` lists them\nexit code 3\n",
        );
    }
    let misspelt = fixture.run(&["jobs", "cancel", "MIAL", "--all", "--yes"]);
    assert!(misspelt.starts_with("error: there is no queue MIAL\n"), "{misspelt}");
    assert!(misspelt.ends_with("exit code 3\n"), "{misspelt}");
    fixture.expect(
        &["jobs", "move", "MAIL", "--due-from", "2027-02-01T00:00:00Z", "--to", "2h", "--yes"],
        "moved 1 job of MAIL\n# 1 job of MAIL can be moved\n",
    );
    fixture.expect(
        &["jobs", "run", "MAIL", "--due-from", "2027-01-31T11:00:00Z", "--yes"],
        "1 job of MAIL is due now\n# 1 job of MAIL can be made due now\n",
    );
    fixture.expect(
        &["jobs", "cancel", "MAIL", "--all", "--yes"],
        "cancelled 3 jobs of MAIL\n# 3 jobs of MAIL can be cancelled\n",
    );
}

#[test]
fn dead_jobs_are_replayed_and_removed_one_by_one() {
    let (fixture, id) = with_dead();
    let dead = fixture.run(&["jobs", "ls", "MAIL", "--state", "dead", "--json"]);
    let ids: Vec<_> = dead.lines().map(id_of).collect();
    fixture.expect(
        &["jobs", "replay", "MAIL", &ids[0]],
        &format!(
            "error: job {} stays dead: a live job has its key\n\
             remedy: replay it when that job has ended, or cancel that job\nexit code 4\n",
            ids[0]
        ),
    );
    fixture.expect(&["jobs", "replay", "MAIL", &ids[1]], &format!("replayed MAIL/{}\n", ids[1]));
    fixture.expect(
        &["jobs", "rm", "MAIL", &ids[2], "--json"],
        &format!("{{\"job\":\"{}\",\"queue\":\"MAIL\",\"result\":\"removed\"}}\n", ids[2]),
    );
    assert!(fixture.run(&["jobs", "rm", "MAIL", &id]).contains("is not dead but ready"));
    assert!(fixture.run(&["jobs", "replay", "MAIL", "key:a-1"]).ends_with("exit code 2\n"));
    let headline = fixture.run(&["where", "MAIL", &ids[0]]);
    assert!(headline.starts_with("MAIL/a-1   dead for 1s\n"), "{headline}");
}

#[test]
fn an_empty_text_selects_nothing() {
    for option in ["--key-prefix", "--error"] {
        let line = ["dq", "jobs", "cancel", "MAIL", option, "", "--yes"];
        assert!(Args::try_parse_from(line).is_err(), "{option}");
    }
    assert!(Args::try_parse_from(["dq", "jobs", "ls", "MAIL", "--contains", ""]).is_err());
}

#[test]
fn a_command_takes_one_job_or_a_filter() {
    let (fixture, id) = with_dead();
    for rest in [
        &[][..],
        &[id.as_str(), "--all"],
        &[id.as_str(), "--yes"],
        &[id.as_str(), "--key-prefix", "a"],
        &["--all", "--key-prefix", "a"],
    ] {
        let refused = fixture.run(&[&["jobs", "cancel", "MAIL"], rest].concat());
        assert!(refused.ends_with("exit code 2\n"), "{rest:?}: {refused}");
    }
    assert_eq!(fixture.run(&["jobs", "ls", "--json"]).lines().count(), 5);
}
