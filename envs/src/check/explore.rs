//! Every situation that can be reached on one task, and every probe in each.
//!
//! Situations are those at the beginning of a turn; within a turn the agents before the last one follow the
//! oracle while all their probes are scored. The last agent's probes lead to the next situations.

use std::collections::{HashMap, VecDeque};

use record::failure::Result;
use record::line::Task;

use super::{Ledger, outcome_rules, place};
use crate::environment::{Environment, Outcome, State, Workflow};
use crate::step;

/// Situations explored on one task; what lies beyond is not looked at.
const SITUATIONS: usize = 1000;
/// Rounding that is no difference between sums of rewards.
const ROUNDING: f64 = 1e-9;

/// A turn that leads from a situation: the team's reward, and the situation after it, none if the episode is
/// over.
struct Turn {
    team: f64,
    next: Option<String>,
}

/// A situation with every turn that was tried in it, the oracle's first.
struct Situation {
    turns: Vec<Turn>,
}

/// Tests the rules of states in every situation of `task`.
pub fn explore(
    environment: &dyn Environment,
    task: &Task,
    workflow: &Workflow,
    ledger: &mut Ledger,
) -> Result<()> {
    let start = environment.reset(&task.spec, workflow.name)?;
    let turn_limit = start.turn_limit();
    let first = start.to_json().to_string();
    let mut situations: HashMap<String, Situation> = HashMap::new();
    let mut queue = VecDeque::from([(first.clone(), start)]);
    while let Some((key, state)) = queue.pop_front() {
        if situations.contains_key(&key) || situations.len() == SITUATIONS {
            continue;
        }
        let turns = turn(environment, state, situations.len(), ledger, &mut queue)?;
        situations.insert(key, Situation { turns });
    }
    solvable(&situations, &first, turn_limit, task, ledger);
    most_team_reward(&situations, &first, turn_limit, task, ledger);
    Ok(())
}

/// Tries every probe of every agent of a turn, the oracle's answer first.
fn turn(
    environment: &dyn Environment,
    mut state: Box<dyn State>,
    number: usize,
    ledger: &mut Ledger,
    queue: &mut VecDeque<(String, Box<dyn State>)>,
) -> Result<Vec<Turn>> {
    let agents: Vec<&'static str> = state.workflow().agents.to_vec();
    let mut turns = Vec::new();
    for (index, agent) in agents.iter().enumerate() {
        let before = state.to_json();
        let mut texts = vec![state.oracle(agent).unwrap_or_default()];
        texts.extend(state.probes(agent));
        fidelity(environment, &*state, agent, &texts[number % texts.len()], ledger)?;
        let mut best: Option<(Outcome, Box<dyn State>)> = None;
        for text in &texts {
            let mut after = state.clone_state();
            let outcome = after.apply(agent, text)?;
            let here = || place(&*state, agent, text);
            outcome_rules(environment, &outcome, ledger, here);
            ledger.rule("a success is one to the oracle", outcome.success == after.is_solved(), here);
            if let Some((oracle, _)) = &best {
                let (ours, theirs) = (outcome.rewards, oracle.rewards);
                let holds = ours.team <= theirs.team + ROUNDING && ours.local <= theirs.local + ROUNDING;
                ledger.rule("no action scores above the oracle's", holds, || {
                    format!("{}: {ours:?}, the oracle's {theirs:?}", here())
                });
            }
            if index + 1 == agents.len() {
                let next = (!outcome.terminated).then(|| after.to_json().to_string());
                turns.push(Turn { team: outcome.rewards.team, next: next.clone() });
                if let Some(key) = next {
                    queue.push_back((key, after.clone_state()));
                }
            }
            best.get_or_insert((outcome, after));
        }
        ledger.rule("a clone leaves its original alone", state.to_json() == before, || before.to_string());
        if let Some((_, after)) = best {
            state = after;
        }
    }
    Ok(turns)
}

/// Clones, JSON and the step protocol all have the same future.
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
    // Compared as text, because a number parsed from its text need not be the same to the last bit.
    let says = |key: &str, value: serde_json::Value| answer.contains(&format!("\"{key}\":{value}"));
    let same = answer == step::answer(environment, &request)
        && says("state", one.to_json())
        && says("rewards", serde_json::json!(first.rewards))
        && says("terminated", first.terminated.into())
        && says("success", first.success.into());
    ledger.rule("`envs step` is a pure function", same, || format!("{}: {answer}", here()));
    Ok(())
}

/// The oracle's turns, one after another from the beginning.
fn oracle_path<'a>(
    situations: &'a HashMap<String, Situation>,
    first: &str,
    turn_limit: u32,
) -> impl Iterator<Item = &'a Turn> {
    let mut key = Some(first.to_owned());
    (0..turn_limit).map_while(move |_| {
        let turn = situations.get(&key.take()?)?.turns.first()?;
        key.clone_from(&turn.next);
        Some(turn)
    })
}

fn solvable(
    situations: &HashMap<String, Situation>,
    first: &str,
    turn_limit: u32,
    task: &Task,
    ledger: &mut Ledger,
) {
    let solved = oracle_path(situations, first, turn_limit).any(|turn| turn.next.is_none());
    ledger.rule("the oracle solves every task", solved, || task.task.clone());
}

/// No path of up to twice the turns collects more team reward than the oracle's.
fn most_team_reward(
    situations: &HashMap<String, Situation>,
    first: &str,
    turn_limit: u32,
    task: &Task,
    ledger: &mut Ledger,
) {
    let oracle: f64 = oracle_path(situations, first, turn_limit).map(|turn| turn.team).sum();
    let mut most: HashMap<&str, f64> = HashMap::new();
    for _ in 0..2 * turn_limit {
        let beyond = |turn: &Turn| turn.next.as_deref().and_then(|key| most.get(key)).copied().unwrap_or(0.0);
        let value = |situation: &Situation| {
            situation.turns.iter().map(|turn| turn.team + beyond(turn)).fold(0.0, f64::max)
        };
        most = situations.iter().map(|(key, situation)| (key.as_str(), value(situation))).collect();
    }
    let most = most.get(first).copied().unwrap_or(0.0);
    ledger.rule("no path collects more team reward than the oracle's", most <= oracle + ROUNDING, || {
        format!("{}: {most} against {oracle}", task.task)
    });
}
