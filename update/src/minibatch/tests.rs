//! Minibatches hold every sample once, and trees every token.

use super::*;
use crate::samples::Needs;
use record::read::Line;
use record::sample::Sample;

const NEEDS: Needs = Needs { logprobs: false, advantage: false, full_distribution: false };

/// Samples as (task, group, prompt, completion).
fn samples(list: &[(&str, &str, &[u32], &[u32])]) -> Samples {
    let mut samples = Samples::default();
    for (number, (task, group, prompt, completion)) in list.iter().enumerate() {
        let text = serde_json::json!({
            "type": "sample", "v": 1, "task": task, "group": group, "agent": "a", "policy_version": "0:00000000",
            "prompt_ids": prompt, "completion_ids": completion,
        });
        let line = Line::parse("test", number as u64 + 1, text.to_string()).unwrap();
        samples.push(&Sample::parse(&line).unwrap(), &line, NEEDS).unwrap();
    }
    samples
}

/// `tasks` tasks of two groups of two samples each.
fn regular(tasks: usize) -> Samples {
    let names: Vec<(String, String)> =
        (0..tasks * 4).map(|k| (format!("t{}", k / 4), format!("g{}", k / 2))).collect();
    let tokens: Vec<[u32; 3]> = (0..tasks * 4).map(|k| [k as u32 / 4, k as u32 / 2, k as u32]).collect();
    let list: Vec<(&str, &str, &[u32], &[u32])> = names
        .iter()
        .zip(&tokens)
        .map(|((task, group), tokens)| (task.as_str(), group.as_str(), &tokens[..2], &tokens[2..]))
        .collect();
    samples(&list)
}

fn sorted(parts: &[Vec<usize>]) -> Vec<usize> {
    let mut all: Vec<usize> = parts.concat();
    all.sort_unstable();
    all
}

#[test]
fn tasks_are_dealt_then_groups_then_samples() {
    let samples = regular(6);
    let dealt = |count: usize| -> Vec<Vec<usize>> { minibatches(&samples, count, 7, 0, 0) };
    let sizes = |count: usize| {
        let mut sizes: Vec<usize> = dealt(count).iter().map(Vec::len).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    };
    assert_eq!(sizes(1), [24]);
    assert_eq!(sizes(3), [8, 8, 8]);
    assert_eq!(sizes(4), [8, 8, 4, 4], "whole tasks, so not all equal");
    assert_eq!(sizes(6), [4; 6]);
    assert_eq!(sizes(12), [2; 12], "more minibatches than tasks: whole groups");
    assert_eq!(sizes(24), [1; 24], "more minibatches than groups: single samples");
    assert_eq!(sizes(99), [1; 24], "more minibatches than samples: as many as there are");
    for count in [1, 3, 4, 5, 6, 7, 11, 12, 13, 24] {
        assert_eq!(sorted(&dealt(count)), (0..24).collect::<Vec<_>>(), "{count}");
        assert!(dealt(count).iter().all(|part| !part.is_empty()), "{count}");
    }
    assert!(minibatches(&Samples::default(), 2, 1, 0, 0).is_empty());
}

/// What the first minibatch begins with is known before the last task is.
#[test]
fn later_tasks_change_nothing_of_earlier_ones() {
    let dealt = |tasks: usize| minibatches(&regular(tasks), 3, 7, 0, 2);
    let all = dealt(30);
    assert!(all.iter().all(|part| part.len() == 40));
    for tasks in 3..30 {
        for (part, whole) in dealt(tasks).iter().zip(&all) {
            assert!(whole.starts_with(part) && part.len() / 4 - tasks / 3 <= 1, "{tasks}");
        }
    }
}

#[test]
fn scattered_samples_of_a_task_lie_together() {
    let list: Vec<(&str, &str, &[u32], &[u32])> = vec![
        ("x", "1", &[1], &[2]),
        ("y", "2", &[3], &[4]),
        ("x", "1", &[1], &[5]),
        ("y", "3", &[3], &[6]),
        ("x", "4", &[1], &[7]),
        ("y", "2", &[3], &[8]),
    ];
    let mut dealt = minibatches(&samples(&list), 2, 7, 0, 0);
    dealt.sort();
    assert_eq!(dealt, [vec![0, 2, 4], vec![1, 5, 3]]);
}

