//! Words of LaTeX and of plain mathematics as tokens; decoration is left out on the way.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Pow;

/// The smallest part that means something.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A number; whether it was written as a decimal.
    Number(BigRational, bool),
    /// One letter, or a Greek one by its name.
    Letter(String),
    /// A command of LaTeX or a word of several letters, without the backslash.
    Word(String),
    /// One of `+ - * / ^ _ ( ) [ ] { } , = % ! | ±`, `<` and `>` for the braces of sets, `u` for a union, `i` for
    /// infinity, `∈`, and `:` of ratios.
    Sign(char),
}

/// A token and whether white space stood before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spaced {
    /// The token.
    pub token: Token,
    /// White space before it.
    pub space: bool,
}

/// Words that are functions or constants; any other run of three letters or more is a word of prose.
const MATHEMATICS: [&str; 9] = ["sqrt", "sin", "cos", "tan", "log", "ln", "exp", "pi", "abs"];
/// Units of two letters, which are no products.
const UNITS: [&str; 12] = ["cm", "mm", "km", "kg", "mg", "ml", "ft", "in", "hr", "lb", "oz", "or"];
/// Commands that choose a size, a space or a font and mean nothing, in formulas and in words alike.
pub(super) const LAYOUT: [&str; 18] = [
    "left",
    "right",
    "quad",
    "qquad",
    "displaystyle",
    "textstyle",
    "big",
    "Big",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "bigg",
    "limits",
    "mathbf",
    "bm",
    "boldsymbol",
    "operatorname",
];
/// Marks of degrees, which leave the number as it is.
const DEGREES: [&str; 2] = ["degree", "circ"];
/// Greek letters that serve as variables.
const GREEK: [&str; 9] = ["alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "phi", "omega"];

/// Splits `text`; `None` for a text with something in it that is no mathematics.
pub fn tokens(text: &str) -> Option<Vec<Spaced>> {
    let letters: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut space, mut depth) = (0, false, 0_usize);
    while at < letters.len() {
        let letter = letters[at];
        let ends_value = matches!(
            found.last(),
            Some(Spaced { token: Token::Number(..) | Token::Sign(')' | '}' | ']'), .. })
        );
        let mut push = |token: Token, space: &mut bool| {
            found.push(Spaced { token, space: *space });
            *space = false;
        };
        match letter {
            '$' | '€' | '£' | '~' | '°' | '\u{200b}' => at += 1,
            _ if letter.is_whitespace() => {
                space = true;
                at += 1;
            }
            '⁰' | '¹' | '²' | '³' | '⁴'..='⁹' => {
                push(Token::Sign('^'), &mut space);
                let raised = letters[at..].iter().map_while(|letter| superscript(*letter));
                let digits: String = raised.collect();
                at += digits.chars().count();
                let value = BigRational::from_integer(digits.parse::<BigInt>().ok()?);
                push(Token::Number(value, false), &mut space);
            }
            '0'..='9' | '.' => {
                let (number, rounded, next) = number(&letters, at, depth)?;
                push(Token::Number(number, rounded), &mut space);
                at = next;
            }
            '\\' => {
                at += 1;
                let name: String =
                    letters[at..].iter().take_while(|letter| letter.is_ascii_alphabetic()).collect();
                at += name.len().max(1);
                match name.as_str() {
                    "" => match letters.get(at - 1)? {
                        '{' => {
                            depth += 1;
                            push(Token::Sign('<'), &mut space);
                        }
                        '}' => {
                            depth = depth.saturating_sub(1);
                            push(Token::Sign('>'), &mut space);
                        }
                        '%' => push(Token::Sign('%'), &mut space),
                        '$' | '!' => {}
                        ',' | ';' | ':' | ' ' => {}
                        _ => return None,
                    },
                    "binom" | "dbinom" | "tbinom" => push(Token::Word("binom".to_owned()), &mut space),
                    "frac" | "dfrac" | "tfrac" | "cfrac" => push(Token::Word("frac".to_owned()), &mut space),
                    "cdot" | "times" | "ast" => push(Token::Sign('*'), &mut space),
                    "div" => push(Token::Sign('/'), &mut space),
                    "pm" | "mp" => push(Token::Sign('±'), &mut space),
                    "infty" => push(Token::Sign('i'), &mut space),
                    "cup" => push(Token::Sign('u'), &mut space),
                    "in" => push(Token::Sign('∈'), &mut space),
                    "colon" => push(Token::Sign(':'), &mut space),
                    "lbrace" => push(Token::Sign('<'), &mut space),
                    "rbrace" => push(Token::Sign('>'), &mut space),
                    "lvert" | "rvert" | "vert" | "mid" => push(Token::Sign('|'), &mut space),
                    "emptyset" | "varnothing" => {
                        push(Token::Sign('<'), &mut space);
                        push(Token::Sign('>'), &mut space);
                    }
                    "text" | "mathrm" | "textbf" | "mbox" | "textit" => {
                        let (inside, next) = braces(&letters, at)?;
                        at = next;
                        let behind = ends_value;
                        for word in inside
                            .split(|letter: char| !letter.is_alphanumeric())
                            .filter(|word| !word.is_empty())
                        {
                            let token = match word.chars().count() {
                                // Behind something a letter in words is a unit: `5 \text{ m}`.
                                1 if !behind => Token::Letter(word.to_owned()),
                                _ => Token::Word(word.to_lowercase()),
                            };
                            space = true;
                            push(token, &mut space);
                        }
                    }
                    // Inequalities are compared as words.
                    "le" | "leq" | "leqslant" | "ge" | "geq" | "geqslant" | "lt" | "gt" | "ne" | "neq" => {
                        return None;
                    }
                    name if LAYOUT.contains(&name) || DEGREES.contains(&name) => {}
                    name if GREEK.contains(&name) => push(Token::Letter(name.to_owned()), &mut space),
                    name => push(Token::Word(name.to_owned()), &mut space),
                }
            }
            _ if letter.is_alphabetic() && letter != 'π' => {
                let run: String = letters[at..].iter().take_while(|letter| letter.is_alphabetic()).collect();
                let count = run.chars().count();
                at += count;
                let lower = run.to_lowercase();
                if count >= 3 || MATHEMATICS.contains(&&*lower) || UNITS.contains(&&*lower) {
                    push(Token::Word(lower), &mut space);
                } else {
                    run.chars().for_each(|letter| push(Token::Letter(letter.to_string()), &mut space));
                }
            }
            _ => {
                at += 1;
                let sign = match letter {
                    '\u{2212}' | '–' | '\u{ff0d}' => '-',
                    '×' | '·' | '⋅' => '*',
                    '÷' => '/',
                    '∞' => 'i',
                    '∪' => 'u',
                    '*' if letters.get(at) == Some(&'*') => {
                        at += 1;
                        '^'
                    }
                    other => other,
                };
                match sign {
                    'π' => push(Token::Word("pi".to_owned()), &mut space),
                    '√' => push(Token::Word("sqrt".to_owned()), &mut space),
                    '(' | '[' | '{' => {
                        depth += 1;
                        push(Token::Sign(sign), &mut space);
                    }
                    ')' | ']' | '}' => {
                        depth = depth.saturating_sub(1);
                        push(Token::Sign(sign), &mut space);
                    }
                    '+' | '-' | '*' | '/' | '^' | '_' | ',' | '=' | '%' | '!' | '|' | '±' | 'i' | 'u'
                    | '∈' | ':' => {
                        push(Token::Sign(sign), &mut space);
                    }
                    ';' => push(Token::Sign(','), &mut space),
                    _ => return None,
                }
            }
        }
    }
    Some(found)
}

