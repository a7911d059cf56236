//! Tasks for tiny policies: a number goes through two or three operations from left to right, and the program is an
//! expression with the brackets that this takes.
//!
//! What a policy of a few hundred thousand parameters can learn here is where brackets go and how small numbers are
//! added and multiplied; it does not learn to program, and nothing of this carries over to the tasks in prose. It is
//! there so that the roles, the rewards and the loop can be trained and tested on a laptop.

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
