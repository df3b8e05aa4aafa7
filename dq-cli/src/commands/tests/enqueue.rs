use dq_core::Verdict;

use super::{Fixture, id_of};

#[test]
fn names_and_payloads_of_any_kind_travel_through_the_api() {
    let fixture = Fixture::new();
    let (queue, key) = ("a/../b?c#d", "key:x/../y z");
    let line = ["enqueue", queue, "-1e300", "--key", "x/../y z", "--content-type", "text/x?&"];
    fixture.run(&[&line[..], &["--due", "1d"]].concat());
    let shown = fixture.run(&["jobs", "get", queue, key]);
    assert!(shown.ends_with("payload   text/x?&, 6 bytes\n-1e300\n"), "{shown}");
    assert!(fixture.run(&["where", queue, key]).starts_with("a/../b?c#d/x/../y z   scheduled"));
    fixture.expect(&["pause", queue], "paused a/../b?c#d\n");
    assert_eq!(
        fixture.run(&["jobs", "ls", queue, "--key-prefix", "x/..", "--json"]).lines().count(),
        1
    );
    for payload in
        ["null", "0.1", "1e-7", "123456789.12345679", "5e-324", "[18446744073709551615,-0.0]"]
    {
        let id = id_of(&fixture.run(&["enqueue", "FLOAT", payload, "--json"]));
        // Only the comparison of fixture outputs matters.
        fixture.run(&["jobs", "get", "FLOAT", &id, "--json"]);
    }
    fixture.expect(&["jobs", "cancel", queue, key], "cancelled a/../b?c#d/key:x/../y z\n");
}

#[test]
fn policies_of_keys_and_repeated_requests_are_reported() {
    let fixture = Fixture::new();
    let line = ["enqueue", "MAIL", "1", "--key", "k"];
    fixture.run(&line);
    let replaced = fixture.run(&[&line[..], &["--on-conflict", "replace"]].concat());
    assert!(replaced.contains("instead of the job that had its key"), "{replaced}");
    fixture.claim("MAIL", "web-1");
    let running = fixture.run(&line);
    assert!(running.contains("has the key and is running\nexit code 4\n"), "{running}");
    let repeated = ["enqueue", "CHARGE", "1", "--idempotency-key", "request-1"];
    fixture.run(&repeated);
    fixture.settle("CHARGE", "web-1", &Verdict::Done);
    let ended = fixture.run(&repeated);
    assert!(ended.contains("of the same request has ended"), "{ended}");
    fixture.expect(
        &["enqueue", "MAIL", "hello"],
        "error: the payload is not JSON: expected value at line 1 column 1\n\
         remedy: write a text as '\"text\"', or give --content-type text/plain\nexit code 2\n",
    );
    assert!(fixture.run(&["enqueue", "dq.x"]).ends_with("exit code 2\n"));
    assert!(fixture.run(&["enqueue", "A", "--remember", "soon"]).ends_with("exit code 2\n"));
    assert!(fixture.run(&["enqueue", "A", "--idempotency-key", ""]).ends_with("exit code 2\n"));
}
