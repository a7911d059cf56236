//! A formula as a tree, and its value: exactly as a fraction where it has one, otherwise as f64.
//!
//! Exact values are bounded in size, so that a tower of powers costs nothing: what would grow beyond that has no exact
//! value, and what overflows f64 has none at all.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};

/// Bits that numerator and denominator of an exact value may have.
const MOST_BITS: u64 = 16_384;
/// The greatest number whose factorial is taken.
const MOST_FACTORIAL: u32 = 1000;

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Sine, of radians.
    Sine,
    /// Cosine, of radians.
    Cosine,
    /// Tangent, of radians.
    Tangent,
    /// Natural logarithm.
    Logarithm,
    /// Absolute value.
    Absolute,
    /// Factorial.
    Factorial,
}

/// A formula.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A whole number or fraction.
    Exact(BigRational),
    /// A decimal: a person may have rounded it.
    Decimal(BigRational),
    /// π or e.
    Constant(f64),
    /// Infinity.
    Infinity,
    /// A letter.
    Variable(String),
    /// The sum of all.
    Sum(Vec<Expression>),
    /// The product of all.
    Product(Vec<Expression>),
    /// The first divided by the second.
    Quotient(Box<Expression>, Box<Expression>),
    /// The first to the power of the second.
    Power(Box<Expression>, Box<Expression>),
    /// A function.
    Apply(Function, Box<Expression>),
}

/// Values of variables.
pub type Assignment = [(String, BigRational)];

/// Values for `names` at the point number `point`: fractions that no formula of a school book was made for, above zero at
/// the first and below at some of the others.
pub fn point(names: &[String], point: u32) -> Vec<(String, BigRational)> {
    let value = |index: usize| {
        let index = index as i64;
        let (top, bottom) =
            (37 * (i64::from(point) + 2) + 101 * (index + 1), 29 + 12 * i64::from(point) + 7 * index);
        let below = point >= 4 && (point + index as u32) % 2 == 1;
        BigRational::new(if below { -top } else { top }.into(), bottom.into())
    };
    names.iter().enumerate().map(|(index, name)| (name.clone(), value(index))).collect()
}

impl Expression {
    /// A whole number.
    pub fn whole(value: i64) -> Expression {
        Expression::Exact(BigRational::from_integer(value.into()))
    }

    /// It with the other sign.
    pub fn negated(self) -> Expression {
        match self {
            Expression::Exact(value) => Expression::Exact(-value),
            Expression::Decimal(value) => Expression::Decimal(-value),
            other => Expression::Product(vec![Expression::whole(-1), other]),
        }
    }

    /// The hundredth part of it.
    pub fn hundredth(self) -> Expression {
        Expression::Quotient(Box::new(self), Box::new(Expression::whole(100)))
    }

    /// The letters in it, in any order, some perhaps twice.
    pub fn variables(&self) -> Vec<String> {
        match self {
            Expression::Variable(name) => vec![name.clone()],
            Expression::Sum(parts) | Expression::Product(parts) => {
                parts.iter().flat_map(Expression::variables).collect()
            }
            Expression::Quotient(left, right) | Expression::Power(left, right) => {
                [left, right].into_iter().flat_map(|part| part.variables()).collect()
            }
            Expression::Apply(_, part) => part.variables(),
            _ => Vec::new(),
        }
    }

    /// Whether a decimal is in it.
    pub fn is_rounded(&self) -> bool {
        match self {
            Expression::Decimal(_) => true,
            Expression::Sum(parts) | Expression::Product(parts) => parts.iter().any(Expression::is_rounded),
            Expression::Quotient(left, right) | Expression::Power(left, right) => {
                left.is_rounded() || right.is_rounded()
            }
            Expression::Apply(_, part) => part.is_rounded(),
            _ => false,
        }
    }

