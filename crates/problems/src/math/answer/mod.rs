//! Answers to mathematical problems: the meaning of a text, and whether two texts mean the same.
//!
//! - [`expression`]: a formula as a tree, its exact value and its value as f64;
//! - [`token`], [`formula`], [`parse`]: LaTeX or plain text to formulas, sets, tuples and intervals;
//!   [`mod@word`]: all other text, normalized for comparison;
//! - [`extract`]: finds the answer in a solution; [`finished`]: whether it is worked out
//!   as far as the reference.
//!
//! Formulas without variables are compared exactly if both are exact (integers, fractions, roots with
//! rational values). If one is a decimal or irrational, they may differ by a millionth of the greater one: NumEq
//! of Stronger-MAS (arXiv 2510.11062, appendix A.1) without its absolute tolerance, for which 0 is every small
//! number. But an integer must be met exactly in any notation, apart from floating-point noise: `1.0e9` is not
//! 1000000007. Formulas with variables are equal if they agree at fixed points, exactly if that can be computed.
//! Sets are unordered; tuples and intervals are ordered, and brackets count. Two equations are equal if one is a
//! multiple of the other; an equation is not its right side, unless its left side is a name. Identical formulas
//! are equal, however large their value.
//!
//! Units are compared if both answers have one ([`mod@unit`]). Times of day are compared as times, and named members
//! of a list by name.
//!
//! Left out: the imaginary unit (a variable like any other letter), inequalities of several variables and
//! determinants (compared as text).

pub mod expression;
pub mod extract;
mod factors;
pub mod finished;
pub mod formula;
mod matrix;
mod name;
pub mod parse;
mod relation;
pub mod spelling;
pub mod time;
pub mod token;
pub mod unit;
pub mod word;

pub use parse::Answer;

use std::collections::{BTreeMap, BTreeSet};

use num_rational::BigRational;

use expression::{Expression, Operator, test_point};

/// The relative tolerance of NumEq.
const DELTA: f64 = 1e-6;
/// Relative error of an f64 computation whose result is an integer.
const NOISE: f64 = 1e-12;
/// Tolerance at test points, for values that are not rounded.
const POINT_DELTA: f64 = 1e-9;
/// Number of test points for formulas with variables, and of those at which both must have a value.
const POINTS: u32 = 12;
const ENOUGH: usize = 3;

impl Answer {
    /// Returns true if this answer means the same as the reference `other`. The order matters: 3 answers a reference
    /// of 2.9999999, which does not answer 3.
    pub fn same(&self, other: &Answer) -> bool {
        match (self, other) {
            (Answer::Either(left, right), other) => left.same(other) || right.same(other),
            (one, Answer::Either(left, right)) => one.same(left) || one.same(right),
            (Answer::Named(name, one), Answer::Named(other_name, other)) => match (&**one, &**other) {
                (Answer::One(left), Answer::One(right)) if name != other_name => {
                    // A derivative is another variable.
                    let is_plain = |name: &str| !name.contains(['\\', '\'']);
                    is_plain(name) && is_plain(other_name) && one.same(other)
                        || same_equation(&line(name, left), &line(other_name, right))
                }
                (Answer::Tuple(..) | Answer::Union(_), _) => name == other_name && one.same(other),
                _ => one.same(other),
            },
            (Answer::Named(name, one), Answer::Equation(left, right))
            | (Answer::Equation(left, right), Answer::Named(name, one)) => match &**one {
                Answer::One(formula) => same_equation(&line(name, formula), &difference(left, right)),
                _ => false,
            },
            (Answer::Named(_, one), other) => one.same(other),
            (one, Answer::Named(_, other)) => one.same(other),
            (Answer::Time(one), Answer::Time(other)) => one.same(*other),
            (Answer::Time(time), other) => {
                time.number().is_some_and(|number| Answer::One(number).same(other))
            }
            (one, Answer::Time(time)) => time.number().is_some_and(|number| one.same(&Answer::One(number))),
            (Answer::Measure(amount, unit), Answer::Measure(other, other_unit)) => {
                unit.convert(amount, other_unit).is_some_and(|amount| equal(&amount, other))
            }
            (Answer::Measure(amount, _), other) => Answer::One(amount.clone()).same(other),
            (one, Answer::Measure(other, _)) => one.same(&Answer::One(other.clone())),
            (Answer::One(left), Answer::One(right)) | (Answer::Percent(left), Answer::Percent(right)) => {
                equal(left, right)
            }
            // 50 % is a half, or the number 50 if the question asks for percent; 0.5 % is not a half.
            (Answer::Percent(share), Answer::One(plain)) => {
                let asked = plain.value(&[]).is_none_or(|plain| plain.abs() >= 1.0);
                equal(&hundredth(share), plain) || asked && equal(share, plain)
            }
            (Answer::One(plain), Answer::Percent(share)) => {
                equal(plain, share) || equal(plain, &hundredth(share))
            }
            (Answer::Set(left), Answer::Set(right)) | (Answer::Union(left), Answer::Union(right)) => {
                same_members(left, right)
            }
            (Answer::Tuple(brackets, left), Answer::Tuple(other, right)) => {
                brackets == other
                    && left.len() == right.len()
                    && left.iter().zip(right).all(|(left, right)| left.same(right))
            }
            (Answer::Equation(left, right), Answer::Equation(other_left, other_right)) => {
                same_equation(&difference(left, right), &difference(other_left, other_right))
            }
            (Answer::Matrix(left), Answer::Matrix(right)) => {
                left.len() == right.len()
                    && left.iter().zip(right).all(|(left, right)| {
                        left.len() == right.len()
                            && left.iter().zip(right).all(|(left, right)| left.same(right))
                    })
            }
            (Answer::Word(left), Answer::Word(right)) => left == right,
            (Answer::Set(named), Answer::Tuple(['(', ')'], values))
            | (Answer::Tuple(['(', ')'], values), Answer::Set(named)) => {
                let pair = by_name(named).filter(|named| named.len() > 1 && named.len() == values.len());
                pair.is_some_and(|named| named.values().zip(values).all(|(one, other)| one.same(other)))
            }
            // A set of one member equals that member.
            (Answer::Set(items), one) if items.len() == 1 => items[0].same(one),
            (one, Answer::Set(items)) if items.len() == 1 => one.same(&items[0]),
            _ => false,
        }
    }
}

