//! What follows a number: words that multiply it, and its unit.
//!
//! A unit is a product of powers of known units, and of counted things, which are any other words: 5 cm are no 5 m, but
//! 500 cm are; 18 km/h are 5 m/s; 5 apples are no 5 pears. Words that deny or compare are no unit, so nothing that
//! changes a number is left out.

use std::collections::BTreeMap;

use num_rational::BigRational;
use num_traits::{One, Pow};

use super::expression::Expression;
use super::token::{Spaced, Token, is_among};

/// A unit: its dimensions with their powers, its size in their base units, and the things that are counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    dimensions: BTreeMap<&'static str, i32>,
    scale: BigRational,
    /// The words that are no known unit, in lower case.
    pub things: Vec<String>,
}

/// Dimension and its power, names, and the scale as a fraction.
const UNITS: [(&str, i32, &str, [i64; 2]); 44] = [
    ("length", 1, "mm millimeter millimeters millimetre millimetres", [1, 1000]),
    ("length", 1, "cm centimeter centimeters centimetre centimetres", [1, 100]),
    ("length", 1, "m meter meters metre metres", [1, 1]),
    ("length", 1, "km kilometer kilometers kilometre kilometres", [1000, 1]),
    ("length", 1, "in inch inches", [254, 10_000]),
    ("length", 1, "ft foot feet", [3048, 10_000]),
    ("length", 1, "yd yard yards", [9144, 10_000]),
    ("length", 1, "mi mile miles", [1_609_344, 1000]),
    ("length", 2, "acre acres", [40_468_564_224, 10_000_000]),
    ("length", 2, "ha hectare hectares", [10_000, 1]),
    ("length", 3, "ml milliliter milliliters millilitre millilitres", [1, 1_000_000]),
    ("length", 3, "l liter liters litre litres", [1, 1000]),
    ("length", 3, "gallon gallons gal", [3_785_411_784, 1_000_000_000_000]),
    ("length", 3, "quart quarts qt", [3_785_411_784, 4_000_000_000_000]),
    ("length", 3, "pint pints pt", [3_785_411_784, 8_000_000_000_000]),
    ("length", 3, "cup cups", [3_785_411_784, 16_000_000_000_000]),
    ("mass", 1, "mg milligram milligrams", [1, 1000]),
    ("mass", 1, "g gram grams", [1, 1]),
    ("mass", 1, "kg kilogram kilograms", [1000, 1]),
    ("mass", 1, "oz ounce ounces", [28_349_523_125, 1_000_000_000]),
    ("mass", 1, "lb lbs pound pounds", [45_359_237, 100_000]),
    ("mass", 1, "ton tons tonne tonnes", [1_000_000, 1]),
    ("time", 1, "ms millisecond milliseconds", [1, 1000]),
    ("time", 1, "s sec second seconds", [1, 1]),
    ("time", 1, "min minute minutes", [60, 1]),
    ("time", 1, "h hr hrs hour hours", [3600, 1]),
    ("time", 1, "day days", [86_400, 1]),
    ("time", 1, "week weeks", [604_800, 1]),
    ("months", 1, "month months", [1, 1]),
    ("months", 1, "year years yr yrs", [12, 1]),
    ("months", 1, "decade decades", [120, 1]),
    ("months", 1, "century centuries", [1200, 1]),
    ("money", 1, "cent cents", [1, 100]),
    ("money", 1, "dollar dollars", [1, 1]),
    ("angle", 1, "degree degrees", [1, 1]),
    ("angle of the circle", 1, "radian radians rad", [1, 1]),
    ("force", 1, "n newton newtons", [1, 1]),
    ("energy", 1, "j joule joules", [1, 1]),
    ("power", 1, "w watt watts", [1, 1]),
    ("pressure", 1, "pa pascal pascals", [1, 1]),
    ("frequency", 1, "hz hertz", [1, 1]),
    ("voltage", 1, "v volt volts", [1, 1]),
    ("current", 1, "a amp amps ampere amperes", [1, 1]),
    ("energy", 1, "kj kilojoule kilojoules", [1000, 1]),
];
/// Units that are quotients.
const SPEEDS: [(&str, [&str; 2]); 3] = [("mph", ["mile", "h"]), ("kph", ["km", "h"]), ("kmh", ["km", "h"])];
/// Words that are numbers.
const NUMBERS: [(&str, i64); 6] = [
    ("dozen", 12),
    ("hundred", 100),
    ("thousand", 1000),
    ("million", 1_000_000),
    ("billion", 1_000_000_000),
    ("trillion", 1_000_000_000_000),
];
/// Words around a unit that add nothing.
const CONNECTING: &str = "of the a an to for in each total all altogether left remaining them old long tall high wide \
                          deep away apart st nd rd th";
