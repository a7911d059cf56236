//! A chart on white paper: points from the top left, one unit is 1/72 inch.
//!
//! No title and no note, because a paper has captions. Colors are from Okabe and Ito and can be told apart
//! with any color vision; dashes tell roles apart, in print too.

use crate::chart::{Chart, Color, Kind, Point, Series, ValueUnit};
use crate::figure::axis::{AxisUnit, ValueAxis};
use crate::figure::text;

/// The width of a figure. A column of text is 3.3 to 5.5 inches wide in most conference styles.
const WIDTH: f64 = 360.0;
/// The height of the part with the data.
const PLOT: f64 = 190.0;
const SIZE: f64 = 9.0;
const SMALL: f64 = 8.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 8.0;
const INK: [u8; 3] = [0, 0, 0];
const LINE: [u8; 3] = [90, 90, 90];
const GRID: [u8; 3] = [228, 228, 228];
const PALETTE: [[u8; 3]; 7] = [
    [0, 104, 168],
    [200, 80, 10],
    [0, 128, 92],
    [161, 70, 127],
    [154, 106, 0],
    [63, 111, 209],
    [107, 116, 128],
];
/// Lengths of ink and of gaps.
const DASHES: [&[f64]; 5] = [&[], &[6.0, 3.0], &[2.0, 3.0], &[8.0, 3.0, 2.0, 3.0], &[1.0, 4.0]];

/// A point of the paper.
pub type Spot = (f64, f64);

/// Where a text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextAnchor {
    Start,
    Middle,
    End,
}

/// A mark on the paper; later ones cover earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// Straight lines from spot to spot.
    Line { spots: Vec<Spot>, color: [u8; 3], width: f64, dash: &'static [f64] },
    /// A filled shape.
    Area { spots: Vec<Spot>, color: [u8; 3], opacity: f64 },
    /// A filled circle.
    Dot { at: Spot, radius: f64, color: [u8; 3] },
    /// A text; one that is `turned` goes upward.
    Text { at: Spot, text: String, size: f64, anchor: TextAnchor, turned: bool },
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    pub width: f64,
    pub height: f64,
    /// Its title, for a reader who does not see it.
    pub title: String,
    pub marks: Vec<Mark>,
}

/// Where data lies on the paper.
struct Frame {
    left: f64,
    x: ValueAxis,
    y: ValueAxis,
}

impl Frame {
    fn of(chart: &Chart) -> Frame {
        let (x, y) = (horizontal(chart), vertical(chart));
        let widest = y
            .ticks
            .iter()
            .map(|tick| text::width(&tick.label, SMALL) + raised_width(&tick.power))
            .fold(0.0, f64::max);
        Frame { left: widest + 8.0 + SIZE + 6.0, x, y }
    }

    fn at(&self, x: f64, y: f64) -> Spot {
        let (width, bottom) = (WIDTH - self.left - RIGHT, TOP + PLOT);
        (self.left + self.x.place(x) * width, bottom - self.y.place(y) * PLOT)
    }
}

fn raised_width(power: &Option<String>) -> f64 {
    power.as_ref().map_or(0.0, |power| text::width(power, SMALL * 0.75))
}

fn points(chart: &Chart) -> impl Iterator<Item = &Point> {
    chart.series.iter().flat_map(|series| &series.points)
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values = values.filter(|value| value.is_finite());
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// The distance between bars.
fn step(chart: &Chart) -> f64 {
    let mut xs: Vec<f64> = points(chart).map(|point| point.x).collect();
    xs.sort_by(f64::total_cmp);
    let gap = xs.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0).reduce(f64::min);
    gap.unwrap_or(1.0)
}

fn horizontal(chart: &Chart) -> ValueAxis {
    let (mut low, mut high) = range(points(chart).map(|point| point.x));
    if chart.kind == Kind::Bars {
        let half = step(chart) / 2.0;
        (low, high) = (low - half, high + half);
    }
    if low == high {
        (low, high) = (low - 0.5, high + 0.5);
    }
    let counts = if chart.x == "step" { AxisUnit::Steps } else { AxisUnit::Values(ValueUnit::Number) };
    ValueAxis::linear(low, high, 5, counts, false)
}

