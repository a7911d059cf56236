//! The two encodings of Sokoban.
//!
//! Compact: every word is one token of the tiny tokenizer of `policy init --preset tiny`. Cells are a column letter and a
//! row number, a0 at the top left of the outer wall, which is not listed.
//!
//! ```text
//! walls b2 d4 goal d3 box c3 at b4 tool                      =>  c4 c3
//! walls b2 d4 goal d3 box c3 at b4 route b3 c3 planner       =>  U R
//! walls b2 d4 goal d3 box c3 at b4 planner                   =>  U R               (workflow `single`)
//! walls b2 d4 goal d3 box c3 at b4 planner                   =>  b3 c3 moves U R   (`route-moves`)
//! ```
//!
//! Constant parts come first. There is no history: the situation is all there is to know.
//!
//! Full: prose and a drawn grid, for pretrained language models. Agents think aloud and end with a list of moves after
//! `####`, as in Stronger-MAS (arXiv 2510.11062). Left out: in the paper the tool writes a program that prints the moves.

use super::Instance;
use super::level::{Level, Situation};
use crate::grid::{Position, compact, prose};
use environment::settings::Encoding;

/// The level as lines: `#` wall, `-` floor, `.` goal, `$` box, `@` player, `*` box on a goal, `+` player on a goal.
pub fn picture(level: &Level, situation: &Situation) -> String {
    let glyph = |position: Position| {
        let Some(cell) = level.cell(position) else { return '#' };
        let goal = level.goals().contains(&cell);
        match (cell == situation.player, situation.boxes().contains(&cell), goal) {
            (true, _, true) => '+',
            (true, _, false) => '@',
            (_, true, true) => '*',
            (_, true, false) => '$',
            (_, _, true) => '.',
            _ => '-',
        }
    };
    let mut text = String::new();
    for row in 0..level.size() as u8 {
        text.extend((0..level.size() as u8).map(|column| glyph(Position { row, column })));
        text.push('\n');
    }
    text
}

/// What every prompt on a level begins with.
pub fn preamble(level: &Level, encoding: Encoding, moves: u32, turns: u32) -> String {
    if encoding == Encoding::Compact {
        let mut text = String::from("walls");
        compact::push_positions(&mut text, level.walls().iter().copied());
        text.push_str(" goal");
        compact::push_positions(&mut text, level.positions(level.goals()));
        text.push_str(" box");
        return text;
    }
    format!(
        "Sokoban: a player pushes boxes until every box stands on a goal. '#' is a wall, '-' floor, '.' a goal, '$' a box, \
         '@' the player, '*' a box on a goal, '+' the player on a goal. A box is pushed by walking against it, one at a \
         time, if the cell behind it is free; it cannot be pulled. A box in a corner that is no goal can never leave it.\n\
         Moves: U, D, L, R. They are made in order until one is not possible, which drops the rest, or until the level is \
         solved. A turn has at most {moves} moves: a longer list counts as no answer. There are {turns} turns, and each \
         goes on where the one before ended.\n\n"
    )
}

/// A prompt. `proposal` is `None` without a tool.
pub fn prompt(instance: &Instance, situation: &Situation, proposal: Option<&str>, agent: &str) -> String {
    let Instance { level, preamble, episode, .. } = instance;
    if episode.is_compact() {
        let mut text = preamble.clone();
        compact::push_positions(&mut text, level.positions(situation.boxes()));
        text.push_str(" at");
        compact::push_positions(&mut text, [level.position(situation.player)]);
        return compact::end_prompt(text, episode.space.word(), proposal, agent);
    }
    let (on, goals) = (level.on_goals(situation), level.goals().len());
    let role = prose::role(agent, proposal, "moves", "level", "Work out pushes cell by cell.");
    let picture = picture(level, situation);
    format!("{preamble}{picture}\nBoxes on goals: {on} of {goals}.\n\n{role}{}", prose::ANSWER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thing_has_its_sign() {
        let place = |text: &str| Position::parse(text).unwrap();
        let level = Level::new(6, &[place("b2")], &[place("c2"), place("d3")]).unwrap();
        let drawn = |player: &str, boxes: [&str; 2]| {
            let boxes = boxes.map(|text| level.cell(place(text)).unwrap());
            picture(&level, &Situation::new(level.cell(place(player)).unwrap(), &boxes).unwrap())
        };
        assert_eq!(drawn("c2", ["d3", "b4"]), "######\n#----#\n##+--#\n#--*-#\n#$---#\n######\n");
        assert_eq!(drawn("e1", ["b3", "b4"]), "######\n#---@#\n##.--#\n#$-.-#\n#$---#\n######\n");
    }
}
