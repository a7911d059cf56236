//! Python's `range`.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value as Jinja};

use super::{Result, invalid};

/// The longest `range`, as in the sandbox of `jinja2`.
const LONGEST: i64 = 100_000;

/// `range(stop)`, `range(start, stop, step)`.
pub(super) fn range(first: i64, second: Option<i64>, step: Option<i64>) -> Result<Jinja> {
    let (start, stop) = second.map_or((0, first), |stop| (first, stop));
    let range = PyRange { start, stop, step: step.unwrap_or(1) };
    match (range.step, range.count()) {
        (0, _) => Err(invalid("range() with a step of 0".to_owned())),
        (_, count) if count > LONGEST => Err(invalid(format!("range() of more than {LONGEST} numbers"))),
        _ => Ok(Jinja::from_object(range)),
    }
}

/// Python's `range`: a sequence that knows its bounds.
#[derive(Debug)]
pub(super) struct PyRange {
    start: i64,
    stop: i64,
    step: i64,
}

impl PyRange {
    fn count(&self) -> i64 {
        let (span, step) = match self.step {
            0 => return 0,
            1.. => (i128::from(self.stop) - i128::from(self.start), i128::from(self.step)),
            _ => (i128::from(self.start) - i128::from(self.stop), -i128::from(self.step)),
        };
        // As many as there are steps that begin before the end.
        i64::try_from((span.max(0) + step - 1) / step).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for PyRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(out, "range({}, {})", self.start, self.stop),
            step => write!(out, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

impl Object for PyRange {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let index = key.as_i64().filter(|index| (0..self.count()).contains(index))?;
        Some(Jinja::from(self.start + index * self.step))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.count() as usize)
    }

    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}
