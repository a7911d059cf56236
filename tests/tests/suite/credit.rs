//! Credit rules through the pipe: lines by hand into `group | advantage`, advantages against numbers computed elsewhere.
//!
//! The numbers come from an independent script, and from the papers' packages where these could be called.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use troupe_tests::{must, program, run};

/// Below which two numbers of six digits are one.
const CLOSE: f64 = 2e-6;

/// A sample, with what else it has.
pub fn sample(id: &str, agent: &str, branch: usize, branches: usize, more: &Value) -> Value {
    let mut line = json!({"type": "sample", "v": 1, "env": "toy", "task": "t", "episode": "0.0", "turn": 0, "agent": agent,
        "branch": branch, "branches": branches, "id": id, "prompt_ids": [1], "completion_ids": [2], "reward": 0});
    for (name, value) in more.as_object().expect("fields") {
        line[name] = value.clone();
    }
    line
}

/// The members of one group with these rewards, and with more by member.
pub fn group(rewards: &[f64], more: &dyn Fn(usize) -> Value) -> Vec<Value> {
    let of = |(branch, reward): (usize, &f64)| {
        let mut line = sample(&branch.to_string(), "a", branch, rewards.len(), &more(branch));
        line["reward"] = json!(reward);
        line
    };
    rewards.iter().enumerate().map(of).collect()
}

pub fn nothing(_: usize) -> Value {
    json!({})
}

pub fn write(folder: &Path, lines: &[Value]) -> String {
    let path = folder.join("lines.jsonl");
    let end = json!({"type": "end", "v": 1, "stage": "rollout", "ok": true});
    let text: String = lines.iter().chain([&end]).map(|line| format!("{line}\n")).collect();
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

/// The advantages that a pipe gives `lines`, in their order, and the counts of its end.
pub fn through(lines: &[Value], pipe: &str) -> (Vec<f64>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let output = must(&format!("cat {} | {pipe}", write(folder.path(), lines)));
    let output = program::lines(&output);
    let of = |line: &Value| (line["id"].as_str().unwrap_or_default().to_owned(), line["advantage"].as_f64());
    let by_id: BTreeMap<String, Option<f64>> =
        output.iter().filter(|line| line["type"] == "sample").map(of).collect();
    let samples = lines.iter().filter(|line| line["type"] == "sample");
    let found = samples.filter_map(|line| *by_id.get(line["id"].as_str().expect("an id"))?).collect();
    (found, output.last().expect("an end")["counts"].clone())
}

pub fn check(lines: &[Value], pipe: &str, expected: &[f64]) -> Value {
    let (found, counts) = through(lines, pipe);
    let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < CLOSE);
    assert!(close && found.len() == expected.len(), "{pipe}\n{found:.6?}\ninstead of\n{expected:.6?}");
    counts
}

/// What the first stage that refuses says, and the pipe's exit code.
pub fn refused(lines: &[Value], pipe: &str) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, stderr) = run(&format!("cat {} | {pipe}", write(folder.path(), lines)));
    (code, stderr.trim_end().to_owned())
}

/// A solver, then a checker, with four episodes of a task: the first ends after a turn, the others after two; the last
/// checker is paid. Ordered by episode, turn and agent.
pub fn played() -> Vec<Value> {
    let tokens = [
        [[Some(2), Some(1)], [None, None]],
        [[Some(3), Some(1)], [Some(3), Some(1)]],
        [[Some(4), Some(2)], [Some(5), Some(3)]],
        [[Some(5), Some(2)], [Some(2), Some(2)]],
    ];
    let format = [[[1, 1], [0, 0]], [[1, 0], [1, 1]], [[0, 0], [1, 0]], [[1, 1], [0, 0]]];
    let earned = [1.0, 1.0, 0.0, 0.5];
    let mut lines = Vec::new();
    for (episode, turns) in tokens.iter().enumerate() {
        let last = if episode == 0 { 0 } else { 1 };
        let (mut parent, mut path) = (Value::Null, String::new());
        for (turn, agents) in turns.iter().enumerate().filter(|(turn, _)| *turn <= last) {
            for (index, (agent, tokens)) in ["solver", "checker"].iter().zip(agents).enumerate() {
                // The solvers see the task, and the second turns of the middle episodes look alike.
                let prompt = match (index, turn, episode) {
                    (0, 0, _) => 1,
                    (0, 1, 1 | 2) => 2,
                    _ => 10 + 10 * episode + 2 * turn + index,
                };
                let ends = turn == last && index == 1;
                let reward = if ends { earned[episode] } else { 0.0 };
                let id = format!("0.0/{turn}/{agent}/{episode}");
                let before = path.clone();
                path = if path.is_empty() { episode.to_string() } else { format!("{path}.{episode}") };
                lines.push(sample(&id, agent, episode, 4, &json!({
                    "turn": turn, "sampling_mode": "parallel", "prompt_ids": [prompt], "reward": reward, "parent": parent,
                    "completion_ids": vec![3; tokens.expect("a call")], "policy": "both",
                    "reward_components": {"success": earned[episode], "format": format[episode][turn][index]},
                })));
                lines.push(json!({"type": "joint", "v": 1, "episode": "0.0", "branch": episode, "turn": turn,
                    "id": format!("0.0/{path}"), "members": [id.clone()], "reward": reward, "terminated": ends,
                    "parent": if before.is_empty() { Value::Null } else { json!(format!("0.0/{before}")) }}));
                parent = json!(id);
            }
        }
    }
    lines
}

