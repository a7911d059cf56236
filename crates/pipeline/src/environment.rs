//! The run's environment: its name, its agents, and its token limit.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use record::failure::{Failure, Result};
use serde_json::{Value, json};

use crate::defaults;
use crate::inputs;
use crate::kind::PolicyKind;
use crate::processes;
use crate::programs::{Programs, cannot_start, code_of};
use crate::settings::Settings;
use crate::values::Pair;

/// The environment and its agents.
#[derive(Clone, Debug, Default)]
pub struct Acting {
    pub env: String,
    /// The workflow; empty for the program's default.
    pub workflow: String,
    /// The agents, in order.
    pub agents: Vec<String>,
    /// Default of `--max-tokens`: the longest completion, in tokens.
    pub max_tokens: u64,
}

impl Acting {
    /// The failure of an argument that names an `agent` who does not act; `more` ends the hint.
    pub fn no_agent(&self, argument: &str, agent: &str, more: &str) -> Failure {
        let names = [&self.env, &self.workflow].map(String::as_str);
        let place = names.iter().filter(|name| !name.is_empty()).copied().collect::<Vec<_>>().join("/");
        let likeness = |known: &&String| strsim::normalized_damerau_levenshtein(agent, known);
        let near = self.agents.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let near = near.filter(|near| likeness(near) >= 0.5);
        let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
        Failure::usage(format!("{argument}: {place} has no agent {agent}"))
            .hint(format!("{near}agents: {}{more}", self.agents.join(" ")))
    }
}

/// How long an `--env-command` program may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest answer of an `--env-command` program, in bytes.
const LARGEST: u64 = 16 << 20;
/// Token limit for environments that do not declare one, unless their demonstrations are longer.
const SHORT: u64 = 8;
/// More agents are refused by `rollout`, too.
const MOST_AGENTS: usize = 256;
/// Number of demonstrations to measure.
const MEASURED: u64 = 64;

/// Asks an environment for its agents, and adds environment settings that depend on the kind of policy.
///
/// # Errors
/// The environment, workflow, setting or agent does not exist (exit 2).
pub fn ask(programs: &Programs, settings: &mut Settings) -> Result<Acting> {
    let acting = match settings.env_command.clone() {
        None => ask_own(programs, settings)?,
        Some(command) => ask_program(programs, settings, &command)?,
    };
    if let Some(agent) = settings.train.iter().find(|agent| !acting.agents.contains(agent)) {
        return Err(acting.no_agent(&format!("--train {agent}"), agent, ""));
    }
    let is_unknown = |agent: &str| !acting.agents.iter().any(|known| known == agent);
    if let Some((flag, agent)) = settings.agents().into_iter().find(|(_, agent)| is_unknown(agent)) {
        let equals = if flag == "--stop" { "; --stop '=TEXT' for a text with = in it" } else { "" };
        return Err(acting.no_agent(&format!("{flag} {agent}=…"), agent, equals));
    }
    settings.set_token_limit(acting.max_tokens);
    Ok(acting)
}

