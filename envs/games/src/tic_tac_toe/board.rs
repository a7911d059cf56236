//! The rules of Tic-Tac-Toe, and what every position is worth under perfect play.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::grid::Position;

const LINES: [[usize; 3]; 8] =
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];

/// The cells in reading order: `x`, `o`, or `.` where it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Board(pub [u8; 9]);

impl Board {
    pub fn parse(text: &str) -> Option<Board> {
        let cells: [u8; 9] = text.as_bytes().try_into().ok()?;
        cells.iter().all(|cell| b"xo.".contains(cell)).then_some(Board(cells))
    }

    pub fn write(&self) -> String {
        self.0.map(char::from).iter().collect()
    }

    pub fn empty(&self) -> Vec<usize> {
        (0..9).filter(|cell| self.0[*cell] == b'.').collect()
    }

    pub fn with(mut self, cell: usize, mark: u8) -> Board {
        self.0[cell] = mark;
        self
    }

    fn is_won(&self) -> bool {
        let is = |cell: &usize, other: &usize| self.0[*cell] == self.0[*other] && self.0[*cell] != b'.';
        LINES.iter().any(|[a, b, c]| is(a, b) && is(b, c))
    }

    /// Returns true if somebody has won, or no cell is empty.
    pub fn is_over(&self) -> bool {
        self.is_won() || self.empty().is_empty()
    }

    /// What the position is worth to `mark`, who moves next, by minimax: 1 win, 0 draw, -1 loss.
    pub fn value(&self, mark: u8) -> i8 {
        thread_local!(static VALUES: RefCell<HashMap<(Board, u8), i8>> = RefCell::default());
        if let Some(known) = VALUES.with_borrow(|values| values.get(&(*self, mark)).copied()) {
            return known;
        }
        let moves = || self.empty().into_iter().map(|cell| self.value_of(cell, mark));
        // Only the opponent, who moved last, can have won.
        let value = if self.is_won() { -1 } else { moves().max().unwrap_or(0) };
        VALUES.with_borrow_mut(|values| values.insert((*self, mark), value));
        value
    }

    /// What marking `cell` is worth to `mark`.
    pub fn value_of(&self, cell: usize, mark: u8) -> i8 {
        -self.with(cell, mark).value(if mark == b'x' { b'o' } else { b'x' })
    }

    /// The perfect moves of `mark`, those first that end the game.
    pub fn best(&self, mark: u8) -> Vec<usize> {
        let mut best = self.empty();
        best.retain(|cell| self.value_of(*cell, mark) == self.value(mark));
        best.sort_by_key(|cell| !self.with(*cell, mark).is_over());
        best
    }

    /// The least of its eight mirror images and rotations.
    pub fn canonical(&self) -> Board {
        let image = |symmetry| {
            let mut image = *self;
            (0..9).for_each(|cell| image.0[cell_at(position(cell).image(2, symmetry))] = self.0[cell]);
            image
        };
        (0..8).map(image).min().unwrap_or(*self)
    }
}

pub fn position(cell: usize) -> Position {
    Position { row: cell as u8 / 3, column: cell as u8 % 3 }
}

pub fn cell_at(position: Position) -> usize {
    usize::from(position.row) * 3 + usize::from(position.column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(text: &str) -> Board {
        Board::parse(text).unwrap()
    }

    #[test]
    fn values_are_those_of_the_known_game() {
        assert_eq!((board(".........").value(b'x'), board(".........").best(b'x').len()), (0, 9));
        assert_eq!((board("xx.oo....").value(b'o'), board("xx.oo....").best(b'o')[0]), (1, 5));
        let blunder = board("xo.......");
        assert_eq!((blunder.value(b'x'), blunder.value_of(blunder.best(b'x')[0], b'x')), (1, 1));
        assert_eq!(board("x.x......").value(b'o'), -1);
    }

    #[test]
    fn images_share_their_canonical_form() {
        assert_eq!(board("x...o....").canonical(), board("..x.o....").canonical());
        assert_ne!(board("x...o....").canonical(), board(".x..o....").canonical());
    }
}
