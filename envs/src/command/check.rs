//! `envs check`: whether an environment keeps its contract.

use std::fmt::Write as _;
use std::io::Write as _;

use envs::check::{Effort, Finding, check, verdict};
use envs::{Settings, find};
use record::failure::Result;
use record::progress::Progress;

/// Tests the contract of an environment on its own tasks and prints a table; exits 1 if a rule is broken.
///
/// Tasks are the same for the same seed; the test split is fixed and disjoint from train; states survive
/// cloning and JSON; the oracle solves every task; in every situation that can be reached no action scores
/// above the oracle's, and no path collects more; running out of turns is no success; rewards stay in their
/// range; answers are read as a reader expects.
#[derive(clap::Args)]
#[command(help_template = crate::TEMPLATE, before_help = "\
Examples:
  envs check plan-path
  envs check plan-path --set size=4 --set farthest=6 --tasks 100
  envs check plan-path --set size=10 --set encoding=full --tasks 1")]
pub struct Check {
    /// The environment; `envs list` names them.
    #[arg(value_name = "ENV")]
    environment: String,
    /// Tasks of each split whose situations are all explored.
    #[arg(long, default_value_t = 8, value_name = "N")]
    tasks: u64,
    /// Episodes played at random.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    episodes: u64,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    /// Changes a setting; `envs list` names them (repeatable).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl Check {
    pub fn run(&self, quiet: bool) -> Result<()> {
        let environment = find(&self.environment)?;
        let settings = Settings::parse(&self.settings, environment.name(), environment.settings())?;
        let effort = Effort { tasks: self.tasks, episodes: self.episodes, seed: self.seed, settings };
        let steps = 2 * self.tasks + self.episodes / 100;
        let mut progress = Progress::new("envs", quiet, Some(steps));
        let findings = check(environment, &effort, &mut || progress.inc(1))?;
        progress.finish();
        std::io::stdout().write_all(table(&findings).as_bytes()).or_else(super::tasks::quiet_when_closed)?;
        verdict(environment, &findings)
    }
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.rule.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { rule, tried, broken } in findings {
        let verdict = broken.as_ref().map_or("ok", |_| "BROKEN");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{verdict:<7}{rule:<width$} {tried:>9} tried");
        if let Some(case) = broken {
            let _ = writeln!(text, "       {case}");
        }
    }
    text
}