/// One number an episode, as often as it has samples.
fn by_episode(values: [f64; 4]) -> Vec<f64> {
    values.iter().zip([2, 4, 4, 4]).flat_map(|(&value, count)| vec![value; count]).collect()
}

#[test]
fn one_record_of_episodes_is_scored_by_every_rule() {
    let lines = played();
    let once = by_episode([0.783348, 0.783348, -1.305580, -0.261116]);
    check(&lines, "group -q --by episode | advantage -q --credit episode", &once);
    // Both agents earn the same, so that Dr. MAS differs only where calls count.
    check(&lines, "group -q --by agent | advantage -q --credit episode", &once);
    let calls = by_episode([0.952659, 0.952659, -1.270212, -0.158776]);
    let counts = check(&lines, "group -q --by agent | advantage -q --credit episode --count calls", &calls);
    assert_eq!(counts["count"], "calls");
    check(
        &lines,
        "group -q | advantage -q --credit tree --estimator dr-grpo",
        &[0.375, 0.375, 0.375, 0.375, 0.5, 0.5, -0.625, -0.625, -0.5, -0.5, -0.125, -0.125, 0.0, 0.0],
    );
    check(
        &lines,
        "group -q | advantage -q --credit tree",
        &[
            0.783348, 0.783348, 0.783348, 0.783348, 0.999998, 0.999998, -1.305580, -1.305580, -0.999998,
            -0.999998, -0.261116, -0.261116, 0.0, 0.0,
        ],
    );
    check(
        &lines,
        "group -q | advantage -q --credit episode --estimator opo",
        &[
            0.464286, 0.5, 0.464286, 0.5, 0.6, 0.666667, -0.535714, -0.5, -0.4, -0.333333, -0.035714, 0.0,
            0.1, 0.166667,
        ],
    );
}

#[test]
fn gigpo_adds_a_comparison_of_equal_prompts() {
    let lines = played();
    let group = "group -q --by agent --anchor prompt";
    let counts = check(
        &lines,
        &format!("{group} | advantage -q --credit gigpo --gamma 0.95"),
        &[
            1.624119, 0.783348, 1.517354, 0.783348, 1.490454, 0.783348, -2.600100, -1.305580, -2.012685,
            -1.305580, -0.541373, -0.261116, -0.261116, -0.261116,
        ],
    );
    assert_eq!((&counts["anchors"], &counts["anchor_size_mean"]), (&json!(10), &json!(1.4)));
    let mean = format!("{group} | advantage -q --credit gigpo --gamma 0.95 --estimator dr-grpo");
    check(
        &lines,
        &mean,
        &[
            0.768750, 0.375000, 0.718750, 0.375000, 0.875000, 0.375000, -1.231250, -0.625000, -1.125000,
            -0.625000, -0.256250, -0.125000, -0.125000, -0.125000,
        ],
    );
    // Without the episode's part.
    let (whole, _) = through(&lines, &mean);
    let (half, _) = through(&lines, &format!("{mean} --anchor-weight 0.5"));
    let step: Vec<f64> = whole.iter().zip(half).map(|(whole, half)| 2.0 * (whole - half)).collect();
    let expected = [0.39375, 0.0, 0.34375, 0.0, 0.5, 0.0, -0.60625, 0.0, -0.5, 0.0, -0.13125, 0.0, 0.0, 0.0];
    assert!(step.iter().zip(expected).all(|(step, expected)| (step - expected).abs() < CLOSE), "{step:?}");
}

