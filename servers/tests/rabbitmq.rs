//! A private RabbitMQ server: start, stop, settings.

use std::net::TcpStream;

use dq_servers::RabbitMq;

fn declare(rabbit: &RabbitMq, name: &str, kind: &str) -> Result<String, String> {
    let declare = format!(
        "{{new, _}} = rabbit_amqqueue:declare({{resource, <<\"/\">>, queue, <<\"{name}\">>}}, true, \
         false, [{{<<\"x-queue-type\">>, longstr, <<\"{kind}\">>}}], none, <<\"dq\">>), ok"
    );
    rabbit.try_eval(&declare)
}

#[test]
fn a_server_is_ready_and_its_directory_is_removed() {
    let rabbit = RabbitMq::start();
    assert_eq!(rabbit.url(), format!("amqp://dq:secret@127.0.0.1:{}/%2f", rabbit.port()));
    assert!(rabbit.ctl(&["list_users"]).contains("dq\t[administrator]"));
    assert_eq!(rabbit.eval("node()"), format!("'{}'", rabbit.node()));
    for kind in ["classic", "quorum", "stream"] {
        declare(&rabbit, kind, kind).expect("a queue");
    }
    let flags = rabbit.ctl(&["--silent", "list_feature_flags", "stability", "state"]);
    assert!(flags.contains("stable\tenabled"), "{flags}");
    assert!(!flags.lines().any(|flag| flag == "stable\tdisabled"), "{flags}");

    // Frozen servers can be stopped and started again too.
    rabbit.freeze();
    rabbit.stop();
    assert!(rabbit.process_id().is_none());
    rabbit.restart();
    declare(&rabbit, "another", "quorum").expect("a queue");

    let (dir, address) = (rabbit.dir().to_owned(), rabbit.address());
    drop(rabbit);
    assert!(!dir.exists());
    TcpStream::connect(address).expect_err("the port is closed");
}

#[test]
fn settings_are_applied() {
    let rabbit = RabbitMq::options()
        .set("heartbeat", "17")
        .advanced("quorum_tick_interval", "1000")
        .management()
        .without_feature_flag("stream_queue")
        .start();
    let setting = |key: &str| rabbit.eval(&format!("application:get_env(rabbit, {key})"));
    assert_eq!(setting("heartbeat"), "{ok,17}");
    assert_eq!(setting("quorum_tick_interval"), "{ok,1000}");
    // The defaults, recommended for delayed jobs; `stock` omits them.
    assert_eq!(setting("dead_letter_worker_publisher_confirm_timeout"), "{ok,5000}");
    assert_eq!(setting("dead_letter_worker_consumer_prefetch"), "{ok,512}");
    // Newer versions require the feature and ignore the option.
    let required = rabbit.eval("rabbit_feature_flags:get_stability(stream_queue)") == "required";
    assert_eq!(
        declare(&rabbit, "s", "stream").is_ok(),
        required,
        "the flag is disabled unless the version requires it"
    );
    declare(&rabbit, "q", "quorum").expect("a queue");
    let management = rabbit.management_url().rsplit_once('@').expect("a user").1.to_owned();
    TcpStream::connect(management).expect("the port is open");

    let stock = RabbitMq::options().stock().start();
    let value = stock.eval("application:get_env(rabbit, dead_letter_worker_consumer_prefetch)");
    assert_eq!(value, "{ok,32}");
}

#[test]
#[should_panic(expected = "no_such_key")]
fn a_failed_start_panics_with_the_reason() {
    RabbitMq::options().set("no_such_key", "1").start();
}
