//! The choice of joint actions and of those that are followed, and the limits of both.

use std::fmt;
use std::str::FromStr;

use envs::State;
use record::failure::{Failure, Result};

use crate::by_agent::{MOST, Widths};

/// Limit of joint actions per node.
const MAX_ACTIONS: u64 = 4096;
/// Limit of nodes per episode, since its samples are held until it is over.
const MAX_NODES: u64 = 65_536;

/// Which combinations of candidates are joint actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// The k-th of every agent: K joint actions
    Aligned,
    /// Every combination, the last agent's fastest: K^N joint actions of N agents
    Cross,
}

/// From which joint actions an episode continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expand {
    /// From the one that --select picks.
    One,
    /// From every one: a tree.
    All,
    /// From every one of the executed path, and from the others in this many plays to the end. The plays of a joint action are
    /// candidates of the node that it leads to; after them each has one candidate a node.
    Ends(u32),
}

impl FromStr for Expand {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Expand, String> {
        let plays = |text: &str| text.parse().ok().filter(|plays| (1..=MOST).contains(plays));
        match text {
            "one" => Ok(Expand::One),
            "all" => Ok(Expand::All),
            _ => text
                .strip_prefix("ends=")
                .and_then(plays)
                .map(Expand::Ends)
                .ok_or_else(|| format!("not one, all, or ends=M with M from 1 to {MOST}")),
        }
    }
}

impl fmt::Display for Expand {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expand::One => out.write_str("one"),
            Expand::All => out.write_str("all"),
            Expand::Ends(plays) => write!(out, "ends={plays}"),
        }
    }
}

/// How joint actions are scored and followed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JointConfig {
    /// The combinations that are joint actions.
    pub mode: Mode,
    /// The joint actions that are followed.
    pub expand: Expand,
    /// A node with a larger mean reward gets no children.
    pub stop_above: Option<f64>,
    /// True if branches are separate episodes (parallel sampling), which need no nodes.
    pub parallel: bool,
}

impl JointConfig {
    /// Checks that episodes beginning in `state` can score joint actions, and are small enough to hold in
    /// memory, with `widths` candidates per agent and at most `turns` turns.
    ///
    /// # Errors
    /// Usage: too many joint actions or nodes; the environment cannot score joint actions; or agents of a
    /// stage have different numbers of candidates to pair.
    pub fn check(&self, state: &dyn State, widths: &Widths, turns: Option<u32>) -> Result<()> {
        let workflow = state.workflow();
        let agents = |stage: usize| &workflow.agents()[workflow.stage(stage)];
        let of_stage = |stage: usize| agents(stage).iter().map(|agent| *widths.of(agent)).collect();
        let stages: Vec<Vec<u32>> = (0..workflow.stages()).map(of_stage).collect();
        if stages.iter().any(|agents| agents.len() > 1) && !state.scores_together() {
            return Err(Failure::usage("--joint: the environment scores the agents of a stage one by one")
                .hint(
                    "a program that answers requests with `actions` says `together`: true when it is reset",
                ));
        }
        let is_uneven = |widths: &Vec<u32>| widths.iter().any(|width| *width != widths[0]);
        if let Some(stage) = stages.iter().position(is_uneven).filter(|_| self.mode == Mode::Aligned) {
            let pairs =
                agents(stage).iter().zip(&stages[stage]).map(|(agent, width)| format!("{agent}={width}"));
            let pairs: Vec<String> = pairs.collect();
            return Err(Failure::usage(format!(
                "--joint aligned: {} act at once, and each candidate needs one of every other agent",
                pairs.join(" and ")
            ))
            .hint("as many --branches for all of them, or --joint cross, which has every combination"));
        }
        let actions = |widths: &Vec<u32>| match self.mode {
            Mode::Aligned => widths.first().map_or(1, |width| u64::from(*width)),
            Mode::Cross => widths.iter().fold(1, |all: u64, width| all.saturating_mul(u64::from(*width))),
        };
        let plays = |widths: &Vec<u32>| match self.expand {
            Expand::Ends(plays) => actions(&vec![plays; widths.len()]),
            _ => 1,
        };
        let plays: Vec<u64> = stages.iter().map(plays).collect();
        let actions: Vec<u64> = stages.iter().map(actions).collect();
        if let Some(most) = actions.iter().chain(&plays).max().filter(|most| **most > MAX_ACTIONS) {
            return Err(Failure::usage(format!(
                "--joint cross: {most} joint actions at a node, more than {MAX_ACTIONS}: the --branches of the agents of a \
                 stage, multiplied"
            ))
            .hint("fewer --branches, or --joint aligned, which has one for each branch"));
        }
        if self.expand == Expand::One {
            return Ok(());
        }
        let turns = turns.unwrap_or_else(|| state.turn_limit());
        if self.nodes(turns, &actions, &plays) > MAX_NODES {
            let (mut fits, mut fails) = (0, turns);
            while fits + 1 < fails {
                let middle = fits + (fails - fits) / 2;
                match self.nodes(middle, &actions, &plays) <= MAX_NODES {
                    true => fits = middle,
                    false => fails = middle,
                }
            }
            let fits = if fits > 0 { format!("--turns {fits} fits; or ") } else { String::new() };
            let aligned = if self.mode == Mode::Cross { "--joint aligned, " } else { "" };
            return Err(Failure::usage(format!(
                "--expand {}: the tree of an episode has more than {MAX_NODES} nodes",
                self.expand
            ))
            .hint(format!("{fits}fewer --branches, {aligned}--expand ends=1, or --expand one")));
        }
        Ok(())
    }

    /// Nodes of an episode's tree, with the joint actions and the plays to the end of each stage.
    fn nodes(&self, turns: u32, actions: &[u64], plays: &[u64]) -> u64 {
        let count = actions.len() as u64;
        let steps = u64::from(turns) * count;
        let (mut nodes, mut level) = (0_u64, 1_u64);
        for step in 0..steps {
            let at = |of: &[u64], step: u64| of[(step % count) as usize];
            nodes = nodes.saturating_add(level);
            if self.expand == Expand::All {
                level = level.saturating_mul(at(actions, step));
            } else if step + 1 < steps {
                let of_play = at(plays, step + 1).saturating_mul(steps - step - 2).saturating_add(1);
                nodes = nodes.saturating_add((at(actions, step) - 1).saturating_mul(of_play));
            }
            if nodes > MAX_NODES {
                break;
            }
        }
        nodes
    }
}
