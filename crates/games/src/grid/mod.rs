//! Shared by grid worlds: moves and positions, how agents write them, and the skeleton of a world.
//!
//! - here: moves, positions, and the rewards of the paper's table;
//! - [`world`]: the skeleton (episodes, proposals, tasks, demonstrations); [`walker`]: worlds with a walker;
//! - [`mod@format`]: the action format of each agent; [`compact`], [`prose`], [`words`]: the codecs.

pub mod bounds;
pub mod compact;
pub mod format;
pub mod prose;
pub mod walker;
pub mod words;
pub mod world;

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

pub use format::{ActionFormat, ActionSpace};

/// One of the four steps, in the order of the letters U, D, L, R.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Move {
    Up,
    Down,
    Left,
    Right,
}

impl Move {
    /// All four.
    pub const ALL: [Move; 4] = [Move::Up, Move::Down, Move::Left, Move::Right];

    /// `U`, `D`, `L` or `R`.
    pub fn letter(self) -> char {
        ['U', 'D', 'L', 'R'][self as usize]
    }

    pub fn from_letter(letter: char) -> Option<Move> {
        Move::ALL.into_iter().find(|step| step.letter() == letter)
    }
}

/// A position by column and row, both from 0; row 0 is at the top. Written `c1`: column c, row 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// Row, first in reading order.
    pub row: u8,
    pub column: u8,
}

impl Position {
    /// Parses `c1`: a lower-case letter and a row number without leading zero.
    pub fn parse(text: &str) -> Option<Position> {
        let bytes = text.as_bytes();
        let column = bytes.first().filter(|byte| byte.is_ascii_lowercase())? - b'a';
        let row = match bytes[1..] {
            [digit] if digit.is_ascii_digit() => digit - b'0',
            [b'1'..=b'2', digit] if digit.is_ascii_digit() => (bytes[1] - b'0') * 10 + digit - b'0',
            _ => return None,
        };
        Some(Position { row, column })
    }

    /// The position one step away, possibly off the board; `None` left of column a or above row 0.
    pub fn step(self, step: Move) -> Option<Position> {
        let Position { row, column } = self;
        Some(match step {
            Move::Up => Position { row: row.checked_sub(1)?, column },
            Move::Down => Position { row: row + 1, column },
            Move::Left => Position { row, column: column.checked_sub(1)? },
            Move::Right => Position { row, column: column + 1 },
        })
    }

    /// The step that leads from here to `next`, if they are neighbors.
    pub fn step_to(self, next: Position) -> Option<Move> {
        Move::ALL.into_iter().find(|step| self.step(*step) == Some(next))
    }

    /// Manhattan distance.
    pub fn apart(self, other: Position) -> u8 {
        self.row.abs_diff(other.row) + self.column.abs_diff(other.column)
    }

    /// Its image under one of the eight symmetries of a square whose last row and column is `last`.
    pub fn image(self, last: u8, symmetry: u8) -> Position {
        let Position { mut row, mut column } = self;
        if symmetry & 1 != 0 {
            std::mem::swap(&mut row, &mut column);
        }
        if symmetry & 2 != 0 {
            row = last - row;
        }
        if symmetry & 4 != 0 {
            column = last - column;
        }
        Position { row, column }
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

impl Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", char::from(b'a' + self.column), self.row)
    }
}

impl TryFrom<String> for Position {
    type Error = String;

    fn try_from(text: String) -> Result<Position, String> {
        Position::parse(&text).ok_or_else(|| {
            format!("'{text}' is no cell: a column letter and a row number, a0 at the top left")
        })
    }
}

impl From<Position> for String {
    fn from(position: Position) -> String {
        position.to_string()
    }
}

/// An action that was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<S = Move> {
    /// The steps, as far as a route connects.
    pub steps: Vec<S>,
    /// True if every cell of a route is adjacent to the previous one; always true for other actions.
    pub connected: bool,
}

impl<S> Parsed<S> {
    /// Steps that are not a route; `None` if there are none.
    pub fn steps(steps: Vec<S>) -> Option<Parsed<S>> {
        (!steps.is_empty()).then_some(Parsed { steps, connected: true })
    }
}

/// An agent's local reward in the table of Stronger-MAS (arXiv 2510.11062, appendix A.1), in [0, 1]: `.1
/// format + .1 legal + .8 main`. Tenths are summed as whole numbers, because .1 + .1 + .8 exceeds 1 in
/// binary.
pub fn local_reward(format: bool, legal: bool, main: f64) -> f64 {
    (f64::from(format) + f64::from(legal) + 8.0 * main) / 10.0
}
