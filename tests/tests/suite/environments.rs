//! Environments in other languages: the contract, the lines in docs/stream-format.md, and a training step. Environments of
//! other packages are in tests/python.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use troupe_tests::program::lines;
use troupe_tests::{must, pipeline, root, run};

#[test]
fn the_lines_that_the_record_shows_are_the_lines_that_are_spoken() {
    let record =
        std::fs::read_to_string(root().join("docs/stream-format.md")).expect("docs/stream-format.md");
    let blocks = record.split("```step\n").skip(1).map(|rest| rest.split("```").next().expect("a block"));
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    let printed =
        |mark: &str| -> Vec<&str> { lines.iter().filter_map(|line| line.strip_prefix(mark)).collect() };
    let (requests, answers) = (printed("→ "), printed("← "));
    assert!(requests.len() >= 5 && requests.len() == answers.len() && lines.len() == 2 * answers.len());
    let mut child = Command::new("python3")
        .arg(root().join("examples/guess_number.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut input = child.stdin.take().expect("its stdin");
    input.write_all((requests.join("\n") + "\n").as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), answers);
}

/// The contract, and one step of AT-GRPO with one policy for each of `agents`; the samples.
fn keeps_the_contract_and_trains(command: &str, agents: [&str; 2], episodes: u32) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |text: &str| {
        text.replace("D/", &format!("{}/", folder.path().display())).replace("ENVIRONMENT", command)
    };
    let table = must(&at(&format!(
        "(ENVIRONMENT tasks --count 12; ENVIRONMENT tasks --split test --count 6) | \
         envs check --quiet --tasks 1 --episodes {episodes} --env-command 'ENVIRONMENT'"
    )));
    // Idling that pays is a note, and no rule is broken.
    assert!(table.lines().count() >= 18 && !table.contains("BROKEN"), "{table}");
    let [first, second] = agents;
    let owned = format!("--policy {first}=D/first --policy {second}=D/second");
    must(&at("policy init D/first --preset tiny --seed 1; policy init D/second --preset tiny --seed 2"));
    must(&at(&format!(
        "ENVIRONMENT tasks --count 4 --seed 7 | \
         rollout --env-command 'ENVIRONMENT' {owned} --branches 3 --turns 2 --max-tokens 4 --seed 7 --quiet | \
         group --quiet | advantage --quiet | tee D/samples.jsonl | update {owned} --quiet > D/metrics.jsonl"
    )));
    let lines = lines(&must(&at("cat D/samples.jsonl")));
    for (policy, agent) in [("first", first), ("second", second)] {
        // The policy of an agent that never acted (its partner forfeited every game) is not trained.
        let acted = lines.iter().any(|line| line["type"] == "sample" && line["agent"] == agent);
        let version = if acted { "step-000001" } else { "step-000000" };
        assert_eq!(must(&at(&format!("readlink D/{policy}/current"))).trim(), version, "{agent}");
    }
    lines
}

#[test]
fn an_environment_in_python_keeps_the_contract_and_trains() {
    let command = format!("python3 {}", root().join("examples/guess_number.py").display());
    let lines = keeps_the_contract_and_trains(&command, ["scout", "guesser"], 20);
    let samples: Vec<&Value> = lines.iter().filter(|line| line["type"] == "sample").collect();
    // 4 tasks, 2 turns, 2 agents, 3 candidates: the number is not found by chance in this few.
    assert_eq!(samples.len(), 4 * 2 * 2 * 3);
    assert!(samples.iter().all(|sample| sample["env"] == "guess-number" && sample["group_size"] == 3));
    let agents: std::collections::BTreeSet<&str> =
        samples.iter().filter_map(|sample| sample["agent"].as_str()).collect();
    assert_eq!(agents.into_iter().collect::<Vec<_>>(), ["guesser", "scout"]);
}

