//! From metrics to points: a lookup by name, sums by step, and the mean of several seeds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::chart::Point;
use crate::metrics::Metric;
use crate::run_directory::RunDirectory;

/// A run with its metrics by split and name.
pub struct RunMetrics<'a> {
    pub run: &'a RunDirectory,
    /// The training steps that are drawn; of a long run every second, third, …
    pub drawn: BTreeSet<u64>,
    /// How far apart they are.
    pub drawn_every: usize,
    by_name: HashMap<(&'a str, &'a str), Vec<&'a Metric>>,
    names: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> RunMetrics<'a> {
    /// The metrics of a run, of whose steps at most `most` are drawn.
    pub fn new(run: &'a RunDirectory, metrics: &'a [Metric], most: usize) -> Self {
        let drawn_every = run.steps().count().div_ceil(most).max(1);
        let drawn = run.steps().rev().step_by(drawn_every).map(|step| step.step).collect();
        let mut by_name: HashMap<(&str, &str), Vec<&Metric>> = HashMap::new();
        for metric in metrics {
            by_name.entry((&*metric.split, &*metric.name)).or_default().push(metric);
        }
        let names = by_name.keys().copied().collect();
        RunMetrics { run, drawn, drawn_every, by_name, names }
    }

    /// All metrics of this name, by step.
    pub fn all(&self, split: &'a str, name: &'a str) -> &[&'a Metric] {
        self.by_name.get(&(split, name)).map_or(&[], Vec::as_slice)
    }

    /// The sum of the metrics that are `of` interest at one step.
    pub fn sum_at(&self, step: u64, split: &'a str, name: &'a str, of: impl Fn(&Metric) -> bool) -> f64 {
        self.all(split, name).iter().filter(|one| one.step == step && of(one)).map(|one| one.value).sum()
    }

    /// Metrics of a split that begin with `start`, in order.
    pub fn names(&self, split: &str, start: &str) -> Vec<&'a str> {
        let of = |(known, name): &&(&'a str, &'a str)| *known == split && name.starts_with(start);
        self.names.iter().filter(of).map(|(_, name)| *name).collect()
    }

    /// The points of those that are `of` interest, at the steps that are drawn.
    pub fn points(&self, split: &'a str, name: &'a str, of: impl Fn(&Metric) -> bool) -> Vec<Point> {
        let is_drawn = |metric: &&&Metric| split == "test" || self.drawn.contains(&metric.step);
        let point = |metric: &&Metric| Point {
            x: metric.step as f64,
            y: metric.value,
            low: metric.interval.map(|(low, _)| low),
            high: metric.interval.map(|(_, high)| high),
        };
        self.all(split, name).iter().filter(is_drawn).filter(|metric| of(metric)).map(point).collect()
    }

    /// The sums by step of those that are `of` interest.
    pub fn totals(&self, split: &'a str, name: &'a str, of: impl Fn(&Metric) -> bool) -> Vec<Point> {
        totals(&self.points(split, name, of))
    }

    /// What a column of the metrics called `name` holds, in order.
    pub fn values(
        &self,
        split: &'a str,
        name: &'a str,
        column: impl Fn(&'a Metric) -> &'a str,
    ) -> Vec<&'a str> {
        let values: BTreeSet<&str> = self.all(split, name).iter().map(|metric| column(metric)).collect();
        values.into_iter().filter(|value| !value.is_empty()).collect()
    }
}

/// Points of the same x as one.
pub fn totals(points: &[Point]) -> Vec<Point> {
    let mut sums: Vec<Point> = Vec::new();
    for point in points {
        match sums.last_mut() {
            Some(last) if last.x == point.x => last.y += point.y,
            _ => sums.push(Point { x: point.x, y: point.y, ..Point::default() }),
        }
    }
    sums
}

/// By step, to look a value up.
pub fn by_x(points: &[Point]) -> BTreeMap<u64, f64> {
    points.iter().map(|point| (point.x as u64, point.y)).collect()
}

/// The mean of the curves of several seeds where all of them are, with the lowest and the highest; between
/// two points of a curve a straight line. A single curve is left as it is.
pub fn over_seeds(mut curves: Vec<Vec<Point>>) -> Vec<Point> {
    curves.retain(|curve| !curve.is_empty());
    if curves.len() < 2 {
        return curves.pop().unwrap_or_default();
    }
    for curve in &mut curves {
        curve.sort_by(|one, other| one.x.total_cmp(&other.x));
    }
    let from = curves.iter().map(|curve| curve[0].x).fold(f64::NEG_INFINITY, f64::max);
    let to = curves.iter().map(|curve| curve[curve.len() - 1].x).fold(f64::INFINITY, f64::min);
    let mut xs: Vec<f64> =
        curves.iter().flatten().map(|point| point.x).filter(|x| (from..=to).contains(x)).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let point = |x: f64| {
        let ys: Vec<f64> = curves.iter().map(|curve| interpolate(curve, x)).collect();
        Point {
            x,
            y: ys.iter().sum::<f64>() / ys.len() as f64,
            low: ys.iter().copied().reduce(f64::min),
            high: ys.iter().copied().reduce(f64::max),
        }
    };
    xs.into_iter().map(point).collect()
}

/// The value of a curve at an x within it.
fn interpolate(curve: &[Point], x: f64) -> f64 {
    let next = curve.partition_point(|point| point.x < x).min(curve.len() - 1);
    let after = curve[next];
    if after.x <= x || next == 0 {
        return after.y;
    }
    let before = curve[next - 1];
    before.y + (after.y - before.y) * (x - before.x) / (after.x - before.x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_of_seeds_are_averaged_over_their_common_range() {
        let curve = |points: &[(f64, f64)]| -> Vec<Point> {
            points.iter().map(|&(x, y)| Point { x, y, ..Point::default() }).collect()
        };
        let mean = over_seeds(vec![
            curve(&[(0.0, 0.0), (10.0, 1.0)]),
            curve(&[(5.0, 0.5), (10.0, 0.0), (20.0, 1.0)]),
        ]);
        let found: Vec<_> = mean.iter().map(|point| (point.x, point.y, point.low, point.high)).collect();
        assert_eq!(found, [(5.0, 0.5, Some(0.5), Some(0.5)), (10.0, 0.5, Some(0.0), Some(1.0))]);
        assert_eq!(over_seeds(vec![Vec::new(), curve(&[(1.0, 2.0)])]), curve(&[(1.0, 2.0)]));
        assert_eq!(over_seeds(Vec::new()), []);
        assert_eq!(totals(&curve(&[(1.0, 2.0), (1.0, 3.0), (2.0, 4.0)])), curve(&[(1.0, 5.0), (2.0, 4.0)]));
    }
}
