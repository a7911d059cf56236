//! LaTeX and plain mathematics as tokens, without decoration.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Pow, Zero};

use super::formula::MATHEMATICS;

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A number, and true if it was written as a decimal.
    Number(BigRational, bool),
    /// One letter, or a Greek letter by name.
    Letter(String),
    /// A function or constant by name, a word, or any other LaTeX command with its backslash.
    Word(String),
    /// One of `+ - * / ^ _ ( ) [ ] { } , = % ! | ± °`, `<` and `>` for the braces of sets, `u` for a union, `i` for
    /// infinity, `∈`, and `:` of ratios.
    Sign(char),
}

/// A token, and whether white space precedes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spaced {
    pub token: Token,
    /// White space before it.
    pub space: bool,
}

/// Two-letter words that are not products of letters: functions, constants and units.
const SHORT_WORDS: &str = "ln pi cm mm km kg mg ml ft in hr lb oz or";
/// Commands for size, spacing or font, which have no meaning in formulas or prose.
pub(super) const LAYOUT: &str = "left right quad qquad displaystyle textstyle big Big bigl bigr Bigl Bigr bigg limits \
                                 mathbf bm boldsymbol operatorname boxed fbox bf rm it sf tt em bfseries small large Large \
                                 LARGE huge Huge normalsize";
/// Greek letters that serve as variables.
const GREEK: &str = "alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi varphi chi psi omega \
                     Gamma Delta Theta Lambda Sigma Phi Psi Omega ell partial";
/// Commands that stand for a sign.
const SIGNS: [(char, &str); 10] = [
    ('*', "cdot times ast"),
    ('/', "div"),
    ('±', "pm mp"),
    ('i', "infty"),
    ('u', "cup"),
    ('∈', "in"),
    (':', "colon"),
    ('<', "lbrace"),
    ('>', "rbrace"),
    ('|', "lvert rvert vert mid"),
];

/// Digits of a number at most.
const MOST_DIGITS: usize = 16_000;
/// Limit of nested brackets, because the parser is recursive.
const DEEPEST: usize = 60;

/// Returns true if `word` is one of the `words`.
pub(super) fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// Splits `text`; `None` if it contains something that is not mathematics, or brackets are nested too deeply.
pub fn tokens(text: &str) -> Option<Vec<Spaced>> {
    split(text, true)
}

/// Tokens of a list, in which a bare comma never belongs to a number: `1,234` is two numbers.
pub fn tokens_of_list(text: &str) -> Option<Vec<Spaced>> {
    split(text, false)
}

fn split(text: &str, grouped: bool) -> Option<Vec<Spaced>> {
    let letters = text.chars().collect();
    let mut lexer =
        Lexer { letters, at: 0, space: false, grouped, open: Vec::new(), argument: false, found: Vec::new() };
    while let Some(letter) = lexer.letters.get(lexer.at).copied() {
        lexer.next(letter)?;
        if lexer.open.len() > DEEPEST {
            return None;
        }
    }
    Some(lexer.found)
}

struct Lexer {
    letters: Vec<char>,
    at: usize,
    /// True if white space precedes `at`.
    space: bool,
    /// True if bare commas belong to numbers.
    grouped: bool,
    /// For each open bracket, true if it is the brace of a command's argument, which cannot be a list.
    open: Vec<bool>,
    /// True directly after a command that leaves no token.
    argument: bool,
    found: Vec<Spaced>,
}

impl Lexer {
    fn push(&mut self, token: Token) {
        self.found.push(Spaced { token, space: std::mem::take(&mut self.space) });
    }

    fn sign(&mut self, sign: char) {
        let before = self.found.last().map(|spaced| &spaced.token);
        let argument = std::mem::take(&mut self.argument)
            || matches!(before, Some(Token::Word(_) | Token::Sign('^' | '_' | '}' | ']')));
        match sign {
            '(' | '[' | '{' | '<' => self.open.push(sign == '{' && argument),
            ')' | ']' | '}' | '>' => drop(self.open.pop()),
            _ => {}
        }
        self.push(Token::Sign(sign));
    }

    /// Reads and returns the letters from `at` on that `belong`.
    fn run(&mut self, belong: impl Fn(&char) -> bool) -> String {
        let run: String = self.letters[self.at..].iter().take_while(|letter| belong(letter)).collect();
        self.at += run.chars().count();
        run
    }

