//! The examples that stand in a run's pipe: a judge between `rollout` and `group`, and a rollout by an OpenAI-compatible server.
//! The others are in `environments.rs`.

use std::path::Path;

use serde_json::{Value, json};
use troupe_tests::program::lines;
use troupe_tests::server::{Behavior, Reply, StandInServer, closed_port};
use troupe_tests::{must, pipeline, root, run};

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

/// A rollout's lines in `DIR/played`, by a new policy `DIR/policy`.
fn played() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    must(&format!(
        "policy init {dir}/policy --preset tiny --seed 3 2>&1; envs tasks plan-path --count 3 --seed 5 > {dir}/tasks; \
         rollout --policy {dir}/policy --branches 4 --turns 2 --max-tokens 8 --seed 7 --quiet < {dir}/tasks > {dir}/played"
    ));
    (folder, dir)
}

/// What the environment paid, and what the judge should have added.
fn is_judged(sample: &Value, score: f64, weight: f64) {
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{sample}"));
    let paid = number(&sample["rewards"]["team"]) + number(&sample["rewards"]["local"]);
    assert!((number(&sample["reward"]) - paid - weight * score).abs() < 1e-9, "{sample}");
    assert!((number(&sample["reward_components"]["judge"]) - score).abs() < 1e-9, "{sample}");
}

#[test]
fn the_judge_has_a_say_in_the_rewards_of_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("run");
    let judge = format!("reward=JUDGE_WEIGHT=0.5 python3 {}", root().join("examples/judge.py").display());
    let flags = ["--stage", &judge, "--warmup", "30", "--steps", "1", "--tasks", "2", "--eval-every", "0"];
    let output = pipeline(&at, &flags).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(at.join("steps/000001/samples.jsonl")).expect("samples");
    let lines = lines(&text);
    let samples = of_type(&lines, "sample");
    assert!(samples.len() >= 32, "{}", samples.len());
    for sample in &samples {
        let tokens = sample["completion_ids"].as_array().expect("tokens").len();
        is_judged(sample, 1.0 - (tokens - 1) as f64 / 100.0, 0.5);
    }
    // It also decides the training: candidates that otherwise earn the same differ in length.
    let updated = must(&format!("head -n 1 {}/steps/000001/metrics.jsonl", at.display()));
    let metrics: Value = serde_json::from_str(&updated).expect("metrics");
    let (flat, groups) = (metrics["flat_groups"].as_u64(), metrics["groups"].as_u64());
    assert!(flat < groups && flat.is_some(), "{metrics}");
}

