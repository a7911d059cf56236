//! Tasks for tiny policies: a number goes through two or three operations from left to right, and the program is an
//! expression with the brackets that this takes.
//!
//! What a policy of a few hundred thousand parameters can learn here is where brackets go and how small numbers are
//! added and multiplied; it does not learn to program, and nothing of this carries over to the tasks in prose. It is
//! there so that the roles, the rewards and the loop can be trained and tested on a laptop.
//!
//! An expression is computed right here, not in the sandbox: it is a program by name only, of numbers, `x`, three
//! operations and brackets, read and computed by [`evaluate`], which does nothing else. It means what it means in Python.

use record::philox::Draws;

/// Constants are one digit, from 2 on.
const MOST: u32 = 9;

/// An operation on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Adds.
    Plus(i64),
    /// Takes away.
    Minus(i64),
    /// Multiplies.
    Times(i64),
}

impl Operation {
    fn apply(self, x: i64) -> i64 {
        match self {
            Operation::Plus(k) => x + k,
            Operation::Minus(k) => x - k,
            Operation::Times(k) => x * k,
        }
    }

    fn text(self) -> String {
        match self {
            Operation::Plus(k) => format!(" + {k}"),
            Operation::Minus(k) => format!(" - {k}"),
            Operation::Times(k) => format!(" * {k}"),
        }
    }
}

/// A task: what is done to x, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(pub Vec<Operation>);

impl Chain {
    /// A chain of `length` operations.
    pub fn draw(length: usize, draws: &mut Draws) -> Chain {
        let operation = |draws: &mut Draws| {
            let k = 2 + i64::from(draws.below(MOST - 1));
            [Operation::Plus(k), Operation::Minus(k), Operation::Times(k)][draws.below(3) as usize]
        };
        Chain((0..length).map(|_| operation(draws)).collect())
    }

    /// The answer for `x`.
    pub fn answer(&self, x: i64) -> i64 {
        self.0.iter().fold(x, |x, operation| operation.apply(x))
    }

    /// The chain as the task says it: `x + 3 * 2`, from left to right.
    pub fn words(&self) -> String {
        format!("x{}", self.careless())
    }

    /// The right expression, in the style of an answer: ` ( x + 3 ) * 2`.
    pub fn expression(&self) -> String {
        let mut text = String::from(" x");
        for (place, operation) in self.0.iter().enumerate() {
            // A product after a sum is the only place that needs brackets: the rest reads from left to right.
            let after_sum = place > 0 && !matches!(self.0[place - 1], Operation::Times(_));
            if after_sum && matches!(operation, Operation::Times(_)) {
                text = format!(" ({text} )");
            }
            text.push_str(&operation.text());
        }
        text
    }

    /// The operations copied without brackets.
    pub fn careless(&self) -> String {
        self.0.iter().map(|operation| operation.text()).collect()
    }

    /// Chains that are easily taken for this one: each has a constant that is off by one or another sign.
    pub fn slips(&self) -> Vec<Chain> {
        let mut slips = Vec::new();
        for place in 0..self.0.len() {
            let mut one = self.0.clone();
            one[place] = match one[place] {
                Operation::Plus(k) => Operation::Minus(k),
                Operation::Minus(k) => Operation::Plus(k),
                Operation::Times(k) => Operation::Plus(k),
            };
            slips.push(Chain(one));
        }
        slips
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

/// Brackets inside brackets.
const DEEPEST: u32 = 100;

/// The value of `expression` at `x`; `None` for what is no expression or leaves 128 bits.
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
        // Python takes no number that begins with a zero for one, but zero itself.
        word if word.bytes().all(|sign| sign.is_ascii_digit()) => (word.trim_start_matches('0') == word
            || word.bytes().all(|sign| sign == b'0'))
        .then(|| word.parse().ok())
        .flatten(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::evaluate;

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
        ] {
            assert_eq!(evaluate(text, 4), value, "{text}");
        }
        assert_eq!(evaluate(&format!(" x{}", " * 9".repeat(60)), 9), None, "beyond 128 bits");
        assert_eq!(evaluate(&" (".repeat(5000), 1), None);
        assert_eq!(evaluate(&" -".repeat(5000), 1), None);
    }
}
