//! The stage from its user's side: published versions and messages.

use crate::common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::{GOLDEN, Place, contents, edited, one, published, stream, version, weights};
use serde_json::{Value, json};

#[test]
fn a_repeated_call_does_nothing_and_says_the_same() {
    let (place, root, input) = one();
    let first = place.update("--policy p --lr 1e-3", &input).ok();
    let before = contents(&root);
    assert_eq!(version(&root), first.metrics()["policy_version"]);
    let second = place.update("--policy p --lr 1e-3", &input).ok();
    assert_eq!(second.without_timing(), first.without_timing());
    assert!(second.stderr.contains("already published from this input: nothing to do"), "{}", second.stderr);
    assert_eq!(contents(&root), before);
    assert_eq!(place.update("--policy p --lr 1e-3 --quiet", &input).ok().stderr, "");

    // Another input replaces that version as a whole.
    let third = place.update("--policy p --lr 2e-3", &input).ok();
    assert_ne!(third.metrics()["policy_version"], first.metrics()["policy_version"]);
    assert_eq!(version(&root), third.metrics()["policy_version"]);
}

#[test]
fn threads_change_no_bit() {
    for arguments in [
        "--lr 1e-2 --minibatches 3 --epochs 2 --seed 5",
        "--lr 1e-2 --optimizer muon --lr-other 1e-3 --max-tokens-per-batch 20",
    ] {
        let mut results = Vec::new();
        for threads in [1, 2, 7] {
            let (place, root, input) = one();
            let outcome = place.update(&format!("--policy p {arguments} --threads {threads}"), &input).ok();
            let files = contents(&root.join("step-000001"));
            let files: Vec<_> = files
                .into_iter()
                .map(|(path, bytes)| (path.file_name().unwrap().to_owned(), bytes))
                .collect();
            results.push((outcome.without_timing(), files));
        }
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0], results[2]);
    }
}

/// A step of flat groups only costs next to nothing, however large the model: its version has the files of the one before.
#[test]
fn a_step_that_moves_nothing_writes_no_weights() {
    for narrow in [false, true] {
        let name = if narrow { "qwen3-4-2-bf16" } else { GOLDEN };
        let place = Place::new();
        let root = place.policy("p", name);
        let samples = |flat: bool| {
            edited(&stream(GOLDEN, &version(&root)), |_, sample| {
                sample["advantage"] = json!(if flat { 0.0 } else { 1.0 });
            })
        };
        let node = |step: u64, file: &str| {
            fs::metadata(root.join(format!("step-{step:06}")).join(file)).unwrap().ino()
        };
        let arguments = "--policy p --lr 1e-3 --weight-decay 0.1 --keep 9 --max-logprob-gap 0";
        // Fresh state is new, and is read again.
        let first = place.update(arguments, &samples(true)).ok();
        assert!(first.stderr.contains("nothing to learn"), "{}", first.stderr);
        assert_eq!(first.metrics()["optimizer_state"], "fresh");
        assert_eq!(node(0, "model.safetensors"), node(1, "model.safetensors"));
        let second = place.update(arguments, &samples(false)).ok();
        assert_eq!(second.metrics()["optimizer_steps_total"], 1);
        assert_ne!(node(1, "model.safetensors"), node(2, "model.safetensors"));
        let third = place.update(arguments, &samples(true)).ok();
        assert_eq!(third.metrics()["optimizer_state"], "continued");
        assert_eq!(third.metrics()["optimizer_steps_total"], 1);
        for file in ["model.safetensors", "optimizer.safetensors"] {
            assert_eq!(node(2, file), node(3, file), "{file}");
        }
        assert_ne!(second.metrics()["policy_version"], third.metrics()["policy_version"]);
        policy::directory::Policy::open(&root).unwrap().verify().unwrap();
        // The next step is the one that would have followed at once.
        let fourth = place.update(arguments, &samples(false)).ok();
        assert_eq!(fourth.metrics()["optimizer_steps_total"], 2);
        assert_ne!(node(3, "model.safetensors"), node(4, "model.safetensors"));
    }
}

