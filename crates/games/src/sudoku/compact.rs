//! The compact encoding of Sudoku: every word is one token of the tiny tokenizer of `policy init --preset tiny`. A board is read row by row: a clue
//! is its digit, an empty cell 0, a digit that the team has filled in has an x before it. Cells are a column
//! letter and a row number, a0 at the top left:
//!
//! ```text
//! sudoku 1 2 0 4 x3 4 1 2 2 1 4 3 4 0 2 0 tool                      =>  c0 3 b3 3
//! sudoku 1 2 0 4 x3 4 1 2 2 1 4 3 4 0 2 0 fill c0 3 b3 3 planner    =>  c0 3 b3 3
//! sudoku 1 2 0 4 x3 4 1 2 2 1 4 3 4 0 2 0 planner                   =>  c0 3 b3 3     (workflow `single`)
//! ```
//!
//! There is no history: the board is all there is to know. An action is nothing but its words; anything else is
//! malformed.

use super::board::{Placement, Shape};
use crate::grid::Position;
use crate::grid::compact::end_prompt;

/// A prompt: the agent's name ends it. `proposal` is `None` without a tool.
pub fn prompt(clues: &[u8], board: &[u8], proposal: Option<&str>, agent: &str) -> String {
    let mut text = String::with_capacity(3 * board.len() + 32);
    text.push_str("sudoku");
    for (clue, digit) in clues.iter().zip(board) {
        text.push_str(if *clue == 0 && *digit != 0 { " x" } else { " " });
        text.push(char::from(b'0' + digit));
    }
    end_prompt(text, "fill", proposal, agent)
}

/// Placements as an answer: ` c0 3 b3 3`.
pub fn write(shape: Shape, placements: &[Placement]) -> String {
    let mut text = String::with_capacity(5 * placements.len());
    for Placement { cell, digit } in placements {
        text.push(' ');
        Position { row: (cell / shape.size()) as u8, column: (cell % shape.size()) as u8 }.write(&mut text);
        text.push(' ');
        text.push(char::from(b'0' + digit));
    }
    text
}

/// Reads up to `most` placements.
pub fn read(shape: Shape, text: &str, most: u32) -> Option<Vec<Placement>> {
    let mut words = text.split_ascii_whitespace();
    let mut placements = Vec::with_capacity(4);
    while let Some(word) = words.next() {
        let position = Position::parse(word)?;
        let (row, column) = (usize::from(position.row), usize::from(position.column));
        let digit = match words.next()?.as_bytes() {
            [digit @ b'1'..=b'9'] => digit - b'0',
            _ => return None,
        };
        if row >= shape.size() || column >= shape.size() || placements.len() as u32 == most {
            return None;
        }
        placements.push(Placement { cell: row * shape.size() + column, digit });
    }
    Some(placements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_every_kind() {
        let shape = Shape::new(4).unwrap();
        let clues = shape.parse("12.4.41221434.2.").unwrap();
        let board = shape.parse("12.4341221434.2.").unwrap();
        let begin = "sudoku 1 2 0 4 x3 4 1 2 2 1 4 3 4 0 2 0";
        assert_eq!(prompt(&clues, &board, None, "tool"), format!("{begin} tool"));
        assert_eq!(prompt(&clues, &board, Some(" c0 3"), "planner"), format!("{begin} fill c0 3 planner"));
        assert_eq!(prompt(&clues, &board, Some(""), "planner"), format!("{begin} fill planner"));
    }

    #[test]
    fn answers_are_one_to_most_placements_and_nothing_else() {
        let shape = Shape::new(4).unwrap();
        let read = |text| {
            read(shape, text, 2)
                .filter(|placements| !placements.is_empty())
                .map(|placements| write(shape, &placements))
        };
        assert_eq!(read(" c0 3 b3 3").as_deref(), Some(" c0 3 b3 3"));
        assert_eq!(read("d3 9").as_deref(), Some(" d3 9"));
        for text in
            ["", " ", " c0", " c0 0", " c0 x3", " e0 1", " a4 1", " 3 c0", " a0 1 a1 2 a2 3", " a0 11"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
