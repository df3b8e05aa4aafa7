//! The current test's log lines.
//!
//! One subscriber serves all tests in the process. Separate subscribers would race: `tracing`
//! decides once per line of code if any subscriber wants it.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

thread_local! {
    /// Each test has its own thread, which runs all its tasks.
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

static SUBSCRIBER: Once = Once::new();

struct ThisThread;

impl io::Write for ThisThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts collecting. Each fixture calls it, so that no code runs before.
pub(crate) fn collect() {
    SUBSCRIBER.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_writer(|| ThisThread).with_ansi(false);
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    });
}

pub(crate) fn log_lines() -> String {
    LINES.with_borrow(|lines| String::from_utf8(lines.clone()).unwrap())
}
