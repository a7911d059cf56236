//! The Sudoku board: units, digits, clues, and the effect of placing a digit.
//!
//! Boards are digits in reading order, 0 for an empty cell. Clues never change. A digit that the team has
//! placed may be replaced, and is removed when a clashing digit is placed. So a board never has a clash, and
//! every mistake can be corrected.

/// Sides that a board can have.
pub const SIZES: [usize; 2] = [4, 9];

/// Digits in reading order, 0 for an empty cell.
pub type Board = Vec<u8>;

/// The geometry of a board: `size` × `size` cells in boxes of `√size` × `√size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    size: usize,
    band: usize,
}

/// One digit for one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the cell in the order of reading.
    pub cell: usize,
    /// The digit, 1 to the size; any other value is illegal.
    pub digit: u8,
}

impl Shape {
    /// The shape with `size` cells a side, if it is one of [`SIZES`].
    pub fn new(size: usize) -> Option<Shape> {
        let band = [2, 3].into_iter().find(|band| band * band == size)?;
        Some(Shape { size, band })
    }

    /// Cells a side, which is also the greatest digit.
    pub fn size(self) -> usize {
        self.size
    }

    /// Cells a side of a box.
    pub fn band(self) -> usize {
        self.band
    }

    /// Cells of a board.
    pub fn cells(self) -> usize {
        self.size * self.size
    }

    /// Row, column and box of a cell, each from 0.
    pub fn units(self, cell: usize) -> (usize, usize, usize) {
        let (row, column) = (cell / self.size, cell % self.size);
        (row, column, row / self.band * self.band + column / self.band)
    }

    /// Returns true if two different cells share a row, a column or a box.
    pub fn peers(self, left: usize, right: usize) -> bool {
        let ((a, b, c), (x, y, z)) = (self.units(left), self.units(right));
        left != right && (a == x || b == y || c == z)
    }

    /// The cells that clash with `digit` in `cell`.
    pub fn clashes(self, board: &[u8], cell: usize, digit: u8) -> impl Iterator<Item = usize> {
        (0..self.cells()).filter(move |other| board[*other] == digit && self.peers(cell, *other))
    }

    /// Reads a board written as digits, with `.` or `0` for an empty cell.
    pub fn parse(self, text: &str) -> Option<Board> {
        let board: Option<Board> = text
            .bytes()
            .map(|byte| match byte {
                b'.' => Some(0),
                b'0'..=b'9' if usize::from(byte - b'0') <= self.size => Some(byte - b'0'),
                _ => None,
            })
            .collect();
        board.filter(|board| board.len() == self.cells())
    }

    /// Returns true if every row, column and box holds every digit, by counting, without the solution.
    pub fn complete(self, board: &[u8]) -> bool {
        let mut seen = vec![0_u16; 3 * self.size];
        for (cell, digit) in board.iter().enumerate() {
            let (row, column, square) = self.units(cell);
            for unit in [row, self.size + column, 2 * self.size + square] {
                seen[unit] |= 1 << digit;
            }
        }
        let all = (1_u16 << (self.size + 1)) - 2;
        seen.iter().all(|digits| *digits == all)
    }
}

/// A board as digits, `.` for an empty cell.
pub fn write(board: &[u8]) -> String {
    board.iter().map(|digit| if *digit == 0 { '.' } else { char::from(b'0' + digit) }).collect()
}

/// Places digits in order until the first illegal one, and drops the rest; returns false if there was one. A
/// placement is illegal if its cell is a clue, if it clashes with a clue, or if the digit does not exist.
pub fn place(shape: Shape, clues: &[u8], board: &mut [u8], placements: &[Placement]) -> bool {
    for Placement { cell, digit } in placements.iter().copied() {
        let known = (1..=shape.size()).contains(&usize::from(digit)) && cell < shape.cells();
        if !known || clues[cell] != 0 || shape.clashes(clues, cell, digit).next().is_some() {
            return false;
        }
        for (other, there) in board.iter_mut().enumerate() {
            if *there == digit && shape.peers(cell, other) {
                *there = 0;
            }
        }
        board[cell] = digit;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(text: &str) -> Vec<u8> {
        Shape::new(4).unwrap().parse(text).unwrap()
    }

    /// The board after `(cell, digit)` pairs, and whether all were legal.
    fn placed(before: &str, pairs: &[(usize, u8)]) -> (String, bool) {
        let clues = board("1...............");
        let mut board = board(before);
        let placements: Vec<Placement> =
            pairs.iter().map(|(cell, digit)| Placement { cell: *cell, digit: *digit }).collect();
        let legal = place(Shape::new(4).unwrap(), &clues, &mut board, &placements);
        (write(&board), legal)
    }

    #[test]
    fn clues_stay_and_fills_give_way() {
        let start = "1...............";
        assert_eq!(placed(start, &[(1, 2), (15, 1)]), ("12.............1".to_owned(), true));
        // A clue cannot be replaced or contradicted, and the rest is dropped.
        assert_eq!(placed(start, &[(0, 2), (1, 2)]), (start.to_owned(), false));
        assert_eq!(placed(start, &[(1, 2), (5, 1), (2, 3)]), ("12..............".to_owned(), false));
        assert_eq!(placed(start, &[(1, 5)]), (start.to_owned(), false));
        assert_eq!(placed(start, &[(1, 0)]), (start.to_owned(), false));
        assert_eq!(placed(start, &[(16, 1)]), (start.to_owned(), false));
        // Digits placed by the team can be replaced, and are removed when they clash.
        assert_eq!(placed("12..............", &[(1, 3)]), ("13..............".to_owned(), true));
        assert_eq!(placed("12............2.", &[(2, 2)]), ("1.2.............".to_owned(), true));
    }

    #[test]
    fn peers_share_a_row_a_column_or_a_box() {
        let shape = Shape::new(9).unwrap();
        let peers = |cell| (0..81).filter(|other| shape.peers(cell, *other)).count();
        assert!((0..81).all(|cell| peers(cell) == 20));
        let small = Shape::new(4).unwrap();
        assert_eq!((0..16).filter(|cell| small.peers(0, *cell)).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 8, 12]);
    }

    #[test]
    fn completeness_is_counted() {
        let shape = Shape::new(4).unwrap();
        assert!(shape.complete(&board("1234341221434321")));
        assert!(!shape.complete(&board("123434122143432.")));
        // A Latin square whose boxes repeat digits.
        assert!(!shape.complete(&board("1234234134124123")));
    }
}