#[test]
fn the_optimizer_goes_on_where_it_stopped() {
    for arguments in [
        "--optimizer adamw --lr 1e-2 --lr-warmup 3",
        "--optimizer muon --lr 1e-2 --lr-other 3e-3 --weight-decay 0.1",
    ] {
        for narrow in [false, true] {
            let (place, root, input) = one();
            let (other_place, other, _) = one();
            if narrow {
                for root in [&root, &other] {
                    to_bf16(root);
                }
            }
            let input = input.replace(&stream_version(&input), &version(&root));
            place.update(&format!("--policy p {arguments} --epochs 2"), &input).ok();
            let first = other_place.update(&format!("--policy p {arguments}"), &input).ok();
            assert_eq!(first.metrics()["optimizer_state"], "fresh");
            let next = input.replace(&stream_version(&input), &version(&other));
            let second = other_place.update(&format!("--policy p {arguments}"), &next).ok();
            assert_eq!(second.metrics()["optimizer_state"], "continued");
            assert_eq!(second.metrics()["optimizer_steps_total"], 2);
            assert_eq!(weights(&other), weights(&root), "{arguments}, bf16: {narrow}");
            let state = |root: &Path| fs::read(root.join("current/optimizer.safetensors")).unwrap();
            assert_eq!(state(&other), state(&root));
        }
    }
}

/// The minibatches of one call equal the batches of separate calls, in the order that the seed deals: averages are over a batch, not
/// over the stream.
#[test]
fn minibatches_are_calls_one_after_the_other() {
    for aggregate in ["token", "sequence", "constant=20"] {
        let arguments = format!(
            "--policy p --optimizer sgd --lr 1 --max-grad-norm 0 --aggregate {aggregate} --allow-incomplete"
        );
        let (place, root, input) = one();
        let is_sample = |line: &&str| line.contains("\"type\":\"sample\"");
        let (samples, rest): (Vec<&str>, Vec<&str>) = input.lines().partition(is_sample);
        let task = |line: &str| serde_json::from_str::<Value>(line).unwrap()["task"].to_string();
        let mut tasks: Vec<String> = samples.iter().map(|line| task(line)).collect();
        tasks.dedup();
        let stream = |own: &[&String]| {
            let part = samples.iter().copied().filter(|line| own.contains(&&task(line)));
            part.chain(rest.iter().copied()).map(|line| format!("{line}\n")).collect::<String>()
        };
        let [a, b, c] = &tasks[..3] else { panic!("{tasks:?}") };
        place.update(&format!("{arguments} --minibatches 3"), &stream(&[a, b, c])).ok();

        let orders = [[a, b, c], [a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]];
        let same = orders.iter().filter(|order| {
            let (other_place, other, _) = one();
            for task in *order {
                let part = stream(&[task]).replace(&stream_version(&input), &version(&other));
                other_place.update(&arguments, &part).ok();
            }
            weights(&other) == weights(&root)
        });
        assert_eq!(same.count(), 1, "{aggregate}: orders with the same weights");
    }
}

/// L of `constant` is the longest completion of the stream (18 tokens), in minibatches without it, too (of 10 at most).
#[test]
fn the_length_of_constant_is_that_of_the_stream() {
    let published = |aggregate: &str| {
        let (place, root, input) = one();
        let arguments = "--policy p --optimizer sgd --lr 1 --max-grad-norm 0 --minibatches 3 --aggregate";
        place.update(&format!("{arguments} {aggregate}"), &input).ok();
        weights(&root)
    };
    assert!(published("constant") == published("constant=18"), "other weights");
}

/// A run that takes the step again starts from the version that it started from, with its optimizer's state.
#[test]
fn the_version_that_an_update_started_from_stays() {
    let (place, root, mut input) = one();
    let versions = || -> Vec<u64> {
        (0..9).filter(|step| root.join(format!("step-{step:06}/config.json")).exists()).collect()
    };
    for newest in 1..4 {
        place.update("--policy p --lr 1e-3 --keep 1", &input).ok();
        assert_eq!(versions(), [newest - 1, newest]);
        let state = root.join(format!("step-{:06}/optimizer.safetensors", newest - 1));
        assert_eq!(state.exists(), newest > 1);
        input = input.replace(&stream_version(&input), &version(&root));
    }
}

/// The version that a stream's samples name.
fn stream_version(input: &str) -> String {
    let first: Value = serde_json::from_str(input.lines().next().unwrap()).unwrap();
    first["policy_version"].as_str().unwrap().to_owned()
}

