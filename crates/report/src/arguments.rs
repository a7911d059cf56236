//! The command line of `report`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  # a page about a run: learning curves, group statistics, all episodes
  report runs/plan-path

  # two runs in one page, and all metrics as a table
  report runs/shared runs/per-role --html compare.html --csv compare.csv

  # a chart for a paper, and its data: success.pdf and success.csv
  report runs/shared runs/per-role --figure success.pdf

  # methods over their seeds, with the difference to the first, paired by seed
  report compare runs/rloo-* runs/grpo-*

  # on the terminal, while it trains
  report runs/plan-path --watch

  # for TensorBoard: tensorboard --logdir events
  report runs/plan-path --tensorboard events

  # success on held-out tasks with its 95 % interval, and the generated tokens
  envs tasks plan-path --split test --count 300 |
    rollout --policy run/shared --temperature 0 | report evaluate";

/// Reports what a run did: a page, figures, a table, TensorBoard events.
#[derive(Parser, Debug)]
#[command(
    name = "report",
    version,
    before_help = EXAMPLES,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub runs: Runs,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Prints the result of an evaluation: success with its 95 % interval, pass@k, generated tokens
    Evaluate(Evaluate),
    /// Compresses streams: replaces FILE with FILE.zst, which every stage reads
    ///
    /// Examples:
    ///   report compress runs/plan-path                 # samples and tasks of every committed step
    ///   report compress samples.jsonl
    ///   zstdcat samples.jsonl.zst | jq .reward         # read it by hand
    #[command(verbatim_doc_comment)]
    Compress(Compress),
    /// Compares methods over their seeds: success with its interval, and the difference to the first
    ///
    /// Runs are seeds of one method if their run.json differs only in the seed, whatever their folders
    /// are called. A method is named by its settings that differ from the others. All methods are
    /// compared with the method of the first RUN.
    ///
    /// Success is taken at the last evaluation that all runs have, or at equal tokens: with --at-tokens,
    /// and by default if the runs have a token budget. The column tokens counts what was generated up
    /// to there. Differences are paired by seed, over the seeds that both methods have. Intervals are
    /// Student's, of the mean over seeds: with three seeds they are wide.
    ///
    /// Examples:
    ///   report compare runs/grpo-1 runs/grpo-2 runs/grpo-3 runs/rloo-1 runs/rloo-2 runs/rloo-3
    ///   report compare runs/* --format json | jq .against
    #[command(verbatim_doc_comment)]
    Compare(Compare),
    /// Shows the effect of a credit rule on each agent: flat groups, share and direction of the advantage
    ///
    /// For each agent: flat groups (groups_flat by reward, flat by advantage, and by turn), the share of
    /// |advantage| x tokens (advantage_mass), mean, standard deviation and largest 1 % of the advantages,
    /// their correlation with success, and in trees the share of the rewards' variance that comes from
    /// the candidate and not from the state.
    ///
    /// Examples:
    ///   group < samples.jsonl | advantage | report roles
    ///   report roles runs/plan-path/steps/000010/samples.jsonl
    ///   report roles at-grpo.jsonl --against c3.jsonl     # adds the cosine of the two rules' advantages
    #[command(verbatim_doc_comment)]
    Roles(Roles),
}

#[derive(Args, Debug)]
pub struct Runs {
    /// Run directories of pipeline.sh, or a stream of samples; several share one page
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// Write one self-contained page [default without another output: RUN/report.html, for several runs
    /// report.html]. FILE may be a link, a device or a FIFO
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write all metrics as one table; - is stdout. FILE may be a link, a device or a FIFO
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write TensorBoard events to DIR, one folder per run
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,

    /// Draw a chart for a paper with matplotlib, and write its data as CSV (repeatable): success.pdf,
    /// figures/entropy.svg. The page shows each chart's name below it; an unknown name lists all
    #[arg(long, value_name = "NAME.pdf|svg|png")]
    pub figure: Vec<PathBuf>,

    /// Show a run on the terminal while it trains, until Ctrl-C
    #[arg(long, conflicts_with_all = ["html", "csv", "tensorboard", "figure", "show"])]
    pub watch: bool,

    /// Also show this episode in full on the page (repeatable): 12.7
    #[arg(long, value_name = "EPISODE")]
    pub show: Vec<String>,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

impl Runs {
    /// Whether another output than the page is asked for.
    pub fn writes_more(&self) -> bool {
        self.csv.is_some() || self.tensorboard.is_some() || !self.figure.is_empty()
    }
}

#[derive(Args, Debug)]
pub struct Compare {
    /// Run directories of pipeline.sh
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// Take success at the first evaluation after N tokens are generated in training [default: the runs'
    /// token budget, if they have one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub at_tokens: Option<u64>,

    /// Output format
    #[arg(long, value_enum, default_value_t = TableFormat::Table, value_name = "HOW")]
    pub format: TableFormat,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// Prints the result of an evaluation: success with its 95 % interval, pass@k, and the tokens it took.
#[derive(Args, Debug)]
pub struct Evaluate {
    /// Streams of `rollout` [default: stdin]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Another evaluation of the same tasks: also print the difference, paired by task, and how often each FILE
    /// solves a task that this one fails (helps), and the reverse (hurts), as for a role left out with rollout
    /// --absent AGENT
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t = ResultFormat::Table, value_name = "HOW")]
    pub format: ResultFormat,

    /// Accept an incomplete stream: without an `end` line, with one that is not ok, or with fewer lines than it counts
    #[arg(long)]
    pub allow_incomplete: bool,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Args, Debug)]
pub struct Compress {
    /// Streams, or run directories of pipeline.sh
    #[arg(value_name = "RUN|FILE", required = true)]
    pub paths: Vec<PathBuf>,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// How a table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// A table for people
    Table,
    /// A JSON line for each row; of roles for each agent
    Json,
}

#[derive(Args, Debug)]
pub struct Roles {
    /// A stream of `advantage` [default: stdin]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// These samples with the advantages of another rule
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t = TableFormat::Table, value_name = "HOW")]
    pub format: TableFormat,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResultFormat {
    /// A table for people
    Table,
    /// One JSON line of type evaluation for each stream and environment
    Json,
    /// One short line for a log
    Line,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
