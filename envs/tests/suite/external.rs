//! Tests of `envs check --env-command`: each flaw, planted into the example in Python, breaks the rule about
//! it, and the sound program keeps them all.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use envs::check::{Effort, Program, Report, check, verdict};
use envs::external::processes::Processes;
use envs::{Environment, External, State};
use record::line::Task;
use troupe_tests::program::{run_on, texts};

pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples")
}

fn flawed(flaw: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external/flawed.py");
    format!("python3 -B '{}' '{}' {flaw}", script.display(), examples().display())
}

pub fn tasks(command: &str, count: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    for split in ["train", "test"] {
        let command = format!("{command} tasks --split {split} --count {count} --seed 5");
        let output = Command::new("sh").arg("-c").arg(command).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        tasks.extend(
            text.lines()
                .filter(|line| line.contains("\"type\": \"task\""))
                .map(|line| serde_json::from_str::<Task>(line).unwrap()),
        );
    }
    tasks
}

pub fn report(command: &str, tasks: &[Task]) -> Report {
    let program =
        Program { command: command.to_owned(), timeout: Duration::from_secs(60), workflows: vec![None] };
    let effort = Effort { tasks: 1, episodes: 12, seed: 1 };
    check(&program, tasks, &effort, &mut || ()).unwrap()
}

pub fn broken(report: &Report) -> Vec<&'static str> {
    report
        .findings
        .iter()
        .filter(|finding| finding.broken.is_some() && !finding.advice)
        .map(|finding| finding.rule)
        .collect()
}

#[test]
fn a_sound_program_keeps_every_rule() {
    let command = flawed("none");
    let report = report(&command, &tasks(&command, 20));
    verdict("guess-number", &report.findings).unwrap_or_else(|_| panic!("{:#?}", report.findings));
    assert!(report.findings.len() >= 18 && report.notes.is_empty(), "{report:#?}");
}

/// What goes wrong in a program is told at once, once, and with what it said itself.
#[test]
fn a_fault_of_the_program_is_told_where_it_is() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("env.py");
    let check = |program: &str| {
        std::fs::write(&file, program).unwrap();
        let task = r#"{"type":"task","v":1,"env":"e","task":"t","split":"train","spec":{}}"#;
        let command = format!("python3 -B '{}'", file.display());
        let mut envs = Command::new(env!("CARGO_BIN_EXE_envs"));
        envs.args(["check", "--quiet", "--env-command", &command]);
        let (code, stdout, stderr) = texts(&run_on(&mut envs, format!("{task}\n")));
        assert_eq!(code, Some(1));
        (stdout, stderr)
    };
    let (stdout, stderr) =
        check("import sys\nprint('loading', flush=True)\nfor line in sys.stdin: print('{}')\n");
    let cause =
        "line 1 of its output is no JSON object: \"loading\"; stdout is for answers, so print to stderr";
    assert!(stdout.contains("\nBROKEN every question has an answer ") && stdout.contains(cause), "{stdout}");
    assert_eq!(stdout.lines().count(), 5, "nothing else is tried: {stdout}");
    assert!(!stderr.contains("loading"), "{stderr}");

    let fails = "import sys\ndef board(name): raise ValueError(f'no board {name}')\n\
                 for number, line in enumerate(sys.stdin): board(line[:20])\n";
    let (stdout, stderr) = check(&format!("import sys\nprint('ready', file=sys.stderr)\n{fails}"));
    assert!(stdout.contains("ended without an answer (exit status: 1): ValueError: no board "), "{stdout}");
    assert_eq!(stderr.matches("Traceback").count(), 1, "{stderr}");
    assert!(stderr.contains("in board\n") && stderr.matches("ready\n").count() > 1, "{stderr}");

    let (stdout, stderr) = check("import sys\nfor line in sys.stdin: sys.exit('boom')\n");
    assert!(stdout.contains("(exit status: 1): boom") && stderr.contains("boom\n"), "{stdout}{stderr}");
    let (_, stderr) = check("def step(:\n");
    assert_eq!(stderr.matches("SyntaxError").count(), 1, "{stderr}");
}

