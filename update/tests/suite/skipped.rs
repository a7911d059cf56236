//! A step whose groups were all left out on purpose: policies keep their versions, and the metrics say so.

use crate::common::{GOLDEN, Place, contents, edited, one, published, stream, version};
use serde_json::{Value, json};

/// The `end` of `advantage --drop-flat` with its `after`: groups written by rollout for each agent, and
/// groups dropped since.
fn end(played: &Value, left_out: &Value, samples: usize) -> Value {
    let agents = played.as_object().unwrap().iter();
    let agents: Value = agents.map(|(agent, groups)| (agent.clone(), json!({ "groups": groups }))).collect();
    let stage = |name: &str, counts: Value, after: &[Value]| json!({"type": "end", "v": 1, "stage": name, "ok": true, "step": 7, "counts": counts, "after": after, "timing": {}});
    let rollout = stage("rollout", json!({ "agents": agents, "dropped_groups": {"policy": 2} }), &[]);
    let group =
        stage("group", json!({"samples_written": samples, "dropped_groups": {"unscored": 0}}), &[rollout]);
    stage("advantage", json!({"samples_written": samples, "dropped_groups": left_out}), &[group])
}

#[test]
fn a_step_without_a_difference_keeps_the_version_and_is_counted() {
    let (place, root, _) = one();
    let before = contents(&root);
    for (left_out, why) in
        [(json!({"flat": 6}), "6 flat"), (json!({"flat": 2, "unscored": 4}), "2 flat, 4 unscored")]
    {
        let input = format!("{}\n", end(&json!({"tool": 4, "planner": 2}), &left_out, 0));
        for arguments in ["--policy p", "--policy p --resident", "--policy p --objective nll"] {
            let outcome = place.update(arguments, &input).ok();
            let mut metrics = outcome.metrics();
            metrics.as_object_mut().unwrap().remove("timing");
            let expected = json!({
                "type": "metrics", "v": 1, "step": 7, "policy": "p", "policy_version": version(&root), "loss": null, "samples": 0,
                "groups": 6, "flat_groups": 6, "optimizer_steps": 0, "skipped": true, "dropped_groups": left_out,
            });
            assert_eq!(metrics, expected, "{arguments}");
            assert_eq!(
                (&outcome.end()["ok"], &outcome.end()["counts"]["samples"]),
                (&json!(true), &json!(0))
            );
            let said = format!("left out all of its 6 groups ({why})");
            assert!(outcome.stderr.contains(&said), "{}", outcome.stderr);
            assert_eq!(contents(&root), before);
        }
    }
}

#[test]
fn a_policy_is_skipped_beside_one_that_learns() {
    let place = Place::new();
    let (tool, planner) = (place.policy("tool", GOLDEN), place.policy("planner", GOLDEN));
    let samples = |agent: &str| {
        let golden = edited(&stream(GOLDEN, &version(&tool)), |_, sample| {
            sample["agent"] = json!(agent);
            sample["step"] = json!(7);
        });
        let samples: Vec<&str> = golden.lines().filter(|line| line.contains("\"sample\"")).collect();
        let count = samples.len();
        format!(
            "{}\n{}\n",
            samples.join("\n"),
            end(&json!({"tool": 6, "planner": 5}), &json!({"flat": 5}), count)
        )
    };
    // Also if no policy learns: the samples belong to another policy.
    let alone = place.update("--policy planner=planner", &samples("tool")).ok();
    assert_eq!(alone.metrics()["flat_groups"], 5);
    assert!(!published(&planner));
    let outcome = place.update("--policy tool=tool --policy planner=planner", &samples("tool")).ok();
    let metrics: Vec<[Value; 3]> = outcome
        .of_type("metrics")
        .iter()
        .map(|line| ["policy", "groups", "skipped"].map(|key| line[key].clone()))
        .collect();
    assert_eq!(metrics, [[json!("planner"), json!(5), json!(true)], [json!("tool"), json!(6), Value::Null]]);
    assert!(published(&tool) && !published(&planner));
}

#[test]
fn lost_or_foreign_state_is_no_skipped_step() {
    let (place, root, input) = one();
    let end = |played, left_out| format!("{}\n", end(&played, &left_out, 0));
    let input = edited(&input, |_, sample| sample["step"] = json!(7));
    let samples: Vec<&str> = input.lines().filter(|line| line.contains("\"sample\"")).collect();
    for (arguments, input, cause) in [
        // Nothing was left out by a stage after rollout: a stream of failures is no step.
        ("--policy p", end(json!({"tool": 4}), json!({"flat": 0})), "the stream holds no samples"),
        ("--policy p", end(json!({}), json!({"flat": 6})), "the stream holds no samples"),
        ("--policy other=p", end(json!({"tool": 4}), json!({"flat": 4})), "the stream holds no samples"),
        (
            "--policy other=p",
            format!("{}\n{}", samples.join("\n"), end(json!({"agent": 4}), json!({"flat": 4}))),
            "none of the 15 samples belongs to",
        ),
        ("--policy p --check", end(json!({"tool": 4}), json!({"flat": 4})), "the stream holds no samples"),
    ] {
        let outcome = place.update(arguments, &input);
        assert!(outcome.code == 65 && outcome.stderr.contains(cause), "{arguments}: {outcome:?}");
    }
    assert!(!published(&root));
}

/// With `--resident` training goes on from memory after a skipped part as separate calls go on from the disk.
#[test]
fn the_next_step_goes_on_from_the_version_that_stayed() {
    let skipped = format!("{}\n", end(&json!({"agent": 6}), &json!({"flat": 6}), 0));
    let (apart, root, first) = one();
    let arguments = "--policy p --lr 1e-2";
    apart.update(arguments, &first).ok();
    apart.update(arguments, &skipped).ok();
    let second = first.replace(&version_in(&first), &version(&root));
    apart.update(arguments, &second).ok();
    let parts = format!("{first}{skipped}{second}");
    let state = |root: &std::path::Path| std::fs::read(root.join("current/optimizer.safetensors")).unwrap();
    for save_every in ["1", "5"] {
        let (resident, other, _) = one();
        let outcome =
            resident.update(&format!("{arguments} --resident --save-every {save_every}"), &parts).ok();
        assert_eq!(outcome.of_type("metrics").len(), 3);
        assert_eq!(version(&other), version(&root));
        assert_eq!(state(&other), state(&root));
    }
}

fn version_in(stream: &str) -> String {
    let first: Value = serde_json::from_str(stream.lines().next().unwrap()).unwrap();
    first["policy_version"].as_str().unwrap().to_owned()
}
