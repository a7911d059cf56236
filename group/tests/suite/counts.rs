//! Counts in `end` and in messages that are easily confused.

use std::process::Command;

use serde_json::{Value, json};
use troupe_tests::program::{run_on, texts};

fn sample(branch: u32, more: Value) -> Value {
    let mut sample = json!({"type": "sample", "v": 1, "episode": "0.0", "turn": 0, "agent": "planner", "task": "t",
        "branch": branch, "branches": 2, "id": format!("0.0/0/planner/{branch}"), "prompt_ids": [1], "reward": 0.5});
    for (name, value) in more.as_object().expect("fields") {
        sample[name] = value.clone();
    }
    sample
}

fn end(counts: Value, after: Value) -> Value {
    json!({"type": "end", "v": 1, "stage": "mine", "ok": true, "counts": counts, "after": after})
}

/// Runs `group`; returns its exit code, the `counts` of `end`, and stderr.
fn group(arguments: &[&str], lines: &[Value]) -> (Option<i32>, Value, String) {
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let output = run_on(Command::new(env!("CARGO_BIN_EXE_group")).args(arguments), input);
    let (code, stdout, stderr) = texts(&output);
    let end: Value = serde_json::from_str(stdout.lines().last().expect("an end")).expect("JSON");
    (code, end["counts"].clone(), stderr)
}

#[test]
fn a_reward_in_parts_is_their_sum() {
    let parts = |team: f64, local: f64| json!({"reward": null, "rewards": {"team": team, "local": local}});
    for (first, second, flat) in
        [((1.0, 0.0), (0.0, 1.0), 1), ((1.0, 0.0), (0.0, 0.0), 0), ((2.0, 1.0), (1.0, 2.0), 1)]
    {
        let mut lines = vec![sample(0, parts(first.0, first.1)), sample(1, parts(second.0, second.1))];
        lines.iter_mut().for_each(|line| drop(line.as_object_mut().expect("a sample").remove("reward")));
        lines.push(end(json!({}), json!([])));
        let (code, counts, stderr) = group(&[], &lines);
        assert_eq!((code, &counts["groups_flat"]), (Some(0), &json!(flat)), "{first:?} {second:?}: {stderr}");
    }
}

#[test]
fn groups_are_expected_only_where_they_are_those_that_were_requested() {
    let told = || end(json!({"groups_expected": 1, "groups": 1, "dropped_groups": {}}), json!([]));
    let parallel = json!({"sampling_mode": "parallel"});
    for (arguments, more, expected) in [
        (&[][..], json!({}), json!(1)),
        (&["--by", "task"], json!({}), Value::Null),
        (&["--by", "episode"], parallel.clone(), Value::Null),
        (&[], parallel, Value::Null),
    ] {
        let (code, counts, stderr) =
            group(arguments, &[sample(0, more.clone()), sample(1, more.clone()), told()]);
        assert_eq!(
            (code, &counts["groups_expected"]),
            (Some(0), &expected),
            "{arguments:?} {more}: {stderr}"
        );
    }
}

#[test]
fn drops_of_earlier_stages_are_counted() {
    let first = end(json!({"groups_expected": 6, "groups": 4, "dropped_groups": {"env": 2}}), json!([]));
    let second = |dropped: u32| {
        end(
            json!({"groups_expected": 6, "groups": 4, "dropped_groups": {"unscored": dropped}}),
            json!([first]),
        )
    };
    let samples = [sample(0, json!({})), sample(1, json!({}))];
    // Only the first group is present: the second and third were dropped.
    let (code, _, stderr) = group(&[], &[samples[0].clone(), samples[1].clone(), second(3)]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, _, stderr) = group(&[], &[samples[0].clone(), samples[1].clone(), second(2)]);
    assert_eq!(code, Some(65));
    assert!(
        stderr.contains("stdin has 1 group, not the 6 expected, 4 of which were dropped before"),
        "{stderr}"
    );
}

#[test]
fn parallel_samples_need_no_prompt() {
    let mut lines = [0, 1].map(|branch| sample(branch, json!({"sampling_mode": "parallel"}))).to_vec();
    lines.iter_mut().for_each(|line| drop(line.as_object_mut().expect("a sample").remove("prompt_ids")));
    lines.push(end(json!({}), json!([])));
    let (code, counts, stderr) = group(&[], &lines);
    assert_eq!((code, &counts["groups"]), (Some(0), &json!(1)), "{stderr}");
    lines[0]["sampling_mode"] = json!("tree");
    assert!(group(&[], &lines).2.contains("`prompt_ids` is missing"));
}

#[test]
fn eight_missing_branches_are_named_and_a_ninth_is_more() {
    let said = |branches: u32| {
        let lines = [sample(0, json!({"branches": branches})), end(json!({}), json!([]))];
        group(&[], &lines).2.lines().next().unwrap_or_default().to_owned()
    };
    assert!(said(9).ends_with("1 of 9 branches, 1, 2, 3, 4, 5, 6, 7, 8 are missing"), "{}", said(9));
    assert!(
        said(10).ends_with("1 of 10 branches, 1, 2, 3, 4, 5, 6, 7, 8 and more are missing"),
        "{}",
        said(10)
    );
}

#[test]
fn siblings_are_drawn_and_ended_alike() {
    let sampling = |more: Value| {
        let mut sampling = json!({"temperature": 0.7, "top_p": 1.0, "top_k": 0, "greedy": false, "seed": 7});
        more.as_object().expect("fields").iter().for_each(|(name, value)| sampling[name] = value.clone());
        json!({"sampling": sampling})
    };
    let told = |first: Value, second: Value| {
        let lines = [sample(0, first), sample(1, second), end(json!({}), json!([]))];
        let (code, _, stderr) = group(&[], &lines);
        (code, stderr)
    };
    // Two shards may have been played with different seeds.
    let common = sampling(json!({"min_p": 0.1, "stop": ["</a>"], "max_tokens": 8}));
    let mut other = common.clone();
    other["sampling"]["seed"] = json!(8);
    assert_eq!(told(common.clone(), other).0, Some(0));
    for different in [
        json!({"temperature": 0.8, "min_p": 0.1, "stop": ["</a>"], "max_tokens": 8}),
        json!({"min_p": 0.2, "stop": ["</a>"], "max_tokens": 8}),
        json!({"min_p": 0.1, "stop": ["</b>"], "max_tokens": 8}),
        json!({"min_p": 0.1, "stop": ["</a>"], "max_tokens": 9}),
        json!({"min_p": 0.1, "stop": ["</a>"]}),
    ] {
        let (code, stderr) = told(common.clone(), sampling(different.clone()));
        assert_eq!(code, Some(65), "{different}");
        assert!(stderr.contains("0.0/0/planner/1: sampling differs from that of"), "{stderr}");
    }
    assert_eq!(told(common, json!({})).0, Some(65));
}
