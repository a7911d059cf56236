//! Who acts in a turn, and who sees what: stages of agents, in parallel within a stage, one stage after another.
//!
//! Every workflow of Stronger-MAS (arXiv 2510.11062) is a special case. A sequential one has one agent per stage: each
//! sees what the agents before it did in the same turn. A parallel one has a single stage: all see the state as it was
//! before the turn. An ensemble has a stage of reasoners and tool users, then a judge.
//!
//! Agents are data: the `spec` of a task may say how many there are. Left out: which policy plays which agent.

use std::ops::Range;
use std::sync::Arc;

use record::failure::{Failure, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::settings::suggest;

/// More agents are taken for a mistake of the program that names them.
const MOST_AGENTS: usize = 256;

/// The agents that act in a turn, and their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workflow {
    name: String,
    /// All agents, in the order of the stages.
    agents: Vec<String>,
    /// Where in `agents` each stage ends.
    ends: Vec<usize>,
}

impl Workflow {
    /// Each agent sees what the agents before it did in the same turn. The agents differ from each other.
    pub fn sequential(name: &str, agents: &[&str]) -> Arc<Workflow> {
        Workflow::of(name, agents, (1..=agents.len()).collect())
    }

    /// Every agent sees the state as it was before the turn. The agents differ from each other.
    pub fn parallel(name: &str, agents: &[&str]) -> Arc<Workflow> {
        Workflow::of(name, agents, vec![agents.len()])
    }

    fn of(name: &str, agents: &[&str], ends: Vec<usize>) -> Arc<Workflow> {
        let agents = agents.iter().map(|&agent| agent.to_owned()).collect();
        Arc::new(Workflow { name: name.to_owned(), agents, ends })
    }

    /// Stages of agents: at once inside a stage, one stage after another.
    ///
    /// # Errors
    /// No stage, a stage without agents, an agent without a name, an agent that is there twice: data.
    pub fn staged(name: &str, stages: Vec<Vec<String>>) -> Result<Arc<Workflow>> {
        if stages.is_empty() || stages.iter().any(Vec::is_empty) {
            return Err(Failure::data(format!("workflow {name}: every stage has at least one agent")));
        }
        let mut workflow = Workflow { name: name.to_owned(), agents: Vec::new(), ends: Vec::new() };
        for stage in stages {
            for agent in stage {
                if agent.is_empty() {
                    return Err(Failure::data(format!("workflow {name}: an agent has no name")));
                }
                if workflow.position(&agent).is_some() {
                    return Err(Failure::data(format!(
                        "workflow {name}: the agent '{agent}' is there twice"
                    )));
                }
                workflow.agents.push(agent);
            }
            workflow.ends.push(workflow.agents.len());
        }
        Ok(Arc::new(workflow))
    }

    /// The workflow of `agents` in the `order` of the step protocol: `"sequential"`, `"parallel"`, or stages of agents.
    ///
    /// # Errors
    /// No such order, too many agents, agents without a name or twice, or stages that hold other agents than `agents`: data.
    pub fn in_order(name: &str, order: &Value, agents: &[String]) -> Result<Arc<Workflow>> {
        if agents.len() > MOST_AGENTS {
            return Err(Failure::data(format!("{} agents, and at most {MOST_AGENTS} can act", agents.len())));
        }
        let stages: Vec<Vec<String>> = match order.as_str() {
            Some("sequential") => agents.iter().map(|agent| vec![agent.clone()]).collect(),
            Some("parallel") => vec![agents.to_vec()],
            _ => Deserialize::deserialize(order).map_err(|_| {
                Failure::data(format!("`order` is {order}: not sequential, parallel or stages of agents"))
            })?,
        };
        let workflow = Workflow::staged(name, stages)?;
        match workflow.agents == agents {
            true => Ok(workflow),
            false => Err(Failure::data(format!(
                "`agents` are {}, but `order` has {}",
                agents.join(", "),
                workflow.agents.join(", ")
            ))),
        }
    }

    /// What `--workflow` selects, for example `team` or `single`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The agents in the order of their stages, each once.
    pub fn agents(&self) -> &[String] {
        &self.agents
    }

    /// Number of stages, at least 1.
    pub fn stages(&self) -> usize {
        self.ends.len()
    }

    /// The agents of stage number `stage`, from 0, as positions in [`Workflow::agents`].
    pub fn stage(&self, stage: usize) -> Range<usize> {
        let begin = if stage == 0 { 0 } else { self.ends[stage - 1] };
        begin..self.ends[stage]
    }

