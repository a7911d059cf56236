//! The board of Plan-Path: free cells and walls, a goal, and every cell's distance to it.
//!
//! Cells are stored with a wall around the board, so that a step is an addition and a look-up of the
//! distance, without bounds checks. Distances are computed once per board and shared by all its states.

pub use crate::grid::{Move, Position};

/// Longest side of a board, because columns are single letters.
pub const LARGEST: usize = 26;
/// The distance of walls, and of cells that cannot reach the goal.
pub const UNREACHABLE: u16 = u16::MAX;

/// The index of a cell in a [`Map`], the wall around the board included.
pub type Cell = u16;

/// A board with its goal.
#[derive(Clone, Debug)]
pub struct Map {
    size: usize,
    goal: Cell,
    distances: Box<[u16]>,
    walls: Box<[Position]>,
}

impl Map {
    /// A board of `size` × `size` cells, `2 ≤ size ≤` [`LARGEST`]. `walls`, in reading order, and `goal` lie
    /// on it; the goal is not a wall.
    pub fn new(size: usize, walls: &[Position], goal: Position) -> Map {
        let stride = size + 2;
        let mut distances = vec![UNREACHABLE; stride * stride].into_boxed_slice();
        let mut free = [false; (LARGEST + 2) * (LARGEST + 2)];
        for row in 1..=size {
            free[row * stride + 1..=row * stride + size].fill(true);
        }
        for wall in walls {
            free[index(stride, *wall)] = false;
        }
        let goal = index(stride, goal);
        let mut queue = [0_u16; LARGEST * LARGEST];
        queue[0] = goal as u16;
        distances[goal] = 0;
        free[goal] = false;
        let (mut head, mut tail) = (0, 1);
        while head < tail {
            let cell = usize::from(queue[head]);
            head += 1;
            for next in [cell - stride, cell + stride, cell - 1, cell + 1] {
                if free[next] {
                    free[next] = false;
                    distances[next] = distances[cell] + 1;
                    queue[tail] = next as u16;
                    tail += 1;
                }
            }
        }
        Map { size, goal: goal as Cell, distances, walls: walls.into() }
    }

    /// Cells a side.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The walls in the order of reading.
    pub fn walls(&self) -> &[Position] {
        &self.walls
    }

    pub fn goal(&self) -> Cell {
        self.goal
    }

    /// Returns true if a place lies on the board.
    pub fn holds(&self, place: Position) -> bool {
        usize::from(place.row) < self.size && usize::from(place.column) < self.size
    }

    /// The cell of a place on the board.
    pub fn cell(&self, place: Position) -> Cell {
        index(self.size + 2, place) as Cell
    }

    /// The place of a cell on the board.
    pub fn position(&self, cell: Cell) -> Position {
        let (cell, stride) = (usize::from(cell), self.size + 2);
        Position { row: (cell / stride - 1) as u8, column: (cell % stride - 1) as u8 }
    }

    /// Length of a shortest path from a cell to the goal, or [`UNREACHABLE`].
    #[inline]
    pub fn distance(&self, cell: Cell) -> u16 {
        self.distances[usize::from(cell)]
    }

    /// The cell one step away; it may be a wall.
    #[inline]
    pub fn neighbor(&self, cell: Cell, step: Move) -> Cell {
        let stride = (self.size + 2) as Cell;
        match step {
            Move::Up => cell - stride,
            Move::Down => cell + stride,
            Move::Left => cell - 1,
            Move::Right => cell + 1,
        }
    }

    /// All cells that can reach the goal, including the goal, in reading order.
    pub fn reachable(&self) -> impl Iterator<Item = Cell> + '_ {
        (0..self.distances.len()).filter(|cell| self.distances[*cell] != UNREACHABLE).map(|cell| cell as Cell)
    }

    /// The first of the steps U, D, L, R that comes nearer to the goal; `None` at the goal
    /// or if it is unreachable.
    pub fn nearer(&self, cell: Cell) -> Option<Move> {
        let distance = self.distance(cell);
        Move::ALL.into_iter().find(|step| self.distance(self.neighbor(cell, *step)) < distance)
    }
}

fn index(stride: usize, place: Position) -> usize {
    (usize::from(place.row) + 1) * stride + usize::from(place.column) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Position {
        Position::parse(text).unwrap()
    }

    #[test]
    fn places_are_written_as_they_are_read() {
        for text in ["a0", "e3", "j9", "z25", "a10"] {
            let mut written = String::new();
            place(text).write(&mut written);
            assert_eq!((written.as_str(), place(text).to_string().as_str()), (text, text));
        }
        for text in ["", "a", "3", "A0", "a00", "a30", "a100", "aa", "é1", "a-1"] {
            assert_eq!(Position::parse(text), None, "{text}");
        }
    }

    /// ```text
    /// #....
    /// ..G..
    /// .#..#
    /// .#..@
    /// #.##.
    /// ```
    #[test]
    fn distances_go_round_walls() {
        let walls: Vec<Position> = ["a0", "b2", "e2", "b3", "a4", "c4", "d4"].map(place).to_vec();
        let map = Map::new(5, &walls, place("c1"));
        let distance = |text| map.distance(map.cell(place(text)));
        assert_eq!(distance("c1"), 0);
        assert_eq!(distance("e3"), 4);
        assert_eq!(distance("e4"), 5);
        assert_eq!(distance("a3"), 4);
        assert_eq!(distance("b4"), UNREACHABLE);
        assert_eq!(distance("b2"), UNREACHABLE);
        assert_eq!(map.nearer(map.cell(place("e3"))), Some(Move::Left));
        assert_eq!(map.nearer(map.goal()), None);
        assert_eq!(map.nearer(map.cell(place("b4"))), None, "no way leads anywhere");
        assert_eq!(map.reachable().count(), 17);
        assert_eq!(map.position(map.cell(place("e3"))), place("e3"));
    }

    #[test]
    fn a_board_ends_at_its_sides() {
        let map = Map::new(5, &[], place("c1"));
        let held = ["a0", "e4", "e0", "a4", "f0", "a5", "f4", "e5", "z25"].map(|text| map.holds(place(text)));
        assert_eq!(held, [true, true, true, true, false, false, false, false, false]);
    }

    #[test]
    fn the_largest_board_fits() {
        let corner = Position { row: 25, column: 25 };
        let map = Map::new(LARGEST, &[], corner);
        assert_eq!(map.distance(map.cell(Position { row: 0, column: 0 })), 50);
    }
}
