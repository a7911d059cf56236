//! Generated word problems of arithmetic: a quantity, and what happens to it step by step.
//!
//! A story is a chain of integers and the four operations, evaluated from left to right like on a pocket
//! calculator. Running totals are integers from 0 to a limit, and divisions have no remainder. The number of
//! steps is its level. A chain is told in few words for tiny policies, and in sentences for pretrained ones.
//!
//! Left out: problems that need more than arithmetic; those come from files.

use record::philox::Draws;

use crate::spell;

/// Largest divisor; for tiny policies also the largest start and operand of a sum or difference.
pub const DIGIT: u32 = 9;

/// One of the four operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
}

const OPERATIONS: [Operation; 4] =
    [Operation::Add, Operation::Subtract, Operation::Multiply, Operation::Divide];

impl Operation {
    pub fn sign(self) -> &'static str {
        self.words().0
    }

    /// Its sign, and its words in a short story.
    fn words(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Operation::Add => ("+", &["gets", "buys"]),
            Operation::Subtract => ("-", &["loses", "gives"]),
            Operation::Multiply => ("*", &["times"]),
            Operation::Divide => ("/", &["shares"]),
        }
    }

    /// Its result; `None` if that is not a non-negative integer, or is too large.
    pub fn apply(self, left: u64, right: u64) -> Option<u64> {
        match self {
            Operation::Add => left.checked_add(right),
            Operation::Subtract => left.checked_sub(right),
            Operation::Multiply => left.checked_mul(right),
            Operation::Divide => (right != 0 && left.is_multiple_of(right)).then(|| left / right),
        }
    }
}

/// A chain of operations, evaluated from left to right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The initial number.
    pub start: u64,
    pub steps: Vec<(Operation, u64)>,
}

impl Chain {
    /// The totals after each step; `None` if one is not a non-negative integer.
    pub fn totals(&self) -> Option<Vec<u64>> {
        let mut total = self.start;
        self.steps
            .iter()
            .map(|(operation, operand)| {
                total = operation.apply(total, *operand)?;
                Some(total)
            })
            .collect()
    }

    /// Its result.
    pub fn value(&self) -> Option<u64> {
        self.totals().map(|totals| totals.last().copied().unwrap_or(self.start))
    }

    /// A chain of `steps` steps with totals up to `largest`; `operand` limits the start, and operands
    /// of sums and differences.
    pub fn draw(steps: u32, largest: u32, operand: u32, draws: &mut Draws) -> Chain {
        Chain::draw_of(&OPERATIONS, steps, largest, operand, draws)
    }

    /// Draws a sum or a difference.
    pub fn draw_sum(largest: u32, operand: u32, draws: &mut Draws) -> Chain {
        Chain::draw_of(&OPERATIONS[..2], 1, largest, operand, draws)
    }

    fn draw_of(kinds: &[Operation], steps: u32, largest: u32, operand: u32, draws: &mut Draws) -> Chain {
        let start = 1 + draws.below(operand.min(largest));
        let mut chain = Chain { start: start.into(), steps: Vec::new() };
        let mut total = start;
        for _ in 0..steps {
            let choices: Vec<(Operation, Vec<u32>)> = kinds
                .iter()
                .map(|kind| (*kind, operands(*kind, total, largest, operand)))
                .filter(|(_, operands)| !operands.is_empty())
                .collect();
            let Some((operation, operands)) = draws.choose(&choices) else { break };
            let Some(operand) = draws.choose(operands).copied() else { break };
            total = operation.apply(total.into(), operand.into()).unwrap_or(0) as u32;
            chain.steps.push((*operation, operand.into()));
        }
        chain
    }

    /// The chain in digits and signs, each a word: ` 7 + 5 * 1 2`. Numbers of several
    /// digits are several words.
    pub fn write(&self) -> String {
        let mut text = spell(&self.start.to_string());
        for (operation, operand) in &self.steps {
            text.push(' ');
            text.push_str(operation.words().0);
            text.push_str(&spell(&operand.to_string()));
        }
        text
    }

    /// One line of Python that prints the result: `print((7 + 5) * 2)`.
    pub fn program(&self) -> String {
        let mut text = self.start.to_string();
        for (place, (operation, operand)) in self.steps.iter().enumerate() {
            let sign = if *operation == Operation::Divide { "//" } else { operation.words().0 };
            text = if place == 0 { text } else { format!("({text})") };
            text.push_str(&format!(" {sign} {operand}"));
        }
        format!("print({text})")
    }

    /// Parses the output of [`Chain::write`], strictly.
    pub fn read(text: &str) -> Option<Chain> {
        Chain::between(text, |operation, word| operation.words().0 == word)
    }

    /// Parses numbers with a word for an operation between each two.
    fn between(text: &str, spells: impl Fn(Operation, &str) -> bool) -> Option<Chain> {
        let (mut numbers, mut operations, mut open) = (Vec::new(), Vec::new(), false);
        for word in text.split_ascii_whitespace() {
            if let Some(digit) = digit(word) {
                if !open {
                    numbers.push(0);
                    open = true;
                }
                let last: &mut u64 = numbers.last_mut()?;
                *last = last.checked_mul(10)?.checked_add(digit)?;
            } else {
                operations.push(OPERATIONS.into_iter().find(|operation| open && spells(*operation, word))?);
                open = false;
            }
        }
        let (start, operands) = numbers.split_first().filter(|_| open)?;
        Some(Chain { start: *start, steps: operations.into_iter().zip(operands.iter().copied()).collect() })
    }

