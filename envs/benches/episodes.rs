//! Whole Plan-Path episodes as text, written for other engines to play, and timed as `rollout` and as those engines play them.
//!
//! ```text
//! cargo bench -p envs --bench episodes -- write team 2000 > team.jsonl
//! cargo bench -p envs --bench episodes -- time team.jsonl 2
//! ```
//!
//! `write` draws tasks and answers and records each outcome, so that an engine in another language can be
//! shown to play the same game. `time` plays a file over and over and prints steps per CPU-second, three
//! ways. Left out: the comparison itself, which is `bench/speed/environments.py`.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]

use std::hint::black_box;

use envs::{Selection, Settings, Split, State, find};
use record::philox::{Draws, Part, Stream};
use serde_json::{Value, json};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", workflow, count] => write(workflow, count.parse().unwrap()),
        ["time", file, seconds] => time(file, seconds.parse().unwrap()),
        // `cargo bench` and `cargo test` run every bench without arguments.
        _ => println!("episodes: write WORKFLOW COUNT, or time FILE SECONDS"),
    }
}

/// Draws episodes and writes each as a line: the spec, and for each step who sees what, says what and earns what.
fn write(workflow: &str, count: usize) {
    let environment = find("plan-path").unwrap();
    let selection = Selection { split: Split::Train, seed: 7, settings: Settings::default() };
    for (number, task) in environment.tasks(&selection).unwrap().take(count).enumerate() {
        let spec = task.unwrap().spec;
        let mut state = environment.reset(&spec, workflow).unwrap();
        let name = [Part::Text("episodes"), Part::Number(number as u64)];
        let mut draws = Draws::new(Stream::named(1, &name));
        let mut steps = Vec::new();
        let agents: Vec<String> = state.workflow().agents().to_vec();
        'episode: for _ in 0..state.turn_limit() {
            for agent in &agents {
                let observation = state.observe(agent)[0].content.clone();
                // Half of the answers are the best ones, so that episodes come to an end; the others are of every kind.
                let probes = state.test_actions(agent);
                let action = match draws.below(2) {
                    0 => state.oracle(agent).unwrap(),
                    _ => draws.choose(&probes).unwrap().clone(),
                };
                let outcome = state.apply(agent, &action).unwrap();
                steps.push(json!({
                    "agent": agent, "observation": observation, "action": action, "rewards": outcome.rewards,
                    "components": outcome.components, "terminated": outcome.terminated,
                }));
                if outcome.terminated {
                    break 'episode;
                }
            }
        }
        println!("{}", json!({"workflow": workflow, "spec": spec, "steps": steps}));
    }
}

struct Episode {
    spec: Value,
    start: Box<dyn State>,
    steps: Vec<(String, String)>,
}

/// CPU time of this thread so far, in seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Plays the episodes of a file repeatedly, for `seconds` CPU-seconds each way.
fn time(file: &str, seconds: f64) {
    let environment = find("plan-path").unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let mut workflow = String::new();
    let episodes: Vec<Episode> = text
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            workflow = line["workflow"].as_str().unwrap().to_owned();
            let text = |step: &Value, key: &str| step[key].as_str().unwrap().to_owned();
            let steps = line["steps"].as_array().unwrap();
            Episode {
                spec: line["spec"].clone(),
                start: environment.reset(&line["spec"], &workflow).unwrap(),
                steps: steps.iter().map(|step| (text(step, "agent"), text(step, "action"))).collect(),
            }
        })
        .collect();
    let rate = |play: &dyn Fn(&Episode)| {
        let steps: usize = episodes.iter().map(|episode| episode.steps.len()).sum();
        let (began, mut done) = (cpu(), 0);
        while cpu() - began < seconds {
            episodes.iter().for_each(play);
            done += steps;
        }
        done as f64 / (cpu() - began)
    };
    // In place, as in-place environments are played: observe, act.
    let act = |mut state: Box<dyn State>, episode: &Episode| {
        for (agent, action) in &episode.steps {
            black_box(state.observe(agent));
            black_box(state.apply(agent, action).unwrap());
        }
    };
    let steps = rate(&|episode| act(episode.start.clone_state(), episode));
    let whole = rate(&|episode| act(environment.reset(&episode.spec, &workflow).unwrap(), episode));
    // On a copy of the state, as `rollout` scores a candidate.
    let tree = rate(&|episode| {
        let mut state = episode.start.clone_state();
        for (agent, action) in &episode.steps {
            black_box(state.observe(agent));
            let mut after = state.clone_state();
            black_box(after.apply(agent, action).unwrap());
            state = after;
        }
    });
    println!("{}", json!({"steps": steps, "whole": whole, "tree": tree}));
}
