//! `serve RUN` and `ask RUN QUESTION`: the team of a run, as it was best, for clients of OpenAI's API and for questions.
//!
//! Environment, workflow, prompts, limits and stop texts are the run's. Answers to questions are greedy, as in its
//! evaluations; clients of the server get the run's sampling unless they ask for another.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use record::failure::{Failure, Result};
use serde_json::{Value, json};

use crate::checks::Launcher;
use crate::environment::{self, Acting};
use crate::file;
use crate::prepare::absolute;
use crate::programs::{Programs, cannot_start, code_of, silent};
use crate::settings::Settings;
use crate::stages::Plan;
use crate::team::Team;
use crate::values::is_server;

/// The team of a run.
struct Trained {
    programs: Programs,
    settings: Settings,
    acting: Acting,
    team: Team,
}

impl Trained {
    /// Reads a run, and takes its best policies or else its newest.
    fn open(run: &Path) -> Result<Trained> {
        if !run.join("config.toml").is_file() || !run.join("policies/done").is_file() {
            return Err(Failure::usage(format!("{}: no run with policies is there", run.display()))
                .hint("name the folder of a run, such as runs/math; ./pipeline.sh list shows them"));
        }
        let mut words = file::of_run(run)?;
        words.extend(["--run".to_owned(), run.display().to_string()]);
        let mut settings = Settings::new(&words)?;
        let mut programs = Programs::find()?;
        programs.set_up(&settings, Launcher::Local, None)?;
        let acting = environment::ask(&programs, &mut settings)?;
        let team = Team::new(&settings, &acting)?;
        let place = |agent: &String| match team.served.get(agent) {
            Some(url) => url.clone(),
            None => {
                let name = team.policy.get(agent).map_or("", String::as_str);
                let best = run.join("best").join(name);
                if best.is_dir() { best } else { run.join("policies").join(name) }.display().to_string()
            }
        };
        let served = team.agents.iter().map(|agent| (agent.clone(), place(agent))).collect();
        let team = Team { agents: team.agents, served, ..Team::default() };
        Ok(Trained { programs, settings, acting, team })
    }

    fn plan<'a>(&'a self, run: &'a Path) -> Plan<'a> {
        let Trained { programs, settings, acting, team } = self;
        Plan { programs, settings, acting, team, run, launcher: Launcher::Local, halvings: 0 }
    }
}

/// Serves the policies of a run in place of this process.
///
/// # Errors
/// There is no run, or servers play all its agents: usage.
pub fn serve(run: &str, address: &str) -> Result<()> {
    let run = absolute(Path::new(run))?;
    let mut trained = Trained::open(&run)?;
    let servers: Vec<String> =
        trained.team.served.values().filter(|place| is_server(place)).cloned().collect();
    trained.team.agents.retain(|agent| !trained.team.served.get(agent).is_some_and(|place| is_server(place)));
    if trained.team.agents.is_empty() {
        return Err(Failure::usage("servers play all agents of this run").hint("ask those servers"));
    }
    for server in servers {
        record::stage::note("pipeline.sh", format!("{server} plays an agent, and is asked there"));
    }
    let line = trained.plan(&run).serving(address);
    Err(cannot_start("bash", &trained.programs.command("bash").args(["-c", &line.script()]).exec()))
}

