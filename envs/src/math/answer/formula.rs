//! Formulas by recursive descent.
//!
//! A unit may stand behind a number: words and letters in words, powers of them and fractions of them, but no further number.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::ToPrimitive;

use super::expression::{Expression, Function};
use super::token::{Spaced, Token, sign};

/// Brackets inside brackets.
const DEEPEST: u32 = 60;
/// Divisions one after the other, each of which is a formula inside a formula.
const MOST_DIVISIONS: u32 = 200;

/// The formula that `tokens` are, perhaps with a unit behind it.
pub fn formula(tokens: &[Spaced]) -> Option<Expression> {
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let formula = parser.sum()?;
    let rest = &tokens[parser.at..];
    let whole = rest.is_empty() || is_unit(rest) && formula.variables().is_empty();
    whole.then_some(formula)
}

/// Whether `tokens` begin with a word and hold no number but exponents: `cm^2`, `miles / hour`, `apples`.
fn is_unit(tokens: &[Spaced]) -> bool {
    let mut before = ' ';
    let mut word = false;
    for (at, spaced) in tokens.iter().enumerate() {
        match &spaced.token {
            Token::Word(_) => word = true,
            Token::Letter(_) if word => {}
            Token::Number(_, false) if before == '^' => {}
            Token::Sign('-' | '{') if before == '^' => continue,
            Token::Sign('^' | '/' | '*' | '}') if at > 0 => {}
            _ => return false,
        }
        before = sign(spaced).unwrap_or(' ');
    }
    word
}

