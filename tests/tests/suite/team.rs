//! Teams of every shape: one policy for all agents, one per role, some shared; policies of different families, sizes and
//! tokenizers; chained updates; every workflow from the command line.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use troupe_tests::folder::TestFolder;
use troupe_tests::must;
use troupe_tests::program::{lines, of_type};

const AGENTS: [&str; 4] = ["reasoner-1", "reasoner-2", "tool-1", "judge"];
/// Random tiny policies earn nothing: this reward differs within a group, so there is something to learn.
const REWARD: &str = "jq -c 'if .type==\"sample\" then .reward = (.completion_ids[0] % 7) else . end'";

/// Policies of three families, four sizes and two tokenizers, in a new folder.
struct Fixture(TestFolder);

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture(TestFolder::new());
        fixture.must(
            "policy init D/tiny --preset tiny --seed 1; policy init D/llama --from tests/golden/llama-2-1-scaled-rope; \
             policy init D/qwen2 --from tests/golden/qwen2-2-1-bias; policy init D/qwen3 --from tests/golden/qwen3-8-2-untied",
        );
        fixture
    }

    fn must(&self, command: &str) -> String {
        self.0.must(command)
    }

    /// The lines of one step of an ensemble whose agents are owned as `policies` says, up to `advantage`.
    fn samples(&self, policies: &str, step: u32) -> Vec<Value> {
        lines(&self.must(&format!(
            "envs tasks math --count 3 --seed {step} | rollout --workflow ensemble {policies} --branches 3 --turns 2 \
             --max-tokens 6 --step {step} --quiet | {REWARD} | group --quiet | advantage --quiet | tee D/samples.jsonl"
        )))
    }

    /// The digest of the newest weights of a policy.
    fn weights(&self, policy: &str) -> String {
        self.must(&format!("cat D/{policy}/current/*.safetensors | cksum"))
    }

    fn current(&self, policy: &str) -> String {
        self.must(&format!("readlink D/{policy}/current")).trim().to_owned()
    }
}

fn end(lines: &[Value]) -> &Value {
    lines.iter().rfind(|line| line["type"] == "end").expect("an end")
}

fn flags(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(agent, policy)| format!("--policy {agent}=D/{policy} ")).collect()
}

#[test]
fn policies_of_different_families_sizes_and_tokenizers_are_one_team() {
    let fixture = Fixture::new();
    let owners =
        flags(&[("reasoner-1", "tiny"), ("reasoner-2", "llama"), ("tool-1", "qwen2"), ("judge", "qwen3")]);
    for step in 1..=2 {
        let samples = fixture.samples(&owners, step);
        for sample in of_type(&samples, "sample") {
            let version = sample["policy_version"].as_str().expect("a version");
            assert!(version.starts_with(&format!("{}:", step - 1)), "{version} at step {step}");
        }
        // Each tokenizer has different tokens for the same text; no text is decoded and encoded again.
        let reported = lines(&fixture.must(&format!("update {owners} --lr 1e-3 --quiet < D/samples.jsonl")));
        let metrics: BTreeMap<&str, &Value> = of_type(&reported, "metrics")
            .map(|line| (line["policy"].as_str().expect("a name"), line))
            .collect();
        assert_eq!(metrics.keys().copied().collect::<Vec<_>>(), ["llama", "qwen2", "qwen3", "tiny"]);
        for (policy, line) in metrics {
            let gap = line["sampling/logp_difference_max"].as_f64().expect("a gap");
            assert_eq!(gap, 0.0, "{policy} at step {step}: sampler and trainer differ");
            assert!(line["grad_norm"].as_f64().expect("a norm") > 0.0, "{policy} learned nothing");
            assert_eq!(line["optimizer_steps"], 1, "strictly on-policy unless told otherwise");
            assert_eq!(line["lr"], 1e-3, "constant unless told otherwise");
            assert_eq!(fixture.current(policy), format!("step-{step:06}"));
        }
        assert_eq!(end(&reported)["counts"]["samples_passed_by"], 0);
    }
}

#[test]
fn any_map_from_roles_to_policies_trains_each_policy_on_its_own_agents() {
    let fixture = Fixture::new();
    fixture.must("policy init D/other --preset tiny --seed 2");
    for (map, owners) in [
        ("--policy D/tiny ".to_owned(), vec![("tiny", &AGENTS[..])]),
        (
            flags(&[("reasoner-1", "tiny"), ("reasoner-2", "tiny"), ("tool-1", "other"), ("judge", "tiny")]),
            vec![("tiny", &["reasoner-1", "reasoner-2", "judge"][..]), ("other", &["tool-1"])],
        ),
        // One policy by name, and one for all other agents.
        (
            "--policy D/tiny --policy judge=D/other ".to_owned(),
            vec![("tiny", &AGENTS[..3]), ("other", &["judge"])],
        ),
    ] {
        let samples = fixture.samples(&map, 1);
        let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for sample in of_type(&samples, "sample") {
            let text = |key: &str| sample[key].as_str().expect("a text");
            seen.entry(text("policy")).or_default().insert(text("agent"));
        }
        let reported = lines(&fixture.must(&format!(
            "rm -rf D/c; mkdir D/c; cp -r D/tiny D/other D/c/; update {} --quiet < D/samples.jsonl",
            map.replace("D/", "D/c/")
        )));
        let counts = &end(&reported)["counts"]["policies"];
        assert_eq!(counts.as_object().expect("policies").len(), owners.len(), "{map}");
        for (policy, agents) in &owners {
            let agents: BTreeSet<&str> = agents.iter().copied().collect();
            assert_eq!(seen[policy], agents, "{map}");
            let own = of_type(&samples, "sample")
                .filter(|sample| agents.contains(sample["agent"].as_str().expect("an agent")))
                .count();
            assert_eq!(counts[policy], own, "{map}: {policy}");
        }
    }
}

