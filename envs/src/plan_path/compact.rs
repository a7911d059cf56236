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
//! What stays the same comes first, so that turns, agents and demonstrations on one board share a prefix. There
//! is no history: the situation says everything. An answer is nothing but its words; anything else is
//! malformed.

use super::map::{Map, Move, Place};
use super::state::{Proposal, Reading};

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

/// A prompt: the agent's name ends it. `proposal` is `None` where there is no tool.
pub fn prompt(preamble: &str, position: Place, proposal: Option<&Proposal>, agent: &str) -> String {
    let shown = proposal.map_or("", |proposal| proposal.text());
    let mut text = String::with_capacity(preamble.len() + shown.len() + agent.len() + 12);
    text.push_str(preamble);
    position.write(&mut text);
    if proposal.is_some() {
        text.push_str(" route");
        text.push_str(shown);
    }
    text.push(' ');
    text.push_str(agent);
    text
}

/// A list of moves as an answer: ` L L U`.
pub fn write_moves(moves: &[Move]) -> String {
    let mut text = String::with_capacity(2 * moves.len());
    for step in moves {
        text.push(' ');
        text.push(step.letter());
    }
    text
}

/// The cells that moves lead over, walls or not, as an answer: ` d3 c3 c2`. Ends where the next one has no
/// name.
pub fn write_route(position: Place, moves: &[Move]) -> String {
    let mut text = String::with_capacity(4 * moves.len());
    let mut place = position;
    for step in moves {
        let Some(next) = place.step(*step) else { break };
        place = next;
        text.push(' ');
        place.write(&mut text);
    }
    text
}

/// Reads 1 to `most` moves.
pub fn read_moves(text: &str, most: u32) -> Option<Reading> {
    let mut moves = Vec::with_capacity(4);
    for word in text.split_ascii_whitespace() {
        let mut letters = word.chars();
        let step = Move::from_letter(letters.next()?)?;
        if letters.next().is_some() || moves.len() as u32 == most {
            return None;
        }
        moves.push(step);
    }
    if moves.is_empty() { None } else { Some(Reading { moves, connected: true }) }
}

/// Reads a route of 1 to `most` cells as the moves it takes, up to the first cell that is no neighbour of the
/// one before it.
pub fn read_route(text: &str, position: Place, most: u32) -> Option<Reading> {
    let mut reading = Reading { moves: Vec::with_capacity(4), connected: true };
    let mut place = position;
    let mut cells = 0;
    for word in text.split_ascii_whitespace() {
        let next = Place::parse(word)?;
        cells += 1;
        if cells > most {
            return None;
        }
        if reading.connected {
            match place.step_to(next) {
                Some(step) => reading.moves.push(step),
                None => reading.connected = false,
            }
            place = next;
        }
    }
    if cells == 0 { None } else { Some(reading) }
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
        assert_eq!(prompt(&preamble, place("e3"), None, "tool"), "walls a0 b2 e2 b3 goal c1 at e3 tool");
        assert_eq!(
            prompt(&preamble, place("e3"), Some(&shown), "planner"),
            "walls a0 b2 e2 b3 goal c1 at e3 route d3 c3 c2 planner"
        );
        assert_eq!(
            prompt(&preamble, place("e3"), Some(&nothing), "planner"),
            "walls a0 b2 e2 b3 goal c1 at e3 route planner"
        );
    }

    #[test]
    fn moves_are_one_to_most_letters_and_nothing_else() {
        let read = |text| read_moves(text, 3).map(|reading| write_moves(&reading.moves));
        assert_eq!(read(" L L U").as_deref(), Some(" L L U"));
        assert_eq!(read("R").as_deref(), Some(" R"));
        for text in ["", " ", " L L U U", " LL", " l", " L c3", " L L <|im_end|>", " Ü"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn routes_are_followed_as_far_as_they_connect() {
        let read = |text| {
            read_route(text, place("e3"), 3).map(|reading| (write_moves(&reading.moves), reading.connected))
        };
        assert_eq!(read(" d3 c3 c2"), Some((" L L U".to_owned(), true)));
        assert_eq!(read(" f3"), Some((" R".to_owned(), true)));
        assert_eq!(read(" d3 b3 a3"), Some((" L".to_owned(), false)));
        assert_eq!(read(" e3"), Some((String::new(), false)));
        for text in ["", " L", " d3 c3 c2 c1", " d3 goal"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