    /// Its exact value at `place`; `None` where it has none, or none of reasonable size.
    pub fn exact(&self, place: &Assignment) -> Option<BigRational> {
        let value = match self {
            Expression::Exact(value) | Expression::Decimal(value) => value.clone(),
            Expression::Constant(_) | Expression::Infinity => return None,
            Expression::Variable(name) => place.iter().find(|(known, _)| known == name)?.1.clone(),
            Expression::Sum(parts) => {
                let mut sum = BigRational::zero();
                for part in parts {
                    sum = bounded(sum + part.exact(place)?)?;
                }
                sum
            }
            Expression::Product(parts) => {
                let mut product = BigRational::one();
                for part in parts {
                    product = bounded(product * part.exact(place)?)?;
                }
                product
            }
            Expression::Quotient(left, right) => {
                let right = right.exact(place).filter(|right| !right.is_zero())?;
                left.exact(place)? / right
            }
            Expression::Power(base, exponent) => power(&base.exact(place)?, &exponent.exact(place)?)?,
            Expression::Apply(Function::Absolute, part) => part.exact(place)?.abs(),
            Expression::Apply(Function::Factorial, part) => factorial(&part.exact(place)?)?,
            Expression::Apply(..) => return None,
        };
        bounded(value)
    }

    /// Its value at `place` as f64, infinite only where infinity was written; `None` where it has none.
    pub fn value(&self, place: &Assignment) -> Option<f64> {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        match self {
            Expression::Exact(value) | Expression::Decimal(value) => finite(value.to_f64()?),
            Expression::Constant(value) => Some(*value),
            Expression::Infinity => Some(f64::INFINITY),
            Expression::Variable(_) => finite(self.exact(place)?.to_f64()?),
            Expression::Sum(parts) => {
                let sum = parts.iter().map(|part| part.value(place)).sum::<Option<f64>>()?;
                finite(sum)
            }
            Expression::Product(parts) => {
                let factors: Vec<f64> = parts.iter().map(|part| part.value(place)).collect::<Option<_>>()?;
                let infinite = factors.iter().any(|factor| factor.is_infinite());
                Some(factors.iter().product::<f64>())
                    .filter(|value| infinite && !value.is_nan() || value.is_finite())
            }
            Expression::Quotient(left, right) => finite(left.value(place)? / right.value(place)?),
            Expression::Power(base, exponent) => {
                let (base, exponent) = (base.value(place)?, exponent.value(place)?);
                let root = 1.0 / exponent;
                if base < 0.0
                    && exponent.fract() != 0.0
                    && (root - root.round()).abs() < 1e-12
                    && root.round() % 2.0 != 0.0
                {
                    return finite(-(-base).powf(exponent));
                }
                finite(base.powf(exponent))
            }
            Expression::Apply(function, part) => {
                let value = part.value(place)?;
                finite(match function {
                    Function::Sine => value.sin(),
                    Function::Cosine => value.cos(),
                    Function::Tangent => value.tan(),
                    Function::Logarithm => value.ln(),
                    Function::Absolute => value.abs(),
                    Function::Factorial => factorial(&part.exact(place)?)?.to_f64()?,
                })
            }
        }
    }
}

fn bounded(value: BigRational) -> Option<BigRational> {
    Some(value).filter(|value| value.numer().bits() <= MOST_BITS && value.denom().bits() <= MOST_BITS)
}

/// A power that comes out as a fraction.
fn power(base: &BigRational, exponent: &BigRational) -> Option<BigRational> {
    let degree = exponent.denom().to_u32().filter(|degree| *degree <= 64)?;
    let times = exponent.numer().to_i32().filter(|times| times.unsigned_abs() <= 10_000)?;
    let bits = base.numer().bits().max(base.denom().bits());
    if bits.saturating_mul(u64::from(times.unsigned_abs())) > MOST_BITS || base.is_zero() && times <= 0 {
        return None;
    }
    let base = if degree == 1 {
        base.clone()
    } else {
        BigRational::new(root(base.numer(), degree)?, root(base.denom(), degree)?)
    };
    Some(Pow::pow(base, times))
}

/// The whole number whose power is `value`, if there is one.
fn root(value: &BigInt, degree: u32) -> Option<BigInt> {
    if value.is_negative() && degree.is_multiple_of(2) {
        return None;
    }
    let root = value.nth_root(degree);
    (Pow::pow(&root, degree) == *value).then_some(root)
}

fn factorial(value: &BigRational) -> Option<BigRational> {
    let most = value.is_integer().then(|| value.to_u32()).flatten().filter(|most| *most <= MOST_FACTORIAL)?;
    Some(BigRational::from_integer((1..=most).map(BigInt::from).product()))
}