fn vertical(chart: &Chart) -> ValueAxis {
    let (mut low, mut high) = match chart.kind {
        Kind::Bars => {
            let mut sums = std::collections::BTreeMap::new();
            points(chart).for_each(|point| *sums.entry(point.x.to_bits()).or_insert(0.0) += point.y);
            (0.0, range(sums.into_values()).1)
        }
        Kind::Curves => {
            let values = points(chart).flat_map(|point| [Some(point.y), point.low, point.high]).flatten();
            range(values.filter(|value| !chart.log || *value > 0.0))
        }
    };
    if chart.log && low.is_finite() {
        return ValueAxis::logarithmic(low, high);
    }
    if low > 0.0 && low < 0.6 * high {
        low = 0.0;
    }
    if low == high {
        let room = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
        (low, high) = (if low == 0.0 { low } else { low - room }, high + room);
    }
    ValueAxis::linear(low, high, 4, AxisUnit::Values(chart.unit), true)
}

pub fn chart(chart: &Chart) -> Drawing {
    let frame = Frame::of(chart);
    let mut marks = Vec::new();
    axes(chart, &frame, &mut marks);
    match chart.kind {
        Kind::Bars => bars(chart, &frame, &mut marks),
        Kind::Curves => {
            chart.series.iter().for_each(|series| band(series, &frame, &mut marks));
            chart.series.iter().for_each(|series| curve(series, &frame, &mut marks));
        }
    }
    let height = legend(chart, &frame, &mut marks);
    Drawing { width: WIDTH, height, title: chart.title.clone(), marks }
}

fn line(from: Spot, to: Spot, color: [u8; 3], width: f64) -> Mark {
    Mark::Line { spots: vec![from, to], color, width, dash: &[] }
}

fn text_at(at: Spot, text: &str, size: f64, anchor: TextAnchor) -> Mark {
    Mark::Text { at, text: text.to_owned(), size, anchor, turned: false }
}

fn axes(chart: &Chart, frame: &Frame, marks: &mut Vec<Mark>) {
    let (left, right, bottom) = (frame.left, WIDTH - RIGHT, TOP + PLOT);
    for tick in &frame.y.ticks {
        let y = bottom - frame.y.place(tick.value) * PLOT;
        marks.push(line((left, y), (right, y), GRID, 0.5));
        let end = left - 5.0 - raised_width(&tick.power);
        marks.push(text_at((end, y + 2.8), &tick.label, SMALL, TextAnchor::End));
        if let Some(power) = &tick.power {
            marks.push(text_at((end, y - 0.7), power, SMALL * 0.75, TextAnchor::Start));
        }
    }
    marks.push(line((left, bottom), (right, bottom), LINE, 0.8));
    marks.push(line((left, TOP), (left, bottom), LINE, 0.8));
    for tick in &frame.x.ticks {
        let x = left + frame.x.place(tick.value) * (right - left);
        marks.push(line((x, bottom), (x, bottom + 3.0), LINE, 0.8));
        marks.push(text_at((x, bottom + 12.0), &tick.label, SMALL, TextAnchor::Middle));
    }
    let x_name = if chart.x == "tokens" { "tokens generated in training" } else { chart.x };
    marks.push(text_at(((left + right) / 2.0, bottom + 24.0), x_name, SIZE, TextAnchor::Middle));
    let at = (SIZE, TOP + PLOT / 2.0);
    marks.push(Mark::Text {
        at,
        text: if chart.name.starts_with("success") { "success".to_owned() } else { chart.title.clone() },
        size: SIZE,
        anchor: TextAnchor::Middle,
        turned: true,
    });
}

fn paint(color: Color) -> [u8; 3] {
    match color {
        // After seven colors the same ones, half as strong.
        Color::Of(index) if index % 14 < 7 => PALETTE[index % 7],
        Color::Of(index) => PALETTE[index % 7].map(|part| 255 - (255 - part) / 2),
        Color::Idle => [201, 206, 213],
        Color::Bad => PALETTE[1],
    }
}

