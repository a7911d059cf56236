//! Draws Sokoban tasks, divides them into train and test, and names them.
//!
//! A level is drawn by reverse play: random walls and goals, and then a start among all situations from which
//! pulling boxes off their goals leads away, each number of moves from `nearest` to `farthest` as likely as
//! any other that exists. So every level can be solved, and its shortest solution is known. No box starts on
//! a goal.
//!
//! A level with its goals belongs to `test` if a hash of it is divisible by 8. The hash is taken over the
//! least of its eight mirror images and rotations, without boxes and player, so no level seen in training
//! comes back in the test split, transformed or with another start.

use record::philox::Draws;
use serde_json::Value;

use super::level::{Level, Situation};
use super::{RawSpec, Rules};
use crate::grid::{Position, walker};
use environment::Split;
use environment::spec::write;
use environment::streams;

/// One in this many levels is for testing.
const TEST_SHARE: u64 = 8;

/// One draw: the `spec` and the hash for its name; `None` in the other split, or without a start within the
/// bounds.
pub fn draw(rules: &Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)> {
    let (walls, goals) = board(rules, draws);
    if split_of(rules.spec.size, &walls, &goals) != split {
        return None;
    }
    let level = Level::new(rules.spec.size, &walls, &goals)?;
    let start = start(rules, &level, draws)?;
    let player = level.position(start.player);
    let boxes = level.positions(start.boxes());
    let mut bytes = vec![level.size() as u8, player.row, player.column];
    let cells = goals.iter().chain(&boxes).chain(&walls);
    bytes.extend(cells.flat_map(|position| [position.row, position.column]));
    let spec = RawSpec { walls, goals, boxes, player, ..rules.spec.clone() };
    Some((write(&spec), streams::first_word(&bytes)))
}

/// Walls and goals by chance, each in the order of reading.
pub(super) fn board(rules: &Rules, draws: &mut Draws) -> (Vec<Position>, Vec<Position>) {
    let side = rules.spec.size - 2;
    let mut order: Vec<Position> = (0..side * side)
        .map(|cell| Position { row: (1 + cell / side) as u8, column: (1 + cell % side) as u8 })
        .collect();
    draws.shuffle(&mut order);
    let factor = 0.5 + f64::from(draws.uniform());
    let count = (rules.density * order.len() as f64 * factor).round() as usize;
    let mut goals = order.split_off(count.min(order.len().saturating_sub(rules.boxes)));
    goals.truncate(rules.boxes);
    order.sort_unstable();
    goals.sort_unstable();
    (order, goals)
}

/// A start, at a distance by chance among those that exist within the bounds.
pub(super) fn start(rules: &Rules, level: &Level, draws: &mut Draws) -> Option<Situation> {
    let starts: Vec<(Situation, u16)> = level
        .solvable()
        .filter(|(situation, distance)| {
            (rules.nearest..=rules.farthest).contains(&u32::from(*distance)) && level.on_goals(situation) == 0
        })
        .collect();
    walker::even(draws, &starts)
}

/// The split of a level with its goals, whatever boxes and player.
pub fn split_of(size: usize, walls: &[Position], goals: &[Position]) -> Split {
    let last = size as u8 - 1;
    let images = |positions: &[Position], symmetry: u8| {
        let mut images: Vec<Position> =
            positions.iter().map(|position| position.image(last, symmetry)).collect();
        images.sort_unstable();
        images
    };
    let least =
        (0..8).map(|symmetry| (images(walls, symmetry), images(goals, symmetry))).min().unwrap_or_default();
    let mut bytes = vec![size as u8, goals.len() as u8];
    bytes.extend(least.1.into_iter().chain(least.0).flat_map(|place| [place.row, place.column]));
    streams::split_of(&bytes, TEST_SHARE)
}
