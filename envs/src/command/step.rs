//! `envs step`: an environment as a process that answers line by line.

use record::failure::{Failure, Result};
use record::read::Reader;
use record::stage;
use record::write::Writer;

/// Answers each request line on stdin with one line on stdout.
///
/// A request with `task` (and optionally `workflow`) starts an episode: the answer has state, observations,
/// agents, order and turns. A request with `state`, `agent` and `action` is answered with state, rewards,
/// reward_components, terminated, success and observations; with `state` and `actions` (texts by agent) all
/// actions are applied together. `request` is echoed. An invalid request is answered with `error`. Equal
/// lines always get equal answers.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs tasks plan-path --count 1 |
    jq -c 'select(.type == \"task\") | {request: 1, task: .}' | envs step plan-path
  envs step plan-path < requests.jsonl")]
pub struct Step {
    /// The environment; `envs list` names them.
    #[arg(value_name = "ENV", value_parser = crate::arguments::EnvironmentName, hide_possible_values = true)]
    environment: String,
}

impl Step {
    pub fn run(&self) -> Result<()> {
        let environment = envs::find(&self.environment)?;
        let (mut reader, mut writer) = (Reader::stdin(), Writer::stdout());
        while let Some(line) = reader.next_bytes()? {
            let line = String::from_utf8_lossy(line.trim_ascii_end());
            writer.raw(&envs::step::answer(environment, &line))?;
            writer.flush()?;
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
        }
        Ok(())
    }
}
