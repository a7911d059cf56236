//! MAGRPO (arXiv 2508.04652) through the real programs: returns over trees of joint actions against numbers worked out
//! elsewhere, joint rewards of real rollouts, and two methods trained on the same lines.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use troupe_tests::program::lines;
use troupe_tests::{must, pipeline, root, run};

/// A tree of joint actions and its samples, as `rollout` writes them; the reward of a joint action is a function of its
/// node's number, depth first, and of its candidates.
struct Tree<'a> {
    agents: usize,
    turns: u32,
    cross: bool,
    reward: &'a dyn Fn(u64, &[u64]) -> f64,
    lines: Vec<Value>,
    nodes: u64,
}

/// Candidates of each agent at a node.
const K: u64 = 2;

impl Tree<'_> {
    fn joint_actions(&self) -> Vec<Vec<u64>> {
        if !self.cross {
            return (0..K).map(|index| vec![index; self.agents]).collect();
        }
        let digits =
            |number: u64| (0..self.agents as u32).rev().map(|place| number / K.pow(place) % K).collect();
        (0..K.pow(self.agents as u32)).map(digits).collect()
    }

    fn write(&mut self, path: &str, turn: u32) {
        let number = self.nodes;
        self.nodes += 1;
        let node = if path.is_empty() { Value::Null } else { json!(path) };
        let id = |agent: usize, branch: u64| format!("0.0/n{number}/{turn}/agent-{agent}/{branch}");
        for agent in 0..self.agents {
            for branch in 0..K {
                self.lines.push(json!({
                    "type": "sample", "v": 1, "episode": "0.0", "turn": turn, "node": node,
                    "agent": format!("agent-{agent}"), "branch": branch, "branches": K, "id": id(agent, branch),
                    "prompt_ids": [number + 1], "reward": 0,
                }));
            }
        }
        let actions = self.joint_actions();
        for (index, action) in actions.iter().enumerate() {
            let members: Vec<String> =
                action.iter().enumerate().map(|(agent, &branch)| id(agent, branch)).collect();
            let below = if path.is_empty() { index.to_string() } else { format!("{path}.{index}") };
            self.lines.push(json!({
                "type": "joint", "v": 1, "episode": "0.0", "turn": turn, "node": node, "id": format!("0.0/{below}"),
                "parent": if path.is_empty() { Value::Null } else { json!(format!("0.0/{path}")) },
                "members": members, "reward": (self.reward)(number, action),
            }));
        }
        let children = if turn + 1 < self.turns { actions.len() } else { 0 };
        for index in 0..children {
            let below = if path.is_empty() { index.to_string() } else { format!("{path}.{index}") };
            self.write(&below, turn + 1);
        }
    }
}

/// What `group | advantage` credits each agent's candidates with, by node and agent, and the joint actions of the tree.
fn credits(tree: &mut Tree<'_>, flags: &str) -> (BTreeMap<(u64, String), Vec<f64>>, usize) {
    tree.write("", 0);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lines.jsonl");
    let mut text: String = tree.lines.iter().map(|line| format!("{line}\n")).collect();
    text += "{\"type\":\"end\",\"v\":1,\"stage\":\"rollout\",\"ok\":true}\n";
    std::fs::write(&path, text).expect("written");
    let output =
        must(&format!("group --quiet < {} | advantage --quiet --credit tree {flags}", path.display()));
    let mut found: BTreeMap<(u64, String), Vec<f64>> = BTreeMap::new();
    for line in lines(&output) {
        if line["type"] == "sample" {
            let node = line["prompt_ids"][0].as_u64().expect("a number") - 1;
            let agent = line["agent"].as_str().expect("a name").to_owned();
            found.entry((node, agent)).or_default().push(line["advantage"].as_f64().expect("a number"));
        }
    }
    (found, tree.lines.iter().filter(|line| line["type"] == "joint").count())
}

fn of(found: &BTreeMap<(u64, String), Vec<f64>>, node: u64, agent: usize) -> Vec<f64> {
    found[&(node, format!("agent-{agent}"))].clone()
}

fn tree<'a>(agents: usize, turns: u32, cross: bool, reward: &'a dyn Fn(u64, &[u64]) -> f64) -> Tree<'a> {
    Tree { agents, turns, cross, reward, lines: Vec::new(), nodes: 0 }
}

