//! A formula as a tree, with its value: an exact fraction if possible, otherwise an f64.
//!
//! Exact values are bounded in size, so that a tower of powers costs nothing. A value beyond the bound has no
//! exact form, and a value that overflows f64 has no value.

use std::collections::BTreeSet;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};

/// Most bits of an exact value's numerator or denominator.
const MOST_BITS: u64 = 16_384;
/// The greatest number whose factorial is computed.
const MOST_FACTORIAL: u32 = 1000;

/// The operator of an [`Expression::Apply`]. Angles are in radians, logarithms are natural.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Sum of any number of parts.
    Sum,
    /// Product of any number of parts.
    Product,
    /// The first divided by the second.
    Quotient,
    /// The first to the power of the second.
    Power,
    Sine,
    Cosine,
    Tangent,
    Logarithm,
    Absolute,
    Factorial,
}

/// A formula.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A number, and true if it was written as a decimal, which may be rounded.
    Number(BigRational, bool),
    /// π, e or infinity.
    Constant(f64),
    /// A letter.
    Variable(String),
    Apply(Operator, Vec<Expression>),
}

/// Values of variables.
pub type Assignment = [(String, BigRational)];

/// Test point number `point` for the variables `names`: fractions unlikely in any textbook formula, positive
/// in the first points and partly negative in later ones.
pub fn test_point(names: &BTreeSet<String>, point: u32) -> Vec<(String, BigRational)> {
    let value = |index: i64| {
        let (top, bottom) =
            (37 * (i64::from(point) + 2) + 101 * (index + 1), 29 + 12 * i64::from(point) + 7 * index);
        let negative = point >= 4 && (i64::from(point) + index) % 2 == 1;
        BigRational::new(if negative { -top } else { top }.into(), bottom.into())
    };
    names.iter().cloned().zip((0..).map(value)).collect()
}

impl Expression {
    /// A whole number.
    pub fn whole(value: i64) -> Expression {
        Expression::Number(BigRational::from_integer(value.into()), false)
    }

    /// `top / bottom`.
    pub fn quotient(top: Expression, bottom: Expression) -> Expression {
        Expression::Apply(Operator::Quotient, vec![top, bottom])
    }

    /// The formula with the opposite sign.
    pub fn negated(self) -> Expression {
        match self {
            Expression::Number(value, rounded) => Expression::Number(-value, rounded),
            other => Expression::Apply(Operator::Product, vec![Expression::whole(-1), other]),
        }
    }

    /// The formula times a number.
    #[must_use]
    pub fn times(self, factor: BigRational) -> Expression {
        match self {
            Expression::Number(value, rounded) => Expression::Number(value * factor, rounded),
            other => Expression::Apply(Operator::Product, vec![Expression::Number(factor, false), other]),
        }
    }

    fn parts(&self) -> &[Expression] {
        if let Expression::Apply(_, parts) = self { parts } else { &[] }
    }

    pub fn variables(&self) -> BTreeSet<String> {
        match self {
            Expression::Variable(name) => [name.clone()].into(),
            other => other.parts().iter().flat_map(Expression::variables).collect(),
        }
    }

    /// Returns true if it contains a decimal.
    pub fn is_rounded(&self) -> bool {
        matches!(self, Expression::Number(_, true)) || self.parts().iter().any(Expression::is_rounded)
    }

    /// Returns true if its value is a number, but it is not written as one: as digits, a reduced fraction or
    /// a mixed number, optionally with a minus sign. `2√3` and `x + 1` have no such value.
    pub fn is_unfinished(&self) -> bool {
        let Expression::Apply(operator, parts) = self else { return false };
        let one = BigRational::one();
        match (operator, parts.as_slice()) {
            (Operator::Quotient, [Expression::Number(top, false), Expression::Number(bottom, false)]) => {
                *bottom <= one || (top / bottom).denom() != bottom.numer()
            }
            (
                Operator::Sum,
                [Expression::Number(_, false), part @ Expression::Apply(Operator::Quotient, _)],
            ) => part.is_unfinished() || part.exact(&[]).is_some_and(|part| part >= one),
            (Operator::Product, [Expression::Number(sign, false), other])
                if *sign == -one && !matches!(other, Expression::Number(..)) =>
            {
                other.is_unfinished()
            }
            // The value may be rational although parts are not: `e^0`.
            _ => {
                let whole = |value: f64| (value - value.round()).abs() <= 1e-9;
                self.exact(&[]).is_some() || self.value(&[]).is_some_and(whole)
            }
        }
    }

    /// Its exact value at `point`; `None` if it has none of reasonable size.
    pub fn exact(&self, point: &Assignment) -> Option<BigRational> {
        let (operator, parts) = match self {
            Expression::Number(value, _) => return bounded(value.clone()),
            Expression::Constant(_) => return None,
            Expression::Variable(name) => {
                return Some(point.iter().find(|(known, _)| known == name)?.1.clone());
            }
            Expression::Apply(operator, parts) => (operator, parts),
        };
        let values: Vec<BigRational> = parts.iter().map(|part| part.exact(point)).collect::<Option<_>>()?;
        let mut each = values.iter();
        bounded(match (operator, values.as_slice()) {
            (Operator::Sum, _) => each.try_fold(BigRational::zero(), |sum, value| bounded(sum + value))?,
            (Operator::Product, _) => each.try_fold(BigRational::one(), |all, value| bounded(all * value))?,
            (Operator::Quotient, [top, bottom]) if !bottom.is_zero() => top / bottom,
            (Operator::Power, [base, exponent]) => power(base, exponent)?,
            (Operator::Absolute, [value]) => value.abs(),
            (Operator::Factorial, [value]) => factorial(value)?,
            _ => return None,
        })
    }

