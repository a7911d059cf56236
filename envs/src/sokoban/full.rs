//! Sokoban in prose and a drawn grid, for pretrained language models.
//!
//! Both agents think aloud and end with one list of moves after `####`, as in Stronger-MAS (arXiv 2510.11062); how
//! it is read is told in [`crate::grid::prose`].
//!
//! Left out: in the paper the tool writes a program that prints the moves. Here it proposes the moves in words; no
//! text of a model is run.

use std::fmt::Write;

use super::level::{Level, Situation};
use crate::grid::Place;

/// The level as lines: `#` wall, `-` floor, `.` goal, `$` box, `@` player, `*` box on a goal, `+` player on a goal.
pub fn draw(level: &Level, situation: &Situation) -> String {
    let mut text = String::new();
    for row in 0..level.size() as u8 {
        for column in 0..level.size() as u8 {
            let glyph = match level.cell(Place { row, column }) {
                None => '#',
                Some(cell) => {
                    let goal = level.goals().contains(&cell);
                    match (cell == situation.player, situation.boxes().contains(&cell)) {
                        (true, _) => {
                            if goal {
                                '+'
                            } else {
                                '@'
                            }
                        }
                        (_, true) => {
                            if goal {
                                '*'
                            } else {
                                '$'
                            }
                        }
                        _ => {
                            if goal {
                                '.'
                            } else {
                                '-'
                            }
                        }
                    }
                }
            };
            text.push(glyph);
        }
        text.push('\n');
    }
    text
}

/// What every prompt begins with: the rules.
pub fn preamble(moves: u32, turns: u32) -> String {
    format!(
        "Sokoban: a player pushes boxes until every box stands on a goal. '#' is a wall, '-' floor, '.' a goal, '$' a box, \
         '@' the player, '*' a box on a goal, '+' the player on a goal. A box is pushed by walking against it, one at a \
         time, if the cell behind it is free; it cannot be pulled. A box in a corner that is no goal can never leave it.\n\
         Moves: U, D, L, R. They are made in order until one is not possible, which drops the rest, or until the level is \
         solved. A turn has at most {moves} moves: a longer list counts as no answer. There are {turns} turns, and each \
         goes on where the one before ended.\n\n"
    )
}

/// A prompt. `proposal` is `None` where there is no tool.
pub fn prompt(
    preamble: &str,
    level: &Level,
    situation: &Situation,
    proposal: Option<&str>,
    agent: &str,
) -> String {
    let on = level.on_goals(situation);
    let mut text =
        format!("{preamble}{}\nBoxes on goals: {on} of {}.\n\n", draw(level, situation), level.goals().len());
    match (agent, proposal) {
        ("tool", _) => {
            text.push_str("You are the tool: propose the moves of this turn. Work out pushes cell by cell. ")
        }
        (_, None) => text
            .push_str("You are the planner: decide the moves of this turn. Work out pushes cell by cell. "),
        (_, Some(proposal)) => {
            // Writing to a String cannot fail.
            let _ = match proposal {
                "" => writeln!(text, "The tool has proposed nothing that can be read."),
                _ => writeln!(text, "The tool proposes: {proposal}"),
            };
            text.push_str(
                "You are the planner: check the proposal against the level, adopt it or replace it by better moves, and \
                 decide the moves of this turn. Reason briefly. ",
            );
        }
    }
    text.push_str("Then write the moves on the last line as one list after ####, for example:\n#### [\"U\", \"R\", \"R\"]");
    text
}
