//! The two encodings of Plan-Path.
//!
//! Compact: every word is one token of the tiny tokenizer of `policy init --preset tiny`.
//!
//! ```text
//! walls a0 b2 e2 b3 goal c1 at e3 tool                      =>  d3 c3 c2
//! walls a0 b2 e2 b3 goal c1 at e3 route d3 c3 c2 planner    =>  L L U
//! walls a0 b2 e2 b3 goal c1 at e3 moves L L U planner       =>  L L U                    (`--set proposal=moves`)
//! walls a0 b2 e2 b3 goal c1 at e3 planner                   =>  L L U                    (workflow `single`)
//! walls a0 b2 e2 b3 goal c1 at e3 planner                   =>  d3 c3 c2 moves L L U     (workflow `route-moves`)
//! ```
//!
//! Constant parts come first, so that turns, agents and demonstrations on one board share a prefix. There is
//! no history: the situation is all there is to know.
//!
//! Full: prose and a drawn grid, for pretrained language models. Agents think aloud and end with a list of moves after
//! `####`, as in Stronger-MAS (arXiv 2510.11062). Left out: in the paper the tool writes a program that prints the moves.
//! Short prompts of levels ask for a word for each move ([`crate::grid::words`]).

use std::fmt::Write as _;

use super::Instance;
use super::map::{Map, Position, UNREACHABLE};
use crate::grid::{compact, prose};
use environment::settings::Encoding;

/// What every prompt on a board begins with.
pub fn preamble(map: &Map, encoding: Encoding, moves: u32, turns: u32) -> String {
    let goal = map.position(map.goal());
    if encoding == Encoding::Compact {
        let mut text = String::from("walls");
        compact::push_positions(&mut text, map.walls().iter().copied());
        text.push_str(" goal");
        compact::push_positions(&mut text, [goal]);
        text.push_str(" at");
        return text;
    }
    let size = map.size();
    let mut text = format!(
        "A walker on a {size}x{size} grid has to reach the goal. '.' is a free cell, '#' a wall, 'G' the goal. \
         Rows are counted from the top, columns from the left, both from 0.\n\n"
    );
    text.push_str(&rows(map, None));
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

/// What every short prompt in prose begins with, on any board.
pub fn brief_preamble(moves: u32) -> String {
    format!(
        "Lead the walker @ to the goal G. # is a wall. Moves: up, down, left, right. Answer with at most {moves} moves, one \
         word for each, for example: up, right.\n"
    )
}

/// The board with the walker, what the tool proposes, and where the goal lies, which a small model answers to.
fn brief(instance: &Instance, position: Position, proposal: Option<&str>) -> String {
    let (map, goal) = (&instance.map, instance.map.position(instance.map.goal()));
    let mut text = instance.preamble.clone() + &rows(map, Some(position));
    let ways = [
        (position.row.saturating_sub(goal.row), "up"),
        (goal.row.saturating_sub(position.row), "down"),
        (position.column.saturating_sub(goal.column), "left"),
        (goal.column.saturating_sub(position.column), "right"),
    ];
    let ways: Vec<String> =
        ways.iter().filter(|(cells, _)| *cells > 0).map(|(cells, way)| format!("{cells} {way}")).collect();
    match proposal {
        None => {}
        Some("") => text.push_str("There was no answer.\n"),
        Some(proposal) => text.push_str(&format!("Check this answer: {proposal}.\n")),
    }
    text.push_str(&format!("The goal is {}.", ways.join(" and ")));
    text
}

/// The board, a line for each row, with the walker if it is given.
fn rows(map: &Map, walker: Option<Position>) -> String {
    let size = map.size() as u8;
    let row = |row| (0..size).map(move |column| glyph(map, Position { row, column }, walker)).chain(['\n']);
    (0..size).flat_map(row).collect()
}

fn glyph(map: &Map, position: Position, walker: Option<Position>) -> char {
    if walker == Some(position) {
        return '@';
    }
    match map.distance(map.cell(position)) {
        0 => 'G',
        UNREACHABLE if map.walls().binary_search(&position).is_ok() => '#',
        _ => '.',
    }
}

/// A prompt. `proposal` is `None` without a tool.
pub fn prompt(instance: &Instance, position: Position, proposal: Option<&str>, agent: &str) -> String {
    let (preamble, episode) = (&instance.preamble, &instance.episode);
    if episode.is_compact() {
        let mut text = preamble.clone();
        compact::push_positions(&mut text, [position]);
        return compact::end_prompt(text, episode.space.word(), proposal, agent);
    }
    if episode.brief {
        return brief(instance, position, proposal.filter(|_| agent != "tool"));
    }
    let advice = "Work out a shortest path to the goal cell by cell.";
    let role = prose::role(agent, proposal, "moves", "grid", advice);
    let Position { row, column } = position;
    format!("{preamble}Position: row {row}, column {column}.\n\n{role}{}", prose::ANSWER)
}

/// The board as a person likes to see it, with the walker, and letters and numbers at the sides.
pub fn picture(map: &Map, walker: Position) -> String {
    let size = map.size() as u8;
    let mut text = String::from("   ");
    text.extend((0..size).flat_map(|column| [' ', char::from(b'a' + column)]));
    for row in 0..size {
        let _ = write!(text, "\n{row:3}");
        text.extend((0..size).flat_map(|column| [' ', glyph(map, Position { row, column }, Some(walker))]));
    }
    text.push('\n');
    text
}