    /// A short story: `has 7 gets 5 loses 3`. Synonyms are drawn at random.
    pub fn tell_shortly(&self, draws: &mut Draws) -> String {
        let mut text = format!("has{}", spell(&self.start.to_string()));
        for (operation, operand) in &self.steps {
            text.push(' ');
            text.push_str(draws.choose(operation.words().1).copied().unwrap_or_default());
            text.push_str(&spell(&operand.to_string()));
        }
        text
    }

    /// Reads a short story.
    pub fn read_shortly(text: &str) -> Option<Chain> {
        Chain::between(text.strip_prefix("has ")?, |operation, word| operation.words().1.contains(&word))
    }

    /// A sum or difference as a question.
    pub fn ask(&self, draws: &mut Draws) -> String {
        let (operation, operand) = self.steps.first().copied().unwrap_or((Operation::Add, 0));
        let questions = match operation {
            Operation::Add => ["What is {n} plus {k}?", "What is {n} + {k}?"],
            _ => ["What is {n} minus {k}?", "What is {n} - {k}?"],
        };
        let question = draws.choose(&questions).copied().unwrap_or_default();
        question.replace("{n}", &self.start.to_string()).replace("{k}", &operand.to_string())
    }

    /// A story in sentences, with a random person and random things to count.
    pub fn tell(&self, draws: &mut Draws) -> String {
        const NAMES: [&str; 8] = ["Ada", "Bruno", "Chidi", "Dara", "Elif", "Farid", "Greta", "Hana"];
        const THINGS: [&str; 8] =
            ["apples", "pencils", "marbles", "stamps", "shells", "cards", "buttons", "beads"];
        let name = draws.choose(&NAMES).copied().unwrap_or_default();
        let things = draws.choose(&THINGS).copied().unwrap_or_default();
        let mut text = format!("{name} has {} {things}.", self.start);
        for (operation, operand) in &self.steps {
            let sentences = match operation {
                Operation::Add => [" A friend brings {k} more.", " Then {name} buys {k} more."],
                Operation::Subtract => [" {name} loses {k} of them.", " Then {name} gives {k} away."],
                Operation::Multiply => [
                    " Overnight the number of {things} becomes {k} times as large.",
                    " {name} trades every one of them for {k} others of the same kind.",
                ],
                Operation::Divide => [
                    " {name} shares them equally among {k} people, {name} included, and keeps one share.",
                    " {name} puts them into {k} equal boxes and keeps a single box.",
                ],
            };
            let sentence = sentences[draws.below(2) as usize].replace("{k}", &operand.to_string());
            text.push_str(&sentence.replace("{name}", name).replace("{things}", things));
        }
        text + &format!(" How many {things} does {name} have now?")
    }
}

fn operands(operation: Operation, total: u32, largest: u32, most: u32) -> Vec<u32> {
    let (least, most) = match operation {
        Operation::Add | Operation::Subtract => (1, most),
        Operation::Multiply => (2, 5),
        Operation::Divide => (2, DIGIT),
    };
    let fits = |operand: &u32| {
        operation.apply(total.into(), (*operand).into()).is_some_and(|result| result <= largest.into())
            // Do not multiply or divide 0, which teaches nothing.
            && (total > 0 || operation == Operation::Add)
    };
    (least..=most).filter(fits).collect()
}

/// The digit that `word` is.
pub fn digit(word: &str) -> Option<u64> {
    match word.as_bytes() {
        [byte @ b'0'..=b'9'] => Some(u64::from(byte - b'0')),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use record::philox::{Part, Stream};

    use super::*;

    #[test]
    fn chains_are_told_and_read_back() {
        let mut draws = Draws::new(Stream::named(1, &[Part::Text("story")]));
        for round in 0..2000 {
            let chain = Chain::draw(1 + round % 6, 30, DIGIT, &mut draws);
            assert_eq!(chain.steps.len() as u32, 1 + round % 6);
            assert!(chain.totals().unwrap().iter().all(|total| *total <= 30), "{chain:?}");
            assert_eq!(Chain::read(&chain.write()), Some(chain.clone()));
            assert_eq!(Chain::read_shortly(&chain.tell_shortly(&mut draws)), Some(chain.clone()));
            assert!(chain.tell(&mut draws).ends_with(" have now?"));
        }
    }

    #[test]
    fn chains_are_worked_out_from_left_to_right() {
        let value = |text: &str| Chain::read(text).and_then(|chain| chain.value());
        assert_eq!(value(" 2 + 3 * 4"), Some(20));
        assert_eq!(value(" 1 2 / 4 - 3"), Some(0));
        assert_eq!(value(" 7"), Some(7));
        for text in ["", " +", " 7 +", " + 7", " 7 7 + + 1", " 7 : 1", " 12", " 7 - 8", " 7 / 2", " 7 / 0"] {
            assert_eq!(value(text), None, "{text:?}");
        }
        assert_eq!(value(&" 9".repeat(100)), None);
    }
}