/// Two agents at once, after one parent, share one reward of the team: R of a play is theirs once.
#[test]
fn rewards_of_a_joint_action_are_discounted_once() {
    let lines: Vec<Value> = (0..2)
        .flat_map(|branch| ["a", "b"].map(|agent| (branch, agent)))
        .flat_map(|(branch, agent)| {
            [0, 1].map(|turn| {
                let team = f64::from(u8::from(turn == 1 && branch == 0));
                sample(
                    &format!("{turn}{agent}{branch}"),
                    agent,
                    branch,
                    2,
                    &json!({
                    "turn": turn, "sampling_mode": "parallel", "prompt_ids": [turn + 1], "reward": team,
                    "rewards": {"team": team, "local": 0}, "parent": format!("p{turn}{branch}")}),
                )
            })
        })
        .collect();
    let pipe =
        "group -q --by agent --anchor prompt | advantage -q --credit gigpo --gamma 0.5 --estimator dr-grpo";
    // R: 2 against 0, as each agent is paid. G at turn 1: 1 against 0; at turn 0: 0.5 against 0.
    let one = [1.25, 1.5, 1.25, 1.5];
    check(&lines, pipe, &[one, one.map(|value: f64| -value)].concat());
}

#[test]
fn gdpo_and_whitening_over_tokens_and_samples() {
    let lines = played();
    let gdpo = "group -q --by agent | advantage -q --estimator gdpo --components success=1,format=1";
    check(
        &lines,
        &format!("{gdpo} --whiten tokens"),
        &[
            1.135020, 1.439869, 1.135020, 0.260314, 1.135020, 1.439869, -1.558638, -1.141206, -0.266500,
            -1.141206, 0.434260, 0.739109, -0.857878, -0.440446,
        ],
    );
    let counts = check(
        &lines,
        &format!("{gdpo} --whiten samples"),
        &[
            0.919350, 1.208331, 0.919350, 0.090176, 0.919350, 1.208331, -1.634093, -1.238390, -0.409215,
            -1.238390, 0.255067, 0.544048, -0.969810, -0.574107,
        ],
    );
    assert_eq!(counts["whiten"]["policies"]["both"]["count"], 14.0);
    let reinforce = "group -q | advantage -q --estimator raw --credit episode";
    let tokens = by_episode([1.288275, 1.288275, -1.090079, 0.099098]);
    check(&lines, &format!("{reinforce} --whiten tokens"), &tokens);
    let samples = by_episode([0.991561, 0.991561, -1.322081, -0.165260]);
    check(&lines, &format!("{reinforce} --whiten samples --epsilon 0"), &samples);
    let baseline = "group -q | advantage -q --estimator dr-grpo --credit episode";
    check(
        &lines,
        &format!("{baseline} --whiten tokens"),
        &[
            1.174750, 1.174750, 1.174750, 1.174750, 1.476828, 1.476828, -1.241878, -1.241878, -0.939800,
            -0.939800, -0.033564, -0.033564, 0.268514, 0.268514,
        ],
    );
    check(
        &lines,
        &format!("{baseline} --whiten samples --epsilon 0"),
        &[
            0.877346, 0.877346, 0.877346, 0.877346, 1.169795, 1.169795, -1.462244, -1.462244, -1.169795,
            -1.169795, -0.292449, -0.292449, 0.0, 0.0,
        ],
    );
}