#[test]
fn a_new_environment_keeps_the_contract_and_trains() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display();
    must(&format!("envs new -q my-game --dir {at}"));
    keeps_the_contract_and_trains(&format!("python3 {at}/my_game.py"), ["teller", "doubler"], 20);
    for (wrong, cause) in [
        ("my-game", "is there already"),
        ("My game", "is no name of an environment"),
        ("sudoku", "ships with Troupe"),
        ("json", "json.py would stand in for the module json"),
        ("troupe-rl", "troupe_rl.py would stand in for the module troupe_rl"),
        ("other --dir nowhere", "nowhere: no such directory"),
    ] {
        let dir = if wrong.contains("--dir") { String::new() } else { format!("--dir {at}") };
        let name = if wrong == "My game" { "'My game'" } else { wrong };
        let (code, _, stderr) = run(&format!("envs new {name} {dir}"));
        assert!(
            code == 2 && stderr.starts_with("envs: ") && stderr.contains(cause),
            "{wrong}: {code} {stderr}"
        );
    }
}

/// The environment that docs/environments.md shows.
#[test]
fn the_documented_environment_keeps_the_contract() {
    let text = std::fs::read_to_string(root().join("docs/environments.md")).expect("a document");
    let shown = text.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("echo.py"), shown).expect("written");
    let examples = root().join("examples").display().to_string();
    let told = must(&format!(
        "cd {} && export PYTHONPATH={examples} && python3 echo.py check && python3 -m troupe_rl.check --tasks 1 echo.py",
        folder.path().display()
    ));
    assert!(
        told.matches("ok     every text has an outcome").count() == 2 && !told.contains("BROKEN"),
        "{told}"
    );
    let (code, _, said) = run(&format!("PYTHONPATH={examples} python3 -m troupe_rl.check nothing.py"));
    assert!(code == 2 && said.contains("nothing.py: no such file\nhint: "), "{code} {said}");
}

/// `--timeout` ends every question, and nothing that the environment started is left.
#[test]
fn a_check_ends_whatever_the_environment_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display();
    let program = "import os, sys, time\nfrom troupe_rl import Environment, Start, Step\nclass E(Environment):\n    name = 'e'\n    \
                   def setup(self):\n        SETUP\n    \
                   def tasks(self, split, seed):\n        while True:\n            seed += 2\n            yield (str(seed + (split == 'test')),) * 2\n    \
                   def reset(self, spec):\n        return Start(spec, {'p': 'x'}, ['p'], turns=1)\n    \
                   def step(self, state, agent, text):\n        STEP\n        return Step(state, {}, terminated=True)\nE().main()\n";
    let (hangs, forks) = ("time.sleep(1e6)", "os.fork() or (os.setsid(), time.sleep(1e6))");
    let endless = "while True: [os.write(f, b'z' * 65536) for f in range(3, 9) if os.path.exists(f'/proc/self/fd/{f}') and \
                   os.readlink(f'/proc/self/fd/{f}').startswith('pipe') and __import__('fcntl').fcntl(f, 3) & 3]";
    for (name, setup, step, code, told) in [
        ("hangs", "pass", hangs, 1, "no line within 1 s"),
        ("closes", "pass", "os.closerange(0, 64); time.sleep(1e6)", 1, "no line within 1 s"),
        ("endless", "pass", endless, 1, "a line is longer than 16 MiB"),
        ("setup", hangs, "pass", 1, "no line within 1 s"),
        ("forks", "pass", forks, 0, "ok"),
        ("forks-and-hangs", &format!("{forks}; {hangs}"), "pass", 1, "no line within 1 s"),
    ] {
        let file = folder.path().join(format!("{name}.py"));
        std::fs::write(&file, program.replace("SETUP", setup).replace("STEP", step)).expect("written");
        let check = format!("timeout -k 1 60 python3 {at}/{name}.py check --tasks 1 --timeout 1");
        let (found, out, said) = run(&format!("PYTHONPATH={} {check}", root().join("examples").display()));
        assert!(found == code && format!("{out}{said}").contains(told), "{name}: {found} {out} {said}");
        let (_, left, _) = run(&format!("pgrep -f '^python3 {at}/{name}.py'"));
        assert_eq!(left, "", "{name}");
    }
}

