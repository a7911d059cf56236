//! Code tasks for tiny policies: one line of digits, signs and `x`.
//!
//! The task `x + 3 * 2` is read from left to right. The coder answers with a Python expression, ` ( x + 3 ) * 2`, the tester
//! with an input and its output, ` 4 : 1 4`: digits are separate words. After a turn without agreement both see the last
//! expression, the case, and the value of the expression.

use super::expression;
use super::judge::Disagreement;
use super::spec::Test;
use crate::spell;

/// Longest expression, in signs.
const LONGEST: usize = 40;

pub fn prompt(statement: &str, agent: &str, program: Option<&str>, last: Option<&Disagreement>) -> String {
    let mut text = format!("{agent} {statement}");
    if let Some(body) = program.and_then(expression::body) {
        text.push_str(" was");
        text.push_str(body);
    }
    if let Some(Disagreement { case, got, .. }) = last {
        let got = got.as_deref().map_or_else(|| " none".to_owned(), spell);
        text.push_str(&format!(" at{} but{got}", write_case(case)));
    }
    text
}

/// The program in an answer: signs of an expression and nothing else.
pub fn program(text: &str) -> Option<String> {
    let text = text.trim();
    if !text.chars().all(|sign| "0123456789x+-*() ".contains(sign)) {
        return None;
    }
    let apart = |sign: char| if sign.is_ascii_digit() { sign.to_string() } else { format!(" {sign} ") };
    let text: String = text.chars().map(apart).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    (1..=LONGEST).contains(&words.len()).then(|| expression::program(&format!(" {}", words.join(" "))))
}

/// The test case in an answer.
pub fn test_case(text: &str) -> Option<Test> {
    let (input, output) = text.split_once(':')?;
    let number = |text: &str| text.split_whitespace().collect::<String>().parse::<i32>().ok();
    Some(Test {
        input: format!("[{}]", number(input)?),
        output: number(output)?.to_string(),
        ..Test::default()
    })
}

/// An answer of `agent` that stands for a program or a case.
pub fn write_program(program: &str) -> String {
    expression::body(program).unwrap_or_default().to_owned()
}

/// An answer that stands for `case`.
pub fn write_case(case: &Test) -> String {
    format!("{} :{}", spell(case.input.trim_matches(['[', ']'])), spell(&case.output))
}
