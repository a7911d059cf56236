//! Agents who act at once and are scored together, in environments of a few lines, by rewards worked out by hand.

use std::sync::Arc;

use crate::common::parallel;
use crate::episode::{config, step};
use envs::{Outcome, State, Workflow};
use record::sample::{Message, Rewards};
use rollout::episode::group::{Group, PromptRequest};
use rollout::episode::{Episode, EpisodeConfig, EpisodeId, Stop, Transition};
use rollout::streams::Streams;

/// Two agents who each name a number; the team is done when the numbers agree, and has solved its task when they
/// are also 7. The team's reward is 1 for a solution and the agent's own a tenth of its number.
#[derive(Clone)]
struct Agree {
    workflow: Arc<Workflow>,
    numbers: [Option<u32>; 2],
}

impl Agree {
    fn outcome(&self, own: f64) -> Outcome {
        let terminated = self.numbers[0].is_some() && self.numbers[0] == self.numbers[1];
        let success = terminated && self.numbers[0] == Some(7);
        let rewards = Rewards { team: f64::from(u8::from(success)), local: own / 10.0 };
        Outcome {
            rewards,
            locals: Default::default(),
            components: Default::default(),
            terminated,
            success,
            info: None,
        }
    }

    fn put(&mut self, agent: &str, text: &str) -> f64 {
        let number = text.parse().ok();
        self.numbers[self.workflow.position(agent).expect("an agent")] = number;
        number.map_or(0.0, f64::from)
    }
}

impl State for Agree {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }
    fn turn_limit(&self) -> u32 {
        3
    }
    fn observe(&self, agent: &str) -> Vec<Message> {
        vec![Message { role: "user".to_owned(), content: format!("{agent} {:?}", self.numbers) }]
    }
    fn apply(&mut self, agent: &str, text: &str) -> record::failure::Result<Outcome> {
        let own = self.put(agent, text);
        Ok(self.outcome(own))
    }
    fn apply_together(&mut self, actions: &[(&str, &str)]) -> record::failure::Result<Outcome> {
        let own: f64 = actions.iter().map(|(agent, text)| self.put(agent, text)).sum();
        Ok(self.outcome(own))
    }
    fn apply_beside(
        &mut self,
        agent: &str,
        text: &str,
        others: &[(&str, &str)],
    ) -> record::failure::Result<Option<Outcome>> {
        for (agent, text) in others {
            self.put(agent, text);
        }
        self.apply(agent, text).map(Some)
    }
    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }
    fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self.numbers)
    }
}

/// An episode of two turns, every reward of which was worked out by hand.
#[test]
fn a_parallel_episode_stops_on_agreement_of_the_choices_as_worked_out_by_hand() {
    let streams = Arc::new(Streams::new(7, 12, "t", 0));
    let id = EpisodeId { name: "12.7".into(), streams, branches: 0..2, learner: None };
    let state = Agree { workflow: parallel(), numbers: [None; 2] };
    let config = EpisodeConfig { turns: Some(2), ..config() };
    let (mut episode, requests) = Episode::begin(Arc::new(config), id, Box::new(state));
    let rewards = |transition: &Transition| -> Vec<Vec<f64>> {
        transition
            .groups
            .iter()
            .map(|group| group.members.iter().map(|member| member.reward).collect())
            .collect()
    };

    // Turn 0: the choices are 7 and 3, and nobody agrees with the other's choice.
    let [asker, doer]: [PromptRequest; 2] = requests.try_into().expect("two requests");
    step(&mut episode, doer, &["3", "2"]);
    let transition = step(&mut episode, asker, &["4", "7"]);
    assert_eq!(rewards(&transition), [[0.4, 0.7], [0.3, 0.2]]);
    let terminated =
        transition.groups.iter().flat_map(|group| &group.members).any(|one| one.outcome.terminated);
    assert!(!terminated && episode.stop().is_none());
    let truncated = transition.groups.iter().flat_map(|group| &group.members).any(|one| one.truncated);
    assert!(!truncated, "a turn is left");
    assert_eq!(transition.requests[0].messages[0].content, "asker [Some(7), Some(3)]");

    // Turn 1: each choice is scored with the other's last executed action. The doer's 7 would agree with the
    // asker's last 7: 1 + .7. But the asker switches to 5, and a candidate earns what it achieves with the
    // other's actual choice: no agreement.
    let [asker, doer]: [PromptRequest; 2] = transition.requests.try_into().expect("two requests");
    step(&mut episode, asker, &["3", "5"]);
    let transition = step(&mut episode, doer, &["7", "3"]);
    assert_eq!(rewards(&transition), [[0.3, 0.5], [0.7, 0.3]]);
    let ends: Vec<(bool, bool)> = transition
        .groups
        .iter()
        .flat_map(|group| &group.members)
        .map(|member| (member.outcome.terminated, member.truncated))
        .collect();
    assert_eq!(ends, [(false, true); 4]);
    assert_eq!((episode.stop(), episode.turns()), (Some(&Stop::Turns), 2));
    assert!(
        (episode.reward() - ((0.7 + 0.3) / 2.0 + (0.5 + 0.7) / 2.0)).abs() < 1e-12,
        "{}",
        episode.reward()
    );
}

