//! Products: their factors, and whether they are taken apart as far as they can be.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::expression::{Expression, Operator};
use super::finished::is_literal;

/// The factors of a product, above and below its fraction bars.
pub fn flatten<'a>(
    formula: &'a Expression,
    above: &mut Vec<&'a Expression>,
    below: &mut Vec<&'a Expression>,
) {
    match formula {
        _ if is_literal(formula) => above.push(formula),
        Expression::Apply(Operator::Product, parts) => {
            parts.iter().for_each(|part| flatten(part, above, below));
        }
        Expression::Apply(Operator::Quotient, parts) => {
            if let [top, bottom] = parts.as_slice() {
                flatten(top, above, below);
                flatten(bottom, below, above);
            }
        }
        other => above.push(other),
    }
}

/// The number of factors that have variables or are prime, with multiplicity.
pub fn factors(formula: &Expression) -> u32 {
    let (mut above, mut below) = (Vec::new(), Vec::new());
    flatten(formula, &mut above, &mut below);
    let is_prime = |part: &Expression| {
        let number = part.exact(&[]).filter(BigRational::is_integer).and_then(|number| number.to_u64());
        number.is_some_and(|number| {
            number > 1
                && (2..)
                    .take_while(|least| least * least <= number && *least < 1 << 16)
                    .all(|least| number % least != 0)
        })
    };
    let counts = |part: &Expression| !part.variables().is_empty() || is_prime(part);
    let times = |part: &&Expression| match part {
        Expression::Apply(Operator::Power, parts) if parts.first().is_some_and(counts) => {
            parts.get(1).and_then(|exponent| exponent.exact(&[])?.to_integer().to_u32()).unwrap_or(1)
        }
        part => u32::from(counts(part)),
    };
    above.iter().map(times).sum()
}

fn common_divisor(one: BigInt, other: BigInt) -> BigInt {
    &one / BigRational::new(one.clone(), other).numer()
}

/// Returns true if the terms of a sum in a product have a common factor: `2x(3x+6)`.
pub fn has_common_factor(formula: &Expression) -> bool {
    let (mut above, mut below) = (Vec::new(), Vec::new());
    flatten(formula, &mut above, &mut below);
    let coefficient = |term: &Expression| {
        let (mut above, mut below) = (Vec::new(), Vec::new());
        flatten(term, &mut above, &mut below);
        let numbers = above.iter().filter_map(|part| part.exact(&[]).filter(BigRational::is_integer));
        numbers.fold(BigInt::one(), |all, number| all * number.numer())
    };
    above.iter().any(|part| match part {
        Expression::Apply(Operator::Sum, terms) => {
            let common =
                terms.iter().map(coefficient).filter(|number| !number.is_zero()).reduce(common_divisor);
            common.is_some_and(|common| !common.abs().is_one())
        }
        _ => false,
    })
}
