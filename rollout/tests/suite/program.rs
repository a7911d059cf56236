//! The program with tiny random policies: what a real model adds to the logic that other tests cover.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::runtime::fetch_runtime;
use envs::{Selection, Settings, Split};
use policy::directory::Policy;
use policy::initial::{Preset, from_preset};
use policy::tokenizer::Tokenizer;
use serde_json::Value;
use troupe_tests::program::run_on;

/// A user who owns nothing.
const NOBODY: u32 = 65_534;

const END: &str = "{\"type\":\"end\",\"v\":1,\"stage\":\"tests\",\"ok\":true}\n";

fn tasks(count: usize) -> String {
    let selection = Selection { split: Split::Train, seed: 5, settings: Settings::default() };
    let tasks = envs::find("plan-path").and_then(|environment| environment.tasks(&selection)).expect("tasks");
    let lines =
        tasks.take(count).map(|task| serde_json::to_string(&task.expect("a task")).expect("JSON") + "\n");
    lines.chain([END.to_owned()]).collect()
}

/// `tool` and `planner`, two policies of different weights.
fn policies() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (seed, name) in ["tool", "planner"].into_iter().enumerate() {
        from_preset(&folder.path().join(name), Preset::Tiny, seed as u64).expect("a policy");
    }
    folder
}

fn rollout(folder: &Path, flags: &[&str], input: &str) -> Output {
    fetch_runtime();
    let mut rollout = Command::new(env!("CARGO_BIN_EXE_rollout"));
    run_on(rollout.arg("--quiet").args(flags).current_dir(folder), input)
}

