//! Traffic of an idle runner.

use std::time::Duration;

use super::server::RabbitServer;
use super::store;
use crate::idle::{IdleRunner, QUEUES};
use crate::measure::{io_runtime, millis};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;

const MESSAGES: [&str; 3] =
    ["messages_received_total", "messages_delivered_total", "messages_acknowledged_total"];

/// Seconds between two announcements of an idle runner. Each is published, delivered and
/// acknowledged.
const ENTRY_INTERVAL: f64 = 15.0;

/// Upper limit for an entry, its confirm and its ack on the wire.
const ENTRY_BYTES: f64 = 4_096.0;

const HEARTBEAT: u64 = 8;

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let window = plan.full_or_quick(Duration::from_secs(60), Duration::from_secs(12));
    let vhost = server.vhost();
    let runtime = io_runtime();
    let dq = runtime.block_on(store::dq(&vhost))?;
    let runner = IdleRunner::start(runtime.handle(), &dq);
    // Skips the startup, which declares each queue.
    std::thread::sleep(Duration::from_secs(5));
    let (before, cpu) = (Traffic::read(server)?, server.cpu());
    std::thread::sleep(window);
    let (after, cpu) = (Traffic::read(server)?, server.cpu() - cpu);
    runtime.block_on(runner.stop())?;
    runtime.block_on(dq.close())?;
    let minutes = window.as_secs_f64() / 60.0;
    let messages = (after.messages - before.messages) as f64 / minutes;
    let bytes = (after.beyond_heartbeats - before.beyond_heartbeats) as f64 / minutes;
    let cpu = millis(cpu) / window.as_secs_f64();
    let entries = (window.as_secs_f64() / ENTRY_INTERVAL).ceil() / minutes;
    let name = format!("idle, {QUEUES} queues");
    progress(format_args!(
        "{name}: {messages} messages and {bytes} bytes beyond heartbeats a minute, broker {cpu:.1} ms/s"
    ));
    Ok(vec![
        Figure::new(format!("{name}: published, delivered, acknowledged"), messages, "/min")
            .at_most(entries * MESSAGES.len() as f64),
        Figure::new(format!("{name}: sent beyond heartbeats"), bytes, "B/min")
            .at_most(entries * ENTRY_BYTES),
        Figure::new(format!("{name}: broker CPU"), cpu, "ms/s"),
    ])
}

#[derive(Debug)]
struct Traffic {
    messages: u64,
    /// Bytes received from clients, minus one heartbeat's bytes per packet.
    beyond_heartbeats: i64,
}

impl Traffic {
    fn read(server: &RabbitServer) -> Result<Self> {
        let mut messages = 0;
        for counter in MESSAGES {
            messages += server.number(&format!(
                "lists:sum([maps:get({counter}, Counters, 0) || \
                 Counters <- maps:values(rabbit_global_counters:overview())])"
            ))?;
        }
        let sum = |counter: &str| {
            server.number(&format!(
                "lists:sum([Value || [{{{counter}, Value}}] <- \
                 rabbit_networking:connection_info_all([{counter}])])"
            ))
        };
        let (bytes, packets) = (sum("recv_oct")?, sum("recv_cnt")?);
        // The broker does not count heartbeats, but each is its own packet. Without other traffic,
        // the difference is zero; a larger packet adds its bytes beyond a heartbeat.
        let beyond_heartbeats = i64::try_from(bytes)? - i64::try_from(HEARTBEAT * packets)?;
        Ok(Self { messages, beyond_heartbeats })
    }
}
