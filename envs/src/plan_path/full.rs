//! Plan-Path in prose and a drawn grid, for pretrained language models.
//!
//! Both agents think aloud and end with one list of moves after `####`, as in Stronger-MAS (arXiv 2510.11062);
//! how it is read is told in [`crate::grid::prose`].
//!
//! Left out: in the paper the tool writes a program that prints the moves. Here it proposes the moves in words;
//! no text of a model is run.

use std::fmt::Write;

use super::map::{Map, Place, UNREACHABLE};
use super::state::Proposal;

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
