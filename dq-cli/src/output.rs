//! What a command prints: text for people, or one JSON value a line.

use std::io::{BufWriter, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Result};

/// The output of a command.
pub(crate) struct Output<'a> {
    results: BufWriter<Box<dyn Write + 'a>>,
    notes: Box<dyn Write + 'a>,
    json: bool,
}

impl<'a> Output<'a> {
    /// Results go to the first writer, notes about them to the second.
    pub(crate) fn new(results: impl Write + 'a, notes: impl Write + 'a, json: bool) -> Self {
        Self { results: BufWriter::new(Box::new(results)), notes: Box::new(notes), json }
    }

    /// Whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a text as it is.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        self.results.write_all(text.as_bytes()).map_err(Failure::output)
    }

    /// Prints a value as one line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(value)
            .map_err(|error| Failure::new("internal", error.to_string(), ""))?;
        self.text(&format!("{line}\n"))
    }

    /// Prints a value as JSON, or else as text.
    pub(crate) fn either(
        &mut self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        match self.json {
            true => self.json(value),
            false => self.text(&text()),
        }
    }

    /// Tells the person something that is not part of the result.
    pub(crate) fn note(&mut self, text: &str) {
        // The result does not depend on it.
        let _ = writeln!(self.notes, "{text}");
    }

    /// Shows that something is done which may take long, until it is done. Nothing is shown unless
    /// standard error is a terminal.
    pub(crate) fn during<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        const TICK: Duration = Duration::from_millis(100);
        let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            spinner.set_style(style);
        }
        spinner.tick();
        spinner.enable_steady_tick(TICK);
        let done = work();
        spinner.finish_and_clear();
        done
    }

    /// Hands on what was printed.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.results.flush().map_err(Failure::output)
    }
}
