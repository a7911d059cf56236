//! Credit rules around their numbers: baselines from step to step, refusals, anchors, roles, and methods by name.

use serde_json::{Value, json};
use troupe_tests::{must, run};

use crate::credit::{check, group, nothing, played, refused, sample, through, tree, write};

/// Below which two numbers of six digits are one.
const CLOSE: f64 = 2e-6;

/// The samples of a step of two players, in order of play, with what each play paid.
fn plays(step: u64, rewards: &[(&str, f64)]) -> Vec<Value> {
    let of = |(index, (agent, reward)): (usize, &(&str, f64))| {
        sample(
            &format!("{step}.{index}"),
            agent,
            0,
            1,
            &json!({"step": step, "episode": format!("{step}.{index}"),
            "sampling_mode": "parallel", "reward": reward}),
        )
    };
    rewards.iter().enumerate().map(of).collect()
}

#[test]
fn rae_keeps_its_baselines_from_step_to_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("baselines");
    let pipe = format!(
        "group -q --by agent --allow-incomplete | advantage -q --estimator rae --credit episode-own --decay 0.9 --baselines {}",
        kept.display()
    );
    let read = |step: u64| std::fs::read_to_string(kept.join(format!("{step:06}.json"))).expect("baselines");
    let of = |text: &str, role: &str| serde_json::from_str::<Value>(text).expect("JSON")[role].clone();
    // All of a step are compared with the baseline of its start.
    let first = plays(0, &[("x", 1.0), ("o", -1.0), ("x", 1.0), ("o", -1.0), ("x", -1.0), ("o", 1.0)]);
    let counts = check(&first, &pipe, &[1.0, -1.0, 1.0, -1.0, -1.0, 1.0]);
    assert_eq!(counts["baselines"]["file"], "000000.json");
    assert_eq!(counts["baselines"]["roles"]["toy/x"]["episodes"], 3);
    let baseline = of(&read(0), "toy/x")[0].as_f64().expect("a number");
    assert!((baseline - 0.090333).abs() < CLOSE, "{baseline}");
    assert_eq!(of(&read(0), "toy/o"), json!([-baseline, 3]));
    // A role that does not play keeps its baseline; a step that is repeated writes the same bytes.
    let second = plays(1, &[("x", 1.0), ("x", 0.0)]);
    let expected = [1.0 - baseline, -baseline];
    check(&second, &pipe, &expected);
    let written = read(1);
    assert_eq!(of(&written, "toy/o"), json!([-baseline, 3]));
    let after = 0.81 * baseline + 0.19 * 0.5;
    assert!((of(&written, "toy/x")[0].as_f64().expect("a number") - after).abs() < 1e-12);
    assert_eq!(of(&written, "toy/x")[1], 5);
    check(&second, &pipe, &expected);
    assert_eq!(read(1), written);
    // The order of the lines does not matter.
    let reversed: Vec<Value> = second.into_iter().rev().collect();
    check(&reversed, &pipe, &[expected[1], expected[0]]);
    assert_eq!(read(1), written);
    // It does not begin anew in the middle of a run.
    let (code, said) = refused(&plays(3, &[("x", 1.0)]), &pipe);
    assert!(
        code == 2 && said.contains("000002.json") && said.contains("only step 0 begins with 0"),
        "{said}"
    );
    std::fs::write(kept.join("000002.json"), "{\"toy/x\": 3}").expect("written");
    let (code, said) = refused(&plays(3, &[("x", 1.0)]), &pipe);
    assert!(code == 65 && said.contains("000002.json"), "{said}");
    let mixed = [plays(0, &[("x", 1.0)]), plays(1, &[("x", 1.0)])].concat();
    let (code, said) = refused(&mixed, &pipe);
    assert!(code == 65 && said.contains("step is 1, but 0 before"), "{said}");
}

/// An agent's rewards over its whole episode count once, however many turns it takes.
#[test]
fn rae_credits_an_agent_with_its_own_episode() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = format!(
        "group -q | advantage -q --estimator rae --credit episode-own --baselines {}",
        folder.path().join("b").display()
    );
    let mut lines = played();
    lines.retain(|line| line["type"] == "sample");
    for line in &mut lines {
        line["reward"] = json!(if line["agent"] == "solver" { 0.25 } else { 1.0 });
    }
    let expected: Vec<f64> = [1.0, 2.0, 2.0, 2.0]
        .iter()
        .flat_map(|turns| [0.25, 1.0].repeat(*turns as usize).into_iter().map(move |own| own * turns))
        .collect();
    let counts = check(&lines, &pipe, &expected);
    assert_eq!(counts["baselines"]["roles"]["toy/solver"]["episodes"], 4);
    assert_eq!(counts["baselines"]["roles"]["toy/solver"]["mean"], 0.4375);
    // Of whole episodes each role has a baseline, also in one group of both.
    let pipe = format!(
        "group -q --by episode | advantage -q --estimator rae --credit episode --baselines {}",
        folder.path().join("whole").display()
    );
    let (_, counts) = through(&lines, &pipe);
    let episodes =
        ["toy/solver", "toy/checker"].map(|role| counts["baselines"]["roles"][role]["episodes"].clone());
    assert_eq!(episodes, [json!(4), json!(4)]);
}

