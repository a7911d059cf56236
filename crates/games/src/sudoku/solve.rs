//! The solver: every solution of a board up to a limit, by trying the cell with the fewest candidates first.

use record::philox::Draws;

use super::board::Shape;

/// Digits already used in rows, columns and boxes, one bit a digit.
struct Search<'a> {
    shape: Shape,
    board: Vec<u8>,
    used: [[u16; 9]; 3],
    limit: usize,
    found: Vec<Vec<u8>>,
    draws: Option<&'a mut Draws>,
}

impl Search<'_> {
    fn toggle(&mut self, cell: usize, digit: u8) {
        let (row, column, square) = self.shape.units(cell);
        for (kind, unit) in [row, column, square].into_iter().enumerate() {
            self.used[kind][unit] ^= 1 << digit;
        }
    }

    fn candidates(&self, cell: usize) -> u16 {
        let (row, column, square) = self.shape.units(cell);
        let used = self.used[0][row] | self.used[1][column] | self.used[2][square];
        ((1_u16 << (self.shape.size() + 1)) - 2) & !used
    }

    fn go(&mut self) {
        let empty = (0..self.shape.cells()).filter(|cell| self.board[*cell] == 0);
        let Some(cell) = empty.min_by_key(|cell| self.candidates(*cell).count_ones()) else {
            self.found.push(self.board.clone());
            return;
        };
        let candidates = self.candidates(cell);
        let mut digits: Vec<u8> =
            (1..=self.shape.size() as u8).filter(|digit| candidates & 1 << digit != 0).collect();
        if let Some(draws) = &mut self.draws {
            draws.shuffle(&mut digits);
        }
        for digit in digits {
            self.board[cell] = digit;
            self.toggle(cell, digit);
            self.go();
            self.toggle(cell, digit);
            self.board[cell] = 0;
            if self.found.len() >= self.limit {
                return;
            }
        }
    }
}

fn search(shape: Shape, board: &[u8], limit: usize, draws: Option<&mut Draws>) -> Vec<Vec<u8>> {
    let mut search =
        Search { shape, board: board.to_vec(), used: [[0; 9]; 3], limit, found: Vec::new(), draws };
    for (cell, digit) in board.iter().enumerate().filter(|(_, digit)| **digit != 0) {
        if search.candidates(cell) & 1 << digit == 0 {
            return Vec::new();
        }
        search.toggle(cell, *digit);
    }
    search.go();
    search.found
}

/// Up to `limit` solutions of a board, in a fixed order; empty for a board with a clash.
pub fn solutions(shape: Shape, board: &[u8], limit: usize) -> Vec<Vec<u8>> {
    search(shape, board, limit, None)
}

/// The solution of a board that has exactly one.
pub fn unique(shape: Shape, board: &[u8]) -> Option<Vec<u8>> {
    let mut solutions = solutions(shape, board, 2);
    if solutions.len() == 1 { solutions.pop() } else { None }
}

/// A complete board by chance.
pub fn random(shape: Shape, draws: &mut Draws) -> Vec<u8> {
    search(shape, &vec![0; shape.cells()], 1, Some(draws)).pop().unwrap_or_default()
}

/// Digits that no peer of an empty cell holds, one bit a digit.
pub fn candidates(shape: Shape, board: &[u8], cell: usize) -> Vec<u8> {
    (1..=shape.size() as u8).filter(|digit| shape.clashes(board, cell, *digit).next().is_none()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_288_boards_of_four() {
        let shape = Shape::new(4).unwrap();
        let all = solutions(shape, &[0; 16], 1000);
        assert_eq!(all.len(), 288);
        assert!(all.iter().all(|board| shape.complete(board)));
    }

    #[test]
    fn a_puzzle_of_nine_has_its_published_solution() {
        // The example of the Wikipedia article on Sudoku.
        let shape = Shape::new(9).unwrap();
        let puzzle = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79";
        let solved = "534678912672195348198342567859761423426853791713924856961537284287419635345286179";
        assert_eq!(unique(shape, &shape.parse(puzzle).unwrap()), shape.parse(solved));
        // Without one of its clues it has several.
        let fewer = puzzle.replacen('5', ".", 1).replacen('3', ".", 1);
        assert_eq!(unique(shape, &shape.parse(&fewer).unwrap()), None);
        let clash = puzzle.replacen("53", "55", 1);
        assert_eq!(solutions(shape, &shape.parse(&clash).unwrap(), 2), Vec::<Vec<u8>>::new());
    }
}