    /// Where `agent` stands in [`Workflow::agents`].
    pub fn position(&self, agent: &str) -> Option<usize> {
        self.agents.iter().position(|own| own == agent)
    }

    /// Checks that `agent` is one of its agents.
    pub fn check(&self, agent: &str) -> Result<()> {
        match self.position(agent) {
            Some(_) => Ok(()),
            None => Err(Failure::data(format!("workflow {} has no agent '{agent}'", self.name))),
        }
    }

    /// What [`Workflow::in_order`] reads.
    pub fn order(&self) -> Value {
        match self.ends.len() {
            stages if stages == self.agents.len() => "sequential".into(),
            1 => "parallel".into(),
            stages => (0..stages).map(|stage| json!(self.agents[self.stage(stage)])).collect(),
        }
    }

    /// The order as a person reads it: `sequential`, `parallel`, or `a + b, then c`.
    pub fn describe(&self) -> String {
        match self.order() {
            Value::String(word) => word,
            _ => {
                let stage = |number| self.agents[self.stage(number)].join(" + ");
                (0..self.stages()).map(stage).collect::<Vec<_>>().join(", then ")
            }
        }
    }
}

/// The workflow called `name` of those that `environment` has.
pub fn find(workflows: &[Arc<Workflow>], environment: &str, name: &str) -> Result<Arc<Workflow>> {
    if let Some(workflow) = workflows.iter().find(|workflow| workflow.name() == name) {
        return Ok(Arc::clone(workflow));
    }
    let names: Vec<&str> = workflows.iter().map(|workflow| workflow.name()).collect();
    let hint = match name.ends_with(".toml") {
        true => format!(
            "files are for tasks with a checker, math and code; {environment} has: {}",
            names.join(", ")
        ),
        false => suggest(name, &names),
    };
    Err(Failure::usage(format!("{environment} has no workflow '{name}'")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(agents: &[&str]) -> Vec<String> {
        agents.iter().map(|&agent| agent.to_owned()).collect()
    }

    #[test]
    fn orders_are_said_and_read_back() {
        let ensemble = Workflow::staged(
            "ensemble",
            vec![names(&["reasoner-1", "reasoner-2", "tool-1"]), names(&["judge"])],
        );
        for (workflow, order, description) in [
            (Workflow::sequential("team", &["tool", "planner"]), json!("sequential"), "sequential"),
            (Workflow::parallel("team", &["tool", "reasoner"]), json!("parallel"), "parallel"),
            (Workflow::parallel("single", &["planner"]), json!("sequential"), "sequential"),
            (
                ensemble.unwrap(),
                json!([["reasoner-1", "reasoner-2", "tool-1"], ["judge"]]),
                "reasoner-1 + reasoner-2 + tool-1, then judge",
            ),
        ] {
            assert_eq!(workflow.order(), order);
            assert_eq!(workflow.describe(), description);
            assert_eq!(Workflow::in_order(workflow.name(), &order, workflow.agents()).unwrap(), workflow);
        }
    }

    #[test]
    fn stages_hold_their_agents() {
        let workflow =
            Workflow::staged("w", vec![names(&["a", "b"]), names(&["c"]), names(&["d", "e"])]).unwrap();
        let stages: Vec<Range<usize>> = (0..workflow.stages()).map(|stage| workflow.stage(stage)).collect();
        assert_eq!(stages, [0..2, 2..3, 3..5]);
        assert_eq!((workflow.position("d"), workflow.position("f")), (Some(3), None));
    }

    #[test]
    fn nonsense_is_refused() {
        for stages in [vec![], vec![vec![]], vec![names(&["a"]), names(&["a"])], vec![names(&[""])]] {
            assert_eq!(Workflow::staged("w", stages.clone()).unwrap_err().code, 65, "{stages:?}");
        }
        for order in [json!([["a"], ["b"]]), json!("random"), json!(null), json!([["a", "c"], [3]])] {
            assert!(Workflow::in_order("w", &order, &names(&["a", "c"])).is_err(), "{order}");
        }
        let many: Vec<String> = (0..=MOST_AGENTS).map(|number| number.to_string()).collect();
        assert!(Workflow::in_order("w", &json!("parallel"), &many[1..]).is_ok());
        let failure = Workflow::in_order("w", &json!("parallel"), &many).unwrap_err();
        assert_eq!(failure.message, "257 agents, and at most 256 can act");
    }
}