#[test]
fn samples_that_a_rule_cannot_score_are_refused() {
    let one = || group(&[1.0, -1.0], &nothing);
    let parallel = || group(&[1.0, 0.0], &|_| json!({"sampling_mode": "parallel"}));
    let episodes = "group -q --by episode | advantage -q";
    for (lines, pipe, code, cause) in [
        (one(), "group -q | advantage -q --estimator max-rl", 65, "1: its credit is -1, and max-rl divides"),
        (
            one(),
            "group -q | advantage -q --estimator gdpo --components success",
            65,
            "no success: it was not scored",
        ),
        (one(), "group -q | advantage -q --gate success", 65, "no success: it was not scored"),
        (
            tree(&[&[1.0]]),
            "group -q | advantage -q --credit tree --gate format",
            65,
            "0.0/0: `reward_components` has no format",
        ),
        (one(), "group -q | advantage -q --estimator gdpo", 2, "--components"),
        (one(), "group -q | advantage -q --estimator rae", 2, "--baselines"),
        (
            one(),
            "group -q | advantage -q --components x",
            2,
            "--components does nothing with --estimator grpo",
        ),
        (one(), "group -q | advantage -q --k 3", 2, "--k does nothing with --estimator grpo"),
        (one(), "group -q | advantage -q --decay 0.5", 2, "--decay does nothing with --estimator grpo"),
        (one(), "group -q | advantage -q --count calls", 2, "--count calls does nothing with --credit turn"),
        (
            one(),
            "group -q | advantage -q --anchor-weight 2",
            2,
            "--anchor-weight does nothing with --credit turn",
        ),
        (one(), "group -q | advantage -q --flat-below=-1", 2, "--flat-below"),
        (
            one(),
            "group -q | advantage -q --estimator gdpo --components x --team-weight 1",
            2,
            "--team-weight does nothing",
        ),
        (
            one(),
            "group -q | advantage -q --estimator gdpo --components x --credit return",
            2,
            "--credit return does nothing",
        ),
        (
            one(),
            "group -q | advantage -q --credit episode-own",
            65,
            "--credit episode-own compares whole episodes",
        ),
        (parallel(), &format!("{episodes} --credit gigpo"), 65, "`anchor` is missing"),
        (
            parallel(),
            &format!("{episodes} --credit gigpo --estimator rloo"),
            2,
            "its two comparisons subtract a mean each",
        ),
        (
            parallel(),
            &format!("{episodes} --credit episode-own --estimator remax"),
            2,
            "whose baseline is of one prompt",
        ),
        (
            group(&[1.0], &nothing),
            "group -q | advantage -q --whiten samples",
            65,
            "one sample, which has no standard deviation",
        ),
        (
            group(&[1.0], &nothing),
            "group -q | advantage -q --whiten tokens",
            65,
            "one token, which has no standard deviation",
        ),
        (
            group(&[1.0, 0.0], &|_| json!({"completion_ids": null})),
            "group -q | advantage -q --estimator opo",
            65,
            "`completion_ids` is missing",
        ),
        (
            group(&[1.0, 0.0], &|_| json!({"reward_components": {"success": null}})),
            "group -q | advantage -q --estimator gdpo --components success",
            65,
            "reward_components",
        ),
        (group(&[1.0], &|_| json!({"task": null})), "group -q --anchor prompt", 65, "`task` is missing"),
    ] {
        let (found, said) = refused(&lines, pipe);
        assert!(found == code && said.contains(cause), "{pipe}: {found}: {said}");
    }
    // All equal is nothing to divide by, and no error.
    check(&group(&[1.0; 3], &nothing), "group -q | advantage -q --estimator raw --whiten tokens", &[0.0; 3]);
}