#[test]
fn gdpo_normalizes_each_component_by_itself() {
    let of = |pairs: [[f64; 2]; 4], task: usize| -> Vec<Value> {
        let more = |branch: usize| {
            let [success, format] = pairs[branch];
            json!({"episode": format!("0.{task}"), "id": format!("{task}/{branch}"),
                "reward_components": {"success": success, "format": format}})
        };
        group(&pairs.map(|[success, format]| success + format), &more)
    };
    let one = of([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]], 0);
    let gdpo = "group -q | advantage -q --estimator gdpo --components success,format";
    check(&one, gdpo, &[0.0, 0.0, -1.732048, 1.732048]);
    check(&one, "group -q | advantage -q", &[0.0, 0.0, -1.224743, 1.224743]);
    let two = [one, of([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.0, 1.0]], 1)].concat();
    let loose = format!("{gdpo} --epsilon 1e-4");
    let before = [0.0, 0.0, -1.731751, 1.731751, 0.499900, -1.499700, 0.499900, 0.499900];
    check(&two, &loose, &before);
    let after = [0.0, 0.0, -1.527404, 1.527404, 0.440912, -1.322735, 0.440912, 0.440912];
    check(&two, &format!("{loose} --whiten samples"), &after);
    // With weights of opposite sign the sum is flat and the components are not.
    let (found, counts) = through(
        &of([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], 0),
        "group -q | advantage -q --drop-flat --estimator gdpo --components success=1,format=0.5",
    );
    assert_eq!((found.len(), &counts["groups_flat"]), (4, &json!(0)));
    assert!(found[0] > 0.6 && found[0] + found[1] < 1e-9, "{found:?}");
}

#[test]
fn small_estimators_are_their_formulas() {
    for (flags, rewards, expected) in [
        ("--estimator max-rl", [1.0, 0.0, 0.0, 0.0], [3.0, -1.0, -1.0, -1.0]),
        ("--estimator max-rl", [0.5, 0.2, 0.0, 0.9], [0.25, -0.5, -1.0, 1.25]),
        ("--estimator max-rl", [0.0; 4], [0.0; 4]),
        ("--estimator max-at --k 2", [1.0, 0.0, 0.0, 1.0], [0.666667, 0.0, 0.0, 0.666667]),
        ("--estimator max-at", [0.5, 0.2, 0.0, 0.9], [0.266667, 0.066667, 0.0, 0.666667]),
        ("--estimator max-at --k 4", [0.5, 0.2, 0.0, 0.9], [0.0, 0.0, 0.0, 0.4]),
        ("--estimator max-at --k 4", [1.0, 0.0, 0.0, 1.0], [0.0; 4]),
        ("--estimator dr-grpo", [1.0, 0.0, 0.0, 1.0], [0.5, -0.5, -0.5, 0.5]),
    ] {
        check(&group(&rewards, &nothing), &format!("group -q | advantage -q {flags}"), &expected);
    }
    for flags in ["--estimator max-rl", "--estimator max-at", "--estimator opo"] {
        check(&group(&[0.7], &nothing), &format!("group -q | advantage -q {flags}"), &[0.0]);
    }
}

#[test]
fn a_gate_makes_a_group_flat_whatever_shaping_says() {
    let of = |success: [f64; 4], rewards: [f64; 4]| {
        group(&rewards, &|branch| json!({"reward_components": {"success": success[branch]}}))
    };
    let failed = of([0.0; 4], [0.03, 0.01, 0.02, 0.0]);
    let shaped = [1.161805, -0.387268, 0.387268, -1.161805];
    check(&failed, "group -q | advantage -q", &shaped);
    let counts = check(&failed, "group -q | advantage -q --gate success", &[0.0; 4]);
    assert_eq!((&counts["groups_flat"], &counts["groups_gated"]), (&json!(1), &json!(1)));
    check(&failed, "group -q | advantage -q --flat-below 0.05", &[0.0; 4]);
    check(&failed, "group -q | advantage -q --flat-below 0.029", &shaped);
    let mixed = of([1.0, 0.0, 0.0, 0.0], [1.03, 0.01, 0.02, 0.0]);
    for flags in ["", "--gate success"] {
        let pipe = format!("group -q | advantage -q {flags}");
        check(&mixed, &pipe, &[1.499805, -0.499935, -0.480330, -0.519540]);
    }
    let solved = of([1.0; 4], [1.03, 1.01, 1.02, 1.0]);
    check(&solved, "group -q | advantage -q --gate success", &[0.0; 4]);
    check(&solved, "group -q | advantage -q", &shaped);
    let counts = check(&failed, "group -q | advantage -q --gate success --drop-flat", &[]);
    assert_eq!(counts["dropped_groups"], json!({"flat": 0, "gate": 1}));
}

