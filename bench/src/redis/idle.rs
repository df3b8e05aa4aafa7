//! Commands that an idle runner sends to the server.

use std::time::Duration;

use dq_servers::Connection;

use super::server::RedisServer;
use super::store::RedisStore;
use crate::idle::{IdleRunner, QUEUES};
use crate::measure::{io_runtime, millis};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;

const LAST: &str = "dq-bench-end-of-monitoring";

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
) -> Result<Vec<Figure>> {
    server.clear();
    let window = plan.full_or_quick(Duration::from_secs(10), Duration::from_secs(1));
    let runtime = io_runtime();
    let dq = runtime.block_on(store.dq(server))?;
    let runner = IdleRunner::start(runtime.handle(), &dq);
    std::thread::sleep(Duration::from_secs(1));
    let before = server.cpu();
    std::thread::sleep(window);
    let cpu = millis(server.cpu() - before) / window.as_secs_f64();
    // In its own window, because MONITOR costs server CPU time.
    let sent = count_commands(server, window);
    runtime.block_on(runner.stop())?;
    runtime.block_on(dq.close())?;
    let per_second = sent as f64 / window.as_secs_f64();
    let name = format!("{}, {QUEUES} queues, idle", store.name);
    progress(format_args!("{name}: {sent} commands in {} s", window.as_secs()));
    Ok(vec![
        // Besides the sweeps, the runner announces itself and the subscriber pings, each every 15
        // s.
        Figure::new(format!("{name}: commands"), per_second, "/s")
            .target("≤ 1 /s", per_second <= 1.0 + 2.0 / window.as_secs_f64()),
        Figure::new(format!("{name}: Redis CPU"), cpu, "ms/s"),
    ])
}

/// Counts client commands in the window, without commands from scripts.
fn count_commands(server: &RedisServer, window: Duration) -> usize {
    let mut monitor = server.connect();
    assert!(monitor.command(&["MONITOR"]).is_ok());
    let monitoring = std::thread::spawn(move || count(&mut monitor));
    std::thread::sleep(window);
    let _ = server.connect().command(&["ECHO", LAST]);
    monitoring.join().expect("the monitoring thread does not panic")
}

/// Counts lines such as `1700000000.123456 [0 127.0.0.1:6379] "GET" "k"`. Script lines have `lua`
/// in place of the client's address.
fn count(monitor: &mut Connection) -> usize {
    let mut commands = 0;
    loop {
        let line = monitor.receive().text();
        if line.contains(LAST) {
            return commands;
        }
        commands += usize::from(!line.split(']').next().unwrap_or("").ends_with(" lua"));
    }
}