#[test]
fn tasks_are_dealt_anew_each_epoch() {
    let samples = regular(30);
    let dealt = |seed, epoch, step| minibatches(&samples, 2, seed, epoch, step);
    let first = dealt(7, 0, 3);
    assert_eq!(first, dealt(7, 0, 3));
    assert_ne!(first, dealt(7, 1, 3));
    assert_ne!(first, dealt(7, 0, 4));
    assert_ne!(first, dealt(8, 0, 3));
    for task in first.concat().chunks(4) {
        let start = task[0] / 4 * 4;
        assert_eq!(task, [start, start + 1, start + 2, start + 3], "a task stays together and in order");
    }
}

#[test]
fn trees_hold_every_completion_token_within_the_limit() {
    let long: Vec<u32> = (0..400).collect();
    let mut list: Vec<(&str, &str, &[u32], &[u32])> = Vec::new();
    for (start, task, group) in [(0, "x", "1"), (1, "y", "2"), (2, "z", "3")] {
        for length in [10, 25, 40, 55] {
            list.push((task, group, &long[start..start + 100], &long[200..200 + length]));
        }
    }
    let samples = samples(&list);
    let order: Vec<usize> = (0..list.len()).collect();
    for limit in [1, 130, 200, 300, 4096] {
        let batches = pack_trees(&samples, &order, limit);
        assert_eq!(batches.len(), 1, "one temperature");
        assert_eq!(batches[0].members.concat(), order);
        let rows: usize = batches[0].trees.iter().map(|tree| tree.rows.len()).sum();
        assert_eq!(rows, samples.tokens());
        for (tree, members) in batches[0].trees.iter().zip(&batches[0].members) {
            assert!(tree.len() <= limit || members.len() == 1, "{} tokens above {limit}", tree.len());
        }
    }
    assert_eq!(pack_trees(&samples, &order, 4096)[0].trees.len(), 3, "a tree for each task");
}

#[test]
fn small_tasks_lie_together() {
    let long: Vec<u32> = (0..60).collect();
    let names: Vec<String> = (0..6).map(|task| task.to_string()).collect();
    let list: Vec<(&str, &str, &[u32], &[u32])> =
        (0..6).map(|task| (&*names[task], &*names[task], &long[task..task + 20], &long[40..51])).collect();
    let samples = samples(&list);
    let batches = pack_trees(&samples, &[0, 1, 2, 3, 4, 5], 4096);
    assert_eq!(batches[0].members, [[0, 1, 2], [3, 4, 5]], "30 tokens each, until 64 are reached");
}

#[test]
fn temperatures_are_kept_apart() {
    let mut samples = regular(2);
    for index in [1, 4, 6] {
        samples.rows[index].temperature = 0.5;
    }
    let order: Vec<usize> = (0..8).collect();
    let batches = pack_trees(&samples, &order, 4096);
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[0].members.concat(), [0, 2, 3, 5, 7]);
    assert_eq!(batches[1].temperature, 0.5);
    assert_eq!(batches[1].members.concat(), [1, 4, 6]);
}

#[test]
fn no_tree_is_larger_than_was_planned() {
    // Three tokens are computed for a task: its unique one and one for each group.
    for (tasks, limit, planned) in [(6, 4096, 18), (6, 5, 5), (6, 1, 2), (40, 4096, 63 + 3), (40, 64, 64)] {
        let samples = regular(tasks);
        let expected = Sizes { unique: 3 * tasks, largest_tree: planned, longest: 2 };
        assert_eq!(sizes(&samples, limit), expected, "{tasks} tasks, limit {limit}");
        let all: Vec<usize> = (0..samples.rows.len()).collect();
        let batches = pack_trees(&samples, &all, limit);
        assert!(batches.iter().flat_map(|batch| &batch.trees).all(|tree| tree.len() <= planned), "{limit}");
    }
}

#[test]
fn a_tree_of_one_token_is_full_at_a_limit_of_one() {
    let samples = samples(&[("a", "a", &[1], &[9]), ("a", "b", &[2], &[9])]);
    let batches = pack_trees(&samples, &[0, 1], 1);
    assert_eq!(batches[0].members, [[0], [1]]);
}
