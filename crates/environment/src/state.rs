//! A situation in an episode, as a value: cloned, written to JSON, read back.

use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::Message;
use serde_json::Value;

use crate::outcome::{Generation, Outcome};
use crate::workflow::Workflow;

/// A situation in an episode. Six functions are required; the rest is for environments whose agents act together, and
/// for `envs check` and `envs play`.
///
/// The caller goes through the stages of the workflow. In a stage of one agent: observe, sample candidates,
/// score each on a clone, apply the chosen one. In a stage of several: observe for all of them first, score
/// each candidate on a clone of the state before the stage (with the other agents' last actions), choose,
/// score each given the choices of the others with [`State::apply_beside`], then apply all chosen actions
/// with [`State::apply_together`].
pub trait State: Send {
    /// The agents that act, and their order.
    fn workflow(&self) -> &Arc<Workflow>;

    /// Turns after which an episode is truncated, unless the caller sets another limit.
    fn turn_limit(&self) -> u32;

    /// The conversation that `agent`, which acts, continues: the same for all its candidates.
    fn observe(&self, agent: &str) -> Vec<Message>;

    /// Executes the action `text` of `agent`. A malformed text is an [`Outcome`] with low rewards; an `Err` means that
    /// the environment itself failed, for example a sandbox that could not start.
    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome>;

    /// Tells how the next action of `agent` was generated. No outcome of a built-in environment depends on it.
    fn set_generation(&mut self, agent: &str, generation: Generation) {
        let _ = (agent, generation);
    }

    /// An independent copy with the same future.
    fn clone_state(&self) -> Box<dyn State>;

    /// False if only one of a state and its copy can go on: then candidates cannot be compared in one state.
    fn can_be_copied(&self) -> bool {
        true
    }

    /// In a first state, one for another episode of the same task: a copy, or begun anew if states cannot be copied.
    ///
    /// # Errors
    /// The environment failed.
    fn begin_again(&self) -> Result<Box<dyn State>> {
        Ok(self.clone_state())
    }

    /// Everything that [`crate::Environment::restore`] needs to go on from here.
    fn to_json(&self) -> Value;

    /// Least and greatest value of its rewards.
    fn reward_range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    /// Tools that `agent` may call, as OpenAI's API lists them: a JSON array, at least one.
    fn tools(&self, agent: &str) -> Option<Arc<Value>> {
        let _ = agent;
        None
    }

    /// Whether `agent` acts when its stage comes; otherwise it skips it. While the episode goes on, one agent does.
    fn acts(&self, agent: &str) -> bool {
        let _ = agent;
        true
    }

    /// Executes the actions of a stage of several agents as one: the outcome of the joint action, which does not depend on
    /// the order of `actions`. Its team reward is the team's for the stage, and [`Outcome::locals`] what each agent earned
    /// itself.
    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        apply_in_order(self, actions)
    }

    /// Executes the action `text` of `agent` together with the chosen actions of the others of its stage: the outcome for
    /// `agent`. A success that takes several agents is credited here, when it happens. `None`: what `agent` earns does not
    /// depend on the others, so [`State::apply`] says it all.
    fn apply_beside(&mut self, agent: &str, text: &str, others: &[(&str, &str)]) -> Result<Option<Outcome>> {
        let _ = (agent, text, others);
        Ok(None)
    }

    /// Returns true if a joint action has a joint outcome; false if [`State::apply_together`] applies the
    /// actions in order and returns the last outcome.
    fn scores_together(&self) -> bool {
        true
    }

    /// An action that no other action of `agent` outscores here, or `None` without an oracle.
    fn oracle(&self, agent: &str) -> Option<String> {
        let _ = agent;
        None
    }

    /// Returns true if the oracle finds the task solved here, independently of the rewards. Without an
    /// oracle: the last outcome's `success`.
    fn is_solved(&self) -> bool {
        false
    }

    /// Actions worth trying here when the contract is checked: all that matter where they can be
    /// enumerated, otherwise some of every kind, malformed ones among them.
    fn test_actions(&self, agent: &str) -> Vec<String> {
        let _ = agent;
        Vec::new()
    }

    /// The board, if the situation is one.
    fn board(&self) -> Option<String> {
        None
    }

    /// The situation as a person would like to see it.
    fn draw(&self) -> String {
        self.board().unwrap_or_else(|| self.to_json().to_string())
    }
}

impl dyn State + '_ {
    /// The agents of stage number `stage` that act, as positions in [`Workflow::agents`].
    pub fn acting(&self, stage: usize) -> Vec<usize> {
        let agents = self.workflow().agents();
        self.workflow().stage(stage).filter(|agent| self.acts(&agents[*agent])).collect()
    }
}

/// Executes actions one after another, in the workflow's order whatever theirs; the outcome of the last, with what each
/// agent earned itself.
///
/// # Errors
/// No action: data, and what [`State::apply`] fails with.
pub fn apply_in_order<S: State + ?Sized>(state: &mut S, actions: &[(&str, &str)]) -> Result<Outcome> {
    let workflow = Arc::clone(state.workflow());
    let mut actions = actions.to_vec();
    actions.sort_by_key(|(agent, _)| workflow.position(agent));
    let mut parts = Vec::new();
    for (agent, text) in &actions {
        parts.push((*agent, state.apply(agent, text)?));
    }
    match &parts[..] {
        [] => Err(Failure::data("no action was given")),
        [(_, only)] => Ok(only.clone()),
        [.., (_, Outcome { rewards, terminated, success, .. })] => {
            let joint = Outcome::together(rewards.team, &parts);
            Ok(Outcome { terminated: *terminated, success: *success, ..joint })
        }
    }
}
