//! The defaults that depend on the kind of policy. docs/real-models.md says how we found the defaults of pretrained policies.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Command};

use crate::kind::PolicyKind;
use crate::values::Number;

/// Flags, and their defaults for tiny policies, pretrained ones, and adapters of those.
const BY_KIND: [(&str, [&str; 3]); 8] = [
    ("steps", ["80", "10", "10"]),
    ("warmup", ["3600", "0", "0"]),
    ("keep_best", ["no", "no", "yes"]),
    ("tasks", ["48", "16", "16"]),
    ("temperature", ["1", "0.7", "0.7"]),
    ("lr", ["1e-3", "1e-5", "5e-4"]),
    ("lr_warmup", ["5", "2", "2"]),
    ("eval_every", ["20", "10", "10"]),
];

/// The flags of the warm-up's `update`, unless `--flags warm-up=…` has them, by kind as above.
const WARM_UP: [(&str, [&str; 3]); 5] = [
    ("--optimizer", ["muon", "adamw", "adamw"]),
    ("--lr", ["0.03", "3e-5", "5e-4"]),
    ("--lr-other", ["4e-3", "", ""]),
    ("--betas", ["0.9,0.999"; 3]),
    ("--lr-warmup", ["50", "10", "2"]),
];

/// Demonstrations per step of the warm-up, by kind.
const DEMONSTRATIONS: [u64; 3] = [8, 2, 2];

/// The command with the defaults of a kind of policy; its help has all three.
pub fn choose(mut command: Command, kind: PolicyKind) -> Command {
    // A switch also takes a value, so that the command line can switch off what a file switches on.
    command = command.mut_args(|argument| match argument.get_action() {
        ArgAction::SetTrue => argument
            .action(ArgAction::Set)
            .value_parser(BoolishValueParser::new())
            .value_name("yes|no")
            .num_args(0..=1)
            .require_equals(true)
            .default_value("no")
            .hide_default_value(true)
            .default_missing_value("yes")
            .hide_possible_values(true),
        _ => argument,
    });
    for (name, [tiny, pretrained, adapters]) in BY_KIND {
        if command.get_arguments().any(|argument| argument.get_id() == name) {
            command = command.mut_arg(name, |argument| {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let others = if pretrained == adapters {
                    format!("a pretrained model {pretrained}")
                } else {
                    format!("a pretrained model {pretrained}, adapters of one {adapters}")
                };
                let argument = argument.help(format!("{help} [default: {tiny}; {others}]"));
                let default = [tiny, pretrained, adapters][kind as usize];
                argument.default_value(default).hide_default_value(true)
            });
        }
    }
    command.mut_subcommands(|sub| choose(sub, kind))
}

/// The default of a flag that takes a number by agent.
pub fn number(flag: &str, kind: PolicyKind) -> Number {
    let found = BY_KIND.iter().find(|(name, _)| *name == flag);
    found.and_then(|(_, texts)| texts[kind as usize].parse().ok()).unwrap_or(Number(1.0))
}

/// The flags of the warm-up's `update`.
pub fn warm_up(kind: PolicyKind) -> impl Iterator<Item = (&'static str, &'static str)> {
    WARM_UP
        .iter()
        .map(move |(flag, values)| (*flag, values[kind as usize]))
        .filter(|(_, value)| !value.is_empty())
}

/// The demonstrations of a warm-up of this many steps.
pub fn demonstrations(kind: PolicyKind, steps: u64) -> u64 {
    steps.saturating_mul(DEMONSTRATIONS[kind as usize])
}
