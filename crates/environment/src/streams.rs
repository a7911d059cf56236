//! Streams of tasks: the train split drawn without end, the test split one fixed list.
//!
//! An environment says how one task of a split is drawn from a named stream of random numbers; the rest is
//! here. Train task i depends on the seed and on i alone. The test split is the list of the first
//! [`TEST_TASKS`] different tasks (or all, if there are fewer) drawn from streams that no seed names:
//! `--seed` has no influence on it, and `--count N` takes the first N. Beyond its end it is repeated,
//! shuffled by the seed.
//!
//! Left out: the rule that keeps the two splits apart. Each environment decides it from the task alone, with
//! [`split_of`] on something that all forms of one task share.

use std::collections::HashSet;

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use serde_json::Value;

use crate::selection::{Selection, Split, Tasks};

/// Tasks in the test split, unless the rules allow fewer.
pub const TEST_TASKS: usize = 2048;
/// Names the streams that the test split is drawn from.
const TEST_SEED: u64 = 0;

/// The random numbers that train task `index` of `environment` is drawn with.
pub fn train_stream(environment: &str, seed: u64, index: u64) -> Stream {
    Stream::named(seed, &[Part::Text(environment), Part::Text("train"), Part::Number(index)])
}

/// A task line; `name` is the instance's.
pub fn task(environment: &str, split: Split, name: &str, spec: Value) -> Task {
    Task {
        env: environment.to_owned(),
        task: format!("{environment}/{}/{name}", split.name()),
        split: Some(split.name().to_owned()),
        spec,
        ..Task::default()
    }
}

/// The split of a task without a reference answer, which a user asks.
pub const ASKED: &str = "asked";

/// The first task that `draw` finds in `attempts` draws.
pub fn first_task(
    attempts: u32,
    split: Split,
    stream: Stream,
    mut draw: impl FnMut(&mut Draws) -> Option<Task>,
    describe: impl FnOnce() -> (String, &'static str),
) -> Result<Task> {
    let mut draws = Draws::new(stream);
    (0..attempts).find_map(|_| draw(&mut draws)).ok_or_else(|| {
        let (rules, hint) = describe();
        Failure::usage(format!("no {} task in {attempts} draws: {rules}", split.name())).hint(hint)
    })
}

/// The tasks of a selection; `draw` gives a task of the split from random numbers.
pub fn tasks(
    environment: &'static str,
    selection: &Selection,
    draw: impl Fn(Split, Stream) -> Result<Task> + Send + 'static,
) -> Tasks<'static> {
    let seed = selection.seed;
    match selection.split {
        Split::Train => {
            Box::new((0..).map(move |index| draw(Split::Train, train_stream(environment, seed, index))))
        }
        Split::Test => {
            let (mut drawn, mut seen, mut tasks) = (0, HashSet::new(), Vec::<Task>::new());
            let (mut repetition, mut order) = (0, Vec::new());
            Box::new(std::iter::from_fn(move || {
                // First the split in its fixed order, each task once.
                while repetition == 0 && tasks.len() < TEST_TASKS && drawn < 4 * TEST_TASKS as u64 {
                    let name = [Part::Text(environment), Part::Text("test"), Part::Number(drawn)];
                    let task = match draw(Split::Test, Stream::named(TEST_SEED, &name)) {
                        Ok(task) => task,
                        Err(failure) => return Some(Err(failure)),
                    };
                    drawn += 1;
                    if seen.insert(task.task.clone()) {
                        tasks.push(task.clone());
                        return Some(Ok(task));
                    }
                }
                // Then again and again, in orders that the seed decides.
                if order.is_empty() {
                    repetition += 1;
                    order = (0..tasks.len()).collect();
                    let name = [Part::Text(environment), Part::Text("test order"), Part::Number(repetition)];
                    Draws::new(Stream::named(seed, &name)).shuffle(&mut order);
                }
                order.pop().map(|index| Ok(tasks[index].clone()))
            }))
        }
    }
}

/// The split that everything described by `bytes` belongs to: one in `test_share` is for testing.
pub fn split_of(bytes: &[u8], test_share: u64) -> Split {
    if first_word(bytes).is_multiple_of(test_share) { Split::Test } else { Split::Train }
}

/// The first eight bytes of a hash, as a number: names an instance.
pub fn first_word(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let mut word = [0; 8];
    word.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_be_bytes(word)
}
