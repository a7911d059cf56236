//! From tokens to answers: sets, tuples and intervals around formulas, and formulas by recursive descent.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::ToPrimitive;

use super::expression::{Expression, Function};
use super::token::{Spaced, Token, tokens};

/// Characters after which an answer is no answer any more.
const LONGEST: usize = 4096;
/// Brackets inside brackets.
const DEEPEST: u32 = 60;

/// What an answer can be.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A formula.
    One(Expression),
    /// So many hundredths.
    Percent(Expression),
    /// Members in any order.
    Set(Vec<Answer>),
    /// Parts in order, or an interval: the brackets tell them apart.
    Tuple(Tuple),
    /// Sets or intervals, any of which a value may be in.
    Union(Vec<Answer>),
    /// Anything else: letters and digits of it, in lower case.
    Word(String),
}

/// Parts in order between brackets.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuple {
    /// `(` or `[`.
    pub open: char,
    /// `)` or `]`.
    pub close: char,
    /// The parts.
    pub items: Vec<Answer>,
}

/// What `text` means.
pub fn answer(text: &str) -> Option<Answer> {
    let degrees = ["^\\circ", "^{\\circ}", "^\\degree"];
    let text = degrees.iter().fold(text.trim().to_owned(), |text, degree| text.replace(degree, ""));
    let text = text.as_str();
    if text.len() <= LONGEST {
        match tokens(text) {
            Some(tokens) if tokens.is_empty() => return None,
            Some(tokens) => {
                if let Some(answer) = structure(&tokens, 0) {
                    return Some(answer);
                }
            }
            None => {}
        }
    }
    let mut words = String::new();
    let mut command = false;
    for letter in text.chars().take(LONGEST) {
        command = letter == '\\' || command && letter.is_ascii_alphabetic();
        if letter.is_alphanumeric() && !command {
            words.extend(letter.to_lowercase());
        } else if !words.ends_with(' ') && !words.is_empty() {
            words.push(' ');
        }
    }
    words.truncate(words.trim_end().len());
    if words.is_empty() { None } else { Some(Answer::Word(words)) }
}

fn sign(spaced: &Spaced) -> Option<char> {
    match spaced.token {
        Token::Sign(sign) => Some(sign),
        _ => None,
    }
}

fn is_comma(spaced: &Spaced) -> bool {
    match &spaced.token {
        Token::Sign(sign) => *sign == ',',
        Token::Word(word) => word == "or" || word == "and",
        _ => false,
    }
}

/// The parts between those tokens outside of brackets that `cut` says.
fn split(tokens: &[Spaced], cut: impl Fn(&Spaced) -> bool) -> Vec<&[Spaced]> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0_i32, 0);
    for (at, spaced) in tokens.iter().enumerate() {
        match sign(spaced) {
            Some('(' | '[' | '{' | '<') => depth += 1,
            Some(')' | ']' | '}' | '>') => depth -= 1,
            _ if depth == 0 && cut(spaced) => {
                parts.push(&tokens[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tokens[begin..]);
    parts
}

/// What the first bracket holds, if the last token closes it.
fn enclosed(tokens: &[Spaced]) -> Option<(char, &[Spaced], char)> {
    let open = sign(tokens.first()?)?;
    let mut depth = 0_i32;
    for (at, spaced) in tokens.iter().enumerate() {
        match sign(spaced) {
            Some('(' | '[' | '{' | '<') => depth += 1,
            Some(')' | ']' | '}' | '>') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let close = sign(spaced).filter(|_| at > 0 && at + 1 == tokens.len())?;
            return Some((open, &tokens[1..at], close));
        }
    }
    None
}

fn items(tokens: &[Spaced], depth: u32) -> Option<Vec<Answer>> {
    split(tokens, is_comma)
        .into_iter()
        .filter(|part| !part.is_empty())
        .map(|part| structure(part, depth + 1))
        .collect()
}

fn structure(tokens: &[Spaced], depth: u32) -> Option<Answer> {
    if depth > DEEPEST || tokens.is_empty() {
        return None;
    }
    let unions = split(tokens, |spaced| sign(spaced) == Some('u'));
    if unions.len() > 1 {
        return Some(Answer::Union(
            unions.into_iter().map(|part| structure(part, depth + 1)).collect::<Option<_>>()?,
        ));
    }
    if split(tokens, is_comma).len() > 1 {
        return Some(Answer::Set(items(tokens, depth)?));
    }
    // `x = 5` and `x ∈ S` say what comes last.
    let sides = split(tokens, |spaced| matches!(sign(spaced), Some('=' | ':')));
    if let [.., right] = sides.as_slice()
        && sides.len() > 1
    {
        return structure(right, depth + 1);
    }
    match enclosed(tokens) {
        Some(('<', inner, '>')) => return Some(Answer::Set(items(inner, depth)?)),
        Some(('{', inner, '}')) => return structure(inner, depth + 1),
        Some((open @ ('(' | '['), inner, close @ (')' | ']'))) => {
            let items = items(inner, depth)?;
            if items.len() == 1 && (open, close) == ('(', ')') {
                return items.into_iter().next();
            }
            return Some(Answer::Tuple(Tuple { open, close, items }));
        }
        _ => {}
    }
    if let Some((last, rest)) = tokens.split_last()
        && sign(last) == Some('%')
    {
        return formula(rest).map(Answer::Percent);
    }
    if tokens.iter().any(|spaced| sign(spaced) == Some('±')) {
        let with = |replacement: char| {
            let mut tokens = tokens.to_vec();
            for spaced in &mut tokens {
                if spaced.token == Token::Sign('±') {
                    spaced.token = Token::Sign(replacement);
                }
            }
            formula(&tokens).map(Answer::One)
        };
        return Some(Answer::Set(vec![with('+')?, with('-')?]));
    }
    formula(tokens).map(Answer::One)
}

/// A formula, behind which a unit may stand.
fn formula(tokens: &[Spaced]) -> Option<Expression> {
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let formula = parser.sum()?;
    let rest = &tokens[parser.at..];
    let unit =
        matches!(rest.first(), Some(Spaced { token: Token::Word(_), .. })) && formula.variables().is_empty();
    if rest.is_empty() || unit { Some(formula) } else { None }
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
        loop {
            let divides = match self.sign() {
                Some('*') => false,
                Some('/') => true,
                // Side by side: a product, unless two numbers are.
                _ if self.begins_factor() => {
                    let right = self.power()?;
                    left = Expression::Product(vec![left, right]);
                    continue;
                }
                _ => return Some(left),
            };
            self.at += 1;
            let negative = self.take('-').is_some();
            let right = self.power()?;
            let right = if negative { right.negated() } else { right };
            left = match divides {
                true => Expression::Quotient(Box::new(left), Box::new(right)),
                false => Expression::Product(vec![left, right]),
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
    matches!(word, "frac" | "sqrt" | "sin" | "cos" | "tan" | "log" | "ln" | "exp" | "pi" | "abs")
}
