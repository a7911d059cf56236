//! Joint actions with a policy of dice: number and order, rewards, the tree, its end, and refusals.

use crate::common;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::common::{of_type, parallel, play, sequential, settings, staged, tasks};
use envs::Workflow;
use rollout::by_agent::Widths;
use rollout::episode::joint::{Expand, JointConfig, Mode};
use serde_json::{Value, json};

fn output(flags: &[&str], workflow: Arc<Workflow>, specs: &[Value]) -> String {
    let chosen = settings(&[&["--max-error-rate", "1"], flags].concat());
    let input = tasks(specs) + "{\"type\":\"end\",\"v\":1,\"stage\":\"mine\",\"ok\":true}\n";
    let (output, totals, outcome) = play(chosen.clone(), workflow, 4, &input);
    outcome.expect("a run without failure");
    rollout::stage::check_outcome(&chosen, &totals).expect("every group is written or dropped");
    output
}

fn shared(flags: &[&str]) -> String {
    output(flags, parallel(), &[json!({"joint": "shared"})])
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn texts(lines: &[Value], key: &str) -> Vec<String> {
    lines.iter().map(|line| line[key].as_str().unwrap_or("").to_owned()).collect()
}

/// Mean rewards of a sample's joint actions, by sample; with `own` its agent's local reward counts too.
fn means(joint: &[Value], own: bool) -> BTreeMap<String, f64> {
    let mut rewards: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for action in joint {
        for member in action["members"].as_array().expect("members") {
            let member = member.as_str().expect("an id");
            let agent = member.rsplit('/').nth(1).expect("an agent");
            let local = if own { number(&action["rewards"]["local"][agent]) } else { 0.0 };
            rewards.entry(member.to_owned()).or_default().push(number(&action["rewards"]["team"]) + local);
        }
    }
    rewards.into_iter().map(|(id, all)| (id, all.iter().sum::<f64>() / all.len() as f64)).collect()
}

/// Three turns of 4 candidates on the executed path; from each of the 3 others 2 plays to the end.
#[test]
fn plays_to_the_end_grow_with_the_square_of_the_turns() {
    let flags = ["--joint", "aligned", "--expand", "ends=2", "--branches", "4", "--turns", "3"];
    let output = shared(&flags);
    let joint = of_type(&output, "joint");
    let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
    for name in texts(&joint, "node") {
        *by_node.entry(name).or_default() += 1;
    }
    let path: Vec<String> = joint
        .iter()
        .filter(|action| action["selected"] == true)
        .map(|action| action["id"].as_str().expect("an id").trim_start_matches("0.0/").to_owned())
        .collect();
    let is_executed = |node: &str| node.is_empty() || path.iter().any(|name| name == node);
    let depth = |node: &str| if node.is_empty() { 0 } else { node.split('.').count() };
    let parent = |node: &str| node.rsplit_once('.').map_or("", |(before, _)| before).to_owned();
    for (node, actions) in &by_node {
        let expected = match is_executed(node) {
            true => 4,
            false if is_executed(&parent(node)) => 2,
            false => 1,
        };
        assert_eq!(*actions, expected, "{node}");
    }
    // From the root 3 forks of 2 and then 1 twice, from the second node 3 forks of 2.
    let at = |level: usize| by_node.keys().filter(|node| depth(node) == level).count();
    assert_eq!((at(0), at(1), at(2)), (1, 4, 4 + 3 * 2));
    assert_eq!(joint.len(), 3 * 4 + 3 * (2 + 2) + 3 * 2);
    assert_eq!(of_type(&output, "sample").len(), 2 * joint.len());
}

#[test]
fn the_sizes_of_a_tree_are_those_of_the_paper() {
    for (mode, nodes, candidates, actions) in [("aligned", 5, 20, 20), ("cross", 17, 68, 272)] {
        let flags = ["--joint", mode, "--expand", "all", "--branches", "4", "--turns", "2"];
        let (output, totals, outcome) =
            play(settings(&flags), parallel(), 4, &tasks(&[json!({"joint": "shared"})]));
        outcome.expect("a run without failure");
        let counts = totals.stats.counts();
        assert_eq!((&counts["nodes"], &counts["joint_actions"]), (&json!(nodes), &json!(actions)));
        let (samples, joint) = (of_type(&output, "sample"), of_type(&output, "joint"));
        let of = |agent: &str| samples.iter().filter(|sample| sample["agent"] == agent).count();
        assert_eq!((of("asker"), of("doer"), joint.len()), (candidates, candidates, actions), "{mode}");
        let names: HashSet<String> = texts(&joint, "node").into_iter().collect();
        assert_eq!(names.len(), nodes, "{mode}");
        assert_eq!(of_type(&output, "episode").len(), 1);
        if mode == "aligned" {
            let branches = |action: &Value| -> HashSet<String> {
                let members = action["members"].as_array().expect("members").iter();
                members
                    .map(|id| id.as_str().expect("an id").rsplit('/').next().unwrap_or("").to_owned())
                    .collect()
            };
            assert!(
                joint.iter().all(|action| branches(action).len() == 1),
                "k goes with k, and with no other"
            );
        }
        let ids: HashSet<String> =
            samples.iter().chain(&joint).map(|line| line["id"].as_str().expect("an id").to_owned()).collect();
        assert_eq!(ids.len(), samples.len() + joint.len());
    }
}

#[test]
fn lines_are_those_of_a_walk_depth_first_and_the_last_agent_is_the_fastest() {
    let output = shared(&["--joint", "cross", "--expand", "all", "--branches", "2", "--turns", "3"]);
    let joint = of_type(&output, "joint");
    let mut nodes = texts(&joint, "node");
    nodes.dedup();
    assert_eq!(nodes[..7], ["", "0", "0.0", "0.1", "0.2", "0.3", "1"]);
    assert_eq!(nodes.len(), 1 + 4 + 16);
    assert_eq!(texts(&joint[..4], "id"), ["0.0/0", "0.0/1", "0.0/2", "0.0/3"]);
    assert_eq!(joint[2]["members"], json!(["0.0/0/asker/1", "0.0/0/doer/0"]));
    assert_eq!(joint[2]["parent"], Value::Null);
    let below = joint.iter().find(|action| action["node"] == "2.1").expect("a node");
    assert_eq!((&below["parent"], &below["turn"]), (&json!("0.0/2.1"), &json!(2)));
    assert_eq!(below["members"], json!(["0.0/2.1/2/asker/0", "0.0/2.1/2/doer/0"]));
    let fields: Vec<&str> = joint[0].as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = "type v step shard env task episode turn id parent members reward rewards reward_components \
                    selected terminated success truncated";
    assert_eq!(fields, expected.split_whitespace().collect::<Vec<_>>());
    // Its samples say where they are, and a node's lines are together: its groups, then its joint actions.
    let sample =
        of_type(&output, "sample").into_iter().find(|sample| sample["node"] == "2.1").expect("a sample");
    assert_eq!((&sample["id"], &sample["parent"]), (&json!("0.0/2.1/2/asker/0"), &json!("0.0/2/1/doer/1")));
    let mut places: Vec<(String, String)> = output
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|line| (line["node"].to_string(), line["type"].to_string() + &line["agent"].to_string()))
        .collect();
    places.dedup();
    assert_eq!(places.len(), 3 * 21 + 1);
}

