//! Demonstrations of word problems by imperfect experts, to warm a tiny policy up on.
//!
//! Each answer is given by one demonstrator, drawn by the mix: `opt` works the story out, `short` forgets its last step,
//! `slip` is one off from some step on, `random` answers anything. Half of the situations are the beginning, the other
//! half a later turn, in which everyone has said something before; there a reasoner or judge goes along with what one of
//! the others said with probability `follow`, and a tool always writes a chain of its own. Forgetting is what most do:
//! a majority habit survives greedy decoding and can be mended by reinforcement, rare mistakes average out.
//!
//! Only for the compact encoding: a pretrained model needs no warm-up, and prose of ours would teach it our style.

use std::sync::Arc;

use record::failure::{Failure, Result};
use record::philox::{Draws, Part, Stream};
use record::sample::Sample;

use super::spec::{Encoding, Problem, Rules};
use super::state::{MathState, Role};
use super::story::Chain;
use super::{NAME, compact, generate};
use crate::demonstration::{self, Demonstration};
use crate::environment::{Split, State};
use crate::streams;
use crate::workflow::Workflow;

/// The kinds and their default shares.
pub const KINDS: &[(&str, f64)] = &[("opt", 0.35), ("short", 0.45), ("slip", 0.15), ("random", 0.05)];

/// What a demonstrator of `kind` answers.
fn answer(kind: &str, role: Role, chain: &Chain, draws: &mut Draws) -> String {
    let mut chain = chain.clone();
    match kind {
        "short" if chain.steps.len() > 1 => {
            chain.steps.pop();
        }
        // A story of one step: what it begins with.
        "short" => chain.steps.clear(),
        "random" => chain = Chain::draw(1 + draws.below(3), 20, draws),
        "slip" if role == Role::Tool => {
            let at = draws.below(chain.steps.len().max(1) as u32) as usize;
            if let Some((_, operand)) = chain.steps.get_mut(at) {
                *operand += 1;
            }
        }
        _ => {}
    }
    if role == Role::Tool {
        return chain.write();
    }
    let mut totals = chain.totals().unwrap_or_default();
    if totals.is_empty() {
        totals.push(chain.start);
    }
    if kind == "slip" {
        let at = draws.below(totals.len() as u32) as usize;
        let up = draws.below(2) == 1;
        for total in &mut totals[at..] {
            *total = if up { *total + 1 } else { total.saturating_sub(1) };
        }
    }
    compact::write_totals(&totals)
}

/// The samples about the task at `index`.
///
/// # Errors
/// The full encoding: usage.
pub fn samples(
    rules: &Rules,
    workflow: &Arc<Workflow>,
    demonstration: &Demonstration,
    index: u64,
) -> Result<Vec<Sample>> {
    if rules.encoding == Encoding::Full {
        return Err(Failure::usage("there are demonstrations of the compact encoding only")
            .hint("a pretrained policy needs no warm-up; leave --set encoding=full out for a tiny one"));
    }
    let seed = demonstration.tasks.seed;
    let task = generate::word_problem(rules, Split::Train, streams::train_stream(NAME, seed, index))?;
    let problem = Arc::new(Problem::parse(&task.spec)?);
    let Some(chain) = problem.chain.clone() else { return Ok(Vec::new()) };
    let mut draws =
        Draws::new(Stream::named(seed, &[Part::Text(NAME), Part::Text("demo"), Part::Number(index)]));
    let mut samples = Vec::new();
    for number in 0..demonstration.states {
        let mut state = MathState::new(Arc::clone(&problem), Arc::clone(workflow));
        let episode = format!("{index}.{number}");
        // An earlier turn, if it did not end the episode.
        if number % 2 == 1 {
            let mut later = state.clone();
            if !turn(&mut later, &chain, demonstration, &mut draws, |_, _, _| {})? {
                state = later;
            }
        }
        turn(&mut state, &chain, demonstration, &mut draws, |state, agent, text| {
            samples.push(demonstration::sample(
                &task,
                &episode,
                agent,
                state.observe(agent),
                text.to_owned(),
            ));
        })?;
    }
    Ok(samples)
}

/// Plays a turn; `tell` is shown what every agent saw and said. Whether the episode is over.
fn turn(
    state: &mut MathState,
    chain: &Chain,
    demonstration: &Demonstration,
    draws: &mut Draws,
    mut tell: impl FnMut(&MathState, &str, &str),
) -> Result<bool> {
    let workflow = Arc::clone(state.workflow());
    for stage in 0..workflow.stages() {
        let agents = &workflow.agents()[workflow.stage(stage)];
        let mut texts = Vec::with_capacity(agents.len());
        for agent in agents {
            let role = Role::of(agent);
            let others: Vec<&str> = workflow
                .agents()
                .iter()
                .filter(|other| *other != agent)
                .filter_map(|other| state.said(other)?.answer.as_deref())
                .collect();
            let follows = role != Role::Tool && f64::from(draws.uniform()) < demonstration.follow;
            let text = match draws.choose(&others) {
                Some(said) if follows => state.write(agent, said),
                _ => {
                    let kind = demonstration.kind(draws).to_owned();
                    answer(&kind, role, chain, draws)
                }
            };
            tell(state, agent, &text);
            texts.push((agent.as_str(), text));
        }
        let actions: Vec<(&str, &str)> = texts.iter().map(|(agent, text)| (*agent, text.as_str())).collect();
        if state.apply_together(&actions)?.terminated {
            return Ok(true);
        }
    }
    Ok(false)
}