/// The digit that stands raised.
fn superscript(letter: char) -> Option<char> {
    let digit = match letter {
        '¹' => 1,
        '²' => 2,
        '³' => 3,
        '⁰' | '⁴'..='⁹' => u32::from(letter) - u32::from('⁰'),
        _ => return None,
    };
    char::from_digit(digit, 10)
}

/// The sign that a token is.
pub fn sign(spaced: &Spaced) -> Option<char> {
    match spaced.token {
        Token::Sign(sign) => Some(sign),
        _ => None,
    }
}

/// The text between the braces that begin at `at`, and where it goes on behind them.
fn braces(letters: &[char], at: usize) -> Option<(String, usize)> {
    let begin = at + letters.get(at..)?.iter().take_while(|letter| letter.is_whitespace()).count();
    if letters.get(begin) != Some(&'{') {
        return None;
    }
    let inside: String = letters[begin + 1..].iter().take_while(|letter| **letter != '}').collect();
    let next = begin + 1 + inside.chars().count();
    (next < letters.len()).then_some((inside, next + 1))
}

/// How long the mark between groups of three digits is that `letters` begin with.
fn separator(letters: &[char]) -> Option<usize> {
    [&[','][..], &['\\', ','], &['{', ',', '}']]
        .into_iter()
        .find(|mark| letters.starts_with(mark))
        .map(<[char]>::len)
}

