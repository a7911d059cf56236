//! Tasks for tiny policies: two or three operations are applied to a number from left to right, and the
//! program is an expression with the brackets that this needs.
//!
//! A policy of a few hundred thousand parameters can learn here where brackets go, and how to add and
//! multiply small numbers. It does not learn to program, and nothing carries over to the tasks in prose:
//! these tasks exist to train and test roles, rewards and the loop on a laptop.
//!
//! Every task needs brackets, so that copying its words is a wrong program.
//!
//! Expressions consist of numbers, `x`, three operations and brackets, with Python's meaning. [`evaluate`]
//! computes them here rather than in the sandbox; it can do nothing else.

use record::philox::Draws;

/// A task: the operations on x, in order. Each operation is `+`, `-` or `*` and a digit from 2 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(Vec<(char, i64)>);

impl Chain {
    /// A chain of `length` operations.
    pub fn draw(length: usize, draws: &mut Draws) -> Chain {
        let operation = |draws: &mut Draws| {
            let k = 2 + i64::from(draws.below(8));
            (['+', '-', '*'][draws.below(3) as usize], k)
        };
        Chain((0..length).map(|_| operation(draws)).collect())
    }

    /// The answer for `x`.
    pub fn answer(&self, x: i64) -> i64 {
        self.0.iter().fold(x, |x, (sign, k)| match sign {
            '+' => x + k,
            '-' => x - k,
            _ => x * k,
        })
    }

    /// The chain as written in the task: `x + 3 * 2`, from left to right.
    pub fn words(&self) -> String {
        self.0.iter().fold("x".to_owned(), |text, (sign, k)| format!("{text} {sign} {k}"))
    }

    /// The chain in a sentence: `Add 3 to x, then multiply by 2.`
    pub fn prose(&self) -> String {
        let step = |(place, (sign, k)): (usize, &(char, i64))| match (sign, place) {
            ('+', 0) => format!("Add {k} to x"),
            ('-', 0) => format!("Subtract {k} from x"),
            (_, 0) => format!("Multiply x by {k}"),
            ('+', _) => format!(", then add {k}"),
            ('-', _) => format!(", then subtract {k}"),
            _ => format!(", then multiply by {k}"),
        };
        let steps: String = self.0.iter().enumerate().map(step).collect();
        format!("{steps}.")
    }

    /// The right expression, in the format of an answer: ` ( x + 3 ) * 2`.
    pub fn expression(&self) -> String {
        let mut text = String::from(" x");
        for (place, (sign, k)) in self.0.iter().enumerate() {
            // Only a product after a sum needs brackets.
            if *sign == '*' && place > 0 && self.0[place - 1].0 != '*' {
                text = format!(" ({text} )");
            }
            text.push_str(&format!(" {sign} {k}"));
        }
        text
    }

    /// Similar chains for wrong programs: each differs in one sign.
    pub fn slips(&self) -> Vec<Chain> {
        let slip = |place: usize| {
            let mut slip = self.clone();
            slip.0[place].0 = if slip.0[place].0 == '+' { '-' } else { '+' };
            slip
        };
        (0..self.0.len()).map(slip).collect()
    }
}

/// A program whose function `f` returns `expression`.
pub fn program(expression: &str) -> String {
    format!("def f(x):\n    return ({expression} )\n")
}

/// The expression of a program that [`program`] wrote.
pub fn body(program: &str) -> Option<&str> {
    program.strip_prefix("def f(x):\n    return (")?.strip_suffix(" )\n")
}

/// Limit of nested brackets.
const DEEPEST: u32 = 100;

/// The value of `expression` at `x`; `None` if it is invalid or exceeds 128 bits.
pub fn evaluate(expression: &str, x: i128) -> Option<i128> {
    let mut words = expression.split_whitespace().peekable();
    let value = sum(&mut words, x, 0)?;
    words.next().is_none().then_some(value)
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn sum(words: &mut Words<'_>, x: i128, depth: u32) -> Option<i128> {
    let mut value = product(words, x, depth)?;
    while let Some(sign) = words.next_if(|word| matches!(*word, "+" | "-")) {
        let right = product(words, x, depth)?;
        value = if sign == "+" { value.checked_add(right)? } else { value.checked_sub(right)? };
    }
    Some(value)
}

fn product(words: &mut Words<'_>, x: i128, depth: u32) -> Option<i128> {
    let mut value = factor(words, x, depth)?;
    while words.next_if_eq(&"*").is_some() {
        value = value.checked_mul(factor(words, x, depth)?)?;
    }
    Some(value)
}

fn factor(words: &mut Words<'_>, x: i128, depth: u32) -> Option<i128> {
    if depth > DEEPEST {
        return None;
    }
    match words.next()? {
        "x" => Some(x),
        "+" => factor(words, x, depth + 1),
        "-" => factor(words, x, depth + 1)?.checked_neg(),
        "(" => {
            let value = sum(words, x, depth + 1)?;
            words.next_if_eq(&")").map(|_| value)
        }
        // In Python only zero may begin with a zero.
        word if word.starts_with('0') => word.bytes().all(|digit| digit == b'0').then_some(0),
        word if word.bytes().all(|digit| digit.is_ascii_digit()) => word.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, evaluate};

    #[test]
    fn chains_are_told_and_mistaken() {
        let chain = |signs: &str| Chain(signs.chars().zip(3..).collect());
        let prose = |signs| chain(signs).prose();
        assert_eq!(prose("+-*"), "Add 3 to x, then subtract 4, then multiply by 5.");
        assert_eq!(prose("-+"), "Subtract 3 from x, then add 4.");
        assert_eq!(prose("*"), "Multiply x by 3.");
        assert_eq!(chain("+-*").slips(), ["--*", "++*", "+-+"].map(chain));
    }

    #[test]
    fn expressions_mean_what_they_mean_in_python() {
        for (text, value) in [
            (" x", Some(4)),
            (" ( x + 3 ) * 2", Some(14)),
            (" x + 3 * 2", Some(10)),
            (" 9 - 3 - 2", Some(4)),
            (" - - x * - 2", Some(-8)),
            (" + 00", Some(0)),
            (" 07", None),
            (" x x", None),
            (" x ( 2 )", None),
            (" ( x", None),
            (" x )", None),
            (" ( )", None),
            (" * x", None),
            (" x * * 2", None),
            ("", None),
            (" y", None),
            // A sign is a separate word.
            (" -5", None),
        ] {
            assert_eq!(evaluate(text, 4), value, "{text}");
        }
        assert_eq!(evaluate(&format!(" x{}", " * 9".repeat(60)), 9), None, "beyond 128 bits");
        for (open, close) in [(" (", " )"), (" -", ""), (" +", "")] {
            let nested = |depth| format!("{} x{}", open.repeat(depth), close.repeat(depth));
            let values = [100, 101, 5000].map(|depth| evaluate(&nested(depth), 1));
            assert_eq!(values, [Some(1), None, None], "{open}");
        }
    }
}
