//! Joint actions: the combined actions of a stage's agents, scored as one, and the tree that they span
//! (MAGRPO, arXiv 2508.04652).
//!
//! At a node every agent samples K candidates. Joint actions are (0, …, 0) to (K-1, …, K-1), or all K^N of N
//! agents, with the last agent's index varying fastest. Each is applied to a copy of the state. A candidate's
//! reward is the mean, over its joint actions, of α·team + its agent's local reward. The episode continues
//! from one joint action; or it branches, and every other one forks a separate episode. Left out: returns
//! over the tree, see `advantage --credit tree`.

mod config;

use std::collections::BTreeMap;
use std::fmt;

use envs::{Outcome, State};
use record::line::JointRewards;
use record::sample::Rewards;

use super::group::{Candidate, Group, Member, PromptRequest};
pub use config::{Expand, JointConfig, Mode};

use super::{Episode, EpisodeError, Select, Stop, Transition};

/// A node: the indices of the joint actions that lead to it, empty for the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node(pub Vec<u32>);

impl Node {
    /// Field `node`, such as `3.0`; `None` for the root.
    pub fn name(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.to_string())
    }

    fn child(&self, index: u32) -> Node {
        Node(self.0.iter().copied().chain([index]).collect())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indices: Vec<String> = self.0.iter().map(u32::to_string).collect();
        out.write_str(&indices.join("."))
    }
}

/// A scored joint action, with the fields of its line.
#[derive(Clone, Debug, PartialEq)]
pub struct JointAction {
    /// The path that ends with it.
    pub path: Node,
    /// Ids of its samples, one an agent.
    pub members: Vec<String>,
    /// Mean over its agents of α·team + local.
    pub reward: f64,
    /// The team's reward and the local rewards.
    pub rewards: JointRewards,
    /// The environment's result.
    pub outcome: Outcome,
    /// True if it was executed.
    pub selected: bool,
    /// True if the turn limit ended the episode after it.
    pub truncated: bool,
    /// Each agent's candidate, as an index into its group.
    pub(crate) choices: Vec<usize>,
}

