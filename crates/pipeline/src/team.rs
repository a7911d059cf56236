//! The agents of a run, and the policy that plays each.

use std::collections::BTreeMap;
use std::path::Path;

use record::failure::{Failure, Result};

use crate::checks::share_parts;
use crate::environment::Acting;
use crate::kind::PolicyKind;
use crate::settings::Settings;
use crate::values::{PolicyChoice, is_server};

/// The agents and policies of a run.
#[derive(Clone, Debug, Default)]
pub struct Team {
    /// All agents, in the order of the workflow.
    pub agents: Vec<String>,
    /// Agent to policy name.
    pub policy: BTreeMap<String, String>,
    /// Agent to URL, for agents played by a server.
    pub served: BTreeMap<String, String>,
    /// Policy name to the directory that the user gave for it.
    pub source: Vec<(String, String)>,
    /// The agents to train.
    pub trained: Vec<String>,
}

/// The failure for an agent that `--policies` leaves out.
pub fn unplayed(agent: &str) -> Failure {
    Failure::usage(format!("--policies: nobody plays {agent}")).hint(format!("add --policies {agent}=DIR"))
}

impl Team {
    pub fn new(settings: &Settings, acting: &Acting) -> Result<Team> {
        let agents = acting.agents.clone();
        let mut team = Team { agents: agents.clone(), ..Team::default() };
        match &settings.policies {
            PolicyChoice::Shared => {
                team.policy = agents.iter().map(|agent| (agent.clone(), "shared".to_owned())).collect();
            }
            PolicyChoice::PerRole | PolicyChoice::AdapterPerRole => {
                team.policy = agents.iter().map(|agent| (agent.clone(), agent.clone())).collect();
            }
            PolicyChoice::Named(pairs) => {
                pairs.iter().try_for_each(|pair| team.hand_in(&pair.name, &pair.value, acting))?;
            }
        }
        let is_played = |agent: &String| team.policy.contains_key(agent) || team.served.contains_key(agent);
        if let Some(agent) = agents.iter().find(|agent| !is_played(agent)) {
            return Err(unplayed(agent));
        }
        if let Some(agent) = settings.train.iter().find(|agent| team.served.contains_key(*agent)) {
            return Err(Failure::usage(format!("--train {agent}: a server plays it"))
                .hint("name an agent with a policy directory"));
        }
        team.trained = match &settings.train[..] {
            [] => agents.into_iter().filter(|agent| team.policy.contains_key(agent)).collect(),
            named => named.to_vec(),
        };
        if settings.side_by_side {
            team.check_side_by_side(settings)?;
        }
        Ok(team)
    }

    fn hand_in(&mut self, agent: &str, what: &str, acting: &Acting) -> Result<()> {
        if !self.agents.iter().any(|known| known == agent) {
            return Err(acting.no_agent(&format!("--policies {agent}={what}"), agent, ""));
        }
        if is_server(what) {
            self.served.insert(agent.to_owned(), what.to_owned());
            return Ok(());
        }
        // Agents with the same directory share one policy.
        let shared = self.source.iter().find(|(_, from)| from == what).map(|(name, _)| name.clone());
        let name = shared.unwrap_or_else(|| {
            self.source.push((agent.to_owned(), what.to_owned()));
            agent.to_owned()
        });
        self.policy.insert(agent.to_owned(), name);
        Ok(())
    }

    fn check_side_by_side(&self, settings: &Settings) -> Result<()> {
        let mut trained: Vec<&String> =
            self.trained.iter().filter_map(|agent| self.policy.get(agent)).collect();
        trained.sort();
        trained.dedup();
        let (policies, ranks) = (trained.len() as u64, settings.ranks);
        if policies < 2 {
            return Err(Failure::usage("--side-by-side has no effect where one policy is trained")
                .hint("leave it out, or add --policies per-role"));
        }
        if !ranks.is_multiple_of(policies) {
            return Err(Failure::usage(format!(
                "--side-by-side: {policies} policies cannot have as many of {ranks} ranks each"
            ))
            .hint(format!("--ranks {policies}, or a multiple")));
        }
        share_parts(settings, policies)
    }

