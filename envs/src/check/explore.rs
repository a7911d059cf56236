//! Explores every situation that can be reached on a task, with every test action in each.
//!
//! Situations are states at the start of a turn. Within a turn, the stages before the last follow the
//! oracle, and all their test actions are scored; the test actions of the last stage lead to the next
//! situations. Without an oracle the best test action is followed, and rules about the oracle are skipped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use record::failure::Result;
use record::line::Task;
use record::sample::Rewards;

use super::program::Checker;
use super::{Ledger, outcome_rules, place, unless_interrupted};
use environment::{Outcome, State};

/// Situations of a task that are explored at most.
const MAX_SITUATIONS: usize = 100;
/// Rounding error allowed between sums of rewards.
const ROUNDING: f64 = 1e-9;

/// Outcome of one turn from a situation: the team reward, team and local reward of each agent of the last
/// stage, whether the task is solved, and the next situation (`None` at the end of the episode).
struct TurnOutcome {
    team: f64,
    both: Vec<f64>,
    solved: bool,
    next: Option<String>,
}

/// All turns tried in each situation, the oracle's first if there is an oracle.
type Situations = HashMap<String, Vec<TurnOutcome>>;

/// Tests the rules of states in every situation of `task`.
pub fn explore(
    checker: &Checker<'_>,
    task: &Task,
    workflow: Option<&str>,
    ledger: &mut Ledger,
) -> Result<()> {
    let start = checker.begin(task, workflow)?;
    let turn_limit = start.turn_limit();
    let first = start.to_json().to_string();
    let idle = idle(&*start)?;
    let has_oracle = has_oracle(&*start);
    let mut situations = Situations::new();
    let mut queue = VecDeque::from([(first.clone(), start)]);
    while let Some((key, state)) = queue.pop_front() {
        if situations.contains_key(&key) || situations.len() == MAX_SITUATIONS {
            continue;
        }
        let turns = turn(checker, state, situations.len(), ledger, &mut queue)?;
        situations.insert(key, turns);
    }
    if has_oracle {
        let path = || oracle_path(&situations, &first, turn_limit);
        let solved = path().any(|turn| turn.solved);
        ledger.rule("the oracle solves every task", solved, || task.task.clone());
        let oracle: f64 = path().map(|turn| turn.team).sum();
        let most = most(&situations, &first, 2 * turn_limit, |turn| turn.team);
        let holds = most <= oracle + ROUNDING;
        ledger.rule("no path collects more team reward than the oracle's", holds, || {
            format!("{}: {most} against {oracle}", task.task)
        });
        let agents = situations.get(&first).and_then(|turns| Some(turns.first()?.both.len())).unwrap_or(0);
        for agent in 0..agents {
            let both = |turn: &TurnOutcome| turn.both.get(agent).copied().unwrap_or(turn.team);
            let oracle: f64 = path().map(both).sum();
            let most = self::most(&situations, &first, turn_limit, both);
            ledger.advice("idling pays nothing under --credit return", most <= oracle + ROUNDING, || {
                format!("{}: an agent can collect {most:.2}, and {oracle:.2} without idling", task.task)
            });
        }
    }
    ledger.advice("saying nothing earns the team nothing", idle <= ROUNDING, || {
        let most = most(&situations, &first, turn_limit, |turn| turn.team);
        format!(
            "{}: {idle:.2} for an episode without a word, {most:.2} at most on the paths tried",
            task.task
        )
    });
    Ok(())
}

/// The team's total reward if nobody ever says anything.
fn idle(start: &dyn State) -> Result<f64> {
    let (mut state, mut team) = (start.clone_state(), 0.0);
    let workflow = Arc::clone(start.workflow());
    for stage in (0..start.turn_limit()).flat_map(|_| 0..workflow.stages()) {
        let agents = workflow.agents()[workflow.stage(stage)].iter().map(String::as_str);
        let silent: Vec<(&str, &str)> =
            agents.filter(|agent| state.acts(agent)).map(|agent| (agent, "")).collect();
        let outcome = match silent[..] {
            [] => continue,
            [(agent, text)] => state.apply(agent, text)?,
            _ => state.apply_together(&silent)?,
        };
        team += outcome.rewards.team;
        if outcome.terminated {
            break;
        }
    }
    Ok(team)
}

/// Returns true if the first agent that acts has an oracle here.
pub fn has_oracle(state: &dyn State) -> bool {
    state
        .workflow()
        .agents()
        .iter()
        .find(|agent| state.acts(agent))
        .is_some_and(|agent| state.oracle(agent).is_some())
}

