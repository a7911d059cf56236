//! The prose encoding: a list of moves at the end of an answer, and text shared by prompts.
//!
//! Parsing is lenient: it accepts headings before the list, a code fence around it, words after it, and a
//! missing space after `####`. The last of several answers counts.

use std::fmt::Write as _;

use super::{Move, Parsed};

/// A list of moves: `["L", "L", "U"]`.
pub fn write_moves(moves: &[Move]) -> String {
    let letters: Vec<String> = moves.iter().map(|step| format!("\"{}\"", step.letter())).collect();
    format!("[{}]", letters.join(", "))
}

/// A whole answer: `#### ["L", "L", "U"]`.
pub fn write_answer(moves: &[Move]) -> String {
    format!("#### {}", write_moves(moves))
}

/// Introduces the agent and its decision: `things` on a `board`. `proposal` is `None` without a tool.
pub fn role(agent: &str, proposal: Option<&str>, things: &str, board: &str, advice: &str) -> String {
    match (agent, proposal) {
        ("tool", _) => format!("You are the tool: propose the {things} of this turn. {advice} "),
        (_, None) => format!("You are the planner: decide the {things} of this turn. {advice} "),
        (_, Some(proposal)) => {
            let mut text = String::new();
            // Writing to a String cannot fail.
            let _ = match proposal {
                "" => writeln!(text, "The tool has proposed nothing that can be read."),
                _ => writeln!(text, "The tool proposes: {proposal}"),
            };
            let _ = write!(
                text,
                "You are the planner: check the proposal against the {board}, adopt it or replace it by better {things}, \
                 and decide the {things} of this turn. Reason briefly. "
            );
            text
        }
    }
}

/// The request for moves in a prompt.
pub const ANSWER: &str = "Then write the moves on the last line as one list after ####, for example:\n\
                          #### [\"U\", \"R\", \"R\"]";

/// Reads 1 to `most` moves from an answer in prose.
///
/// The last `####` followed by moves decides: the first list in brackets after it, or a line of bare moves
/// directly after it. Without one, the last list in brackets that contains moves.
pub fn read_moves(text: &str, most: u32) -> Option<Parsed> {
    let parts: Vec<&str> = text.split("####").collect();
    let marked = parts[1..].iter().rev().find_map(|part| lists(part).next().or_else(|| bare(part)));
    let moves = marked.or_else(|| lists(text).last())?;
    Parsed::steps(moves).filter(|parsed| parsed.steps.len() <= most as usize)
}

/// Every list in brackets that contains only moves, in order.
fn lists(text: &str) -> impl Iterator<Item = Vec<Move>> {
    text.split('[').skip(1).filter_map(|rest| sequence(rest.split_once(']')?.0))
}

/// The first line with content besides a code fence and decoration, if it contains only moves.
fn bare(text: &str) -> Option<Vec<Move>> {
    let line = text
        .lines()
        .map(|line| line.trim_matches(|letter: char| !letter.is_alphanumeric()))
        .find(|line| !line.is_empty() && !matches!(*line, "json" | "python" | "text"))?;
    sequence(line)
}

/// Moves separated by commas, spaces or arrows, with or without quotes.
fn sequence(text: &str) -> Option<Vec<Move>> {
    let separator = |letter: char| letter.is_whitespace() || ",;'\"`>-→".contains(letter);
    let mut moves = Vec::new();
    for word in text.split(separator).filter(|word| !word.is_empty()) {
        match word.to_ascii_lowercase().as_str() {
            "up" => moves.push(Move::Up),
            "down" => moves.push(Move::Down),
            "left" => moves.push(Move::Left),
            "right" => moves.push(Move::Right),
            lower if lower.len() == 1 => {
                moves.push(Move::from_letter(lower.to_ascii_uppercase().chars().next()?)?)
            }
            _ => {
                for letter in word.chars() {
                    moves.push(Move::from_letter(letter)?);
                }
            }
        }
    }
    if moves.is_empty() { None } else { Some(moves) }
}

/// Known formats of policies' answers that mean U, R; the plain one first.
pub const READABLE: [(&str, &str); 13] = [
    ("plain", "#### [\"U\", \"R\"]"),
    ("heading before", "#### Step 1\nThe wall is below.\n\n#### [\"U\", \"R\"]"),
    ("words after", "#### [\"U\", \"R\"]\nDone. This avoids [3, 4]."),
    ("code fence", "####\n```json\n[\"U\", \"R\"]\n```"),
    ("no space after ####", "####[\"U\",\"R\"]"),
    ("bracket list without ####", "So I go: ['U', 'R']"),
    ("last answer wins", "#### [\"D\"]\nNo, below is a wall.\n#### [\"U\", \"R\"]"),
    ("no quotes", "#### [U, R]"),
    ("no brackets", "#### U, R"),
    ("run together", "#### UR"),
    ("words for moves", "#### [up, right]"),
    ("bold", "**#### [\"U\", \"R\"]**"),
    ("actions list", "**Actions List**: [\"U\", \"R\"]"),
];
/// Answers that are malformed if a turn has at most three moves.
pub const UNREADABLE: [(&str, &str); 6] = [
    ("empty", ""),
    ("empty list", "#### []"),
    ("no list", "I would go up and then right."),
    ("unknown move", "#### [\"U\", \"X\"]"),
    ("too many moves", "#### [\"U\", \"U\", \"U\", \"U\"]"),
    ("numbers", "#### [1, 2]"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        read_moves(text, 4).map(|reading| reading.steps.iter().map(|step| step.letter()).collect())
    }

    #[test]
    fn answers_are_read_as_a_person_reads_them() {
        for text in [
            "#### [\"U\", \"R\"]",
            "#### Step 1\nThe wall is below.\n#### [\"U\", \"R\"]",
            "#### Answer\n[\"U\", \"R\"]\nDone. I avoided [3, 4].",
            "####\n```json\n[\"U\", \"R\"]\n```",
            "####[\"U\",\"R\"]",
            "First I thought #### [\"D\"], but #### ['U', 'R']",
            "so the answer is [U, R]",
            "#### U, R",
            "#### **UR**",
            "####\n```\nU R\n```\nThat is all.",
            "#### [Up, Right]",
            "**Actions List**: [\"U\", \"R\"]",
            "#### U -> R",
        ] {
            assert_eq!(read(text).as_deref(), Some("UR"), "{text:?}");
        }
    }

    #[test]
    fn texts_without_an_answer_give_none() {
        for text in
            ["", "#### []", "#### [\"X\"]", "go up and then right", "#### [\"U\", 3]", "#### [1, 2]", "####"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
        assert_eq!(read("#### [U, U, U, U, U]"), None, "more moves than a turn has");
    }

    #[test]
    fn hostile_text_is_no_panic() {
        for text in
            ["####[", "[[[[", "]]]]####]", "####\u{0}[\u{200b}]", "#### é", "########[U]", "####`[`U`]`"]
        {
            let _ = read(text);
        }
        assert_eq!(read("########[U]").as_deref(), Some("U"));
    }

    #[test]
    fn answers_are_read_as_they_are_written() {
        let moves = [Move::Left, Move::Up, Move::Down, Move::Right];
        assert_eq!(read(&write_answer(&moves)).as_deref(), Some("LUDR"));
    }
}