/// The module `troupe` keeps stdout for answers.
#[test]
fn what_the_functions_print_goes_to_stderr() {
    let command = flawed("prints");
    assert_eq!(broken(&report(&command, &tasks(&command, 4))), [""; 0]);
}

#[test]
fn each_flaw_breaks_its_rule() {
    let tasks = tasks(&flawed("none"), 4);
    for (flaw, rule) in [
        ("memory", "the same line has the same answer"),
        ("process", "another process gives the same answer"),
        ("numbers", "a state survives JSON"),
        ("refuses", "every text has an outcome"),
        ("unseen", "every agent sees something"),
        ("dies-of-nonsense", "a request that makes no sense is answered with `error`"),
        ("range", "rewards stay in their range"),
        ("generous", "rewards stay in their range"),
        ("goes-on", "a success ends the episode"),
        ("early-success", "a success is one to the oracle"),
        ("timeout-is-success", "running out of turns is no success"),
        ("lazy-oracle", "the oracle solves every task"),
        ("lazy-oracle", "no action scores above the oracle's"),
        ("pays-for-dawdling", "no path collects more team reward than the oracle's"),
    ] {
        let report = report(&flawed(flaw), &tasks);
        let broken = broken(&report);
        assert!(broken.contains(&rule), "{flaw} broke {broken:?}, not {rule:?}");
        assert_eq!(verdict("guess-number", &report.findings).unwrap_err().code, 1);
        // In words, and not as Rust prints it.
        if let Some(said) = report
            .findings
            .iter()
            .find_map(|found| found.broken.as_ref().filter(|_| found.rule == "rewards stay in their range"))
        {
            assert!(said.contains(": team ") && said.ends_with(", not in [0, 1]"), "{said}");
        }
    }
}

/// Flaws of agents who act at once. An action that pays its agent more than the oracle's is no flaw where pay is by agent.
#[test]
fn each_flaw_of_a_joint_action_breaks_its_rule() {
    for (flaw, rule, is_note) in [
        ("none", None, false),
        ("ordered", Some("a joint action has no order"), false),
        ("first-earns", Some("a joint action has no order"), false),
        ("names-one", Some("every question has an answer"), false),
        ("flat", Some("what an agent earns depends on what it says"), true),
        ("private", Some("no action pays its agent more than the oracle's"), true),
    ] {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external/joint.py");
        let command = format!("python3 -B '{}' '{}' {flaw}", script.display(), examples().display());
        let report = report(&command, &tasks(&command, 3));
        let found = report.findings.iter().find(|finding| Some(finding.rule) == rule);
        assert!(
            found.is_none_or(|finding| finding.broken.is_some() && finding.advice == is_note),
            "{flaw}: {found:?}"
        );
        assert_eq!(found.is_some(), rule.is_some(), "{flaw}: {:#?}", report.findings);
        assert_eq!(broken(&report).is_empty(), rule.is_none() || is_note, "{flaw}: {:#?}", report.findings);
    }
}

/// A program whose answers to a task and to an action differ from a sound one's by `reset` and `step`, in Python.
fn answering(reset: &str, step: &str) -> External {
    let program = format!(
        "import json, sys\nfor line in sys.stdin:\n  q = json.loads(line)\n  seen = {{a: [{{'role': 'user', 'content': 'hi'}}] for a in 'ab'}}\n  \
         if 'task' in q:\n    o = {{'state': 0, 'observations': seen, 'agents': ['a', 'b'], 'order': 'sequential', 'turns': 2}}\n    {reset}\n  \
         else:\n    o = {{'state': 1, 'rewards': {{'team': 0.5, 'local': 0.0}}, 'terminated': False, 'success': False, 'observations': seen}}\n    {step}\n  \
         print(json.dumps({{'request': q['request'], **o}}), flush=True)\n"
    );
    External::new(&format!("python3 -c \"{program}\""), Duration::from_secs(60))
}

