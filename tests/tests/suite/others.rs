//! Adapters to other people's environments (`examples/from_*.py`), against the packages themselves: the contract, and a training step.
//! `TROUPE_TEST_PYTHON` names an interpreter that has them; each test is skipped without its package. verifiers and OpenEnv ask for
//! different versions of a third package: `TROUPE_TEST_PYTHON_OPENENV`, and the like, names one for a package alone.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};
use troupe_tests::program::lines;
use troupe_tests::{must, root, run, shell, skip};

/// The interpreter for the adapter of a package.
fn python(package: &str) -> String {
    let top = package.split('.').next().unwrap_or(package);
    let own = format!("TROUPE_TEST_PYTHON_{}", top.to_uppercase());
    let named = std::env::var(own).or_else(|_| std::env::var("TROUPE_TEST_PYTHON"));
    named.unwrap_or_else(|_| "python3".to_owned())
}

/// The reason why the tests' interpreter cannot import a package; `None` if it can.
fn missing(package: &str) -> Option<String> {
    let python = python(package);
    let (code, _, printed) = run(&format!("'{python}' -W ignore -c 'import {package}'"));
    let last = printed.lines().last().unwrap_or_default();
    (code != 0).then(|| {
        format!(
            "{python} cannot import {package} ({last}); set TROUPE_TEST_PYTHON to an interpreter that can"
        )
    })
}

fn adapter(package: &str, arguments: &str) -> String {
    let program = root().join("examples").join(format!("from_{package}.py"));
    format!("{} -W ignore {} {arguments}", python(package), program.display())
}

/// `envs check` of an adapter: the rules that it kept.
fn keeps_the_contract(command: &str) -> String {
    keeps_the_contract_over(command, 3)
}

/// With this number of train tasks.
fn keeps_the_contract_over(command: &str, tasks: usize) -> String {
    let table = must(&format!(
        "({command} tasks --count {tasks}; {command} tasks --split test --count {tasks}) | \
         envs check --quiet --tasks 1 --episodes 3 --env-command \"{command}\""
    ));
    assert!(table.lines().count() >= 12 && !table.contains("BROKEN"), "{command}: {table}");
    table
}

/// A training step with one policy for all; the samples.
fn trains(command: &str, flags: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display();
    must(&format!(
        "policy init {at}/policy --preset tiny --seed 1; {command} tasks --count 2 --seed 7 | \
         rollout --env-command \"{command}\" --policy {at}/policy --branches 3 --max-tokens 4 --seed 7 --quiet {flags} | \
         group --quiet | advantage --quiet | tee {at}/samples | update --policy {at}/policy --quiet > {at}/metrics"
    ));
    assert_eq!(must(&format!("readlink {at}/policy/current")).trim(), "step-000001", "{command}");
    lines(&std::fs::read_to_string(folder.path().join("samples")).expect("samples"))
        .into_iter()
        .filter(|line| line["type"] == "sample")
        .collect()
}

