//! Sokoban in as few words as it takes, for policies of a few hundred thousand parameters.
//!
//! Every word is one token of the tiny tokenizer of `policy init --preset tiny`. Cells are a column letter and a row
//! number, a0 at the top left of the outer wall, which is not named:
//!
//! ```text
//! walls b2 d4 goal d3 box c3 at b4 tool                      =>  c4 c3
//! walls b2 d4 goal d3 box c3 at b4 route b3 c3 planner       =>  U R
//! walls b2 d4 goal d3 box c3 at b4 planner                   =>  U R               (workflow `single`)
//! walls b2 d4 goal d3 box c3 at b4 planner                   =>  b3 c3 moves U R   (`route-moves`)
//! ```
//!
//! What stays the same comes first. There is no history: the situation says everything. An answer is nothing but
//! its words; anything else is malformed.

use super::level::{Level, Situation};
use crate::grid::Language;

/// What every prompt on a level begins with.
pub fn preamble(level: &Level) -> String {
    let mut text = String::from("walls");
    for wall in level.walls() {
        text.push(' ');
        wall.write(&mut text);
    }
    text.push_str(" goal");
    for goal in level.goals() {
        text.push(' ');
        level.place(*goal).write(&mut text);
    }
    text.push_str(" box");
    text
}

/// A prompt: the agent's name ends it. `proposal` is `None` where there is no tool, and otherwise in `language`.
pub fn prompt(
    preamble: &str,
    level: &Level,
    situation: &Situation,
    language: Language,
    proposal: Option<&str>,
    agent: &str,
) -> String {
    let mut text = String::with_capacity(preamble.len() + 48);
    text.push_str(preamble);
    for cell in situation.boxes() {
        text.push(' ');
        level.place(*cell).write(&mut text);
    }
    text.push_str(" at ");
    level.place(situation.player).write(&mut text);
    if let Some(proposal) = proposal {
        text.push(' ');
        text.push_str(language.word());
        text.push_str(proposal);
    }
    text.push(' ');
    text.push_str(agent);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Place;

    #[test]
    fn prompts_of_every_kind() {
        let place = |text: &str| Place::parse(text).unwrap();
        let level = Level::new(6, &[place("b2"), place("d4")], &[place("d3")]).unwrap();
        let cell = |text: &str| level.cell(place(text)).unwrap();
        let situation = Situation::new(cell("b4"), &[cell("c3")]).unwrap();
        let preamble = preamble(&level);
        let prompt =
            |language, proposal, agent| prompt(&preamble, &level, &situation, language, proposal, agent);
        let start = "walls b2 d4 goal d3 box c3 at b4";
        assert_eq!(prompt(Language::Cells, None, "tool"), format!("{start} tool"));
        assert_eq!(
            prompt(Language::Cells, Some(" b3 c3"), "planner"),
            format!("{start} route b3 c3 planner")
        );
        assert_eq!(prompt(Language::Moves, Some(" U R"), "planner"), format!("{start} moves U R planner"));
        assert_eq!(prompt(Language::Cells, Some(""), "planner"), format!("{start} route planner"));
    }
}
