//! `envs list`: which environments there are, with their workflows and settings.

use std::fmt::Write as _;
use std::io::Write as _;

use record::failure::Result;

/// Lists the environments with their workflows, settings and demonstrators.
#[derive(clap::Args)]
#[command(help_template = crate::TEMPLATE, before_help = "\
Examples:
  envs list
  envs list --names")]
pub struct List {
    /// The names alone, one a line.
    #[arg(long)]
    names: bool,
}

impl List {
    pub fn run(&self) -> Result<()> {
        let mut text = String::new();
        for environment in envs::ENVIRONMENTS {
            text.push_str(environment.name());
            if self.names {
                text.push('\n');
                continue;
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, ": {}", environment.summary());
            for workflow in environment.workflows() {
                let (name, agents, order) =
                    (workflow.name(), workflow.agents().join(", "), workflow.describe());
                let _ = writeln!(text, "  --workflow {name:<12} {agents} ({order})");
            }
            for setting in environment.settings() {
                let shown = format!("{} = {}", setting.name, setting.default);
                let _ = writeln!(text, "  --set {shown:<45} {}", setting.meaning);
            }
            if !environment.demonstrators().is_empty() {
                let _ = writeln!(text, "  --mix {}", super::demo::mix_text(environment.demonstrators()));
            }
        }
        std::io::stdout().write_all(text.as_bytes()).or_else(super::tasks::quiet_when_closed)
    }
}