/// 10 times the node, and 1, 2, … times the candidates.
fn rule(node: u64, action: &[u64]) -> f64 {
    let weighed: u64 = action.iter().zip(1..).map(|(candidate, weight)| weight * candidate).sum();
    (10 * node + weighed) as f64
}

/// The numbers come from the reference package's tests.
#[test]
fn returns_are_those_of_the_reference_package() {
    let (found, actions) = credits(&mut tree(2, 2, false, &rule), "--estimator raw");
    for agent in 0..2 {
        assert_eq!(of(&found, 0, agent), [11.5, 24.5]);
        assert_eq!((of(&found, 1, agent), of(&found, 2, agent)), (vec![10.0, 13.0], vec![20.0, 23.0]));
    }
    assert_eq!(actions, 6);

    let (found, actions) = credits(&mut tree(2, 2, true, &rule), "--estimator raw --combine sum");
    assert_eq!((of(&found, 0, 0), of(&found, 0, 1)), (vec![35.0, 77.0], vec![44.0, 68.0]));
    for node in 1..=4 {
        let base = 20.0 * node as f64;
        assert_eq!(of(&found, node, 0), [base + 2.0, base + 4.0]);
        assert_eq!(of(&found, node, 1), [base + 1.0, base + 5.0]);
    }
    assert_eq!(actions, 20);
    // The package's spelling `crossed` credits the first candidates with the first of the four returns 11.5, 23.5, 32.5 and 44.5,
    // whoever's they are. Here each candidate gets the returns it is part of, and the spelling is refused.
    assert_eq!([35.0, 77.0, 44.0, 68.0], [11.5 + 23.5, 32.5 + 44.5, 11.5 + 32.5, 23.5 + 44.5]);
    // Means are those sums over the number of combinations.
    let (found, _) = credits(&mut tree(2, 2, true, &rule), "--estimator raw");
    assert_eq!((of(&found, 0, 0), of(&found, 0, 1)), (vec![17.5, 38.5], vec![22.0, 34.0]));

    for cross in [false, true] {
        let (found, actions) = credits(&mut tree(1, 2, cross, &rule), "--estimator raw");
        assert_eq!(of(&found, 0, 0), [10.5, 21.5]);
        assert_eq!((of(&found, 1, 0), of(&found, 2, 0)), (vec![10.0, 11.0], vec![20.0, 21.0]));
        assert_eq!(actions, 6);
    }
}

#[test]
fn returns_of_three_turns_and_of_three_agents() {
    let (found, actions) = credits(&mut tree(2, 3, false, &rule), "--estimator raw");
    let expected =
        [[38.0, 101.0], [31.5, 44.5], [20.0, 23.0], [30.0, 33.0], [91.5, 104.5], [50.0, 53.0], [60.0, 63.0]];
    for (node, expected) in expected.iter().enumerate() {
        assert_eq!(of(&found, node as u64, 0), expected);
        assert_eq!(of(&found, node as u64, 1), expected);
    }
    assert_eq!(actions, 14);
    // Discounted: a half of the mean of the children at each turn.
    let (found, _) = credits(&mut tree(2, 3, false, &rule), "--estimator raw --gamma 0.5");
    let child = |node: f64| 10.0 * node + 1.5;
    let middle = |node: f64, below: f64| 10.0 * node + 1.5 + 0.5 * (child(below) + child(below + 1.0)) / 2.0;
    assert_eq!(of(&found, 0, 0), [0.5 * middle(1.0, 2.0), 3.0 + 0.5 * middle(4.0, 5.0)]);

    let (found, _) = credits(&mut tree(3, 1, true, &rule), "--estimator raw --combine sum");
    for (agent, expected) in [[10.0, 14.0], [8.0, 16.0], [6.0, 18.0]].iter().enumerate() {
        assert_eq!(of(&found, 0, agent), expected);
    }
}