    /// The names of all policies, in order.
    pub fn policies(&self) -> Vec<String> {
        let mut names: Vec<String> = self.policy.values().cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    /// The message about agents that were given the same folder.
    pub fn shared(&self) -> Option<String> {
        let agents = |name: &String| -> Vec<&str> {
            let agents = self.agents.iter().filter(|agent| self.policy.get(*agent) == Some(name));
            agents.map(String::as_str).collect()
        };
        let shared = |(name, from): &(String, String)| match agents(name) {
            agents if agents.len() > 1 => Some(format!("{} share one policy, {from}", agents.join(" and "))),
            _ => None,
        };
        let said: Vec<String> = self.source.iter().filter_map(shared).collect();
        let remedy = "for one each, copy it: policy init NEW --from DIR";
        (!said.is_empty()).then(|| format!("{}; {remedy}", said.join("; ")))
    }

    /// The message about agents that `--train` leaves out, and whose policy it trains.
    pub fn also_trained(&self) -> Option<String> {
        let is_left_out = |agent: &&String| !self.trained.contains(agent);
        let policy = |agent: &String| self.policy.get(agent);
        let changes = |agent: &&String| self.trained.iter().any(|trained| policy(trained) == policy(agent));
        let agent = self
            .agents
            .iter()
            .filter(|agent| self.policy.contains_key(*agent))
            .filter(is_left_out)
            .find(changes)?;
        Some(format!(
            "--train: {agent} is played by the same policy, which changes; --policies per-role gives each its own"
        ))
    }

    /// `AGENT=DIR` or `AGENT=URL` for each agent.
    pub fn players(&self, run: &Path) -> Vec<String> {
        let plays = |agent: &String| match self.served.get(agent) {
            Some(url) => format!("{agent}={url}"),
            None => self.of(agent, run),
        };
        self.agents.iter().map(plays).collect()
    }

    /// `AGENT=DIR` for each trained agent.
    pub fn learners(&self, run: &Path) -> Vec<String> {
        self.trained.iter().map(|agent| self.of(agent, run)).collect()
    }

    fn of(&self, agent: &str, run: &Path) -> String {
        let name = self.policy.get(agent).map_or("", String::as_str);
        format!("{agent}={}", run.join("policies").join(name).display())
    }

    /// `AGENT=DIR` of the KL reference of each trained agent: its policy before the first step.
    pub fn references(&self, settings: &Settings, run: &Path) -> Vec<String> {
        let reference = |agent: &String| {
            let folder = match &settings.policies {
                PolicyChoice::Named(_) => {
                    format!("reference/{}", self.policy.get(agent).map_or("", String::as_str))
                }
                PolicyChoice::AdapterPerRole
                    if settings.kind != PolicyKind::Adapters || settings.warmup == 0 =>
                {
                    "policies/base".to_owned()
                }
                _ => "warmup/policy".to_owned(),
            };
            format!("{agent}={}", run.join(folder).display())
        };
        self.trained.iter().map(reference).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_with_one_folder_share_its_policy_and_that_is_said() {
        let team = |words: &str| {
            let words: Vec<String> = words.split(' ').map(Into::into).collect();
            let settings = Settings::new(&words).unwrap();
            let agents = ["tool", "planner"].map(str::to_owned).to_vec();
            Team::new(&settings, &Acting { agents, ..Acting::default() }).unwrap()
        };
        let one = team("--policies tool=a --policies planner=a");
        assert_eq!(one.policies(), ["tool"]);
        let said = one.shared().unwrap();
        assert!(said.starts_with("tool and planner share one policy, a; "), "{said}");
        assert_eq!(team("--policies tool=a --policies planner=b").shared(), None);
        assert_eq!(team("--policies tool=a --policies planner=http://x/v1").shared(), None);
        assert_eq!(team("--policies shared").shared(), None);
        let said = team("--policies shared --train planner").also_trained().unwrap();
        assert!(said.starts_with("--train: tool is played by the same policy"), "{said}");
        assert_eq!(team("--policies per-role --train planner").also_trained(), None);
        assert_eq!(team("--policies shared").also_trained(), None);
    }
}