/// Tries every test action of every agent of a turn, the oracle's answer first.
fn turn(
    checker: &Checker<'_>,
    mut state: Box<dyn State>,
    number: usize,
    ledger: &mut Ledger,
    queue: &mut VecDeque<(String, Box<dyn State>)>,
) -> Result<Vec<TurnOutcome>> {
    let workflow = Arc::clone(state.workflow());
    // Turns that end before their last stage.
    let mut early = Vec::new();
    for number_of_stage in 0..workflow.stages() {
        let acting = state.acting(number_of_stage);
        if acting.is_empty() {
            continue;
        }
        let agents: Vec<String> = acting.iter().map(|agent| workflow.agents()[*agent].clone()).collect();
        let alone = workflow.stage(number_of_stage).len() == 1;
        let tries = stage(checker, &*state, &agents, alone, number, ledger)?;
        // All agents of the remaining stages may skip their turn.
        let is_last = |after: &dyn State| {
            (number_of_stage + 1..workflow.stages()).all(|later| after.acting(later).is_empty())
        };
        let mut turns = Vec::new();
        for (number, Try { outcome, after, local }) in tries.iter().enumerate() {
            let next = (!outcome.terminated).then(|| after.to_json().to_string());
            let last = next.is_some() && is_last(&**after);
            if last || next.is_none() {
                let team = outcome.rewards.team;
                let both = local.iter().map(|local| team + local).collect();
                turns.push(TurnOutcome { team, both, solved: outcome.success, next: next.clone() });
            }
            match next.filter(|_| last).map(|key| (key, after.clone_state())) {
                None => {}
                // The oracle's path is explored to its end before the limit of situations is reached.
                Some(situation) if number == 0 => queue.push_front(situation),
                Some(situation) => queue.push_back(situation),
            }
        }
        match tries.into_iter().next() {
            // The oracle's turn comes first.
            Some(oracle) if oracle.outcome.terminated || is_last(&*oracle.after) => {
                turns.append(&mut early);
                return Ok(turns);
            }
            Some(oracle) => state = oracle.after,
            None => break,
        }
        early.append(&mut turns);
    }
    Ok(early)
}

/// The result of a stage's actions: the outcome, the next state, and each agent's local reward.
struct Try {
    outcome: Outcome,
    after: Box<dyn State>,
    local: Vec<f64>,
}

/// Tries every test action of the `agents` of one stage; returns the results, with the oracle's answer (or
/// the best) first. In a stage of several agents, each action is scored alone, then together with the
/// oracle's answers of the others, and with the others' test actions of the same index. With `only`, for a
/// stage of one agent, actions are just scored alone.
fn stage(
    checker: &Checker<'_>,
    state: &dyn State,
    agents: &[String],
    only: bool,
    number: usize,
    ledger: &mut Ledger,
) -> Result<Vec<Try>> {
    let before = state.to_json();
    let mut answers: Vec<Vec<String>> = Vec::new();
    let mut alone = Vec::new();
    // Where each agent's answers start in `alone`.
    let mut starts = Vec::new();
    for agent in agents {
        let oracle = state.oracle(agent);
        let has_oracle = oracle.is_some();
        let mut texts: Vec<String> = oracle.into_iter().chain(state.test_actions(agent)).collect();
        if texts.is_empty() {
            texts.push(String::new()); // a state without checks has no test actions
        }
        checker.fidelity(state, agent, &texts[number % texts.len()], ledger)?;
        let first = alone.len();
        starts.push(first);
        for text in &texts {
            unless_interrupted()?;
            let mut after = state.clone_state();
            let outcome = after.apply(agent, text)?;
            judge(state, &outcome, has_oracle.then_some(&*after), ledger, || place(state, agent, text));
            alone.push((outcome, after));
            if !has_oracle {
                continue;
            }
            let (ours, theirs) = (&alone[alone.len() - 1].0, &alone[first].0);
            let by_agent = !ours.locals.is_empty() || !theirs.locals.is_empty();
            let (ours, theirs) = (ours.rewards, theirs.rewards);
            let case = || {
                let shown = |rewards: Rewards| format!("team {}, local {}", rewards.team, rewards.local);
                format!("{}: {}; the oracle's {}", place(state, agent, text), shown(ours), shown(theirs))
            };
            let earns_less = ours.local <= theirs.local + ROUNDING;
            let holds = ours.team <= theirs.team + ROUNDING && (by_agent || earns_less);
            ledger.rule("no action scores above the oracle's", holds, case);
            // With pay by agent the oracle may be the one of the team, and the interest of an agent another.
            if by_agent {
                ledger.advice("no action pays its agent more than the oracle's", earns_less, case);
            }
        }
        if !has_oracle {
            let worth = |(outcome, _): &(Outcome, _)| outcome.rewards.team + outcome.rewards.local;
            let best = (first..alone.len()).fold(first, |best, other| {
                if worth(&alone[other]) > worth(&alone[best]) { other } else { best }
            });
            alone.swap(first, best);
            texts.swap(0, best - first);
        }
        answers.push(texts);
    }
    if only {
        let tried =
            |(outcome, after): (Outcome, _)| Try { local: vec![outcome.rewards.local], outcome, after };
        return Ok(alone.into_iter().map(tried).collect());
    }
    let mut together: Vec<Try> = Vec::new();
    for numbers in joint(&answers) {
        unless_interrupted()?;
        let texts = answers.iter().zip(&numbers).map(|(texts, &number)| texts[number].as_str());
        let actions: Vec<(&str, &str)> = agents.iter().map(String::as_str).zip(texts).collect();
        let local = starts.iter().zip(&numbers).map(|(start, number)| alone[start + number].0.rewards.local);
        let (mut after, mut again) = (state.clone_state(), state.clone_state());
        let outcome = after.apply_together(&actions)?;
        let here = || format!("{actions:?} at {before}");
        let same = outcome == again.apply_together(&actions)? && after.to_json() == again.to_json();
        ledger.rule("the same action has the same consequence", same, here);
        ledger.rule("a joint action has no order", has_no_order(state, &actions, &outcome, &*after)?, here);
        judge(state, &outcome, has_oracle(state).then_some(&*after), ledger, here);
        together.push(Try { outcome, after, local: local.collect() });
        let (ours, theirs) =
            (together[together.len() - 1].outcome.rewards.team, together[0].outcome.rewards.team);
        if !has_oracle(state) {
            continue;
        }
        ledger.rule("no joint action scores above the oracle's", ours <= theirs + ROUNDING, || {
            format!("{}: {ours}, the oracle's {theirs}", here())
        });
    }
    Ok(together)
}