/// All joint actions of agents with `counts` candidates, as candidate indices.
fn choices(mode: Mode, counts: &[usize]) -> Vec<Vec<usize>> {
    match mode {
        Mode::Aligned => {
            let count = counts.iter().copied().min().unwrap_or(0);
            (0..count).map(|index| vec![index; counts.len()]).collect()
        }
        Mode::Cross => counts.iter().fold(vec![Vec::new()], |all, &count| {
            let longer = |some: &Vec<usize>| -> Vec<Vec<usize>> {
                (0..count).map(|last| some.iter().copied().chain([last]).collect()).collect()
            };
            all.iter().flat_map(longer).collect()
        }),
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// A joint action and the resulting state.
type Scored = (JointAction, Box<dyn State>);

impl Episode {
    /// Scores the joint actions of a stage, once all candidates are complete, and continues.
    pub(super) fn step_node(
        &mut self,
        config: &JointConfig,
    ) -> std::result::Result<Transition, EpisodeError> {
        let Some(complete) = self.take_stage() else { return Ok(Transition::default()) };
        let mut scored = self.score_together(config, &complete)?;
        let executed = self.is_executed();
        let chosen = match executed {
            true => self.choose_together(&scored),
            // Off the executed path nothing is selected: this episode follows the first joint
            // action, and the others fork.
            false => 0,
        };
        if let Some((action, _)) = scored.get_mut(chosen).filter(|_| executed) {
            action.selected = true;
            self.reward += action.reward;
            // Joint actions are compared by what their agents earned.
            let others = action.outcome.locals.iter().filter(|(agent, _)| {
                complete.iter().all(|(request, _)| self.workflow.agents()[request.agent] != **agent)
            });
            self.has_unpaid |= others.into_iter().any(|(_, local)| *local != 0.0);
        }
        let groups: Vec<Group> =
            complete.into_iter().enumerate().map(|(agent, part)| self.group(agent, part, &scored)).collect();
        let above = mean(scored.iter().map(|(action, _)| action.reward));
        let stops = config.stop_above.is_some_and(|threshold| above > threshold);
        let (mut joint, mut forks, mut own) = (Vec::new(), Vec::new(), None);
        for (index, (action, state)) in scored.into_iter().enumerate() {
            if index == chosen {
                own = Some(state);
            } else if config.expand != Expand::One && !stops && !action.outcome.terminated {
                let mut fork = self.fork(state, &action);
                fork.remember_joint(&groups, &action);
                let requests = fork.advance(false, false);
                forks.extend((!requests.is_empty()).then_some((fork, requests)));
            }
            joint.push(action);
        }
        let Some((action, state)) = joint.get(chosen).zip(own) else {
            return Err(EpisodeError::at("policy", "no candidate was generated"));
        };
        let Outcome { terminated, success, .. } = action.outcome;
        self.enter(state, action);
        self.off_path += u32::from(self.off_path > 0);
        self.remember_joint(&groups, action);
        let requests = if stops && !terminated && !success {
            self.stop = Some(Stop::Threshold);
            Vec::new()
        } else {
            self.advance(terminated, success)
        };
        Ok(Transition { groups, requests, joint, forks, late: Vec::new() })
    }

    /// Applies every joint action to a copy of the state.
    fn score_together(
        &self,
        config: &JointConfig,
        complete: &[(PromptRequest, Vec<Candidate>)],
    ) -> std::result::Result<Vec<Scored>, EpisodeError> {
        let agents: Vec<&str> =
            complete.iter().map(|(request, _)| self.agents()[request.agent].as_str()).collect();
        let counts: Vec<usize> = complete.iter().map(|(_, candidates)| candidates.len()).collect();
        let score = |(index, choices): (usize, Vec<usize>)| {
            let texts = choices.iter().zip(complete);
            let texts = texts.map(|(&choice, (_, candidates))| candidates[choice].answer());
            let actions: Vec<(&str, &str)> = agents.iter().copied().zip(texts).collect();
            let mut state = self.state.clone_state();
            for ((agent, &choice), (_, candidates)) in agents.iter().zip(&choices).zip(complete) {
                state.set_generation(agent, candidates[choice].generation());
            }
            let outcome = match actions[..] {
                [(agent, text)] if self.workflow.stage(self.stage).len() == 1 => state.apply(agent, text)?,
                _ => state.apply_together(&actions)?,
            };
            let rewards = agents.iter().map(|agent| self.reward_of(agent, &outcome));
            let rewards = rewards.collect::<std::result::Result<Vec<f64>, _>>()?;
            let own = |agent: &&str| ((*agent).to_owned(), outcome.local_of(agent));
            let branch = |(&choice, (request, _)): (&usize, &(PromptRequest, _))| {
                request.branches.start + choice as u32
            };
            let member = |(agent, branch)| self.id.sample(&self.node(), self.turn, agent, branch);
            let branches: Vec<u32> = choices.iter().zip(complete).map(branch).collect();
            let index = if config.parallel { self.id.branches.start } else { index as u32 };
            let action = JointAction {
                path: self.path.child(index),
                members: agents.iter().copied().zip(branches).map(member).collect(),
                reward: mean(rewards.into_iter()),
                rewards: JointRewards { team: outcome.rewards.team, local: agents.iter().map(own).collect() },
                selected: false,
                truncated: !outcome.terminated && self.next(&*state).is_none(),
                outcome,
                choices,
            };
            Ok((action, state))
        };
        choices(config.mode, &counts).into_iter().enumerate().map(score).collect()
    }

    /// The index of the joint action to execute.
    fn choose_together(&self, scored: &[Scored]) -> usize {
        match self.config.select {
            Select::Random => {
                self.id.streams.joint_choice(self.turn, &self.node()).below(scored.len().max(1) as u32)
                    as usize
            }
            Select::Best => (1..scored.len()).fold(0, |best, index| {
                if scored[index].0.reward > scored[best].0.reward { index } else { best }
            }),
        }
    }

    /// The candidates of agent number `place` in the stage, each with the mean over its joint actions.
    fn group(
        &self,
        place: usize,
        (request, candidates): (PromptRequest, Vec<Candidate>),
        scored: &[Scored],
    ) -> Group {
        let agent = self.agents()[request.agent].as_str();
        let member = |(index, candidate): (usize, Candidate)| {
            let own: Vec<&JointAction> = scored
                .iter()
                .map(|(action, _)| action)
                .filter(|action| action.choices[place] == index)
                .collect();
            let over = |value: &dyn Fn(&JointAction) -> f64| mean(own.iter().map(|action| value(action)));
            let team = over(&|action| action.rewards.team);
            let local = over(&|action| action.outcome.local_of(agent));
            let weight = self.config.team_weight;
            let mut components: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for (name, &value) in own.iter().flat_map(|action| &action.outcome.components) {
                // An agent's component loses its name prefix; other agents' components do not
                // describe this candidate.
                let of_agent = self
                    .agents()
                    .iter()
                    .find_map(|other| Some((other, name.strip_prefix(other)?.strip_prefix('.')?)));
                match of_agent {
                    None => components.entry(name.clone()).or_default().push(value),
                    Some((other, own)) if other == agent => {
                        components.entry(own.to_owned()).or_default().push(value)
                    }
                    Some(_) => {}
                }
            }
            let outcome = Outcome {
                rewards: Rewards { team, local },
                locals: BTreeMap::new(),
                components: components
                    .into_iter()
                    .map(|(name, values)| (name, mean(values.into_iter())))
                    .collect(),
                terminated: own.iter().all(|action| action.outcome.terminated),
                success: own.iter().all(|action| action.outcome.success),
                info: None,
            };
            Member {
                branch: request.branches.start + index as u32,
                candidate,
                reward: over(&|action| weight * action.rewards.team + action.outcome.local_of(agent)),
                selected: own.iter().any(|action| action.selected),
                truncated: !outcome.terminated
                    && own.iter().all(|action| action.truncated || action.outcome.terminated),
                outcome,
            }
        };
        Group {
            node: request.node,
            turn: request.turn,
            agent: request.agent,
            parent: self.parent.clone(),
            messages: request.messages,
            tools: request.tools,
            members: candidates.into_iter().enumerate().map(member).collect(),
        }
    }

    /// A fork of this episode that continues from `action`.
    fn fork(&self, state: Box<dyn State>, action: &JointAction) -> Episode {
        let mut fork = Episode {
            config: self.config.clone(),
            id: self.id.clone(),
            state: self.state.clone_state(),
            workflow: self.workflow.clone(),
            limit: self.limit,
            turn: self.turn,
            stage: self.stage,
            parent: None,
            path: self.path.clone(),
            off_path: self.off_path + 1,
            waiting: vec![None; self.waiting.len()],
            spoken: self.spoken.clone(),
            reward: 0.0,
            returns: BTreeMap::new(),
            acted: self.acted.clone(),
            pays_others: false,
            has_unpaid: false,
            stop: None,
        };
        fork.enter(state, action);
        fork
    }

    /// Keeps the actions that `action` is made of.
    fn remember_joint(&mut self, groups: &[Group], action: &JointAction) {
        for (group, &choice) in groups.iter().zip(&action.choices) {
            self.remember(group, &group.members[choice]);
        }
    }

    /// Goes on in the state after `action`.
    fn enter(&mut self, state: Box<dyn State>, action: &JointAction) {
        self.state = state;
        self.path = action.path.clone();
        self.parent = action.members.last().map(|member| member.as_str().into());
    }

    /// The current node. In parallel sampling it has no name, since branches are separate episodes.
    pub(super) fn node(&self) -> Node {
        match self.config.joint {
            Some(JointConfig { parallel: false, .. }) => self.path.clone(),
            _ => Node::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_agents_candidate_is_the_fastest() {
        assert_eq!(choices(Mode::Aligned, &[3, 3]), [[0, 0], [1, 1], [2, 2]]);
        assert_eq!(choices(Mode::Cross, &[2, 2]), [[0, 0], [0, 1], [1, 0], [1, 1]]);
        assert_eq!(choices(Mode::Cross, &[2, 2, 2])[5], [1, 0, 1]);
        assert_eq!(choices(Mode::Cross, &[3]), choices(Mode::Aligned, &[3]));
        assert_eq!(choices(Mode::Cross, &[1, 3]), [[0, 0], [0, 1], [0, 2]]);
    }

    #[test]
    fn nodes_are_in_the_order_of_a_walk_depth_first() {
        let mut nodes = [vec![1], vec![0, 10], vec![0], vec![], vec![0, 2]].map(Node);
        nodes.sort();
        let names: Vec<String> = nodes.iter().map(|node| node.name().unwrap_or_default()).collect();
        assert_eq!(names, ["", "0", "0.2", "0.10", "1"]);
    }
}
