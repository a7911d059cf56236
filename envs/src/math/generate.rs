//! Which math tasks there are: word problems drawn without end, or the problems of a file.
//!
//! A word problem belongs to `test` when a hash of its chain of arithmetic is divisible by 8. The words that tell the
//! chain have no part in it, so no chain seen in training comes back in the test split, not in other words and not
//! in the other encoding.
//!
//! Problems of a file: [`crate::problems`].

use record::failure::Result;
use record::line::Task;
use record::philox::{Draws, Stream};
use serde_json::{Map, Value};

use super::NAME;
use super::spec::{Encoding, Problem, Rules};
use super::story::Chain;
use crate::environment::{Selection, Split, Tasks};
use crate::problems::Problems;
use crate::streams;

/// One in this many problems is for testing.
const TEST_SHARE: u64 = 8;
/// Problems of our own.
const PROBLEMS: Problems = Problems { environment: NAME, shipped: include_str!("../../problems/math.jsonl") };
/// Draws after which rules are found to allow no task.
const ATTEMPTS: u32 = 20_000;

/// Tasks of a selection.
///
/// # Errors
/// A file that cannot be read, or is no file of problems.
pub fn tasks(rules: Rules, selection: &Selection) -> Result<Tasks<'static>> {
    match rules.data.clone() {
        None => Ok(streams::tasks(NAME, selection, move |split, stream| word_problem(&rules, split, stream))),
        Some(file) => {
            PROBLEMS.tasks(&file, selection, |spec, identity, split| from_file(&rules, spec, identity, split))
        }
    }
}

/// The first word problem of a stream that belongs to the split.
///
/// # Errors
/// The rules allow none: usage.
pub fn word_problem(rules: &Rules, split: Split, stream: Stream) -> Result<Task> {
    let draw = |draws: &mut Draws| {
        let steps = 1 + draws.below(rules.level);
        let chain = Chain::draw(steps, rules.largest, draws);
        let text = chain.write();
        if streams::split_of(text.as_bytes(), TEST_SHARE) != split || chain.steps.len() != steps as usize {
            return None;
        }
        let problem = match rules.encoding {
            Encoding::Compact => chain.tell_shortly(draws),
            Encoding::Full => chain.tell(draws),
        };
        let answer = chain.value().unwrap_or_default().to_string();
        let known = Map::from_iter([("level".to_owned(), Value::from(steps))]);
        let name = format!("{:016x}", streams::first_word(text.as_bytes()));
        Some(streams::task(NAME, split, &name, rules.spec(&problem, &answer, known)))
    };
    streams::first_task(ATTEMPTS, split, stream, draw, || {
        let settings = format!("level={} largest={}", rules.level, rules.largest);
        (settings, "a higher level or a greater largest leaves more room")
    })
}

/// The task of a problem of a file, under the rules given.
fn from_file(rules: &Rules, spec: &Value, identity: u64, split: Split) -> Result<Task> {
    let problem = Problem::parse(spec)?;
    let known = spec.as_object().cloned().unwrap_or_default();
    let name = format!("{identity:016x}");
    Ok(streams::task(NAME, split, &name, rules.spec(&problem.text, &problem.reference, known)))
}