/// Pay by agent: a name that is no agent's is refused, and pay that no sample gets is told once.
#[test]
fn pay_by_agent_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display();
    let program = "import sys\nfrom troupe_rl import Environment, Start, Step\nclass Haggle(Environment):\n    name = 'haggle'\n    \
                   def tasks(self, split, seed):\n        while True:\n            seed += 2\n            yield str(seed + (split == 'test')), seed\n    \
                   def reset(self, spec):\n        return Start(spec, {'buyer': 'bid', 'seller': 'ask'}, ['buyer', 'seller'], turns=1)\n    \
                   def step(self, state, agent, text):\n        \
                   return Step(state, {'buyer': 'bid', 'seller': 'ask'}, local={'buyer': 0.25, PAID: 0.75})\nHaggle().main()\n";
    for (name, paid) in [("typo", "agent: 0.5, 'seler'"), ("both", "'seller'")] {
        std::fs::write(folder.path().join(format!("{name}.py")), program.replace("PAID", paid))
            .expect("written");
    }
    let examples = root().join("examples").display().to_string();
    must(&format!("policy init {at}/p --preset tiny --seed 1"));
    let play = |name: &str, more: &str| {
        let command = format!("python3 {at}/{name}.py");
        run(&format!(
            "export PYTHONPATH={examples}; {command} tasks --count 2 | \
             rollout --env-command '{command}' --policy {at}/p --branches 2 --max-tokens 2 {more}"
        ))
    };
    let cause = "`rewards.local` names seler, who is no agent; the agents are: buyer, seller";
    let (code, _, said) = play("typo", "--quiet");
    assert!(code == 1 && said.contains(cause), "{code} {said}");
    let unpaid = "rollout: warning: pay in `rewards.local` for agents that do not act counts in parallel sampling only";
    for (more, times) in [("", 1), ("--sampling parallel", 0)] {
        let (code, _, said) = play("both", more);
        assert_eq!((code, said.matches(unpaid).count()), (0, times), "{more}: {said}");
    }
    let (_, told, _) = run(&format!(
        "export PYTHONPATH={examples}; python3 {at}/typo.py tasks --count 1 | \
         envs check --quiet --env-command 'python3 {at}/typo.py'"
    ));
    assert!(told.contains("BROKEN") && told.contains(cause), "{told}");
    // A file without a shebang, in the place of a command.
    let (code, _, said) = run(&format!(
        "cd {at}; PYTHONPATH={examples} python3 both.py tasks | rollout --quiet --env-command both.py --policy p"
    ));
    assert!(code == 2 && said.contains("hint: did you mean 'python3 both.py'?"), "{code} {said}");
}

#[test]
fn a_loop_of_function_calls_keeps_the_contract_and_trains() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, dir) =
        (root().join("examples/tool_loop.py").display().to_string(), folder.path().display());
    for command in [format!("python3 {program}"), format!("python3 {program} --small")] {
        let table = must(&format!(
            "({command} tasks --count 12; {command} tasks --split test --count 6) | \
             envs check --quiet --tasks 1 --episodes 20 --env-command '{command}'"
        ));
        assert!(table.lines().count() >= 18 && !table.contains("BROKEN"), "{table}");
    }
    // A conversation of calls and results, which only templates with the role `tool` can show.
    let shown = must(&format!(
        "python3 {program} demo --count 1 --share 1 | jq -c 'select(.turn == 2).prompt | map(.role)'"
    ));
    assert_eq!(shown.trim(), r#"["system","user","assistant","tool","assistant","tool"]"#);
    let command = format!("python3 {program} --as-user");
    must(&format!(
        "cd {dir}; policy init p --preset tiny --seed 1; {command} tasks --count 3 | \
         rollout --env-command '{command}' --policy p --branches 3 --turns 3 --max-tokens 6 --seed 7 --quiet | \
         group --quiet | advantage --quiet | tee samples.jsonl | update --policy p --quiet > metrics.jsonl"
    ));
    // Nothing that a random policy says is a call: it is told so, and goes on.
    let last = must(&format!(
        "jq -c 'select(.type == \"sample\" and .turn == 2 and .branch == 0) | [.prompt[-1].content, (.prompt | length), .group_size]' \
         {dir}/samples.jsonl | sort -u"
    ));
    let told = r#"["<tool_response>{\"error\": \"neither a call nor a number\"}</tool_response>",6,3]"#;
    assert!(last.lines().any(|line| line == told), "{last}");
}

