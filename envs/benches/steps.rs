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

use envs::{Selection, Settings, Split, State, find};
use record::philox::{Draws, Part, Stream};

const STEPS: u64 = 2_000_000;

fn main() {
    for (name, settings) in [
        ("compact 5x5", &[][..]),
        ("compact 10x10", &["size=10", "moves=3"][..]),
        ("full 10x10", &["size=10", "encoding=full"][..]),
    ] {
        steps(name, settings, if name.starts_with("full") { STEPS / 4 } else { STEPS });
    }
    tasks();
}

fn selection(settings: &[&str]) -> Selection {
    let texts: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
    let environment = find("plan-path").unwrap();
    let settings = Settings::parse(&texts, "plan-path", environment.settings()).unwrap();
    Selection { split: Split::Train, seed: 7, settings }
}

fn steps(name: &str, settings: &[&str], steps: u64) {
    let environment = find("plan-path").unwrap();
    let tasks = environment.tasks(&selection(settings)).unwrap().take(64);
    let starts: Vec<Box<dyn State>> =
        tasks.map(|task| environment.reset(&task.unwrap().spec, "team").unwrap()).collect();
    let answers: Vec<[Vec<String>; 2]> =
        starts.iter().map(|state| ["tool", "planner"].map(|agent| state.probes(agent))).collect();
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
        "{name:<16} {:>12.0} steps/s  (mean reward {:.3})",
        steps as f64 / seconds,
        rewards / steps as f64
    );
}

fn tasks() {
    let environment = find("plan-path").unwrap();
    let count = 100_000;
    let began = Instant::now();
    for task in environment.tasks(&selection(&[])).unwrap().take(count) {
        black_box(environment.reset(&task.unwrap().spec, "team").unwrap());
    }
    println!(
        "{:<16} {:>12.0} tasks/s, drawn and reset",
        "compact 5x5",
        count as f64 / began.elapsed().as_secs_f64()
    );
}