/// Rewrites a policy's version 0 in bf16.
fn to_bf16(root: &Path) {
    let path = root.join("step-000000/model.safetensors");
    let file = policy::weights::Weights::open_file(&path).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for name in file.names() {
        let start = data.len();
        for value in file.to_f32(name).unwrap() {
            data.extend(half::bf16::from_f32(value).to_le_bytes());
        }
        let shape = file.tensor(name).unwrap().shape.to_vec();
        header.insert(
            name.to_owned(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    drop(file);
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
}

#[test]
fn warm_up_counts_over_calls() {
    let (place, root, mut input) = one();
    for wanted in [0.25e-2, 0.5e-2, 0.75e-2, 1e-2, 1e-2] {
        let rate =
            place.update("--policy p --lr 1e-2 --lr-warmup 4", &input).ok().metrics()["lr"].as_f64().unwrap();
        assert!((rate - wanted).abs() < 1e-12, "{rate} instead of {wanted}");
        input = input.replace(&stream_version(&input), &version(&root));
    }
    // Another objective is another training: its warm-up starts anew.
    let outcome = place.update("--policy p --lr 1e-2 --lr-warmup 4 --objective nll", &input).ok();
    assert_eq!(outcome.metrics()["lr"], 0.25e-2);
    assert_eq!(outcome.metrics()["optimizer_state"], "fresh");
    assert!(outcome.stderr.contains("no adamw state for objective nll"), "{}", outcome.stderr);
}

#[test]
fn two_policies_in_one_stream() {
    let place = Place::new();
    let (tool, planner) = (place.policy("tool", GOLDEN), place.policy("planner", GOLDEN));
    let input = edited(&stream(GOLDEN, &version(&tool)), |index, sample| {
        sample["agent"] = json!(if index < 8 { "tool" } else { "planner" });
    });
    let outcome = place.update("--policy tool=tool --policy planner=planner --lr 1e-2", &input).ok();
    let metrics = outcome.of_type("metrics");
    assert_eq!(metrics.len(), 2);
    assert_eq!((&metrics[0]["policy"], &metrics[0]["samples"]), (&json!("tool"), &json!(8)));
    assert_eq!((&metrics[1]["policy"], &metrics[1]["samples"]), (&json!("planner"), &json!(7)));
    assert_eq!(outcome.end()["counts"]["policies"], json!({"tool": 8, "planner": 7}));
    assert_ne!(weights(&tool), weights(&planner));

    // One at a time, in a pipe, gives the same.
    let other = Place::new();
    let (tool_alone, planner_alone) = (other.policy("tool", GOLDEN), other.policy("planner", GOLDEN));
    let first = other.update("--policy tool=tool --lr 1e-2 --pass-through", &input).ok();
    assert_eq!(first.metrics()["samples_passed_by"], 7);
    assert!(
        first.stderr.contains("ignored 7 of 15 samples: no policy of tool owns planner"),
        "{}",
        first.stderr
    );
    let second = other.update("--policy planner=planner --lr 1e-2 --pass-through", &first.stdout).ok();
    assert_eq!(weights(&tool_alone), weights(&tool));
    assert_eq!(weights(&planner_alone), weights(&planner));
    assert_eq!(second.of_type("metrics").len(), 2, "metrics of the first pass through the second");

    // Flags that name one directory are one policy with one optimizer.
    let shared = Place::new();
    let root = shared.policy("shared", GOLDEN);
    let outcome = shared.update("--policy tool=shared --policy planner=./shared --lr 1e-2", &input).ok();
    assert_eq!(outcome.metrics()["samples"], 15);
    assert_eq!(outcome.metrics()["agents"], json!(["tool", "planner"]));
    assert!(published(&root));
}

#[test]
fn pass_through_copies_every_byte() {
    let (place, _, input) = one();
    let odd = format!("{}\n{}", r#"{"type":"remark",  "v":1, "text":"\u00e9 kept as it is"}"#, input);
    let outcome = place.update("--policy p --pass-through", &odd).ok();
    let copied: String = odd
        .lines()
        .filter(|line| !line.contains("\"type\":\"end\""))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(outcome.stdout.starts_with(&copied));
    let rest: Vec<Value> =
        outcome.stdout[copied.len()..].lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        rest.iter().map(|line| line["type"].as_str().unwrap()).collect::<Vec<_>>(),
        ["metrics", "end"]
    );
    assert_eq!(rest[1]["after"][0]["stage"], "advantage");
}

#[test]
fn a_flat_batch_publishes_the_same_weights() {
    let (place, root, input) = one();
    let flat = edited(&input, |_, sample| sample["advantage"] = json!(0.0));
    let before = weights(&root);
    let outcome = place.update("--policy p --lr 1e-2 --weight-decay 0.1", &flat).ok();
    let metrics = outcome.metrics();
    assert!(outcome.stderr.contains("all groups are flat, nothing to learn"), "{}", outcome.stderr);
    assert_eq!(version(&root), metrics["policy_version"]);
    assert!(published(&root));
    assert_eq!(weights(&root), before);
    assert_eq!((&metrics["optimizer_steps"], &metrics["loss"]), (&json!(0), &json!(0.0)));
    assert_eq!(metrics["grad_norm"], Value::Null, "not measured, so not 0");
}

#[test]
fn flat_groups_cost_nothing_and_count_all_the_same() {
    let (place, root, input) = one();
    // The second group is flat: computing it with a vanishing advantage must give the same step.
    let with = |advantage: f64| {
        edited(&input, |index, sample| {
            if sample["group"] == "0.0/agent/1" || index >= 10 {
                sample["advantage"] = json!(advantage);
            }
        })
    };
    let flat = place.update("--policy p --optimizer sgd --lr 1", &with(0.0)).ok().metrics();
    let skipped = weights(&root);
    let full = place.update("--policy p --optimizer sgd --lr 1", &with(1e-30)).ok().metrics();
    let computed = weights(&root);
    assert!(flat["unique_tokens"].as_u64().unwrap() < full["unique_tokens"].as_u64().unwrap());
    assert!(flat["flat_groups"].as_u64().unwrap() > 0);
    assert_eq!(flat["tokens"], full["tokens"]);
    let mut largest = 0.0f32;
    for (name, values) in &skipped {
        for (a, b) in values.iter().zip(&computed[name]) {
            largest = std::cmp::max_by(largest, (a - b).abs(), f32::total_cmp);
        }
    }
    println!("largest difference {largest:e}");
    assert!(largest < 1e-6, "{largest:e}");
}

#[test]
fn a_sample_without_an_advantage_counts_nowhere() {
    let (place, root, input) = one();
    let is_left_out = |index: usize| index % 3 == 1;
    let all = edited(&input, |index, sample| {
        let fields = sample.as_object_mut().unwrap();
        fields.remove("group_size");
        fields.insert("advantage".to_owned(), json!((!is_left_out(index)).then_some(index as f64 - 4.0)));
    });
    let lines = all.lines().filter(|line| !line.contains("\"advantage\":null"));
    let rest: String = lines.map(|line| format!("{line}\n")).collect();
    assert!(rest.lines().count() < all.lines().count());
    // Neither numerator nor denominator of any average has them.
    for how in ["token", "sequence", "constant=8"] {
        let flags = format!("--policy p --optimizer sgd --lr 1 --allow-incomplete --aggregate {how}");
        let left_out = place.update(&flags, &all).ok().metrics();
        let after = weights(&root);
        let removed = place.update(&flags, &rest).ok().metrics();
        assert_eq!(after, weights(&root), "{how}");
        for name in ["loss", "samples", "tokens", "groups"] {
            assert_eq!(left_out[name], removed[name], "{how}: {name}");
        }
    }
}

#[test]
fn a_policy_may_have_a_rate_of_its_own() {
    let place = Place::new();
    let roots = ["tool", "planner"].map(|agent| place.policy(agent, GOLDEN));
    let start = weights(&roots[0]);
    // Of each group half of the samples is the planner's.
    let input = edited(&stream(GOLDEN, &version(&roots[0])), |index, sample| {
        sample["agent"] = json!(if index % 2 == 0 { "tool" } else { "planner" });
        sample.as_object_mut().unwrap().remove("group_size");
    });
    let flags = "--policy tool=tool --policy planner=planner --optimizer sgd --allow-incomplete --lr";
    let of = |rates: &str| {
        place.update(&format!("{flags} {rates}"), &input).ok();
        roots.each_ref().map(|root| weights(root))
    };
    let [one_tool, one_planner] = of("0.5");
    assert!(one_tool != start && one_planner != start);
    assert_eq!(of("0.5 --lr tool=0"), [start, one_planner.clone()]);
    assert_eq!(of("0.25 --lr tool=0.5 --lr planner=0.5"), [one_tool, one_planner]);
    for (flags, cause) in [
        ("--policy tool=tool --lr planner=1", "--lr planner=…: there is no --policy planner=DIR"),
        ("--policy tool=tool --policy tool --lr tool=1", "the agents of policy tool have different rates"),
        ("--policy tool=tool --lr tool=-1", "not 0 or above, or AGENT=X"),
    ] {
        let refused = place.update(flags, &input);
        assert!(refused.code == 2 && refused.stderr.contains(cause), "{refused:?}");
    }
}

#[test]
fn kl_pulls_towards_the_reference() {
    let (place, root, input) = one();
    place.policy("base", GOLDEN);
    let itself =
        place.update("--policy p --lr 0.3 --optimizer sgd --kl 0.5 --reference base", &input).ok().metrics();
    assert!(itself["kl"].as_f64().unwrap().abs() < 1e-9, "{}", itself["kl"]);
    let next = input.replace(&stream_version(&input), &version(&root));
    let moved = place.update("--policy p --kl 0.5 --reference p=base --reference base", &next).ok().metrics();
    assert!(moved["kl"].as_f64().unwrap() > 1e-6, "{}", moved["kl"]);
    let without = place.update("--policy p --kl 0", &next).ok().metrics();
    assert_eq!(without["kl"], Value::Null);
    assert!(moved["loss"].as_f64().unwrap() > without["loss"].as_f64().unwrap());
}

#[test]
fn a_plan_is_printed_and_nothing_done() {
    let (place, root, input) = one();
    let outcome = place.update("--policy p --dry-run --minibatches 2 --epochs 3 --threads 2", &input).ok();
    let plan = outcome.of_type("plan").remove(0);
    assert_eq!(
        (&plan["samples"], &plan["tokens"], &plan["optimizer_steps"]),
        (&json!(15), &json!(106), &json!(6))
    );
    assert_eq!(plan["minibatches"].as_array().unwrap().len(), 2);
    let values: usize = weights(&root).values().map(Vec::len).sum();
    assert_eq!(plan["bytes"]["weights"], json!(values * 4));
    assert_eq!(plan["bytes"]["moments"], json!(values * 8));
    assert!(plan["unique_tokens"].as_u64().unwrap() < plan["total_tokens"].as_u64().unwrap());
    assert!(!published(&root));
    // A plan needs no policy directory.
    let plain = common::golden(GOLDEN);
    place.update(&format!("--policy {} --dry-run", plain.display()), &input).ok();
}

#[test]
fn linear_layers_compute_in_what_dtype_says() {
    let steps = ["float32", "bfloat16"].map(|dtype| {
        let (place, root, input) = one();
        let check = place.update(&format!("--policy p --check --max-logprob-gap 50 --dtype {dtype}"), &input);
        let gap = check.ok().metrics()["sampling/logp_difference_max"].as_f64().unwrap();
        let plan = place.update(&format!("--policy p --dry-run --dtype {dtype}"), &input).ok();
        assert_eq!(plan.of_type("plan")[0]["settings"]["dtype"], dtype);
        let before = weights(&root);
        place.update(&format!("--policy p --optimizer sgd --lr 1 --dtype {dtype}"), &input).ok();
        let after = weights(&root);
        let step: Vec<f64> = before
            .iter()
            .flat_map(|(name, old)| {
                old.iter().zip(&after[name]).map(|(&old, &new)| f64::from(new) - f64::from(old))
            })
            .collect();
        (gap, step)
    });
    let [(single_gap, single), (rounded_gap, rounded)] = steps;
    assert!(single_gap != rounded_gap);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference =
        norm(&mut single.iter().zip(&rounded).map(|(a, b)| a - b)) / norm(&mut single.iter().copied());
    assert!(difference > 1e-4 && difference < 0.1, "{difference}");
}

#[test]
fn likelihood_needs_neither_log_probabilities_nor_advantages() {
    let (place, root, input) = one();
    let text_only = edited(&input, |_, sample| {
        for key in ["completion_logprobs", "advantage", "sampling", "reward", "rewards"] {
            sample.as_object_mut().unwrap().remove(key);
        }
    });
    let arguments =
        "--policy p --objective nll --lr 3e-2 --minibatches 3 --epochs 30 --schedule cosine --lr-warmup 5";
    let metrics = place.update(arguments, &text_only).ok().metrics();
    assert_eq!(metrics["optimizer_steps"], 90);
    assert_eq!((&metrics["clip_ratio"], &metrics["reward"]), (&Value::Null, &Value::Null));
    let (all, last) = (metrics["loss"].as_f64().unwrap(), metrics["loss_last"].as_f64().unwrap());
    assert!(last < 0.5 * all, "the loss went from {all} on average to {last}");
    assert!(published(&root));
}

#[test]
fn the_time_of_each_policy_is_told_by_kind() {
    let (place, _, input) = one();
    let kinds =
        ["load_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "publish_seconds"];
    for (arguments, idle) in [
        ("--policy p --threads 2 --minibatches 2", &[][..]),
        // A device has its memory told as well.
        ("--policy p --lr 1e-3 --device sim --threads 2", &[]),
        (
            "--policy p --check --max-logprob-gap 90",
            &["backward_seconds", "optimizer_seconds", "publish_seconds"],
        ),
    ] {
        let outcome = place.update(arguments, &input).ok();
        let (end, metrics) = (outcome.end()["timing"]["policies"]["p"].clone(), outcome.metrics());
        for kind in kinds {
            let seconds = end[kind].as_f64().unwrap();
            assert_eq!(seconds > 0.0, !idle.contains(&kind), "{arguments}: {kind} {seconds}");
            assert_eq!(metrics["timing"][kind], end[kind]);
        }
        assert_eq!(end["device_memory_bytes"].is_u64(), arguments.contains("sim"));
    }
}

/// Of two agents that share a policy each is measured as if the other taught nothing, and what they are measured for changes no weight.
#[test]
fn agents_of_a_shared_policy_are_measured_apart() {
    // The weights' change by plain gradient descent, and the metrics. The first six samples, two groups, are from a.
    let trained = |of_a: f64, of_b: f64, step: u64| {
        let (place, root, input) = one();
        let input = edited(&input, |index, sample| {
            let (agent, factor) = if index < 6 { ("a", of_a) } else { ("b", of_b) };
            sample["agent"] = json!(agent);
            sample["advantage"] = json!(sample["advantage"].as_f64().unwrap() * factor);
            sample["step"] = json!(step);
        });
        let before = weights(&root);
        let metrics = place.update("--policy p --optimizer sgd --lr 0.1", &input).ok().metrics();
        let change = weights(&root).into_iter().flat_map(|(name, after)| {
            after.into_iter().zip(before[&name].clone()).map(|(a, b)| f64::from(a - b)).collect::<Vec<f64>>()
        });
        (change.collect::<Vec<f64>>(), metrics)
    };
    let (both, metrics) = trained(1.0, 1.0, 10);
    let (first, of_first) = trained(1.0, 0.0, 10);
    let (second, of_second) = trained(0.0, 1.0, 10);
    let near = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-5;
    let by_agent = &metrics["by_agent"];
    for (agent, alone) in [("a", &of_first), ("b", &of_second)] {
        for name in ["grad_norm", "entropy"] {
            assert!(near(&by_agent[agent][name], &alone[name]), "{agent} {name}: {metrics} {alone}");
        }
    }
    assert_eq!(of_first["by_agent"]["b"], json!({"entropy": null, "clip_ratio": 0.0, "grad_norm": 0.0}));
    assert_eq!(of_first["grad_cosine"], Value::Null);
    let dot = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
    let cosine = dot(&first, &second) / (dot(&first, &first) * dot(&second, &second)).sqrt();
    assert!(near(&metrics["grad_cosine"], &json!(cosine)), "{cosine}: {metrics}");
    // The tokens of a flat group count in the share of clipped ones, although they teach nothing.
    let clipped = |first: f64| {
        let (place, _, input) = one();
        let input = edited(&input, |index, sample| {
            sample["agent"] = json!(if index < 6 { "a" } else { "b" });
            sample["step"] = json!(10);
            let factor = if index < 3 { first } else { 1.0 };
            sample["advantage"] = json!(sample["advantage"].as_f64().unwrap() * factor);
            let sign = if sample["advantage"].as_f64().unwrap() > 0.0 { -1.0 } else { 1.0 };
            let logprobs = sample["completion_logprobs"].as_array_mut().unwrap();
            logprobs.iter_mut().for_each(|value| *value = json!((value.as_f64().unwrap() + sign).min(0.0)));
        });
        let metrics =
            place.update("--policy p --optimizer sgd --lr 0.1 --max-logprob-gap 0", &input).ok().metrics();
        metrics["by_agent"]["a"]["clip_ratio"].as_f64().unwrap()
    };
    assert!(clipped(0.0) > 0.0 && clipped(0.0) < clipped(1.0));
    let (unmeasured, metrics) = trained(1.0, 1.0, 3);
    assert!(metrics.get("by_agent").is_none() && metrics.get("grad_cosine").is_none(), "{metrics}");
    assert_eq!(unmeasured, both);
}
