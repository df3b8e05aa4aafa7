//! A plot, as SVG. The vertical axis is logarithmic.

use std::fmt::Write;

/// A plot line. Points with a coordinate that is not positive have no place on a logarithmic axis
/// and are skipped.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const MARGINS: [f64; 4] = [70.0, 140.0, 40.0, 40.0];
/// Distinct also for readers who see no red or no green.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    Logarithmic,
    /// From zero.
    Linear,
}

/// An axis from `low` to `high`, with a tick at each step: over powers of ten if it is logarithmic.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        const MAX_STEPS: f64 = 10.0;
        let values = values.filter(|value| is_drawn(*value));
        match scale {
            Scale::Logarithmic => {
                let start = (f64::INFINITY, f64::NEG_INFINITY);
                let (low, high) = values.map(f64::log10).fold(start, |(low, high), power| {
                    (low.min(power.floor()), high.max(power.ceil()))
                });
                let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
                Self { scale, low, high: high.max(low + 1.0), step: 1.0, from, to }
            }
            Scale::Linear => {
                let high = values.fold(1.0, f64::max);
                let power = 10_f64.powf(high.log10().floor());
                let steps = [0.1, 0.2, 0.5, 1.0].map(|step| step * power);
                let step = steps.into_iter().find(|step| high / step <= MAX_STEPS);
                let step = step.unwrap_or(power);
                Self { scale, low: 0.0, high: (high / step).ceil() * step, step, from, to }
            }
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.scale == Scale::Logarithmic { value.log10() } else { value };
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let steps = ((self.high - self.low) / self.step).round() as u32;
        (0..=steps).map(|number| {
            let at = self.low + f64::from(number) * self.step;
            let value = if self.scale == Scale::Logarithmic { 10_f64.powf(at) } else { at };
            let label = match value {
                ..1.0 if value > 0.0 => format!("{value:.*}", -value.log10().floor() as usize),
                ..1e3 => format!("{value:.0}"),
                ..1e6 => format!("{:.0}k", value / 1e3),
                ..1e9 => format!("{:.0}M", value / 1e6),
                _ => format!("1e{:.0}", value.log10()),
            };
            (value, label)
        })
    }
}

fn is_drawn(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Draws the lines. Titles and names must not need XML escaping.
pub(crate) fn plot(title: &str, x: Scale, lines: &[Line]) -> String {
    let [left, right, top, bottom] = MARGINS;
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let x = Axis::over(x, points().map(|(x, _)| x), left, WIDTH - right);
    let y = Axis::over(Scale::Logarithmic, points().map(|(_, y)| y), HEIGHT - bottom, top);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    let mut grid = |[x1, y1, x2, y2]: [f64; 4], [tx, ty]: [f64; 2], anchor: &str, label: &str| {
        let _ = writeln!(
            svg,
            "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{tx:.1}\" y=\"{ty:.1}\" text-anchor=\"{anchor}\">{label}</text>"
        );
    };
    for (value, label) in x.ticks() {
        let at = x.place(value);
        grid([at, y.from, at, y.to], [at, y.from + 18.0], "middle", &label);
    }
    for (value, label) in y.ticks() {
        let at = y.place(value);
        grid([x.from, at, x.to, at], [x.from - 8.0, at + 4.0], "end", &label);
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let drawn = line.points.iter().filter(|(x, y)| is_drawn(*x) && is_drawn(*y));
        let places: Vec<(f64, f64)> =
            drawn.map(|(at_x, at_y)| (x.place(*at_x), y.place(*at_y))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in &places {
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let (at_x, at_y) = (x.to + 12.0, y.to + 16.0 * (number as f64 + 1.0));
        let _ = writeln!(
            svg,
            "<text x=\"{at_x:.1}\" y=\"{at_y:.1}\" fill=\"{colour}\">{}</text>",
            line.name
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_all_values_between_whole_powers_of_ten() {
        let axis =
            |values: &[f64], to| Axis::over(Scale::Logarithmic, values.iter().copied(), 100.0, to);
        let large = axis(&[1_000.0, 1e9], 101.0);
        let axis = axis(&[0.3, 45.0, f64::NAN, 0.0], 400.0);
        assert_eq!((axis.low, axis.high), (-1.0, 2.0));
        assert_eq!([0.1, 1.0, 100.0].map(|value| axis.place(value).round()), [100.0, 200.0, 400.0]);
        let labels: Vec<_> = axis.ticks().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0.1", "1", "10", "100"]);
        let labels: Vec<_> = large.ticks().map(|(_, label)| label).collect();
        assert_eq!(labels, ["1k", "10k", "100k", "1M", "10M", "100M", "1e9"]);
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_steps() {
        for (high, end, label) in [(660.0, 700.0, "100"), (60.0, 60.0, "10"), (180.0, 180.0, "20")]
        {
            let axis = Axis::over(Scale::Linear, [high].into_iter(), 0.0, 1.0);
            let labels: Vec<_> = axis.ticks().map(|(_, label)| label).collect();
            assert_eq!((axis.low, axis.high), (0.0, end));
            assert_eq!(labels[..2], ["0", label]);
        }
    }
}
