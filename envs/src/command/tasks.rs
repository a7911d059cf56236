//! `envs tasks`: task lines for `rollout`.

use std::io;

use envs::Split;
use record::failure::{Failure, Result};
use record::line::End;
use record::stage;
use record::write::Writer;
use serde_json::{Map, Value};

use crate::arguments::{Choice, Program};

/// Writes task lines: instances to play, each with its rules in `spec`.
///
/// The test split is a fixed list for each set of rules, whatever the seed; --count takes its first tasks. A --count beyond
/// the split repeats it in a new order. Task i depends only on the settings, the seed and i.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs tasks plan-path --count 32 --seed 7
  envs tasks plan-path --split test --count 300
  envs tasks plan-path --count 8 --set size=10 --set encoding=full | jq .spec")]
pub struct Tasks {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    program: Program,
    /// Which side of the division.
    #[arg(long, value_enum, default_value = "train")]
    split: Split,
    /// Number of tasks.
    #[arg(long, default_value_t = 1, value_name = "N")]
    count: u64,
}

impl Tasks {
    pub fn run(&self) -> Result<()> {
        if let Some(command) = &self.program.env_command {
            let (split, count, seed) = (self.split.name(), self.count, self.choice.seed);
            return self
                .program
                .print(&format!("{command} tasks --split {split} --count {count} --seed {seed}"));
        }
        let environment = self.choice.environment()?;
        let mut tasks = environment.tasks(&self.choice.selection(self.split)?)?;
        let mut writer = Writer::stdout();
        for _ in 0..self.count {
            let Some(task) = tasks.next() else { break };
            writer.object(&task?)?;
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
        }
        end(&mut writer, &[("tasks", self.count)])
    }
}

/// Writes the `end` line of a stream that begins here, and flushes.
pub fn end(writer: &mut Writer<impl io::Write>, counts: &[(&str, u64)]) -> Result<()> {
    let counts: Map<String, Value> =
        counts.iter().map(|(name, count)| ((*name).to_owned(), (*count).into())).collect();
    let timing = [("build".to_owned(), Value::from(stage::build()))].into();
    writer.object(&End { stage: "envs".to_owned(), ok: true, counts, timing, ..End::default() })?;
    writer.flush()
}
