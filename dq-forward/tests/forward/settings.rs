use std::fs;

use dq_core::ErrorKind;
use dq_forward::{HttpForward, HttpSettings};

use crate::common::client;

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_by_name() {
    let cut_off = tempfile::NamedTempFile::new().unwrap();
    fs::write(&cut_off, "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
    let cut_off = format!("type = 'http'\nurl = 'https://h'\nca = '{}'", cut_off.path().display());
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
            "type = 'http'\nurl = 'http://h'\nca = 'Cargo.toml'",
            "`ca` is set, but `url` does not begin with https://",
        ),
        (&cut_off, "is not PEM"),
        (
            "type = 'amqp'\nurl = 'hunter2'\nrouting_key = 'k'",
            "`url` is not the URL of an AMQP broker",
        ),
        ("type = 'amqp'\nurl = 'amqp://h'", "missing field `routing_key`"),
        (
            "type = 'amqp'\nurl = 'amqp://h'\nrouting_key = 'k'\nca = 'Cargo.toml'",
            "`ca` is set, but `url` does not begin with amqps://",
        ),
        (
            "type = 'amqp'\nurl = 'amqps://h'\nrouting_key = 'k'\nca = '/does/not/exist'",
            "the file of `ca`, /does/not/exist, cannot be read",
        ),
        (
            "type = 'amqp'\nurl = 'amqps://h'\nrouting_key = 'k'\nca = 'Cargo.toml'",
            "the file of `ca`, Cargo.toml, has no certificate",
        ),
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
    let dq = client("[queues.HOOK.forward]\ntype = 'http'\nurl = 'https://h'").await;
    let forward = || HttpForward::new(HttpSettings::new("https://h")).unwrap();
    let error = dq.runner().raw_handler("HOOK", forward()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    let text = error.to_string();
    assert!(text.contains("queues.HOOK.forward") && text.contains("forward/settings.rs"), "{text}");
    // A runner for other queues does not need it.
    assert!(dq.runner().raw_handler("OTHER", forward()).only(["OTHER"]).build().is_ok());
}
