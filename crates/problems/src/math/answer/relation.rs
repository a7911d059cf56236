//! Inequalities of one variable as intervals: `x \ge 2` is `[2, \infty)`, `2 < x < 5` is `(2, 5)`.
//!
//! Left out: inequalities of several variables, `\ne`, and inequalities that have to be solved first; they
//! are words.

use super::expression::Expression;
use super::parse::{Answer, structure};
use super::token::{Spaced, Token, tokens};

/// What spells a relation, the longer before its beginning.
const SPELLINGS: [(&str, char); 16] = [
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
            true if least.0 == below() => least = (bound, if strict { '(' } else { '[' }),
            false if greatest.0 == infinity() => greatest = (bound, if strict { ')' } else { ']' }),
            _ => return None,
        }
    }
    Some((name, Answer::Tuple([least.1, greatest.1], vec![least.0, greatest.0])))
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