#[test]
fn a_served_judge_rates_or_leaves_a_candidate_unscored() {
    let (_folder, dir) = played();
    let judge = |url: &str, flags: &str| {
        run(&format!(
            "OPENAI_API_KEY=secret JUDGE_MODEL=large JUDGE_URL={url} {flags} python3 examples/judge.py < {dir}/played"
        ))
    };
    let server = StandInServer::start(&["large"], |_, _| Reply::Text("I say 7 of 10"));
    let (code, judged, said) = judge(&server.url, "");
    assert_eq!(code, 0, "{said}");
    let (before, after) = (must(&format!("cat {dir}/played")), lines(&judged));
    for sample in of_type(&after, "sample") {
        is_judged(sample, 0.7, 0.1);
    }
    // Whatever is no sample passes byte for byte, and a sample keeps all that the judge does not write.
    for (before, after) in before.lines().zip(judged.lines()) {
        let [mut old, mut new] =
            [before, after].map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        assert!(old["type"] == "sample" || before == after, "{after}");
        for line in [&mut old, &mut new].into_iter().filter(|line| line["type"] == "sample") {
            line["reward"] = Value::Null;
            line["reward_components"] = Value::Null;
        }
        assert_eq!(old, new);
    }
    let asked = server.asked("/v1/chat/completions");
    assert_eq!((asked.len(), asked[0].key.as_str()), (of_type(&after, "sample").len(), "Bearer secret"));
    let question = asked[0].body["messages"][0]["content"].as_str().expect("a question");
    let first = of_type(&after, "sample")[0];
    assert!(question.contains(first["prompt"][0]["content"].as_str().expect("a prompt")), "{question}");
    assert_eq!(asked[0].body["model"], json!("large"));

    // More than ten is ten. No rating is null, and group is asked what null means.
    let (_, judged, _) = judge(&StandInServer::start(&["large"], |_, _| Reply::Text("11")).url, "");
    of_type(&lines(&judged), "sample").into_iter().for_each(|sample| is_judged(sample, 1.0, 0.1));
    let (code, judged, said) =
        judge(&StandInServer::start(&["large"], |_, _| Reply::Text("no idea")).url, "");
    assert_eq!(code, 0, "{said}");
    assert!(of_type(&lines(&judged), "sample").iter().all(|sample| sample["reward"].is_null()));
    std::fs::write(Path::new(&dir).join("unscored"), judged).expect("written");
    let (code, _, said) = run(&format!("group < {dir}/unscored"));
    assert!(code == 65 && said.contains("--unscored drop-group"), "{said}");

    // An error is one line and a hint, without an `end` line, so group refuses the stream.
    let nobody = format!("http://127.0.0.1:{}/v1", closed_port());
    let refusing = StandInServer::start(&["large"], |_, _| Reply::Status(401, "", "bad key"));
    let mad = StandInServer::start(&["large"], |_, _| Reply::Raw("<html>"));
    for (url, flags, code, cause) in [
        (nobody.as_str(), "", 69, "judge.py: http://127.0.0.1:"),
        (&refusing.url, "", 69, "HTTPError: HTTP Error 401"),
        (&mad.url, "", 69, "/v1: JSONDecodeError: "),
        (&server.url, "JUDGE_WEIGHT=much", 2, "judge.py: JUDGE_WEIGHT: could not convert"),
    ] {
        let (found, printed, said) = judge(url, flags);
        assert_eq!((found, said.lines().count()), (code, 2), "{said}");
        assert!(said.contains(cause) && said.contains("\nhint: "), "{said}");
        assert!(!printed.contains("\"type\":\"end\""), "{printed}");
    }
    // If the reader is gone it exits with success, like every stage: `group` has already reported the error.
    let (_, ended, said) = run(&format!(
        "JUDGE_URL={} python3 examples/judge.py < {dir}/played | false; echo ${{PIPESTATUS[0]}}",
        server.url
    ));
    assert_eq!((ended.as_str(), said.as_str()), ("0\n", ""));
    let (code, _, said) = run("echo '{\"type\":' | python3 examples/judge.py");
    assert!(code == 65 && said.starts_with("judge.py: stdin:1: ") && said.lines().count() == 2, "{said}");
}

/// Says what brings a planner on, and what a tool may propose, in every fourth case something else.
fn player(_: usize, body: &Value) -> Reply {
    let prompt = body["messages"][0]["content"].as_str().unwrap_or_default();
    match prompt.len() % 4 {
        0 => Reply::Text("nothing of use"),
        1 => Reply::Text("R D"),
        _ => Reply::Text("D R D"),
    }
}

