//! Decides whether an answer is worked out as far as its reference, so that repeating the
//! problem is not an answer.
//!
//! An answer may leave undone only what the reference leaves undone:
//! - A number must be written as digits, as a fraction of integers that does not divide evenly, as a mixed
//!   number, in percent or in powers of ten (`1.5 \times 10^3`).
//! - A radical must be simplified: integers without a power under the root, no like
//!   terms, no product of roots.
//! - A formula must be expanded if the reference is. It has no like terms, and no variable or
//!   division by a variable that the reference lacks. If the problem says "factor", it has as many
//!   factors as the reference.
//! - A part of the problem is an answer only if the reference is written in that form.
//!
//! Left out: partial reductions (`42/72` for `7/12`, unless the problem says "simplify" or "lowest terms"),
//! and rewriting that leaves no trace in the form, as of logarithms or trigonometric identities.

use std::collections::BTreeSet;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};

use super::Answer;
use super::expression::{Expression, Operator, test_point};
use super::factors::{factors, flatten, has_common_factor};
use super::formula::MATHEMATICS;
use super::token::{Spaced, Token, is_among, tokens};

/// A remaining step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// Numbers to calculate, or a value to look up: `17*23`, `\sin 30^\circ`, `8!`.
    Arithmetic,
    /// Terms to add up: `2x + 3x`, `\sqrt{50} + \sqrt{18}`.
    LikeTerms,
    /// Roots to simplify or to multiply: `\sqrt{12}`, `\sqrt2 \sqrt3`.
    Roots,
    /// Sums to multiply: `(x+1)(x+2)`, `(1+\sqrt2)^2`.
    Products,
    /// A division by something with variables.
    Division,
}

/// Plurals without an s.
const PLURALS: &str = "people children men women mice dice sheep fish";

/// A problem and its reference, as written.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub problem: &'a str,
    /// The reference answer.
    pub reference: &'a str,
}

