//! The command line of `report`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  # a page about a run: learning curves, group statistics, and a browser of sampled episodes
  report runs/plan-path

  # two runs in one page, and all metrics as a table
  report runs/shared runs/per-role --html compare.html --csv compare.csv

  # a chart as a figure for a paper, and its data beside it: success.pdf and success.csv
  report runs/shared runs/per-role --figure success.pdf

  # methods side by side over their seeds, with the difference to the first, seed by seed
  report compare runs/rloo-* runs/grpo-*

  # on the terminal, while it trains
  report runs/plan-path --watch

  # for TensorBoard: tensorboard --logdir events
  report runs/plan-path --tensorboard events

  # success on held-out tasks with its 95 % interval and the tokens it took
  envs tasks plan-path --split test --count 300 | rollout --policy run/shared --greedy | report evaluate";

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
    /// Another command.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Which runs, and what to write.
    #[command(flatten)]
    pub runs: Runs,
}

/// Commands other than writing about runs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Prints the result of an evaluation: success with its 95 % interval, pass@k, and the tokens it took
    Evaluate(Evaluate),
    /// Rates versions by games that they played against each other
    Elo(Elo),
    /// Compresses streams: FILE.zst takes the place of FILE, which every stage reads as before
    ///
    /// The stages read both, from files and pipes.
    ///
    /// Examples:
    ///   report compress runs/plan-path                 # of every committed step what samples and tasks are left
    ///   report compress samples.jsonl
    ///   zstdcat samples.jsonl.zst | jq .reward         # by hand
    #[command(verbatim_doc_comment)]
    Compress(Compress),
    /// Compares methods over their seeds: success with its interval, and the difference to the first, seed by seed
    ///
    /// Runs are seeds of one method if their run.json differs in the seed alone, whatever their folders are called. A
    /// method is called by what it does otherwise than the others, and all are compared with that of the first RUN.
    ///
    /// Success is that of the last evaluation which all runs have. A difference is taken seed by seed, over the seeds
    /// that both methods have. Intervals are Student's, of the mean over seeds: with three seeds they are wide.
    ///
    /// Examples:
    ///   report compare runs/grpo-1 runs/grpo-2 runs/grpo-3 runs/rloo-1 runs/rloo-2 runs/rloo-3
    ///   report compare runs/* --format json | jq .against
    #[command(verbatim_doc_comment)]
    Compare(Compare),
    /// Shows what a credit rule does to each agent: flat groups, its share of the advantage, where that points
    Roles(Roles),
}

/// Which runs, and what to write.
#[derive(Args, Debug)]
pub struct Runs {
    /// Run directories of pipeline.sh, or a stream of samples; several are drawn together
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// Write one self-contained page [default without another output: RUN/report.html, for several runs
    /// report.html]. A link is followed; a device or a FIFO is written through
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write all metrics as one table; - is stdout. Links, devices and FIFOs as with --html
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write TensorBoard events, a folder in DIR for each run
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,

    /// Write a chart as a figure, vectors in a plain style, with its data as CSV beside it (repeatable): success.pdf,
    /// figures/entropy.svg. The name is the chart's, as the page calls it below each; an unknown one lists them all
    #[arg(long, value_name = "NAME.pdf|svg")]
    pub figure: Vec<PathBuf>,

    /// Steps of which the page shows sampled episodes, spread evenly
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub episode_steps: usize,

    /// Solved and unsolved episodes that the page shows of each of them
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub episodes: usize,

    /// Show a run on the terminal while it trains, until Ctrl-C
    #[arg(long, conflicts_with_all = ["html", "csv", "tensorboard", "figure", "show"])]
    pub watch: bool,

    /// Put this episode on the page, too, as the page calls it (repeatable): 12.7
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

/// What to compare.
#[derive(Args, Debug)]
pub struct Compare {
    /// Run directories of pipeline.sh
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = TableFormat::Table, value_name = "HOW")]
    pub format: TableFormat,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// Prints the result of an evaluation: success with its 95 % interval, pass@k, and the tokens it took.
#[derive(Args, Debug)]
pub struct Evaluate {
    /// Streams of `rollout`; without one stdin
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Another evaluation of the same tasks: prints how much better each FILE is, task by task. Played with rollout --absent ROLE,
    /// it shows how often the role helps (the team solves a task that it fails without it) and hurts
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = ResultFormat::Table, value_name = "HOW")]
    pub format: ResultFormat,

    /// Accept an incomplete stream: no `end` line, one that is not ok, or less than it announces
    #[arg(long)]
    pub allow_incomplete: bool,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// Rates versions by the games that they played against each other: Elo by maximum likelihood (Bradley and Terry, draws
/// as half a win), with the oldest version at 0, and standard errors of the difference to it.
///
/// Whoever earned more in an episode has won it (`returns`). Let each pair play both ways, with equal tasks:
///
///   envs tasks tic-tac-toe --split test --count 100 |
///     rollout --policy x=RUN/policies/shared/step-000000 --policy o=RUN/policies/shared/step-000080 --branches 1 > one
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Elo {
    /// Streams of `rollout`; without one stdin
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// How to print it; json and line print an object for each version
    #[arg(long, value_enum, default_value_t = ResultFormat::Table, value_name = "HOW")]
    pub format: ResultFormat,
}

/// What to compress.
#[derive(Args, Debug)]
pub struct Compress {
    /// Streams, or run directories of pipeline.sh
    #[arg(value_name = "RUN|FILE", required = true)]
    pub paths: Vec<PathBuf>,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// How a comparison is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// A table for people
    Table,
    /// One JSON line of type comparison for each method
    Json,
}

/// Shows by agent what a credit rule makes of a record: groups with nothing to learn from (`groups_flat` by reward, `flat` by advantage, and by turn),
/// the agent's share of |advantage| x tokens (`advantage_mass`), mean, deviation and largest 1 % of its advantages, their
/// correlation with success, and in trees how much of the rewards' variance is the candidate and not the state.
///
/// Examples:
///   group < samples.jsonl | advantage | report roles
///   report roles runs/plan-path/steps/000010/samples.jsonl
///   report roles at-grpo.jsonl --against c3.jsonl     # two rules on one record: the cosine of their advantages
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Roles {
    /// A stream of `advantage`; without one stdin
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// The same samples with the advantages of another rule
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// How to print it; json and line print an object for each agent
    #[arg(long, value_enum, default_value_t = ResultFormat::Table, value_name = "HOW")]
    pub format: ResultFormat,
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
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