/// The next stage gets a task's samples before the next task arrives.
#[test]
fn samples_do_not_wait_for_the_end_of_the_input() {
    fetch_runtime();
    let folder = policies();
    let mut child = Command::new(env!("CARGO_BIN_EXE_rollout"))
        .args(["--quiet", "--policy", "tool", "--branches", "1", "--turns", "1", "--max-tokens", "2"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("rollout runs");
    let mut stdin = child.stdin.take().expect("its stdin");
    stdin.write_all(tasks(1).as_bytes()).expect("a reader");
    let mut output = BufReader::new(child.stdout.take().expect("its stdout"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert!(line.starts_with("{\"type\":\"sample\""), "{line}");
    drop(stdin);
    assert!(output.lines().last().expect("an end").expect("a line").contains("\"ok\":true"));
    assert!(child.wait().expect("its end").success());
}

/// Its lines, without `timing`.
fn lines(folder: &Path, flags: &[&str], input: &str) -> Vec<String> {
    let output = rollout(folder, flags, input);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{flags:?}: {stderr}");
    assert_eq!(stderr, "");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut end: Value = serde_json::from_str(&lines.pop().expect("an end")).expect("JSON");
    end["timing"].take();
    lines.push(end.to_string());
    lines
}

fn values(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

const TEAM: [&str; 6] = ["--policy", "tool=tool", "--policy", "planner=planner", "--max-tokens", "12"];

#[test]
fn the_same_bytes_from_one_thread_and_from_two() {
    let folder = policies();
    let input = tasks(10);
    for flags in [&[][..], &["--sampling", "parallel"], &["--greedy"], &["--dtype", "bfloat16"]] {
        let run = |threads| lines(folder.path(), &[&TEAM, flags, &["--threads", threads]].concat(), &input);
        let (one, two) = (run("1"), run("2"));
        assert!(one.len() > 20);
        assert!(one == two, "{flags:?}");
        let dtype = flags.iter().skip_while(|&&flag| flag != "--dtype").nth(1).unwrap_or(&"float32");
        assert_eq!(values(&one).last().expect("an end")["dtype"], *dtype);
    }
}

/// What another processor samples is what this one samples when it is told to.
#[test]
fn instruction_sets_sample_the_same_bytes() {
    let folder = policies();
    for dtype in ["float32", "bfloat16"] {
        let mut seen = Vec::new();
        for isa in ["avx512-bf16", "avx512", "avx2"] {
            let flags = [&TEAM[..], &["--turns", "2", "--dtype", dtype, "--isa", isa]].concat();
            let output = rollout(folder.path(), &flags, &tasks(3));
            let stderr = String::from_utf8_lossy(&output.stderr);
            match output.status.code() {
                Some(0) => {
                    let text = String::from_utf8(output.stdout).expect("text");
                    seen.push(text.split("\"timing\"").next().unwrap_or_default().to_owned());
                }
                code => {
                    assert_eq!(code, Some(69), "{stderr}");
                    assert!(
                        stderr.contains(&format!("--isa {isa}: this processor has no {isa}")),
                        "{stderr}"
                    );
                }
            }
        }
        assert!(seen[0].lines().count() > 20 && seen.iter().all(|other| *other == seen[0]), "{dtype}");
    }
}

#[test]
fn groups_are_whole_and_name_their_policy() {
    let folder = policies();
    let lines = lines(folder.path(), &[&TEAM[..], &["--branches", "3", "--turns", "2"]].concat(), &tasks(6));
    let values = values(&lines);
    let mut groups: HashMap<String, Vec<&Value>> = HashMap::new();
    for sample in values.iter().filter(|value| value["type"] == "sample") {
        assert_eq!(sample["policy"], sample["agent"]);
        let ids = sample["completion_ids"].as_array().expect("ids").len();
        assert_eq!(sample["completion_logprobs"].as_array().expect("logprobs").len(), ids);
        assert!((1..=12).contains(&ids));
        assert!(sample["finish_reason"] == "stop" || ids == 12, "{}", sample["id"]);
        let key = format!("{}/{}/{}", sample["episode"], sample["turn"], sample["agent"]);
        groups.entry(key).or_default().push(sample);
    }
    let versions: Vec<&Value> = ["tool", "planner"]
        .iter()
        .map(|agent| &groups.values().flatten().find(|sample| sample["agent"] == *agent).expect("one")["policy_version"])
        .collect();
    assert_ne!(versions[0], versions[1]);
    for (key, group) in &groups {
        assert_eq!(group.len(), 3, "{key}");
        assert!(group.iter().all(|sample| sample["prompt_ids"] == group[0]["prompt_ids"]), "{key}");
        assert_eq!(group.iter().filter(|sample| sample["selected"] == true).count(), 1, "{key}");
    }
    let end = values.last().expect("an end");
    assert_eq!(
        (&end["type"], &end["ok"], &end["counts"]["episodes"]),
        (&"end".into(), &true.into(), &6.into())
    );
    let counts = &end["counts"];
    assert_eq!((&counts["groups"], &counts["groups_expected"]), (&groups.len().into(), &groups.len().into()));
    let solved: u64 = counts["environments"]["plan-path"]["solved_at_turn"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_u64)
        .sum();
    assert_eq!(counts["solved"], solved);
    for agent in ["tool", "planner"] {
        let own: Vec<&Value> =
            values.iter().filter(|line| line["type"] == "sample" && line["agent"] == agent).collect();
        let stats = &counts["agents"][agent];
        assert_eq!(stats["samples"], own.len(), "{agent}");
        let rewards: Vec<f64> = own.iter().filter_map(|sample| sample["reward"].as_f64()).collect();
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        assert!((stats["reward"].as_f64().expect("a number") - mean).abs() < 1e-9, "{agent}: {stats}");
    }
    assert_eq!(values.iter().filter(|value| value["type"] == "episode").count(), 6);
}

#[test]
fn one_directory_for_all_agents_plays_like_the_same_one_named_twice() {
    let folder = policies();
    let input = tasks(3);
    let run = |flags: &[&str]| lines(folder.path(), &[flags, &["--max-tokens", "12"]].concat(), &input);
    assert!(run(&["--policy", "tool"]) == run(&["--policy", "tool=tool", "--policy", "planner=./tool"]));
}

#[test]
fn too_many_failed_episodes_fail_the_stage_and_its_end_line() {
    let folder = policies();
    let output = rollout(folder.path(), &["--policy", "tool", "--max-tokens", "100000"], &tasks(2));
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.starts_with("rollout: 2 of 2 episodes could not be scored, first policy: tool: a prompt of "),
        "{stderr}"
    );
    assert!(stderr.contains("\nhint: each has an `error` line"), "{stderr}");
    let values =
        values(&String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>());
    let types: Vec<&str> = values.iter().filter_map(|value| value["type"].as_str()).collect();
    assert_eq!(types, ["error", "episode", "error", "episode", "end"]);
    assert_eq!(values[0]["boundary"], "policy");
    assert_eq!(values[4]["ok"], false);
}

/// The device engine in the simulator: the same tokens, log-probabilities up to rounding.
#[test]
fn the_device_engine_plays_the_same_episodes() {
    let folder = policies();
    let input = tasks(4);
    let run = |device| {
        let flags = ["--branches", "3", "--turns", "2", "--seed", "5", "--device", device];
        values(&lines(folder.path(), &[&TEAM, &flags[..]].concat(), &input))
    };
    let (cpu, sim) = (run("cpu"), run("sim"));
    assert_eq!(cpu.len(), sim.len());
    for (mut cpu, mut sim) in cpu.into_iter().zip(sim) {
        let [theirs, ours] = [&mut cpu, &mut sim].map(|line| line["completion_logprobs"].take());
        assert_eq!(cpu, sim);
        let numbers = |value: Value| -> Vec<f64> {
            value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        for (theirs, ours) in numbers(theirs).into_iter().zip(numbers(ours)) {
            assert!((theirs - ours).abs() <= 1e-4, "{theirs} and {ours}");
        }
    }
}

/// An engine a device: the same bytes from 1, 2 and 4 of them, and from two policies with one each.
#[test]
fn the_number_of_devices_changes_no_byte() {
    let folder = policies();
    let input = tasks(8);
    let play = |team: &[&str], device: &str| {
        let flags = ["--branches", "2", "--turns", "2", "--seed", "5", "--threads", "4", "--device", device];
        lines(folder.path(), &[team, &flags[..]].concat(), &input)
    };
    let one = play(&TEAM, "sim");
    for device in ["sim:0-1", "sim:0-3"] {
        assert!(play(&TEAM, device) == one, "{device}");
    }
    let apart = TEAM.map(|value| value.replace("planner=planner", "planner=planner@sim:1"));
    assert!(apart.iter().any(|value| value.ends_with("@sim:1")), "{apart:?}");
    assert!(play(&apart.each_ref().map(String::as_str), "sim") == one);
}

/// Limits on processes and threads do not bind root, so the program runs as another user.
#[test]
fn a_thread_that_cannot_be_started_is_unavailable() {
    fetch_runtime();
    let folder = policies();
    let library = rollout::runtime::find(rollout::runtime::Build::Cpu).expect("the library");
    for file in [library.as_path(), Path::new(env!("CARGO_BIN_EXE_rollout"))] {
        std::fs::copy(file, folder.path().join(file.file_name().expect("a name"))).expect("copied");
    }
    // Everything in the folder is another user's to read.
    let opened = Command::new("chmod").args(["-R", "a+rX", "."]).current_dir(folder.path()).status();
    assert!(opened.expect("chmod runs").success());
    // The program itself, its reader, a worker or two.
    for limit in 1..=3 {
        let mut command = Command::new(folder.path().join("rollout"));
        // SAFETY: only asks.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        let limits = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        // SAFETY: a system call that may follow `fork`.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NPROC, &limits) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        command
            .args(["--quiet", "--policy", "tool", "--threads", "8"])
            .env("ORT_DYLIB_PATH", folder.path().join(library.file_name().expect("a name")))
            .current_dir(folder.path());
        let output = run_on(&mut command, tasks(2));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{limit}: {stderr}");
        assert!(stderr.starts_with("rollout: a thread cannot be started: "), "{limit}: {stderr}");
        assert!(stderr.lines().count() == 2 && stderr.contains("\nhint: "), "{limit}: {stderr}");
        let end = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_owned);
        assert!(end.expect("an end").contains("\"ok\":false"), "{limit}");
    }
}

#[test]
fn a_file_at_its_size_limit_is_an_error_of_the_write() {
    fetch_runtime();
    let folder = policies();
    std::fs::write(folder.path().join("tasks"), tasks(8)).expect("written");
    let program = env!("CARGO_BIN_EXE_rollout");
    // One block is 512 or 1024 bytes, by the shell.
    let script = format!("ulimit -f 8; {program} --quiet --policy tool --max-tokens 12 < tasks > samples");
    let output =
        Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().expect("sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{stderr}");
    assert!(stderr.starts_with("rollout: writing the output: File too large"), "{stderr}");
}

#[test]
fn control_characters_of_names_do_not_reach_the_terminal() {
    let folder = policies();
    let output = rollout(folder.path(), &["--policy", "a\u{1b}[2Jb=tool", "--policy", "tool"], &tasks(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.starts_with("rollout: --policy a\\u{1b}[2Jb=…"), "{stderr}");
    assert!(!stderr.contains('\u{1b}'), "{stderr}");
}

#[test]
fn a_missing_gpu_is_reported_before_anything_is_read() {
    let folder = policies();
    let output = rollout(folder.path(), &["--policy", "tool", "--device", "cuda:99"], "");
    assert_eq!(output.status.code(), Some(69));
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.lines().count() == 2 && stderr.contains("\nhint: "), "{stderr}");
}

/// A stop string ends a completion with the token that completes it, and changes nothing before.
#[test]
fn a_stop_string_ends_a_completion_at_the_token_that_completes_it() {
    let folder = policies();
    let tokenizer =
        Policy::open(&folder.path().join("tool")).and_then(|policy| Tokenizer::load(policy.model()));
    let tokens = tokenizer.and_then(|tokenizer| tokenizer.token_bytes(&[])).expect("a tokenizer");
    let bytes = |ids: &[u32]| -> Vec<u8> { ids.iter().flat_map(|&id| tokens.of(id).to_vec()).collect() };
    let ids = |sample: &Value| -> Vec<u32> {
        serde_json::from_value(sample["completion_ids"].clone()).expect("ids")
    };
    let flags = ["--policy", "tool", "--max-tokens", "40", "--turns", "1", "--branches", "2"];
    let free = values(&lines(folder.path(), &flags, &tasks(4)));
    let first = |values: &[Value]| -> Vec<Value> {
        let of_tool = |value: &&Value| value["type"] == "sample" && value["agent"] == "tool";
        values.iter().filter(of_tool).cloned().collect()
    };
    // From the middle of the 5th token to the middle of the 8th, where they are text.
    let text = first(&free).iter().find_map(|sample| {
        let ids = ids(sample);
        let (begin, end) = (bytes(ids.get(..5)?).len() - 1, bytes(ids.get(..7)?).len() + 1);
        let text = String::from_utf8(bytes(&ids).get(begin..end)?.to_vec()).ok()?;
        (text.is_ascii() && !text.contains(['=', '\0'])).then_some(text)
    });
    let text = text.expect("a completion that is text somewhere");
    let stopped = values(&lines(folder.path(), &[&flags[..], &["--stop", &text]].concat(), &tasks(4)));
    let mut ended = 0;
    for (free, stopped) in first(&free).iter().zip(&first(&stopped)) {
        let (free_ids, ids) = (ids(free), ids(stopped));
        let holds = |ids: &[u32]| bytes(ids).windows(text.len()).any(|window| window == text.as_bytes());
        let expected =
            (1..=free_ids.len()).find(|&count| holds(&free_ids[..count])).unwrap_or(free_ids.len());
        assert_eq!(ids, free_ids[..expected]);
        let logprobs = |sample: &Value| sample["completion_logprobs"].as_array().expect("numbers").clone();
        assert_eq!(logprobs(stopped), logprobs(free)[..expected]);
        if holds(&ids) {
            ended += 1;
            assert_eq!(stopped["finish_reason"], "stop");
            assert!(stopped["completion"].as_str().expect("text").contains(&text), "the text stays");
        }
        assert_eq!(stopped["sampling"]["stop"], serde_json::json!([text]));
    }
    assert!(ended > 0, "{text:?} ended nothing");
}

#[test]
fn a_flag_for_an_agent_that_nobody_plays_is_refused() {
    let folder = policies();
    for (flags, hint) in [
        (["--temperature", "judge=0.5"], "its agents are: tool, planner"),
        (["--max-tokens", "judge=5"], "its agents are: tool, planner"),
        (["--min-p", "judge=0.5"], "its agents are: tool, planner"),
        (["--stop", "a=b"], "its agents are: tool, planner; --stop '=TEXT' for a text with = in it"),
    ] {
        let output = rollout(folder.path(), &[&TEAM[..4], &flags].concat(), &tasks(1));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("the workflow has no agent named") && stderr.contains(hint), "{stderr}");
    }
}
