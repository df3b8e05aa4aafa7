//! The broker is killed with SIGKILL under load, and the trace is checked.

use std::sync::Arc;
use std::time::Duration;

use dq_servers::RabbitMq;
use dq_testkit::fixture::CrashWorkload;

use crate::fixture::{blocking, config_for, open, retry};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_changes_survive_kills_of_the_broker() {
    let server = Arc::new(RabbitMq::start());
    let mut config = config_for(&server);
    config.response_timeout = Duration::from_secs(3);
    let store = open(&config).await;
    // A killed broker loses declarations that are not on its disk.
    server.sync_declarations();
    let workload = CrashWorkload {
        lease_for: Duration::from_millis(800),
        snooze: Duration::from_millis(1_200),
        min_done: 20,
        min_calls: 200,
    };
    let pauses = [1_500, 2_500].map(Duration::from_millis);
    let crash = async || {
        let server = Arc::clone(&server);
        blocking(move || {
            server.kill();
            server.restart();
        })
        .await;
        // The next pause begins when the log works again.
        retry(|| store.stats(&[])).await;
    };
    workload.run(Arc::clone(&store), &pauses, crash).await;
}
