//! Text for terminals: tables, times and durations.

use std::time::Duration;

use dq_core::{Timestamp, format_duration};

/// Escapes control characters, so that a key or an error cannot control the terminal.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => cleaned.push_str("\\n"),
            '\t' => cleaned.push(' '),
            other if other.is_control() => cleaned.push('\u{fffd}'),
            other => cleaned.push(other),
        }
    }
    cleaned
}

/// Returns the first line, escaped and cut to `max` characters.
pub(crate) fn line(text: &str, max: usize) -> String {
    let first = text.lines().next().unwrap_or_default();
    let line: String = clean(first).chars().take(max).collect();
    if line.len() < clean(text).len() { format!("{line}…") } else { line }
}

pub(crate) fn duration(millis: u64) -> String {
    format_duration(Duration::from_millis(millis))
}

/// Formats a UTC time; includes the date unless it is today.
pub(crate) fn time(at: Timestamp, now: Timestamp) -> String {
    let (text, today) = (at.to_string(), now.to_string());
    match (text.split_once('T'), today.split_once('T')) {
        (Some((day, time)), Some((today, _))) => {
            let time = time.trim_end_matches('Z');
            if day == today { time.to_owned() } else { format!("{day} {time}") }
        }
        // Outside the years 1970 to 9999.
        _ => text,
    }
}

/// Formats a count: `1 job`, `2 jobs`.
pub(crate) fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A table printed in parts. Columns never get narrower.
pub(crate) struct Table {
    /// Titles; `>` in front aligns the column to the right.
    titles: Vec<&'static str>,
    widths: Vec<usize>,
    has_begun: bool,
}

impl Table {
    pub(crate) fn new(titles: &[&'static str]) -> Self {
        Self { titles: titles.to_vec(), widths: vec![0; titles.len()], has_begun: false }
    }

    /// Formats rows, with titles before the first ones.
    pub(crate) fn rows(&mut self, rows: &[Vec<String>]) -> String {
        let titles = self.titles.iter().map(|title| title.trim_start_matches('>').to_owned());
        let titles: Vec<String> = titles.collect();
        let begins = !std::mem::replace(&mut self.has_begun, true);
        let lines: Vec<&Vec<String>> = begins.then_some(&titles).into_iter().chain(rows).collect();
        for line in &lines {
            for (width, cell) in self.widths.iter_mut().zip(line.iter()) {
                *width = (*width).max(cell.chars().count());
            }
        }
        lines.into_iter().map(|line| self.line(line)).collect()
    }

    fn line(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for ((cell, width), title) in cells.iter().zip(&self.widths).zip(&self.titles) {
            let padding = " ".repeat(width - cell.chars().count());
            match title.starts_with('>') {
                true => line += &format!("{padding}{cell}  "),
                false => line += &format!("{cell}{padding}  "),
            }
        }
        format!("{}\n", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_another_day_have_their_date() {
        let now = dq_ops::parse_timestamp("2027-01-31T10:31:00Z").unwrap();
        let at = |text| time(dq_ops::parse_timestamp(text).unwrap(), now);
        assert_eq!(at("2027-01-31T10:00:00.005Z"), "10:00:00.005");
        assert_eq!(at("2027-01-30T23:59:59.999Z"), "2027-01-30 23:59:59.999");
    }

    #[test]
    fn what_others_wrote_cannot_control_the_terminal() {
        assert_eq!(clean("a\u{1b}[31m\u{9b}b\nc\td"), "a\u{fffd}[31m\u{fffd}b\\nc d");
        assert_eq!(line("first\nsecond", 80), "first…");
        assert_eq!(line("abcdef", 3), "abc…");
        assert_eq!(line("abc", 3), "abc");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", ">JOBS", "NOTE"]);
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = table.rows(&[row(["a", "1", ""]), row(["längst", "1000", "x"])]);
        assert_eq!(text, "NAME    JOBS  NOTE\na          1\nlängst  1000  x\n");
        assert_eq!(table.rows(&[row(["b", "2", "y"])]), "b          2  y\n");
    }
}