/// Returns true if every member of each has an equal in the other, compared by name if both name the same.
fn same_members(said: &[Answer], right: &[Answer]) -> bool {
    if let (Some(said), Some(right)) = (by_name(said), by_name(right))
        && said.keys().eq(right.keys())
    {
        return said.values().zip(right.values()).all(|(one, other)| one.same(other));
    }
    said.iter().all(|one| right.iter().any(|other| one.same(other)))
        && right.iter().all(|other| said.iter().any(|one| one.same(other)))
}

/// The members by name, if all have different names.
fn by_name(items: &[Answer]) -> Option<BTreeMap<&str, &Answer>> {
    let named = items.iter().map(|item| match item {
        Answer::Named(name, answer) => Some((name.as_str(), &**answer)),
        _ => None,
    });
    let named: BTreeMap<&str, &Answer> = named.collect::<Option<_>>()?;
    (named.len() == items.len()).then_some(named)
}

fn hundredth(share: &Expression) -> Expression {
    Expression::quotient(share.clone(), Expression::whole(100))
}

fn names(left: &Expression, right: &Expression) -> BTreeSet<String> {
    &left.variables() | &right.variables()
}

/// The formula that is zero if `name` equals `formula`.
fn line(name: &str, formula: &Expression) -> Expression {
    difference(&Expression::Variable(name.to_owned()), formula)
}

fn difference(left: &Expression, right: &Expression) -> Expression {
    Expression::Apply(Operator::Sum, vec![left.clone(), right.clone().negated()])
}

/// Returns true if one formula, set to zero, is a multiple of the other.
fn same_equation(left: &Expression, right: &Expression) -> bool {
    let names = names(left, right);
    let ratios: Vec<f64> = (0..POINTS)
        .filter_map(|point| {
            let point = test_point(&names, point);
            Some(left.value(&point)? / right.value(&point)?).filter(|ratio| ratio.is_finite())
        })
        .collect();
    ratios.len() >= ENOUGH
        && ratios[0] != 0.0
        && ratios.iter().all(|ratio| near(*ratio, ratios[0], POINT_DELTA, false))
}

fn equal(said: &Expression, right: &Expression) -> bool {
    if said == right {
        return true;
    }
    let names = names(said, right);
    if names.is_empty() {
        return equal_numbers(said, right);
    }
    let mut compared = 0;
    for point in 0..POINTS {
        let point = test_point(&names, point);
        let same = match said.exact(&point).zip(right.exact(&point)) {
            Some((said, right)) => said == right,
            None => match said.value(&point).zip(right.value(&point)) {
                Some((said, value)) => near(said, value, POINT_DELTA, right.exact(&point).is_some()),
                // One is undefined here: ln(x^2) and 2 ln(x) count as equal.
                None => continue,
            },
        };
        if !same {
            return false;
        }
        compared += 1;
    }
    compared >= ENOUGH
}

fn equal_numbers(said: &Expression, right: &Expression) -> bool {
    let (exact, exactly_right) = (said.exact(&[]), right.exact(&[]));
    let whole = exactly_right.as_ref().is_some_and(BigRational::is_integer);
    if let (Some(said_exactly), Some(exactly_right)) = (&exact, &exactly_right)
        && (whole || !said.is_rounded() && !right.is_rounded())
    {
        return said_exactly == exactly_right;
    }
    let Some((said, right)) = said.value(&[]).zip(right.value(&[])) else { return false };
    // Floating-point noise, up to the 53 bits with which f64 distinguishes integers.
    let noise = (said - right).abs() <= (NOISE * right.abs().max(1.0)).min(DELTA) && right.abs() < 9e15;
    if whole { noise } else { near(said, right, DELTA, false) }
}

/// Returns true if the values differ by a fraction `delta` of the greater one. `cancels`: terms may cancel to a small
/// value, of which only floating-point noise is left.
fn near(left: f64, right: f64, delta: f64, cancels: bool) -> bool {
    if left.is_infinite() || right.is_infinite() {
        return left == right;
    }
    let size = left.abs().max(right.abs()).max(if cancels { 1e-4 } else { 0.0 });
    // A hair more: 0.333333 differs from a third by exactly a millionth.
    (left - right).abs() <= delta * size * (1.0 + NOISE.sqrt())
}

#[cfg(test)]
mod tests;