/// Solvers, and below each of them checkers, with the rewards of the leaves.
pub fn tree(leaves: &[&[f64]]) -> Vec<Value> {
    let mut lines = Vec::new();
    for solver in 0..leaves.len() {
        let id = format!("s{solver}");
        lines.push(sample(&id, "solver", solver, leaves.len(), &json!({})));
        lines.push(
            json!({"type": "joint", "v": 1, "episode": "0.0", "turn": 0, "id": format!("0.0/{solver}"),
            "parent": null, "members": [id], "reward": 0, "terminated": false}),
        );
    }
    for (solver, leaves) in leaves.iter().enumerate() {
        for (checker, leaf) in leaves.iter().enumerate() {
            let id = format!("c{solver}{checker}");
            let more = json!({"node": solver.to_string(), "prompt_ids": [solver + 2], "reward": leaf});
            lines.push(sample(&id, "checker", checker, leaves.len(), &more));
            lines.push(json!({"type": "joint", "v": 1, "episode": "0.0", "turn": 0, "id": format!("0.0/{solver}.{checker}"),
                "node": solver.to_string(), "parent": format!("0.0/{solver}"), "members": [id], "reward": leaf,
                "terminated": true, "success": *leaf == 1.0}));
        }
    }
    lines
}

#[test]
fn c3_compares_siblings_by_the_mean_of_their_leaves() {
    let tree_1 = tree(&[&[1.0, 1.0, 0.0], &[0.0, 0.0, 0.0], &[1.0, 0.0, 0.5]]);
    let pipe = |estimator: &str| format!("group -q | advantage -q --credit tree --estimator {estimator}");
    check(
        &tree_1,
        &pipe("rloo"),
        &[0.416667, -0.583333, 0.166667, 0.5, 0.5, -1.0, 0.0, 0.0, 0.0, 0.75, -0.75, 0.0],
    );
    check(
        &tree_1,
        &pipe("dr-grpo"),
        &[0.277778, -0.388889, 0.111111, 0.333333, 0.333333, -0.666667, 0.0, 0.0, 0.0, 0.5, -0.5, 0.0],
    );
    let half = std::f64::consts::FRAC_1_SQRT_2;
    check(
        &tree_1,
        &pipe("grpo --std population --epsilon 0"),
        &[0.980581, -1.372813, 0.392232, half, half, -2.0 * half, 0.0, 0.0, 0.0, 1.224745, -1.224745, 0.0],
    );
    // Two solvers with four checkers each.
    let tree_2 = tree(&[&[1.0, 0.0, 1.0, 0.0], &[0.0, 0.0, 1.0, 0.0]]);
    let two = |x: f64, y: f64| [x, y, x, y];
    let expected =
        [&[0.25, -0.25][..], &two(0.666667, -0.666667), &[-0.333333, -0.333333, 1.0, -0.333333]].concat();
    check(&tree_2, &pipe("rloo"), &expected);
    let expected = [&[1.0, -1.0][..], &two(1.0, -1.0), &[-0.577350, -0.577350, 1.732051, -0.577350]].concat();
    check(&tree_2, &pipe("grpo --std population --epsilon 0"), &expected);
}

/// The gate asks what a sample's leaves achieved: solver 1 never succeeds, nor do its checkers.
#[test]
fn the_gate_of_a_tree_is_the_success_of_its_leaves() {
    let lines = tree(&[&[1.0, 0.0, 0.2], &[0.3, 0.1, 0.2], &[0.0, 0.3, 0.6]]);
    let pipe = "group -q | advantage -q --credit tree --estimator dr-grpo --gate success";
    let counts = check(&lines, pipe, &[0.1, -0.1, 0.0, 0.6, -0.4, -0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(counts["groups_gated"], 2);
}

/// Proposers across their group, solvers against attempts at the same problem; the mean alone.
#[test]
fn each_set_of_hierarchical_grpo_is_a_group() {
    let pipe = "group -q | advantage -q --estimator dr-grpo";
    check(&group(&[0.5, 0.0, 1.0], &nothing), pipe, &[0.0, -0.5, 0.5]);
    for (rewards, expected) in [([1.0, 0.0], [0.5, -0.5]), ([0.0, 0.0], [0.0; 2]), ([1.0, 1.0], [0.0; 2])] {
        check(&group(&rewards, &nothing), pipe, &expected);
    }
}