    fn next(&mut self, letter: char) -> Option<()> {
        match letter {
            '$' | '€' | '£' | '~' | '\u{200b}' => self.at += 1,
            _ if letter.is_whitespace() => {
                self.space = true;
                self.at += 1;
            }
            _ if superscript(letter).is_some() => {
                let raised = self.run(|letter| superscript(*letter).is_some());
                let digits: String = raised.chars().filter_map(superscript).collect();
                self.push(Token::Sign('^'));
                self.push(Token::Number(BigRational::from_integer(digits.parse().ok()?), false));
            }
            '0'..='9' | '.' => {
                let bare = self.grouped && self.open.last().is_none_or(|argument| *argument);
                let (number, rounded, next) = number(&self.letters, self.at, bare)?;
                self.push(Token::Number(number, rounded));
                self.at = next;
            }
            '\\' => {
                self.at += 1;
                self.command()?;
            }
            _ if letter.is_alphabetic() && letter != 'π' => {
                let run = self.run(|letter| letter.is_alphabetic());
                if run.chars().count() >= 3 || is_among(SHORT_WORDS, &run.to_lowercase()) {
                    self.word(&run);
                } else {
                    run.chars().for_each(|letter| self.push(Token::Letter(letter.to_string())));
                }
            }
            _ => {
                self.at += 1;
                match letter {
                    'π' => self.push(Token::Word("pi".to_owned())),
                    '√' => self.push(Token::Word("sqrt".to_owned())),
                    '\u{2212}' | '–' | '\u{ff0d}' => self.sign('-'),
                    '×' | '·' | '⋅' => self.sign('*'),
                    '÷' => self.sign('/'),
                    '∞' => self.sign('i'),
                    '∪' => self.sign('u'),
                    '\'' | '\u{2032}' => {
                        self.sign('^');
                        self.push(Token::Word("\\prime".to_owned()));
                    }
                    '¢' => self.push(Token::Word("cents".to_owned())),
                    ';' => self.sign(','),
                    '*' if self.letters.get(self.at) == Some(&'*') => {
                        self.at += 1;
                        self.sign('^');
                    }
                    '+' | '-' | '*' | '/' | '^' | '_' | '(' | ')' | '[' | ']' | '{' | '}' | ',' | '='
                    | '%' | '!' | '|' | '±' | '∈' | ':' | '°' => self.sign(letter),
                    _ => return None,
                }
            }
        }
        Some(())
    }

    fn word(&mut self, word: &str) {
        match word.to_lowercase() {
            word if word == "percent" => self.sign('%'),
            word => self.push(Token::Word(word)),
        }
    }

    /// A LaTeX command; `at` is after its backslash.
    fn command(&mut self) -> Option<()> {
        let name = self.run(char::is_ascii_alphabetic);
        if name.is_empty() {
            let letter = *self.letters.get(self.at)?;
            self.at += 1;
            match letter {
                '{' => self.sign('<'),
                '}' => self.sign('>'),
                '%' => self.sign('%'),
                '$' | '!' | ',' | ';' | ':' | ' ' => {}
                _ => return None,
            }
            return Some(());
        }
        if let Some((sign, _)) = SIGNS.iter().find(|(_, names)| is_among(names, &name)) {
            self.sign(*sign);
            return Some(());
        }
        match name.as_str() {
            "binom" | "dbinom" | "tbinom" => self.push(Token::Word("binom".to_owned())),
            "frac" | "dfrac" | "tfrac" | "cfrac" => self.push(Token::Word("frac".to_owned())),
            "emptyset" | "varnothing" => {
                self.sign('<');
                self.sign('>');
            }
            // The rest of the text is words.
            "text" => {
                let ends_value = matches!(
                    self.found.last(),
                    Some(Spaced { token: Token::Number(..) | Token::Sign(')' | '}' | ']'), .. })
                );
                let (inside, next) = braces(&self.letters, self.at)?;
                self.at = next;
                let mut run = String::new();
                for letter in inside.chars().chain([' ']) {
                    if letter.is_alphanumeric() {
                        run.push(letter);
                        continue;
                    }
                    self.space = true;
                    // After a value, a letter in text is a unit: `5 \text{ m}`.
                    match run.chars().count() {
                        0 => {}
                        1 if !ends_value => self.push(Token::Letter(run)),
                        _ => self.word(&run),
                    }
                    run = String::new();
                    match letter {
                        '/' | '^' | '*' if ends_value => self.sign(letter),
                        '·' if ends_value => self.sign('*'),
                        _ => {}
                    }
                }
            }
            // Not `sec`, which is a unit.
            "sec" => self.push(Token::Word("secant".to_owned())),
            "csc" => self.push(Token::Word("cosecant".to_owned())),
            "cot" => self.push(Token::Word("cotangent".to_owned())),
            // Inequalities are parsed earlier, or compared as words.
            "le" | "leq" | "leqslant" | "ge" | "geq" | "geqslant" | "lt" | "gt" | "ne" | "neq" => {
                return None;
            }
            "circ" => self.sign('°'),
            name if is_among(LAYOUT, name) => self.argument = true,
            _ if is_among(GREEK, &name) => self.push(Token::Letter(name)),
            name if MATHEMATICS.contains(&name) => self.push(Token::Word(name.to_owned())),
            _ => self.push(Token::Word(format!("\\{name}"))),
        }
        Some(())
    }
}

/// The digit of a superscript.
fn superscript(letter: char) -> Option<char> {
    let digit = "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().position(|raised| raised == letter)?;
    char::from_digit(digit as u32, 10)
}

/// The sign of a token.
pub fn sign(spaced: &Spaced) -> Option<char> {
    match spaced.token {
        Token::Sign(sign) => Some(sign),
        _ => None,
    }
}

