//! Tokens to answers: sets, tuples, intervals, ratios and equations of formulas.

use super::expression::Expression;
use super::formula::{formula, measured};
use super::name::{is_name, name_of};
use super::spelling::{plain, unannounced, undecorated};
use super::time::Time;
use super::token::{Spaced, Token, is_among, sign, tokens, tokens_of_list};
use super::unit::{OTHER, Unit};
use super::word::word;
use super::{matrix, relation};

/// Longest answer that is parsed, in bytes.
const LONGEST: usize = 16_384;
/// Limit of members of a set or tuple, since all pairs are compared.
const MOST_MEMBERS: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A formula.
    One(Expression),
    /// A formula and its known unit.
    Measure(Expression, Unit),
    /// A time of day.
    Time(Time),
    /// A formula in percent.
    Percent(Expression),
    /// Members in any order.
    Set(Vec<Answer>),
    /// Ordered parts or an interval, with its brackets; `::` for a ratio of more than two.
    Tuple([char; 2], Vec<Answer>),
    /// Two equal formulas. `x = 5` and `f(x) = 2x` only name their right side, and are not equations.
    Equation(Expression, Expression),
    /// A union of sets or intervals.
    Union(Vec<Answer>),
    /// Rows of cells.
    Matrix(Vec<Vec<Answer>>),
    /// A named value: a member of a list, `x = 2` with `y = 3`; a formula of another variable, `y = 2x`; or a
    /// range, `x > 2`.
    Named(String, Box<Answer>),
    /// Two possible readings: `100,200` is one number, or two.
    Either(Box<Answer>, Box<Answer>),
    /// Anything else, as [`word()`] normalizes it.
    Word(String),
}

impl Answer {
    /// Parses `text`; `None` if it is empty or contradicts itself, like `8 = 9` and `nan`. Text that is not
    /// mathematics is an [`Answer::Word`].
    pub fn read(text: &str) -> Option<Answer> {
        // A point after a letter ends a sentence; after a digit it is harmless.
        let text = undecorated(text);
        if text.len() > LONGEST {
            return word(text).map(Answer::Word);
        }
        let text = unannounced(&plain(&unannounced(text)));
        if let Some(answer) = relation::approximated(&text) {
            return answer;
        }
        if let Some((letter, content)) = choice(&text) {
            return Some(Answer::Either(Box::new(Answer::One(letter)), Box::new(content)));
        }
        if let Some(time) = Time::read(&text) {
            return Some(Answer::Time(time));
        }
        if let Some(answer) = matrix::read(&text).or_else(|| relation::read(&text)) {
            return Some(answer);
        }
        if let Some(tokens) = tokens(&text) {
            if contradicts(&tokens) {
                return None;
            }
            if let Some(answer) = structure(&tokens) {
                let answer = answer.in_dollars(&text);
                let list = tokens_of_list(&text).filter(|list| *list != tokens && !contradicts(list));
                return Some(match list.and_then(|list| structure(&list)) {
                    Some(list) if list != answer => Answer::Either(Box::new(answer), Box::new(list)),
                    _ => answer,
                });
            }
        }
        word(&text).filter(|word| word != "nan").map(Answer::Word)
    }

    /// Marks a number as dollars if `text` writes it with a dollar sign that is not a formula's delimiter.
    fn in_dollars(self, text: &str) -> Answer {
        let signs = text.matches('$').count();
        match (self, Unit::dollar()) {
            (Answer::One(amount), Some(unit))
                if (text.contains("\\$") || signs % 2 == 1) && amount.variables().is_empty() =>
            {
                Answer::Measure(amount, unit)
            }
            (answer, _) => answer,
        }
    }
}

impl Answer {
    /// The formula that it is, or that it names.
    pub fn formula(&self) -> Option<&Expression> {
        match self {
            Answer::One(formula)
            | Answer::Percent(formula)
            | Answer::Measure(formula, _)
            | Answer::Equation(_, formula) => Some(formula),
            Answer::Named(_, answer) => answer.formula(),
            Answer::Either(answer, _) => answer.formula(),
            _ => None,
        }
    }