#[test]
fn an_answer_that_no_stage_could_use_is_refused_where_it_comes() {
    let task = Task::default();
    let begun = |environment: &External| environment.first_state(&task, None);
    for (reset, cause) in [
        ("o['turns'] = 0", "`turns` is 0"),
        ("seen['b'] = []", "`observations` has no message for the agent b"),
        ("del seen['b']", "`observations` has nothing for the agent b"),
        ("seen.update(a=None, b=None)", "`observations` is null for every agent"),
    ] {
        let failure = begun(&answering(reset, "pass")).err().unwrap();
        assert!(failure.code == 65 && failure.message.contains(cause), "{reset}: {failure}");
    }
    for (step, cause) in [
        ("o['success'] = True", "`success` is true and `terminated` false"),
        ("seen['b'] = []", "`observations` has no message for the agent b"),
        ("seen.update(a=None, b=None)", "`observations` is null for every agent"),
        ("o['turn'] = 'c'", "`turn` names c, who is no agent; the agents are: a, b"),
        (
            "o['rewards']['local'] = dict(a=0.5, B=0.5)",
            "`rewards.local` names B, who is no agent; the agents are: a, b",
        ),
        ("o['rewards']['local'] = dict(A=0.5)", "`rewards.local` names A, who is no agent"),
        ("o['turn'] = 3", "expected `turn` as an agent, or as an array of agents"),
        ("o['turn'] = []", "`observations` is null for every agent"),
        ("del seen['a']; o['turn'] = ['a', 'b']", "`observations` has nothing for the agent a"),
        ("o['info'] = 'note'", "`info` is \"note\", and not an object"),
        ("o['info'] = dict(note='x' * 5000)", "`info` has 5011 bytes as JSON, and at most 4096 are kept"),
        ("o['rewards']['team'] = float('nan')", "its answer holds NaN, which is no number in JSON"),
        ("o['rewards']['local'] = -float('inf')", "its answer holds -Infinity, which is no number in JSON"),
    ] {
        let failure = begun(&answering("pass", step)).unwrap().apply("a", "x").err().unwrap();
        assert!(failure.message.contains(cause), "{step}: {failure}");
    }
    // An end has nothing to show.
    let mut state =
        begun(&answering("pass", "o.update(terminated=True, success=True, observations={})")).unwrap();
    assert!(state.apply("a", "x").unwrap().success);
}

#[test]
fn an_answer_may_pay_others_and_say_something_to_people() {
    let said = |step: &str| {
        answering("pass", step).first_state(&Task::default(), None).unwrap().apply("a", "x").unwrap()
    };
    let paid = said("o['rewards']['local'] = dict(a=0.25, b=0.75)");
    assert_eq!((paid.rewards.local, paid.local_of("b"), paid.info), (0.25, 0.75, None));
    let told = said("o['info'] = dict(note='seven', numbers=[7])").info.unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&told).unwrap(),
        serde_json::json!({"note": "seven", "numbers": [7]})
    );
    assert_eq!(said("o['info'] = {}").info, None);
}

/// A program with a mistake, or none.
fn program(arguments: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external/refused.py");
    format!("python3 -B '{}' '{}' {arguments}", script.display(), examples().display())
}

fn refused(arguments: &str) -> (Option<i32>, String, String) {
    let own = Path::new(env!("CARGO_BIN_EXE_envs")).parent().unwrap().display();
    let command = format!("PATH={own}:$PATH {}", program(arguments));
    texts(&Command::new("sh").args(["-c", &command]).output().unwrap())
}

/// `python3 my_env.py check` is `envs check` on tasks that it draws; a call that hangs is shown with its stack.
#[test]
fn the_module_checks_an_environment_in_one_command() {
    let (code, told, said) = refused("sound check --tasks 1");
    assert_eq!((code, said.as_str(), told.matches("BROKEN").count()), (Some(0), "", 0), "{told}");
    assert!(told.contains("\nok     another process gives the same answer"), "{told}");
    let (code, told, _) = refused("exits check");
    let cause = "ended without an answer (exit status: 3)";
    assert!(
        code == Some(1) && told.contains("BROKEN every text has an outcome") && told.contains(cause),
        "{told}"
    );
    let (code, told, said) = refused("hangs check --timeout 1");
    assert!(code == Some(1) && told.contains("no line within 1 s"), "{told}");
    assert!(said.contains("refused.py\", line ") && said.contains(" in step\n"), "{said}");
    let (code, _, said) = texts(
        &Command::new("sh").args(["-c", &format!("PATH=/bin {} check", program("sound"))]).output().unwrap(),
    );
    assert!(code == Some(69) && said.contains("no program `envs` in PATH\nhint: "), "{said}");
}

