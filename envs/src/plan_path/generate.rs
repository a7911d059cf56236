//! Which Plan-Path tasks there are: drawing instances, dividing them into train and test, and their names.
//!
//! A board with its goal belongs to `test` when a hash of it is divisible by 16. The hash is taken of the least
//! of its eight mirror images and rotations, and the start has no part in it, so no board seen in training
//! comes back in the test split, not turned round and not with another start.
//!
//! The test split is one fixed list for each set of rules (see [`crate::streams`]). The train split is far larger than any run on boards of five cells a side or more, so train tasks are drawn
//! with replacement: task i depends on the rules, the seed and i alone.

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};

use super::NAME;
use super::map::{Cell, LARGEST, Map, Place};
use super::spec::{Draw, Rules};
use crate::environment::{Selection, Split, Tasks};
use crate::streams;

/// One in this many boards is for testing.
const TEST_SHARE: u64 = 16;
/// Draws after which rules are found to allow no task.
const ATTEMPTS: u32 = 20_000;

/// A drawn instance.
#[derive(Debug)]
pub struct Instance {
    /// Walls in the order of reading.
    pub walls: Vec<Place>,
    /// The board.
    pub map: Map,
    /// The start.
    pub start: Cell,
}

impl Instance {
    /// The task line of this instance.
    pub fn task(&self, rules: &Rules, split: Split) -> Task {
        let (goal, start) = (self.map.place(self.map.goal()), self.map.place(self.start));
        Task {
            env: NAME.to_owned(),
            task: format!("{NAME}/{}/{:016x}", split.name(), identity(&self.map, start)),
            split: Some(split.name().to_owned()),
            spec: rules.spec(&self.walls, goal, start),
            ..Task::default()
        }
    }
}

/// The train instance at `index` of the stream that `seed` names.
///
/// # Errors
/// The rules allow no instance: usage.
pub fn train(rules: &Rules, seed: u64, index: u64) -> Result<Instance> {
    draw_for(rules, Split::Train, streams::train_stream(NAME, seed, index))
}

/// The first instance of a stream that belongs to the split.
fn draw_for(rules: &Rules, split: Split, stream: Stream) -> Result<Instance> {
    let mut draws = Draws::new(stream);
    for _ in 0..ATTEMPTS {
        if let Some(instance) = draw(rules, &mut draws)
            && split_of(&instance.map) == split
        {
            return Ok(instance);
        }
    }
    Err(Failure::usage(format!(
        "no {} task in {ATTEMPTS} draws: size={} density={} nearest={} farthest={}",
        split.name(),
        rules.size,
        rules.density,
        rules.nearest,
        rules.farthest
    ))
    .hint("a larger size, a lower density or a smaller nearest leaves more room"))
}

/// One draw; none if its start would have to lie out of the bounds.
fn draw(rules: &Rules, draws: &mut Draws) -> Option<Instance> {
    let size = rules.size as u16;
    let place = |cell: u16| Place { row: (cell / size) as u8, column: (cell % size) as u8 };
    let mut order: [u16; LARGEST * LARGEST] = std::array::from_fn(|index| index as u16);
    let order = &mut order[..rules.size * rules.size];
    let wall_count = match rules.draw {
        Draw::Balanced => {
            let factor = 0.8 + 0.4 * f64::from(draws.uniform());
            let count = (rules.density * order.len() as f64 * factor).round() as usize;
            count.min(order.len() - 2)
        }
        // Each cell in turn; those that become walls are moved to the front.
        Draw::Uniform => {
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
        Draw::Balanced => 0..wall_count + 1,
        Draw::Uniform => wall_count..wall_count + 2,
    };
    if chosen.end > order.len() {
        return None;
    }
    for index in chosen {
        let other = index + draws.below((order.len() - index) as u32) as usize;
        order.swap(index, other);
    }
    let mut walls: Vec<Place> = order[..wall_count].iter().map(|cell| place(*cell)).collect();
    walls.sort_unstable();
    let map = Map::new(rules.size, &walls, place(order[wall_count]));
    let near = |cell: Cell| (rules.nearest..=rules.farthest).contains(&u32::from(map.distance(cell)));
    let start = match rules.draw {
        Draw::Uniform => Some(map.cell(place(order[wall_count + 1]))).filter(|cell| near(*cell)),
        Draw::Balanced => {
            let cells: Vec<Cell> = map.reachable().filter(|cell| near(*cell)).collect();
            let mut distances: Vec<u16> = cells.iter().map(|cell| map.distance(*cell)).collect();
            distances.sort_unstable();
            distances.dedup();
            draws.choose(&distances).copied().and_then(|distance| {
                let cells: Vec<Cell> =
                    cells.into_iter().filter(|cell| map.distance(*cell) == distance).collect();
                draws.choose(&cells).copied()
            })
        }
    };
    start.map(|start| Instance { walls, map, start })
}

/// Tasks without end.
pub fn tasks(rules: Rules, selection: &Selection) -> Tasks<'static> {
    streams::tasks(NAME, selection, move |split, stream| {
        Ok(draw_for(&rules, split, stream)?.task(&rules, split))
    })
}

/// Which split a board with its goal belongs to, whatever the start.
pub fn split_of(map: &Map) -> Split {
    let last = map.size() as u8 - 1;
    let turned = |place: Place, turn: u8| {
        let Place { mut row, mut column } = place;
        if turn & 1 != 0 {
            std::mem::swap(&mut row, &mut column);
        }
        if turn & 2 != 0 {
            row = last - row;
        }
        if turn & 4 != 0 {
            column = last - column;
        }
        usize::from(row) * map.size() + usize::from(column)
    };
    let least = (0..8)
        .map(|turn| {
            let mut cells = [0_u64; (LARGEST * LARGEST).div_ceil(64)];
            for wall in map.walls() {
                let cell = turned(*wall, turn);
                cells[cell / 64] |= 1 << (cell % 64);
            }
            (cells, turned(map.place(map.goal()), turn) as u64)
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

/// The name of an instance: a hash of what it consists of, without the rules.
fn identity(map: &Map, start: Place) -> u64 {
    let mut bytes = Vec::with_capacity(3 * map.walls().len() + 8);
    let goal = map.place(map.goal());
    bytes.extend([map.size() as u8, goal.row, goal.column, start.row, start.column]);
    bytes.extend(map.walls().iter().flat_map(|wall| [wall.row, wall.column]));
    streams::first_word(&bytes)
}