fn ask_own(programs: &Programs, settings: &mut Settings) -> Result<Acting> {
    let (env, workflow) = (settings.env.clone(), settings.workflow.clone().unwrap_or_default());
    let run = settings.run.as_ref().map_or_else(|| Path::new("runs").join(&env), Into::into);
    let file = inputs::workflow(settings, &run);
    let given = settings.clone();
    let list = |set: &[Pair]| -> Result<Value> {
        let mut arguments = vec!["list", &env, "--format", "json"];
        file.iter().for_each(|file| arguments.extend(["--workflow", file]));
        let set: Vec<String> = set.iter().map(|setting| inputs::setting(&given, &run, setting)).collect();
        set.iter().for_each(|setting| arguments.extend(["--set", setting]));
        let text = programs.printed("envs", &arguments)?; // on failure it suggests the nearest name
        serde_json::from_str(&text)
            .map_err(|error| Failure::work(format!("envs list {env} --format json: {error}")))
    };
    if settings.kind != PolicyKind::Tiny && !settings.set.iter().any(|setting| setting.name == "encoding") {
        let known = list(&[])?;
        let mut names = known["settings"].as_array().into_iter().flatten();
        if names.any(|setting| setting["name"] == "encoding") {
            settings.set.push(Pair { name: "encoding".to_owned(), value: "full".to_owned() });
        }
    }
    let known = list(&settings.set)?;
    let workflows: Vec<&Value> = known["workflows"].as_array().into_iter().flatten().collect();
    let found = workflows.iter().find(|known| known["name"] == file.as_deref().unwrap_or(&workflow));
    let agents = found.and_then(|found| found["agents"].as_array()).ok_or_else(|| {
        let names: Vec<&str> = workflows.iter().filter_map(|known| known["name"].as_str()).collect();
        Failure::usage(format!("there is no workflow {workflow} of an environment {env}"))
            .hint(format!("workflows of {env}: {}, or a file such as mine.toml", names.join(" ")))
    })?;
    let agents = agents.iter().filter_map(|agent| Some(agent.as_str()?.to_owned())).collect();
    let max_tokens = known["max_tokens"].as_u64().unwrap_or(SHORT);
    Ok(Acting { env, workflow, agents, max_tokens })
}

/// Reads the environment's name from its first task, and the agents from its response to that task.
fn ask_program(programs: &Programs, settings: &Settings, command: &str) -> Result<Acting> {
    let workflow = settings.workflow.as_deref().unwrap_or_default();
    let asked = " tasks --split train --count 1 --seed 1";
    let unexpected = |asked: &str, cause: &str| {
        refused(&format!("`{command}{asked}` did not answer as expected: {cause}"))
    };
    let lines = answer(programs, command, asked, "", Stdio::inherit())?;
    let task = lines.iter().find(|line| line["type"] == "task");
    let task = task.ok_or_else(|| unexpected(asked, "no line is a task"))?;
    let env = task["env"].as_str().ok_or_else(|| unexpected(asked, "its task has no `env`"))?;
    let mut request = json!({"request": 1, "task": task});
    if !workflow.is_empty() {
        request["workflow"] = workflow.into();
    }
    let lines = answer(programs, command, "", &format!("{request}\n"), Stdio::inherit())?;
    if let Some(error) = lines[0]["error"].as_str() {
        return Err(refused(&format!("`{command}` refused its own task: {error}")));
    }
    if !workflow.is_empty() {
        // A program that reads `workflow` must answer an unknown name differently.
        request["workflow"] = "no such workflow".into();
        let other = answer(programs, command, "", &format!("{request}\n"), Stdio::inherit())?;
        if other[0] == lines[0] {
            return Err(Failure::usage(format!("--workflow {workflow}: `{command}` answers alike whatever it is called"))
                .hint("leave it out; or have the program read `workflow` of a request with a task, and refuse a name that it does not know"));
        }
    }
    let agents = lines[0]["agents"].as_array().ok_or_else(|| unexpected("", "its answer has no `agents`"))?;
    let agents: Option<Vec<String>> = agents.iter().map(|agent| Some(agent.as_str()?.to_owned())).collect();
    let agents = agents.ok_or_else(|| unexpected("", "an agent is no string"))?;
    if agents.len() > MOST_AGENTS {
        return Err(refused(&format!("`{command}` names {} agents, more than {MOST_AGENTS}", agents.len())));
    }
    if let Some(strange) = agents.iter().chain([&env.to_owned()]).find(|name| !is_name(name)) {
        return Err(refused(&format!("`{command}` has the name {strange:?}, and no folder can have it")));
    }
    let listed = programs.printed("envs", &["list", "--format", "json"])?;
    let mut listed = listed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let max_tokens = listed.find(|known| known["name"] == env).and_then(|known| known["max_tokens"].as_u64());
    Ok(Acting {
        env: env.to_owned(),
        workflow: workflow.to_owned(),
        agents,
        max_tokens: max_tokens.unwrap_or_else(|| limit(programs, settings, command)),
    })
}

