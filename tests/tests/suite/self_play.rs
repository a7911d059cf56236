//! Self-play: opponents from a policy's past, the same after a kill, in resident stages, and for one policy or several; exploitability
//! in the record and on the page; ratings of versions.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use troupe_tests::program::{lines, of_type};
use troupe_tests::{differences, must, pipeline, root, run};

fn kuhn() -> String {
    format!("python3 {} --chips", root().join("examples/kuhn_poker.py").display())
}

fn elo() -> String {
    format!("python3 {}", root().join("examples/elo.py").display())
}

/// 30 wins, 10 draws and 60 losses are 35 points of 100: 400 log10(35/65), with the error of their log-odds.
#[test]
fn elo_counts_a_draw_as_half_a_win_for_both() {
    let mut stream = String::new();
    for (number, result) in [[1; 60].as_slice(), &[0; 10], &[-1; 30]].concat().into_iter().enumerate() {
        for (agent, version) in [("x", "0:a"), ("o", "8:b")] {
            let sample = json!({"type": "sample", "episode": number, "branch": 0, "agent": agent, "policy_version": version});
            stream += &format!("{sample}\n");
        }
        let returns = json!({"x": result, "o": -result});
        stream += &format!("{}\n", json!({"type": "episode", "episode": number, "returns": returns}));
    }
    stream += "{\"type\":\"end\",\"ok\":true}\n";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("games");
    std::fs::write(&file, stream).expect("written");
    let rows = lines(&must(&format!("{} --json {}", elo(), file.display())));
    assert_eq!((&rows[0]["version"], &rows[0]["elo"]), (&json!("0:a"), &json!(0.0)));
    assert_eq!((&rows[1]["won"], &rows[1]["drawn"], &rows[1]["lost"]), (&json!(30), &json!(10), &json!(60)));
    let number = |name: &str| rows[1][name].as_f64().expect("a number");
    assert!((number("elo") - 400.0 * (35.0_f64 / 65.0).log10()).abs() < 1e-6, "{rows:?}");
    let error = 400.0 / std::f64::consts::LN_10 / (100.0 * 0.35 * 0.65_f64).sqrt();
    assert!((number("error") - error).abs() < 1e-6, "{rows:?}");
}

fn play(at: &Path, more: &[&str]) {
    let kuhn = kuhn();
    let flags = ["--env-command", &kuhn, "--opponents", "past:3", "--tasks", "4", "--branches", "3"];
    let credit = [
        "--flags",
        "rollout=--sampling parallel",
        "--flags",
        "group=--by agent",
        "--flags",
        "advantage=--credit episode-own",
    ];
    let output = pipeline(
        at,
        &[&flags, &credit[..], &["--eval-every", "0", "--warmup", "120", "--seed", "7"], more].concat(),
    )
    .output()
    .expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn step(at: &Path, number: u64) -> Vec<Value> {
    lines(&std::fs::read_to_string(at.join(format!("steps/{number:06}/samples.jsonl"))).expect("a stream"))
}

/// The versions of a policy's directory.
fn kept(policy: &Path) -> Vec<String> {
    let entries =
        std::fs::read_dir(policy).expect("a policy").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name.starts_with("step-"));
    names.sort();
    names
}