/// Plays a question each, or one per line of stdin, and prints what the agents say.
///
/// # Errors
/// There is no run, its environment takes no questions, or an episode fails.
pub fn ask(run: &str, questions: &[String], as_json: bool) -> Result<()> {
    let run = absolute(Path::new(run))?;
    let trained = Trained::open(&run)?;
    let questions = if questions.is_empty() { &["-".to_owned()][..] } else { questions };
    let [tasks, play] = trained.plan(&run).asking(questions);
    let script = format!("set -o pipefail; ({}) | ({})", tasks.script(), play.script());
    let mut bash = trained.programs.command("bash");
    bash.args(["-c", &script]).env("STEP", "0").stdin(Stdio::inherit()).stdout(Stdio::piped());
    let mut child = bash.spawn().map_err(|error| cannot_start("bash", &error))?;
    let (mut turns, mut failed) = (Vec::new(), None);
    for line in child.stdout.take().map(|stdout| BufReader::new(stdout).lines()).into_iter().flatten() {
        let line = line.map_err(Failure::io)?;
        let line: Value = serde_json::from_str(&line).unwrap_or_default();
        match line["type"].as_str() {
            Some("sample" | "served") => turns.push(line),
            Some("error") => failed = Some(line["message"].as_str().unwrap_or_default().to_owned()),
            Some("episode") => {
                let told = told(&std::mem::take(&mut turns), failed.take(), &line, as_json);
                record::write::stdout(told.as_bytes())?;
            }
            _ => {}
        }
    }
    let status = child.wait().map_err(|error| cannot_start("bash", &error))?;
    match code_of(status) {
        0 => Ok(()),
        code => Err(silent(code)),
    }
}

/// The answer to a question: its turns and the last word, or one line of JSON.
fn told(turns: &[Value], failed: Option<String>, episode: &Value, as_json: bool) -> String {
    let said = |turn: &Value| turn["completion"].as_str().unwrap_or_default().trim().to_owned();
    let last = turns.last();
    if as_json {
        let turn = |turn: &Value| {
            json!({"turn": turn["turn"], "agent": turn["agent"], "text": said(turn), "finish_reason": turn["finish_reason"],
                   "policy_version": turn["policy_version"], "prompt": turn["prompt"]})
        };
        let all: Vec<Value> = turns.iter().map(turn).collect();
        let (agent, answer) = (last.map(|turn| &turn["agent"]), last.map(said));
        return format!(
            "{}\n",
            json!({"turns": all, "agent": agent, "answer": answer, "stop": episode["stop"], "error": failed})
        );
    }
    let mut text = String::new();
    for turn in turns {
        let cut = if turn["finish_reason"] == "length" { " (cut at --max-tokens)" } else { "" };
        let agent = turn["agent"].as_str().unwrap_or_default();
        let _ = writeln!(text, "[{} {agent}]{cut}\n{}\n", turn["turn"], record_text(&said(turn)));
    }
    let _ = match (failed, last) {
        (Some(cause), _) => writeln!(text, "no answer: {}", record::stage::printable(&cause)),
        (None, Some(turn)) => {
            let agent = turn["agent"].as_str().unwrap_or_default();
            writeln!(text, "answer ({agent}): {}", record_text(&said(turn)))
        }
        (None, None) => writeln!(text, "no answer: nobody acted"),
    };
    text
}

/// A model's text for a terminal: its lines, without what steers one.
fn record_text(text: &str) -> String {
    text.lines().map(record::stage::printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_told_with_their_roles_and_the_last_word() {
        let turn = |turn: u64, agent: &str, text: &str, reason: &str| json!({"type": "sample", "turn": turn, "agent": agent, "completion": text, "finish_reason": reason});
        let turns = [turn(0, "solver", "6 + 7\n= 13\u{1b}[2J ", "stop"), turn(0, "checker", "13", "length")];
        let episode = json!({"stop": "terminated"});
        let text = told(&turns, None, &episode, false);
        let expected = "[0 solver]\n6 + 7\n= 13\\u{1b}[2J\n\n[0 checker] (cut at --max-tokens)\n13\n\nanswer (checker): 13\n";
        assert_eq!(text, expected);
        let line: Value = serde_json::from_str(&told(&turns, None, &episode, true)).unwrap();
        assert_eq!(
            (&line["answer"], &line["agent"], &line["turns"][1]["turn"]),
            (&json!("13"), &json!("checker"), &json!(0))
        );
        assert_eq!(told(&[], Some("no sandbox".into()), &episode, false), "no answer: no sandbox\n");
    }

    #[test]
    fn a_folder_without_a_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let failure = ask(&folder.path().display().to_string(), &[], false).unwrap_err();
        assert!(
            failure.code == 2 && failure.message.ends_with("no run with policies is there"),
            "{failure:?}"
        );
    }
}
