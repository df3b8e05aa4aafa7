//! Figures and their table.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// A measured value, optionally with a ratio to a reference and a target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) group: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) ratio: Option<Ratio>,
    pub(crate) target: Option<Target>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    pub(crate) to: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) text: String,
    pub(crate) met: bool,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            group: String::new(),
            name: name.into(),
            value,
            unit: unit.to_owned(),
            ratio: None,
            target: None,
        }
    }

    pub(crate) fn compared_to(mut self, reference: f64, to: &str) -> Self {
        self.ratio = Some(Ratio { value: self.value / reference, to: to.to_owned() });
        self
    }

    pub(crate) fn at_most(self, bound: f64) -> Self {
        let (text, met) = (format!("≤ {} {}", short(bound), self.unit), self.value <= bound);
        self.target(text, met)
    }

    pub(crate) fn ratio_at_least(self, bound: f64) -> Self {
        self.ratio_target("≥", bound, |value| value >= bound)
    }

    pub(crate) fn ratio_at_most(self, bound: f64) -> Self {
        self.ratio_target("≤", bound, |value| value <= bound)
    }

    pub(crate) fn target(mut self, text: impl Into<String>, met: bool) -> Self {
        self.target = Some(Target { text: text.into(), met });
        self
    }

    fn ratio_target(self, sign: &str, bound: f64, met: impl Fn(f64) -> bool) -> Self {
        let Some(ratio) = self.ratio.clone() else {
            return self;
        };
        self.target(format!("{sign} {bound} {}", ratio.to), met(ratio.value))
    }

    fn cells(&self) -> [String; 6] {
        let ratio = self.ratio.as_ref();
        let target = self.target.as_ref();
        [
            self.group.clone(),
            self.name.clone(),
            format!("{} {}", short(self.value), self.unit),
            ratio.map(|ratio| format!("{} {}", short(ratio.value), ratio.to)).unwrap_or_default(),
            target.map(|target| target.text.clone()).unwrap_or_default(),
            target
                .map(|target| if target.met { "yes" } else { "NO" }.to_owned())
                .unwrap_or_default(),
        ]
    }
}

fn short(value: f64) -> String {
    let size = value.abs();
    if size >= 999.5 {
        let digits = format!("{:.0}", size);
        let mut text = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place) % 3 == 0 {
                text.push(',');
            }
            text.push(digit);
        }
        return if value < 0.0 { format!("-{text}") } else { text };
    }
    let decimals = match size {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

pub(crate) fn markdown(figures: &[Figure]) -> String {
    let head = ["group", "figure", "value", "ratio", "target", "met"].map(str::to_owned);
    let rows: Vec<[String; 6]> = figures.iter().map(Figure::cells).collect();
    let width = |column: usize| {
        let cells = std::iter::once(&head).chain(&rows).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    let mut line = |row: &[String; 6]| {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            // Right-aligns numbers. Writing to a String cannot fail.
            let _ = if matches!(column, 2 | 3) {
                write!(text, "| {cell:>width$} ")
            } else {
                write!(text, "| {cell:width$} ")
            };
        }
        text.push_str("|\n");
    };
    line(&head);
    line(&widths.map(|width| "-".repeat(width)));
    rows.iter().for_each(line);
    text
}
