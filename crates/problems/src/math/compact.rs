//! Math in few words, for policies of a few hundred thousand parameters.
//!
//! Every word is one token of the tiny tokenizer of `policy init --preset tiny`, and a number is a word a digit:
//!
//! ```text
//! has 7 gets 5 loses 3 ask reasoner                                      =>  = 1 2 = 9
//! has 7 gets 5 loses 3 ask tool                                          =>  7 + 5 - 3
//! has 7 gets 5 loses 3 ask reasoner = 1 2 = 9 tool = 9 reasoner          =>  = 9            (after a turn)
//! ```
//!
//! A reasoner writes running totals; the last one is its answer. A tool writes a chain of arithmetic, which is computed for
//! it: the others are shown the result. Anything else is malformed.

use super::message::AgentMessage;
use super::story::{Chain, digit};
use crate::spell;

/// A prompt: the role of `agent` ends it. `said` is what each agent said last, with its name.
pub fn prompt<'a>(
    problem: &str,
    said: impl Iterator<Item = (&'a str, &'a AgentMessage)>,
    agent: &str,
) -> String {
    let mut text = format!("{problem} ask");
    for (name, said) in said {
        // `reasoner-2` is ` reasoner 2`.
        text.push_str(&format!(" {}{}", name.replace('-', " "), said.shown));
    }
    format!("{text} {}", agent.split('-').next().unwrap_or(agent))
}

/// Running totals as an answer: ` = 1 2 = 9`.
pub fn write_totals(totals: &[u64]) -> String {
    totals.iter().map(|total| format!(" ={}", spell(&total.to_string()))).collect()
}

/// The last of at least one running total.
pub fn read_totals(text: &str) -> Option<u64> {
    let mut last = None;
    let mut digits_seen = true;
    for word in text.split_ascii_whitespace() {
        if word == "=" {
            if !digits_seen {
                return None;
            }
            last = Some(0_u64);
            digits_seen = false;
        } else {
            let digit = digit(word)?;
            last = Some(last?.checked_mul(10)?.checked_add(digit)?);
            digits_seen = true;
        }
    }
    last.filter(|_| digits_seen)
}

/// What a tool's chain comes to: whether it is a chain, and its value if it has one.
pub fn compute(text: &str) -> (bool, Option<u64>) {
    match Chain::read(text) {
        None => (false, None),
        Some(chain) => (true, chain.value()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_as_they_are_written() {
        assert_eq!(read_totals(&write_totals(&[12, 9])), Some(9));
        assert_eq!(read_totals(" = 1 0 3"), Some(103));
        for text in ["", " =", " 9", " = 9 =", " = = 9", " = 9 ask", " = 12", " = x"] {
            assert_eq!(read_totals(text), None, "{text:?}");
        }
        assert_eq!(read_totals(&format!(" = {}", "9 ".repeat(40))), None);
    }
}
