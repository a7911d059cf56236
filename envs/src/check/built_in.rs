//! What only built-in environments promise: streams of tasks that seeds decide, and the formats of answers.

use std::collections::HashSet;

use record::failure::Result;
use record::line::Task;

use super::program::{check_with, instance};
use super::{Effort, Ledger, Program, Report, unless_interrupted};
use environment::{Environment, Outcome, Selection, Settings, Split};

/// Different tasks that the episodes are played on.
const EPISODE_TASKS: u64 = 500;

/// Tests every rule on tasks of `environment`, which `program` plays; calls `advance` as [`super::check`] does.
pub fn check_built_in(
    environment: &dyn Environment,
    settings: &Settings,
    program: &Program,
    effort: &Effort,
    advance: &mut dyn FnMut(),
) -> Result<Report> {
    let mut ledger = Ledger::default();
    let drawn = Drawn { environment, settings };
    streams(&drawn, effort.seed, &mut ledger)?;
    if program.workflows.len() == environment.workflows().len() {
        answers(environment, &mut ledger)?;
    }
    let train = effort.tasks.max(EPISODE_TASKS.min(effort.episodes));
    let mut tasks = drawn.tasks(Split::Train, effort.seed, train)?;
    tasks.extend(drawn.tasks(Split::Test, effort.seed, effort.tasks)?);
    check_with(ledger, Some(environment), program, &tasks, effort, advance)
}

struct Drawn<'a> {
    environment: &'a dyn Environment,
    settings: &'a Settings,
}

impl Drawn<'_> {
    fn tasks(&self, split: Split, seed: u64, count: u64) -> Result<Vec<Task>> {
        let selection = Selection { split, seed, settings: self.settings.clone() };
        let tasks = self.environment.tasks(&selection)?.take(count as usize);
        tasks.map(|task| unless_interrupted().and(task)).collect()
    }
}

/// Rules about the streams of tasks.
fn streams(drawn: &Drawn<'_>, seed: u64, ledger: &mut Ledger) -> Result<()> {
    const COUNT: u64 = 1000;
    let train = drawn.tasks(Split::Train, seed, COUNT)?;
    let again = drawn.tasks(Split::Train, seed, COUNT / 10)?;
    for (index, (task, same)) in train.iter().zip(&again).enumerate() {
        ledger.rule("the same seed gives the same tasks", task == same, || {
            format!("train task {index} of seed {seed} is {} and then {}", task.task, same.task)
        });
    }
    let test = drawn.tasks(Split::Test, seed, COUNT)?;
    let other = drawn.tasks(Split::Test, seed.wrapping_add(1), COUNT)?;
    let mut names = HashSet::new();
    for (index, (task, same)) in test.iter().zip(&other).enumerate() {
        // The split ends where its first task comes back; after that the seed decides the order.
        if !names.insert(task.task.as_str()) {
            break;
        }
        ledger.rule("no seed changes the test split", task == same, || {
            format!("test task {index} is {} for one seed and {} for another", task.task, same.task)
        });
    }
    let held_out: HashSet<&str> = test.iter().map(|task| instance(&task.task)).collect();
    for task in &train {
        ledger.rule("train and test are disjoint", !held_out.contains(instance(&task.task)), || {
            format!("{} is also a test task", task.task)
        });
    }
    Ok(())
}

/// Rules about answer formats.
fn answers(environment: &dyn Environment, ledger: &mut Ledger) -> Result<()> {
    for case in environment.extraction_cases() {
        let start = environment.reset(&case.spec, environment.default_workflow())?;
        let apply = |text: &str| -> Result<(Outcome, String)> {
            let mut state = start.clone_state();
            let outcome = state.apply(case.agent, text)?;
            Ok((outcome, state.to_json().to_string()))
        };
        let (outcome, state) = apply(&case.text)?;
        let holds = match &case.means {
            Some(plain) => (outcome, state) == apply(plain)?,
            None => outcome.rewards.team == 0.0 && outcome.rewards.local == 0.0 && !outcome.terminated,
        };
        ledger.rule("answers are read as a reader expects", holds, || {
            format!("{}: {:?} of {} is not read as {:?}", case.name, case.text, case.agent, case.means)
        });
    }
    Ok(())
}