/// Tasks that run out, and tasks that do not depend on the seed, are told.
#[test]
fn the_module_tells_tasks_that_end_and_tasks_that_ignore_their_seed() {
    let (code, told, said) = refused("ends check");
    assert!(
        code == Some(1)
            && told.is_empty()
            && said.contains("tasks() ended after 17 of 300 tasks\nhint: it must never end"),
        "{said}"
    );
    let (code, told, _) = refused("seedless check --tasks 1");
    assert!(code == Some(0) && told.contains("note   another seed makes other tasks"), "{told}");
    let (code, told, said) = refused("ends tasks --count 30");
    assert_eq!((code, told.lines().count()), (Some(1), 18), "{told}");
    assert!(said.starts_with("say: tasks() ended after 17 of 30 tasks\nhint: it must never end"), "{said}");
    let end: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!((&end["ok"], &end["counts"]["tasks"]), (&false.into(), &17.into()));
}

#[test]
fn test_tasks_that_are_also_train_tasks_are_found() {
    let command = flawed("leak");
    assert_eq!(broken(&report(&flawed("none"), &tasks(&command, 4))), ["train and test are disjoint"]);
}

#[test]
fn without_probe_the_rest_is_tried_and_what_was_not_is_said() {
    let command = flawed("no-oracle");
    let report = report(&command, &tasks(&command, 4));
    assert_eq!(broken(&report), [""; 0]);
    assert!(
        report.notes.len() == 1
            && report.notes[0]
                .contains("does not answer `probe`, which is optional (ValueError: what is probe?)"),
        "{:?}",
        report.notes
    );
    assert!(report.findings.iter().any(|finding| finding.rule == "running out of turns is no success"));
    assert!(report.findings.iter().all(|finding| !finding.rule.contains("oracle")));
    // The components of a program are any numbers: here 100.
    let command = program("sound");
    let report = self::report(&command, &tasks(&command, 4));
    assert_eq!(broken(&report), [""; 0]);
    assert!(
        report.notes[0].ends_with("`probe`, which is optional (NotImplementedError: no `probe`)"),
        "{:?}",
        report.notes
    );
}

#[test]
fn the_command_line_prints_the_rules_and_wants_tasks() {
    let run = |input: &str| {
        let mut envs = Command::new(env!("CARGO_BIN_EXE_envs"));
        envs.args(["check", "--quiet", "--tasks", "1", "--episodes", "4", "--env-command", &flawed("none")]);
        texts(&run_on(&mut envs, input))
    };
    let lines: Vec<String> =
        tasks(&flawed("none"), 2).iter().map(|task| serde_json::to_string(task).unwrap()).collect();
    let (code, stdout, stderr) = run(&(lines.join("\n") + "\n"));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(!stdout.contains("BROKEN") && stdout.starts_with("ok     "), "{stdout}");
    let unnamed = lines[0].replace("guess-number/train/", "\\u001b]0;title\\u0007");
    assert_ne!(unnamed, lines[0]);
    let (code, stdout, _) = run(&(unnamed.replace("\"train\"", "\"trial\"") + "\n"));
    assert_eq!(code, Some(1));
    assert!(stdout.contains("\\u{1b}]0;title\\u{7}") && !stdout.contains('\u{1b}'), "{stdout}");
    let (code, _, stderr) = run("");
    assert_eq!(code, Some(65));
    let hint = "did the program before this one print any?\nhint: (python3 my_env.py tasks --count 20; python3 my_env.py tasks --split test";
    assert!(stderr.starts_with(&format!("envs: there is no task on stdin: {hint}")), "{stderr}");
}

