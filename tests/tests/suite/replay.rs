//! Replays a rollout from its lines in another program: every prompt, reward, choice, stop and advantage.
//!
//! `envs step` is told the task and then each candidate, one at a time, so all output of `rollout` must
//! follow from the tasks and the texts alone. This rules out typical mistakes of multi-agent training:
//! prompts that do not follow from the applied actions (a tree that never advances, agents in sequence that
//! do not see each other), candidates scored by anything but their consequence (given the choices of the
//! others, if agents act at once), groups of other than K candidates of one prompt, groups that mix tasks,
//! choices that are not the first best, running out of turns as a success.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};
use troupe_tests::folder::TestFolder;
use troupe_tests::program::lines;
use troupe_tests::{shell, warmed_up};

/// An `envs step` process.
struct Step {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Step {
    fn new(environment: &str) -> Step {
        let mut command = shell(&format!("exec envs step {environment}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("envs runs");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its stdout"));
        Step { child, input, output }
    }

    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.input.as_mut().expect("its stdin"), "{request}").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        let answer: Value = serde_json::from_str(&line).expect("JSON");
        assert!(answer["error"].is_null(), "{request}: {answer}");
        answer
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

struct Run {
    environment: &'static str,
    workflow: &'static str,
    branches: usize,
    turns: u64,
    team_weight: f64,
}

/// What a replay covered, so that the test can tell that it tested something.
#[derive(Default)]
struct Seen {
    groups: usize,
    unequal: usize,
    later_turns: usize,
    out_of_turns: usize,
    successes: usize,
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Advantages of a group: (r - mean) / (std + 1e-6), std over n - 1; 0 where all are equal.
fn advantages(rewards: &[f64]) -> Vec<f64> {
    let count = rewards.len() as f64;
    let mean = rewards.iter().sum::<f64>() / count;
    let std = (rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt();
    rewards.iter().map(|reward| if std == 0.0 { 0.0 } else { (reward - mean) / (std + 1e-6) }).collect()
}

fn replay(run: &Run, tasks: &[Value], lines: &[Value]) -> Seen {
    let mut seen = Seen::default();
    let mut samples: BTreeMap<(String, u64, String), Vec<&Value>> = BTreeMap::new();
    for sample in lines.iter().filter(|line| line["type"] == "sample") {
        let text = |key: &str| sample[key].as_str().expect("a text").to_owned();
        let key = (text("episode"), sample["turn"].as_u64().expect("a turn"), text("agent"));
        samples.entry(key).or_default().push(sample);
    }
    let mut step = Step::new(run.environment);
    for (index, task) in tasks.iter().enumerate() {
        let name = format!("5.{index}");
        let episode = lines
            .iter()
            .find(|line| line["type"] == "episode" && line["episode"] == *name)
            .expect("an episode a task");
        assert_eq!(episode["task"], task["task"]);
        let mut now = step.ask(&json!({"request": 0, "task": task, "workflow": run.workflow}));
        let agents: Vec<Value> = now["agents"].as_array().expect("agents").clone();
        let stages: Vec<Vec<Value>> = match &now["order"] {
            Value::String(order) if order == "parallel" => vec![agents],
            Value::String(_) => agents.into_iter().map(|agent| vec![agent]).collect(),
            stages => serde_json::from_value(stages.clone()).expect("stages"),
        };
        let (mut turn, mut reward, mut over) = (0, 0.0, None);
        while over.is_none() && turn < run.turns {
            for stage in &stages {
                let mut chosen = serde_json::Map::new();
                let mut after = Value::Null;
                let mut groups = Vec::new();
                let worth = |answer: &Value| {
                    let [team, local] = ["team", "local"].map(|part| number(&answer["rewards"][part]));
                    assert!((0.0..=1.0).contains(&team) && (0.0..=1.0).contains(&local), "{answer}");
                    run.team_weight * team + local
                };
                // The choice is the best candidate alone.
                for agent in stage {
                    let agent = agent.as_str().expect("a name");
                    let members = samples
                        .remove(&(name.clone(), turn, agent.to_owned()))
                        .unwrap_or_else(|| panic!("{name}: no group of {agent} at turn {turn}"));
                    let alone: Vec<f64> = members
                        .iter()
                        .map(|member| {
                            let action = &member["completion"];
                            worth(
                                &step.ask(&json!({"state": now["state"], "agent": agent, "action": action})),
                            )
                        })
                        .collect();
                    let most = alone.iter().copied().fold(f64::MIN, f64::max);
                    let best = alone.iter().position(|&reward| reward == most).expect("a best");
                    chosen.insert(agent.to_owned(), members[best]["completion"].clone());
                    groups.push((agent, members, best));
                }
                for (agent, members, best) in groups {
                    seen.groups += 1;
                    seen.later_turns += usize::from(turn > 0);
                    assert_eq!(members.len(), run.branches, "{name}/{agent}/{turn}");
                    let mut others = chosen.clone();
                    others.remove(agent);
                    let mut answers = Vec::new();
                    let mut rewards = Vec::new();
                    for (branch, member) in members.iter().enumerate() {
                        let id = &member["id"];
                        assert_eq!(*id, *format!("{name}/{turn}/{agent}/{branch}"));
                        assert_eq!(member["group"], *format!("{name}/{agent}/{turn}"), "{id}");
                        assert_eq!(member["task"], task["task"], "{id}");
                        assert_eq!(member["prompt"], now["observations"][agent], "{id}");
                        assert_eq!(member["prompt_ids"], members[0]["prompt_ids"], "{id}");
                        let action = &member["completion"];
                        let answer = step.ask(
                            &json!({"state": now["state"], "agent": agent, "action": action, "beside": others}),
                        );
                        assert_eq!(member["rewards"], answer["rewards"], "{id}");
                        assert_eq!(member["reward_components"], answer["reward_components"], "{id}");
                        assert_eq!(member["terminated"], answer["terminated"], "{id}");
                        assert_eq!(number(&member["reward"]), worth(&answer), "{id}");
                        rewards.push(number(&member["reward"]));
                        answers.push(answer);
                    }
                    for (branch, (member, wanted)) in members.iter().zip(advantages(&rewards)).enumerate() {
                        assert_eq!(member["selected"], branch == best, "{}", member["id"]);
                        let advantage = number(&member["advantage"]);
                        assert!(
                            (advantage - wanted).abs() < 1e-9,
                            "{}: {advantage}, not {wanted}",
                            member["id"]
                        );
                    }
                    seen.unequal += usize::from(rewards.iter().any(|&reward| reward != rewards[0]));
                    reward += rewards[best];
                    after = answers.swap_remove(best);
                }
                if stage.len() > 1 {
                    after = step.ask(&json!({"state": now["state"], "actions": chosen}));
                }
                now = after;
                if now["terminated"] == true {
                    over = Some(now["success"] == true);
                    break;
                }
            }
            turn += 1;
        }
        let (success, stop) = match over {
            Some(true) => (true, "success"),
            Some(false) => (false, "terminated"),
            None => (false, "turns"),
        };
        assert_eq!((&episode["success"], &episode["stop"]), (&success.into(), &stop.into()), "{name}");
        assert_eq!(episode["turns"], turn, "{name}");
        assert!((number(&episode["reward"]) - reward).abs() < 1e-9, "{name}: {reward}");
        seen.out_of_turns += usize::from(over.is_none());
        seen.successes += usize::from(success);
    }
    assert!(samples.is_empty(), "samples of episodes that were over: {:?}", samples.keys());
    let end = lines.iter().rfind(|line| line["type"] == "end").expect("an end");
    let rollout = &end["after"][0]["after"][0]["counts"];
    for counts in [&end["counts"], &end["after"][0]["counts"], rollout] {
        assert_eq!(counts["groups"], seen.groups, "every group counted once by every stage");
    }
    assert_eq!(rollout["groups_expected"], seen.groups);
    // Nothing is filtered unless it is asked for.
    assert_eq!(end["counts"]["samples_written"], seen.groups * run.branches);
    seen
}

#[test]
fn lines_of_rollout_follow_from_the_tasks_and_the_texts() {
    let folder = TestFolder::new();
    let mut all = Seen::default();
    for (environment, demonstrated, runs) in [
        ("plan-path", "team", vec![("team", 4, 3, 1.0), ("team", 3, 2, 0.5), ("single", 4, 2, 1.0)]),
        ("math", "ensemble", vec![("team", 4, 2, 1.0), ("ensemble", 3, 2, 1.0), ("turns", 3, 3, 2.0)]),
    ] {
        let warm_up = format!(
            "policy init D/{environment} --preset tiny --seed 3; \
             envs demo {environment} --workflow {demonstrated} --count 720 --seed 3 | \
             policy encode --policy D/{environment} | update --policy D/{environment} --objective nll \
             --optimizer muon --lr 0.03 --lr-other 4e-3 --minibatches 120 --quiet > D/warmup"
        );
        folder.must(&if environment == "plan-path" {
            format!("policy init D/{environment} --from '{}'", warmed_up().display())
        } else {
            warm_up
        });
        for (workflow, branches, turns, team_weight) in runs {
            let run = Run { environment, workflow, branches, turns, team_weight };
            let text = folder.must(&format!(
                "envs tasks {environment} --count 12 --seed 4 | tee D/tasks | \
                 rollout --policy D/{environment} --workflow {workflow} --branches {branches} --turns {turns} \
                 --team-weight {team_weight} --max-tokens 10 --step 5 --seed 6 --quiet | \
                 group --quiet | advantage --quiet"
            ));
            let mut tasks = folder.lines("tasks");
            tasks.retain(|line| line["type"] == "task");
            let seen = replay(&run, &tasks, &lines(&text));
            assert!(
                seen.unequal > 0 && seen.groups > 12,
                "{environment} {workflow}: nothing was learned from"
            );
            all.later_turns += seen.later_turns;
            all.out_of_turns += seen.out_of_turns;
            all.successes += seen.successes;
        }
    }
    assert!(all.later_turns > 50 && all.out_of_turns > 5 && all.successes > 5, "too little was met");
}
