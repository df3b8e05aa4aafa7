//! The log lines of the current test.
//!
//! One subscriber serves all tests of the process. A subscriber for each would race with the others:
//! `tracing` decides once for each line of code whether any subscriber wants it.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

thread_local! {
    /// Each test has a thread of its own, which runs all its tasks.
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

/// Begins to collect lines. Every fixture calls it, so that no line of code runs before.
pub(crate) fn collect() {
    SUBSCRIBER.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_writer(|| ThisThread).with_ansi(false);
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    });
}

/// The lines that the current test has logged.
pub(crate) fn log_lines() -> String {
    LINES.with_borrow(|lines| String::from_utf8(lines.clone()).unwrap())
}
