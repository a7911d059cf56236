//! The tree of one episode, step by step.

use std::sync::Arc;

use crate::common::{Talk, parallel, sequential, staged};
use envs::{Outcome, State, Workflow};
use record::sample::{Message, Rewards};
use rollout::by_role::Widths;
use rollout::episode::group::{Candidate, PromptRequest};
use rollout::episode::joint::{Expand, JointConfig, Mode};
use rollout::episode::{Episode, EpisodeConfig, EpisodeId, Select, ServedAgents, Stop, Transition};
use rollout::streams::Streams;

fn begin(workflow: Arc<Workflow>, config: EpisodeConfig, branches: u32) -> (Episode, Vec<PromptRequest>) {
    let streams = Arc::new(Streams::new(7, 12, "t", 0));
    let id = EpisodeId { name: "12.7".into(), streams, branches: 0..branches, learner: None };
    Episode::begin(Arc::new(config), id, Box::new(Talk::new(workflow)))
}

pub fn config() -> EpisodeConfig {
    EpisodeConfig {
        turns: None,
        select: Select::Best,
        team_weight: 1.0,
        joint: None,
        widths: Widths::all(4),
        served_agents: ServedAgents::default(),
    }
}

pub fn step(episode: &mut Episode, request: PromptRequest, texts: &[&str]) -> Transition {
    let candidate = |text: &&str| Candidate {
        text: (*text).to_owned(),
        ids: vec![1],
        logprobs: vec![-1.0],
        stopped: true,
        ..Candidate::default()
    };
    episode.step(request, texts.iter().map(candidate).collect())
}

fn only(requests: Vec<PromptRequest>) -> PromptRequest {
    let [request]: [PromptRequest; 1] = requests.try_into().expect("one request");
    request
}

