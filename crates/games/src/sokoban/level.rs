//! A Sokoban level, and the exact number of moves from every situation to a solution.
//!
//! Levels are small enough to solve completely. A breadth-first search runs backwards from every solved
//! situation, with moves and with pulls instead of pushes, and finds the distance of each solvable situation.
//! All others are deadlocks. The table is built once per level and shared by all its states;
//! [`LARGEST_TABLE`] limits its size.

use crate::grid::{Move, Position};

/// Longest side, including the outer wall; cell indices must fit a byte.
pub const LARGEST: usize = 17;
/// Most boxes of a level.
pub const MOST_BOXES: usize = 6;
/// Limit of situations of a level: combinations of box cells times player cells.
pub const LARGEST_TABLE: usize = 4_000_000;
/// The distance of unsolvable situations.
pub const DEAD: u16 = u16::MAX;
const NOWHERE: u8 = u8::MAX;

/// Index of a free cell, in the order of reading.
pub type Cell = u8;

/// The positions of the player and the boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Situation {
    /// The player's cell.
    pub player: Cell,
    boxes: [Cell; MOST_BOXES],
    count: u8,
}

impl Situation {
    /// A situation; `None` if two boxes share a cell, the player stands on a box, or there are too many
    /// boxes.
    pub fn new(player: Cell, boxes: &[Cell]) -> Option<Situation> {
        let mut sorted = [NOWHERE; MOST_BOXES];
        sorted.get_mut(..boxes.len())?.copy_from_slice(boxes);
        sorted.sort_unstable();
        let apart = sorted[..boxes.len()].windows(2).all(|pair| pair[0] != pair[1]);
        (apart && !boxes.contains(&player)).then_some(Situation {
            player,
            boxes: sorted,
            count: boxes.len() as u8,
        })
    }

    /// The cells of the boxes, in order.
    pub fn boxes(&self) -> &[Cell] {
        &self.boxes[..usize::from(self.count)]
    }

    fn with(&self, player: Cell, from: Cell, to: Cell) -> Situation {
        let mut boxes = self.boxes;
        for cell in boxes.iter_mut().filter(|cell| **cell == from) {
            *cell = to;
        }
        boxes.sort_unstable();
        Situation { player, boxes, count: self.count }
    }
}

/// A level: free cells, goals, and all distances.
#[derive(Debug)]
pub struct Level {
    size: usize,
    free: Vec<Position>,
    cells: Vec<Cell>,
    neighbors: Vec<[Cell; 4]>,
    goals: Vec<Cell>,
    walls: Vec<Position>,
    distances: Vec<u16>,
}

/// The number of ways to choose `some` of `all` cells.
fn choose(all: usize, some: usize) -> usize {
    (0..some).fold(1, |product, step| product.saturating_mul(all.saturating_sub(step)) / (step + 1))
}

/// Number of situations of a level with `free` free cells and `boxes` boxes.
pub fn table_size(free: usize, boxes: usize) -> usize {
    choose(free, boxes).saturating_mul(free)
}

/// Returns true if a level with `free` free cells and `boxes` boxes is small enough for the solver.
pub fn fits(free: usize, boxes: usize) -> bool {
    table_size(free, boxes) <= LARGEST_TABLE
}

impl Level {
    /// A level of `size` × `size` cells with a wall around it, and more walls inside; it is solved when
    /// every goal has a box. `None` if a goal is not a free cell or is named twice, or if the table would be
    /// larger than [`LARGEST_TABLE`].
    pub fn new(size: usize, walls: &[Position], goals: &[Position]) -> Option<Level> {
        let inside = 1..size.checked_sub(1)? as u8;
        let mut free = Vec::new();
        let mut cells = vec![NOWHERE; size * size];
        for row in inside.clone() {
            for column in inside.clone() {
                let place = Position { row, column };
                if !walls.contains(&place) {
                    cells[usize::from(row) * size + usize::from(column)] = free.len() as Cell;
                    free.push(place);
                }
            }
        }
        let boxes = goals.len();
        if boxes == 0 || boxes > MOST_BOXES || size > LARGEST || !fits(free.len(), boxes) {
            return None;
        }
        let mut level = Level {
            size,
            neighbors: Vec::new(),
            goals: Vec::new(),
            walls: walls.to_vec(),
            distances: vec![DEAD; table_size(free.len(), boxes)],
            free,
            cells,
        };
        let beside = |place: &Position| {
            Move::ALL.map(|step| place.step(step).and_then(|next| level.cell(next)).unwrap_or(NOWHERE))
        };
        level.neighbors = level.free.iter().map(beside).collect();
        let mut on = goals.iter().map(|goal| level.cell(*goal)).collect::<Option<Vec<Cell>>>()?;
        on.sort_unstable();
        if on.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        level.goals = on;
        level.solve();
        Some(level)
    }