#[test]
fn chained_updates_pass_through_what_they_do_not_own_and_equal_one_update() {
    let fixture = Fixture::new();
    fixture.must("policy init D/other --preset tiny --seed 2");
    let (reasoners, rest) = (
        flags(&[("reasoner-1", "tiny"), ("reasoner-2", "tiny")]),
        flags(&[("tool-1", "other"), ("judge", "other")]),
    );
    let samples = fixture.samples(&format!("{reasoners}{rest}"), 1);
    let all = of_type(&samples, "sample").count();
    let own = of_type(&samples, "sample")
        .filter(|sample| sample["agent"].as_str().is_some_and(|agent| agent.starts_with("reasoner")))
        .count();
    fixture.must("mkdir D/one; cp -r D/tiny D/other D/one/");
    fixture.must(&format!(
        "update {} --lr 1e-3 --quiet < D/samples.jsonl > D/one.jsonl",
        format!("{reasoners}{rest}").replace("D/", "D/one/")
    ));
    fixture.must(&format!(
        "update {reasoners} --lr 1e-3 --quiet --pass-through < D/samples.jsonl | tee D/between.jsonl | \
         update {rest} --lr 1e-3 --quiet --pass-through > D/after.jsonl"
    ));
    for policy in ["tiny", "other"] {
        assert_eq!(fixture.current(policy), "step-000001");
        assert_eq!(fixture.weights(policy), fixture.weights(&format!("one/{policy}")), "{policy}");
    }
    // Every sample, owned or not, passes through both byte for byte, in order.
    let samples_of = |file: &str| fixture.must(&format!("grep -F '\"type\":\"sample\"' D/{file}.jsonl"));
    assert_eq!(samples_of("between"), samples_of("samples"));
    assert_eq!(samples_of("after"), samples_of("samples"));
    let (between, after) = (fixture.0.lines("between.jsonl"), fixture.0.lines("after.jsonl"));
    assert!(own > 0 && own < all);
    for (stream, passed) in [(&between, all - own), (&after, own)] {
        let counts = &end(stream)["counts"];
        assert_eq!((&counts["samples"], &counts["samples_passed_by"]), (&all.into(), &passed.into()));
        assert_eq!(counts["samples_owned"], all - passed);
    }
    assert_eq!(of_type(&after, "metrics").count(), 2, "the metrics of both");
    assert_eq!(end(&after)["after"][0]["stage"], "update", "the second saw the end of the first");
}

/// The command of each workflow, and the groups it yields.
#[test]
fn every_workflow_is_reached_from_the_command_line() {
    let fixture = Fixture::new();
    let workflows: Vec<(String, String, Vec<String>)> = {
        let mut environment = String::new();
        let mut found = Vec::new();
        for line in must("envs list").lines() {
            match line.trim_start().strip_prefix("--workflow ") {
                None if !line.starts_with(' ') => {
                    environment = line.split(':').next().expect("a name").to_owned();
                }
                None => {}
                Some(rest) => {
                    let (name, agents) = rest.trim().split_once(' ').expect("agents");
                    let agents = agents.trim().split(" (").next().expect("agents").split(", ");
                    found.push((environment.clone(), name.to_owned(), agents.map(str::to_owned).collect()));
                }
            }
        }
        found
    };
    assert!(workflows.len() >= 18, "{workflows:?}");
    for sampling in ["tree", "parallel"] {
        for (environment, workflow, agents) in &workflows {
            let stream = lines(&fixture.must(&format!(
                "envs tasks {environment} --count 1 | rollout --workflow {workflow} --policy D/tiny --branches 2 \
                 --turns 2 --max-tokens 4 --sampling {sampling} --quiet | group --quiet | advantage --quiet"
            )));
            let acted: BTreeSet<&str> =
                of_type(&stream, "sample").filter_map(|sample| sample["agent"].as_str()).collect();
            let expected: BTreeSet<&str> = agents.iter().map(String::as_str).collect();
            assert_eq!(acted, expected, "{environment} {workflow} {sampling}");
            let end = end(&stream);
            assert_eq!(end["ok"], true);
            let episodes: Vec<&Value> = of_type(&stream, "episode").collect();
            assert_eq!(episodes.len(), if sampling == "tree" { 1 } else { 2 });
            if sampling == "tree" {
                let turns = episodes[0]["turns"].as_u64().expect("turns");
                assert_eq!(end["counts"]["groups"], turns * agents.len() as u64, "{environment} {workflow}");
            }
        }
    }
}

#[test]
fn an_ensemble_has_as_many_agents_as_its_settings_say() {
    let fixture = Fixture::new();
    let settings = "--set reasoners=3 --set tools=2";
    let listed = must(&format!("envs list math {settings}"));
    let agents = "reasoner-1, reasoner-2, reasoner-3, tool-1, tool-2, judge";
    assert!(listed.contains(agents), "{listed}");
    let stream = lines(&fixture.must(&format!(
        "envs tasks math {settings} --count 2 | rollout --workflow ensemble --policy D/tiny --policy judge=D/llama \
         --branches 2 --turns 1 --max-tokens 4 --quiet | group --quiet"
    )));
    let acted: BTreeSet<&str> =
        of_type(&stream, "sample").filter_map(|sample| sample["agent"].as_str()).collect();
    assert_eq!(acted, agents.split(", ").collect());
    let text = |sample: &Value, key: &str| sample[key].as_str().map(str::to_owned);
    for sample in of_type(&stream, "sample") {
        let owner = if sample["agent"] == "judge" { "llama" } else { "tiny" };
        assert_eq!(text(sample, "policy").as_deref(), Some(owner));
    }
}
