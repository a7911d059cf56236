//! Each stage alone, and the pipe in every order and split that the contract allows: the results must not change.

use troupe_tests::folder::TestFolder;
use troupe_tests::{run, warmed_up, without_timing};

/// A warmed-up policy and a stream of samples from it, in a new folder: not all groups are flat.
fn stage() -> TestFolder {
    let stage = TestFolder::new();
    stage.must(&format!("policy init D/policy --quiet --from '{}'", warmed_up().display()));
    stage.must(
        "envs tasks plan-path --count 5 --seed 4 > D/tasks.jsonl; \
         rollout --policy D/policy --branches 3 --turns 2 --max-tokens 6 --seed 5 --quiet < D/tasks.jsonl > D/samples.jsonl; \
         group --quiet < D/samples.jsonl > D/grouped.jsonl; advantage --quiet < D/grouped.jsonl > D/scored.jsonl",
    );
    stage
}

fn out(stage: &TestFolder, command: &str) -> String {
    without_timing(&stage.must(command))
}

fn sorted_samples(text: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        text.lines().filter(|line| line.contains("\"type\":\"sample\"")).map(Into::into).collect();
    lines.sort();
    lines
}

#[test]
fn the_same_bytes_from_any_number_of_threads_and_again() {
    let stage = stage();
    let rollout =
        "rollout --policy D/policy --branches 3 --turns 2 --max-tokens 6 --seed 5 --quiet < D/tasks.jsonl";
    let first = out(&stage, &format!("{rollout} --threads 1"));
    for threads in [1, 2, 3] {
        assert_eq!(out(&stage, &format!("{rollout} --threads {threads}")), first, "{threads} threads");
    }
    assert_ne!(out(&stage, &rollout.replace("--seed 5", "--seed 6")), first);
    let update = "rm -rf D/copy; cp -r D/policy D/copy; update --policy D/copy --lr 1e-3 --quiet < D/scored.jsonl > D/metrics; \
                  cksum < D/copy/current/model.safetensors";
    let weights = out(&stage, &update.replace("--quiet", "--quiet --threads 1"));
    for threads in [1, 2, 3] {
        let again = out(&stage, &update.replace("--quiet", &format!("--quiet --threads {threads}")));
        assert_eq!(again, weights, "{threads} threads");
    }
    assert_ne!(out(&stage, "cksum < D/policy/current/model.safetensors"), weights, "the step moved nothing");
}

#[test]
fn decorating_leaves_the_earlier_stream_byte_for_byte() {
    let stage = stage();
    for (before, after) in [("samples", "grouped"), ("grouped", "scored")] {
        let before = out(&stage, &format!("cat D/{before}.jsonl"));
        let after = out(&stage, &format!("cat D/{after}.jsonl"));
        for line in before.lines().filter(|line| line.contains("\"type\":\"sample\"")) {
            let open = line.strip_suffix('}').expect("an object");
            assert!(after.lines().any(|other| other.starts_with(open)), "{line}");
        }
    }
}

#[test]
fn order_filters_and_shards_change_no_group() {
    let stage = stage();
    let calm = sorted_samples(&out(&stage, "cat D/scored.jsonl"));
    assert!(!calm.is_empty());
    let shuffled = out(
        &stage,
        "(grep -v '\"type\":\"end\"' D/samples.jsonl | sort -r; grep '\"type\":\"end\"' D/samples.jsonl) \
         | group --quiet | advantage --quiet",
    );
    assert_eq!(sorted_samples(&shuffled), calm);
    let filtered = out(&stage, "jq -c . < D/samples.jsonl | group --quiet | advantage --quiet | wc -l");
    assert_eq!(filtered, out(&stage, "wc -l < D/scored.jsonl"));
    let rollout = "rollout --policy D/policy --branches 3 --turns 2 --max-tokens 6 --seed 5 --quiet";
    let sharded = out(
        &stage,
        &format!(
            "cat <({rollout} --shard 0/2 < D/tasks.jsonl) <({rollout} --shard 1/2 < D/tasks.jsonl) | group --quiet | advantage --quiet"
        ),
    );
    let unsharded = |lines: Vec<String>| -> Vec<String> {
        lines
            .iter()
            .map(|line| line.replace("\"shard\":\"0/2\"", "S").replace("\"shard\":\"1/2\"", "S"))
            .collect()
    };
    let whole: Vec<String> = calm.iter().map(|line| line.replace("\"shard\":\"0/1\"", "S")).collect();
    let mut sharded = unsharded(sorted_samples(&sharded));
    sharded.sort();
    let mut whole = whole;
    whole.sort();
    assert_eq!(sharded, whole);
}

#[test]
fn a_stream_that_is_cut_short_publishes_nothing() {
    let stage = stage();
    let lines: usize = out(&stage, "wc -l < D/scored.jsonl").trim().parse().expect("a number");
    for cut in [0, 1, lines / 2, lines - 1] {
        let (code, _, printed) =
            run(&stage.at(&format!("head -n {cut} D/scored.jsonl | update --policy D/policy --quiet")));
        assert_eq!(code, 65, "{cut} lines: {printed}");
        assert!(printed.contains("hint:"), "{cut} lines: {printed}");
    }
    let (code, _, printed) = run(&stage.at("head -c -40 D/scored.jsonl | update --policy D/policy --quiet"));
    assert_eq!(code, 65, "{printed}");
    assert_eq!(out(&stage, "readlink D/policy/current").trim(), "step-000000");
    // A failure upstream reaches the end of the pipe.
    let (code, _, printed) = run(&stage.at(
        "head -n 3 D/samples.jsonl | group --quiet | advantage --quiet | update --policy D/policy --quiet",
    ));
    assert_eq!(code, 65, "{printed}");
    assert_eq!(out(&stage, "readlink D/policy/current").trim(), "step-000000");
}

#[test]
fn a_reader_that_goes_away_is_quiet_and_a_full_disk_is_not() {
    let stage = stage();
    let (code, _, printed) =
        run(&stage.at("(envs tasks plan-path --count 100000; echo $? >&2) | head -n 1 > D/one"));
    assert_eq!((code, printed.trim()), (0, "0"));
    let (_, _, printed) = run(&stage.at(
        "(update --policy D/policy --lr 1e-3 --pass-through --quiet < D/scored.jsonl; echo $? >&2) | true",
    ));
    assert_eq!(printed.trim(), "0");
    assert_eq!(out(&stage, "readlink D/policy/current").trim(), "step-000001", "EPIPE stopped the publish");
    let (code, _, printed) = run(&stage.at("group --quiet < D/samples.jsonl > /dev/full"));
    assert_eq!(code, 74, "{printed}");
}
