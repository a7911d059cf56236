//! Inequalities of one variable as intervals: `x \ge 2` is `[2, \infty)`, `2 < x < 5` is `(2, 5)`.
//!
//! An exact value and its decimal, `\frac13 \approx 0.333`, are one answer: the exact value.
//!
//! Left out: inequalities of several variables, and inequalities that have to be solved first; they are words.

use super::expression::Expression;
use super::parse::{Answer, structure};
use super::token::{Spaced, Token, tokens};

/// What spells a relation, the longer before its beginning.
const SPELLINGS: [(&str, char); 19] = [
    ("\\neq", '≠'),
    ("\\ne", '≠'),
    ("≠", '≠'),
    ("\\leqslant", '≤'),
    ("\\geqslant", '≥'),
    ("\\leq", '≤'),
    ("\\geq", '≥'),
    ("\\le", '≤'),
    ("\\ge", '≥'),
    ("\\lt", '<'),
    ("\\gt", '>'),
    ("<=", '≤'),
    (">=", '≥'),
    ("=<", '≤'),
    ("=>", '≥'),
    ("≤", '≤'),
    ("≥", '≥'),
    ("<", '<'),
    (">", '>'),
];

/// The intervals that `text` says a variable lies in; `None` where it says something else.
pub fn read(text: &str) -> Option<Answer> {
    let text = text.replace("\\text{ or }", " or ").replace("\\text{or}", " or ");
    let parts: Vec<&str> = text.split(" or ").collect();
    let intervals: Vec<(String, Answer)> = parts.iter().map(|part| interval(part)).collect::<Option<_>>()?;
    let name = intervals.first()?.0.clone();
    if intervals.iter().any(|(other, _)| *other != name) {
        return None;
    }
    let mut sets: Vec<Answer> = intervals.into_iter().map(|(_, interval)| interval).collect();
    let set = if sets.len() == 1 { sets.remove(0) } else { Answer::Union(sets) };
    Some(Answer::Named(name, Box::new(set)))
}

/// The variable of a chain of one or two inequalities, and its interval.
fn interval(text: &str) -> Option<(String, Answer)> {
    let (sides, signs) = sides(text);
    let infinity = || Answer::One(Expression::Constant(f64::INFINITY));
    let below = || Answer::One(Expression::Constant(f64::INFINITY).negated());
    let (mut least, mut greatest) = ((below(), '('), (infinity(), ')'));
    let at = sides.iter().position(|side| variable(side).is_some())?;
    let name = variable(&sides[at])?;
    if let ['≠'] = signs[..] {
        let bound = structure(&sides[1 - at]).filter(|bound| matches!(bound, Answer::One(_)))?;
        let parts = [[below(), bound.clone()], [bound, infinity()]];
        let parts = parts.map(|ends| Answer::Tuple(['(', ')'], ends.to_vec()));
        return Some((name, Answer::Union(parts.to_vec())));
    }
    for (place, sign) in signs.iter().enumerate() {
        // The variable is on one of its sides.
        let (other, is_left) = match place {
            _ if place + 1 == at => (&sides[place], true),
            _ if place == at => (&sides[place + 1], false),
            _ => return None,
        };
        let bound = structure(other)?;
        let formula = bound.formula().filter(|_| matches!(bound, Answer::One(_) | Answer::Measure(..)))?;
        if formula.variables().contains(&name) {
            return None;
        }
        let strict = matches!(sign, '<' | '>');
        match matches!(sign, '<' | '≤') == is_left {
            _ if *sign == '≠' => return None,
            true if least.0 == below() => least = (bound, if strict { '(' } else { '[' }),
            false if greatest.0 == infinity() => greatest = (bound, if strict { ')' } else { ']' }),
            _ => return None,
        }
    }
    Some((name, Answer::Tuple([least.1, greatest.1], vec![least.0, greatest.0])))
}

/// The exact side of `text`, if it is a value and its decimal; the inner `None` if they differ.
pub fn approximated(text: &str) -> Option<Option<Answer>> {
    let sign = ["\\approx", "≈", "\\simeq"].into_iter().find(|sign| text.contains(sign))?;
    let (exact, decimal) = text.split_once(sign).filter(|(_, decimal)| !decimal.contains(sign))?;
    if exact.trim().is_empty() {
        return Some(Answer::read(decimal));
    }
    let (exact, decimal) = (Answer::read(exact)?, Answer::read(decimal)?);
    let value = |answer: &Answer| answer.formula()?.value(&[]);
    let Some(rounded) = value(&decimal) else { return Some(None) };
    let digits = text.rsplit(sign).next()?.split_once('.').map_or("", |(_, digits)| digits);
    let places = digits.chars().take_while(char::is_ascii_digit).count();
    Some(match (value(&exact), &exact) {
        (Some(value), _) => {
            let (last, cut) = (0.1_f64.powi(places as i32), value.abs() - rounded.abs());
            let is_rounded = (value - rounded).abs() <= last * 0.500_001;
            (is_rounded || value * rounded >= 0.0 && (0.0..last).contains(&cut)).then_some(exact)
        }
        (None, Answer::One(Expression::Variable(_))) => Some(decimal),
        _ => None,
    })
}

/// The texts between relations, and the relations.
fn sides(text: &str) -> (Vec<Vec<Spaced>>, Vec<char>) {
    let (mut sides, mut signs) = (Vec::new(), Vec::new());
    let (mut rest, mut begin) = (text, text);
    while !rest.is_empty() {
        let found = SPELLINGS.iter().find(|(spelling, _)| {
            // `\left` is no `\le`.
            let after = rest.strip_prefix(spelling);
            after.is_some_and(|after| {
                !spelling.starts_with('\\') || !after.starts_with(|sign: char| sign.is_ascii_alphabetic())
            })
        });
        match found {
            Some((spelling, sign)) => {
                sides.push(tokens(&begin[..begin.len() - rest.len()]).unwrap_or_default());
                signs.push(*sign);
                rest = &rest[spelling.len()..];
                begin = rest;
            }
            None => rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..],
        }
    }
    sides.push(tokens(begin).unwrap_or_default());
    if (1..=2).contains(&signs.len()) { (sides, signs) } else { (Vec::new(), Vec::new()) }
}

fn variable(side: &[Spaced]) -> Option<String> {
    match side {
        [Spaced { token: Token::Letter(name), .. }] => Some(name.clone()),
        _ => None,
    }
}
