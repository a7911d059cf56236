//! `envs step`: an environment as a process that answers one line for each line.

use std::io::{BufRead, Write};

use record::failure::{Failure, Result};
use record::stage;

/// Answers each request line on stdin with one line on stdout.
///
/// A request with `task` (and, if wanted, `workflow`) resets and answers state, observations, agents, order and
/// turns. One with `state`, `agent` and `action` answers state, rewards, reward_components, terminated, success
/// and observations; one with `state` and `actions`, texts by agent, applies them together. `request` is echoed. A request that makes no sense is answered with `error`. The same line
/// always gets the same answer.
#[derive(clap::Args)]
#[command(help_template = crate::TEMPLATE, before_help = "\
Examples:
  envs tasks plan-path --count 1 | jq -c 'select(.type == \"task\") | {request: 1, task: .}' | envs step plan-path
  envs step plan-path < requests.jsonl")]
pub struct Step {
    /// The environment; `envs list` names them.
    #[arg(value_name = "ENV")]
    environment: String,
}

impl Step {
    pub fn run(&self) -> Result<()> {
        let environment = envs::find(&self.environment)?;
        let mut input = std::io::stdin().lock();
        let mut output = std::io::BufWriter::new(std::io::stdout().lock());
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            match input.read_until(b'\n', &mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return Err(Failure::io(format!("reading stdin: {error}"))),
            }
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            let line = String::from_utf8_lossy(bytes.trim_ascii_end());
            let answer = envs::step::answer(environment, &line);
            let written = writeln!(output, "{answer}").and_then(|()| output.flush());
            written.or_else(super::tasks::quiet_when_closed)?;
        }
        Ok(())
    }
}
