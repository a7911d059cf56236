//! Formulas by recursive descent.
//!
//! A unit may follow a formula without variables: [`Unit`].

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive, Zero};

use super::expression::{Expression, Operator};
use super::token::{Spaced, Token, sign};
use super::unit::Unit;

/// Limit of nested brackets.
const DEEPEST: u32 = 60;
/// Limit of divisions in a row, since each nests a formula.
const MOST_DIVISIONS: u32 = 200;
/// Words that are functions or constants.
pub(super) const MATHEMATICS: [&str; 14] = [
    "frac",
    "binom",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "secant",
    "cosecant",
    "cotangent",
    "log",
    "ln",
    "exp",
    "pi",
    "abs",
];

/// Marks on a letter that make it another variable: derivatives, vectors, means.
const ACCENTS: [&str; 8] =
    ["\\dot", "\\ddot", "\\hat", "\\bar", "\\vec", "\\tilde", "\\overline", "\\overrightarrow"];

/// A token as a part of a name.
fn spelled(spaced: &Spaced) -> String {
    match &spaced.token {
        Token::Number(value, _) => value.to_string(),
        Token::Letter(name) | Token::Word(name) => name.clone(),
        Token::Sign(sign) => sign.to_string(),
    }
}

/// The formula that `tokens` form, optionally followed by a unit.
pub fn formula(tokens: &[Spaced]) -> Option<Expression> {
    measured(tokens).map(|(formula, _)| formula)
}

/// Parses a formula and its unit.
pub fn measured(tokens: &[Spaced]) -> Option<(Expression, Option<Unit>)> {
    let mut parser = Parser { tokens, at: 0, depth: 0, degrees: false };
    let formula = parser.sum()?;
    let rest = &tokens[parser.at..];
    if rest.is_empty() {
        return Some((formula, None));
    }
    let (factor, unit) = Unit::read(rest).filter(|_| formula.variables().is_empty())?;
    Some((if factor.is_one() { formula } else { formula.times(factor) }, unit))
}

fn trigonometric(word: &str, angle: Expression) -> Expression {
    let operator = match word {
        "sin" | "cosecant" => Operator::Sine,
        "cos" | "secant" => Operator::Cosine,
        _ => Operator::Tangent,
    };
    let value = Expression::Apply(operator, vec![angle]);
    match word {
        "sin" | "cos" | "tan" => value,
        _ => Expression::quotient(Expression::whole(1), value),
    }
}

struct Parser<'a> {
    tokens: &'a [Spaced],
    at: usize,
    depth: u32,
    /// True once a degree sign was read.
    degrees: bool,
}

