//! Round ticks of an axis, and labels that tell each from the next.

use crate::chart::ValueUnit;

/// What an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisUnit {
    /// Steps, which are whole.
    Steps,
    Values(ValueUnit),
}

/// An axis: positions of values, ticks, and labels.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueAxis {
    low: f64,
    high: f64,
    is_log: bool,
    /// Its ticks, from low to high.
    pub ticks: Vec<Tick>,
}

/// A tick of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where it is.
    pub value: f64,
    pub label: String,
    /// The raised digits behind it, of a power of ten.
    pub power: Option<String>,
}

impl ValueAxis {
    /// A linear axis from `low` to `high`, widened to ticks if `widen`, with about `wanted` of these.
    pub fn linear(low: f64, high: f64, wanted: usize, counts: AxisUnit, widen: bool) -> ValueAxis {
        let (scale, suffix) = match counts {
            AxisUnit::Steps => (1.0, ""),
            AxisUnit::Values(unit) => scale(high, unit),
        };
        let is_whole = scale == 1.0 && matches!(counts, AxisUnit::Steps | AxisUnit::Values(ValueUnit::Count));
        let unit_of = tick_unit((high - low) / scale, wanted, is_whole);
        let (mut low, mut high) = (low, high);
        if widen {
            low = (low / scale / unit_of + 1e-9).floor() * unit_of * scale;
            high = (high / scale / unit_of - 1e-9).ceil() * unit_of * scale;
        }
        let first = (low / scale / unit_of - 1e-9).ceil() as i64;
        let last = (high / scale / unit_of + 1e-9).floor() as i64;
        let values: Vec<f64> = (first..=last).map(|place| place as f64 * unit_of).collect();
        let digits = digits(unit_of);
        let label = |value: &f64| {
            let number = format!("{value:.digits$}").replace('-', "−");
            let label =
                if *value == 0.0 && suffix != " %" { "0".to_owned() } else { format!("{number}{suffix}") };
            Tick { value: value * scale, label, power: None }
        };
        ValueAxis { low, high, is_log: false, ticks: values.iter().map(label).collect() }
    }

    /// A logarithmic axis over whole decades; both ends above 0.
    pub fn logarithmic(low: f64, high: f64) -> ValueAxis {
        let from = (low.log10() + 1e-9).floor() as i32;
        let to = ((high.log10() - 1e-9).ceil() as i32).max(from + 1);
        let every = (to - from + 1).div_euclid(6).max(1);
        let ticks = (from..=to).filter(|power| (power - from) % every == 0);
        let ticks = ticks
            .map(|power| Tick {
                value: 10f64.powi(power),
                label: "10".to_owned(),
                power: Some(power.to_string().replace('-', "−")),
            })
            .collect();
        ValueAxis { low: f64::from(from), high: f64::from(to), is_log: true, ticks }
    }

    /// Where a value lies: 0 at the lower end, 1 at the upper.
    pub fn place(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(10f64.powf(self.low)).log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }
}

/// By what values are divided before they are written, and what is written behind them.
fn scale(most: f64, unit: ValueUnit) -> (f64, &'static str) {
    match unit {
        ValueUnit::Share => (0.01, " %"),
        ValueUnit::Seconds if most >= 7200.0 => (3600.0, " h"),
        ValueUnit::Seconds if most >= 120.0 => (60.0, " min"),
        ValueUnit::Seconds => (1.0, " s"),
        ValueUnit::Number | ValueUnit::Count if most >= 1e9 => (1e9, " G"),
        ValueUnit::Number | ValueUnit::Count if most >= 1e6 => (1e6, " M"),
        ValueUnit::Number | ValueUnit::Count if most >= 1e4 => (1e3, " k"),
        ValueUnit::Number | ValueUnit::Count => (1.0, ""),
    }
}

/// The round number that divides a length into about `wanted` parts; of whole numbers a whole one.
fn tick_unit(length: f64, wanted: usize, whole: bool) -> f64 {
    let raw = (length / wanted as f64).max(if whole { 1.0 } else { 1e-300 });
    let power = 10f64.powi(raw.log10().floor() as i32);
    let units: &[f64] =
        if whole && power == 1.0 { &[1.0, 2.0, 5.0, 10.0] } else { &[1.0, 2.0, 2.5, 5.0, 10.0] };
    units.iter().map(|unit| unit * power).find(|unit| *unit >= raw * 0.999).unwrap_or(raw)
}

/// Digits after the point that multiples of a unit need.
fn digits(unit: f64) -> usize {
    (0..12)
        .find(|&digits| {
            let shifted = unit * 10f64.powi(digits);
            (shifted - shifted.round()).abs() < 1e-6 * shifted.max(1e-6) && shifted >= 0.999
        })
        .unwrap_or(12) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &ValueAxis) -> Vec<String> {
        let label = |tick: &Tick| format!("{}{}", tick.label, tick.power.as_deref().unwrap_or_default());
        axis.ticks.iter().map(label).collect()
    }

    #[test]
    fn labels_tell_each_tick_from_the_next() {
        let axis = ValueAxis::linear(0.0, 0.0019, 4, AxisUnit::Values(ValueUnit::Share), true);
        assert_eq!(labels(&axis), ["0.00 %", "0.05 %", "0.10 %", "0.15 %", "0.20 %"]);
        assert_eq!(axis.place(0.002), 1.0);
        assert_eq!(
            labels(&ValueAxis::linear(0.0, 1.0, 4, AxisUnit::Values(ValueUnit::Share), true)),
            ["0 %", "25 %", "50 %", "75 %", "100 %"]
        );
        assert_eq!(
            labels(&ValueAxis::linear(0.0, 1000.0, 4, AxisUnit::Values(ValueUnit::Seconds), true)),
            ["0", "5 min", "10 min", "15 min", "20 min"]
        );
        assert_eq!(
            labels(&ValueAxis::linear(0.0, 80.0, 4, AxisUnit::Values(ValueUnit::Number), false)),
            ["0", "20", "40", "60", "80"]
        );
        assert_eq!(
            labels(&ValueAxis::linear(0.0, 26_000.0, 4, AxisUnit::Values(ValueUnit::Count), true)),
            ["0", "10 k", "20 k", "30 k"]
        );
        assert_eq!(
            labels(&ValueAxis::linear(-1.0, 1.0, 4, AxisUnit::Values(ValueUnit::Number), true)),
            ["−1.0", "−0.5", "0", "0.5", "1.0"]
        );
    }

    #[test]
    fn decades_hold_every_value() {
        let axis = ValueAxis::logarithmic(3e-6, 2e-4);
        assert_eq!(labels(&axis), ["10−6", "10−5", "10−4", "10−3"]);
        assert!(axis.place(3e-6) > 0.0 && axis.place(2e-4) < 1.0 && axis.place(0.0) == 0.0);
        assert_eq!(labels(&ValueAxis::logarithmic(1.0, 1.0)).len(), 2);
    }
}
