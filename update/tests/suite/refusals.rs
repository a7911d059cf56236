//! What makes the stage publish nothing: samples, streams, flags and directories that are refused, each with a sentence.
//! Single samples and flags are in `tests/tests/tables/samples.txt`.

use std::fs;

use crate::common::{GOLDEN, Place, golden, one, published, stream, version};
use serde_json::{Value, json};

#[test]
fn disagreement_fails_a_check_and_stops_a_training() {
    let (place, root, input) = one();
    let outcome = place.update("--policy p --check", &input);
    assert_eq!(outcome.code, 1);
    assert!(
        outcome.stderr.starts_with("update: p: recorded and recomputed log-probabilities differ by up to"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.end()["ok"], false);
    assert!(outcome.metrics()["sampling/logp_difference_max"].as_f64().unwrap() > 0.1);
    let outcome = place.update("--policy p --max-logprob-gap 0.01", &input);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("--max-logprob-gap 0.01; nothing was published"), "{}", outcome.stderr);
    assert!(!published(&root));
    place.update("--policy p --max-logprob-gap 50", &input).ok();
    assert!(published(&root));
}

/// The log-probabilities of PyTorch, all wrong by `error`.
fn measured(version: &str, error: f64) -> String {
    let text = fs::read_to_string(golden(GOLDEN).join("logprobs.json")).unwrap();
    let measured: Value = serde_json::from_str(&text).unwrap();
    let mut lines = String::new();
    for case in measured["cases"].as_array().unwrap() {
        for completion in case["completions"].as_array().unwrap() {
            let exact = completion["logprobs"].as_array().unwrap();
            let wrong: Vec<f64> = exact.iter().map(|logprob| logprob.as_f64().unwrap() - error).collect();
            let sample = json!({
                "type": "sample", "v": 1, "agent": "a", "policy_version": version, "advantage": 1.0,
                "prompt_ids": case["prompt_ids"], "completion_ids": completion["completion_ids"],
                "completion_logprobs": wrong,
                "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "greedy": false, "seed": 1},
            });
            lines += &format!("{sample}\n");
        }
    }
    let end = json!({"type": "end", "v": 1, "stage": "advantage", "ok": true});
    format!("{lines}{end}\n")
}

#[test]
fn a_check_allows_more_where_numbers_have_16_bits() {
    let (place, root, _) = one();
    let version = version(&root);
    for (arguments, error, code) in [
        ("", 5e-5, 0),
        ("", 2e-4, 1),
        ("--max-logprob-gap 3e-3", 2e-4, 0),
        // What the format gives on average in 30 layers, and a shift that hides below the largest.
        ("--dtype bfloat16", 0.011, 0),
        ("--dtype bfloat16", 0.06, 1),
        ("--max-logprob-gap 0", 3.0, 0),
    ] {
        let outcome = place.update(&format!("--policy p --check {arguments}"), &measured(&version, error));
        assert_eq!(outcome.code, code, "{arguments} with an error of {error}: {outcome:?}");
        assert_eq!(outcome.end()["ok"], code == 0, "{arguments}");
    }
    assert!(!published(&root));
}

/// The first minibatch's ratio is 1 within a limit, or nothing is published.
#[test]
fn shifted_logprobs_are_not_trained_on() {
    let end = json!({"type": "end", "v": 1, "stage": "advantage", "ok": true});
    let after = |dtype: &str| {
        let rollout = json!({"type": "end", "v": 1, "stage": "rollout", "ok": true, "dtype": dtype});
        json!({"type": "end", "v": 1, "stage": "advantage", "ok": true, "after": [rollout]})
    };
    for (arguments, error, end, code) in [
        ("", 1.5, &end, 1),
        ("--minibatches 2 --epochs 2", 1.5, &end, 1),
        ("", 0.04, &end, 0),
        ("", 0.04, &after("float32"), 1),
        ("", 1e-4, &after("float32"), 0),
        ("", 0.04, &after("bfloat16"), 0),
        ("", 0.08, &after("bfloat16"), 1),
        ("--dtype bfloat16", 0.04, &after("float32"), 0),
        ("--dtype bfloat16", 1.5, &after("bfloat16"), 1),
        ("--importance-cap 2", 1.5, &end, 1),
        ("--max-logprob-gap 0", 1.5, &end, 0),
        ("--max-logprob-gap 20", 1.5, &after("float32"), 0),
    ] {
        let (place, root, _) = one();
        let lines = measured(&version(&root), error);
        let (samples, _) = lines.trim_end().rsplit_once('\n').unwrap();
        let outcome = place.run(&format!("--policy p {arguments}"), &format!("{samples}\n{end}\n"));
        assert_eq!(outcome.code, code, "{arguments}, {error}, {end}: {outcome:?}");
        assert_eq!(published(&root), code == 0, "{arguments}, {error}, {end}");
        assert_eq!(outcome.stderr.contains("\nhint: "), code == 1, "{}", outcome.stderr);
        assert_eq!(outcome.stderr.contains("of --max-logprob-gap"), code == 1, "{}", outcome.stderr);
    }
}