#[test]
fn a_sample_earns_the_mean_over_its_joint_actions() {
    for (spec, own, weight) in [("shared", false, 1.0), ("own", true, 1.0), ("own", true, 0.5)] {
        for mode in ["aligned", "cross"] {
            let team = format!("{weight}");
            let flags = ["--joint", mode, "--branches", "5", "--team-weight", &team];
            let output = output(&flags, parallel(), &[json!({"joint": spec}), json!({"joint": spec})]);
            let joint = of_type(&output, "joint");
            let expected = means(&joint, own);
            for sample in of_type(&output, "sample") {
                let id = sample["id"].as_str().expect("an id");
                let of_parts =
                    weight * number(&sample["rewards"]["team"]) + number(&sample["rewards"]["local"]);
                assert!((number(&sample["reward"]) - of_parts).abs() < 1e-12, "{sample}");
                let local = number(&sample["rewards"]["local"]);
                let mean = expected[id] - (1.0 - weight) * number(&sample["rewards"]["team"]);
                assert!((number(&sample["reward"]) - mean).abs() < 1e-12, "{id}");
                assert!(
                    local
                        == if own {
                            sample["completion"]
                                .as_str()
                                .and_then(|text| text.parse().ok())
                                .map_or(0.0, |digit: f64| digit / 10.0)
                        } else {
                            0.0
                        },
                    "{sample}"
                );
                // Components of its joint actions that belong to it, without its name.
                let digit: f64 =
                    sample["completion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0.0);
                assert_eq!(sample["reward_components"], json!({"digit": digit}), "{sample}");
            }
            if mode == "aligned" && !own {
                let rewards: BTreeMap<String, f64> = of_type(&output, "sample")
                    .iter()
                    .map(|sample| {
                        (sample["id"].as_str().expect("an id").to_owned(), number(&sample["reward"]))
                    })
                    .collect();
                for action in &joint {
                    for member in action["members"].as_array().expect("members") {
                        assert_eq!(rewards[member.as_str().expect("an id")], number(&action["reward"]));
                    }
                }
            }
        }
    }
}

#[test]
fn the_executed_path_is_one_chain_of_the_best_joint_actions() {
    for flags in [&["--expand", "one"][..], &["--expand", "all", "--branches", "2"], &[]] {
        for mode in ["aligned", "cross"] {
            let output = shared(&[&["--joint", mode, "--select", "best"], flags].concat());
            let (joint, samples) = (of_type(&output, "joint"), of_type(&output, "sample"));
            let path: Vec<&Value> = joint.iter().filter(|action| action["selected"] == true).collect();
            assert_eq!(path.len(), 3, "three turns");
            let mut parent = Value::Null;
            for action in &path {
                assert_eq!(action["parent"], parent);
                parent = action["id"].clone();
                let siblings = || joint.iter().filter(|other| other["node"] == action["node"]);
                let most = siblings().map(|other| number(&other["reward"])).fold(f64::MIN, f64::max);
                let first = siblings().find(|other| number(&other["reward"]) == most).expect("the best");
                assert_eq!(first["id"], action["id"]);
            }
            let members: Vec<&Value> =
                path.iter().flat_map(|action| action["members"].as_array().expect("members")).collect();
            let selected: Vec<&Value> = samples
                .iter()
                .filter(|sample| sample["selected"] == true)
                .map(|sample| &sample["id"])
                .collect();
            assert_eq!(selected, members);
            let [episode]: [Value; 1] = of_type(&output, "episode").try_into().expect("one episode");
            let reward: f64 = path.iter().map(|action| number(&action["reward"])).sum();
            assert!((number(&episode["reward"]) - reward).abs() < 1e-12);
            assert_eq!((&episode["stop"], &episode["turns"]), (&json!("turns"), &json!(3)));
            let last: Vec<bool> =
                joint.iter().chain(&samples).map(|line| line["truncated"] == (line["turn"] == 2)).collect();
            assert!(last.iter().all(|&right| right));
        }
    }
}

#[test]
fn a_random_choice_reaches_every_joint_action() {
    let output = output(
        &["--joint", "cross", "--branches", "2", "--turns", "1", "--select", "random"],
        parallel(),
        &vec![json!({"joint": "shared"}); 40],
    );
    let joint = of_type(&output, "joint");
    let selected: Vec<&Value> = joint.iter().filter(|action| action["selected"] == true).collect();
    let better = |one: &Value, other: &Value| {
        one["episode"] == other["episode"] && number(&one["reward"]) > number(&other["reward"])
    };
    assert!(
        selected.iter().any(|action| joint.iter().any(|other| better(other, action))),
        "not always the best is chosen"
    );
    let chosen: HashSet<String> = selected
        .into_iter()
        .map(|action| action["id"].to_string().split_once('/').expect("a path").1.to_owned())
        .collect();
    assert_eq!(chosen.len(), 4, "{chosen:?}");
}

#[test]
fn a_mean_equal_to_the_threshold_does_not_stop() {
    let flags = ["--joint", "aligned", "--expand", "all", "--branches", "3", "--turns", "2"];
    let whole = shared(&flags);
    let root = of_type(&whole, "joint").into_iter().filter(|action| action["node"].is_null());
    let rewards: Vec<f64> = root.map(|action| number(&action["reward"])).collect();
    let mean = rewards.iter().sum::<f64>() / 3.0;
    let with = |threshold: f64| shared(&[&flags[..], &["--stop-above", &format!("{threshold:e}")]].concat());
    assert!(of_type(&with(mean), "joint").iter().any(|action| action["turn"] == 1), "equal is not above");
    let stopped = with(mean.next_down());
    assert_eq!(of_type(&stopped, "joint").len(), 3);
    assert!(
        of_type(&stopped, "sample").iter().all(|sample| sample["turn"] == 0 && sample["truncated"] == false)
    );
    let [episode]: [Value; 1] = of_type(&stopped, "episode").try_into().expect("one episode");
    assert_eq!((&episode["stop"], &episode["success"]), (&json!("threshold"), &json!(false)));
}

#[test]
fn siblings_with_equal_prompts_draw_different_numbers_and_the_root_draws_those_of_a_run_without() {
    let output = shared(&["--joint", "aligned", "--expand", "all", "--branches", "4", "--turns", "2"]);
    let mut drawn: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    for sample in of_type(&output, "sample") {
        let key = (sample["node"].to_string(), sample["agent"].to_string());
        drawn.entry(key).or_default().push(sample["completion_logprobs"].clone());
    }
    assert_eq!(drawn.len(), 10);
    assert_eq!(drawn.values().collect::<HashSet<_>>().len(), 10, "{drawn:?}");
    let prompts = of_type(&output, "sample")
        .iter()
        .map(|sample| sample["prompt_ids"].to_string())
        .collect::<HashSet<_>>();
    assert_eq!(prompts.len(), 2, "one for each agent");
    let without = shared(&["--branches", "4", "--turns", "1"]);
    let texts = |output: &str| -> Vec<Value> {
        of_type(output, "sample")
            .into_iter()
            .filter(|sample| sample["turn"] == 0)
            .map(|sample| sample["completion"].clone())
            .collect()
    };
    let root: Vec<Value> = of_type(&output, "sample")
        .into_iter()
        .filter(|sample| sample["node"].is_null())
        .map(|sample| sample["completion"].clone())
        .collect();
    assert_eq!(root, texts(&without));
}

#[test]
fn parallel_episodes_have_one_joint_action_a_turn_each() {
    let flags = ["--joint", "aligned", "--sampling", "parallel", "--branches", "3"];
    let output = output(&flags, parallel(), &[json!({"joint": "own"})]);
    let (joint, samples) = (of_type(&output, "joint"), of_type(&output, "sample"));
    assert_eq!((joint.len(), samples.len()), (3 * 3, 2 * 3 * 3));
    assert!(samples.iter().chain(&joint).all(|line| line["node"].is_null()));
    assert_eq!(texts(&joint[3..6], "id"), ["0.0/0.0", "0.0/1.1", "0.0/2.2"]);
    assert_eq!((&joint[4]["branch"], &joint[4]["parent"]), (&json!(1), &json!("0.0/1")));
    assert_eq!(joint[4]["members"], json!(["0.0/1/asker/1", "0.0/1/doer/1"]));
    let expected = means(&joint, true);
    for sample in &samples {
        assert_eq!(number(&sample["reward"]), expected[sample["id"].as_str().expect("an id")]);
    }
    assert_eq!(of_type(&output, "episode").len(), 3);
    // Draws do not depend on --joint.
    let without = common::play(settings(&flags[2..]), parallel(), 4, &tasks(&[json!({"joint": "own"})])).0;
    let drawn = |samples: &[Value]| -> Vec<Value> {
        samples.iter().map(|sample| sample["completion"].clone()).collect()
    };
    assert_eq!(drawn(&samples), drawn(&of_type(&without, "sample")));
}

#[test]
fn a_stage_of_one_agent_is_a_joint_of_one() {
    for (workflow, stages) in [(sequential(), 2), (staged(), 2)] {
        let output = output(&["--joint", "cross", "--branches", "2", "--turns", "1"], workflow, &[json!({})]);
        let joint = of_type(&output, "joint");
        let doers: Vec<&Value> = joint
            .iter()
            .filter(|action| action["members"].as_array().is_some_and(|all| all.len() == 1))
            .collect();
        assert!(!doers.is_empty());
        for action in &doers {
            let local = action["rewards"]["local"].as_object().expect("by agent");
            let own: f64 = local.values().map(number).sum();
            assert_eq!(number(&action["reward"]), number(&action["rewards"]["team"]) + own);
        }
        let nodes: HashSet<String> = texts(&joint, "node").into_iter().collect();
        assert!(nodes.len() <= stages);
    }
    let alone = output(&["--joint", "aligned"], sequential(), &[json!({"joint": "never"})]);
    assert!(!of_type(&alone, "joint").is_empty(), "an agent alone needs no scoring together");
    // What `apply` rewards the agent for, `apply_together` would reward the team for.
    let applied = output(&["--joint", "aligned"], sequential(), &[json!({"joint": "shared"})]);
    for sample in of_type(&applied, "sample") {
        assert_eq!(number(&sample["rewards"]["local"]), number(&sample["reward_components"]["digit"]) / 10.0);
    }
}

#[test]
fn a_tree_has_at_most_65536_nodes() {
    let state = common::Talk::new(sequential());
    let joint = JointConfig { mode: Mode::Aligned, expand: Expand::All, stop_above: None, parallel: false };
    // Two stages of one joint action each: a node a stage.
    assert!(joint.check(&state, &Widths::all(1), Some(32_768)).is_ok());
    assert_eq!(joint.check(&state, &Widths::all(1), Some(32_769)).expect_err("one too many").code, 2);
}

#[test]
fn a_tree_is_scored_as_a_whole_or_not_at_all() {
    let flags = ["--joint", "aligned", "--expand", "all", "--branches", "4"];
    let specs: Vec<Value> =
        (0..10).map(|digit| json!({"joint": "shared", "fails_on": digit.to_string()})).collect();
    let output = output(&flags, parallel(), &specs);
    assert_eq!(of_type(&output, "error").len(), 10, "each digit is said somewhere among 170 candidates");
    assert!(of_type(&output, "sample").is_empty() && of_type(&output, "joint").is_empty());
    let episodes = of_type(&output, "episode");
    assert!(episodes.iter().all(|episode| episode["stop"] == "error" && episode["reward"].is_null()));
    // On one path the turns before stay.
    let one = common::play(
        settings(&["--joint", "aligned", "--max-error-rate", "1"]),
        parallel(),
        4,
        &tasks(&specs),
    )
    .0;
    assert!(!of_type(&one, "sample").is_empty());
}

#[test]
fn shards_together_have_the_same_joint_actions() {
    let lines = |shard: &str| -> Vec<String> {
        let specs = vec![json!({"joint": "own"}); 12];
        let flags =
            ["--joint", "cross", "--expand", "all", "--branches", "2", "--turns", "2", "--shard", shard];
        let text = output(&flags, parallel(), &specs).replace(&format!("\"shard\":\"{shard}\""), "");
        text.lines().filter(|line| line.contains("\"type\":\"joint\"")).map(str::to_owned).collect()
    };
    let mut parts: Vec<String> = (0..3).flat_map(|number| lines(&format!("{number}/3"))).collect();
    let mut whole = lines("0/1");
    parts.sort();
    whole.sort();
    assert_eq!(whole.len(), 12 * 20);
    assert_eq!(parts, whole);
}

#[test]
fn impossible_joint_flags_are_usage_errors() {
    let run = |flags: &[&str], spec: Value| {
        let (_, _, outcome) = play(settings(flags), parallel(), 4, &tasks(&[spec]));
        let failure = outcome.expect_err("refused");
        assert_eq!(failure.code, 2, "{failure}");
        (failure.message, failure.hint.expect("a hint"))
    };
    let (many, _) = run(&["--joint", "cross", "--branches", "65"], json!({}));
    assert!(many.starts_with("--joint cross: 4225 joint actions at a node, more than 4096"), "{many}");
    let (deep, hint) = run(&["--joint", "cross", "--branches", "64", "--expand", "all"], json!({}));
    assert_eq!(
        hint,
        "--turns 2 fits; or fewer --branches, --joint aligned, --expand ends=1, or --expand one"
    );
    assert_eq!(deep, "--expand all: the tree of an episode has more than 65536 nodes");
    let (deep, _) = run(&["--joint", "aligned", "--branches", "64", "--expand", "ends=4096"], json!({}));
    assert_eq!(deep, "--expand ends=4096: the tree of an episode has more than 65536 nodes");
    let (alone, _) = run(&["--joint", "aligned"], json!({"joint": "never"}));
    assert!(alone.contains("one by one"), "{alone}");
    for flags in [
        &["--joint", "cross", "--sampling", "parallel"][..],
        &["--joint", "aligned", "--sampling", "parallel", "--expand", "all"],
        &["--joint", "aligned", "--sampling", "parallel", "--expand", "ends=1"],
        &["--joint", "aligned", "--stop-above", "NaN"],
    ] {
        use clap::Parser;
        let line = [&["rollout", "--policy", "p"], flags].concat();
        let refused = rollout::arguments::CommandLine::parse_from(line).arguments.resolve();
        assert_eq!(refused.expect_err("refused").code, 2, "{flags:?}");
    }
    let (output, _, outcome) = play(
        settings(&["--joint", "cross", "--branches", "64", "--turns", "1"]),
        parallel(),
        4,
        &tasks(&[json!({})]),
    );
    outcome.expect("exactly 4096");
    assert_eq!(of_type(&output, "joint").len(), 4096);
}