/// `pipeline.sh` on an external environment: tasks, agents, turn limit, warm-up on demonstrations, evaluation, training; the
/// same command again has nothing left to do.
#[test]
fn the_whole_loop_runs_on_an_external_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let command = format!("python3 {}", root().join("examples/guess_number.py").display());
    let small = ["--warmup", "10", "--steps", "1", "--tasks", "3", "--branches", "2", "--eval-every", "1"];
    let arguments = [&["--env-command", &command][..], &small].concat();
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("warm-up: 10 optimizer steps on imperfect demonstrations"), "{printed}");
    assert!(printed.contains("step 1: success on 300 test tasks"), "{printed}");

    let read = |path: &str| lines(&std::fs::read_to_string(run.join(path)).expect("a stream"));
    let samples = read("steps/000001/samples.jsonl");
    let episodes: Vec<&Value> = samples.iter().filter(|line| line["type"] == "episode").collect();
    assert_eq!(episodes.len(), 3);
    // The program's turn limit is 6; pipeline.sh's default of 4 is for built-in environments.
    assert!(episodes.iter().all(|episode| episode["turns"].as_u64() <= Some(6)));
    assert!(episodes.iter().any(|episode| episode["turns"].as_u64() > Some(4)), "{episodes:?}");
    let of = |agent: &str| samples.iter().any(|line| line["type"] == "sample" && line["agent"] == agent);
    assert!(of("scout") && of("guesser"));
    let tested = read("eval/step-000000.jsonl");
    let split = |line: &&Value| line["task"].as_str().is_some_and(|task| task.contains("/test/"));
    assert_eq!(tested.iter().filter(|line| line["type"] == "episode").filter(split).count(), 300);

    let again = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(again.status.success() && !printed.contains("success in training"), "{printed}");
    let other =
        pipeline(&run, &["--env-command", &format!("{command} ")]).output().expect("pipeline.sh runs");
    assert_eq!(other.status.code(), Some(2));
}

/// A program without demonstrations can be trained without a warm-up; with one it fails.
#[test]
fn demonstrations_are_asked_for_with_a_warm_up_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    let python = root().join("examples/guess_number.py");
    let text = format!("[ \"$1\" != demo ] || exit 3\nexec python3 {} \"$@\"\n", python.display());
    std::fs::write(&program, text).expect("written");
    let command = format!("sh {}", program.display());
    let small = ["--steps", "1", "--tasks", "2", "--branches", "2", "--turns", "1", "--eval-every", "0"];
    let run = folder.path().join("without");
    let arguments = [&["--env-command", &command, "--policies", "per-role"][..], &small].concat();
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for role in ["scout", "guesser"] {
        let newest = std::fs::read_link(run.join("policies").join(role).join("current")).expect("a link");
        assert_eq!(newest.to_str(), Some("step-000001"), "{role}");
    }
    let run = folder.path().join("with");
    let arguments = [&["--env-command", &command, "--warmup", "2"][..], &small].concat();
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("demo failed with exit code 3"), "{printed}");
}

/// The default limit lets an answer be as long as the warm-up teaches.
#[test]
fn the_token_limit_has_room_for_the_demonstrations() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, run) = (folder.path().join("program"), folder.path().join("run"));
    let python = root().join("examples/guess_number.py");
    let longer = r#"s/"completion": *"[^"]*"/"completion":"offer 123"/"#;
    let text = format!(
        "[ \"$1\" = demo ] || exec python3 {0} \"$@\"\npython3 {0} \"$@\" | sed '{longer}'\n",
        python.display()
    );
    std::fs::write(&program, text).expect("written");
    let command = format!("sh {}", program.display());
    let small = ["--warmup", "1", "--flags", "demo=--count 1", "--steps", "0", "--eval-every", "0"];
    let arguments = [&["--env-command", &command][..], &small].concat();
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let values = std::fs::read_to_string(run.join("run.json")).expect("run.json");
    let values: Value = serde_json::from_str(&values).expect("JSON");
    assert_eq!(values["max_tokens"], "10", "nine characters and the stop token");
}
