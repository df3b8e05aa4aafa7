//! Command output: text for people, or JSON, one value per line.

use std::io::{BufWriter, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Result};

pub(crate) struct Output<'a> {
    results: BufWriter<Box<dyn Write + 'a>>,
    notes: Box<dyn Write + 'a>,
    json: bool,
}

impl<'a> Output<'a> {
    /// Results go to the first writer, notes to the second.
    pub(crate) fn new(results: impl Write + 'a, notes: impl Write + 'a, json: bool) -> Self {
        Self { results: BufWriter::new(Box::new(results)), notes: Box::new(notes), json }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        self.results.write_all(text.as_bytes()).map_err(Failure::output)
    }

    /// Prints a value as one line of JSON. Also escapes control characters that JSON allows but a
    /// terminal may obey.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(value)
            .map_err(|error| Failure::new("internal", error.to_string(), ""))?;
        let mut escaped = String::with_capacity(line.len() + 1);
        for character in line.chars() {
            match character {
                '\u{7f}'..='\u{9f}' => escaped.push_str(&format!("\\u{:04x}", character as u32)),
                _ => escaped.push(character),
            }
        }
        escaped.push('\n');
        self.text(&escaped)
    }

    /// Prints a result: the value with `--json`, otherwise the text.
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

    pub(crate) fn note(&mut self, text: &str) {
        // The result does not depend on it.
        let _ = writeln!(self.notes, "{text}");
    }

    /// Shows a spinner during slow work, if stderr is a terminal.
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

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.results.flush().map_err(Failure::output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_characters_that_a_terminal_obeys() {
        let mut printed = Vec::new();
        let mut output = Output::new(&mut printed, Vec::new(), true);
        output.json(&"\u{1b}[2J\u{9b}2J\u{7f}é订单").unwrap();
        output.flush().unwrap();
        drop(output);
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(printed, "\"\\u001b[2J\\u009b2J\\u007fé订单\"\n");
        let read: String = serde_json::from_str(&printed).unwrap();
        assert_eq!(read, "\u{1b}[2J\u{9b}2J\u{7f}é订单");
    }
}
