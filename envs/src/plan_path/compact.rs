//! Plan-Path in as few words as it takes, for policies of a few hundred thousand parameters.
//!
//! Every word is one token of the tiny tokenizer of `policy init --preset tiny`:
//!
//! ```text
//! walls a0 b2 e2 b3 goal c1 at e3 tool                      =>  d3 c3 c2
//! walls a0 b2 e2 b3 goal c1 at e3 route d3 c3 c2 planner    =>  L L U
//! walls a0 b2 e2 b3 goal c1 at e3 planner                   =>  L L U       (workflow `single`)
//! ```
//!
//! Two controls say whether a gain comes from the second agent or from the language that it speaks. With
//! `--set proposal=moves` the tool speaks the planner's own; in the workflow `route-moves` a planner without tool says
//! both in one answer, and only the moves count:
//!
//! ```text
//! walls a0 b2 e2 b3 goal c1 at e3 tool                      =>  L L U
//! walls a0 b2 e2 b3 goal c1 at e3 moves L L U planner       =>  L L U
//! walls a0 b2 e2 b3 goal c1 at e3 planner                   =>  d3 c3 c2 moves L L U
//! ```
//!
//! What stays the same comes first, so that turns, agents and demonstrations on one board share a prefix. There
//! is no history: the situation says everything. An answer is nothing but its words; anything else is
//! malformed.

use super::map::{Map, Place};
use super::state::Proposal;
use crate::grid::Language;

/// What every prompt on a board begins with.
pub fn preamble(map: &Map) -> String {
    let mut text = String::with_capacity(24 + 4 * map.walls().len());
    text.push_str("walls");
    for wall in map.walls() {
        text.push(' ');
        wall.write(&mut text);
    }
    text.push_str(" goal ");
    map.place(map.goal()).write(&mut text);
    text.push_str(" at ");
    text
}

/// A prompt: the agent's name ends it. `proposal` is `None` where there is no tool, and otherwise in `language`.
pub fn prompt(
    preamble: &str,
    position: Place,
    language: Language,
    proposal: Option<&Proposal>,
    agent: &str,
) -> String {
    let shown = proposal.map_or("", |proposal| proposal.text());
    let mut text = String::with_capacity(preamble.len() + shown.len() + agent.len() + 12);
    text.push_str(preamble);
    position.write(&mut text);
    if proposal.is_some() {
        text.push(' ');
        text.push_str(language.word());
        text.push_str(shown);
    }
    text.push(' ');
    text.push_str(agent);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        Place::parse(text).unwrap()
    }

    #[test]
    fn prompts_of_every_kind() {
        let walls = ["a0", "b2", "e2", "b3"].map(place);
        let map = Map::new(5, &walls, place("c1"));
        let preamble = preamble(&map);
        let shown = Proposal::new(" d3 c3 c2");
        let nothing = Proposal::new("");
        let prompt = |language, proposal, agent| prompt(&preamble, place("e3"), language, proposal, agent);
        let start = "walls a0 b2 e2 b3 goal c1 at e3";
        assert_eq!(prompt(Language::Cells, None, "tool"), format!("{start} tool"));
        assert_eq!(
            prompt(Language::Cells, Some(&shown), "planner"),
            format!("{start} route d3 c3 c2 planner")
        );
        assert_eq!(prompt(Language::Cells, Some(&nothing), "planner"), format!("{start} route planner"));
        let shown = Proposal::new(" L L U");
        assert_eq!(prompt(Language::Moves, Some(&shown), "planner"), format!("{start} moves L L U planner"));
    }
}