/// The token limit for a program: enough for each of the first demonstrations of its warm-up, and for their stop token. No tokenizer makes
/// more tokens than an answer has bytes.
fn limit(programs: &Programs, settings: &Settings, command: &str) -> u64 {
    let count = MEASURED.min(defaults::demonstrations(settings.kind, settings.warmup));
    let answers =
        if count == 0 { Vec::new() } else { demonstrated(programs, command, count, settings.seed()) };
    answers.iter().map(|answer| answer.len() as u64 + 1).max().unwrap_or_default().max(SHORT)
}

/// Returns true if `name` is safe as a folder name.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.chars().all(plain) && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

fn refused(cause: &str) -> Failure {
    Failure::usage(format!("--env-command: {cause}"))
        .hint("docs/stream-format.md shows the lines, examples/ has whole programs; for `import troupe_rl` put examples/ on PYTHONPATH, or install the wheel")
}

/// The answers in a program's demonstrations; empty if it prints no demonstrations.
pub fn demonstrated(programs: &Programs, command: &str, count: u64, seed: u64) -> Vec<String> {
    let asked = format!(" demo --count {count} --seed {seed}");
    let lines = answer(programs, command, &asked, "", Stdio::null()).unwrap_or_default();
    let samples = lines.iter().filter(|line| line["type"] == "sample");
    samples.filter_map(|sample| Some(sample["completion"].as_str()?.to_owned())).collect()
}

/// Runs `command` with `arguments` and `told` on stdin; returns the lines that it prints.
fn answer(
    programs: &Programs,
    command: &str,
    arguments: &str,
    told: &str,
    errors: Stdio,
) -> Result<Vec<Value>> {
    let shown = format!("{command}{arguments}");
    let mut shell = programs.command("sh");
    shell.args(["-c", &shown]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
    let mut child = shell.spawn().map_err(|error| cannot_start("sh", &error))?;
    if let Some(mut stdin) = child.stdin.take() {
        let told = told.to_owned();
        // A program that exits without reading its input is fine.
        std::thread::spawn(move || stdin.write_all(told.as_bytes()));
    }
    let (sender, receiver) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.take(LARGEST + 1).read_to_end(&mut bytes).map(|_| bytes);
            // The receiver may have timed out.
            let _ = sender.send(read);
        });
    }
    let said = receiver.recv_timeout(PATIENCE);
    let whole =
        said.as_ref().is_ok_and(|read| read.as_ref().is_ok_and(|bytes| bytes.len() as u64 <= LARGEST));
    if !whole {
        processes::kill_with_descendants(child.id());
    }
    let status = child.wait().map_err(|error| refused(&format!("`{shown}`: {error}")))?;
    let bytes = match said {
        Err(_) => return Err(refused(&format!("`{shown}` was silent for {} s", PATIENCE.as_secs()))),
        Ok(Err(error)) => return Err(refused(&format!("`{shown}` cannot be read: {error}"))),
        Ok(Ok(_)) if !whole => {
            return Err(refused(&format!("`{shown}` printed more than {} MiB", LARGEST >> 20)));
        }
        Ok(Ok(bytes)) => bytes,
    };
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let lines: std::result::Result<Vec<Value>, _> = lines.map(serde_json::from_slice).collect();
    let lines = lines
        .map_err(|error| refused(&format!("`{shown}` did not answer as expected: not JSON: {error}")))?;
    match lines.is_empty() {
        true => {
            let failure =
                refused(&format!("`{shown}` printed nothing and ended with exit code {}", code_of(status)));
            let file = command.split_whitespace().next().unwrap_or_default();
            let is_bare =
                file.ends_with(".py") && Path::new(file).is_file() && [126, 127].contains(&code_of(status));
            Err(match is_bare {
                true => failure.hint(format!("did you mean --env-command 'python3 {command}'?")),
                false => failure,
            })
        }
        false => Ok(lines),
    }
}