    /// Returns true if it is one number, with a unit or without.
    pub fn is_number(&self) -> bool {
        match self {
            Answer::One(_) | Answer::Measure(..) | Answer::Percent(_) | Answer::Time(_) => true,
            Answer::Either(answer, _) => answer.is_number(),
            _ => false,
        }
    }

    /// Its members or parts.
    fn items(&self) -> &[Answer] {
        match self {
            Answer::Set(items) | Answer::Union(items) | Answer::Tuple(_, items) => items,
            Answer::Named(_, answer) | Answer::Either(answer, _) => answer.items(),
            _ => &[],
        }
    }

    /// Returns true if it contains no variable or word.
    fn is_constant(&self) -> bool {
        match self {
            Answer::Equation(..) | Answer::Word(_) | Answer::Matrix(_) => false,
            Answer::Named(_, answer) => answer.is_constant(),
            _ => {
                self.formula().is_none_or(|formula| formula.variables().is_empty())
                    && self.items().iter().all(Answer::is_constant)
            }
        }
    }

    /// Returns true if something in it still has to be calculated; see [`Expression::is_unfinished`].
    pub fn is_unfinished(&self) -> bool {
        self.formula().is_some_and(Expression::is_unfinished)
            || self.items().iter().any(Answer::is_unfinished)
    }
}

/// The letter and the content of a choice: `(B) 12`, `\text{(B)}\ 12`.
fn choice(text: &str) -> Option<(Expression, Answer)> {
    let rest = text.strip_prefix("\\text{").unwrap_or(text).strip_prefix('(')?;
    let letter = rest.chars().next().filter(char::is_ascii_uppercase)?;
    let after = rest[1..].strip_prefix(')')?;
    let content = after.trim_start_matches(['}', ' ', '~', ':', '.']);
    let content = content.strip_prefix("\\ ").unwrap_or(content).trim_start();
    let begins = ["\\frac", "\\dfrac", "\\sqrt", "\\text", "\\pi", "\\$", "$"];
    // `(A)x` is a product, and `(A) or (B)` no choice.
    let is_content = content.len() < after.len()
        && (content.starts_with(char::is_alphanumeric)
            || begins.iter().any(|begin| content.starts_with(begin)))
        && !content
            .to_lowercase()
            .split(|sign: char| !sign.is_alphabetic())
            .any(|word| is_among(OTHER, word) || is_among("and or", word));
    let content = Answer::read(content).filter(|_| is_content)?;
    let is_letter = matches!(content, Answer::One(Expression::Variable(_)));
    (!is_letter).then(|| (Expression::Variable(letter.to_string()), content))
}

pub(super) fn is_comma(spaced: &Spaced) -> bool {
    match &spaced.token {
        Token::Sign(sign) => *sign == ',',
        Token::Word(word) => word == "or" || word == "and",
        _ => false,
    }
}

/// The number of open brackets after `spaced`, given `depth` before it.
fn nesting(spaced: &Spaced, depth: i32) -> i32 {
    match sign(spaced) {
        Some('(' | '[' | '{' | '<') => depth + 1,
        Some(')' | ']' | '}' | '>') => depth - 1,
        _ => depth,
    }
}

/// Splits at the tokens outside brackets that `cut` selects.
pub(super) fn split(tokens: &[Spaced], cut: impl Fn(&Spaced) -> bool) -> Vec<&[Spaced]> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, spaced) in tokens.iter().enumerate() {
        let after = nesting(spaced, depth);
        if (depth, after) == (0, 0) && cut(spaced) {
            parts.push(&tokens[begin..at]);
            begin = at + 1;
        }
        depth = after;
    }
    parts.push(&tokens[begin..]);
    parts
}

/// The content of the first bracket, if the last token closes it.
pub(super) fn enclosed(tokens: &[Spaced]) -> Option<(char, &[Spaced], char)> {
    let open = sign(tokens.first()?)?;
    let mut depth = 0;
    for (at, spaced) in tokens.iter().enumerate() {
        depth = nesting(spaced, depth);
        if depth == 0 {
            let close = sign(spaced).filter(|_| at > 0 && at + 1 == tokens.len())?;
            return Some((open, &tokens[1..at], close));
        }
    }
    None
}