    /// Cells a side, the outer wall included.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The goals, in order.
    pub fn goals(&self) -> &[Cell] {
        &self.goals
    }

    /// The walls inside the rim.
    pub fn walls(&self) -> &[Position] {
        &self.walls
    }

    /// Number of free cells.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The free cell at a place.
    pub fn cell(&self, place: Position) -> Option<Cell> {
        let (row, column) = (usize::from(place.row), usize::from(place.column));
        let inside = row < self.size && column < self.size;
        inside.then(|| self.cells[row * self.size + column]).filter(|cell| *cell != NOWHERE)
    }

    /// Where a free cell is.
    pub fn position(&self, cell: Cell) -> Position {
        self.free[usize::from(cell)]
    }

    /// Where free cells are.
    pub fn positions(&self, cells: &[Cell]) -> Vec<Position> {
        cells.iter().map(|cell| self.position(*cell)).collect()
    }

    /// The situation after a move; `None` if the move is illegal: into a wall, or
    /// against a box that cannot move.
    pub fn step(&self, situation: &Situation, step: Move) -> Option<Situation> {
        let next = self.neighbors[usize::from(situation.player)][step as usize];
        if next == NOWHERE {
            return None;
        }
        if !situation.boxes().contains(&next) {
            return Some(Situation { player: next, ..*situation });
        }
        let beyond = self.neighbors[usize::from(next)][step as usize];
        if beyond == NOWHERE || situation.boxes().contains(&beyond) {
            return None;
        }
        Some(situation.with(next, next, beyond))
    }

    /// How many boxes stand on goals.
    pub fn on_goals(&self, situation: &Situation) -> usize {
        situation.boxes().iter().filter(|cell| self.goals.contains(cell)).count()
    }

    /// The number of moves of a shortest solution, or [`DEAD`] if there is none.
    pub fn distance(&self, situation: &Situation) -> u16 {
        self.distances[self.index(situation)]
    }

    /// The moves that come nearer to a solution, and the resulting situations.
    pub fn nearer(&self, situation: &Situation) -> impl Iterator<Item = (Move, Situation)> {
        let distance = self.distance(situation);
        let situation = *situation;
        Move::ALL
            .into_iter()
            .filter_map(move |step| Some((step, self.step(&situation, step)?)))
            .filter(move |(_, next)| distance != DEAD && self.distance(next) < distance)
    }

    /// All solvable situations with their distances, in a fixed order.
    pub fn solvable(&self) -> impl Iterator<Item = (Situation, u16)> {
        let free = self.free.len();
        let distances = self.distances.iter().enumerate().filter(|(_, distance)| **distance != DEAD);
        distances
            .map(move |(index, distance)| (self.situation(index / free, (index % free) as Cell), *distance))
    }

    /// Index in the table: the rank of the boxes among all combinations, then the player.
    fn index(&self, situation: &Situation) -> usize {
        let boxes = situation.boxes().iter().enumerate();
        let rank: usize = boxes.map(|(order, cell)| choose(usize::from(*cell), order + 1)).sum();
        rank * self.free.len() + usize::from(situation.player)
    }

    /// The inverse of [`Level::index`].
    fn situation(&self, mut rank: usize, player: Cell) -> Situation {
        let count = self.goals.len();
        let mut boxes = [NOWHERE; MOST_BOXES];
        for order in (0..count).rev() {
            let cell = (0..self.free.len()).rev().find(|cell| choose(*cell, order + 1) <= rank).unwrap_or(0);
            rank -= choose(cell, order + 1);
            boxes[order] = cell as Cell;
        }
        Situation { player, boxes, count: count as u8 }
    }

