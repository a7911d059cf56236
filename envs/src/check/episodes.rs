//! Many random episodes: the rewards they collect, whether these vary, and how they end.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::Result;
use record::line::Task;
use record::philox::{Draws, Part, Stream};

use super::explore::has_oracle;
use super::program::Checker;
use super::{Effort, Ledger, outcome_rules, place, unless_interrupted};
use environment::{Outcome, State};

/// Episodes between progress reports.
const STRIDE: u64 = 100;

/// Plays `effort.episodes` episodes of `tasks` with random test actions, some of them repeated turn after turn.
pub fn play(
    checker: &Checker<'_>,
    effort: &Effort,
    tasks: &[Task],
    ledger: &mut Ledger,
    advance: &mut dyn FnMut(),
) -> Result<()> {
    let mut earned = Earned::new();
    for (number, task) in (0..effort.episodes).zip(tasks.iter().cycle()) {
        let workflow = checker.workflows[number as usize % checker.workflows.len()].as_deref();
        let name = [Part::Text("check"), Part::Number(number)];
        let mut draws = Draws::new(Stream::named(effort.seed, &name));
        let start = checker.begin(task, workflow)?;
        let best = match has_oracle(&*start) {
            true => Some(collect(&mut *start.clone_state(), ledger, &mut earned, &mut |state, agent| {
                state.oracle(agent).unwrap_or_default()
            })?),
            false => None,
        };
        let mut state = start;
        // A quarter of the episodes goes back and forth, which exploits careless rewards.
        let stubborn = draws.below(4) == 0;
        let mut turn = 0;
        let random = collect(&mut *state, ledger, &mut earned, &mut |state, agent| {
            let actions = state.test_actions(agent);
            turn += 1;
            match draws.choose(&actions) {
                Some(action) if !stubborn || turn % 3 != 0 => action.clone(),
                _ => actions.get(turn % 4).cloned().unwrap_or_default(),
            }
        })?;
        if let Some(best) = best {
            ledger.rule(
                "random play never collects more than the oracle",
                random.team <= best.team + 1e-9,
                || format!("{}: {} against {}", task.task, random.team, best.team),
            );
            ledger.rule("a success is one to the oracle", random.success == state.is_solved(), || {
                format!("{}: success {} at {}", task.task, random.success, state.to_json())
            });
        }
        // Empty actions only: the episode runs out of turns.
        let mut idle = checker.begin(task, workflow)?;
        let nothing = collect(&mut *idle, ledger, &mut earned, &mut |_, _| String::new())?;
        ledger.rule("running out of turns is no success", !nothing.success, || task.task.clone());
        if number % STRIDE == STRIDE - 1 {
            advance();
        }
    }
    for (agent, (least, most)) in earned {
        ledger.advice("what an agent earns depends on what it says", least < most, || {
            format!("{agent} earned {least} in every turn: all of its groups will be flat")
        });
    }
    Ok(())
}

/// The range of the team's and the local reward of a turn, by agent: (least, most).
type Earned = BTreeMap<String, (f64, f64)>;

struct Total {
    team: f64,
    success: bool,
}

/// Plays until the end or the turn limit. The team reward of a turn is its last stage's.
fn collect(
    state: &mut dyn State,
    ledger: &mut Ledger,
    earned: &mut Earned,
    answer: &mut dyn FnMut(&dyn State, &str) -> String,
) -> Result<Total> {
    let workflow = Arc::clone(state.workflow());
    let mut total = Total { team: 0.0, success: false };
    for _ in 0..state.turn_limit() {
        unless_interrupted()?;
        let mut last: Option<Outcome> = None;
        for stage in 0..workflow.stages() {
            let acting = state.acting(stage);
            let agents: Vec<&String> = acting.iter().map(|agent| &workflow.agents()[*agent]).collect();
            if agents.is_empty() {
                continue;
            }
            let texts: Vec<(&str, String)> =
                agents.iter().map(|agent| (agent.as_str(), answer(state, agent))).collect();
            let here = state.clone_state();
            let outcome = match texts.as_slice() {
                [(agent, text)] if workflow.stage(stage).len() == 1 => state.apply(agent, text)?,
                texts => {
                    let actions: Vec<(&str, &str)> =
                        texts.iter().map(|(agent, text)| (*agent, text.as_str())).collect();
                    state.apply_together(&actions)?
                }
            };
            outcome_rules(here.reward_range(), &outcome, ledger, || {
                texts.iter().map(|(agent, text)| place(&*here, agent, text)).collect::<Vec<_>>().join("; ")
            });
            for agent in agents {
                let own = outcome.locals.get(agent).copied().unwrap_or(outcome.rewards.local);
                let reward = outcome.rewards.team + own;
                let (least, most) = earned.entry(agent.clone()).or_insert((reward, reward));
                (*least, *most) = (least.min(reward), most.max(reward));
            }
            let over = outcome.terminated;
            last = Some(outcome);
            if over {
                break;
            }
        }
        let Some(outcome) = last else { break };
        total.team += outcome.rewards.team;
        total.success |= outcome.success;
        if outcome.terminated {
            break;
        }
    }
    Ok(total)
}