#[test]
fn opponents_of_the_past_are_the_same_after_a_kill_and_in_resident_stages() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    let [calm, resumed, resident] = ["calm", "resumed", "resident"].map(|name| folder.path().join(name));
    play(&calm, &["--steps", "5"]);
    let version = |line: &Value| line["policy_version"].as_str().expect("a version").to_owned();
    let mut ages = BTreeSet::new();
    for number in 1..=5 {
        let lines = step(&calm, number);
        let current: BTreeSet<String> = of_type(&lines, "sample").map(version).collect();
        assert_eq!(current.len(), 1, "{current:?}");
        assert!(current.iter().all(|version| version.starts_with(&format!("{}:", number - 1))));
        for served in of_type(&lines, "served") {
            let step: u64 =
                version(served).split(':').next().and_then(|step| step.parse().ok()).expect("a step");
            ages.insert(number - 1 - step);
            assert!(served["advantage"].is_null() && served["group"].is_null());
        }
        // Each player learns in half of the tasks.
        let learners: BTreeSet<_> = of_type(&lines, "sample")
            .map(|line| (line["episode"].to_string(), line["agent"].to_string()))
            .collect();
        let first = learners.iter().filter(|(_, agent)| agent == "\"first\"").count();
        assert_eq!((learners.len(), first), (4, 2), "{learners:?}");
    }
    assert_eq!(ages, [0, 1, 2].into());
    assert_eq!(
        kept(&calm.join("policies/shared")),
        ["step-000002", "step-000003", "step-000004", "step-000005"]
    );

    // Two versions play both ways, and are rated.
    let at = calm.display();
    let game = |first: u64, second: u64| {
        let policy = |role: &str, step: u64| format!("--policy {role}={at}/policies/shared/step-{step:06}");
        let [one, other] = [policy("first", first), policy("second", second)];
        let kuhn = kuhn();
        format!(
            "{kuhn} tasks --split test --count 30 | rollout --env-command '{kuhn}' {one} {other} --branches 1 --quiet > {dir}/{first}-{second}"
        )
    };
    must(&format!("{}; {}", game(2, 5), game(5, 2)));
    let rated = lines(&must(&format!("{} --json {dir}/2-5 {dir}/5-2", elo())));
    let games =
        |row: &Value| ["won", "drawn", "lost"].iter().filter_map(|key| row[*key].as_u64()).sum::<u64>();
    assert_eq!(rated.iter().map(games).collect::<Vec<_>>(), [60, 60], "{rated:?}");
    assert!(
        rated[0]["version"].as_str().is_some_and(|version| version.starts_with("2:"))
            && rated[0]["elo"] == 0.0
    );
    assert!(
        rated[0]["error"].is_null() && rated[1]["error"].as_f64().is_some_and(|error| error > 20.0),
        "{rated:?}"
    );
    let points =
        |row: &Value| row["won"].as_f64().expect("a count") + 0.5 * row["drawn"].as_f64().expect("a count");
    let expected = 400.0 * (points(&rated[1]) / points(&rated[0])).log10();
    assert!((rated[1]["elo"].as_f64().expect("a rating") - expected).abs() < 1e-6, "{rated:?}");

    // Stopped after two steps; then killed when the last version was published and its step not committed.
    play(&resumed, &["--steps", "2"]);
    play(&resumed, &["--steps", "5"]);
    std::fs::remove_file(resumed.join("steps/000005/done")).expect("removed");
    play(&resumed, &["--steps", "5"]);
    assert_eq!(differences(&calm, &resumed), [""; 0]);
    play(&resident, &["--steps", "5", "--resident"]);
    assert_eq!(differences(&calm, &resident), [""; 0]);
}

#[test]
fn each_role_meets_the_past_of_its_own_policy() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("run");
    let measure = format!("reward=python3 {} measure", root().join("examples/kuhn_poker.py").display());
    play(&at, &["--steps", "3", "--policies", "per-role", "--stage", &measure]);
    let stream = step(&at, 3);
    for kind in ["sample", "served"] {
        for agent in ["first", "second"] {
            let of_agent = of_type(&stream, kind).filter(|line| line["agent"] == agent);
            let policies: BTreeSet<&str> = of_agent.filter_map(|line| line["policy"].as_str()).collect();
            assert_eq!(policies, [agent].into(), "{kind}");
        }
    }
    // What the stage measured is in the stream and on the page.
    let measured: Vec<&Value> = of_type(&stream, "measure").collect();
    let lost = measured[0]["exploitability"].as_f64().expect("a number");
    assert!(measured.len() == 1 && (0.0..=2.0).contains(&lost), "{measured:?}");
    let table = must(&format!("report '{}' --csv - --quiet", at.display()));
    let rows: Vec<&str> = table.lines().filter(|line| line.contains("measure/exploitability")).collect();
    assert!(rows.len() == 3 && rows[2].contains(&lost.to_string()), "{rows:?}");
    let page = std::fs::read_to_string(at.join("report.html")).expect("the page");
    assert!(page.contains("measure-exploitability"), "the page has its chart");
}

