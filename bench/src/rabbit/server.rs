//! The private broker and its metrics.

use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use dq_servers::{RabbitMq, install};

use crate::measure::process_cpu;
use crate::plan::Result;

/// Unit of CPU times in `/proc/PID/stat`, independent of the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub(super) struct RabbitServer {
    rabbit: RabbitMq,
    vhosts: Cell<usize>,
}

/// A virtual host; dropping it deletes it with its contents.
#[derive(Debug)]
pub(super) struct Vhost<'a> {
    server: &'a RabbitServer,
    name: String,
    url: String,
}

impl RabbitServer {
    pub(super) fn start() -> Result<Self> {
        install::rabbitmq()?;
        let rabbit = RabbitMq::options()
            // Pending messages exceed a test server's memory limit.
            .set("vm_memory_high_watermark.absolute", "4GB")
            .start();
        Ok(Self { rabbit, vhosts: Cell::default() })
    }

    pub(super) fn vhost(&self) -> Vhost<'_> {
        let number = self.vhosts.get() + 1;
        self.vhosts.set(number);
        let name = format!("bench-{number}");
        let url = self.rabbit.vhost(&name);
        Vhost { server: self, name, url }
    }

    pub(super) fn version(&self) -> String {
        let text = |value: String| value.trim_matches('"').to_owned();
        let rabbit = text(self.rabbit.eval("rabbit_misc:version()"));
        let erlang = text(self.rabbit.eval("rabbit_misc:otp_release()"));
        format!("{rabbit}, Erlang {erlang}")
    }

    pub(super) fn number(&self, expression: &str) -> Result<u64> {
        let value = self.rabbit.eval(expression);
        value.parse().map_err(|_| format!("{expression} is {value}").into())
    }

    pub(super) fn cpu(&self) -> Duration {
        let process = self.rabbit.process_id().expect("the broker runs");
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The program name, in parentheses, may contain spaces.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        // User and kernel time; the first field here is the state.
        let spent: f64 =
            fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        Duration::from_secs_f64(spent / TICKS_PER_SECOND)
    }
}

impl Vhost<'_> {
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Vhost<'_> {
    fn drop(&mut self) {
        let name = &self.name;
        self.server.rabbit.eval(&format!("rabbit_vhost:delete(<<\"{name}\">>, <<\"dq\">>)"));
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BrokerCost {
    pub(super) wall: Duration,
    pub(super) broker: Duration,
    pub(super) client: Duration,
}

pub(super) fn cost_of<T>(
    server: &RabbitServer,
    run: impl FnOnce() -> Result<T>,
) -> Result<(T, BrokerCost)> {
    let (broker, client, began) = (server.cpu(), process_cpu(), Instant::now());
    let result = run()?;
    let cost = BrokerCost {
        wall: began.elapsed(),
        broker: server.cpu().saturating_sub(broker),
        client: process_cpu().saturating_sub(client),
    };
    Ok((result, cost))
}