impl Parser<'_> {
    fn ahead(&self, offset: usize) -> Option<&Token> {
        self.tokens.get(self.at + offset).map(|spaced| &spaced.token)
    }

    fn sign(&self) -> Option<char> {
        self.tokens.get(self.at).and_then(sign)
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        let there = self.sign() == Some(wanted);
        self.at += usize::from(there);
        there.then_some(())
    }

    /// The expression after `sign`, if `sign` is next.
    fn after(&mut self, sign: char) -> Option<Option<Expression>> {
        match self.take(sign) {
            Some(()) => self.primary().map(Some),
            None => Some(None),
        }
    }

    fn deeper(&mut self) -> Option<()> {
        self.depth += 1;
        (self.depth <= DEEPEST).then_some(())
    }

    fn sum(&mut self) -> Option<Expression> {
        self.deeper()?;
        let mut parts = Vec::new();
        loop {
            let mut negative = false;
            while let Some(sign @ ('+' | '-')) = self.sign() {
                negative ^= sign == '-';
                self.at += 1;
            }
            let part = self.product()?;
            parts.push(if negative { part.negated() } else { part });
            if !matches!(self.sign(), Some('+' | '-')) {
                break;
            }
        }
        self.depth -= 1;
        Some(if parts.len() == 1 { parts.remove(0) } else { Expression::Apply(Operator::Sum, parts) })
    }

    fn product(&mut self) -> Option<Expression> {
        let mut left = self.mixed()?;
        let mut divisions = 0;
        loop {
            let sign = self.sign();
            let right = match sign {
                Some('*' | '/') => {
                    self.at += 1;
                    self.signed()?
                }
                // Juxtaposition is a product, except between two numbers.
                _ if self.begins_factor() => self.power()?,
                _ => return Some(left),
            };
            left = match (sign, left) {
                (Some('/'), left) => {
                    divisions += 1;
                    if divisions > MOST_DIVISIONS {
                        return None;
                    }
                    Expression::quotient(left, right)
                }
                (_, Expression::Apply(Operator::Product, mut factors)) => {
                    factors.push(right);
                    Expression::Apply(Operator::Product, factors)
                }
                (_, left) => Expression::Apply(Operator::Product, vec![left, right]),
            };
        }
    }

    fn begins_factor(&self) -> bool {
        match self.ahead(0) {
            Some(Token::Letter(_)) => true,
            Some(Token::Word(word)) => MATHEMATICS.contains(&word.as_str()),
            Some(Token::Sign(sign)) => matches!(sign, '(' | '[' | '{'),
            _ => false,
        }
    }

    /// A factor, or a mixed number: an integer followed by a fraction of two numbers.
    fn mixed(&mut self) -> Option<Expression> {
        let whole = |token: Option<&Token>| match token {
            Some(Token::Number(value, false)) => Some(value.clone()),
            _ => None,
        };
        let mixed = |whole: BigRational, fraction: Expression| {
            Expression::Apply(Operator::Sum, vec![Expression::Number(whole, false), fraction])
        };
        let Some(first) = whole(self.ahead(0)) else { return self.power() };
        if self.ahead(1) == Some(&Token::Word("frac".to_owned())) {
            let mut fraction =
                Parser { tokens: self.tokens, at: self.at + 1, depth: self.depth, degrees: false };
            if let Some(Expression::Apply(Operator::Quotient, parts)) = fraction.power()
                && parts.iter().all(|part| matches!(part, Expression::Number(_, false)))
            {
                self.at = fraction.at;
                let fraction = Expression::Apply(Operator::Quotient, parts);
                return Some(mixed(first, fraction));
            }
        }
        if let (Some(top), Some(Token::Sign('/')), Some(bottom)) =
            (whole(self.ahead(1)), self.ahead(2), whole(self.ahead(3)))
            && self.tokens[self.at + 1].space
            && !bottom.is_zero()
        {
            self.at += 4;
            let fraction =
                Expression::quotient(Expression::Number(top, false), Expression::Number(bottom, false));
            return Some(mixed(first, fraction));
        }
        self.power()
    }

    /// A power, optionally after a minus sign.
    fn signed(&mut self) -> Option<Expression> {
        let negative = self.take('-').is_some();
        let power = self.power()?;
        Some(if negative { power.negated() } else { power })
    }

    fn power(&mut self) -> Option<Expression> {
        self.deeper()?;
        let mut base = self.primary()?;
        while let Some(sign @ ('!' | '°')) = self.sign() {
            self.at += 1;
            match sign {
                '°' => self.degrees = true,
                _ => base = Expression::Apply(Operator::Factorial, vec![base]),
            }
        }
        if self.take('^').is_some() {
            base = Expression::Apply(Operator::Power, vec![base, self.signed()?]);
        }
        self.depth -= 1;
        Some(base)
    }

    fn closed(&mut self, close: char) -> Option<Expression> {
        let inner = self.sum()?;
        self.take(close)?;
        Some(inner)
    }

    fn primary(&mut self) -> Option<Expression> {
        let token = self.ahead(0)?.clone();
        self.at += 1;
        match token {
            Token::Number(value, rounded) => Some(Expression::Number(value, rounded)),
            Token::Letter(name) if name == "e" => Some(Expression::Constant(std::f64::consts::E)),
            Token::Letter(name) => self.variable(name).map(Expression::Variable),
            Token::Word(accent) if ACCENTS.contains(&accent.as_str()) => {
                let braced = self.take('{').is_some();
                let Some(Token::Letter(name)) = self.ahead(0).cloned() else { return None };
                self.at += 1;
                if braced {
                    self.take('}')?;
                }
                self.variable(name).map(|name| Expression::Variable(accent + &name))
            }
            Token::Sign('(') => self.closed(')'),
            Token::Sign('[') => self.closed(']'),
            Token::Sign('{') => self.closed('}'),
            Token::Sign('|') => Some(Expression::Apply(Operator::Absolute, vec![self.closed('|')?])),
            Token::Sign('i') => Some(Expression::Constant(f64::INFINITY)),
            Token::Word(word) => self.function(&word),
            Token::Sign(_) => None,
        }
    }

    /// A letter with its subscript, its primes, and numbers as its arguments: the value of a function, `I(0)`.
    fn variable(&mut self, mut name: String) -> Option<String> {
        if self.take('_').is_some() {
            name.push('_');
            let (inside, next) = match self.until('{', '}') {
                Some(inside) => (inside.clone(), inside.end + 1),
                None if self.sign().is_some() => return None,
                None => (self.at..self.at + 1, self.at + 1),
            };
            name.extend(self.tokens.get(inside)?.iter().map(spelled));
            self.at = next;
        }
        let prime = Token::Word("\\prime".to_owned());
        while self.sign() == Some('^') {
            let braced = usize::from(self.ahead(1) == Some(&Token::Sign('{')));
            if self.ahead(1 + braced) != Some(&prime) {
                break;
            }
            name.push('\'');
            self.at += 2 + 2 * braced;
        }
        let numbers =
            |spaced: &Spaced| matches!(spaced.token, Token::Number(..) | Token::Sign('-' | ',' | '+'));
        if let Some(inside) =
            self.until('(', ')').filter(|inside| self.tokens[inside.clone()].iter().all(numbers))
        {
            self.at = inside.end + 1;
            name.push('(');
            name.extend(self.tokens[inside].iter().map(spelled));
        }
        Some(name)
    }

    /// The tokens between `open`, if it is next, and its `close`; not empty.
    fn until(&self, open: char, close: char) -> Option<std::ops::Range<usize>> {
        let begin = (self.sign() == Some(open)).then_some(self.at + 1)?;
        let mut depth = 0;
        let is_end = |spaced: &Spaced| {
            depth += i32::from(sign(spaced) == Some(open)) - i32::from(sign(spaced) == Some(close));
            depth < 0
        };
        let length = self.tokens[begin..].iter().position(is_end).filter(|length| *length > 0)?;
        Some(begin..begin + length)
    }

    fn function(&mut self, word: &str) -> Option<Expression> {
        let factorial = |part: Expression| Expression::Apply(Operator::Factorial, vec![part]);
        Some(match word {
            "pi" => Expression::Constant(std::f64::consts::PI),
            "frac" => match self.two_digits() {
                Some(fraction) => fraction,
                None => Expression::quotient(self.primary()?, self.primary()?),
            },
            "binom" => {
                let (all, some) = (self.primary()?, self.primary()?);
                let others = Expression::Apply(Operator::Sum, vec![all.clone(), some.clone().negated()]);
                let below = Expression::Apply(Operator::Product, vec![factorial(some), factorial(others)]);
                Expression::quotient(factorial(all), below)
            }
            "sqrt" => {
                let degree = match self.take('[') {
                    Some(()) => self.closed(']')?,
                    None => Expression::whole(2),
                };
                let exponent = Expression::quotient(Expression::whole(1), degree);
                Expression::Apply(Operator::Power, vec![self.primary()?, exponent])
            }
            "exp" => {
                let e = Expression::Constant(std::f64::consts::E);
                Expression::Apply(Operator::Power, vec![e, self.primary()?])
            }
            "abs" => Expression::Apply(Operator::Absolute, vec![self.primary()?]),
            "ln" | "log" => {
                let base = self.after('_')?;
                let logarithm = Expression::Apply(Operator::Logarithm, vec![self.power()?]);
                match base {
                    None => logarithm,
                    Some(base) => {
                        Expression::quotient(logarithm, Expression::Apply(Operator::Logarithm, vec![base]))
                    }
                }
            }
            "sin" | "cos" | "tan" | "secant" | "cosecant" | "cotangent" => {
                let exponent = self.after('^')?;
                let value = trigonometric(word, self.angle()?);
                match exponent {
                    None => value,
                    Some(exponent) => Expression::Apply(Operator::Power, vec![value, exponent]),
                }
            }
            _ => return None,
        })
    }

    /// The argument of a trigonometric function in radians: `30°` is 30 π / 180.
    fn angle(&mut self) -> Option<Expression> {
        let before = std::mem::take(&mut self.degrees);
        let angle = self.power()?;
        let degrees = std::mem::replace(&mut self.degrees, before);
        let half_turn =
            Expression::quotient(Expression::Constant(std::f64::consts::PI), Expression::whole(180));
        Some(match degrees {
            true => Expression::Apply(Operator::Product, vec![angle, half_turn]),
            false => angle,
        })
    }

    /// `\frac12`.
    fn two_digits(&mut self) -> Option<Expression> {
        let Some(Token::Number(value, false)) = self.ahead(0) else { return None };
        let number = value.is_integer().then(|| value.numer()).and_then(BigInt::to_i64)?;
        if !(10..100).contains(&number) {
            return None;
        }
        self.at += 1;
        Some(Expression::quotient(Expression::whole(number / 10), Expression::whole(number % 10)))
    }
}
