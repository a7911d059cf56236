//! The charts of runs as data, for the page, for `--figure`, and for the CSV of a figure.
//!
//! - [`learning`]: charts of one or several runs; [`detail`]: charts of a single run.
//! - [`series`]: from metrics to points, and the mean of several seeds.

pub mod detail;
pub mod learning;
pub mod series;

use record::failure::{Failure, Result};
use serde::{Serialize, Serializer};

use crate::csv::cell;

/// A point of a curve, or the height of a bar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// The step, or the tokens generated so far.
    pub x: f64,
    pub y: f64,
    /// The lower end of its interval, or the lowest seed.
    pub low: Option<f64>,
    /// The upper end, or the highest seed.
    pub high: Option<f64>,
}

/// How a series is colored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// One of the palette, by number.
    Of(usize),
    /// What taught nothing, or had no success.
    Idle,
    /// What went wrong.
    Bad,
}

impl Serialize for Color {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Color::Of(index) => serializer.serialize_u64(*index as u64),
            Color::Idle => serializer.serialize_str("idle"),
            Color::Bad => serializer.serialize_str("bad"),
        }
    }
}

/// One curve, or one part of the bars.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// The method whose curve it is, where several runs are drawn.
    pub method: Option<usize>,
    pub color: Color,
    /// Index of the pattern of dashes; 0 is a solid line.
    pub dash: usize,
    /// True if it is drawn behind the others: thin, without points.
    pub thin: bool,
    pub points: Vec<Point>,
}

impl Series {
    /// A solid series.
    pub fn new(name: impl Into<String>, color: Color, points: Vec<Point>) -> Series {
        Series { name: name.into(), method: None, color, dash: 0, thin: false, points }
    }
}

/// Curves, or bars of which each is a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A line for each series.
    Curves,
    /// The series upon each other at each step.
    Bars,
}

/// What the values of a chart are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueUnit {
    Number,
    /// Whole numbers.
    Count,
    /// Shares of one, shown in percent.
    Share,
    Seconds,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chart {
    /// Its name for `--figure`: lower-case letters, digits and dashes.
    pub name: String,
    pub title: String,
    /// What a reader should know of it.
    pub note: String,
    pub kind: Kind,
    /// Quantity on the horizontal axis: `step` or `tokens`.
    pub x: &'static str,
    /// What its values are.
    pub unit: ValueUnit,
    /// True if the vertical axis is logarithmic; needs a value above 0.
    pub log: bool,
    pub series: Vec<Series>,
}

impl Chart {
    /// A chart of curves over steps.
    pub fn new(name: &str, title: impl Into<String>, note: impl Into<String>, series: Vec<Series>) -> Chart {
        Chart {
            name: slug(name),
            title: title.into(),
            note: note.into(),
            kind: Kind::Curves,
            x: "step",
            unit: ValueUnit::Number,
            log: false,
            series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        }
    }

    /// Its values are shares, written in percent.
    pub fn share(self) -> Chart {
        Chart { unit: ValueUnit::Share, ..self }
    }

    /// Bars of these units.
    pub fn bars(self, unit: ValueUnit) -> Chart {
        Chart { kind: Kind::Bars, unit, ..self }
    }

    /// Its data as CSV: a row for each point. `low` and `high` are an interval, or the lowest and the highest
    /// seed.
    ///
    /// # Errors
    /// 74: the table cannot be written to memory.
    pub fn csv(&self) -> Result<Vec<u8>> {
        let mut table = csv::Writer::from_writer(Vec::new());
        table.write_record(["series", self.x, "value", "low", "high"]).map_err(Failure::io)?;
        for series in &self.series {
            for Point { x, y, low, high } in &series.points {
                let end = |end: &Option<f64>| end.map_or_else(String::new, |end| end.to_string());
                let row = [cell(&series.name), x.to_string(), y.to_string(), end(low), end(high)];
                table.write_record(row).map_err(Failure::io)?;
            }
        }
        table.into_inner().map_err(Failure::io)
    }
}

/// A name as a part of a file's name.
fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(plain).collect();
    name.split('-').filter(|part| !part.is_empty()).collect::<Vec<&str>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_of_a_chart_has_its_points() {
        let point = Point { x: 3.0, y: 0.5, low: Some(0.25), high: Some(1.0) };
        let series = Series::new("lr 1e-3, \"a\"", Color::Of(0), vec![point]);
        let empty = Series::new("nothing", Color::Idle, Vec::new());
        let chart = Chart::new("Components of tool/1", "Success", "", vec![series, empty]);
        assert_eq!((chart.name.as_str(), chart.series.len()), ("components-of-tool-1", 1));
        let text = String::from_utf8(chart.csv().unwrap()).unwrap();
        assert_eq!(text, "series,step,value,low,high\n\"lr 1e-3, \"\"a\"\"\",3,0.5,0.25,1\n");
    }
}