/// The answers to these texts, each said by the next agent that acts, from the first task on.
fn plays(command: &str, texts: &[&str]) -> Vec<Value> {
    let task = lines(&must(&format!("{command} tasks --count 1"))).remove(0);
    let mut program = shell(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash runs");
    let mut input = program.stdin.take().expect("its stdin");
    let mut output = BufReader::new(program.stdout.take().expect("its stdout")).lines();
    let mut ask = |request: &Value| -> Value {
        writeln!(input, "{request}").expect("it reads");
        let line = output.next().expect("it answers").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    let mut answers = vec![ask(&json!({"task": task}))];
    let agents: Vec<String> = serde_json::from_value(answers[0]["agents"].clone()).expect("agents");
    let mut next = agents.iter().cycle();
    for text in texts {
        let last = answers.last().expect("an answer");
        assert!(last["observations"].is_object(), "{last}");
        let acts = |agent: &&String| !last["observations"][agent.as_str()].is_null();
        let agent = next.by_ref().take(agents.len()).find(acts).expect("one acts");
        let request = json!({"state": last["state"], "agent": agent, "action": text});
        answers.push(ask(&request));
    }
    drop(input);
    assert!(program.wait().expect("it ends").success());
    answers
}

#[test]
fn families_of_reasoning_gym() {
    if let Some(why) = missing("reasoning_gym") {
        skip!("{why}");
    }
    for (family, agents) in [("chain_sum", "1"), ("prime_factorization", "2")] {
        let command = adapter("reasoning_gym", &format!("{family} --agents {agents}"));
        let table = keeps_the_contract(&command);
        assert!(table.contains("ok     the oracle solves every task"), "{table}");
    }
    let command = adapter("reasoning_gym", "spell_backward");
    let samples = trains(&command, "");
    assert!(samples.iter().all(|sample| sample["env"] == "reasoning-gym-spell_backward"));
    // The right answer, plain and marked, and half of the right word.
    let demonstrated = lines(&must(&format!("{command} demo --count 1 --share 1"))).remove(0);
    let answer = demonstrated["completion"].as_str().expect("an answer");
    for (text, earned) in
        [(answer.to_owned(), 1.0), (format!("It is <answer> {answer} </answer>."), 1.0), (String::new(), 0.0)]
    {
        let answers = plays(&adapter("reasoning_gym", "spell_backward"), &[&text]);
        assert_eq!(
            (&answers[1]["rewards"]["team"], &answers[1]["success"]),
            (&json!(earned), &json!(earned == 1.0)),
            "{text}: {answers:?}"
        );
    }
    let (code, _, said) = run(&adapter("reasoning_gym", "no_such_family"));
    assert!(
        code == 2 && said.starts_with("from_reasoning_gym.py: no_such_family") && said.contains("\nhint: "),
        "{said}"
    );
}

#[test]
fn games_of_textarena() {
    if let Some(why) = missing("textarena") {
        skip!("{why}");
    }
    // Two who take turns, the second of whom begins; one against random moves; one alone.
    for game in [
        "TicTacToe-v0 --turns 1",
        "KuhnPoker-v0",
        "TicTacToe-v0 --turns 1 --play player_1",
        "GuessTheNumber-v0 --turns 1",
    ] {
        keeps_the_contract(&adapter("textarena", game));
    }
    let command = adapter("textarena", "TicTacToe-v0 --turns 2");
    let samples = trains(&command, "");
    // What a new policy says is no move, so player_0 forfeits at once or is asked again.
    assert!(samples.iter().all(|sample| sample["agent"] == "player_0" && sample["group_size"] == 3));

    // player_0 takes a row while player_1 takes another; a text that is no move is said to the same player again.
    let answers =
        plays(&adapter("textarena", "TicTacToe-v0"), &["[0]", "[3]", "nonsense", "[1]", "[4]", "[2]"]);
    let local = |at: usize| answers[at]["rewards"]["local"].as_f64().expect("a number");
    assert_eq!((local(1), local(3), local(4), local(6)), (0.1, 0.0, 0.1, 1.0), "{answers:?}");
    assert_eq!(answers[3]["observations"]["player_1"], Value::Null);
    assert_eq!((&answers[6]["terminated"], &answers[6]["success"]), (&json!(true), &json!(true)));
    assert_eq!(answers[6]["rewards"]["team"], 1.0);
    // The winner is not the team's player, so only its local reward counts.
    let answers =
        plays(&adapter("textarena", "TicTacToe-v0 --team player_1"), &["[0]", "[3]", "[1]", "[4]", "[2]"]);
    assert_eq!(
        (&answers[5]["rewards"], &answers[5]["success"]),
        (&json!({"team": 0.0, "local": 1.0}), &json!(false))
    );

    // What `demo` says are legal moves, to the end of each game.
    let shown = lines(&must(&format!("{} demo --count 3", adapter("textarena", "TicTacToe-v0"))));
    let moves: Vec<&str> = shown.iter().filter_map(|line| line["completion"].as_str()).collect();
    assert!((15..=27).contains(&moves.len()), "{moves:?}");
    assert!(
        moves.iter().all(|text| text.len() == 3 && text.starts_with('[') && text.ends_with(']')),
        "{moves:?}"
    );
    let (code, _, said) = run(&adapter("textarena", "TicTacToe-v0 --play player_7 tasks"));
    assert!(
        code == 2 && said.contains("has no player_7\nhint: its players are player_0, player_1"),
        "{said}"
    );
}

#[test]
fn environments_of_verifiers() {
    if let Some(why) = missing("verifiers") {
        skip!("{why}");
    }
    let command = |arguments: &str| {
        let tasksets = root().join("tests/tests/tasksets");
        format!("env PYTHONPATH={} {}", tasksets.display(), adapter("verifiers", arguments))
    };
    keeps_the_contract(&command("sums_for_one"));
    keeps_the_contract(&command("sums_for_two"));
    trains(&command("sums_for_one"), "");
    // The second task is 1 + 0. Half a point for the sum, half for any number: the taskset's rewards, with their weights.
    for (text, earned) in [("1", 1.0), ("2", 0.5), ("one", 0.0)] {
        let answers = plays(&command("sums_for_one"), &[text]);
        assert_eq!(
            (&answers[1]["rewards"]["team"], &answers[1]["terminated"]),
            (&json!(earned), &json!(true)),
            "{answers:?}"
        );
    }
    // The environment asks the solver, then the judge, then the solver again; the order and the rewards are the environment's.
    let answers = plays(&command("sums_for_two"), &["3", "no", "1"]);
    let acting = |answer: &Value| {
        let seen = answer["observations"].as_object().expect("observations").iter();
        seen.filter(|(_, seen)| !seen.is_null()).map(|(agent, _)| agent.clone()).collect::<Vec<String>>()
    };
    assert_eq!([0, 1, 2].map(|at| acting(&answers[at]).concat()), ["solver", "judge", "solver"]);
    assert_eq!(answers[2]["observations"]["solver"][3], json!({"role": "user", "content": "Look again."}));
    assert_eq!(
        (&answers[3]["rewards"], &answers[3]["success"]),
        (&json!({"team": 1.0, "local": 1.0}), &json!(true))
    );
    // An environment of verifiers for two; the simulated user ends the conversation.
    let talk = command("sums_for_one --env user-sim");
    let answers = plays(&talk, &["What is it?", "1", "###DONE###"]);
    assert_eq!(
        (&answers[3]["rewards"], &answers[3]["terminated"]),
        (&json!({"team": 1.0, "local": 0.0}), &json!(true))
    );
}

/// The environment that `openenv init` writes: it pays a tenth for each letter of a message, up to 1.
#[test]
fn environments_of_openenv() {
    if let Some(why) = missing("openenv") {
        skip!("{why}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    must(&format!("cd {at} && '{}' -m openenv.cli init echo_demo > init.log 2>&1", python("openenv")));
    let command = |flags: &str| {
        let source = "echo_demo.server.echo_demo_environment:EchoDemoEnvironment";
        format!("env PYTHONPATH={at} {}", adapter("openenv", &format!("{source} --turns 2 {flags}")))
    };
    keeps_the_contract(&command(""));
    keeps_the_contract(&command("--replay"));
    for (text, earned) in [("four", 0.4), ("more than ten letters", 1.0), ("", 0.0)] {
        let answers = plays(&command(""), &[text]);
        assert_eq!(answers[1]["rewards"], json!({"team": earned, "local": earned}), "{answers:?}");
    }
    let samples = trains(&command(""), "");
    assert_eq!(samples.len(), 2 * 2 * 3);
    // A session that is kept can be tried once from each state: in whole episodes, and not in a tree.
    let samples = trains(&command("--live"), "--sampling parallel --threads 1");
    assert_eq!(samples.len(), 2 * 3 * 2);
    let live = command("--live");
    let (code, printed, _) = run(&format!(
        "policy init {at}/policy --preset tiny --seed 1; {live} tasks --count 1 | \
         rollout --env-command \"{live}\" --policy {at}/policy --branches 2 --max-tokens 4 --quiet --threads 1"
    ));
    assert!(code == 1 && printed.contains("--live takes --sampling parallel --threads 1"), "{printed}");
}

/// `--player` demonstrates: here the first legal cell, by which X wins with 2, 4 and 6.
#[test]
fn a_player_of_ones_own_demonstrates() {
    if let Some(why) = missing("pettingzoo.classic.tictactoe_v3") {
        skip!("{why}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display();
    let first = "def play(agent, observation, info):\n    mask = observation['action_mask']\n    return min(cell for cell in range(9) if mask[cell])\n";
    std::fs::write(folder.path().join("first_cell.py"), first).expect("written");
    let wrap = |player: &str| {
        let program = root().join("examples/wrap.py");
        let python = python("pettingzoo");
        format!(
            "PYTHONPATH={at} {python} -W ignore {} pettingzoo.classic.tictactoe_v3 --player {player}",
            program.display()
        )
    };
    let shown = lines(&must(&format!("{} demo --count 1", wrap("first_cell:play"))));
    let moves: Vec<&str> = shown.iter().filter_map(|line| line["completion"].as_str()).collect();
    assert_eq!(moves, ["0", "1", "2", "3", "4", "5", "6"]);
    for player in ["no_such_module:play", "first_cell:no_such", "first_cell", ":"] {
        let (code, _, said) = run(&format!("{} demo --count 1", wrap(player)));
        assert!(
            code == 2 && said.contains(&format!("--player {player}: ")) && !said.contains("Traceback"),
            "{player}: {said}"
        );
    }
}

/// Tools of a server that the adapter starts: their results, and the limits of calls that fail, are slow or say much.
#[test]
fn tools_of_an_mcp_server() {
    if let Some(why) = missing("mcp") {
        skip!("{why}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let questions: String = (12..40)
        .map(|a| {
            let calls = json!([{"name": "multiply", "arguments": {"a": a, "b": 7}}]);
            format!("{}\n", json!({"question": format!("What is {a} times 7?"), "answer": (a * 7).to_string(), "calls": calls}))
        })
        .collect();
    let file = folder.path().join("questions.jsonl");
    std::fs::write(&file, questions).expect("written");
    let command = |flags: &str| {
        let program = root().join("examples/mcp_tools.py");
        let (python, server) = (python("mcp"), root().join("tests/tests/mcp/server.py"));
        format!(
            "{python} -W ignore {} '{python} {}' {} {flags}",
            program.display(),
            server.display(),
            file.display()
        )
    };
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>{}</tool_call>", json!({"name": name, "arguments": arguments}))
    };
    let told = |answer: &Value| {
        let last = answer["observations"]["agent"]
            .as_array()
            .and_then(|seen| seen.last())
            .expect("a message")
            .clone();
        assert_eq!(last["role"], "tool");
        last["content"].as_str().expect("a text").to_owned()
    };

    // The first task's answer is found by its call.
    let shown = lines(&must(&format!("{} demo --count 1", command(""))));
    let said: Vec<&str> = shown.iter().filter_map(|line| line["completion"].as_str()).collect();
    let answers = plays(&command(""), &said);
    assert!(said.len() == 2 && told(&answers[1]) == said[1], "{answers:?}");
    assert_eq!(answers[1]["rewards"], json!({"team": 0.0, "local": 0.1}));
    assert_eq!((&answers[2]["rewards"]["team"], &answers[2]["success"]), (&json!(1.0), &json!(true)));

    // A server remembers the calls of one episode; a call that was made before pays nothing.
    let remember = |word: &str| call("remember", json!({"word": word}));
    let texts = [
        remember("a"),
        remember("b"),
        call("multiply", json!({"a": 2, "b": 3})),
        remember("b"),
        call("wait", json!({"seconds": 60})),
        call("repeat", json!({"count": 99})),
        call("fail", json!({})),
        call("die", json!({})),
        call("no_such", json!({})),
        "<tool_call>[</tool_call>".to_owned(),
        remember("c"),
        "5".to_owned(),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let answers = plays(&command("--seconds 4 --letters 30 --calls 11"), &texts);
    let results: Vec<String> = answers[1..12].iter().map(told).collect();
    assert_eq!(results[..4], ["a", "a b", "6", "a b b"]);
    assert_eq!(results[4], r#"{"error": "no answer within 4 s"}"#);
    assert_eq!(results[5], format!("{}… (99 letters)", "x".repeat(30)));
    assert!(results[6..10].iter().all(|result| result.starts_with(r#"{"error": "#)), "{results:?}");
    assert_eq!(results[10], "c", "a new server, and the calls that led to its end");
    let paid: Vec<f64> =
        answers[1..12].iter().map(|answer| answer["rewards"]["local"].as_f64().expect("a number")).collect();
    assert_eq!(paid, [0.1, 0.1, 0.1, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.1]);
    assert_eq!((&answers[12]["terminated"], &answers[12]["success"]), (&json!(true), &json!(false)));
    let answers = plays(&command("--calls 1"), &[&remember("a"), &remember("b")]);
    assert!(told(&answers[2]).contains("1 calls were made"), "{answers:?}");

    // For templates that write tools themselves.
    let answers = plays(&command("--template"), &[]);
    let seen = &answers[0]["observations"]["agent"];
    assert_eq!(seen["tools"][0]["function"]["name"], "multiply");
    assert_eq!(seen["tools"][0]["function"]["parameters"]["required"], json!(["a", "b"]));
    assert_eq!(seen["messages"][0]["role"], "user");
    trains(&command("--as-user --read-only --calls 1"), "");
    let (code, _, said) =
        run(&format!("{} </dev/null", command("").replace("mcp/server.py", "mcp/nothing.py")));
    assert!(code == 69 && said.contains("hint: a command that speaks MCP"), "{code} {said}");
}

/// The module for environments, read by a strict type checker.
#[test]
fn the_module_is_typed() {
    if let Some(why) = missing("mypy") {
        skip!("{why}");
    }
    let cache = tempfile::tempdir().expect("a folder");
    let (code, told, said) = run(&format!(
        "cd {} && '{}' -m mypy --strict --cache-dir {} troupe",
        root().join("examples").display(),
        python("mypy"),
        cache.path().display()
    ));
    assert!(code == 0, "{told}{said}");
}

/// Three answers in each situation, so the expected values are exact.
#[test]
fn exploitability_in_kuhn_poker_is_exact() {
    let program = format!("python3 {}", root().join("examples/kuhn_poker.py").display());
    keeps_the_contract_over(&program, 40);
    keeps_the_contract_over(&format!("{program} --play second"), 40);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("samples");
    let exploited = |bold: &dyn Fn(&str, &str) -> usize| {
        let mut text = String::new();
        for (played, moves) in [
            ("nothing", ["check", "bet"]),
            ("c", ["check", "bet"]),
            ("b", ["fold", "call"]),
            ("cb", ["fold", "call"]),
        ] {
            for card in ["J", "Q", "K"] {
                for number in 0..6 {
                    let completion = moves[usize::from(number < bold(card, played))];
                    let prompt = format!("card {card} after {played} say {} or {}", moves[0], moves[1]);
                    let prompt = json!([{"role": "user", "content": prompt}]);
                    text.push_str(&format!(
                        "{}\n",
                        json!({"type": "sample", "prompt": prompt, "completion": completion})
                    ));
                }
            }
        }
        std::fs::write(&file, text).expect("written");
        let printed: Value =
            serde_json::from_str(&must(&format!("{program} exploitability < {}", file.display())))
                .expect("JSON");
        (
            printed["exact"].as_str().expect("a fraction").to_owned(),
            printed["value"].as_f64().expect("a number"),
        )
    };
    // Of six: an equilibrium (Kuhn 1950) in which `first` bets a third of its jacks; the same with half of them; a coin; who never bets.
    let equilibrium = |card: &str, played: &str| match (card, played) {
        ("J", "nothing" | "c") | ("Q", "b") => 2,
        ("Q", "cb") => 4,
        ("K", _) => 6,
        _ => 0,
    };
    let (lost, value) = exploited(&equilibrium);
    assert!(lost == "0" && (value + 1.0 / 18.0).abs() < 1e-12, "{lost} {value}");
    let (lost, value) = exploited(&|_, _| 3);
    assert!(lost == "11/24" && (value - 0.125).abs() < 1e-12, "{lost} {value}");
    let too_bold = |card: &str, played: &str| {
        if (card, played) == ("J", "nothing") { 3 } else { equilibrium(card, played) }
    };
    assert_ne!(exploited(&too_bold).0, "0");
    // Showdowns alone: whoever bets against a player who always folds wins 1 a game.
    assert_eq!(exploited(&|_, _| 0), ("1".to_owned(), 0.0));
}

#[test]
fn split_information_takes_a_channel() {
    let program = format!("python3 {}", root().join("examples/split_information.py").display());
    for (flags, most) in [
        ("--numbers 4 --words 1", "1/4"),
        ("--numbers 4 --words 2", "1/2"),
        ("--numbers 4", "1"),
        ("--numbers 4 --alone", "1"),
        ("--numbers 26 --words 13", "1/2"),
    ] {
        assert_eq!(must(&format!("{program} {flags} optimum")).trim(), most, "{flags}");
    }
    keeps_the_contract_over(&format!("{program} --numbers 4"), 8);
    // The word passes on; the sum is 3 + 6 modulo 8.
    let answers = plays(&program, &["d", "1"]);
    let spec = &answers[0]["state"];
    let sum = (spec["told"].as_u64().expect("a number") + spec["own"].as_u64().expect("a number")) % 8;
    let seen = answers[1]["observations"]["chooser"][0]["content"].as_str().expect("a text");
    assert_eq!(seen, format!("told d see {} say the sum", spec["own"]));
    assert_eq!(answers[2]["success"], sum == 1);
    // Without a word the chooser sees nothing of the teller's number.
    let seen =
        plays(&format!("{program} --words 1"), &["d"])[1]["observations"]["chooser"][0]["content"].clone();
    assert_eq!(seen, format!("told a see {} say the sum", spec["own"]));
}
