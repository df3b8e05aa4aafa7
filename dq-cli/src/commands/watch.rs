//! `dq watch`: prints the queues repeatedly.

use std::io::{self, IsTerminal as _};
use std::thread;
use std::time::Duration;

use crate::args::WatchArgs;
use crate::failure::Result;
use crate::output::Output;
use crate::source::Source;
use crate::text;

/// Minimum interval, because each reading calls the store.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Moves a terminal's cursor to the top left, and clears below.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) fn watch(args: &WatchArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let clears = io::stdout().is_terminal() && !output.is_json();
    let mut readings = 0_u64;
    loop {
        let queues = match &args.queue {
            Some(queue) => vec![source.queue(queue)?],
            None => source.queues()?,
        };
        if output.is_json() {
            queues.iter().try_for_each(|queue| output.json(queue))?;
        } else {
            let before = match (clears, readings) {
                (true, _) => CLEAR,
                (false, 0) => "",
                (false, _) => "\n",
            };
            let waiting = queues.iter().map(|queue| queue.scheduled + queue.ready).sum();
            let running: u64 = queues.iter().map(|queue| queue.running).sum();
            let sums = format!("{} waiting, {running} running", text::count(waiting, "job"));
            output.text(&format!("{before}{sums}\n{}", super::queues::table(&queues)))?;
        }
        output.flush()?;
        readings += 1;
        if args.count.is_some_and(|count| readings >= count) {
            return Ok(());
        }
        thread::sleep(args.interval.max(MIN_INTERVAL));
    }
}
