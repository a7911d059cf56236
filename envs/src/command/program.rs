//! `envs program`: a program that talks to an OpenAI endpoint, as an environment for `--env-command`.

use std::path::PathBuf;

use envs::program::{Launcher, Settings, Tail, Word, check, question, read, run, write};
use record::failure::{Failure, Result};
use record::write::{self as output, Writer};

/// Runs a program whose model calls are the turns of an episode: an environment for `rollout --env-command`.
///
/// The program talks to an OpenAI endpoint, which OPENAI_BASE_URL names, and each of its models is a role. It reads its task, a
/// line of --tasks, from stdin; the last line that it prints is {"reward": 0 to 1} or {"answer": ...}. After the program's own
/// words, `tasks` prints task lines, `check` says what the program needs, and nothing answers requests of the step protocol.
/// Text of a model reaches the program and its tools: run programs with tools in a container.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs program --roles solver,checker --tasks sums.jsonl -- python3 team.py check
  envs program --roles solver,checker --tasks sums.jsonl -- python3 team.py tasks --count 8 --seed 7 |
    rollout --env-command 'envs program --roles solver,checker --tasks sums.jsonl -- python3 team.py' \\
      --policy solver=run/solver --policy checker=run/checker --sampling parallel --branches 8
  envs program --role 'solver=gpt-4o-mini@^You are the solver' --role 'checker=gpt-4o-mini' \\
    --tasks sums.jsonl -- python3 team.py check")]
pub struct Program {
    #[command(flatten)]
    settings: Settings,
    /// Tasks: a JSON object a line, which the program gets; one in eight is for testing.
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// Passes keys of other services (variables that end with API_KEY, AUTH_TOKEN or ACCESS_KEY) on to the program.
    #[arg(long)]
    keep_keys: bool,
    /// Modules that one Python imports for all starts, which are then several times faster: openai, or langgraph.graph.
    #[arg(long, value_name = "MODULES")]
    preload: Option<String>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

impl Program {
    pub fn run(mut self) -> Result<()> {
        self.settings.check()?;
        let word = Tail::split(&mut self.command);
        let launcher = || {
            let (command, preload) = (self.command.clone(), self.preload.clone());
            Launcher::new(command, self.keep_keys, preload, self.settings.clone())
        };
        match word {
            None => run(launcher()?, &self.settings),
            Some(Word::Tasks { ask, .. }) if !ask.is_empty() => {
                let mut writer = Writer::stdout();
                ask.iter().try_for_each(|text| writer.object(&question(&self.tasks, text)?))?;
                super::tasks::end(&mut writer, &[("tasks", ask.len() as u64)])
            }
            Some(Word::Tasks { split, count, seed, .. }) => {
                let mut writer = Writer::stdout();
                write(&mut writer, &self.tasks, split, count, seed)?;
                super::tasks::end(&mut writer, &[("tasks", count)])
            }
            Some(Word::Check) => {
                let (text, is_trainable) = check(&mut launcher()?, &read(&self.tasks)?, &self.settings)?;
                output::stdout(text.as_bytes())?;
                match is_trainable {
                    true => Ok(()),
                    false => Err(Failure::work("the program cannot be trained as it is")),
                }
            }
            Some(Word::Demo { .. }) => Err(Failure::usage("a program has no demonstrations to warm up with")
                .hint(
                    "start from a policy that answers already, as --model smollm2 does, or with --warmup 0",
                )),
        }
    }
}
