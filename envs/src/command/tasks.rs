//! `envs tasks`: task lines for `rollout`.

use std::collections::HashSet;
use std::io;

use environment::streams::ASKED;
use envs::Split;
use record::failure::{Failure, Result};
use record::line::End;
use record::stage;
use record::write::Writer;
use serde_json::{Map, Value};

use crate::arguments::{Choice, Program};

/// Writes task lines: instances to play, each with its rules in `spec`.
///
/// The test split is a fixed list for each set of rules, independent of the seed; --count takes its first
/// tasks. If --count exceeds the split, tasks repeat in a new order, and a message says how many different
/// tasks there are. Task i depends only on the settings, the seed and i.
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
    /// The split to draw from.
    #[arg(long, value_enum, default_value = "train")]
    split: Split,
    /// Number of tasks.
    #[arg(long, default_value_t = 1, value_name = "N")]
    count: u64,
    /// A task of your own question, to which no answer is known, instead of drawn ones; - reads one per line from stdin
    ///
    /// Its rewards mean nothing. Repeatable. With --env-command it is passed on; the program answers with tasks whose `split`
    /// is `asked`.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["split", "count", "seed"])]
    ask: Vec<String>,
}

impl Tasks {
    /// Writes the tasks of questions.
    fn asked(&self) -> Result<()> {
        let mut questions = Vec::new();
        for text in &self.ask {
            match text == "-" {
                true => questions
                    .extend(io::stdin().lines().collect::<io::Result<Vec<_>>>().map_err(Failure::io)?),
                false => questions.push(text.clone()),
            }
        }
        questions.retain(|text| !text.trim().is_empty());
        if questions.is_empty() {
            return Err(Failure::usage("--ask: there is no question").hint("--ask 'What is 6 + 7?'"));
        }
        let count = questions.len() as u64;
        let mut writer = Writer::stdout();
        if let Some(command) = &self.program.env_command {
            let quoted = questions.iter().map(|text| format!(" --ask='{}'", text.replace('\'', "'\\''")));
            let line = format!("{command} tasks{}", quoted.collect::<String>());
            let hint = "it has to take `tasks --ask TEXT` and to answer with a task of that text, whose `split` is `asked`";
            let mut asked = 0;
            let outcome = self.program.each(&line, |line| {
                let task: Value = serde_json::from_str(&line).unwrap_or_default();
                asked += u64::from(task["type"] == "task" && task["split"] == ASKED);
                writer.raw(&line)
            });
            outcome.map_err(|failure| failure.hint(hint))?;
            if asked != count {
                return Err(
                    Failure::data(format!("{command}: {asked} tasks for {count} questions")).hint(hint)
                );
            }
            return writer.flush();
        }
        let (environment, settings) =
            (self.choice.environment()?, self.choice.selection(self.split)?.settings);
        for text in &questions {
            writer.object(&environment.question(text, &settings)?)?;
        }
        end(&mut writer, &[("tasks", count)])
    }

    pub fn run(&self) -> Result<()> {
        if !self.ask.is_empty() {
            return self.asked();
        }
        if let Some(command) = &self.program.env_command {
            let (split, count, seed) = (self.split.name(), self.count, self.choice.seed);
            return self
                .program
                .print(&format!("{command} tasks --split {split} --count {count} --seed {seed}"));
        }
        let environment = self.choice.environment()?;
        let mut tasks = environment.tasks(&self.choice.selection(self.split)?)?;
        let mut writer = Writer::stdout();
        let mut names = HashSet::new();
        for _ in 0..self.count {
            let Some(task) = tasks.next().transpose()? else { break };
            writer.object(&task)?;
            names.insert(task.task);
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
        }
        let (distinct, mut counts) = (names.len() as u64, vec![("tasks", self.count)]);
        if self.split == Split::Test && distinct < self.count {
            let tasks = stage::counted(distinct, "different task");
            stage::note("envs", format!("the test split has {tasks}: --count {} repeats them", self.count));
            counts.push(("distinct", distinct));
        }
        end(&mut writer, &counts)
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