/// Equal rewards of one agent make the numbers of a group; the rest is arithmetic on them.
#[test]
fn estimators_are_those_of_the_method() {
    let check = |flags: &str, rewards: &[f64], expected: &[f64]| {
        let members: String = rewards
            .iter()
            .enumerate()
            .map(|(branch, reward)| {
                let line = json!({
                    "type": "sample", "v": 1, "episode": "0.0", "turn": 0, "agent": "a", "branch": branch,
                    "branches": rewards.len(), "id": branch.to_string(), "prompt_ids": [1], "reward": reward,
                });
                format!("{line}\n")
            })
            .collect();
        let end = "{\"type\":\"end\",\"v\":1,\"stage\":\"rollout\",\"ok\":true}";
        let output = must(&format!(
            "printf '%s' '{members}{end}' | group --quiet | advantage --quiet {flags} | jq -c 'select(.type==\"sample\").advantage'"
        ));
        let found: Vec<f64> = output.lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(found.len(), expected.len());
        let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
        assert!(close, "{flags} {rewards:?}: {found:?} instead of {expected:?}");
    };
    let normalized = "--estimator grpo --std population --epsilon 0";
    for (rewards, mean, rloo, max, normal) in [
        (&[2.0, 0.5][..], &[0.75, -0.75][..], &[1.5, -1.5][..], &[0.0, -1.5][..], &[1.0, -1.0][..]),
        (&[1.94, 0.29], &[0.825, -0.825], &[1.65, -1.65], &[0.0, -1.65], &[1.0, -1.0]),
        (&[11.5, 24.5], &[-6.5, 6.5], &[-13.0, 13.0], &[-13.0, 0.0], &[-1.0, 1.0]),
        (&[35.0, 77.0], &[-21.0, 21.0], &[-42.0, 42.0], &[-42.0, 0.0], &[-1.0, 1.0]),
        (&[44.0, 68.0], &[-12.0, 12.0], &[-24.0, 24.0], &[-24.0, 0.0], &[-1.0, 1.0]),
        (
            &[0.0, 1.0, 2.0, 5.0],
            &[-2.0, -1.0, 0.0, 3.0],
            &[-2.666667, -1.333333, 0.0, 4.0],
            &[-5.0, -4.0, -3.0, 0.0],
            &[-1.069045, -0.534522, 0.0, 1.603567],
        ),
        (&[3.0; 4], &[0.0; 4], &[0.0; 4], &[0.0; 4], &[0.0; 4]),
    ] {
        check("--estimator dr-grpo", rewards, mean);
        check("--estimator rloo", rewards, rloo);
        check("--estimator group-max", rewards, max);
        check(normalized, rewards, normal);
        check("--estimator raw", rewards, rewards);
    }
    check("--estimator grpo --epsilon 0", &[0.0, 1.0, 2.0, 5.0], &[-0.92582, -0.46291, 0.0, 1.38873]);
}

/// A rollout of a tiny random policy with `pair.py`, in a new folder.
fn rollout(folder: &Path, spec: &Value, flags: &str) -> String {
    let task = |index: u32| json!({"type": "task", "v": 1, "env": "pair", "task": format!("pair/{index}"), "spec": spec});
    let mut tasks: String = (0..3).map(|index| format!("{}\n", task(index))).collect();
    tasks += "{\"type\":\"end\",\"v\":1,\"stage\":\"tasks\",\"ok\":true}\n";
    std::fs::write(folder.join("tasks.jsonl"), tasks).expect("written");
    let policy = folder.join("policy");
    if !policy.exists() {
        must(&format!("policy init {} --preset tiny --seed 1", policy.display()));
    }
    format!(
        "rollout --quiet --policy {} --env-command 'python3 {}' --branches 4 --max-tokens 4 {flags} < {}",
        policy.display(),
        root().join("tests/tests/magrpo/pair.py").display(),
        folder.join("tasks.jsonl").display()
    )
}

#[test]
fn parallel_sampling_is_equation_1() {
    let folder = tempfile::tempdir().expect("a folder");
    for own in [false, true] {
        let rollout = rollout(folder.path(), &json!({"own": own}), "--sampling parallel --joint aligned");
        for credit in ["return", "tree"] {
            let script = root().join("tests/tests/magrpo/equation_1.py");
            let found = must(&format!(
                "{rollout} | group --quiet | advantage --quiet --estimator dr-grpo --credit {credit} | python3 {}",
                script.display()
            ));
            let found: Value = serde_json::from_str(&found).expect("JSON");
            assert_eq!((&found["groups"], &found["samples"]), (&json!(18), &json!(72)), "{found}");
            assert!(found["largest"].as_f64().expect("a number") < 1e-12, "{credit}, own {own}: {found}");
        }
    }
}

