//! Small SVG charts.

/// A bar, in the units of its chart: a bar chart has 960 × 100, and a line of shares 100 × 6.
#[derive(Debug, Clone)]
pub(super) struct Rect {
    pub(super) class: String,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) title: String,
}

#[derive(Debug)]
pub(super) struct Chart {
    pub(super) bars: Vec<Rect>,
    pub(super) title: &'static str,
    pub(super) total: String,
    pub(super) labels: Vec<String>,
    /// Names the data that the chart leaves out.
    pub(super) note: String,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 100.0;

pub(super) fn bars(counts: &[u64], title: impl Fn(usize, u64) -> String) -> Vec<Rect> {
    let values: Vec<_> = counts.iter().map(|count| Some(*count as f64)).collect();
    series(&values, "bar", |position, _| title(position, counts[position]))
}

/// One bar per value; `None` is a gap in the data.
pub(super) fn series(
    values: &[Option<f64>],
    class: &'static str,
    title: impl Fn(usize, Option<f64>) -> String,
) -> Vec<Rect> {
    let max = values.iter().flatten().copied().fold(0.0, f64::max);
    let step = WIDTH / values.len().max(1) as f64;
    let bar = |(position, value): (usize, &Option<f64>)| {
        let (class, height) = match *value {
            None => ("gap", HEIGHT),
            Some(value) if value <= 0.0 => ("none", 1.0),
            // Keeps values above zero visible.
            Some(value) => (class, (value / max * HEIGHT).max(4.0)),
        };
        // Merges adjacent gaps.
        let width = if class == "gap" { step } else { step * 0.8 };
        Rect {
            class: class.to_owned(),
            x: round(position as f64 * step + (step - width) / 2.0),
            y: round(HEIGHT - height),
            width: round(width),
            height: round(height),
            title: title(position, *value),
        }
    };
    values.iter().enumerate().map(bar).collect()
}

/// Draws the parts of a whole as one line.
pub(super) fn shares(parts: impl Iterator<Item = (String, u64)>) -> Vec<Rect> {
    let present: Vec<_> = parts.filter(|(_, count)| *count > 0).collect();
    let total = present.iter().map(|(_, count)| *count).sum::<u64>() as f64;
    // Keeps each part visible.
    let least = 3.0;
    let free = 100.0 - least * present.len() as f64;
    let mut end = 0.0;
    let rect = |(class, count)| {
        let (begin, width) = (end, least + count as f64 / total * free);
        end += width;
        let (x, width) = (round(begin), round(width));
        Rect { class, x, y: 0.0, width, height: 6.0, title: String::new() }
    };
    present.into_iter().map(rect).collect()
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_can_be_seen_and_all_fill_the_line() {
        let shares = |counts: [u64; 3]| shares(counts.into_iter().map(|it| (String::new(), it)));
        let rects = shares([1_000_000, 0, 1]);
        assert_eq!(rects.len(), 2);
        assert!(rects[1].width >= 3.0);
        assert!((rects[1].x + rects[1].width - 100.0).abs() < 0.1);
        assert!(shares([0; 3]).is_empty());
        let bars = bars(&[0, 1_000_000, 1], |_, _| String::new());
        assert_eq!((bars[1].height, bars[2].height), (HEIGHT, 4.0));
        let values = [Some(0.0), None, Some(8.5)];
        let series = series(&values, "done", |_, _| String::new());
        let classes: Vec<_> = series.iter().map(|rect| rect.class.as_str()).collect();
        assert_eq!(classes, ["none", "gap", "done"]);
    }
}
