//! Every example refuses invalid options: with code 2 if they cannot be parsed, with code 1 if they
//! name something that does not exist.

use crate::program::output;

#[test]
fn invalid_options_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("odd.toml"), "[backend]\ntype = \"mongodb\"\n").unwrap();
    let port_of_nobody = "127.0.0.1:1";
    for (example, arguments, code, reason) in [
        ("actix", &["--grace", "86401"][..], 2, "86400"),
        ("actix", &["--listen", "127.0.0.1:0", "--backend", "nonsense"], 1, "scheme"),
        ("graceful_shutdown", &["--work", "long"], 2, "long"),
        ("graceful_shutdown", &["--listen", "nowhere"], 1, "nowhere"),
        ("order_timeout", &["--timeout", "soon"], 2, "soon"),
        ("order_timeout", &["--timeout=-1"], 2, "-1"),
        ("order_timeout", &["--listen", "nowhere"], 1, "nowhere"),
        ("order_timeout", &["--db", "no/such/dir/x.db"], 1, "no/such/dir"),
        ("quickstart", &["--jobs", "0"], 2, "1..=10000"),
        ("quickstart", &["--within", "NaN"], 2, "NaN"),
        ("quickstart", &["--within", "3601"], 2, "3600"),
        ("quickstart", &["--backend", "mongodb://x"], 1, "sqlite"),
        ("rabbitmq_reminders", &[], 2, "Usage:"),
        ("rabbitmq_reminders", &["plan", "standup", "1e9"], 2, "1e9"),
        ("rabbitmq_reminders", &["--minute", "0", "list"], 2, "1..=60"),
        ("rabbitmq_reminders", &["--url", "amqp://127.0.0.1:1", "list"], 1, port_of_nobody),
        ("recurring", &["--backend", "nosuch://x"], 1, "nosuch"),
        ("redisson_bridge", &["--redis", "redis://127.0.0.1:1/0"], 1, port_of_nobody),
        ("redisson_bridge", &["--codec", "kryo5:com.example.Order"], 2, "TypedJsonJacksonCodec"),
        ("switch_backend", &[], 2, "--config"),
        ("switch_backend", &["--config", "no.toml"], 1, "no.toml"),
        ("switch_backend", &["--config", "odd.toml"], 1, "mongodb"),
        ("switch_backend", &["--config", "odd.toml", "--in", "3601"], 2, "3600"),
    ] {
        let output = output(example, dir.path(), arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{example} {arguments:?}: {errors}");
        assert!(errors.contains(reason), "{example} {arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{example} {arguments:?}");
    }
}