/// What a turn pays its last agent is credited to the first, too: the team shares it.
#[test]
fn agents_who_act_one_after_another_share_their_return() {
    let folder = tempfile::tempdir().expect("a folder");
    let rollout = rollout(folder.path(), &json!({"apart": true}), "--sampling parallel --joint aligned");
    let advantages = |credit: &str| -> [Vec<f64>; 2] {
        let output = must(&format!(
            "{rollout} | group --quiet | advantage --quiet --estimator dr-grpo --credit {credit}"
        ));
        ["first", "second"].map(|agent| {
            let lines = lines(&output).into_iter();
            let mut own: Vec<(String, f64)> = lines
                .filter(|line| line["type"] == "sample" && line["agent"] == agent)
                .map(|line| {
                    let key = format!("{} {} {}", line["episode"], line["turn"], line["branch"]);
                    (key, line["advantage"].as_f64().expect("a number"))
                })
                .collect();
            own.sort_by(|one, other| one.0.cmp(&other.0));
            own.into_iter().map(|(_, advantage)| advantage).collect()
        })
    };
    let [first, second] = advantages("tree");
    assert_eq!((first.len(), &first), (36, &second));
    assert!(first.iter().any(|advantage| advantage.abs() > 0.01), "{first:?}");
    assert!(advantages("return")[0].iter().all(|&advantage| advantage == 0.0), "its own later rewards alone");
}

#[test]
fn a_cross_reward_is_the_mean_that_jq_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let rollout = rollout(folder.path(), &json!({}), "--joint cross --turns 2");
    let found = must(&format!(
        "{rollout} | jq -s -c '[.[] | select(.type == \"joint\")] as $joint | [.[] | select(.type == \"sample\") | .id as $id \
         | .reward - ([$joint[] | select(.members | index($id)) | .reward] | add / length) | fabs] | [length, max < 1e-12]'"
    ));
    assert_eq!(found.trim(), "[48,true]");
    // Without local rewards an aligned joint action is worth the same to all of its agents.
    let aligned = rollout.replace("--joint cross", "--joint aligned");
    let found = must(&format!(
        "{aligned} | jq -s -c '[.[] | select(.type == \"sample\")] | group_by([.episode, .turn, .branch]) \
         | [length, (map(map(.reward) | unique | length) | max)]'"
    ));
    assert_eq!(found.trim(), "[24,1]");
}

/// A joint action is worth its reward and the mean of its plays.
#[test]
fn plays_to_the_end_are_worth_their_mean() {
    let folder = tempfile::tempdir().expect("a folder");
    let rollout = rollout(folder.path(), &json!({}), "--joint aligned --expand ends=2 --turns 3");
    let output =
        must(&format!("{rollout} | group --quiet | advantage --quiet --credit tree --estimator dr-grpo"));
    let lines = lines(&output);
    let joint: Vec<&Value> = lines.iter().filter(|line| line["type"] == "joint").collect();
    fn worth(joint: &[&Value], action: &Value) -> f64 {
        let below: Vec<f64> = joint
            .iter()
            .filter(|other| other["parent"] == action["id"])
            .map(|other| worth(joint, other))
            .collect();
        let later = if below.is_empty() { 0.0 } else { below.iter().sum::<f64>() / below.len() as f64 };
        action["reward"].as_f64().expect("a number") + later
    }
    let (mut groups, mut alone): (BTreeMap<String, Vec<(f64, f64)>>, usize) = Default::default();
    for sample in lines.iter().filter(|line| line["type"] == "sample") {
        let action = joint
            .iter()
            .find(|action| action["members"].as_array().expect("members").contains(&sample["id"]));
        let own = worth(&joint, action.expect("its joint action"));
        let advantage = sample["advantage"].as_f64().expect("a number");
        groups.entry(sample["group"].to_string()).or_default().push((own, advantage));
        alone += usize::from(sample["branches"] == 1);
    }
    for (group, members) in &groups {
        let mean = members.iter().map(|(own, _)| own).sum::<f64>() / members.len() as f64;
        for (own, advantage) in members {
            assert!((advantage - (own - mean)).abs() < 1e-12, "{group}: {own} of {mean}, {advantage}");
        }
    }
    assert!(alone > 0 && groups.values().flatten().any(|(_, advantage)| advantage.abs() > 0.01));
}

/// AT-GRPO compares the candidates of each agent by their rewards of the turn, MAGRPO by their returns over
/// the tree.
#[test]
fn the_same_lines_train_either_method() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let rollout = rollout(folder.path(), &json!({"own": true}), "--joint aligned --expand all --turns 2");
    must(&format!("{rollout} > {}", at("samples.jsonl")));
    let mut weights = Vec::new();
    for (name, flags) in [("at-grpo", "--estimator grpo"), ("magrpo", "--credit tree --estimator dr-grpo")] {
        must(&format!("cp -r {} {}", at("policy"), at(name)));
        must(&format!(
            "group --quiet < {} | advantage --quiet {flags} | update --quiet --policy {} --lr 1e-3 --aggregate constant=1",
            at("samples.jsonl"),
            at(name)
        ));
        assert_eq!(must(&format!("readlink {}/current", at(name))).trim(), "step-000001");
        weights.push(must(&format!("cat {}/current/model.safetensors | cksum", at(name))));
    }
    assert_ne!(weights[0], weights[1]);
}