impl Question<'_> {
    /// Returns true if `said` is worked out as far as the reference. It must have the same meaning;
    /// `answers` are both, parsed.
    pub fn is_finished(&self, said: &str, answers: (&Answer, &Answer)) -> bool {
        answers.0 == answers.1 || self.is_worked_out(answers) && !self.is_given_back(said, answers)
    }

    fn is_worked_out(&self, answers: (&Answer, &Answer)) -> bool {
        match answers {
            (Answer::Either(left, right), other) => {
                [left, right].iter().any(|said| said.same(other) && self.is_worked_out((said, other)))
            }
            (said, Answer::Either(left, right)) => {
                [left, right].iter().any(|other| said.same(other) && self.is_worked_out((said, other)))
            }
            (Answer::Named(_, said), right) => self.is_worked_out((said, right)),
            (said, Answer::Named(_, right)) => self.is_worked_out((said, right)),
            (_, Answer::Equation(..)) => true,
            (Answer::Matrix(said), Answer::Matrix(right)) => {
                said.iter().flatten().zip(right.iter().flatten()).all(|pair| self.is_worked_out(pair))
            }
            (Answer::Set(said) | Answer::Union(said), Answer::Set(right) | Answer::Union(right)) => said
                .iter()
                .all(|one| right.iter().any(|other| one.same(other) && self.is_worked_out((one, other)))),
            (Answer::Tuple(_, said), Answer::Tuple(_, right)) => {
                said.iter().zip(right).all(|pair| self.is_worked_out(pair))
            }
            (Answer::Set(said), right) if said.len() == 1 => self.is_worked_out((&said[0], right)),
            (said, Answer::Set(right)) if right.len() == 1 => self.is_worked_out((said, &right[0])),
            (said, right) => match (said.formula(), right.formula()) {
                (Some(formula), Some(right)) => self.is_simplified(formula, right) && self.knows_things(said),
                _ => true,
            },
        }
    }

    fn is_simplified(&self, said: &Expression, right: &Expression) -> bool {
        if said == right {
            return true;
        }
        let (mut left, mut allowed) = (BTreeSet::new(), BTreeSet::new());
        work_left(said, &mut left);
        work_left(right, &mut allowed);
        let reduced = !self.asks(&["simplif", "simplest", "lowest terms", "reduce"]) || is_reduced(said);
        let factored = !self.asks(&["factor"])
            || factors(said) >= factors(right) && has_common_factor(said) <= has_common_factor(right);
        let known = said.variables().is_subset(&right.variables());
        let number = !is_literal(right) || is_literal(said);
        left.is_subset(&allowed) && reduced && factored && known && number
    }

    /// Returns true if the things that `said` counts are plural or in the question: `5 apples` and not `5 nope`.
    fn knows_things(&self, said: &Answer) -> bool {
        let Answer::Measure(_, unit) = said else { return true };
        let texts = [self.problem, self.reference].map(str::to_lowercase);
        let is_known = |thing: &String| {
            thing.len() > 2 && thing.ends_with('s')
                || is_among(PLURALS, thing)
                || texts.iter().any(|text| text.contains(thing.as_str()))
        };
        unit.things.iter().all(is_known)
    }

    /// `said`, or its right side if its left side is what the problem asks for: `a + b = 5`.
    pub fn asked<'s>(&self, said: &'s str) -> &'s str {
        let Some((left, right)) = said.split_once('=').filter(|(_, right)| !right.contains('=')) else {
            return said;
        };
        let left = left.trim().trim_start_matches('$');
        let is_alone = |(at, _): (usize, &str)| {
            let before = self.problem[..at].trim_end().chars().next_back();
            let after = self.problem[at + left.len()..].trim_start().chars().next();
            let is_edge = |sign: Option<char>| {
                sign.is_none_or(|sign| sign.is_alphabetic() || matches!(sign, '$' | '.' | '?' | ',' | '\\'))
            };
            is_edge(before) && is_edge(after)
        };
        match !left.is_empty() && self.problem.match_indices(left).any(is_alone) {
            true => right,
            false => said,
        }
    }

    fn asks(&self, words: &[&str]) -> bool {
        let problem = self.problem.to_lowercase();
        words.iter().any(|word| problem.contains(word))
    }

    /// Returns true if the answer's numbers and signs occur in the problem consecutively, and
    /// are not the reference's.
    fn is_given_back(&self, said: &str, (answer, right): (&Answer, &Answer)) -> bool {
        // An inequality for an interval.
        if let Answer::Named(_, set) = answer
            && set.formula().is_none()
        {
            let bare = |text: &str| text.replace([' ', '$'], "");
            return bare(said) != bare(self.reference) && bare(self.problem).contains(&bare(said));
        }
        let Some(formula) = answer.formula() else { return false };
        // An integer is an answer in any case, even if the reference is written differently.
        let is_whole = matches!(formula, Expression::Number(value, false) if value.is_integer());
        // So is not a quantity that was to be converted.
        let is_converted = matches!((answer, right), (Answer::Measure(_, said), Answer::Measure(_, right))
            if !said.is_as_large_as(right));
        if is_whole && !is_converted && !matches!(answer, Answer::Equation(..) | Answer::Percent(_)) {
            return false;
        }
        let is_equation = matches!(answer, Answer::Equation(..));
        let core = |text: &str| match is_equation {
            true => skeleton(text),
            false => skeleton(text.rsplit(['=', '∈', '≈']).next().unwrap_or(text)),
        };
        let said = core(said);
        // Characters that cannot be part of a token separate tokens.
        let problem: Vec<Token> = self
            .problem
            .split(['$', '?', '\n', '"', '\'', '#', '&', '<', '>'])
            .flat_map(|part| part.split(". "))
            .flat_map(|part| skeleton(part.trim_end_matches('.')).into_iter().chain([Token::Sign('?')]))
            .collect();
        !said.is_empty()
            && said != core(self.reference)
            && problem.windows(said.len()).any(|part| part == said)
    }
}

/// The numbers, letters, functions and signs of a text, without brackets, units, and the difference between
/// `\frac{1}{2}` and `1/2`.
fn skeleton(text: &str) -> Vec<Token> {
    let mut skeleton = Vec::new();
    let mut is_fraction = false;
    for Spaced { token, .. } in tokens(text).unwrap_or_default() {
        let two_digits = is_fraction;
        is_fraction = token == Token::Word("frac".to_owned());
        match token {
            // `\frac12`
            Token::Number(value, _) => {
                match value.to_u8().filter(|value| two_digits && (10..100).contains(value)) {
                    Some(value) => skeleton.extend([value / 10, value % 10].map(whole)),
                    None => skeleton.push(Token::Number(value, false)),
                }
            }
            Token::Word(word) if !MATHEMATICS.contains(&word.as_str()) || is_fraction => {}
            Token::Sign('(' | ')' | '[' | ']' | '{' | '}' | '*' | '/' | '%' | '°') => {}
            other => skeleton.push(other),
        }
    }
    while skeleton.first() == Some(&Token::Sign('+')) {
        skeleton.remove(0);
    }
    skeleton
}