#[test]
fn unplayable_games_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    must(&format!(
        "policy init {dir}/a --preset tiny --seed 3 --quiet; {} tasks --count 2 > {dir}/tasks",
        kuhn()
    ));
    let rollout = |policy: &str, flags: &str| {
        run(&format!("rollout --policy {policy} --env-command '{}' --quiet {flags} < {dir}/tasks", kuhn()))
    };
    // Version 0 is its own past.
    let (code, played, told) = rollout(&format!("{dir}/a"), "--opponents past:4 --branches 2");
    assert!(
        code == 0
            && of_type(&lines(&played), "served")
                .all(|line| line["policy_version"].as_str().is_some_and(|v| v.starts_with("0:"))),
        "{told}"
    );
    for (policy, flags, cause) in [
        (format!("{dir}/a/step-000000/."), "--opponents past:4 --joint aligned", "one candidate"),
        (format!("{dir}/plain"), "--opponents past:2", "no published versions"),
        (format!("{dir}/a"), "--opponents past", "past:K"),
    ] {
        must(&format!("[ -d {dir}/plain ] || cp -rL {dir}/a/step-000000 {dir}/plain"));
        let (code, _, told) = rollout(&policy, flags);
        assert!(code == 2 && told.contains(cause), "{code} {told}");
    }
    // Versions that were removed.
    must(&format!(
        "cd {dir}/a && cp -r step-000000 step-000003 && sed -i 's/\"0:/\"3:/; s/\"step\": *0/\"step\": 3/' step-000003/version.json && ln -sfn step-000003 current && rm -r step-000000"
    ));
    let (code, _, told) = rollout(&format!("{dir}/a"), "--opponents past:2");
    assert!(
        code == 65 && told.contains("version 2 is not there") && told.contains("update --keep 3"),
        "{told}"
    );
    let (code, _, told) = run(&format!("{} {dir}/tasks", elo()));
    assert!(code == 1 && told.starts_with("elo.py: "), "{told}");
}

/// A policy that plays every legal move alike, and one that always takes the first free cell. By exact fractions the best response
/// wins 191/192 a game from the first as x and 874/945 as o.
#[test]
fn exploitability_in_tic_tac_toe_is_exact() {
    let program = format!("python3 {}", root().join("examples/tic_tac_toe.py").display());
    let exploited = |cells: &str| {
        let answers = format!(
            r#"select(.type == "task") | {{type: "sample", task, agent: "x", turn: 0, completion_logprobs: [-3]}} +
            ([.spec.board | explode | to_entries[] | select(.value == 46).key] | {cells} |
            {{completion_ids: [.], completion: ([" a", " b", " c"][. % 3] + (. / 3 | floor | tostring))}})"#
        );
        let printed = must(&format!("{program} positions | jq -c '{answers}' | {program} exploitability"));
        let printed: Value = serde_json::from_str(&printed).expect("JSON");
        ["as_x", "as_o", "exploitability"].map(|name| printed[name].as_f64().expect("a number"))
    };
    let (as_x, as_o) = (191.0 / 192.0, 874.0 / 945.0);
    for (got, expected) in exploited(".[]").iter().zip([as_x, as_o, (as_x + as_o) / 2.0]) {
        assert!((got - expected).abs() < 1e-12, "{got} is not {expected}");
    }
    assert_eq!(exploited("first"), [1.0, 1.0, 1.0]);
    // d0 and beyond are no cells: an illegal answer loses.
    assert_eq!(exploited("9 + first"), [1.0, 1.0, 1.0]);
}