    /// Its value at `point` as f64, infinite only if infinity was written; `None` if it has no value.
    pub fn value(&self, point: &Assignment) -> Option<f64> {
        let value = match self {
            Expression::Constant(value) => return Some(*value),
            Expression::Number(value, _) => value.to_f64()?,
            Expression::Variable(_) | Expression::Apply(Operator::Factorial, _) => {
                self.exact(point)?.to_f64()?
            }
            Expression::Apply(operator, parts) => {
                let values: Vec<f64> = parts.iter().map(|part| part.value(point)).collect::<Option<_>>()?;
                match (operator, values.as_slice()) {
                    (Operator::Sum, values) => values.iter().sum(),
                    (Operator::Product, values) => {
                        let product: f64 = values.iter().product();
                        if values.iter().any(|value| value.is_infinite()) {
                            return Some(product).filter(|product| !product.is_nan());
                        }
                        product
                    }
                    (Operator::Quotient, [top, bottom]) => top / bottom,
                    (Operator::Power, [base, exponent]) => real_power(*base, *exponent),
                    (Operator::Sine, [value]) => value.sin(),
                    (Operator::Cosine, [value]) => value.cos(),
                    (Operator::Tangent, [value]) => value.tan(),
                    (Operator::Logarithm, [value]) => value.ln(),
                    (Operator::Absolute, [value]) => value.abs(),
                    _ => return None,
                }
            }
        };
        Some(value).filter(|value| value.is_finite())
    }
}

fn bounded(value: BigRational) -> Option<BigRational> {
    Some(value).filter(|value| value.numer().bits() <= MOST_BITS && value.denom().bits() <= MOST_BITS)
}

/// A power; for a negative base and an odd degree, the real root.
fn real_power(base: f64, exponent: f64) -> f64 {
    let degree = 1.0 / exponent;
    let odd = (degree - degree.round()).abs() <= 1e-12 && degree.round() % 2.0 != 0.0;
    if odd { base.abs().powf(exponent).copysign(base) } else { base.powf(exponent) }
}

/// A power with a rational value.
fn power(base: &BigRational, exponent: &BigRational) -> Option<BigRational> {
    let degree = exponent.denom().to_u32().filter(|degree| *degree <= 64)?;
    let times = exponent.numer().to_i32().filter(|times| times.unsigned_abs() <= 10_000)?;
    let bits = base.numer().bits().max(base.denom().bits());
    if bits.saturating_mul(u64::from(times.unsigned_abs())) > MOST_BITS || base.is_zero() && times <= 0 {
        return None;
    }
    let base = BigRational::new(root(base.numer(), degree)?, root(base.denom(), degree)?);
    Some(Pow::pow(base, times))
}

/// The integer whose power is `value`, if there is one.
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

#[cfg(test)]
mod tests {
    use super::super::formula::formula;
    use super::super::token::tokens;
    use super::*;

    fn exact(text: &str) -> Option<BigRational> {
        formula(&tokens(text).unwrap()).unwrap().exact(&[])
    }

    fn fraction(top: i64, bottom: i64) -> BigRational {
        BigRational::new(top.into(), bottom.into())
    }

    /// Worked out by hand: (37 (point + 2) + 101 (index + 1)) / (29 + 12 point + 7 index).
    #[test]
    fn test_points_are_other_fractions_for_each_variable_and_later_ones_partly_negative() {
        let names: BTreeSet<String> = ["a", "b", "c", "d", "e", "f"].map(String::from).into();
        for (point, index, top, bottom) in [
            (0, 0, 175, 29),
            (0, 1, 276, 36),
            (3, 0, 286, 65),
            (3, 2, 488, 79),
            (4, 0, 323, 77),
            (4, 1, -424, 84),
            (4, 5, -828, 112),
            (5, 0, -360, 89),
            (5, 1, 461, 96),
        ] {
            let (name, value) = &test_point(&names, point)[index];
            assert_eq!((name, value), (names.iter().nth(index).unwrap(), &fraction(top, bottom)), "{point}");
        }
    }

    #[test]
    fn exact_values_end_where_they_grow_too_large_or_are_none() {
        for (text, top, bottom) in [
            ("2^{-1}", 1, 2),
            ("0^2", 0, 1),
            ("\\sqrt{4}", 2, 1),
            ("\\sqrt[3]{-8}", -2, 1),
            ("(4/9)^{-3/2}", 27, 8),
            ("|-1/3|", 1, 3),
            // 2 has two bits: a power's size is estimated, and 16,384 are allowed.
            ("2^{8192}/2^{8191}", 2, 1),
        ] {
            assert_eq!(exact(text), Some(fraction(top, bottom)), "{text}");
        }
        for text in [
            "0^0",
            "0^{-1}",
            "1/0",
            "\\sqrt{-4}",
            "\\sqrt{2}",
            "2^{8193}",
            "2^{8000} 2^{8000} 2^{8000}",
            "2^{-8000} 2^{-8000} 2^{-8000}",
        ] {
            // Juxtaposed numbers must not be read as a product.
            assert_eq!(exact(&text.replace(' ', "*")), None, "{text}");
        }
    }
}