/// Words that say something else of a number than what it counts.
pub(super) const OTHER: &str = "is are was were be been not no never none nor neither but if unless except without either maybe perhaps \
                     possibly plus minus times divided over by mod modulo than then more less fewer at least most about \
                     around almost nearly roughly approximately between until up above below wrong false incorrect \
                     invalid impossible isn doesn cannot half halves third thirds quarter quarters double twice squared \
                     cubed factorial percentage per";

impl Unit {
    pub fn dollar() -> Option<Unit> {
        let mut unit = Unit::none();
        unit.multiply("dollars", 1).then_some(unit)
    }

    fn none() -> Unit {
        Unit { dimensions: BTreeMap::new(), scale: BigRational::one(), things: Vec::new() }
    }

    /// What `tokens` after a number are: a factor, and a unit if there is one.
    pub fn read(tokens: &[Spaced]) -> Option<(BigRational, Option<Unit>)> {
        let mut factor = BigRational::one();
        let mut rest = tokens;
        while let [Spaced { token: Token::Word(word), .. }, more @ ..] = rest
            && let Some((_, value)) = NUMBERS.iter().find(|(name, _)| name == word)
        {
            factor *= BigRational::from_integer((*value).into());
            rest = more;
        }
        if rest.is_empty() {
            return Some((factor, None));
        }
        let mut unit = Unit::none();
        // The power of the next unit: below a fraction bar it is negative.
        let (mut sign, mut power, mut at) = (1, 1, 0);
        while let Some(Spaced { token, .. }) = rest.get(at) {
            at += 1;
            let word = match token {
                Token::Word(word) => word.as_str(),
                // `km/h`: other letters are variables.
                Token::Letter(letter) if at > 1 && UNITS.iter().any(|unit| is_among(unit.2, letter)) => {
                    letter
                }
                Token::Sign('/') if at > 1 => {
                    sign = -1;
                    continue;
                }
                Token::Sign('*') if at > 1 => continue,
                _ => return None,
            };
            match word {
                "per" if at > 1 => sign = -1,
                "square" | "sq" => power = 2,
                "cubic" | "cu" => power = 3,
                "in" if at > 1 && at < rest.len() => {}
                _ if is_among(CONNECTING, word) && word != "in" => {}
                _ if is_among(OTHER, word) || word.starts_with('\\') => return None,
                _ => {
                    let (raised, next) = exponent(rest, at)?;
                    at = next;
                    if !unit.multiply(word, sign * power * raised) {
                        unit.things.push(word.to_owned());
                    }
                    power = 1;
                }
            }
        }
        Some((factor, Some(unit)))
    }

    /// Multiplies it with a power of a known unit.
    fn multiply(&mut self, name: &str, power: i32) -> bool {
        if let Some((_, [above, below])) = SPEEDS.iter().find(|(speed, _)| *speed == name) {
            return self.multiply(above, power) && self.multiply(below, -power);
        }
        let Some(&(dimension, own, _, [top, bottom])) =
            UNITS.iter().find(|(_, _, names, _)| is_among(names, name)).filter(|_| power.abs() <= 9)
        else {
            return false;
        };
        *self.dimensions.entry(dimension).or_default() += own * power;
        self.dimensions.retain(|_, power| *power != 0);
        self.scale *= Pow::pow(BigRational::new(top.into(), bottom.into()), power);
        true
    }

    /// Returns true if no amount has to be converted between the units.
    pub fn is_as_large_as(&self, other: &Unit) -> bool {
        self.scale == other.scale
    }

    /// `amount` of this unit in `other`; `None` where they are not of one kind.
    pub fn convert(&self, amount: &Expression, other: &Unit) -> Option<Expression> {
        // Singular and plural are one.
        let stem = |thing: &String| thing.trim_end_matches('s').trim_end_matches('e').to_owned();
        let [own, others] = [self, other].map(|unit| unit.things.iter().map(stem).collect::<Vec<_>>());
        let within = |few: &[String], many: &[String]| few.iter().all(|thing| many.contains(thing));
        let alike = self.dimensions == other.dimensions && (within(&own, &others) || within(&others, &own));
        alike.then(|| match self.scale == other.scale {
            true => amount.clone(),
            false => amount.clone().times(&self.scale / &other.scale),
        })
    }
}

/// The exponent at `at`, or 1, and the position after it.
fn exponent(tokens: &[Spaced], at: usize) -> Option<(i32, usize)> {
    let token = |at: usize| tokens.get(at).map(|spaced| &spaced.token);
    let skip = |at: usize, sign: char| at + usize::from(token(at) == Some(&Token::Sign(sign)));
    // The braces of `\text{cm}^{2}`.
    let mut next = skip(at, '}');
    if token(next) != Some(&Token::Sign('^')) {
        return Some((1, next));
    }
    next = skip(next + 1, '{');
    let negative = token(next) == Some(&Token::Sign('-'));
    next += usize::from(negative);
    let Some(Token::Number(value, false)) = token(next) else { return None };
    let value = i32::try_from(value.to_integer()).ok().filter(|value| (1..=9).contains(value))?;
    Some((if negative { -value } else { value }, skip(next + 1, '}')))
}
