//! Figures and Markdown tables.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    value: f64,
    unit: String,
    /// The ratio, and the name of the reference.
    ratio: Option<(f64, String)>,
    /// The target, and whether it is met.
    target: Option<(String, bool)>,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { name: name.into(), value, unit: unit.to_owned(), ratio: None, target: None }
    }

    pub(crate) fn compared_to(self, reference: f64, to: &str) -> Self {
        let ratio = self.value / reference;
        self.ratio(ratio, to)
    }

    /// Shows a ratio that was measured turn by turn.
    pub(crate) fn ratio(self, ratio: f64, to: &str) -> Self {
        Self { ratio: Some((ratio, to.to_owned())), ..self }
    }

    pub(crate) fn at_most(self, bound: f64) -> Self {
        let (text, met) = (format!("≤ {} {}", short(bound), self.unit), self.value <= bound);
        self.target(text, met)
    }

    pub(crate) fn at_least(self, bound: f64) -> Self {
        let (text, met) = (format!("≥ {} {}", short(bound), self.unit), self.value >= bound);
        self.target(text, met)
    }

    pub(crate) fn ratio_at_least(self, bound: f64) -> Self {
        self.ratio_target("≥", bound, |value| value >= bound)
    }

    pub(crate) fn ratio_at_most(self, bound: f64) -> Self {
        self.ratio_target("≤", bound, |value| value <= bound)
    }

    pub(crate) fn target(self, text: impl Into<String>, met: bool) -> Self {
        Self { target: Some((text.into(), met)), ..self }
    }

    fn ratio_target(self, sign: &str, bound: f64, met: impl Fn(f64) -> bool) -> Self {
        let Some((ratio, to)) = self.ratio.clone() else { return self };
        self.target(format!("{sign} {bound} {to}"), met(ratio))
    }

    pub(crate) fn cells(&self) -> Vec<String> {
        let ratio = self.ratio.as_ref().map(|(ratio, to)| format!("{} {to}", short(*ratio)));
        let (target, met) = match &self.target {
            Some((target, met)) => (target.clone(), if *met { "yes" } else { "NO" }),
            None => (String::new(), ""),
        };
        let value = format!("{} {}", short(self.value), self.unit);
        vec![self.name.clone(), value, ratio.unwrap_or_default(), target, met.to_owned()]
    }
}

fn short(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    if decimals == 0 { grouped(value) } else { format!("{value:.decimals$}") }
}

/// A whole number with commas between thousands.
pub(crate) fn grouped(value: f64) -> String {
    let mut text = format!("{value:.0}");
    let first_digit = usize::from(text.starts_with('-'));
    let mut at = text.len();
    while at > first_digit + 3 {
        at -= 3;
        text.insert(at, ',');
    }
    text
}

pub(crate) fn markdown(head: &[String], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head);
    text += &format!("|{}\n", "---|".repeat(head.len()));
    text.extend(rows.into_iter().map(|row| line(&row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_thousands_are_grouped() {
        let numbers = [0.0, 0.0123, 1.234, 99.97, 123.4, 1_000.0, 1_234_567.0, -1_234.0];
        let texts = ["0", "0.012", "1.23", "100", "123", "1,000", "1,234,567", "-1,234"];
        assert_eq!(numbers.map(short), texts);
    }
}