struct Parser<'a> {
    tokens: &'a [Spaced],
    at: usize,
    depth: u32,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|spaced| &spaced.token)
    }

    fn sign(&self) -> Option<char> {
        self.tokens.get(self.at).and_then(sign)
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        let there = self.sign() == Some(wanted);
        self.at += usize::from(there);
        there.then_some(())
    }

    fn sum(&mut self) -> Option<Expression> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let mut parts = Vec::new();
        let mut negative = false;
        loop {
            while let Some(sign @ ('+' | '-')) = self.sign() {
                negative ^= sign == '-';
                self.at += 1;
            }
            let part = self.product()?;
            parts.push(if negative { part.negated() } else { part });
            negative = false;
            if !matches!(self.sign(), Some('+' | '-')) {
                break;
            }
        }
        self.depth -= 1;
        if parts.len() == 1 { parts.pop() } else { Some(Expression::Sum(parts)) }
    }

    fn product(&mut self) -> Option<Expression> {
        let mut left = self.mixed()?;
        let mut divisions = 0;
        let times = |left: Expression, right: Expression| match left {
            Expression::Product(mut factors) => {
                factors.push(right);
                Expression::Product(factors)
            }
            left => Expression::Product(vec![left, right]),
        };
        loop {
            let divides = match self.sign() {
                Some('*') => false,
                Some('/') => true,
                // Side by side: a product, unless two numbers are.
                _ if self.begins_factor() => {
                    let right = self.power()?;
                    left = times(left, right);
                    continue;
                }
                _ => return Some(left),
            };
            self.at += 1;
            let negative = self.take('-').is_some();
            let right = self.power()?;
            let right = if negative { right.negated() } else { right };
            divisions += u32::from(divides);
            if divisions > MOST_DIVISIONS {
                return None;
            }
            left = match divides {
                true => Expression::Quotient(Box::new(left), Box::new(right)),
                false => times(left, right),
            };
        }
    }

    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Letter(_)) => true,
            Some(Token::Word(word)) => is_mathematics(word),
            Some(Token::Sign(sign)) => matches!(sign, '(' | '[' | '{'),
            _ => false,
        }
    }

    /// A factor, or a whole number and a fraction of two whole numbers beside it.
    fn mixed(&mut self) -> Option<Expression> {
        let whole = |token: Option<&Token>| match token {
            Some(Token::Number(value, false)) => Some(value.clone()),
            _ => None,
        };
        let ahead = |offset: usize| self.tokens.get(self.at + offset).map(|spaced| &spaced.token);
        if let Some(first) = whole(ahead(0)) {
            if ahead(1) == Some(&Token::Word("frac".to_owned())) {
                let mut fraction = Parser { tokens: self.tokens, at: self.at + 1, depth: self.depth };
                if let Some(Expression::Quotient(top, bottom)) = fraction.power()
                    && matches!((&*top, &*bottom), (Expression::Exact(_), Expression::Exact(_)))
                {
                    self.at = fraction.at;
                    return Some(Expression::Sum(vec![
                        Expression::Exact(first),
                        Expression::Quotient(top, bottom),
                    ]));
                }
            }
            if let (Some(top), Some(Token::Sign('/')), Some(bottom)) =
                (whole(ahead(1)), ahead(2), whole(ahead(3)))
                && self.tokens[self.at + 1].space
                && bottom != BigRational::from_integer(0.into())
            {
                self.at += 4;
                return Some(Expression::Exact(first + top / bottom));
            }
        }
        self.power()
    }

    fn power(&mut self) -> Option<Expression> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let mut base = self.primary()?;
        while self.take('!').is_some() {
            base = Expression::Apply(Function::Factorial, Box::new(base));
        }
        if self.take('^').is_some() {
            let negative = self.take('-').is_some();
            let exponent = self.power()?;
            let exponent = if negative { exponent.negated() } else { exponent };
            base = Expression::Power(Box::new(base), Box::new(exponent));
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
        let token = self.peek()?.clone();
        self.at += 1;
        match token {
            Token::Number(value, rounded) => {
                Some(if rounded { Expression::Decimal(value) } else { Expression::Exact(value) })
            }
            Token::Letter(name) if name == "e" => Some(Expression::Constant(std::f64::consts::E)),
            Token::Letter(mut name) => {
                if self.take('_').is_some() {
                    name.push('_');
                    name.push_str(&self.index()?);
                }
                Some(Expression::Variable(name))
            }
            Token::Sign('(') => self.closed(')'),
            Token::Sign('[') => self.closed(']'),
            Token::Sign('{') => self.closed('}'),
            Token::Sign('|') => {
                self.closed('|').map(|inner| Expression::Apply(Function::Absolute, Box::new(inner)))
            }
            Token::Sign('i') => Some(Expression::Infinity),
            Token::Word(word) => self.function(&word),
            Token::Sign(_) => None,
        }
    }

    /// A subscript.
    fn index(&mut self) -> Option<String> {
        let grouped = self.take('{').is_some();
        let token = self.peek()?.clone();
        self.at += 1;
        if grouped {
            self.take('}')?;
        }
        match token {
            Token::Number(value, false) => Some(value.to_string()),
            Token::Letter(name) | Token::Word(name) => Some(name),
            _ => None,
        }
    }

    fn function(&mut self, word: &str) -> Option<Expression> {
        let apply = |function, part| Some(Expression::Apply(function, Box::new(part)));
        match word {
            "pi" => Some(Expression::Constant(std::f64::consts::PI)),
            "frac" => {
                if let Some((top, bottom)) = self.two_digits() {
                    return Some(Expression::Quotient(Box::new(top), Box::new(bottom)));
                }
                let top = self.primary()?;
                let bottom = self.primary()?;
                Some(Expression::Quotient(Box::new(top), Box::new(bottom)))
            }
            "binom" => {
                let factorial = |part: Expression| Expression::Apply(Function::Factorial, Box::new(part));
                let (all, some) = (self.primary()?, self.primary()?);
                let others = Expression::Sum(vec![all.clone(), some.clone().negated()]);
                let below = Expression::Product(vec![factorial(some), factorial(others)]);
                Some(Expression::Quotient(Box::new(factorial(all)), Box::new(below)))
            }
            "sqrt" => {
                let degree = match self.take('[') {
                    Some(()) => self.closed(']')?,
                    None => Expression::whole(2),
                };
                let inner = self.primary()?;
                let exponent = Expression::Quotient(Box::new(Expression::whole(1)), Box::new(degree));
                Some(Expression::Power(Box::new(inner), Box::new(exponent)))
            }
            "exp" => {
                let base = Expression::Constant(std::f64::consts::E);
                Some(Expression::Power(Box::new(base), Box::new(self.primary()?)))
            }
            "abs" => {
                let inner = self.primary()?;
                apply(Function::Absolute, inner)
            }
            "ln" | "log" => {
                let base = match self.take('_') {
                    Some(()) => Some(self.primary()?),
                    None => None,
                };
                let inner = self.power()?;
                let above = apply(Function::Logarithm, inner)?;
                match base {
                    None => Some(above),
                    Some(base) => {
                        let below = apply(Function::Logarithm, base)?;
                        Some(Expression::Quotient(Box::new(above), Box::new(below)))
                    }
                }
            }
            "sin" | "cos" | "tan" => {
                let function = match word {
                    "sin" => Function::Sine,
                    "cos" => Function::Cosine,
                    _ => Function::Tangent,
                };
                let exponent = match self.take('^') {
                    Some(()) => Some(self.primary()?),
                    None => None,
                };
                let inner = self.power()?;
                let value = apply(function, inner)?;
                Some(match exponent {
                    Some(exponent) => Expression::Power(Box::new(value), Box::new(exponent)),
                    None => value,
                })
            }
            _ => None,
        }
    }

    /// `\frac12`.
    fn two_digits(&mut self) -> Option<(Expression, Expression)> {
        let Some(Token::Number(value, false)) = self.peek() else { return None };
        let number = value.is_integer().then(|| value.numer()).and_then(BigInt::to_i64)?;
        if !(10..100).contains(&number) {
            return None;
        }
        self.at += 1;
        Some((Expression::whole(number / 10), Expression::whole(number % 10)))
    }
}

fn is_mathematics(word: &str) -> bool {
    matches!(word, "frac" | "binom" | "sqrt" | "sin" | "cos" | "tan" | "log" | "ln" | "exp" | "pi" | "abs")
}