/// Each row is a rule of one expression, with a record that shows it.
#[test]
fn rules_of_one_expression() {
    let scored = |rewards: &[f64], success: &[f64]| {
        group(
            rewards,
            &|branch| json!({"sampling_mode": "parallel", "reward_components": {"success": success[branch], "cost": rewards[branch]}}),
        )
    };
    // The component counts, not whether the leaf's play was a success: the first checkers agree in it.
    let mut leaves = tree(&[&[0.0, 1.0], &[0.5, 1.0]]);
    let ends = leaves.iter_mut().filter(|line| line["type"] == "joint" && line["terminated"] == true);
    ends.zip([0, 0, 0, 1])
        .for_each(|(line, success)| line["reward_components"] = json!({"success": success}));
    let dr_grpo = "advantage -q --estimator dr-grpo";
    let gdpo = "group -q | advantage -q --estimator gdpo --components";
    for (name, lines, pipe, expected) in [
        (
            "a component of a joint action gates its tree",
            leaves,
            format!("group -q | {dr_grpo} --credit tree --gate success"),
            vec![-0.125, 0.125, 0.0, 0.0, -0.25, 0.25],
        ),
        (
            "gigpo's anchors do not teach a gated group",
            scored(&[1.0, 0.0], &[0.0, 0.0]),
            format!("group -q --by agent --anchor prompt | {dr_grpo} --credit gigpo --gate success"),
            vec![0.0, 0.0],
        ),
        (
            "a negative weight punishes",
            scored(&[1.0, 0.0], &[0.0, 0.0]),
            format!("{gdpo} cost=-0.5"),
            vec![-0.353553, 0.353553],
        ),
        (
            "gdpo's components are flat below a bound",
            scored(&[0.5, 0.55], &[0.0, 0.0]),
            format!("{gdpo} cost --flat-below 0.1"),
            vec![0.0, 0.0],
        ),
        (
            "variances over tokens have a floor",
            scored(&[1e-4, -1e-4], &[0.0, 0.0]),
            "group -q | advantage -q --estimator raw --whiten tokens".to_owned(),
            vec![0.577350, -0.577350],
        ),
    ] {
        println!("{name}");
        check(&lines, &pipe, &expected);
    }
}

/// A turn that an agent skips adds nothing, and counts in the discount.
#[test]
fn agents_may_skip_turns() {
    // b acts in turn 1 alone; a acts in turns 0 and 3.
    let lines: Vec<Value> = [("a", 0, 1.0), ("b", 1, 2.0), ("a", 3, 4.0)]
        .iter()
        .flat_map(|&(agent, turn, reward)| {
            [1.0, 0.0].map(|factor| {
                let branch = usize::from(factor == 0.0);
                let more = json!({"turn": turn, "sampling_mode": "parallel", "reward": factor * reward});
                sample(&format!("{agent}{turn}{branch}"), agent, branch, 2, &more)
            })
        })
        .collect();
    let signed =
        |values: [f64; 3]| values.iter().flat_map(|value| [value / 2.0, -value / 2.0]).collect::<Vec<f64>>();
    for (group, credit, expected) in [
        ("--by agent", "episode --gamma 0.5", signed([2.5, 2.5, 2.5])),
        ("--by agent", "episode-own --gamma 0.5", signed([1.5, 1.0, 1.5])),
        ("", "return --gamma 0.5", signed([1.5, 2.0, 4.0])),
        ("--by agent", "episode", signed([7.0, 7.0, 7.0])),
    ] {
        let pipe = format!("group -q {group} | advantage -q --estimator dr-grpo --credit {credit}");
        check(&lines, &pipe, &expected);
    }
}

/// Agents with one prompt have an anchor each.
#[test]
fn agents_do_not_share_an_anchor() {
    let of =
        |agent: &str| group(&[1.0, 0.0], &|branch| json!({"agent": agent, "id": format!("{agent}{branch}")}));
    let folder = tempfile::tempdir().expect("a folder");
    let path = write(folder.path(), &[of("a"), of("b")].concat());
    let found = must(&format!(
        "group -q --anchor prompt < {path} | jq -c 'select(.type==\"sample\") | [.anchor, .anchor_size]'"
    ));
    assert_eq!(found, "[\"a0\",2]\n[\"a0\",2]\n[\"b0\",2]\n[\"b0\",2]\n");
}