/// Numbers of the published rules, through the program that a trainer of another kind would call.
#[test]
fn rewards_are_the_published_ones_through_envs_step() {
    let earned = must(&format!("python3 {}", root().join("tests/tests/magrpo/rewards.py").display()));
    assert_eq!(earned.lines().count(), 6, "{earned}");
}

/// The team's reward on test tasks of `write`: mean, and half of its 95 % interval.
fn reward_of_writers(folder: &Path, first: &str, second: &str) -> (f64, f64) {
    let at = |policy: &str| folder.join(policy).display().to_string();
    let output = must(&format!(
        "{} evaluate --env write --eval-tasks 150 --policies writer-1={} --policies writer-2={} \
         | jq 'select(.type == \"sample\" and .agent == \"writer-1\").rewards.team'",
        root().join("pipeline.sh").display(),
        at(first),
        at(second)
    ));
    let rewards: Vec<f64> = output.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(rewards.len(), 150);
    let mean = rewards.iter().sum::<f64>() / 150.0;
    let variance = rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / 149.0;
    (mean, 1.96 * (variance / 150.0).sqrt())
}

/// Trained together, two writers earn more than before, and each earns more than its untrained self with the
/// same partner.
#[test]
fn both_writers_improve() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let arguments =
        "--env write --method magrpo --policies per-role --warmup 100 --steps 10 --tasks 12 --eval-every 0";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let trained = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let of = |first: &str, second: &str| reward_of_writers(&run, first, second);
    let (one, two, before) = ("policies/writer-1", "policies/writer-2", "warmup/policy");
    let (together, half) = of(one, two);
    for (less, first, second) in
        [("before", before, before), ("with an old first", before, two), ("with an old second", one, before)]
    {
        let (mean, other) = of(first, second);
        assert!(together - half > mean + other, "{together} ± {half}; {less} {mean} ± {other}");
    }
}

/// Requirements for a complete tree, and refusals.
#[test]
fn a_tree_with_a_hole_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let rollout_of = |flags: &str| rollout(folder.path(), &json!({}), flags);
    let refused = |command: &str| {
        let (code, _, stderr) = run(command);
        (code, stderr.lines().next().unwrap_or_default().to_owned())
    };
    let tree = format!("{} | group --quiet", rollout_of("--joint aligned --expand all --turns 2"));
    let advantage = "advantage --quiet --credit tree";
    for (command, cause) in [
        (
            format!("{tree} | grep -v '\"type\":\"joint\"' | {advantage}"),
            "0.0/0/first/0: no joint action has this sample",
        ),
        (
            format!("{tree} | grep -v '\"id\":\"0.0/2\"' | {advantage}"),
            "no joint action 0.0/2 is in the stream",
        ),
        (
            format!("{tree} | sed 's|\"parent\":\"0.0/2\"|\"parent\":\"0.0/1\"|' | {advantage}"),
            "nothing follows from this joint action",
        ),
        (format!("{tree} | advantage --quiet --credit return"), "the episode branches"),
        (
            format!("{} | group --quiet | {advantage}", rollout_of("--joint aligned --turns 2")),
            "nothing follows from this joint action",
        ),
        (
            format!(
                "{tree} | sed 's|\"parent\":null,\"members\"|\"parent\":\"0.0/0.0\",\"members\"|' | {advantage}"
            ),
            "",
        ),
    ] {
        let (code, line) = refused(&command);
        assert_eq!(code, 65, "{command}: {line}");
        assert!(line.starts_with("advantage: ") && line.contains(cause), "{line}");
    }
    for mode in ["unknown", "crossed"] {
        for command in
            [rollout_of(&format!("--joint {mode}")), format!("{advantage} --combine {mode} </dev/null")]
        {
            let (code, line) = refused(&command);
            assert!(code == 2 && line.contains(mode), "{line}");
        }
    }
    let (code, line) = refused("group --by joint </dev/null");
    assert!(code == 2 && line.contains("joint"), "{line}");
}
