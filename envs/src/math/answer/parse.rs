//! From tokens to answers: sets, tuples, intervals, ratios and equations around formulas.

use super::expression::Expression;
use super::formula::formula;
use super::token::{Spaced, Token, sign, tokens};
use super::word::word;

/// Characters after which an answer is no answer any more.
const LONGEST: usize = 4096;
/// Members of a set, or parts of a tuple: each is compared with each.
const MOST_MEMBERS: usize = 100;
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
    /// Two formulas that are equal; a name on the left, as in `x = 5` or `f(x) = 2x`, makes none.
    Equation(Expression, Expression),
    /// Sets or intervals, any of which a value may be in.
    Union(Vec<Answer>),
    /// Anything else, as [`word()`] writes it.
    Word(String),
}

/// Parts in order between brackets.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuple {
    /// `(` or `[`, or `:` of a ratio of more than two.
    pub open: char,
    /// `)` or `]`, or `:`.
    pub close: char,
    /// The parts.
    pub items: Vec<Answer>,
}

/// What `text` means.
pub fn answer(text: &str) -> Option<Answer> {
    let degrees = ["^\\circ", "^{\\circ}", "^\\degree"];
    // A point behind a letter ends a sentence; behind a digit it does no harm.
    let text = text.trim().trim_end_matches('.');
    let text = degrees.iter().fold(text.to_owned(), |text, degree| text.replace(degree, ""));
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
    word(text).map(Answer::Word)
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
    let parts = split(tokens, is_comma);
    if parts.len() > MOST_MEMBERS {
        return None;
    }
    parts.into_iter().filter(|part| !part.is_empty()).map(|part| structure(part, depth + 1)).collect()
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
    let sides = split(tokens, |spaced| matches!(sign(spaced), Some('=' | '∈')));
    if let [before @ .., right] = sides.as_slice()
        && !before.is_empty()
    {
        return equation(before, right, depth);
    }
    let parts = split(tokens, |spaced| sign(spaced) == Some(':'));
    if parts.len() > 1 {
        return ratio(&parts, depth);
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

/// `x = 5` and `x ∈ S` say what comes last; `x^2 + y^2 = 25` says that both are equal.
fn equation(before: &[&[Spaced]], right: &[Spaced], depth: u32) -> Option<Answer> {
    let last = structure(right, depth + 1)?;
    let [side] = before else { return Some(last) };
    match (last, formula(side)) {
        (Answer::One(right), Some(left)) if !is_name(side) && !left.variables().is_empty() => {
            Some(Answer::Equation(left, right))
        }
        (last, _) => Some(last),
    }
}

/// Whether `tokens` only name something: letters, words, subscripts, arguments.
fn is_name(tokens: &[Spaced]) -> bool {
    let mut subscript = false;
    tokens.iter().all(|spaced| {
        let fits = match &spaced.token {
            Token::Letter(_) | Token::Word(_) => true,
            Token::Number(..) => subscript,
            Token::Sign(sign) => matches!(sign, '_' | '(' | ')' | '{' | '}' | ','),
        };
        subscript = matches!(spaced.token, Token::Sign('_')) || subscript && sign(spaced) == Some('{');
        fits
    })
}

/// `3 : 4` is a quotient, `1 : 2 : 3` parts in order, and what follows `Answer:` the answer.
fn ratio(parts: &[&[Spaced]], depth: u32) -> Option<Answer> {
    let (left, right) = (parts.first()?, parts.last()?);
    if parts.len() == 2 && !left.is_empty() && is_name(left) {
        return structure(right, depth + 1);
    }
    let formulas: Vec<Expression> = parts.iter().map(|part| formula(part)).collect::<Option<_>>()?;
    if let [left, right] = formulas.as_slice() {
        return Some(Answer::One(Expression::Quotient(Box::new(left.clone()), Box::new(right.clone()))));
    }
    let items = formulas.into_iter().map(Answer::One).collect();
    Some(Answer::Tuple(Tuple { open: ':', close: ':', items }))
}