#[test]
fn lost_groups_and_failures_of_earlier_stages_are_found_in_the_end_line() {
    let (place, root, input) = one();
    let (samples, _) = input.trim_end().rsplit_once('\n').unwrap();
    let end = |stage: &str, counts: Value, more: Value| {
        let mut end = json!({"type": "end", "v": 1, "stage": stage, "ok": true, "counts": counts});
        more.as_object().unwrap().iter().for_each(|(key, value)| end[key] = value.clone());
        end
    };
    let rollout =
        end("rollout", json!({"groups_expected": 9, "groups": 7, "dropped_groups": {"env": 2}}), json!({}));
    let group = |groups: u64, more: Value| {
        let counts = json!({"groups_expected": 9, "groups": groups, "dropped_groups": {"unscored": 1}});
        let mut end = end("group", counts, more);
        end["after"] = json!([rollout]);
        end
    };
    let around = |inside: Value| end("advantage", json!({"groups": 6}), json!({"after": [inside]}));
    let failed = end("rollout", json!({}), json!({"ok": false, "error": "it died"}));
    for (end, sentence) in [
        (around(group(6, json!({}))), ""),
        (around(group(5, json!({}))), "stage group saw 8 of 9 groups"),
        (around(group(5, json!({"allowed": "some were missing"}))), ""),
        (around(failed.clone()), "stage rollout before this one did not succeed: it died"),
        (around(end("group", json!({}), json!({"allowed": "it died", "after": [failed]}))), ""),
    ] {
        let outcome = place.update("--policy p --dry-run", &format!("{samples}\n{end}\n"));
        assert_eq!(outcome.code, if sentence.is_empty() { 0 } else { 65 }, "{end}: {outcome:?}");
        assert!(outcome.stderr.contains(sentence), "{end}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.contains("\nhint: "), !sentence.is_empty(), "{end}: {}", outcome.stderr);
    }
    assert!(!published(&root));
}

#[test]
fn a_sequence_beyond_the_sliding_window_is_refused_on_devices() {
    let place = Place::new();
    let root = place.policy("p", "mistral-4-2-window");
    let input = stream("mistral-4-2-window", &version(&root));
    let longest = |text: &str| {
        let samples = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let tokens = |line: Value| {
            let count = |field: &str| line[field].as_array().map_or(0, Vec::len);
            count("prompt_ids") + count("completion_ids")
        };
        samples.map(tokens).max().unwrap()
    };
    // All tokens of a sequence but its last are computed.
    let positions = longest(&input) - 1;
    let path = root.join("step-000000/config.json");
    let config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for (window, code) in [(positions, 0), (positions - 1, 65)] {
        let mut config = config.clone();
        config["sliding_window"] = json!(window);
        fs::write(&path, config.to_string()).unwrap();
        let input = stream("mistral-4-2-window", &version(&root));
        // The core has windows.
        assert_eq!(place.update("--policy p --dry-run", &input).code, 0, "window {window}");
        for mode in ["--dry-run", "--check --max-logprob-gap 90", "--max-logprob-gap 9"] {
            if code == 0 && !mode.starts_with("--dry") {
                continue;
            }
            let outcome = place.update(&format!("--policy p --device sim {mode}"), &input);
            assert_eq!(outcome.code, code, "{mode}, window {window}: {outcome:?}");
            let sentence = format!(
                "a sequence of {positions} tokens is longer than the model's sliding window of {window}\nhint: "
            );
            assert_eq!(outcome.stderr.contains(&sentence), code == 65, "{mode}: {}", outcome.stderr);
        }
    }
    assert!(!published(&root));
}