/// A sample that is left out is no member of its anchor, and parts of a stream do not mix.
#[test]
fn anchors_count_what_is_written() {
    let lines: Vec<Value> = [Some(1.0), None, Some(0.0)]
        .iter()
        .enumerate()
        .map(|(branch, reward)| {
            sample(
                &branch.to_string(),
                "a",
                branch,
                3,
                &json!({"reward": reward, "sampling_mode": "parallel"}),
            )
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = write(folder.path(), &lines);
    let group = "group -q --anchor prompt --unscored drop-sample --resident";
    let found = must(&format!(
        "cat {path} {path} | {group} | jq -c 'select(.type==\"sample\") | [.anchor, .anchor_size]'"
    ));
    assert_eq!(found, "[\"0\",2]\n".repeat(4));
}

/// The solver's candidates are equal within a state and the checker's differ, so the metrics by agent show who learns.
#[test]
fn roles_show_who_learns_and_where_credit_points() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lines = Vec::new();
    for (episode, reward) in [("0.0", 0.25), ("0.1", 0.75)] {
        for branch in 0..2 {
            let more = |agent: &str, reward: f64| {
                json!({"episode": episode, "id": format!("{episode}/{agent}/{branch}"), "reward": reward,
                    "selected": branch == 0, "completion_ids": [1, 2], "finish_reason": if branch == 0 { "stop" } else { "length" }})
            };
            lines.push(sample("", "solver", branch, 2, &more("solver", reward)));
            let paid = if branch == usize::from(episode == "0.0") { 1.0 } else { 0.0 };
            lines.push(sample("", "checker", branch, 2, &more("checker", paid)));
        }
        lines.push(json!({"type": "episode", "v": 1, "env": "toy", "task": "t", "episode": episode, "success": episode == "0.1",
            "turns": 1, "reward": 1, "stop": "turns"}));
    }
    let path = write(folder.path(), &lines);
    let [first, second] = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    must(&format!(
        "group -q < {path} | advantage -q --std none > {first}; group -q < {path} | advantage -q --estimator raw > {second}"
    ));
    let printed = must(&format!("report roles {first} --against {second} --format json"));
    let rows: Vec<Value> = printed.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let of = |agent: &str, key: &str| {
        rows.iter().find(|row| row["agent"] == agent).expect("an agent")[key].clone()
    };
    for (key, checker, solver) in [
        ("samples", json!(4.0), json!(4.0)),
        ("groups", json!(2.0), json!(2.0)),
        ("groups_flat", json!(0.0), json!(2.0)),
        ("flat", json!(0.0), json!(1.0)),
        ("advantage_mass", json!(1.0), json!(0.0)),
        ("advantage_mean", json!(0.0), json!(0.0)),
        ("advantage_largest", json!(0.5), json!(0.0)),
        // Its executed candidate is the worse one in the failed episode and the better one in the solved one.
        ("advantage_success", json!(1.0), Value::Null),
        ("variance_within_state", json!(1.0), json!(0.0)),
        ("completion_length", json!(2.0), json!(2.0)),
        ("completions_cut", json!(0.5), json!(0.5)),
    ] {
        assert_eq!((of("checker", key), of("solver", key)), (checker, solver), "{key}");
    }
    // 1 and 0 against 0.5 and -0.5, twice.
    assert!((of("checker", "advantage_cosine").as_f64().expect("a number") - 0.5f64.sqrt()).abs() < 1e-12);
    let table = must(&format!("report roles < {first}"));
    assert!(table.lines().next().expect("agents").split_whitespace().eq(["checker", "solver"]), "{table}");
    let (code, _, said) = run(&format!("report roles < {path}"));
    assert!(
        code == 65 && said.contains("`group` is missing") && said.contains("what advantage writes"),
        "{said}"
    );
}

/// What a method stands for is what the stages take: each reads its flags and does nothing.
#[test]
fn every_method_is_flags_that_its_stages_take() {
    let methods = "at-grpo trajectory magrpo magrpo-cross c3 c3-zscore drmas gigpo gdpo rae matpo flow-grpo hierarchical";
    for method in methods.split(' ') {
        let explained = must(&format!("./pipeline.sh --method {method} --explain"));
        let lines: Vec<&str> = explained.lines().collect();
        assert!(lines[0].starts_with(&format!("# {method}: ")) && lines.len() == 5, "{explained}");
        for (line, stage) in lines[1..].iter().zip(["rollout", "group", "advantage", "update"]) {
            assert!(line.split(' ').next() == Some(stage), "{line}");
            let policy = if ["rollout", "update"].contains(&stage) { "--policy p" } else { "" };
            must(&format!("TROUPE_DRY_RUN=1 {line} {policy} < /dev/null"));
        }
    }
    for (flags, said) in [
        ("--method gdpo", "--method gdpo needs --components, which depends on the environment"),
        ("--method ppo", "--method ppo: not at-grpo, trajectory,"),
    ] {
        let (code, _, stderr) = run(&format!("./pipeline.sh {flags} --run /nonexistent/run"));
        assert!(code == 2 && stderr.contains(said), "{stderr}");
    }
}