#[test]
fn the_best_candidate_is_executed_and_the_next_agent_sees_it() {
    let (mut episode, requests) = begin(sequential(), config(), 3);
    let request = only(requests);
    assert_eq!((request.turn, request.agent, request.branches.clone()), (0, 0, 0..3));
    assert_eq!(request.messages[0].content, "asker? ");

    let transition = step(&mut episode, request, &["2", "5", "3"]);
    let group = &transition.groups[0];
    assert_eq!(group.parent, None);
    assert_eq!(group.members.iter().map(|member| member.selected).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(group.members.iter().map(|member| member.reward).collect::<Vec<_>>(), [0.2, 0.5, 0.3]);

    let request = only(transition.requests);
    assert_eq!((request.turn, request.agent), (0, 1));
    assert_eq!(request.messages[0].content, "doer? asker:5");
    let transition = step(&mut episode, request, &["1", "0", "1"]);
    assert_eq!(transition.groups[0].parent.as_deref(), Some("12.7/0/asker/1"));

    let request = only(transition.requests);
    assert_eq!((request.turn, request.agent), (1, 0));
    assert_eq!(request.messages[0].content, "asker? asker:5 doer:1");
    let transition = step(&mut episode, request, &["0", "0", "0"]);
    assert_eq!(transition.groups[0].parent.as_deref(), Some("12.7/0/doer/0"));
    assert!((episode.reward() - 0.6).abs() < 1e-12, "{}", episode.reward());
}

#[test]
fn of_equal_rewards_the_lowest_branch_is_taken() {
    for (texts, chosen) in
        [(["4", "4", "4"], 0), (["1", "4", "4"], 1), (["4", "1", "4"], 0), (["x", "x", "1"], 2)]
    {
        let (mut episode, requests) = begin(sequential(), config(), 3);
        let transition = step(&mut episode, only(requests), &texts);
        let selected: Vec<u32> = transition.groups[0]
            .members
            .iter()
            .filter(|member| member.selected)
            .map(|member| member.branch)
            .collect();
        assert_eq!(selected, [chosen], "{texts:?}");
    }
}

#[test]
fn a_random_choice_is_named_and_reaches_every_branch() {
    let choose = |seed: u64| {
        let streams = Arc::new(Streams::new(seed, 0, "t", 0));
        let id = EpisodeId { name: "0.0".into(), streams, branches: 0..4, learner: None };
        let config = EpisodeConfig { select: Select::Random, ..config() };
        let (mut episode, requests) = Episode::begin(Arc::new(config), id, Box::new(Talk::new(sequential())));
        let transition = step(&mut episode, only(requests), &["1", "2", "3", "4"]);
        transition.groups[0].selected().expect("a choice").branch
    };
    let chosen: Vec<u32> = (0..40).map(choose).collect();
    assert!((0..4).all(|branch| chosen.contains(&branch)), "{chosen:?}");
    assert_eq!(chosen, (0..40).map(choose).collect::<Vec<_>>());
}

/// About 10 of 40 episodes take the same one of four branches at two places if each place draws
/// independently.
#[test]
fn a_random_choice_is_drawn_anew_for_each_turn_and_agent() {
    let play = |seed: u64| -> Vec<u32> {
        let streams = Arc::new(Streams::new(seed, 0, "t", 0));
        let id = EpisodeId { name: "0.0".into(), streams, branches: 0..4, learner: None };
        let config = EpisodeConfig { select: Select::Random, ..config() };
        let state = Box::new(Talk::new(sequential()));
        let (mut episode, mut requests) = Episode::begin(Arc::new(config), id, state);
        let mut chosen = Vec::new();
        while let Some(request) = requests.pop() {
            let transition = step(&mut episode, request, &["1", "2", "3", "4"]);
            chosen.push(transition.groups[0].selected().expect("a choice").branch);
            requests = transition.requests;
        }
        chosen
    };
    let episodes: Vec<Vec<u32>> = (0..40).map(play).collect();
    for first in 0..6 {
        for second in 0..first {
            let alike = episodes.iter().filter(|chosen| chosen[first] == chosen[second]).count();
            assert!((2..20).contains(&alike), "{alike} of 40 alike at {first} and {second}: {episodes:?}");
        }
    }
}

#[test]
fn the_team_weight_scales_the_team_part_only() {
    let (mut episode, requests) = begin(sequential(), EpisodeConfig { team_weight: 0.5, ..config() }, 1);
    let transition = step(&mut episode, only(requests), &["0"]);
    let transition = step(&mut episode, only(transition.requests), &["9"]);
    assert_eq!(transition.groups[0].members[0].reward, 0.5 * 1.0 + 0.9);
}

#[test]
fn parallel_agents_see_the_state_before_the_stage_and_their_choices_are_executed_together() {
    let (mut episode, requests) = begin(parallel(), config(), 2);
    assert_eq!(requests.iter().map(|request| request.agent).collect::<Vec<_>>(), [0, 1]);
    let [asker, doer]: [PromptRequest; 2] = requests.try_into().expect("two requests");
    assert_eq!(doer.messages[0].content, "doer? ");

    // The candidates arrive in the other order: the episode waits for both.
    let transition = step(&mut episode, doer, &["3", "1"]);
    assert!(transition.groups.is_empty() && transition.requests.is_empty());
    let transition = step(&mut episode, asker, &["1", "2"]);
    assert_eq!(transition.groups.iter().map(|group| group.agent).collect::<Vec<_>>(), [0, 1]);
    assert!(transition.groups.iter().all(|group| group.parent.is_none()));
    assert_eq!(transition.requests.len(), 2);
    assert_eq!(transition.requests[0].messages[0].content, "asker? asker:2 doer:3");

    // Every agent of the turn builds on the same joint state, named after its last applied action.
    let [asker, doer]: [PromptRequest; 2] = transition.requests.try_into().expect("two requests");
    step(&mut episode, asker, &["1", "1"]);
    let transition = step(&mut episode, doer, &["9", "1"]);
    let parents: Vec<Option<&str>> = transition.groups.iter().map(|group| group.parent.as_deref()).collect();
    assert_eq!(parents, [Some("12.7/0/doer/0"); 2]);
    assert_eq!(episode.stop(), Some(&Stop::Success));
}

#[test]
fn success_stops_the_episode_in_mid_turn_and_running_out_of_turns_is_no_success() {
    let (mut episode, requests) = begin(sequential(), config(), 2);
    let transition = step(&mut episode, only(requests), &["9", "9"]);
    assert_eq!(episode.stop(), None, "only a doer's 9 solves the task");
    let transition = step(&mut episode, only(transition.requests), &["3", "9"]);
    assert!(transition.requests.is_empty());
    assert_eq!((episode.stop(), episode.turns()), (Some(&Stop::Success), 1));
    let terminated: Vec<bool> =
        transition.groups[0].members.iter().map(|member| member.outcome.terminated).collect();
    assert_eq!(terminated, [false, true]);

    let (mut episode, requests) = begin(sequential(), EpisodeConfig { turns: Some(1), ..config() }, 2);
    let transition = step(&mut episode, only(requests), &["1", "1"]);
    assert!(transition.groups[0].members.iter().all(|member| !member.truncated));
    let transition = step(&mut episode, only(transition.requests), &["1", "2"]);
    assert!(transition.groups[0].members.iter().all(|member| member.truncated));
    assert_eq!((episode.stop(), episode.turns()), (Some(&Stop::Turns), 1));
}

#[test]
fn an_environment_that_is_over_ends_the_episode_unsolved() {
    let (mut episode, requests) = begin(sequential(), config(), 2);
    let transition = step(&mut episode, only(requests), &["end", "x"]);
    assert!(transition.requests.is_empty());
    assert_eq!((episode.stop(), episode.turns()), (Some(&Stop::Terminated), 1));
    assert!(transition.groups[0].members.iter().all(|member| !member.truncated));
}

#[test]
fn a_failing_environment_ends_the_episode_without_a_partial_group() {
    for workflow in [sequential(), parallel(), staged()] {
        let streams = Arc::new(Streams::new(7, 12, "t", 0));
        let id = EpisodeId { name: "12.7".into(), streams, branches: 0..2, learner: None };
        let state = Talk { fails_on: Some("7".to_owned()), ..Talk::new(workflow) };
        let (mut episode, requests) = Episode::begin(Arc::new(config()), id, Box::new(state));
        let mut groups = 0;
        for request in requests {
            groups += step(&mut episode, request, &["1", "7"]).groups.len();
        }
        assert_eq!(groups, 0);
        let Some(Stop::Error(error)) = episode.stop() else { panic!("{:?}", episode.stop()) };
        assert_eq!((error.boundary, error.message.split_once(' ').expect("words").1), ("env", "said 7"));
    }
}

#[test]
fn a_stage_of_several_agents_is_followed_by_one_that_sees_their_choices() {
    let (mut episode, requests) = begin(staged(), config(), 2);
    let [first, second]: [PromptRequest; 2] = requests.try_into().expect("two requests");
    assert_eq!((first.agent, second.agent, episode.open_groups()), (0, 1, 2));
    step(&mut episode, first, &["1", "4"]);
    let transition = step(&mut episode, second, &["2", "2"]);
    assert_eq!(transition.groups.len(), 2);
    // The doer of the same turn sees both choices: branch 1 of the first, branch 0 of the second.
    let doer = only(transition.requests);
    assert_eq!((doer.turn, doer.agent, episode.open_groups()), (0, 2, 1));
    assert_eq!(doer.messages[0].content, "doer? asker-1:4 asker-2:2");
    let transition = step(&mut episode, doer, &["0", "3"]);
    assert_eq!(transition.groups[0].parent.as_deref(), Some("12.7/0/asker-2/0"));
    // The next turn begins with the first stage again.
    assert_eq!(
        transition.requests.iter().map(|request| (request.turn, request.agent)).collect::<Vec<_>>(),
        [(1, 0), (1, 1)]
    );
    assert_eq!(transition.requests[1].messages[0].content, "asker-2? asker-1:4 asker-2:2 doer:3");
}

/// The episode in which `acts` says who acts, by what was said last; at most two turns.
fn begin_skipping(
    workflow: Arc<Workflow>,
    config: EpisodeConfig,
    acts: fn(&[(String, String)], &str) -> bool,
) -> (Episode, Vec<PromptRequest>) {
    let streams = Arc::new(Streams::new(7, 12, "t", 0));
    let id = EpisodeId { name: "12.7".into(), streams, branches: 0..2, learner: None };
    let state = Talk { acts, ..Talk::new(workflow) };
    Episode::begin(Arc::new(EpisodeConfig { turns: Some(2), ..config }), id, Box::new(state))
}

fn places(requests: &[PromptRequest]) -> Vec<(u32, usize)> {
    requests.iter().map(|request| (request.turn, request.agent)).collect()
}

fn truncated(transition: &Transition) -> Vec<bool> {
    transition.groups.iter().flat_map(|group| &group.members).map(|member| member.truncated).collect()
}

#[test]
fn an_agent_that_skips_its_turn_is_not_asked() {
    // The doer begins; who says 5 goes on.
    let acts = |said: &[(String, String)], agent: &str| match said.last() {
        None => agent == "doer",
        Some((who, what)) => (who == agent) == (what == "5"),
    };
    let (mut episode, requests) = begin_skipping(sequential(), config(), acts);
    assert_eq!((places(&requests), episode.open_groups()), (vec![(0, 1)], 1));
    let transition = step(&mut episode, only(requests), &["1", "2"]);
    assert_eq!((places(&transition.requests), truncated(&transition)), (vec![(1, 0)], vec![false; 2]));
    assert_eq!(transition.requests[0].messages[0].content, "asker? doer:2");
    // After a 5 of the asker nobody acts before the turn limit; after a 4 the doer does.
    let transition = step(&mut episode, only(transition.requests), &["5", "4"]);
    assert!(transition.requests.is_empty());
    assert_eq!(truncated(&transition), [true, false]);
    assert_eq!((episode.stop(), episode.turns(), episode.open_groups()), (Some(&Stop::Turns), 2, 0));
}

#[test]
fn agents_of_a_stage_act_together_when_others_skip() {
    let acts = |said: &[(String, String)], agent: &str| said.is_empty() || agent != "asker-1";
    let (mut episode, mut requests) = begin_skipping(staged(), config(), acts);
    for expected in [vec![(0, 0), (0, 1)], vec![(0, 2)], vec![(1, 1)], vec![(1, 2)], vec![]] {
        assert_eq!(places(&requests), expected);
        for request in std::mem::take(&mut requests) {
            requests = step(&mut episode, request, &["3", "1"]).requests;
        }
    }
    let acts = |_: &[(String, String)], agent: &str| agent == "doer";
    let (mut episode, requests) = begin_skipping(parallel(), config(), acts);
    assert_eq!((places(&requests), episode.open_groups()), (vec![(0, 1)], 1));
    let transition = step(&mut episode, only(requests), &["3", "1"]);
    assert_eq!((transition.groups.len(), places(&transition.requests)), (1, vec![(1, 1)]));
    let transition = step(&mut episode, only(transition.requests), &["3", "1"]);
    assert_eq!((truncated(&transition), episode.stop()), (vec![true; 2], Some(&Stop::Turns)));
}

#[test]
fn joint_actions_are_those_of_the_agents_that_act() {
    let joint = JointConfig { mode: Mode::Cross, expand: Expand::All, stop_above: None, parallel: false };
    let config = EpisodeConfig { joint: Some(joint), ..config() };
    // The asker acts in the first turn, the doer after it; both after a 3.
    let acts = |said: &[(String, String)], agent: &str| match said.last() {
        None => agent == "asker",
        Some((_, what)) => agent == "doer" || what == "3",
    };
    let (mut episode, requests) = begin_skipping(parallel(), config, acts);
    let transition = step(&mut episode, only(requests), &["3", "1"]);
    assert_eq!((transition.joint.len(), transition.joint[0].members.len()), (2, 1));
    assert_eq!(places(&transition.requests), [(1, 0), (1, 1)]);
    let (fork, requests) = &transition.forks[0];
    assert_eq!((places(requests), fork.open_groups()), (vec![(1, 1)], 1));
    let [asker, doer]: [PromptRequest; 2] = transition.requests.try_into().expect("two requests");
    step(&mut episode, asker, &["1", "1"]);
    let transition = step(&mut episode, doer, &["1", "1"]);
    assert_eq!((transition.joint.len(), transition.joint[0].members.len()), (4, 2));
    assert_eq!((truncated(&transition), episode.stop()), (vec![true; 4], Some(&Stop::Turns)));
}

/// Outcomes that an environment should not give, and failures.
#[derive(Clone)]
struct Odd(Arc<Workflow>);

impl State for Odd {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.0
    }
    fn turn_limit(&self) -> u32 {
        3
    }
    fn observe(&self, agent: &str) -> Vec<Message> {
        vec![Message { role: "user".to_owned(), content: agent.to_owned() }]
    }
    fn apply(&mut self, _agent: &str, text: &str) -> record::failure::Result<Outcome> {
        let number = |when: &str, value: f64| if text == when { value } else { 0.0 };
        match text {
            "no sandbox" => Err(record::failure::Failure::unavailable("no sandbox")),
            "broken" => Err(record::failure::Failure::work("broken")),
            _ => Ok(Outcome {
                rewards: Rewards { team: number("endless", f64::INFINITY), local: 0.0 },
                locals: Default::default(),
                components: [("part".to_owned(), number("no number", f64::NAN))].into(),
                terminated: false,
                success: text == "solved",
                info: None,
            }),
        }
    }
    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }
    fn to_json(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

#[test]
fn wrong_answers_of_an_environment_end_the_episode_by_name() {
    let stop = |text: &str| {
        let streams = Arc::new(Streams::new(7, 12, "t", 0));
        let id = EpisodeId { name: "12.7".into(), streams, branches: 0..1, learner: None };
        let state = Box::new(Odd(sequential()));
        let (mut episode, requests) = Episode::begin(Arc::new(config()), id, state);
        step(&mut episode, only(requests), &[text]);
        match episode.stop() {
            Some(Stop::Error(error)) => error.boundary,
            Some(stop) => stop.name(),
            None => "none",
        }
    };
    let found = ["fine", "solved", "endless", "no number", "broken", "no sandbox"].map(stop);
    assert_eq!(found, ["none", "success", "env", "env", "env", "sandbox"]);
}

/// Whoever acts, everyone earns one.
#[derive(Clone)]
struct PaysAll(Arc<Workflow>);

impl State for PaysAll {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.0
    }
    fn turn_limit(&self) -> u32 {
        2
    }
    fn observe(&self, agent: &str) -> Vec<Message> {
        vec![Message { role: "user".to_owned(), content: agent.to_owned() }]
    }
    fn apply(&mut self, _agent: &str, _text: &str) -> record::failure::Result<Outcome> {
        let locals = self.0.agents().iter().map(|agent| (agent.clone(), 1.0)).collect();
        Ok(Outcome { locals, ..Outcome::new(0.0, 1.0, &[]) })
    }
    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }
    fn to_json(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

#[test]
fn pay_for_others_is_missed_where_a_tree_has_several_candidates() {
    // The second agent is paid; as an opponent it does not learn.
    for (branches, learner, unpaid) in
        [(1, None, false), (2, None, true), (2, Some(0), false), (2, Some(1), true)]
    {
        let streams = Arc::new(Streams::new(7, 12, "t", 0));
        let id = EpisodeId { name: "12.7".into(), streams, branches: 0..branches, learner };
        let (mut episode, requests) = Episode::begin(Arc::new(config()), id, Box::new(PaysAll(sequential())));
        let request = only(requests);
        let texts = &["1", "2"][..request.branches.len()];
        step(&mut episode, request, texts);
        assert_eq!(
            (episode.has_unpaid(), episode.returns().is_some()),
            (unpaid, true),
            "{branches} {learner:?}"
        );
    }
}

#[test]
fn only_the_last_stage_of_the_last_turn_is_cut_off() {
    let (mut episode, mut requests) = begin(sequential(), EpisodeConfig { turns: Some(2), ..config() }, 1);
    let mut truncated = Vec::new();
    while let Some(request) = requests.pop() {
        let transition = step(&mut episode, request, &["1"]);
        truncated.push(transition.groups[0].members[0].truncated);
        requests = transition.requests;
    }
    assert_eq!(truncated, [false, false, false, true]);
}

#[test]
fn an_environment_gets_answers_without_thoughts() {
    let spoken = |texts: [&str; 2], joint: Option<JointConfig>, is_in_thought: bool| {
        let workflow = if joint.is_some() { parallel() } else { sequential() };
        let (mut episode, mut requests) = begin(workflow, EpisodeConfig { joint, ..config() }, 2);
        let mut rewards = Vec::new();
        for _ in 0..2 {
            let candidate =
                |text: &str| Candidate { text: text.to_owned(), is_in_thought, ..Candidate::default() };
            let transition = episode.step(requests.remove(0), texts.map(candidate).to_vec());
            requests.extend(transition.requests);
            rewards.extend(transition.groups.iter().flat_map(|group| {
                assert_eq!(group.members[0].candidate.text, texts[0], "the record keeps the whole text");
                group.members.iter().map(|member| member.reward)
            }));
        }
        rewards
    };
    let aligned = JointConfig { mode: Mode::Aligned, expand: Expand::One, stop_above: None, parallel: false };
    for joint in [None, Some(aligned)] {
        let plain = spoken(["5", "0"], joint, false);
        assert_eq!(spoken(["<think>9</think>\n\n5", "<think>9"], joint, false), plain);
        assert_eq!(spoken(["9</think>5", "9"], joint, true), plain, "the prompt began the thought");
    }
}
