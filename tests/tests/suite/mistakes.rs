//! Known mistakes of multi-agent training code, each impossible here or refused at once. Mistakes in the tree itself are in
//! `replay.rs`; these are about the stages around it.

use std::collections::BTreeMap;

use serde_json::Value;
use troupe_tests::folder::TestFolder;
use troupe_tests::run;

/// A team of two small policies of the same 64 tokens, and a step of samples with rewards that differ.
fn fixture() -> TestFolder {
    let folder = TestFolder::new();
    folder.must(
        "policy init D/tool --from tests/golden/qwen2-2-1-bias; policy init D/planner --from tests/golden/qwen3-8-2-untied; \
         envs tasks plan-path --count 24 --seed 4 > D/tasks; \
         rollout --policy tool=D/tool --policy planner=D/planner --branches 4 --turns 2 --max-tokens 12 --quiet < D/tasks | \
         jq -c 'if .type==\"sample\" then .reward = (.completion_ids[0] % 7) else . end' | \
         group --quiet | advantage --quiet > D/samples.jsonl",
    );
    folder
}

fn samples(folder: &TestFolder, file: &str) -> Vec<Value> {
    folder.lines(file).into_iter().filter(|line| line["type"] == "sample").collect()
}

/// No mask is made by comparing token ids: a padding token inside a text is a token like any other.
#[test]
fn padding_tokens_are_tokens_like_all_others() {
    const PADDING: u64 = 0;
    let fixture = fixture();
    let has_padding = |sample: &Value| {
        let ids = sample["completion_ids"].as_array().expect("ids");
        // Not as the last token: something has to be scored after it.
        ids[..ids.len() - 1].iter().any(|id| *id == PADDING)
    };
    let with = samples(&fixture, "samples.jsonl").iter().filter(|sample| has_padding(sample)).count();
    assert!(with >= 1, "{with} completions hold the padding token: too few to tell");
    let check = "update --policy tool=D/tool --policy planner=D/planner --check --quiet";
    // Sampler and trainer agree on all of them.
    fixture.must(&format!("{check} < D/samples.jsonl > D/checked"));
    // And one in the middle of a prompt changes the log-probabilities after it.
    let (code, _, printed) = run(&fixture.at(&format!(
        "jq -c 'if .type==\"sample\" then .prompt_ids |= (.[:8] + [{PADDING}] + .[8:]) else . end' D/samples.jsonl | {check}"
    )));
    assert_eq!(code, 1, "{printed}");
}

/// If one policy cannot be trained, the call fails and no policy is published.
#[test]
fn no_policy_moves_on_where_another_fails() {
    let fixture = fixture();
    let owners = "--policy tool=D/tool --policy planner=D/planner --lr 1e-3 --quiet";
    for broken in [
        // Samples of the planner with an unknown version, and with a token outside its vocabulary.
        "if .agent==\"planner\" then .policy_version = \"7:abcdef01\" else . end",
        "if .agent==\"planner\" then .completion_ids[0] = 4000 else . end",
    ] {
        let (code, _, printed) =
            run(&fixture.at(&format!("jq -c '{broken}' D/samples.jsonl | update {owners} > D/metrics")));
        assert_eq!(code, 65, "{printed}");
        for policy in ["tool", "planner"] {
            assert_eq!(
                fixture.must(&format!("readlink D/{policy}/current")).trim(),
                "step-000000",
                "{broken}"
            );
        }
    }
    fixture.must(&format!("update {owners} < D/samples.jsonl > D/metrics"));
    for policy in ["tool", "planner"] {
        assert_eq!(fixture.must(&format!("readlink D/{policy}/current")).trim(), "step-000001");
    }
}

/// By default tokens are sampled from the distribution that scores them: the full one at temperature 1.
#[test]
fn samples_come_from_the_distribution_that_scores_them() {
    let fixture = fixture();
    for sample in samples(&fixture, "samples.jsonl") {
        let sampling = &sample["sampling"];
        assert_eq!((sampling["temperature"].as_f64(), sampling["top_p"].as_f64()), (Some(1.0), Some(1.0)));
        assert_eq!((&sampling["top_k"], &sampling["greedy"]), (&0.into(), &false.into()));
    }
    for flags in ["--top-p 0.9", "--top-k 20", "--temperature 0"] {
        let (code, _, printed) = run(&fixture.at(&format!(
            "rollout --policy tool=D/tool --policy planner=D/planner {flags} --turns 1 --max-tokens 4 --quiet < D/tasks | \
             group --quiet | advantage --quiet | update --policy tool=D/tool --quiet"
        )));
        assert_eq!(code, 65, "{flags}: {printed}");
    }
}

/// Tree sampling is the default; parallel sampling is another algorithm and its samples say so.
#[test]
fn tree_and_parallel_sampling_are_not_the_same_under_two_names() {
    let fixture = fixture();
    let rollout = "rollout --policy tool=D/tool --policy planner=D/planner --branches 3 --turns 2 --max-tokens 12 --quiet";
    fixture.must(&format!("{rollout} < D/tasks | group --quiet > D/tree"));
    fixture.must(&format!("{rollout} --sampling tree < D/tasks | group --quiet > D/named"));
    fixture.must(&format!("{rollout} --sampling parallel < D/tasks | group --quiet > D/parallel"));
    assert_eq!(samples(&fixture, "tree"), samples(&fixture, "named"));
    let later = |file: &str| {
        let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for sample in samples(&fixture, file).into_iter().filter(|sample| sample["turn"] == 1) {
            groups.entry(sample["group"].to_string()).or_default().push(sample);
        }
        groups
    };
    let (tree, parallel) = (later("tree"), later("parallel"));
    assert!(!tree.is_empty() && !parallel.is_empty());
    for members in tree.values() {
        assert!(members.iter().all(|member| member["parent"] == members[0]["parent"]), "one state a group");
        assert_eq!(members.iter().filter(|member| member["selected"] == true).count(), 1);
    }
    for members in parallel.values() {
        assert!(members.iter().all(|member| member["selected"] == true), "every episode goes its own way");
        assert!(members[1..].iter().all(|member| member["parent"] != members[0]["parent"]));
    }
    let end = |file: &str| {
        fixture.must(&format!("jq -c 'select(.type==\"end\") | .counts.equal_prompts' D/{file}"))
    };
    assert_eq!((end("tree").trim(), end("parallel").trim()), ("true", "false"));
}
