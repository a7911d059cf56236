//! Mistakes that implementations of multi-agent training are known to make, each made impossible or told at once. Those of
//! the tree itself are in `replay.rs`; these are about what surrounds it.

use std::collections::BTreeMap;

use serde_json::Value;
use troupe_tests::{must, run};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// A team of two small policies of the same 64 tokens, and a step of samples with rewards that differ.
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        place.must(
            "policy init D/tool --from tests/golden/qwen2-2-1-bias; policy init D/planner --from tests/golden/qwen3-8-2-untied; \
             envs tasks plan-path --count 24 --seed 4 > D/tasks; \
             rollout --policy tool=D/tool --policy planner=D/planner --branches 4 --turns 2 --max-tokens 12 --quiet < D/tasks | \
             jq -c 'if .type==\"sample\" then .reward = (.completion_ids[0] % 7) else . end' | \
             group --quiet | advantage --quiet > D/samples.jsonl",
        );
        place
    }

    fn at(&self, command: &str) -> String {
        command.replace("D/", &format!("{}/", self.folder.path().display()))
    }

    fn must(&self, command: &str) -> String {
        must(&self.at(command))
    }

    fn samples(&self, file: &str) -> Vec<Value> {
        let text = self.must(&format!("cat D/{file}"));
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| line["type"] == "sample").collect()
    }
}

/// A token is what its position says, also where it is the one that others pad with: no mask is made by comparing ids.
#[test]
fn padding_tokens_are_tokens_like_all_others() {
    const PADDING: u64 = 0;
    let place = Place::new();
    let has_padding = |sample: &Value| {
        let ids = sample["completion_ids"].as_array().expect("ids");
        // Not the last alone: something has to be scored after it.
        ids[..ids.len() - 1].iter().any(|id| *id == PADDING)
    };
    let with = place.samples("samples.jsonl").iter().filter(|sample| has_padding(sample)).count();
    assert!(with >= 1, "{with} completions hold the padding token: too few to tell");
    let check = "update --policy tool=D/tool --policy planner=D/planner --check --quiet";
    // Sampler and trainer agree on all of them.
    place.must(&format!("{check} < D/samples.jsonl > D/checked"));
    // And one in the middle of a prompt changes what the model says after it.
    let (code, _, said) = run(&place.at(&format!(
        "jq -c 'if .type==\"sample\" then .prompt_ids |= (.[:8] + [{PADDING}] + .[8:]) else . end' D/samples.jsonl | {check}"
    )));
    assert_eq!(code, 1, "{said}");
}

/// One policy that cannot be trained leaves every policy of the call as it was, and the call says so.
#[test]
fn no_policy_moves_on_where_another_fails() {
    let place = Place::new();
    let owners = "--policy tool=D/tool --policy planner=D/planner --lr 1e-3 --quiet";
    for broken in [
        // A version that is not there, and samples that say nonsense, of the planner alone.
        "if .agent==\"planner\" then .policy_version = \"7:abcdef01\" else . end",
        "if .agent==\"planner\" then .completion_ids[0] = 4000 else . end",
    ] {
        let (code, _, said) =
            run(&place.at(&format!("jq -c '{broken}' D/samples.jsonl | update {owners} > D/metrics")));
        assert_eq!(code, 65, "{said}");
        for policy in ["tool", "planner"] {
            assert_eq!(place.must(&format!("readlink D/{policy}/current")).trim(), "step-000000", "{broken}");
        }
    }
    place.must(&format!("update {owners} < D/samples.jsonl > D/metrics"));
    for policy in ["tool", "planner"] {
        assert_eq!(place.must(&format!("readlink D/{policy}/current")).trim(), "step-000001");
    }
}

/// What is sampled is what is scored, unless somebody says otherwise: the whole distribution at temperature 1.
#[test]
fn samples_come_from_the_distribution_that_scores_them() {
    let place = Place::new();
    for sample in place.samples("samples.jsonl") {
        let sampling = &sample["sampling"];
        assert_eq!((sampling["temperature"].as_f64(), sampling["top_p"].as_f64()), (Some(1.0), Some(1.0)));
        assert_eq!((&sampling["top_k"], &sampling["greedy"]), (&0.into(), &false.into()));
    }
    for flags in ["--top-p 0.9", "--top-k 20", "--greedy"] {
        let (code, _, said) = run(&place.at(&format!(
            "rollout --policy tool=D/tool --policy planner=D/planner {flags} --turns 1 --max-tokens 4 --quiet < D/tasks | \
             group --quiet | advantage --quiet | update --policy tool=D/tool --quiet"
        )));
        assert_eq!(code, 65, "{flags}: {said}");
    }
}

/// Tree sampling is what happens when nothing is said, and parallel sampling is another algorithm that says so.
#[test]
fn tree_and_parallel_sampling_are_not_the_same_under_two_names() {
    let place = Place::new();
    let rollout = "rollout --policy tool=D/tool --policy planner=D/planner --branches 3 --turns 2 --max-tokens 12 --quiet";
    place.must(&format!("{rollout} < D/tasks | group --quiet > D/tree"));
    place.must(&format!("{rollout} --sampling tree < D/tasks | group --quiet > D/named"));
    place.must(&format!("{rollout} --sampling parallel < D/tasks | group --quiet > D/parallel"));
    assert_eq!(place.samples("tree"), place.samples("named"));
    let later = |file: &str| {
        let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for sample in place.samples(file).into_iter().filter(|sample| sample["turn"] == 1) {
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
    let end =
        |file: &str| place.must(&format!("jq -c 'select(.type==\"end\") | .counts.equal_prompts' D/{file}"));
    assert_eq!((end("tree").trim(), end("parallel").trim()), ("true", "false"));
}