fn whole(value: u8) -> Token {
    Token::Number(BigRational::from_integer(value.into()), false)
}

/// Returns true if it is a number written as a result.
pub(super) fn is_literal(formula: &Expression) -> bool {
    let whole = |part: &Expression| match part {
        Expression::Number(value, false) if value.is_integer() => Some(value.clone()),
        _ => None,
    };
    let Expression::Apply(operator, parts) = formula else {
        return matches!(formula, Expression::Number(..));
    };
    match (operator, parts.as_slice()) {
        (Operator::Product, [sign, Expression::Number(..)]) if is_minus_one(sign) => false,
        (Operator::Product, [sign, other]) if is_minus_one(sign) => is_literal(other),
        (Operator::Quotient, [top, bottom]) => match (whole(top), whole(bottom)) {
            (Some(top), Some(bottom)) if !bottom.is_zero() => !(top / bottom).is_integer(),
            _ => false,
        },
        (Operator::Sum, [first, fraction @ Expression::Apply(Operator::Quotient, _)]) => {
            let below_one = |part: BigRational| part.is_positive() && part < BigRational::one();
            whole(first).is_some_and(|first| first.is_positive())
                && is_literal(fraction)
                && fraction.exact(&[]).is_some_and(below_one)
        }
        (Operator::Product, [Expression::Number(..), power]) => is_power_of_ten(power),
        (Operator::Power, _) => is_power_of_ten(formula),
        _ => false,
    }
}

fn is_power_of_ten(formula: &Expression) -> bool {
    matches!(formula, Expression::Apply(Operator::Power, parts) if matches!(parts.as_slice(),
        [base, Expression::Number(exponent, false)] if *base == Expression::whole(10) && exponent.is_integer()))
}

fn is_minus_one(formula: &Expression) -> bool {
    *formula == Expression::whole(-1)
}

/// Returns true if all its fractions are in lowest terms.
fn is_reduced(formula: &Expression) -> bool {
    match formula {
        Expression::Apply(Operator::Quotient, parts) if is_literal(formula) => {
            !matches!(parts.as_slice(), [Expression::Number(top, _), Expression::Number(bottom, _)]
                if (top / bottom).denom() != &bottom.numer().abs())
        }
        Expression::Apply(_, parts) => parts.iter().all(is_reduced),
        _ => true,
    }
}

/// Collects the remaining steps in a formula.
fn work_left(formula: &Expression, work: &mut BTreeSet<Work>) {
    let Expression::Apply(operator, parts) = formula else { return };
    if is_literal(formula) {
        return;
    }
    let is_constant = formula.variables().is_empty();
    if is_constant && is_rational(formula) {
        work.insert(Work::Arithmetic);
        return;
    }
    parts.iter().for_each(|part| work_left(part, work));
    match operator {
        Operator::Sum if has_like_terms(parts) => drop(work.insert(Work::LikeTerms)),
        Operator::Sum => {}
        Operator::Product | Operator::Quotient => {
            let (mut above, mut below) = (Vec::new(), Vec::new());
            flatten(formula, &mut above, &mut below);
            let constants = above.iter().filter(|part| !is_minus_one(part) && part.variables().is_empty());
            if constants.filter(|part| is_rational(part)).count() > 1 {
                work.insert(Work::Arithmetic);
            }
            if above.iter().chain(&below).filter(|part| is_root(part)).count() > 1 {
                work.insert(Work::Roots);
            }
            if above.iter().filter(|part| is_sum(part)).count() > 1 {
                work.insert(Work::Products);
            }
            if below.iter().any(|part| !part.variables().is_empty()) {
                work.insert(Work::Division);
            }
        }
        Operator::Power => power_left(parts, work),
        Operator::Sine | Operator::Cosine | Operator::Tangent | Operator::Absolute | Operator::Factorial => {
            if is_constant {
                work.insert(Work::Arithmetic);
            }
        }
        Operator::Logarithm => {}
    }
}