fn band(series: &Series, frame: &Frame, marks: &mut Vec<Mark>) {
    let ends = series.points.iter().filter_map(|point| Some((point.x, point.low?, point.high?)));
    let ends: Vec<(f64, f64, f64)> = ends.collect();
    if ends.len() < 2 || series.thin {
        return;
    }
    let mut spots: Vec<Spot> = ends.iter().map(|(x, _, high)| frame.at(*x, *high)).collect();
    spots.extend(ends.iter().rev().map(|(x, low, _)| frame.at(*x, *low)));
    marks.push(Mark::Area { spots, color: paint(series.color), opacity: 0.15 });
}

fn curve(series: &Series, frame: &Frame, marks: &mut Vec<Mark>) {
    let mut points = series.points.clone();
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    let spots: Vec<Spot> = points.iter().map(|point| frame.at(point.x, point.y)).collect();
    let (color, width) = (paint(series.color), if series.thin { 0.8 } else { 1.4 });
    if spots.len() == 1 || (spots.len() <= 30 && !series.thin) {
        marks.extend(spots.iter().map(|&at| Mark::Dot { at, radius: 1.8, color }));
    }
    marks.push(Mark::Line { spots, color, width, dash: DASHES[series.dash % DASHES.len()] });
}

fn bars(chart: &Chart, frame: &Frame, marks: &mut Vec<Mark>) {
    let room = frame.at(step(chart), 0.0).0 - frame.at(0.0, 0.0).0;
    let width = (if room > 3.0 { room * 0.8 } else { room }).min(24.0);
    let mut tops = std::collections::BTreeMap::new();
    for series in &chart.series {
        for point in series.points.iter().filter(|point| point.y > 0.0) {
            let from: &mut f64 = tops.entry(point.x.to_bits()).or_insert(0.0);
            let (low, high) = (frame.at(point.x, *from), frame.at(point.x, *from + point.y));
            *from += point.y;
            let (left, right) = (low.0 - width / 2.0, low.0 + width / 2.0);
            let spots = vec![(left, low.1), (right, low.1), (right, high.1), (left, high.1)];
            marks.push(Mark::Area { spots, color: paint(series.color), opacity: 1.0 });
        }
    }
}

/// Names under the plot, filling each row; returns the total height.
fn legend(chart: &Chart, frame: &Frame, marks: &mut Vec<Mark>) -> f64 {
    let mut at = (frame.left, TOP + PLOT + 40.0);
    if chart.series.len() < 2 {
        return TOP + PLOT + 32.0;
    }
    for series in &chart.series {
        let name = fitted(&series.name, WIDTH - RIGHT - frame.left - 26.0);
        let width = 26.0 + text::width(&name, SMALL);
        if at.0 > frame.left && at.0 + width > WIDTH - RIGHT {
            at = (frame.left, at.1 + 12.0);
        }
        let (color, y) = (paint(series.color), at.1 - 2.8);
        marks.push(match chart.kind {
            Kind::Bars => {
                let (left, right) = (at.0 + 5.0, at.0 + 13.0);
                let spots = vec![(left, y - 4.0), (right, y - 4.0), (right, y + 4.0), (left, y + 4.0)];
                Mark::Area { spots, color, opacity: 1.0 }
            }
            Kind::Curves => Mark::Line {
                spots: vec![(at.0, y), (at.0 + 18.0, y)],
                color,
                width: if series.thin { 0.8 } else { 1.4 },
                dash: DASHES[series.dash % DASHES.len()],
            },
        });
        marks.push(text_at((at.0 + 22.0, at.1), &name, SMALL, TextAnchor::Start));
        at.0 += width + 12.0;
    }
    at.1 + 8.0
}

/// A name without its end where it would be wider than this.
fn fitted(name: &str, width: f64) -> String {
    if text::width(name, SMALL) <= width {
        return name.to_owned();
    }
    let mut short = String::new();
    for c in name.chars() {
        if text::width(&format!("{short}{c}…"), SMALL) > width {
            break;
        }
        short.push(c);
    }
    format!("{short}…")
}

/// How text is colored.
pub const TEXT: [u8; 3] = INK;
