//! Which Sokoban tasks there are: drawing levels, dividing them into train and test, and their names.
//!
//! A level is drawn by reverse play: walls and goals by chance, and then a start among all situations from which
//! pulling boxes off their goals leads away, each number of moves from `nearest` to `farthest` as likely as any
//! other that exists. So every level can be solved, and its shortest solution is known. No box starts on a goal.
//!
//! A level with its goals belongs to `test` when a hash of it is divisible by 8. The hash is taken of the least of
//! its eight mirror images and rotations, and boxes and player have no part in it, so no level seen in training
//! comes back in the test split, not turned round and not with another start.

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};

use super::NAME;
use super::level::{Level, Situation};
use super::spec::Rules;
use crate::environment::{Selection, Split, Tasks};
use crate::grid::Place;
use crate::streams;

/// One in this many levels is for testing.
const TEST_SHARE: u64 = 8;
/// Draws after which rules are found to allow no task.
const ATTEMPTS: u32 = 5000;

/// A drawn level with its start.
pub type Drawn = (Level, Situation);

/// The train level at `index` of the stream that `seed` names.
///
/// # Errors
/// The rules allow no level: usage.
pub fn train(rules: &Rules, seed: u64, index: u64) -> Result<Drawn> {
    draw_for(rules, Split::Train, streams::train_stream(NAME, seed, index))
}

/// The task line of a level.
pub fn task(rules: &Rules, (level, start): &Drawn, split: Split) -> Task {
    let mut bytes = vec![level.size() as u8, level.place(start.player).row, level.place(start.player).column];
    let cells = level.goals().iter().chain(start.boxes()).map(|cell| level.place(*cell));
    bytes.extend(cells.chain(level.walls().iter().copied()).flat_map(|place| [place.row, place.column]));
    Task {
        env: NAME.to_owned(),
        task: format!("{NAME}/{}/{:016x}", split.name(), streams::first_word(&bytes)),
        split: Some(split.name().to_owned()),
        spec: rules.spec(level, start),
        ..Task::default()
    }
}

/// Tasks without end.
pub fn tasks(rules: Rules, selection: &Selection) -> Tasks<'static> {
    streams::tasks(NAME, selection, move |split, stream| {
        Ok(task(&rules, &draw_for(&rules, split, stream)?, split))
    })
}

/// The first level of a stream that belongs to the split.
fn draw_for(rules: &Rules, split: Split, stream: Stream) -> Result<Drawn> {
    let mut draws = Draws::new(stream);
    for _ in 0..ATTEMPTS {
        let (walls, goals) = board(rules, &mut draws);
        if split_of(rules.size, &walls, &goals) != split {
            continue;
        }
        if let Some(level) = Level::new(rules.size, &walls, &goals)
            && let Some(start) = start(rules, &level, &mut draws)
        {
            return Ok((level, start));
        }
    }
    Err(Failure::usage(format!(
        "no {} task in {ATTEMPTS} draws: size={} boxes={} density={} nearest={} farthest={}",
        split.name(),
        rules.size,
        rules.boxes,
        rules.density,
        rules.nearest,
        rules.farthest
    ))
    .hint("a larger size, fewer walls or a smaller nearest leaves more room"))
}

/// Walls and goals by chance, each in the order of reading.
fn board(rules: &Rules, draws: &mut Draws) -> (Vec<Place>, Vec<Place>) {
    let side = rules.size - 2;
    let mut order: Vec<Place> = (0..side * side)
        .map(|cell| Place { row: (1 + cell / side) as u8, column: (1 + cell % side) as u8 })
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
fn start(rules: &Rules, level: &Level, draws: &mut Draws) -> Option<Situation> {
    let starts: Vec<(Situation, u16)> = level
        .solvable()
        .filter(|(situation, distance)| {
            (rules.nearest..=rules.farthest).contains(&u32::from(*distance)) && level.on_goals(situation) == 0
        })
        .collect();
    let mut distances: Vec<u16> = starts.iter().map(|(_, distance)| *distance).collect();
    distances.sort_unstable();
    distances.dedup();
    let chosen = *draws.choose(&distances)?;
    let starts: Vec<Situation> =
        starts.into_iter().filter(|(_, distance)| *distance == chosen).map(|(start, _)| start).collect();
    draws.choose(&starts).copied()
}

/// Which split a level with its goals belongs to, whatever boxes and player.
pub fn split_of(size: usize, walls: &[Place], goals: &[Place]) -> Split {
    let last = size as u8 - 1;
    let turned = |places: &[Place], turn: u8| {
        let mut turned: Vec<(u8, u8)> = places
            .iter()
            .map(|Place { row, column }| {
                let (row, column) = if turn & 1 != 0 { (*column, *row) } else { (*row, *column) };
                let row = if turn & 2 != 0 { last - row } else { row };
                let column = if turn & 4 != 0 { last - column } else { column };
                (row, column)
            })
            .collect();
        turned.sort_unstable();
        turned
    };
    let least = (0..8).map(|turn| (turned(walls, turn), turned(goals, turn))).min().unwrap_or_default();
    let mut bytes = vec![size as u8, goals.len() as u8];
    bytes.extend(least.1.into_iter().chain(least.0).flat_map(|(row, column)| [row, column]));
    streams::split_of(&bytes, TEST_SHARE)
}