/// The text in the braces that begin at `at`, and the position after them.
fn braces(letters: &[char], at: usize) -> Option<(String, usize)> {
    let begin = at + letters.get(at..)?.iter().take_while(|letter| letter.is_whitespace()).count();
    if letters.get(begin) != Some(&'{') {
        return None;
    }
    let inside: String = letters[begin + 1..].iter().take_while(|letter| **letter != '}').collect();
    let next = begin + 1 + inside.chars().count();
    (next < letters.len()).then_some((inside, next + 1))
}

/// Separators of groups of three digits: the ones that may also separate the members of a list, the ones that
/// may precede a fraction, and the unambiguous ones.
const COMMAS: [&str; 4] = [",\\,", ",~", ", \\,", ","];
const SPACES: [&str; 9] = ["\u{202f}", "\u{2009}", "\u{a0}", "\\ ", "\\;", "~", " ", "\\:", "\u{2008}"];
const MARKS: [&str; 8] = [",\\! ", ",\\!", "{,}", "\\,", "\\!", "_", "'", "\u{2019}"];

/// Returns true if `letters` begin with `text`.
fn begin_with(letters: &[char], text: &str) -> bool {
    text.chars().enumerate().all(|(at, letter)| letters.get(at) == Some(&letter))
}

/// The groups of three digits from `at` on, and where they end: all after the same separator, or none.
fn groups(letters: &[char], at: usize, bare: bool) -> (String, usize) {
    let is_digit = |at: usize| letters.get(at).is_some_and(char::is_ascii_digit);
    let three = |from: usize| (from..from + 3).all(is_digit) && !is_digit(from + 3);
    let commas = COMMAS.iter().filter(|_| bare);
    for mark in MARKS.iter().chain(commas).chain(&SPACES) {
        let (mut next, mut digits) = (at, String::new());
        while begin_with(&letters[next..], mark) && three(next + mark.chars().count()) {
            next += mark.chars().count() + 3;
            digits.extend(&letters[next - 3..next]);
        }
        // `2 125/250` is a mixed number.
        let rest = || letters[next..].iter().find(|letter| **letter != ' ');
        if next > at && !(SPACES.contains(mark) && rest() == Some(&'/')) {
            return (digits, next);
        }
    }
    (String::new(), at)
}

/// The number at `at`, whether it is a decimal, and where it ends. It includes separators between groups of
/// three digits; a `bare` comma only if it does not separate members of a list.
fn number(letters: &[char], at: usize, bare: bool) -> Option<(BigRational, bool, usize)> {
    let digits_at = |from: usize| letters[from..].iter().take_while(|letter| letter.is_ascii_digit()).count();
    let mut next = at + digits_at(at);
    let mut digits: String = letters[at..next].iter().collect();
    if (1..=3).contains(&digits.len()) {
        let (more, end) = groups(letters, next, bare);
        digits.push_str(&more);
        next = end;
    }
    let mut places = 0;
    let mut rounded = false;
    if letters.get(next) == Some(&'.') {
        let fraction = digits_at(next + 1);
        digits.extend(&letters[next + 1..next + 1 + fraction]);
        places = fraction;
        rounded = fraction > 0;
        next += 1 + fraction;
    }
    if digits.is_empty() || digits.len() > MOST_DIGITS {
        return None;
    }
    let mut repeated = BigRational::zero();
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

/// The digits of an `\overline{…}` at `at`, and the position after it.
fn overlined(letters: &[char], at: usize) -> Option<(String, usize)> {
    let command: Vec<char> = "\\overline".chars().collect();
    let (digits, end) =
        braces(letters, at + command.len()).filter(|_| letters[at..].starts_with(&command))?;
    let fits = (1..=100).contains(&digits.len()) && digits.chars().all(|digit| digit.is_ascii_digit());
    fits.then_some((digits, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_and_decimals_say_so() {
        for (text, top, bottom, rounded) in [
            ("5.", 5, 1, false),
            ("5.0", 5, 1, true),
            (".25", 1, 4, true),
            ("1,234", 1234, 1, false),
            ("2.5e-1", 1, 4, true),
            ("2E+3", 2000, 1, false),
            ("0.\\overline{3}", 1, 3, false),
            ("1.\\overline{3}e2", 400, 3, false),
            ("0.1\\overline{6}", 1, 6, false),
        ] {
            let expected = Token::Number(BigRational::new(top.into(), bottom.into()), rounded);
            assert_eq!(tokens(text), Some(vec![Spaced { token: expected, space: false }]), "{text}");
        }
        assert_eq!(tokens("."), None);
        // Without an exponent, e is Euler's number.
        assert_eq!(tokens("2e").map(|found| found.len()), Some(2));
    }

    #[test]
    fn a_repeated_group_has_a_hundred_digits_at_most() {
        let group = |count: usize| tokens(&format!("0.\\overline{{{}}}", "9".repeat(count))).unwrap();
        let one = Token::Number(BigRational::from_integer(1.into()), false);
        assert_eq!(group(100), [Spaced { token: one, space: false }]);
        assert!(group(101).len() > 1);
    }
}
