//! Steps a second on one core: an observation as text, an answer as text, an outcome.
//!
//! ```text
//! cargo bench -p envs --bench steps
//! ```
//!
//! A step is what `rollout` does for one candidate and one turn: clone the state, apply an answer, read the
//! rewards, and write the next agent's prompt. Answers are drawn beforehand, so that only the environment is
//! measured.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]

use std::hint::black_box;
use std::time::Instant;

use envs::{Environment, Selection, Settings, Split, State, find};
use record::philox::{Draws, Part, Stream};

const STEPS: u64 = 2_000_000;

fn main() {
    for (environment, name, settings) in [
        ("plan-path", "compact 5x5", &[][..]),
        ("plan-path", "compact 10x10", &["size=10", "moves=3"][..]),
        ("plan-path", "full 10x10", &["size=10", "encoding=full"][..]),
        ("sudoku", "compact 4x4", &[][..]),
        ("sudoku", "full 9x9", &["size=9", "encoding=full"][..]),
        ("sokoban", "compact 6x6", &[][..]),
        ("sokoban", "full 6x6", &["encoding=full"][..]),
    ] {
        steps(environment, name, settings, if name.starts_with("full") { STEPS / 10 } else { STEPS });
    }
    for environment in ["plan-path", "sudoku", "sokoban"] {
        tasks(environment);
    }
}

fn selection(environment: &dyn Environment, settings: &[&str]) -> Selection {
    let texts: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
    let settings = Settings::parse(&texts, environment.name(), environment.metadata().settings).unwrap();
    Selection { split: Split::Train, seed: 7, settings }
}

fn steps(environment: &str, name: &str, settings: &[&str], steps: u64) {
    let environment = find(environment).unwrap();
    let tasks = environment.tasks(&selection(environment, settings)).unwrap().take(64);
    let starts: Vec<Box<dyn State>> =
        tasks.map(|task| environment.reset(&task.unwrap().spec, "team").unwrap()).collect();
    let answers: Vec<[Vec<String>; 2]> =
        starts.iter().map(|state| ["tool", "planner"].map(|agent| state.test_actions(agent))).collect();
    let mut draws = Draws::new(Stream::named(1, &[Part::Text("bench")]));
    let began = Instant::now();
    let (mut done, mut rewards) = (0, 0.0);
    'all: loop {
        for (start, answers) in starts.iter().zip(&answers) {
            let mut state = start.clone_state();
            for _turn in 0..4 {
                for (agent, answers) in ["tool", "planner"].into_iter().zip(answers) {
                    black_box(state.observe(agent));
                    let mut after = state.clone_state();
                    let answer = &answers[draws.below(answers.len() as u32) as usize];
                    let outcome = after.apply(agent, answer).unwrap();
                    rewards += outcome.rewards.team + outcome.rewards.local;
                    done += 1;
                    if done == steps {
                        break 'all;
                    }
                    if !outcome.terminated {
                        state = after;
                    }
                }
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{:<10} {name:<14} {:>12.0} steps/s  (mean reward {:.3})",
        environment.name(),
        steps as f64 / seconds,
        rewards / steps as f64
    );
}

fn tasks(environment: &str) {
    let environment = find(environment).unwrap();
    let count = 20_000;
    let began = Instant::now();
    for task in environment.tasks(&selection(environment, &[])).unwrap().take(count) {
        black_box(environment.reset(&task.unwrap().spec, "team").unwrap());
    }
    println!(
        "{:<10} {:<14} {:>12.0} tasks/s, drawn and reset",
        environment.name(),
        "compact",
        count as f64 / began.elapsed().as_secs_f64()
    );
}
