//! The compact codec: moves and routes as single words, and the ends of prompts.
//!
//! An action is nothing but its words; anything else is malformed.

use super::{Move, Parsed, Position};

/// Moves as an action: ` L L U`.
pub fn write_moves(moves: &[Move]) -> String {
    let mut text = String::with_capacity(2 * moves.len());
    for step in moves {
        text.push(' ');
        text.push(step.letter());
    }
    text
}

/// The cells that moves lead over, walls or not: ` d3 c3 c2`. Ends where the next one has no name.
pub fn write_route(position: Position, moves: &[Move]) -> String {
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
pub fn read_moves(text: &str, most: u32) -> Option<Parsed> {
    let mut moves = Vec::with_capacity(4);
    for word in text.split_ascii_whitespace() {
        let mut letters = word.chars();
        let step = Move::from_letter(letters.next()?)?;
        if letters.next().is_some() || moves.len() as u32 == most {
            return None;
        }
        moves.push(step);
    }
    Parsed::steps(moves)
}

/// Reads a route of 1 to `most` cells as the moves it takes, up to the first cell that is no neighbor of the
/// one before it.
pub fn read_route(text: &str, position: Position, most: u32) -> Option<Parsed> {
    let mut parsed = Parsed { steps: Vec::with_capacity(4), connected: true };
    let mut place = position;
    let mut cells = 0;
    for word in text.split_ascii_whitespace() {
        let next = Position::parse(word)?;
        cells += 1;
        if cells > most {
            return None;
        }
        if parsed.connected {
            match place.step_to(next) {
                Some(step) => parsed.steps.push(step),
                None => parsed.connected = false,
            }
            place = next;
        }
    }
    if cells == 0 { None } else { Some(parsed) }
}

/// The word between a route and its moves.
const MOVES: &str = "moves";

/// A route and its moves in one action: ` d3 c3 c2 moves L L U`.
pub fn write_route_moves(position: Position, moves: &[Move]) -> String {
    format!("{} {MOVES}{}", write_route(position, moves), write_moves(moves))
}

/// Reads a route and moves, each of 1 to `most`. The route has to be one, and only the moves count.
pub fn read_route_moves(text: &str, position: Position, most: u32) -> Option<Parsed> {
    let (route, moves) = text.split_once(MOVES)?;
    read_route(route, position, most)?;
    read_moves(moves, most)
}

/// Ends a prompt: ` route d3 c3 planner`, or ` planner` without a proposal.
pub fn end_prompt(mut text: String, word: &str, proposal: Option<&str>, agent: &str) -> String {
    if let Some(proposal) = proposal {
        text.extend([" ", word, proposal]);
    }
    text.extend([" ", agent]);
    text
}

/// Appends names of cells, each after a space.
pub fn push_positions(text: &mut String, positions: impl IntoIterator<Item = Position>) {
    for position in positions {
        text.push(' ');
        position.write(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Position {
        Position::parse(text).unwrap()
    }

    #[test]
    fn moves_are_one_to_most_letters_and_nothing_else() {
        let read = |text| read_moves(text, 3).map(|reading| write_moves(&reading.steps));
        assert_eq!(read(" L L U").as_deref(), Some(" L L U"));
        assert_eq!(read("R").as_deref(), Some(" R"));
        for text in ["", " ", " L L U U", " LL", " l", " L c3", " L L <|im_end|>", " Ü"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn routes_are_followed_as_far_as_they_connect() {
        let read = |text| {
            read_route(text, place("e3"), 3).map(|reading| (write_moves(&reading.steps), reading.connected))
        };
        assert_eq!(read(" d3 c3 c2"), Some((" L L U".to_owned(), true)));
        assert_eq!(read(" f3"), Some((" R".to_owned(), true)));
        assert_eq!(read(" d3 b3 a3"), Some((" L".to_owned(), false)));
        assert_eq!(read(" e3"), Some((String::new(), false)));
        for text in ["", " L", " d3 c3 c2 c1", " d3 goal"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_route_and_moves_make_one_answer() {
        let read = |text| read_route_moves(text, place("e3"), 3).map(|reading| write_moves(&reading.steps));
        let moves = [Move::Left, Move::Left, Move::Up];
        let answer = write_route_moves(place("e3"), &moves);
        assert_eq!(answer, " d3 c3 c2 moves L L U");
        assert_eq!(read(&answer).as_deref(), Some(" L L U"));
        // What the route says beforehand decides nothing.
        assert_eq!(read(" e2 moves L").as_deref(), Some(" L"));
        for text in
            ["", " L L U", " d3 c3 c2", " d3 moves", " moves L", " d3 moves L moves L", " d3 moves c3"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
