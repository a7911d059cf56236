//! Plan-Path in prose and a drawn grid, for pretrained language models.
//!
//! Both agents think aloud and end with one list of moves after `####`, as in Stronger-MAS (arXiv 2510.11062).
//! An answer is read as a person would read it: headings before the answer, a code fence around it, words after
//! it and a missing space after `####` do no harm; of several answers the last one counts.
//!
//! Left out: in the paper the tool writes a program that prints the moves. Here it proposes the moves in words;
//! no text of a model is run.

use std::fmt::Write;

use super::map::{Map, Move, Place, UNREACHABLE};
use super::state::{Proposal, Reading};

/// What every prompt on a board begins with: the grid and the rules.
pub fn preamble(map: &Map, moves: u32, turns: u32) -> String {
    let size = map.size();
    let goal = map.place(map.goal());
    let mut text = format!(
        "A walker on a {size}x{size} grid has to reach the goal. '.' is a free cell, '#' a wall, 'G' the goal. \
         Rows are counted from the top, columns from the left, both from 0.\n\n"
    );
    for row in 0..size as u8 {
        for column in 0..size as u8 {
            let place = Place { row, column };
            text.push(match map.cell(place) {
                cell if cell == map.goal() => 'G',
                _ if map.walls().binary_search(&place).is_ok() => '#',
                _ => '.',
            });
        }
        text.push('\n');
    }
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\nGoal: row {}, column {}.\nMoves: U (row - 1), D (row + 1), L (column - 1), R (column + 1). They are made in \
         order until one hits a wall or the edge, which drops the rest, or until the goal. A turn has at most {moves} \
         moves: a longer list counts as no answer. There are {turns} turns, and each goes on where the one before \
         ended.\n",
        goal.row, goal.column
    );
    text
}

const ANSWER: &str = "Then write the moves on the last line as one list after ####, for example:\n\
                      #### [\"U\", \"R\", \"R\"]";

/// A prompt. `proposal` is `None` where there is no tool.
pub fn prompt(preamble: &str, position: Place, proposal: Option<&Proposal>, agent: &str) -> String {
    let mut text = format!("{preamble}Position: row {}, column {}.\n\n", position.row, position.column);
    match (agent, proposal) {
        ("tool", _) => text.push_str(
            "You are the tool: propose the moves of this turn. Work out a shortest path to the goal cell by cell. ",
        ),
        (_, None) => text.push_str(
            "You are the planner: decide the moves of this turn. Work out a shortest path to the goal cell by cell. ",
        ),
        (_, Some(proposal)) => {
            let shown = proposal.text();
            let _ = match shown {
                "" => writeln!(text, "The tool has proposed nothing that can be read."),
                _ => writeln!(text, "The tool proposes: {shown}"),
            };
            text.push_str(
                "You are the planner: check the proposal against the grid, adopt it or replace it by better moves, \
                 and decide the moves of this turn. Reason briefly. ",
            );
        }
    }
    text.push_str(ANSWER);
    text
}

/// A list of moves: `["L", "L", "U"]`.
pub fn write_moves(moves: &[Move]) -> String {
    let letters: Vec<String> = moves.iter().map(|step| format!("\"{}\"", step.letter())).collect();
    format!("[{}]", letters.join(", "))
}

/// A whole answer: `#### ["L", "L", "U"]`.
pub fn write_answer(moves: &[Move]) -> String {
    format!("#### {}", write_moves(moves))
}

/// Reads 1 to `most` moves from an answer in prose.
///
/// The last `####` that moves follow decides: the first list in brackets after it, or a line of bare moves
/// right after it. Without one, the last list in brackets of moves does.
pub fn read_moves(text: &str, most: u32) -> Option<Reading> {
    let parts: Vec<&str> = text.split("####").collect();
    let marked = parts[1..].iter().rev().find_map(|part| lists(part).next().or_else(|| bare(part)));
    let moves = marked.or_else(|| lists(text).last())?;
    if moves.len() > most as usize { None } else { Some(Reading { moves, connected: true }) }
}

/// Every list in brackets that holds moves and nothing else, in order.
fn lists(text: &str) -> impl Iterator<Item = Vec<Move>> {
    text.split('[').skip(1).filter_map(|rest| sequence(rest.split_once(']')?.0))
}

/// The first line with something on it besides a code fence and decoration, if it holds moves and nothing else.
fn bare(text: &str) -> Option<Vec<Move>> {
    let line = text
        .lines()
        .map(|line| line.trim_matches(|letter: char| !letter.is_alphanumeric()))
        .find(|line| !line.is_empty() && !matches!(*line, "json" | "python" | "text"))?;
    sequence(line)
}

/// Moves between commas, spaces or arrows, in quotes or not.
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

/// The board as a person likes to see it, with the walker, and letters and numbers at the sides.
pub fn draw(map: &Map, position: Place) -> String {
    let size = map.size() as u8;
    let mut text = String::from("   ");
    text.extend((0..size).flat_map(|column| [' ', char::from(b'a' + column)]));
    for row in 0..size {
        let _ = write!(text, "\n{row:3}");
        for column in 0..size {
            let place = Place { row, column };
            let cell = map.cell(place);
            text.push(' ');
            text.push(match map.distance(cell) {
                _ if place == position => '@',
                0 => 'G',
                UNREACHABLE if map.walls().binary_search(&place).is_ok() => '#',
                _ => '.',
            });
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        read_moves(text, 4).map(|reading| reading.moves.iter().map(|step| step.letter()).collect())
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
    fn what_is_no_answer_stays_none() {
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
