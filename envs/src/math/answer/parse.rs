//! Tokens to answers: sets, tuples, intervals, ratios and equations of formulas.

use super::expression::Expression;
use super::formula::formula;
use super::token::{Spaced, Token, sign, tokens};
use super::word::word;

/// Longest answer that is parsed, in bytes.
const LONGEST: usize = 4096;
/// Members of a set or tuple: each is compared with each.
const MOST_MEMBERS: usize = 100;
/// Brackets inside brackets.
const DEEPEST: u32 = 60;

/// What an answer can be.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A formula.
    One(Expression),
    /// A formula in percent.
    Percent(Expression),
    /// Members in any order.
    Set(Vec<Answer>),
    /// Parts in order, or an interval, and the brackets around them; `::` for a ratio of more than two.
    Tuple([char; 2], Vec<Answer>),
    /// Two equal formulas. `x = 5` and `f(x) = 2x` only name their right side and are no equation.
    Equation(Expression, Expression),
    /// A union of sets or intervals.
    Union(Vec<Answer>),
    /// Anything else, as [`word()`] normalizes it.
    Word(String),
}

impl Answer {
    /// What `text` means; `None` if it is empty or contradicts itself, as `8 = 9` and `nan` do. What is no mathematics is
    /// a [`Answer::Word`].
    pub fn read(text: &str) -> Option<Answer> {
        let degrees = ["^\\circ", "^{\\circ}", "^\\degree"];
        // A point after a letter ends a sentence; after a digit it does no harm.
        let text = text.trim().trim_end_matches('.');
        let text = degrees.iter().fold(text.to_owned(), |text, degree| text.replace(degree, ""));
        if text.len() <= LONGEST
            && let Some(tokens) = tokens(&text)
        {
            if contradicts(&tokens, 0) {
                return None;
            }
            if let Some(answer) = structure(&tokens, 0) {
                return Some(answer);
            }
        }
        word(&text).filter(|word| word != "nan").map(Answer::Word)
    }
}

impl Answer {
    /// Whether it contains no variable and no word.
    fn is_constant(&self) -> bool {
        match self {
            Answer::One(formula) | Answer::Percent(formula) => formula.variables().is_empty(),
            Answer::Set(items) | Answer::Union(items) | Answer::Tuple(_, items) => {
                items.iter().all(Answer::is_constant)
            }
            Answer::Equation(..) | Answer::Word(_) => false,
        }
    }
}

fn is_comma(spaced: &Spaced) -> bool {
    match &spaced.token {
        Token::Sign(sign) => *sign == ',',
        Token::Word(word) => word == "or" || word == "and",
        _ => false,
    }
}

/// 1 for a bracket that opens, -1 for one that closes.
fn nesting(spaced: &Spaced) -> i32 {
    match sign(spaced) {
        Some('(' | '[' | '{' | '<') => 1,
        Some(')' | ']' | '}' | '>') => -1,
        _ => 0,
    }
}

/// The parts between the tokens outside of brackets that `cut` selects.
fn split(tokens: &[Spaced], cut: impl Fn(&Spaced) -> bool) -> Vec<&[Spaced]> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0_i32, 0);
    for (at, spaced) in tokens.iter().enumerate() {
        depth += nesting(spaced);
        if depth == 0 && nesting(spaced) == 0 && cut(spaced) {
            parts.push(&tokens[begin..at]);
            begin = at + 1;
        }
    }
    parts.push(&tokens[begin..]);
    parts
}

/// The content of the first bracket, if the last token closes it.
fn enclosed(tokens: &[Spaced]) -> Option<(char, &[Spaced], char)> {
    let open = sign(tokens.first()?)?;
    let mut depth = 0_i32;
    for (at, spaced) in tokens.iter().enumerate() {
        depth += nesting(spaced);
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
        let sets = unions.into_iter().map(|part| structure(part, depth + 1));
        return sets.collect::<Option<_>>().map(Answer::Union);
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
    formula(tokens).map(Answer::One)
}

/// Whether `tokens` say of different values that they are equal.
fn contradicts(tokens: &[Spaced], depth: u32) -> bool {
    let parts = split(tokens, is_comma);
    if depth > DEEPEST || parts.len() > 1 {
        return parts.iter().any(|part| depth <= DEEPEST && contradicts(part, depth + 1));
    }
    let sides = split(tokens, |spaced| sign(spaced) == Some('='));
    if sides.len() == 1 {
        return enclosed(tokens).is_some_and(|(_, inner, _)| contradicts(inner, depth + 1));
    }
    let values = sides.into_iter().filter_map(|side| structure(side, depth + 1));
    let values: Vec<Answer> = values.filter(Answer::is_constant).collect();
    values.windows(2).any(|pair| !pair[0].same(&pair[1]))
}

/// `x = 5` and `x ∈ S` mean what comes last, `5 = x` what comes first; `x^2 + y^2 = 25` means that both sides are equal.
fn equation(before: &[&[Spaced]], right: &[Spaced], depth: u32) -> Option<Answer> {
    let last = structure(right, depth + 1)?;
    let [side] = before else { return Some(last) };
    if let Some(first) = structure(side, depth + 1).filter(Answer::is_constant)
        && is_name(right)
    {
        return Some(first);
    }
    match (last, formula(side)) {
        (Answer::One(right), Some(left)) if !is_name(side) && !left.variables().is_empty() => {
            Some(Answer::Equation(left, right))
        }
        (last, _) => Some(last),
    }
}

/// Whether `tokens` are a name: letters, words, subscripts, arguments.
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

/// `3 : 4` is a quotient, `1 : 2 : 3` a tuple, and what follows `Answer:` the answer.
fn ratio(parts: &[&[Spaced]], depth: u32) -> Option<Answer> {
    let (left, right) = (parts.first()?, parts.last()?);
    if parts.len() == 2 && !left.is_empty() && is_name(left) {
        return structure(right, depth + 1);
    }
    let formulas: Vec<Expression> = parts.iter().map(|part| formula(part)).collect::<Option<_>>()?;
    if let [left, right] = formulas.as_slice() {
        return Some(Answer::One(Expression::quotient(left.clone(), right.clone())));
    }
    Some(Answer::Tuple([':'; 2], formulas.into_iter().map(Answer::One).collect()))
}