fn items(tokens: &[Spaced]) -> Option<Vec<Answer>> {
    let parts = split(tokens, is_comma);
    if parts.len() > MOST_MEMBERS {
        return None;
    }
    parts.into_iter().filter(|part| !part.is_empty()).map(member).collect()
}

/// A member of a list, with its optional name.
fn member(tokens: &[Spaced]) -> Option<Answer> {
    let answer = structure(tokens)?;
    let sides = split(tokens, |spaced| sign(spaced) == Some('='));
    Some(match sides.as_slice() {
        [name, _] if !name.is_empty() && is_name(name) && answer.is_constant() => {
            Answer::Named(name_of(name), Box::new(answer))
        }
        _ => answer,
    })
}

/// Parses the structure of `tokens`.
pub(super) fn structure(tokens: &[Spaced]) -> Option<Answer> {
    if tokens.is_empty() {
        return None;
    }
    let unions = split(tokens, |spaced| sign(spaced) == Some('u'));
    if unions.len() > 1 {
        let sets = unions.into_iter().map(structure);
        return sets.collect::<Option<_>>().map(Answer::Union);
    }
    if split(tokens, is_comma).len() > 1 {
        return Some(Answer::Set(items(tokens)?));
    }
    let sides = split(tokens, |spaced| matches!(sign(spaced), Some('=' | '∈')));
    if let [before @ .., right] = sides.as_slice()
        && !before.is_empty()
    {
        return equation(before, right);
    }
    let parts = split(tokens, |spaced| sign(spaced) == Some(':'));
    if parts.len() > 1 {
        return ratio(&parts);
    }
    if let [Spaced { token: Token::Word(font), .. }, inner @ ..] = tokens
        && font == "\\mathbb"
        && let Some(('{', [Spaced { token: Token::Letter(set), .. }], '}')) = enclosed(inner)
        && set == "R"
    {
        let end = Expression::Constant(f64::INFINITY);
        return Some(Answer::Tuple(['(', ')'], vec![Answer::One(end.clone().negated()), Answer::One(end)]));
    }
    match enclosed(tokens) {
        Some(('<', inner, '>')) => return Some(Answer::Set(items(inner)?)),
        Some(('{', inner, '}')) => return structure(inner),
        Some((open @ ('(' | '['), inner, close @ (')' | ']'))) => {
            let items = items(inner)?;
            if items.len() == 1 && (open, close) == ('(', ')') {
                return items.into_iter().next();
            }
            return Some(Answer::Tuple([open, close], items));
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
            let signs = tokens.iter_mut().filter(|spaced| spaced.token == Token::Sign('±'));
            signs.for_each(|spaced| spaced.token = Token::Sign(replacement));
            formula(&tokens).map(Answer::One)
        };
        return Some(Answer::Set(vec![with('+')?, with('-')?]));
    }
    measured(tokens).map(|(formula, unit)| match unit {
        Some(unit) => Answer::Measure(formula, unit),
        None => Answer::One(formula),
    })
}

/// Returns true if `tokens` equate different values.
fn contradicts(tokens: &[Spaced]) -> bool {
    let parts = split(tokens, is_comma);
    if parts.len() > 1 {
        return parts.into_iter().any(contradicts);
    }
    let sides = split(tokens, |spaced| sign(spaced) == Some('='));
    if sides.len() == 1 {
        return enclosed(tokens).is_some_and(|(_, inner, _)| contradicts(inner));
    }
    let values = sides.into_iter().filter_map(structure);
    let values: Vec<Answer> = values.filter(Answer::is_constant).collect();
    values.windows(2).any(|pair| !pair[0].same(&pair[1]))
}

/// `x = 5` and `x ∈ S` mean their right side, `5 = x` its left side, `2 + 3 = 5` its value; `2x = 6` means the equation.
fn equation(before: &[&[Spaced]], right: &[Spaced]) -> Option<Answer> {
    let (last, side) = (structure(right)?, *before.first()?);
    let first = structure(side).filter(Answer::is_constant);
    match (last, formula(side)) {
        _ if before.len() == 1 && first.is_some() && is_name(right) => first,
        // The right side has another variable, so this may be a line.
        (Answer::One(right), Some(Expression::Variable(name)))
            if !right.variables().is_empty() && !right.variables().contains(&name) =>
        {
            Some(Answer::Named(name, Box::new(Answer::One(right))))
        }
        (last, _) if is_name(side) || first.is_some() && last.is_constant() => Some(last),
        (Answer::One(right), Some(left)) if before.len() == 1 => Some(Answer::Equation(left, right)),
        _ => None,
    }
}

