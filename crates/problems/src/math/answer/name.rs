//! Names: what may stand on the left side of `x = 5` without being a part of the answer.

use super::formula::MATHEMATICS;
use super::parse::{enclosed, is_comma, split};
use super::token::{Spaced, Token, sign};

/// A name as a text.
pub fn name_of(tokens: &[Spaced]) -> String {
    match tokens {
        [Spaced { token: Token::Letter(name), .. }] => name.clone(),
        _ => tokens.iter().map(|spaced| format!("{:?}", spaced.token)).collect(),
    }
}

/// Returns true if `tokens` are a name: a letter with subscripts, primes, accents and arguments, several letters or
/// words, or a derivative.
pub fn is_name(tokens: &[Spaced]) -> bool {
    let derivative =
        |token: &Token| matches!(token, Token::Letter(letter) if letter == "d" || letter == "partial");
    if let [Spaced { token: Token::Word(word), .. }, _, Spaced { token, .. }, ..] = tokens
        && word == "frac"
        && derivative(token)
    {
        return true;
    }
    // `(x, y)`.
    if let Some(('(', inside, ')')) = enclosed(tokens) {
        return split(inside, is_comma).into_iter().all(|part| !part.is_empty() && is_name(part));
    }
    let open = tokens.iter().position(|spaced| sign(spaced) == Some('('));
    let (head, arguments) = tokens.split_at(open.unwrap_or(tokens.len()));
    // `x(x + 1)` is a product.
    let is_function = open.is_none()
        || matches!(enclosed(arguments), Some(('(', inside, ')')) if head.last().is_some_and(|last| {
            !inside.iter().any(|spaced| spaced.token == last.token)
        }));
    let mut depth = 0;
    is_function
        && !head.is_empty()
        && head.iter().enumerate().all(|(at, spaced)| {
            let before = at.checked_sub(1).and_then(|before| sign(&head[before]));
            let in_subscript = depth > 0 || before == Some('_');
            match &spaced.token {
                Token::Sign('{') if in_subscript => depth += 1,
                Token::Sign('}') if depth > 0 => depth -= 1,
                _ => {}
            }
            in_subscript
                || match &spaced.token {
                    Token::Letter(_) => true,
                    Token::Word(word) => !MATHEMATICS.contains(&word.as_str()),
                    Token::Sign('^') => {
                        let prime = |spaced: &Spaced| spaced.token == Token::Word("\\prime".to_owned());
                        head[at + 1..].iter().take(2).any(prime)
                    }
                    Token::Sign(sign) => matches!(sign, '_' | '{' | '}'),
                    Token::Number(..) => false,
                }
        })
}
