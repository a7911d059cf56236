//! `envs check`: whether an environment keeps its contract.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use envs::check::{Effort, Finding, Program, Report, check, check_built_in, verdict};
use envs::{Settings, find};
use record::failure::{Failure, Result};
use record::line::{self, Task};
use record::progress::Progress;
use record::read::{Kind, Reader};
use record::stage::printable;
use record::write;
use serde_json::Value;

/// Tests the contract of an environment on its tasks and prints a table; exits 1 if a rule is broken.
///
/// The environment is played over the step protocol (`envs step`). Rules: equal requests get equal answers, in any order
/// and any process; a state survives JSON; every text gets an answer; rewards stay in their range; train and
/// test share no task; the order of agents in a joint action does not matter, and each agent's reward is known;
/// running out of turns is no success; and, with an oracle, it solves every task, no action scores above it, and
/// no path collects more. A built-in environment also has equal tasks for equal seeds, a fixed test split, and
/// answers that are read as a reader expects.
///
/// With --env-command the environment is a program; give it tasks of both splits on stdin.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs check plan-path
  envs check plan-path --set size=4 --set farthest=6 --tasks 100
  envs check plan-path --set size=10 --set encoding=full --tasks 1
  envs check math --set encoding=full --workflow examples/workflows/debate.toml
  (python3 my_env.py tasks --count 20; python3 my_env.py tasks --split test --count 20) |
    envs check --env-command 'python3 my_env.py'")]
pub struct Check {
    /// The environment; `envs list` names them.
    #[arg(value_name = "ENV", value_parser = crate::arguments::EnvironmentName, hide_possible_values = true, required_unless_present = "env_command")]
    environment: Option<String>,
    /// Check this program, with its tasks on stdin.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["environment", "settings"])]
    env_command: Option<String>,
    /// The workflow to play: a name or a TOML file [default: all; for a program, the program's].
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Seconds of silence after which a program is restarted.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Number of tasks of each split to explore in every state.
    #[arg(long, default_value_t = 8, value_name = "N")]
    tasks: u64,
    /// Number of random episodes.
    #[arg(long, default_value_t = 200, value_name = "N")]
    episodes: u64,
    /// Random seed.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    /// Changes a setting; `envs list` names them (repeatable).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl Check {
    pub fn run(&self, quiet: bool) -> Result<()> {
        match (&self.environment, &self.env_command) {
            (Some(name), _) => self.built_in(name, quiet),
            (None, Some(command)) => self.external(command, quiet),
            (None, None) => Err(Failure::usage("no environment").hint("name one, or give --env-command")),
        }
    }

    fn built_in(&self, name: &str, quiet: bool) -> Result<()> {
        let environment = find(name)?;
        let settings = Settings::parse(&self.settings, environment.name(), environment.metadata().settings)?;
        let workflows = match &self.workflow {
            None => environment.workflows().iter().map(|workflow| Some(workflow.name().to_owned())).collect(),
            name => vec![name.clone()],
        };
        if let [Some(name)] = &workflows[..] {
            environment.workflow(name, &Value::Null)?;
        }
        let own = std::env::current_exe().map_err(Failure::io)?;
        let command = format!("'{}' step -q {name}", own.display().to_string().replace('\'', r"'\''"));
        self.print(name, quiet, |effort, advance| {
            check_built_in(environment, &settings, &self.program(command, workflows), effort, advance)
        })
    }

    fn external(&self, command: &str, quiet: bool) -> Result<()> {
        let tasks = tasks_on_stdin()?;
        let program = self.program(command.to_owned(), vec![self.workflow.clone()]);
        self.print(command, quiet, |effort, advance| check(&program, &tasks, effort, advance))
    }

    fn program(&self, command: String, workflows: Vec<Option<String>>) -> Program {
        Program { command, timeout: Duration::from_secs(self.timeout.max(1)), workflows }
    }

    /// Prints what `check` finds about the environment called `name`.
    fn print(
        &self,
        name: &str,
        quiet: bool,
        check: impl FnOnce(&Effort, &mut dyn FnMut()) -> Result<Report>,
    ) -> Result<()> {
        let effort = Effort { tasks: self.tasks, episodes: self.episodes, seed: self.seed };
        let mut progress = Progress::new("envs", quiet, Some(2 * effort.tasks + effort.episodes / 100));
        let report = check(&effort, &mut || progress.inc(1))?;
        progress.finish();
        let mut text = table(&report.findings);
        for note in &report.notes {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "not tried: {}", printable(note));
        }
        write::stdout(text.as_bytes())?;
        verdict(name, &report.findings)
    }
}

/// The task lines on stdin, at least one; lines of other types say nothing here.
fn tasks_on_stdin() -> Result<Vec<Task>> {
    const HINT: &str = "(python3 my_env.py tasks --count 20; python3 my_env.py tasks --split test --count 20) | \
                        envs check --env-command 'python3 my_env.py'";
    if std::io::stdin().is_terminal() {
        return Err(Failure::usage("--env-command takes its tasks from stdin").hint(HINT));
    }
    let mut reader = Reader::stdin();
    let mut tasks = Vec::new();
    while let Some(line) = reader.next()? {
        if matches!(line.kind, Kind::Task) {
            tasks.push(line::parse(&line)?);
        }
    }
    match tasks.is_empty() {
        true => {
            Err(Failure::data("there is no task on stdin: did the program before this one print any?")
                .hint(HINT))
        }
        false => Ok(tasks),
    }
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.rule.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { rule, tried, broken, advice } in findings {
        let verdict = broken.as_ref().map_or("ok", |_| if *advice { "note" } else { "BROKEN" });
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{verdict:<7}{rule:<width$} {tried:>9} tried");
        if let Some(case) = broken {
            let _ = writeln!(text, "       {}", printable(case));
        }
    }
    text
}
