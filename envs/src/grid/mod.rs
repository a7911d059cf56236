//! What environments on a grid have in common: steps and places, and how agents say where to go.
//!
//! - here: the four moves and the names of cells;
//! - [`words`], [`prose`]: moves and routes as single words, and as lists at the end of an answer in prose;
//! - [`speech`]: which of them an agent uses;
//! - [`test_actions`]: lists of moves for `envs check`.

pub mod prose;
pub mod speech;
pub mod test_actions;
pub mod words;

use std::fmt::{self, Display};

pub use speech::{Language, Speech};

/// One of the four steps, in the order of the letters U, D, L, R.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Move {
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One column to the left.
    Left,
    /// One column to the right.
    Right,
}

impl Move {
    /// All four.
    pub const ALL: [Move; 4] = [Move::Up, Move::Down, Move::Left, Move::Right];

    /// `U`, `D`, `L` or `R`.
    pub fn letter(self) -> char {
        match self {
            Move::Up => 'U',
            Move::Down => 'D',
            Move::Left => 'L',
            Move::Right => 'R',
        }
    }

    /// The move that a letter stands for.
    pub fn from_letter(letter: char) -> Option<Move> {
        Move::ALL.into_iter().find(|step| step.letter() == letter)
    }
}

/// A place by column and row, both from 0; row 0 is at the top. Written `c1`: column c, row 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Row, first in the order of reading.
    pub row: u8,
    /// Column.
    pub column: u8,
}

impl Place {
    /// Reads `c1`: a lower-case letter and a row number without leading zero.
    pub fn parse(text: &str) -> Option<Place> {
        let bytes = text.as_bytes();
        let column = bytes.first().filter(|byte| byte.is_ascii_lowercase())? - b'a';
        let row = match bytes[1..] {
            [digit] if digit.is_ascii_digit() => digit - b'0',
            [b'1'..=b'2', digit] if digit.is_ascii_digit() => (bytes[1] - b'0') * 10 + digit - b'0',
            _ => return None,
        };
        Some(Place { row, column })
    }

    /// The place one step away, also outside of any board; none left of column a or above row 0.
    pub fn step(self, step: Move) -> Option<Place> {
        let Place { row, column } = self;
        Some(match step {
            Move::Up => Place { row: row.checked_sub(1)?, column },
            Move::Down => Place { row: row + 1, column },
            Move::Left => Place { row, column: column.checked_sub(1)? },
            Move::Right => Place { row, column: column + 1 },
        })
    }

    /// The step that leads from here to `next`, if they are neighbours.
    pub fn step_to(self, next: Place) -> Option<Move> {
        Move::ALL.into_iter().find(|step| self.step(*step) == Some(next))
    }

    /// Appends `c1` to a text.
    pub fn write(self, text: &mut String) {
        text.push(char::from(b'a' + self.column));
        if self.row >= 10 {
            text.push(char::from(b'0' + self.row / 10));
        }
        text.push(char::from(b'0' + self.row % 10));
    }
}

impl Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", char::from(b'a' + self.column), self.row)
    }
}

/// An answer that could be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The moves, as far as a route connects.
    pub moves: Vec<Move>,
    /// Every cell of a route is a neighbour of the one before; true for moves.
    pub connected: bool,
}