/// Solving at once earns what solving later does: 1 + .7 for each who brought it about, and nothing for those who would not.
#[test]
fn a_joint_success_is_credited_when_it_happens_also_at_turn_0() {
    let streams = Arc::new(Streams::new(7, 12, "t", 0));
    let id = EpisodeId { name: "12.7".into(), streams, branches: 0..2, learner: None };
    let state = Agree { workflow: parallel(), numbers: [None; 2] };
    let (mut episode, requests) = Episode::begin(Arc::new(config()), id, Box::new(state));
    let [asker, doer]: [PromptRequest; 2] = requests.try_into().expect("two requests");
    step(&mut episode, asker, &["7", "2"]);
    let transition = step(&mut episode, doer, &["3", "7"]);
    let members = |group: &Group| -> Vec<(f64, bool)> {
        group.members.iter().map(|member| (member.reward, member.outcome.terminated)).collect()
    };
    assert_eq!(members(&transition.groups[0]), [(1.7, true), (0.2, false)]);
    assert_eq!(members(&transition.groups[1]), [(0.3, false), (1.7, true)]);
    assert_eq!((episode.stop(), episode.reward()), (Some(&Stop::Success), 1.7));
}

#[test]
fn an_agreement_at_the_last_turn_is_no_truncation() {
    let streams = Arc::new(Streams::new(7, 12, "t", 0));
    let id = EpisodeId { name: "12.7".into(), streams, branches: 0..1, learner: None };
    let state = Agree { workflow: parallel(), numbers: [None; 2] };
    let config = EpisodeConfig { turns: Some(1), ..config() };
    let (mut episode, requests) = Episode::begin(Arc::new(config), id, Box::new(state));
    let mut groups = Vec::new();
    for request in requests {
        groups.extend(step(&mut episode, request, &["7"]).groups);
    }
    assert_eq!(episode.stop(), Some(&Stop::Success));
    assert!(groups.iter().flat_map(|group| &group.members).all(|member| !member.truncated));
}

/// A load that two agents can only lift together: one who lifts alone drops it.
#[derive(Clone)]
struct Load {
    workflow: Arc<Workflow>,
    dropped: bool,
}

impl Load {
    fn lift(&mut self, hands: usize) -> record::failure::Result<Outcome> {
        self.dropped |= hands == 1;
        let success = hands == 2 && !self.dropped;
        let rewards = Rewards { team: f64::from(u8::from(success)), local: 0.0 };
        let terminated = success || self.dropped;
        Ok(Outcome {
            rewards,
            locals: Default::default(),
            components: Default::default(),
            terminated,
            success,
            info: None,
        })
    }
}

impl State for Load {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }
    fn turn_limit(&self) -> u32 {
        3
    }
    fn observe(&self, agent: &str) -> Vec<Message> {
        vec![Message { role: "user".to_owned(), content: agent.to_owned() }]
    }
    fn apply(&mut self, _agent: &str, text: &str) -> record::failure::Result<Outcome> {
        self.lift(usize::from(text == "lift"))
    }
    fn apply_together(&mut self, actions: &[(&str, &str)]) -> record::failure::Result<Outcome> {
        self.lift(actions.iter().filter(|(_, text)| *text == "lift").count())
    }
    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }
    fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self.dropped)
    }
}

#[test]
fn a_joint_step_is_not_one_agent_after_another() {
    for (texts, stop) in [
        ([["lift"], ["lift"]], Some(Stop::Success)),
        ([["wait"], ["lift"]], Some(Stop::Terminated)),
        ([["wait"], ["wait"]], None),
    ] {
        let id = EpisodeId {
            name: "12.7".into(),
            streams: Arc::new(Streams::new(7, 12, "t", 0)),
            branches: 0..1,
            learner: None,
        };
        let state = Load { workflow: parallel(), dropped: false };
        let (mut episode, requests) = Episode::begin(Arc::new(config()), id, Box::new(state));
        for (request, texts) in requests.into_iter().zip(&texts) {
            step(&mut episode, request, texts);
        }
        assert_eq!(episode.stop(), stop.as_ref(), "{texts:?}");
    }
}
