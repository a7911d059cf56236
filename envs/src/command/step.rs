//! `envs step`: an environment as a process that answers line by line.

use std::io::BufRead;

use record::failure::{Failure, Result};
use record::stage;
use record::write::Writer;

/// Answers each request line on stdin with one line on stdout.
///
/// A request with `task` (and optionally `workflow`) resets: the answer has state, observations, agents, order and turns.
/// One with `state`, `agent` and `action` is answered with state, rewards, reward_components, terminated, success and
/// observations; one with `state` and `actions`, texts by agent, applies them together. `request` is echoed. An invalid
/// request is answered with `error`. The same line always gets the same answer.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
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
        let mut writer = Writer::stdout();
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
            writer.raw(&envs::step::answer(environment, &line))?;
            writer.flush()?;
        }
        Ok(())
    }
}