fn power_left(parts: &[Expression], work: &mut BTreeSet<Work>) {
    let [base, exponent] = parts else { return };
    let exponent = exponent.exact(&[]);
    let is_whole = exponent.as_ref().is_some_and(BigRational::is_integer);
    if !base.variables().is_empty() {
        // `(x+1)^{-1}` is a division alone.
        if is_whole && is_sum(base) && exponent.as_ref().is_none_or(|exponent| !exponent.abs().is_one()) {
            work.insert(Work::Products);
        }
        if exponent.is_some_and(|exponent| exponent.is_negative()) {
            work.insert(Work::Division);
        }
    } else if exponent.is_some() && !matches!(base, Expression::Constant(_)) {
        let under = base.exact(&[]);
        work.extend(match (under, is_whole) {
            (_, true) if is_sum(base) => Some(Work::Products),
            (Some(under), false) if exponent.is_some_and(|exponent| is_simple_root(&under, &exponent)) => {
                None
            }
            (Some(_), false) | (None, _) => Some(Work::Roots),
            (Some(_), true) => Some(Work::Arithmetic),
        });
    }
}

fn is_sum(formula: &Expression) -> bool {
    match formula {
        Expression::Apply(Operator::Sum, _) => !is_literal(formula),
        Expression::Apply(Operator::Power, parts) => parts.first().is_some_and(is_sum),
        _ => false,
    }
}

fn is_root(formula: &Expression) -> bool {
    let Expression::Apply(Operator::Power, parts) = formula else { return false };
    let [base, exponent] = parts.as_slice() else { return false };
    base.exact(&[]).is_some() && exponent.exact(&[]).is_some_and(|exponent| !exponent.is_integer())
}

/// Returns true if a formula without variables has a rational value, even by way of irrational numbers.
fn is_rational(formula: &Expression) -> bool {
    formula.exact(&[]).is_some() || formula.value(&[]).is_some_and(|value| is_fraction(value, 60, 1e-9))
}

/// Returns true if a fraction with a denominator up to `largest` is within `near` of `value`.
fn is_fraction(value: f64, largest: u32, near: f64) -> bool {
    // Denominators of the continued fraction.
    let (mut rest, mut before, mut below) = (value.abs(), 0.0, 1.0);
    while below <= f64::from(largest) {
        let scaled = value * below;
        if (scaled - scaled.round()).abs() <= near * below * value.abs().max(1.0) {
            return true;
        }
        rest = (rest - rest.floor()).recip();
        (before, below) = (below, rest.floor() * below + before);
    }
    false
}

/// Returns true if no power is left under the root: `2\sqrt2`, not `\sqrt8`, `\sqrt{1/2}` or `2^{3/2}`.
fn is_simple_root(under: &BigRational, exponent: &BigRational) -> bool {
    let degree = exponent.denom().to_u32().unwrap_or(u32::MAX);
    let simple = exponent.numer().is_one() && under.is_integer() && (under.is_positive() || degree % 2 == 1);
    let under = under.numer().abs();
    let divides = |prime: u32| {
        let power: BigInt = Pow::pow(BigInt::from(prime), degree);
        power <= under && (&under % power).is_zero()
    };
    simple && degree <= 64 && !(2..1000).any(divides)
}

/// Returns true if two parts of a sum are rational multiples of each other.
fn has_like_terms(parts: &[Expression]) -> bool {
    let names = parts.iter().flat_map(Expression::variables).collect();
    let points: Vec<_> = (0..3).map(|point| test_point(&names, point)).collect();
    let values: Vec<Vec<f64>> = parts
        .iter()
        .filter_map(|part| {
            points.iter().map(|point| part.value(point).filter(|value| *value != 0.0)).collect()
        })
        .collect();
    let alike = |(left, right): (&Vec<f64>, &Vec<f64>)| {
        let ratios: Vec<f64> = left.iter().zip(right).map(|(left, right)| left / right).collect();
        let same = |ratio: &f64| (ratio - ratios[0]).abs() <= 1e-12 * ratios[0].abs();
        ratios.iter().all(same) && is_fraction(ratios[0], 1000, 1e-12)
    };
    values.iter().enumerate().any(|(at, left)| values[..at].iter().any(|right| alike((left, right))))
}

#[cfg(test)]
mod tests;
