//! Tasks played with and without an agent's words: how often it helps and how often it hurts.

use serde_json::{Value, json};
use troupe_tests::program::lines;
use troupe_tests::{must, run};

fn of_type(text: &str, kind: &str) -> Vec<Value> {
    lines(text).into_iter().filter(|line| line["type"] == kind).collect()
}

#[test]
fn an_absent_agent_says_one_text_and_all_else_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    let play = |flags: &str| {
        must(&format!(
            "envs tasks plan-path --count 8 --seed 5 | rollout --policy {dir}/one --turns 2 --max-tokens 8 --seed 7 --quiet {flags}"
        ))
    };
    must(&format!("policy init {dir}/one --preset tiny --seed 3 2>&1"));
    let (with, without) = (play("--branches 2"), play("--branches 2 --absent tool"));
    let said = of_type(&without, "served");
    assert!(said.len() >= 8 && of_type(&with, "served").is_empty());
    for line in &said {
        let shown =
            ["agent", "policy", "model", "completion", "completion_tokens"].map(|name| line[name].clone());
        assert_eq!(shown, [json!("tool"), json!("absent"), json!("absent"), json!(""), json!(0)]);
    }
    // Nothing is trained on it, and the others play the same tasks.
    let samples = of_type(&without, "sample");
    assert!(samples.iter().all(|sample| sample["agent"] == "planner") && samples.len() >= 16);
    let episodes = |text: &str| -> Vec<Value> {
        of_type(text, "episode").iter().map(|line| json!([line["task"], line["episode"]])).collect()
    };
    assert_eq!(episodes(&with), episodes(&without));
    // The others see its text.
    let text = play("--branches 2 --absent 'tool=b2 b3'");
    assert!(of_type(&text, "served").iter().all(|line| line["completion"] == "b2 b3"));
    let prompt = |text: &str| of_type(text, "sample")[0]["prompt"].clone();
    assert_ne!(prompt(&text), prompt(&without));
    // A policy of its own is not even opened.
    let again = play("--branches 2 --policy tool=nowhere --absent tool");
    assert!(of_type(&again, "served") == said && of_type(&again, "sample") == samples);

    for (flags, cause) in [
        ("--absent nobody", "--absent nobody: the workflow has no agent named nobody"),
        ("--absent tool --absent tool=x", "--absent tool=x: the agent is named twice"),
        ("--absent =x", "--absent =x: no agent is named"),
        ("--absent tool --joint aligned", "--joint: a server's agent has one candidate, like an absent one"),
    ] {
        let (code, _, told) =
            run(&format!("envs tasks plan-path --count 1 | rollout --policy {dir}/one {flags}"));
        assert!(code == 2 && told.contains(cause) && told.contains("hint: "), "{flags}: {told}");
    }
}

/// Of ten tasks the team solves 1 to 6, and without a role 5 to 7.
#[test]
fn help_and_harm_of_a_role_are_counted_task_by_task() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, solved: std::ops::RangeInclusive<u32>| {
        let line = |task: u32| {
            let success = solved.contains(&task);
            json!({"type": "episode", "v": 1, "env": "toy", "task": format!("t{task}"), "episode": format!("0.{task}"),
                   "success": success, "turns": 1, "reward": 0.0, "stop": if success { "success" } else { "turns" }})
        };
        let text: String = (1..=10).map(|task| format!("{}\n", line(task))).collect();
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (with, without) = (write("with", 1..=6), write("without", 5..=7));
    let found = |flags: &str| {
        must(&format!("report evaluate {with} --against {without} --allow-incomplete --quiet {flags}"))
    };
    let line: Value = serde_json::from_str(&found("--format json")).expect("JSON");
    let against = &line["against"];
    assert_eq!((&against["helped"]["value"], &against["hurt"]["value"]), (&json!(0.4), &json!(0.1)));
    // Wilson's interval of 4 in 10.
    let [low, high] = [0, 1].map(|end| against["helped"]["interval"][end].as_f64().expect("a number"));
    assert!((low - 0.1682).abs() < 5e-5 && (high - 0.6873).abs() < 5e-5, "{low} {high}");
    let table = found("");
    let wanted = format!(
        "solves where {without} fails 40.0 % (95 % interval 16.8 to 68.7 %), fails where it solves 10.0 % (95 % interval 1.8 to 40.4 %)"
    );
    assert!(table.contains(&wanted), "{table}");
}
