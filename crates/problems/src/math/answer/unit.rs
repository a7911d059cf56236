//! Units that are compared where both answers have one: 5 cm are no 5 m, but 500 cm are.
//!
//! Left out: every other word after a number, which counts as a unit that nobody checks.

use num_rational::BigRational;
use num_traits::Pow;

use super::expression::Expression;
use super::token::{Spaced, Token};

/// A unit's dimension, and its size in the base unit of the dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    dimension: &'static str,
    power: i32,
    scale: BigRational,
}

/// Dimension, names, and the scale as a fraction.
const UNITS: [(&str, &str, [i64; 2]); 24] = [
    ("length", "mm millimeter millimeters millimetre millimetres", [1, 1000]),
    ("length", "cm centimeter centimeters centimetre centimetres", [1, 100]),
    ("length", "m meter meters metre metres", [1, 1]),
    ("length", "km kilometer kilometers kilometre kilometres", [1000, 1]),
    ("length", "in inch inches", [254, 10_000]),
    ("length", "ft foot feet", [3048, 10_000]),
    ("length", "yd yard yards", [9144, 10_000]),
    ("length", "mile miles", [1_609_344, 1000]),
    ("mass", "mg milligram milligrams", [1, 1000]),
    ("mass", "g gram grams", [1, 1]),
    ("mass", "kg kilogram kilograms", [1000, 1]),
    ("mass", "oz ounce ounces", [28_349_523_125, 1_000_000_000]),
    ("mass", "lb lbs pound pounds", [45_359_237, 100_000]),
    ("time", "s sec second seconds", [1, 1]),
    ("time", "min minute minutes", [60, 1]),
    ("time", "h hr hour hours", [3600, 1]),
    ("time", "day days", [86_400, 1]),
    ("time", "week weeks", [604_800, 1]),
    ("volume", "ml milliliter milliliters millilitre millilitres", [1, 1000]),
    ("volume", "l liter liters litre litres", [1, 1]),
    ("money", "cent cents", [1, 100]),
    ("money", "dollar dollars", [1, 1]),
    ("angle", "degree degrees", [1, 1]),
    ("number", "percent", [1, 1]),
];

impl Unit {
    pub fn dollar() -> Option<Unit> {
        Unit::named("dollars", 1)
    }

    /// The unit that `tokens` after a number are: a word, perhaps with an exponent.
    pub fn of(tokens: &[Spaced]) -> Option<Unit> {
        let mut plain = tokens
            .iter()
            .map(|spaced| &spaced.token)
            .filter(|token| !matches!(token, Token::Sign('{' | '}' | '^')));
        let Token::Word(name) = plain.next()? else { return None };
        let power = match (plain.next(), plain.next()) {
            (None, _) => 1,
            (Some(Token::Number(power, false)), None) => i32::try_from(power.to_integer()).ok()?,
            _ => return None,
        };
        Unit::named(name, power)
    }

    fn named(name: &str, power: i32) -> Option<Unit> {
        let known = |names: &str| names.split(' ').any(|known| known == name);
        let &(dimension, _, [top, bottom]) =
            UNITS.iter().find(|(_, names, _)| known(names)).filter(|_| (1..=3).contains(&power))?;
        let scale = Pow::pow(BigRational::new(top.into(), bottom.into()), power);
        Some(Unit { dimension, power, scale })
    }

    /// `amount` of this unit in `other`; `None` where they are not of one kind.
    pub fn convert(&self, amount: &Expression, other: &Unit) -> Option<Expression> {
        let alike = (self.dimension, self.power) == (other.dimension, other.power);
        (alike && self != other).then(|| amount.clone().times(&self.scale / &other.scale))
    }
}