/// The number at `at`, whether it is a decimal, and where it ends. Commas between groups of three digits belong to
/// it outside of brackets.
fn number(letters: &[char], at: usize, depth: usize) -> Option<(BigRational, bool, usize)> {
    let digits_at = |from: usize| letters[from..].iter().take_while(|letter| letter.is_ascii_digit()).count();
    let mut next = at + digits_at(at);
    let mut digits: String = letters[at..next].iter().collect();
    while depth == 0
        && (1..=3).contains(&digits_at(at))
        && let Some(separator) = separator(&letters[next..])
        && digits_at(next + separator) == 3
    {
        digits.extend(&letters[next + separator..next + separator + 3]);
        next += separator + 3;
    }
    let mut places = 0;
    let mut rounded = false;
    if letters.get(next) == Some(&'.') && (digits_at(next + 1) > 0 || !digits.is_empty()) {
        let fraction = digits_at(next + 1);
        digits.extend(&letters[next + 1..next + 1 + fraction]);
        places = fraction;
        rounded = fraction > 0;
        next += 1 + fraction;
    }
    if digits.is_empty() || digits.len() > 4000 {
        return None;
    }
    let mut repeated = BigRational::from_integer(0.into());
    if let Some((digits, end)) =
        overlined(letters, next).filter(|_| letters.get(next - 1) == Some(&'.') || rounded)
    {
        // 0.1\overline{6}: 6 / (9 * 10), exactly.
        let ten = BigInt::from(10);
        let below = (Pow::pow(&ten, digits.len()) - 1) * Pow::pow(&ten, places);
        repeated = BigRational::new(digits.parse::<BigInt>().ok()?, below);
        rounded = false;
        next = end;
    }
    let mut exponent = 0_i32;
    if matches!(letters.get(next), Some('e' | 'E')) {
        let sign = usize::from(matches!(letters.get(next + 1), Some('+' | '-')));
        let count = digits_at(next + 1 + sign);
        if count > 0 && count <= 3 {
            let text: String = letters[next + 1..next + 1 + sign + count].iter().collect();
            exponent = text.parse().ok()?;
            next += 1 + sign + count;
        }
    }
    let ten = BigRational::from_integer(10.into());
    let value = BigRational::from_integer(digits.parse::<BigInt>().ok()?)
        * Pow::pow(ten.clone(), exponent - places as i32)
        + repeated * Pow::pow(ten, exponent);
    Some((value, rounded, next))
}

/// The digits of an `\overline{…}` at `at`, and where it ends.
fn overlined(letters: &[char], at: usize) -> Option<(String, usize)> {
    let command: Vec<char> = "\\overline".chars().collect();
    let (digits, end) =
        braces(letters, at + command.len()).filter(|_| letters[at..].starts_with(&command))?;
    let fits = (1..=100).contains(&digits.len()) && digits.chars().all(|digit| digit.is_ascii_digit());
    fits.then_some((digits, end))
}
