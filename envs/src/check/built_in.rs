//! The contract of a built-in environment: task streams, answer formats, and properties of states
//! that the library relies on.

use std::collections::HashSet;

use record::failure::Result;
use record::line::Task;

use super::{Effort, Finding, Ledger, Target, episodes, explore, place, unless_interrupted};
use crate::step;
use environment::{Environment, Outcome, Selection, Split, State};

/// Different tasks that the episodes are played on.
const EPISODE_TASKS: u64 = 500;
const MAX_SITUATIONS: usize = 1000;

/// A state's clone, its JSON and the step protocol must all have the same future.
fn fidelity(
    environment: &dyn Environment,
    state: &dyn State,
    agent: &str,
    text: &str,
    ledger: &mut Ledger,
) -> Result<()> {
    let json = state.to_json();
    let here = || place(state, agent, text);
    let (mut one, mut two) = (state.clone_state(), state.clone_state());
    let (first, second) = (one.apply(agent, text)?, two.apply(agent, text)?);
    let same = first == second && one.to_json() == two.to_json() && one.observe(agent) == two.observe(agent);
    ledger.rule("the same action has the same consequence", same, here);

    let mut back = environment.restore(&json)?;
    let same = back.to_json() == json
        && back.observe(agent) == state.observe(agent)
        && back.apply(agent, text)? == first
        && back.to_json() == one.to_json();
    ledger.rule("a state survives JSON", same, here);

    let request =
        serde_json::json!({"request": 1, "state": json, "agent": agent, "action": text}).to_string();
    let answer = step::answer(environment, &request);
    // Compared as text, because parsing a number may change its last bit.
    let says = |key: &str, value: serde_json::Value| answer.contains(&format!("\"{key}\":{value}"));
    let same = answer == step::answer(environment, &request)
        && says("state", one.to_json())
        && says("rewards", step::rewards(&first))
        && says("terminated", first.terminated.into())
        && says("success", first.success.into());
    ledger.rule("`envs step` is a pure function", same, || format!("{}: {answer}", here()));
    Ok(())
}

/// Tests every rule; calls `advance` after each explored task and every hundred episodes.
pub fn check(
    environment: &dyn Environment,
    effort: &Effort,
    advance: &mut dyn FnMut(),
) -> Result<Vec<Finding>> {
    let names = environment.workflows().iter().map(|workflow| Some(workflow.name().to_owned()));
    check_all(environment, names.collect(), true, effort, advance)
}

/// [`check`] for one workflow, which may be a file.
pub fn check_workflow(
    environment: &dyn Environment,
    workflow: &str,
    effort: &Effort,
    advance: &mut dyn FnMut(),
) -> Result<Vec<Finding>> {
    check_all(environment, vec![Some(workflow.to_owned())], false, effort, advance)
}

/// Tests the rules on these workflows; `reads_styles`: also how actions of the default workflow are read.
fn check_all(
    environment: &dyn Environment,
    workflows: Vec<Option<String>>,
    reads_styles: bool,
    effort: &Effort,
    advance: &mut dyn FnMut(),
) -> Result<Vec<Finding>> {
    let target = Target {
        environment,
        workflows,
        max_situations: MAX_SITUATIONS,
        own_clones: true,
        fidelity: Box::new(|state, agent, text, ledger| fidelity(environment, state, agent, text, ledger)),
    };
    let mut ledger = Ledger::default();
    streams(environment, effort, &mut ledger)?;
    if reads_styles {
        answers(environment, &mut ledger)?;
    }
    for split in [Split::Train, Split::Test] {
        for task in draw(environment, effort, split, effort.seed, effort.tasks)? {
            for workflow in &target.workflows {
                explore::explore(&target, &task, workflow, &mut ledger)?;
            }
            advance();
        }
    }
    let tasks = draw(environment, effort, Split::Train, effort.seed, EPISODE_TASKS.min(effort.episodes))?;
    episodes::play(&target, effort, &tasks, &mut ledger, advance)?;
    Ok(ledger.findings)
}

fn draw(
    environment: &dyn Environment,
    effort: &Effort,
    split: Split,
    seed: u64,
    count: u64,
) -> Result<Vec<Task>> {
    let selection = Selection { split, seed, settings: effort.settings.clone() };
    let tasks = environment.tasks(&selection)?.take(count as usize);
    tasks.map(|task| unless_interrupted().and(task)).collect()
}

/// Rules about the streams of tasks.
fn streams(environment: &dyn Environment, effort: &Effort, ledger: &mut Ledger) -> Result<()> {
    const COUNT: u64 = 1000;
    let seed = effort.seed;
    let train = draw(environment, effort, Split::Train, seed, COUNT)?;
    let again = draw(environment, effort, Split::Train, seed, COUNT / 10)?;
    for (index, (task, same)) in train.iter().zip(&again).enumerate() {
        ledger.rule("the same seed gives the same tasks", task == same, || {
            format!("train task {index} of seed {seed} is {} and then {}", task.task, same.task)
        });
    }
    let test = draw(environment, effort, Split::Test, seed, COUNT)?;
    let other = draw(environment, effort, Split::Test, seed.wrapping_add(1), COUNT)?;
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

/// The part of a task's name that identifies the instance, without the split.
pub(super) fn instance(task: &str) -> &str {
    task.rsplit('/').next().unwrap_or(task)
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