/// `3 : 4` is a quotient, `1 : 2 : 3` a tuple, and the text after `Answer:` the answer.
fn ratio(parts: &[&[Spaced]]) -> Option<Answer> {
    let (left, right) = (parts.first()?, parts.last()?);
    if parts.len() == 2 && !left.is_empty() && is_name(left) {
        return structure(right);
    }
    let formulas: Vec<Expression> = parts.iter().map(|part| formula(part)).collect::<Option<_>>()?;
    if let [left, right] = formulas.as_slice() {
        return Some(Answer::One(Expression::quotient(left.clone(), right.clone())));
    }
    Some(Answer::Tuple([':'; 2], formulas.into_iter().map(Answer::One).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_word(text: &str) -> bool {
        matches!(Answer::read(text), Some(Answer::Word(_)))
    }

    /// Nested brackets mean the same as one pair, up to the limit of nesting.
    #[test]
    fn brackets_in_brackets_are_read_to_a_depth() {
        for (before, open, inside, close, after) in [
            ("", "(", "1", ")", ""),
            ("", "{", "1", "}", ""),
            ("x = ", "(", "1", ")", ""),
            ("Answer: ", "(", "1", ")", ""),
            ("", "(", "1", ")", " = x"),
            ("", "(", "8", ")", " = 9"),
            ("", "(", "8 = 9", ")", ""),
        ] {
            let read = |depth: usize| {
                Answer::read(&format!("{before}{}{inside}{}{after}", open.repeat(depth), close.repeat(depth)))
            };
            assert_eq!(read(60), read(1), "{before}{open}{inside}{close}{after}");
            assert_ne!(read(61), read(1), "{before}{open}{inside}{close}{after}");
        }
        // Side by side there may be more.
        assert_eq!(
            Answer::read(&"(1)".repeat(100)).map(|read| read.same(&Answer::read("1").unwrap())),
            Some(true)
        );
    }

    #[test]
    fn too_long_numbers_are_words() {
        let members = |count: usize| vec!["1"; count].join(", ");
        assert!(matches!(Answer::read(&members(100)), Some(Answer::Set(items)) if items.len() == 100));
        let divisions = |count: usize| format!("2{}", "/1".repeat(count));
        assert_eq!(
            Answer::read(&divisions(200)).map(|read| read.same(&Answer::read("2").unwrap())),
            Some(true)
        );
        let digits = |count: usize| "7".repeat(count);
        assert!(matches!(Answer::read(&digits(16_000)), Some(Answer::One(Expression::Number(..)))));
        for text in [members(101), members(102), divisions(201), digits(16_001)] {
            assert!(is_word(&text), "{} bytes", text.len());
        }
    }

    #[test]
    fn only_a_name_says_what_stands_on_the_other_side() {
        for text in [
            "x = 6",
            "x_1 = 6",
            "x_{12} = 6",
            "6 = x_1",
            "v_{max} = 6",
            "a_{n+1} = 6",
            "f(2) = 6",
            "P(A \\cap B) = 6",
            "x_1(2) = 6",
            "y' = 6",
            "\\ddot{x} = 6",
            "AB = 6",
            "\\frac{dy}{dx} = 6",
            "\\angle ABC = 6",
        ] {
            assert_eq!(Answer::read(text), Answer::read("6"), "{text}");
        }
        for text in [
            "x{3} = 6",
            "2x = 6",
            "-x = 6",
            "x + 1 = 6",
            "x(x+1) = 6",
            "x^2 = 6",
            "\\sqrt{x} = 6",
            "a_{n+1}-a_n = 6",
            "y'+y = 6",
        ] {
            assert!(matches!(Answer::read(text), Some(Answer::Equation(..))), "{text}");
        }
    }
}
