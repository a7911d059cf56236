//! Draws Plan-Path tasks, divides them into train and test, and names them.
//!
//! A board with its goal belongs to `test` if a hash of it is divisible by 16. The hash is taken over the
//! least of its eight mirror images and rotations, without the start, so no board seen in training comes back
//! in the test split, transformed or with another start. Reversed boards are excluded too: if the board with
//! the start as its goal is a test board, the task is in neither split.

use record::philox::Draws;
use serde_json::Value;

use super::map::{Cell, LARGEST, Map, Position};
use super::{DrawMode, RawSpec};
use crate::grid::walker;
use environment::Split;
use environment::spec::write;
use environment::streams;

/// One in this many boards is for testing.
const TEST_SHARE: u64 = 16;

/// One draw: the `spec` and the hash for its name; `None` if its start would be out of bounds or in the other
/// split.
pub fn draw(rules: &RawSpec, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
    let size = rules.size as u16;
    let position = |cell: u16| Position { row: (cell / size) as u8, column: (cell % size) as u8 };
    let mut order: [u16; LARGEST * LARGEST] = std::array::from_fn(|index| index as u16);
    let order = &mut order[..rules.size * rules.size];
    let wall_count = match rules.draw {
        DrawMode::Balanced => {
            let factor = 0.8 + 0.4 * f64::from(draws.uniform());
            let count = (rules.density * order.len() as f64 * factor).round() as usize;
            count.min(order.len() - 2)
        }
        // Each cell in turn; those that become walls are moved to the front.
        DrawMode::Uniform => {
            let mut count = 0;
            for index in 0..order.len() {
                if f64::from(draws.uniform()) < rules.density {
                    order.swap(index, count);
                    count += 1;
                }
            }
            count
        }
    };
    let chosen = match rules.draw {
        DrawMode::Balanced => 0..wall_count + 1,
        DrawMode::Uniform => wall_count..wall_count + 2,
    };
    if chosen.end > order.len() {
        return None;
    }
    for index in chosen {
        let other = index + draws.below((order.len() - index) as u32) as usize;
        order.swap(index, other);
    }
    let mut walls: Vec<Position> = order[..wall_count].iter().map(|cell| position(*cell)).collect();
    walls.sort_unstable();
    let map = Map::new(rules.size, &walls, position(order[wall_count]));
    let near = |cell: Cell| (rules.nearest..=rules.farthest).contains(&u32::from(map.distance(cell)));
    let start = match rules.draw {
        DrawMode::Uniform => Some(map.cell(position(order[wall_count + 1]))).filter(|cell| near(*cell)),
        DrawMode::Balanced => {
            let cells = map.reachable().filter(|cell| near(*cell));
            walker::even(draws, &cells.map(|cell| (cell, map.distance(cell))).collect::<Vec<_>>())
        }
    };
    let start = map.position(start?);
    let backwards = || split_of_board(&map, start);
    (split_of(&map) == split && (split == Split::Test || backwards() == split)).then(|| {
        let identity = identity(&map, start);
        let goal = map.position(map.goal());
        (write(&RawSpec { walls, goal, start, ..rules.clone() }), identity)
    })
}

/// The split of a board with its goal, whatever the start.
pub fn split_of(map: &Map) -> Split {
    split_of_board(map, map.position(map.goal()))
}

/// The split of the board with `goal` in place of its goal.
fn split_of_board(map: &Map, goal: Position) -> Split {
    let last = map.size() as u8 - 1;
    let image = |position: Position, symmetry: u8| {
        let Position { row, column } = position.image(last, symmetry);
        usize::from(row) * map.size() + usize::from(column)
    };
    let least = (0..8)
        .map(|symmetry| {
            let mut cells = [0_u64; (LARGEST * LARGEST).div_ceil(64)];
            for wall in map.walls() {
                let cell = image(*wall, symmetry);
                cells[cell / 64] |= 1 << (cell % 64);
            }
            (cells, image(goal, symmetry) as u64)
        })
        .min();
    let mut bytes = vec![map.size() as u8];
    if let Some((cells, goal)) = least {
        bytes.extend(goal.to_be_bytes());
        bytes.extend(
            cells[..(map.size() * map.size()).div_ceil(64)].iter().flat_map(|word| word.to_be_bytes()),
        );
    }
    streams::split_of(&bytes, TEST_SHARE)
}

/// The name of an instance: a hash of its content without the rules.
fn identity(map: &Map, start: Position) -> u64 {
    let mut bytes = Vec::with_capacity(3 * map.walls().len() + 8);
    let goal = map.position(map.goal());
    bytes.extend([map.size() as u8, goal.row, goal.column, start.row, start.column]);
    bytes.extend(map.walls().iter().flat_map(|wall| [wall.row, wall.column]));
    streams::first_word(&bytes)
}