/// The processes of `command`, and what became of one request.
fn asked(command: &str, timeout: Duration) -> (Processes, std::result::Result<(), String>) {
    let processes = Processes::new(command, timeout);
    let answer = processes.ask(&serde_json::json!({"task": {}}));
    (processes, answer.map(drop).map_err(|failure| failure.message))
}

#[test]
fn rewards_out_of_their_range_are_refused() {
    let program = |range: &str, reward: &str| {
        let reset = format!(
            r#"{{"request":0,"state":{{}},"observations":{{"a":[{{"role":"user","content":"x"}}]}},"agents":["a"],"order":"parallel"{range}}}"#
        );
        let step = format!(
            r#"{{"request":1,"state":{{}},"rewards":{{"team":0,"local":{reward}}},"terminated":true,"success":false}}"#
        );
        format!("read line; echo '{reset}'; read line; echo '{step}'")
    };
    for (range, reward, refused) in [
        ("", "1", None),
        ("", "1.5", Some("a local reward of 1.5 is not in [0, 1]")),
        (r#","reward_range":[-2,2]"#, "-1.5", None),
        (r#","reward_range":[-2,2]"#, "2.5", Some("is not in [-2, 2]")),
        (r#","reward_range":[1,0]"#, "1", Some("`reward_range` is [1, 0]")),
    ] {
        let external = External::new(&program(range, reward), Duration::from_secs(10));
        let outcome = external.begin(&Task::default(), None).and_then(|mut state| state.apply("a", "b"));
        let failure = outcome.err().map(|failure| failure.message);
        match refused {
            None => assert_eq!(failure, None),
            Some(cause) => assert!(failure.as_ref().unwrap().contains(cause), "{failure:?}"),
        }
    }
}

#[test]
fn output_without_a_line_feed_is_bounded() {
    let (_, answer) = asked("cat /dev/zero", Duration::from_secs(60));
    assert!(answer.as_ref().is_err_and(|cause| cause.contains("longer than 16 MiB")), "{answer:?}");
    let (_, answer) = asked("read line; echo '{\"request\":0}'; cat /dev/zero", Duration::from_secs(60));
    assert_eq!(answer, Ok(()), "what follows an answer is not read ahead forever");
}

#[test]
fn tasks_of_a_program_are_copied_and_do_not_hang() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_envs")).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, stderr) = run(&["tasks", "--count", "3", "--env-command", &flawed("none")]);
    assert_eq!((code, stderr.as_str(), stdout.lines().count()), (Some(0), "", 4), "{stdout}");
    let (code, stdout, stderr) = run(&["demo", "--count", "1", "--env-command", &flawed("none")]);
    assert!((code, stderr.as_str()) == (Some(0), "") && stdout.contains("\"sample\""), "{stdout}{stderr}");
    for (command, timeout, code, cause) in [
        ("sleep 600; echo", "1", 1, "no line within 1 s"),
        ("exit 3; echo", "60", 3, "failed (exit status: 3)"),
        ("cat /dev/zero; echo", "60", 1, "a line is longer than 16 MiB"),
    ] {
        let (ended, stdout, stderr) = run(&["tasks", "--timeout", timeout, "--env-command", command]);
        assert_eq!((ended, stdout.as_str()), (Some(code), ""), "{command}: {stderr}");
        assert!(stderr.starts_with(&format!("envs: {command} tasks ")) && stderr.contains(cause), "{stderr}");
    }
    let (code, _, stderr) = run(&["tasks"]);
    assert_eq!((code, stderr.lines().next()), (Some(2), Some("envs: no environment is given")));
}

#[test]
fn what_a_program_has_started_ends_with_it() {
    let place = tempfile::tempdir().unwrap();
    let list = place.path().join("ids");
    for (command, cause) in [
        ("exec >&-", "ended without an answer"),
        ("read line; echo '{\"request\":0}'", ""),
        ("wait", "no line within"),
    ] {
        std::fs::write(&list, "").unwrap();
        // In its group, in a new session, and in a session whose parent has ended.
        let list = list.display();
        let command = format!(
            "sleep 600 >/dev/null & echo $! >>'{list}'; setsid sleep 600 >/dev/null & echo $! >>'{list}'; \
             (setsid sh -c 'echo $$; exec >&-; sleep 600; echo' >>'{list}' &); sleep 0.2; {command}"
        );
        let (processes, answer) = asked(&command, Duration::from_secs(2));
        assert!(answer.err().unwrap_or_default().contains(cause), "{command}");
        drop(processes);
        let ids = std::fs::read_to_string(place.path().join("ids")).unwrap();
        assert!(ids.lines().count() >= 3, "{command}");
        std::thread::sleep(Duration::from_millis(100));
        for id in ids.lines() {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            assert!(stat.is_empty() || stat.contains(") Z "), "{command}: {stat}");
        }
    }
}

/// Tools of an observation come with the calls in the action, by whichever agent may call them.
#[test]
fn calls_of_tools_reach_the_program() {
    let tool = "{'type': 'function', 'function': {'name': 'add'}}";
    let offered = format!("seen['a'] = {{'messages': seen['a'], 'tools': [{tool}]}}");
    let told =
        "o['reward_components'] = {'calls': len(q.get('tool_calls', [])) if 'tool_calls' in q else -1}";
    let step = format!("{told}; {offered}");
    let environment = answering(&offered, &step);
    let mut state = environment.first_state(&Task::default(), None).unwrap();
    assert_eq!(state.tools("a").unwrap()[0]["function"]["name"], "add");
    assert_eq!((state.tools("b"), state.observe("a").len()), (None, 1));
    let call = "<tool_call>{'name': 'add', 'arguments': {}}</tool_call>".replace('\'', "\"");
    let mut calls = |agent: &str, text: &str| state.apply(agent, text).unwrap().components["calls"];
    assert_eq!(calls("a", &call), 1.0);
    assert_eq!(calls("a", &format!("{call} {call}")), 2.0);
    assert_eq!(calls("a", "3"), 0.0);
    assert_eq!(calls("b", &call), -1.0, "nobody offered tools to it");
    // Integers beyond 64 bits keep their digits on the way there and back.
    let large = "123456789012345678901234567890";
    let told = "o['info'] = q.get('tool_calls', [{}])[0]; o['state'] = {'seen': -(2 ** 63) - 1 - q['state'].get('seen', 0)}";
    let begun = format!("{offered}; o['state'] = {{}}");
    let told = format!("{offered}; {told}");
    let mut state = answering(&begun, &told).first_state(&Task::default(), None).unwrap();
    for seen in ["{\"seen\": -9223372036854775809}", "{\"seen\": 0}"] {
        let call = format!("<tool_call>{{\"name\": \"add\", \"arguments\": {{\"a\": {large}}}}}</tool_call>");
        let info = state.apply("a", &call).unwrap().info.unwrap();
        assert_eq!(info, format!("{{\"name\":\"add\",\"arguments\":{{\"a\":{large}}}}}"));
        assert_eq!(state.draw(), seen);
    }
    // In a request with all actions, by agent.
    let told = "o['rewards']['local'] = {'a': 0, 'b': 0}; o['reward_components'] = {'calls': len(q['tool_calls']['a']) + 10 * len(q['tool_calls'])}";
    let environment = answering(&format!("{offered}; o['together'] = True; o['order'] = 'parallel'"), told);
    let mut state = environment.first_state(&Task::default(), None).unwrap();
    assert_eq!(state.apply_together(&[("a", &call), ("b", &call)]).unwrap().components["calls"], 11.0);
    for (wrong, cause) in [
        ("[]", "`tools` is not a list of tools"),
        ("[{'type': 'function'}]", "`tools` has {\"type\":\"function\"}"),
    ] {
        let environment =
            answering(&format!("seen['a'] = {{'messages': seen['a'], 'tools': {wrong}}}"), "pass");
        let failure = environment.first_state(&Task::default(), None).err().unwrap();
        assert!(failure.code == 65 && failure.message.contains(cause), "{wrong}: {failure}");
    }
}
