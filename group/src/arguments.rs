//! The command line of `group`.

use clap::{Parser, ValueEnum};
use record::decorate::Flags;

use crate::key::By;

const TEMPLATE: &str = "\
{about}

Examples:
  group < samples.jsonl > groups.jsonl
  group --by episode < samples.jsonl | jq -c 'select(.type == \"end\") | .counts'
  jq -c 'select(.type != \"sample\" or .agent == \"planner\")' samples.jsonl |
    group --allow-incomplete > planner.jsonl
  head -n 3 samples.jsonl | group --allow-incomplete --incomplete drop

{usage-heading} {usage}

{all-args}

Reads sample lines on stdin and adds group and group_size; other lines pass through. docs/stream-format.md has every
field.
Exit codes: 0 done, 2 usage, 65 bad record, broken group or incomplete stream, 74 I/O, 130 and 143
interrupted.";

/// Decides which samples are compared: adds `group` and `group_size`.
#[derive(Clone, Copy, Parser, Debug)]
#[command(name = "group", version, help_template = TEMPLATE)]
pub struct Arguments {
    /// What the members of a group share
    ///
    /// With agent-turn they share one prompt. The other values are ablations: their members have different prompts,
    /// and `end` says so.
    #[arg(long, value_enum, default_value_t = By::AgentTurn, value_name = "KEY")]
    pub by: By,

    /// For advantage --credit gigpo: also mark samples of one agent in one task that have equal prompts, in any
    /// episode and turn
    ///
    /// Adds anchor (the id of the first such sample) and anchor_size. Holds the stream in memory.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub anchor: Option<Anchor>,

    /// What to do with a group that lacks branches at the end of the stream
    #[arg(long, value_enum, default_value_t = Incomplete::Error, value_name = "WHAT")]
    pub incomplete: Incomplete,

    /// What to do with a sample that was not scored (its reward is null); it never counts as 0
    #[arg(long, value_enum, default_value_t = Unscored::Error, value_name = "WHAT")]
    pub unscored: Unscored,

    /// The flags of every decorating stage.
    #[command(flatten)]
    pub flags: Flags,
}

/// What the samples of an anchor share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Anchor {
    /// All tokens of the prompt
    Prompt,
}

/// Handling of groups that lack branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Incomplete {
    /// Exit 65
    Error,
    /// Drop its samples and count the group
    Drop,
}

/// Handling of samples without a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unscored {
    /// Exit 65
    Error,
    /// Drop the sample; its group becomes smaller
    DropSample,
    /// Drop its whole group
    DropGroup,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