/// The program of the example writes what `rollout` writes where the same server plays the whole team.
#[test]
fn a_rollout_by_a_server_is_that_of_the_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let server = StandInServer::start(&["large"], player as Behavior);
    must(&format!("envs tasks plan-path --count 12 --seed 5 > {dir}/tasks"));
    let example = format!(
        "OPENAI_API_KEY=secret python3 examples/rollout_openai.py {} large 'envs step plan-path' < {dir}/tasks",
        server.url
    );
    must(&format!("{example} > {dir}/example"));
    must(&format!(
        "rollout --policy {} --branches 1 --turns 4 --quiet < {dir}/tasks > {dir}/program",
        server.url
    ));
    let [example, program] = ["example", "program"].map(|name| lines(&must(&format!("cat {dir}/{name}"))));
    assert!(of_type(&example, "served").len() >= 24);
    for kind in ["served", "episode"] {
        let (ours, theirs) = (of_type(&example, kind), of_type(&program, kind));
        assert_eq!(ours.len(), theirs.len(), "{kind}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let mut ours = (*ours).clone();
            if kind == "served" {
                ours["policy"] = theirs["policy"].clone(); // a label
            }
            assert_eq!(&ours, *theirs);
        }
    }
    assert!(
        of_type(&example, "episode").iter().any(|line| line["reward"].as_f64() > Some(0.0)),
        "nothing was earned"
    );
    let figures = |name: &str| must(&format!("report evaluate --format line --quiet {dir}/{name}"));
    assert_eq!(figures("example"), figures("program"));
    // The stages after it let its lines pass, and nothing is trained on them.
    let passed = must(&format!("group --quiet < {dir}/example | advantage --quiet | tee {dir}/passed"));
    let kept = |text: &str| {
        text.lines().filter(|line| !line.contains("\"end\"")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(kept(&passed), kept(&must(&format!("cat {dir}/example"))));
    must(&format!("policy init {dir}/policy --preset tiny --seed 1 2>&1"));
    let (code, _, said) = run(&format!("update --policy {dir}/policy --quiet < {dir}/passed"));
    assert!(code == 65 && said.starts_with("update: the stream holds no samples\nhint: "), "{said}");
    let asked = server.asked("/v1/chat/completions");
    assert!(asked.iter().any(|asked| asked.key == "Bearer secret"));
}

#[test]
fn what_stops_a_rollout_by_a_server_is_said() {
    let nobody = format!("http://127.0.0.1:{}/v1", closed_port());
    let busy = StandInServer::start(&["large"], |_, _| Reply::Status(500, "", "busy"));
    let mad = StandInServer::start(&["large"], |_, _| Reply::Raw("{}"));
    let fine = StandInServer::start(&["large"], player as Behavior);
    for (arguments, code, cause) in [
        (format!("{nobody} large 'envs step plan-path'"), 69, "rollout_openai.py: http://127.0.0.1:"),
        (format!("{} large 'envs step plan-path'", busy.url), 69, "HTTPError: HTTP Error 500"),
        (format!("{} large 'envs step plan-path'", mad.url), 69, "KeyError: 'choices'"),
        (format!("{} large true", fine.url), 1, "rollout_openai.py: `true` did not answer: "),
        (format!("{} large 'envs step sudoku'", fine.url), 1, "rollout_openai.py: `envs step sudoku`: "),
        (fine.url.clone(), 2, "rollout_openai.py: three arguments are needed, not 1"),
    ] {
        let (found, printed, said) =
            run(&format!("envs tasks plan-path --count 1 | python3 examples/rollout_openai.py {arguments}"));
        assert_eq!(found, code, "{said}");
        let ours: Vec<&str> =
            said.lines().skip_while(|line| !line.starts_with("rollout_openai.py: ")).collect();
        assert!(ours.len() == 2 && ours[0].contains(cause) && ours[1].starts_with("hint: "), "{said}");
        assert!(!said.contains("Traceback") && !printed.contains("\"type\": \"end\""), "{said}");
    }
}

/// `| head` ends the examples that print without a traceback. Each prints more than a pipe holds.
#[test]
fn a_closed_pipe_ends_what_prints_quietly() {
    for command in [
        "kuhn_poker.py tasks --count 2000",
        "kuhn_poker.py demo --count 400",
        "tic_tac_toe.py positions",
        "toy_credit.py lines stag parallel 2000",
    ] {
        let path = root().join("examples").display().to_string();
        let found =
            must(&format!("set +o pipefail; {{ python3 {path}/{command} | head -1 >/dev/null; }} 2>&1"));
        assert_eq!(found, "", "{command}");
    }
}