/// Returns true if a joint action has the same effect in reverse order: on the team and each agent
/// (`outcome`), on the state `after` it, and on each agent given the others' actions.
fn has_no_order(
    state: &dyn State,
    actions: &[(&str, &str)],
    outcome: &Outcome,
    after: &dyn State,
) -> Result<bool> {
    let backward: Vec<(&str, &str)> = actions.iter().rev().copied().collect();
    let mut reversed = state.clone_state();
    let other = reversed.apply_together(&backward)?;
    let mut same = other == *outcome && reversed.to_json() == after.to_json();
    // With two agents, the others are a single agent, so there is no order to test.
    for (agent, text) in actions.iter().filter(|_| actions.len() > 2) {
        let beside = |actions: &[(&str, &str)]| {
            let others: Vec<(&str, &str)> =
                actions.iter().copied().filter(|(other, _)| other != agent).collect();
            state.clone_state().apply_beside(agent, text, &others)
        };
        same = same && beside(actions)? == beside(&backward)?;
    }
    Ok(same)
}

/// Joint answers to try, as indices of each agent's answers: all agents' first (the oracle's); each answer
/// with the others' first; all agents' answers of the same index.
fn joint(answers: &[Vec<String>]) -> Vec<Vec<usize>> {
    let oracle = vec![0; answers.len()];
    let mut joint = vec![oracle.clone()];
    for (agent, texts) in answers.iter().enumerate() {
        for number in 1..texts.len() {
            let mut one = oracle.clone();
            one[agent] = number;
            joint.push(one);
        }
    }
    let most = answers.iter().map(Vec::len).max().unwrap_or(0);
    joint.extend((1..most).map(|number| answers.iter().map(|texts| number % texts.len()).collect()));
    joint
}

/// Rules about the outcome of an action or joint action in the state `before`. `after` is the next state,
/// if an oracle can judge it.
fn judge(
    before: &dyn State,
    outcome: &Outcome,
    after: Option<&dyn State>,
    ledger: &mut Ledger,
    here: impl Fn() -> String,
) {
    outcome_rules(before.reward_range(), outcome, ledger, &here);
    if let Some(after) = after {
        ledger.rule("a success is one to the oracle", outcome.success == after.is_solved(), here);
    }
}

/// The oracle's turns, one after another from the beginning.
fn oracle_path<'a>(
    situations: &'a Situations,
    first: &str,
    turn_limit: u32,
) -> impl Iterator<Item = &'a TurnOutcome> {
    let mut key = Some(first.to_owned());
    (0..turn_limit).map_while(move |_| {
        let turn = situations.get(&key.take()?)?.first()?;
        key.clone_from(&turn.next);
        Some(turn)
    })
}

/// The largest sum of `reward` over a path of up to `turns` turns.
fn most(situations: &Situations, first: &str, turns: u32, reward: impl Fn(&TurnOutcome) -> f64) -> f64 {
    let mut most: HashMap<&str, f64> = HashMap::new();
    for _ in 0..turns {
        let beyond =
            |turn: &TurnOutcome| turn.next.as_deref().and_then(|key| most.get(key)).copied().unwrap_or(0.0);
        let value =
            |turns: &[TurnOutcome]| turns.iter().map(|turn| reward(turn) + beyond(turn)).fold(0.0, f64::max);
        most = situations.iter().map(|(key, turns)| (key.as_str(), value(turns))).collect();
    }
    most.get(first).copied().unwrap_or(0.0)
}
