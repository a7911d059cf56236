//! Demonstrations of generated Code tasks by imperfect experts, to warm a policy up on.
//!
//! `opt` gives the reference solution and a right test case; `careless` gives a program for a task that is easily taken
//! for this one (with brackets forgotten, where the task is an expression) and the output of another test. A majority of
//! careless answers makes a policy that is weak in a way that reinforcement can mend.

use std::sync::Arc;

use record::failure::Result;
use record::philox::{Draws, Part, Stream};
use record::sample::Sample;

use super::spec::{Encoding, Instance, TaskSettings, Test};
use super::state::CodeState;
use super::{NAME, expression, generate};
use crate::demonstration::{Demonstration, sample};
use crate::environment::{Split, State};
use crate::streams::train_stream;
use crate::workflow::Workflow;

/// The kinds and their default shares.
pub const KINDS: &[(&str, f64)] = &[("opt", 0.45), ("careless", 0.55)];

/// The samples about the task at `index`: what every agent says at the beginning of an episode, and every second time
/// after a turn of such answers, if that did not end the episode.
///
/// # Errors
/// The settings allow no task, or tasks in prose, and there is no sandbox to play a turn in.
pub fn samples(
    settings: &TaskSettings,
    workflow: &Arc<Workflow>,
    demonstration: &Demonstration,
    index: u64,
) -> Result<Vec<Sample>> {
    let seed = demonstration.tasks.seed;
    let task = generate::draw(settings, Split::Train, train_stream(NAME, seed, index))?;
    let instance = Instance::parse(&task.spec)?;
    let name = [Part::Text(NAME), Part::Text("demo"), Part::Number(index)];
    let mut draws = Draws::new(Stream::named(seed, &name));
    let mut samples = Vec::new();
    for number in 0..demonstration.states {
        let mut state = CodeState::new(Arc::clone(&instance), Arc::clone(workflow));
        if number % 2 == 1 {
            let answers = answers(&state, demonstration, &mut draws);
            let answers: Vec<(&str, &str)> =
                answers.iter().map(|(agent, text)| (agent.as_str(), text.as_str())).collect();
            let mut later = state.clone();
            let outcome = match answers.as_slice() {
                [(agent, text)] => later.apply(agent, text)?,
                answers => later.apply_together(answers)?,
            };
            if !outcome.terminated {
                state = later;
            }
        }
        let episode = format!("{index}.{number}");
        for (agent, text) in answers(&state, demonstration, &mut draws) {
            samples.push(sample(&task, &episode, &agent, state.observe(&agent), text));
        }
    }
    Ok(samples)
}

/// What every agent says, each after a demonstrator of its own.
fn answers(state: &CodeState, demonstration: &Demonstration, draws: &mut Draws) -> Vec<(String, String)> {
    let instance = state.instance();
    let agents = state.workflow().agents().iter();
    agents
        .map(|agent| {
            let careless = demonstration.kind(draws) == "careless";
            let text = match agent.as_str() {
                "tester" => state.write_case(&case(instance, careless, draws)),
                _ => state.write_program(&program(instance, careless, draws)),
            };
            (agent.clone(), text)
        })
        .collect()
}

fn program(instance: &Instance, careless: bool, draws: &mut Draws) -> String {
    let problem = &instance.problem;
    let right = problem.solution.clone().unwrap_or_default();
    if !careless {
        return right;
    }
    if instance.rules.encoding == Encoding::Compact {
        return expression::program(&format!(" {}", problem.statement));
    }
    draws.choose(&problem.wrong).cloned().unwrap_or(right)
}

fn case(instance: &Instance, careless: bool, draws: &mut Draws) -> Test {
    let tests = &instance.problem.tests;
    let chosen = tests[draws.below(tests.len() as u32) as usize].clone();
    match draws.choose(tests) {
        Some(other) if careless => Test { output: other.output.clone(), ..chosen },
        _ => chosen,
    }
}