    /// Fills the table, backwards from the solved situations.
    fn solve(&mut self) {
        let mut queue: Vec<Situation> =
            (0..self.free.len() as Cell).filter_map(|player| Situation::new(player, &self.goals)).collect();
        for situation in &queue {
            let index = self.index(situation);
            self.distances[index] = 0;
        }
        let mut head = 0;
        while let Some(situation) = queue.get(head).copied() {
            head += 1;
            let distance = self.distance(&situation) + 1;
            for (back, forth) in [
                (Move::Up, Move::Down),
                (Move::Down, Move::Up),
                (Move::Left, Move::Right),
                (Move::Right, Move::Left),
            ] {
                let here = situation.player;
                let from = self.neighbors[usize::from(here)][back as usize];
                if from == NOWHERE || situation.boxes().contains(&from) {
                    continue;
                }
                let walked = Situation { player: from, ..situation };
                let ahead = self.neighbors[usize::from(here)][forth as usize];
                let pushed = situation.boxes().contains(&ahead).then(|| situation.with(from, ahead, here));
                for before in [Some(walked), pushed].into_iter().flatten() {
                    let index = self.index(&before);
                    if self.distances[index] == DEAD {
                        self.distances[index] = distance;
                        queue.push(before);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    fn place(text: &str) -> Position {
        Position::parse(text).unwrap()
    }

    fn level(size: usize, walls: &[&str], goals: &[&str]) -> Level {
        let places = |texts: &[&str]| texts.iter().map(|text| place(text)).collect::<Vec<_>>();
        Level::new(size, &places(walls), &places(goals)).unwrap()
    }

    fn situation(level: &Level, player: &str, boxes: &[&str]) -> Situation {
        let boxes: Vec<Cell> = boxes.iter().map(|text| level.cell(place(text)).unwrap()).collect();
        Situation::new(level.cell(place(player)).unwrap(), &boxes).unwrap()
    }

    #[test]
    fn pushes_move_boxes_and_never_pull_or_squeeze_them() {
        let level = level(6, &["b2"], &["e1"]);
        let start = situation(&level, "b1", &["c1"]);
        let pushed = level.step(&start, Move::Right).unwrap();
        assert_eq!(pushed, situation(&level, "c1", &["d1"]));
        let again = level.step(&pushed, Move::Right).unwrap();
        assert_eq!((level.distance(&again), level.on_goals(&again)), (0, 1));
        assert_eq!(level.step(&again, Move::Right), None, "the box stands against the rim");
        assert_eq!(level.step(&start, Move::Down), None, "a wall");
        assert_eq!(level.step(&start, Move::Left), None, "the rim");
        assert_eq!(level.distance(&start), 2);
    }

    #[test]
    fn places_off_the_level_are_no_cells() {
        let level = level(6, &["b2"], &["e1"]);
        // With six rows, row 0 column 7 would be stored in the place of row 1 column 1.
        for (row, column) in [(0, 0), (2, 1), (6, 0), (6, 6), (5, 6), (0, 7), (7, 0), (25, 25)] {
            assert_eq!(level.cell(Position { row, column }), None, "row {row}, column {column}");
        }
        assert_eq!(level.cell(Position { row: 4, column: 4 }), Some(14));
    }

    #[test]
    fn the_solver_takes_up_to_four_million_situations() {
        // 40 x 39 x 38 x 37 / 24 x 40 = 3,655,600, and with one cell more 41 x 40 x 39 x 38 / 24 x 41 = 4,152,070.
        assert_eq!([table_size(40, 4), table_size(41, 4)], [3_655_600, 4_152_070]);
        assert_eq!([fits(40, 4), fits(41, 4)], [true, false]);
    }

    #[test]
    fn a_box_in_a_corner_is_dead() {
        let level = level(6, &[], &["c3"]);
        assert_eq!(level.distance(&situation(&level, "c2", &["b1"])), DEAD);
        // Along the outer wall without a goal on it, a box cannot come back either.
        assert_eq!(level.distance(&situation(&level, "b3", &["c1"])), DEAD);
        assert_ne!(level.distance(&situation(&level, "b3", &["c2"])), DEAD);
    }

    #[test]
    fn indices_and_situations_belong_together() {
        let level = level(7, &["c3"], &["b2", "d4", "e5"]);
        for (index, distance) in level.distances.iter().enumerate() {
            let situation = level.situation(index / level.free(), (index % level.free()) as Cell);
            assert!(situation.boxes().is_sorted() && level.index(&situation) == index);
            assert!(*distance == DEAD || !situation.boxes().contains(&situation.player));
        }
    }

    /// The number of moves of a shortest solution, by a forward search without the table.
    fn forwards(level: &Level, start: Situation) -> u16 {
        let mut seen = HashMap::from([(start, 0_u16)]);
        let mut queue = VecDeque::from([start]);
        while let Some(situation) = queue.pop_front() {
            let distance = seen[&situation];
            if level.on_goals(&situation) == level.goals().len() {
                return distance;
            }
            for next in Move::ALL.into_iter().filter_map(|step| level.step(&situation, step)) {
                seen.entry(next).or_insert_with(|| {
                    queue.push_back(next);
                    distance + 1
                });
            }
        }
        DEAD
    }

    #[test]
    fn a_search_forwards_finds_the_same_distances() {
        for level in [level(6, &["c2", "d4"], &["d2"]), level(6, &["b2"], &["c3", "d3"])] {
            for index in (0..level.distances.len()).step_by(3) {
                let situation = level.situation(index / level.free(), (index % level.free()) as Cell);
                if !situation.boxes().contains(&situation.player) {
                    assert_eq!(level.distance(&situation), forwards(&level, situation), "{situation:?}");
                }
            }
        }
    }
}
