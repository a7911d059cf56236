//! Moves and routes as single words: the answers of compact texts.
//!
//! An answer is nothing but its words; anything else is malformed.

use super::{Move, Place, Reading};

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

/// The word between a route and the moves that carry it out.
const MOVES: &str = "moves";

/// A route and the moves that carry it out, as one answer: ` d3 c3 c2 moves L L U`.
pub fn write_route_moves(position: Place, moves: &[Move]) -> String {
    format!("{} {MOVES}{}", write_route(position, moves), write_moves(moves))
}

/// Reads a route and moves, each of 1 to `most`. The route has to be one, and only the moves count.
pub fn read_route_moves(text: &str, position: Place, most: u32) -> Option<Reading> {
    let (route, moves) = text.split_once(MOVES)?;
    read_route(route, position, most)?;
    read_moves(moves, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        Place::parse(text).unwrap()
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

    #[test]
    fn a_route_and_moves_make_one_answer() {
        let read = |text| read_route_moves(text, place("e3"), 3).map(|reading| write_moves(&reading.moves));
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
