//! The table of a run's flags: name, type, default for each kind of policy, meaning. The command line, TOML
//! files, `run.json` and `--help` all use it.

use std::path::Path;

use record::failure::{Failure, Result};

use crate::method;
use crate::words::quoted;

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An integer with this minimum.
    Whole(u64),
    /// A number as it was written: `1e-3` stays `1e-3`.
    Number,
    /// The same for all agents or, as `ROLE=X`, for one; repeatable.
    NumberByRole,
    /// The same with whole numbers, at least this.
    WholeByRole(u64),
    /// Two numbers with a comma between them.
    Betas,
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Integers, comma-separated.
    Seeds,
    /// Text with this value if the flag stands alone.
    Optional(&'static str),
    /// `NAME=VALUE`, repeatable; a table in a TOML file.
    Table,
    /// A name, or `AGENT=DIR`, repeatable.
    Policies,
    /// Text, repeatable.
    List,
    /// No value, `yes` or `no`.
    Switch,
}

impl Kind {
    /// The TOML type, for error messages.
    pub fn described(self) -> &'static str {
        match self {
            Kind::Whole(_) => "a whole number",
            Kind::Number => "a number",
            Kind::NumberByRole | Kind::WholeByRole(_) => "a number, or a string as \"0.7 planner=1\"",
            Kind::Betas => "two numbers in brackets",
            Kind::Text | Kind::Choice(_) | Kind::Optional(_) => "a string",
            Kind::Seeds => "whole numbers in brackets",
            Kind::Table => "a table",
            Kind::Policies => "a string, or a table of strings",
            Kind::List => "a string, or strings in brackets",
            Kind::Switch => "true or false",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The name in snake case: `lr_warmup` is `--lr-warmup`.
    pub name: &'static str,
    pub kind: Kind,
    /// Defaults for tiny policies, pretrained ones, and adapters; empty for the program's default.
    pub defaults: [&'static str; 3],
    /// Placeholder of the value in `--help`.
    pub value: &'static str,
    /// Description; only in [`NUMBERS`]. The other flags have a paragraph in `--help`.
    pub meaning: &'static str,
}

impl Flag {
    /// The name as on the command line, with dashes.
    pub fn dashed(&self) -> String {
        format!("--{}", self.key())
    }

    /// The name as in a TOML file.
    pub fn key(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns true if the flag configures a run and so may stand in its file.
    pub fn is_of_a_run(&self) -> bool {
        !["run", "evaluate", "setup", "config", "resume", "runs", "completions", "explain"]
            .contains(&self.name)
    }

    /// Returns true if `--resume` may change it in the middle of a run. Flags that only affect how later
    /// steps are sampled, compared and trained may change. Flags may not if they shaped the policies, if an
    /// optimizer's state depends on them, or if changing them would make evaluations incomparable.
    pub fn may_change(&self) -> bool {
        const FREE: [&str; 19] = [
            "tasks",
            "branches",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "stop",
            "select",
            "max_tokens",
            "lr",
            "lr_warmup",
            "betas",
            "minibatches",
            "clip",
            "kl",
            "parts",
            "eval_every",
            "flags",
            "stage",
        ];
        FREE.contains(&self.name)
    }
}

const fn number(
    name: &'static str,
    kind: Kind,
    value: &'static str,
    defaults: [&'static str; 3],
    meaning: &'static str,
) -> Flag {
    Flag { name, kind, defaults, value, meaning }
}

const fn choice(name: &'static str, kind: Kind, default: &'static str) -> Flag {
    Flag { name, kind, defaults: [default; 3], value: "", meaning: "" }
}

use Kind::{
    Betas, Choice, List, Number, NumberByRole, Optional, Policies, Seeds, Switch, Table, Text, Whole,
    WholeByRole,
};

const OPTIMIZERS: Kind = Choice(&["adamw", "sgd", "muon"]);

/// The numeric flags of a run. docs/real-models.md says how the defaults of pretrained policies were found.
pub const NUMBERS: &[Flag] = &[
    number("steps", Whole(0), "N", ["80", "10", "10"], "training steps"),
    number("tasks", Whole(1), "N", ["48", "16", "16"], "tasks per step"),
    number("branches", Whole(1), "K", ["8", "8", "8"], "candidates of each agent at each turn"),
    number("temperature", NumberByRole, "T", ["1.0", "0.7", "0.7"], "sampling temperature"),
    number("optimizer", OPTIMIZERS, "NAME", ["adamw", "adamw", "adamw"], "optimizer of `update`"),
    number("lr", Number, "X", ["1e-3", "1e-5", "5e-4"], "peak learning rate"),
    number("lr_warmup", Whole(0), "N", ["5", "2", "2"], "optimizer steps of linear warm-up"),
    number("betas", Betas, "B1,B2", ["0.9,0.95", "0.9,0.95", "0.9,0.95"], "decay rates of AdamW's moments"),
    number("minibatches", Whole(1), "N", ["2", "2", "2"], "optimizer steps per training step"),
    number("clip", Number, "X", ["0.2", "0.2", "0.2"], "clip range of the ratio"),
    number("kl", Number, "X", ["0", "0", "0"], "weight of the KL to the first version"),
    number("keep", Whole(1), "N", ["2", "2", "2"], "versions of each policy to keep"),
    number("save_every", Whole(1), "N", ["1", "1", "1"], "steps between saves with --resident"),
    number("parts", Whole(1), "N", ["1", "1", "1"], "parts of a gradient (docs/scaling.md)"),
    number("eval_every", Whole(0), "N", ["20", "10", "10"], "steps between evaluations; 0: none"),
    number("eval_tasks", Whole(1), "N", ["300", "300", "300"], "test tasks per evaluation"),
    number("warmup", Whole(0), "N", ["3600", "0", "0"], "warm-up: steps (with --env-command: 0)"),
    number("warmup_tasks", Whole(0), "N", ["8", "2", "2"], "warm-up: tasks per step"),
    number("warmup_optimizer", OPTIMIZERS, "NAME", ["muon", "adamw", "adamw"], "warm-up: optimizer"),
    number("warmup_lr", Number, "X", ["0.03", "3e-5", "5e-4"], "warm-up: peak learning rate"),
    number("warmup_lr_warmup", Whole(0), "N", ["50", "10", "2"], "warm-up: steps of linear warm-up"),
    number("warmup_lr_other", Number, "X", ["4e-3", "-", "-"], "warm-up: peak rate of AdamW under muon"),
];

/// The other flags.
pub const CHOICES: &[Flag] = &[
    choice("env", Text, "plan-path"),
    choice("env_command", Text, ""),
    choice("set", Table, ""),
    choice("workflow", Text, "team"),
    choice("method", Choice(&method::NAMES), "at-grpo"),
    choice("explain", Switch, "no"),
    choice("model", Text, "tiny"),
    choice("policies", Policies, "shared"),
    choice("adapter", Text, "rank=16,alpha=32"),
    choice("train", List, ""),
    choice("opponents", Text, ""),
    choice("select", Choice(&["random", "best"]), "random"),
    choice("turns", Whole(1), ""),
    choice("max_tokens", WholeByRole(1), ""),
    choice("top_p", NumberByRole, ""),
    choice("top_k", WholeByRole(0), ""),
    choice("min_p", NumberByRole, ""),
    choice("stop", List, ""),
    choice("tokens", Whole(1), ""),
    choice("seed", Whole(0), "1"),
    choice("seeds", Seeds, ""),
    choice("device", Text, "cpu"),
    choice("dtype", Text, ""),
    choice("flags", Table, ""),
    choice("stage", Table, ""),
    Flag { defaults: ["no", "no", "yes"], ..choice("keep_best", Switch, "no") },
    choice("resident", Switch, "no"),
    choice("shards", Whole(1), "1"),
    choice("ranks", Whole(1), "1"),
    choice("side_by_side", Switch, "no"),
    choice("launcher", Choice(&["auto", "local", "mpirun", "srun"]), "auto"),
    choice("compress", Switch, "no"),
    choice("tensorboard", Text, ""),
    choice("run", Text, ""),
    Flag { value: "STEP", ..choice("evaluate", Whole(0), "") },
    choice("setup", Switch, "no"),
    choice("config", Text, ""),
    choice("resume", Text, ""),
    choice("runs", Optional("runs"), ""),
    choice("completions", Choice(&["bash", "fish", "zsh"]), ""),
];

pub fn all() -> impl Iterator<Item = &'static Flag> {
    NUMBERS.iter().chain(CHOICES)
}

/// Finds a flag by name, with or without its dashes.
pub fn find(name: &str) -> Option<&'static Flag> {
    let name = name.replace('-', "_");
    all().find(|flag| flag.name == name)
}

/// Names that other trainers use for a flag.
const ALIASES: [(&str, &str); 9] = [
    ("learning-rate", "lr"),
    ("batch-size", "tasks"),
    ("num-generations", "branches"),
    ("max-steps", "steps"),
    ("max-new-tokens", "max-tokens"),
    ("max-completion-length", "max-tokens"),
    ("kl-coef", "kl"),
    ("output-dir", "run"),
    ("environment", "env"),
];

/// The known name most similar to `name`, without dashes, if one is similar enough.
pub fn nearest(name: &str, known: impl Iterator<Item = &'static Flag>) -> Option<String> {
    let name = name.replace('_', "-");
    let known: Vec<String> = known.map(Flag::key).collect();
    let alias = ALIASES.iter().find(|(alias, of)| *alias == name && known.iter().any(|known| known == of));
    if let Some((_, of)) = alias {
        return Some((*of).to_owned());
    }
    let likeness = |known: &String| strsim::normalized_damerau_levenshtein(&name, known);
    known
        .into_iter()
        .map(|known| (likeness(&known), known))
        .filter(|(likeness, _)| *likeness >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

/// The flag that accepts this file or folder, for a hint.
fn of_file(argument: &str) -> Option<String> {
    let path = Path::new(argument);
    let flag = match () {
        () if path.join("run.json").is_file() => "--resume",
        () if path.join("config.json").is_file() || argument.ends_with(".gguf") && path.is_file() => {
            "--model"
        }
        () if argument.ends_with(".toml") && path.is_file() => "--config",
        () if path.is_file() && !argument.ends_with(".sh") => {
            return Some(match argument.ends_with(".py") {
                true => format!("--env-command {}", quoted(&format!("python3 {argument}"))),
                false => format!("--env-command {}", quoted(&format!("./{argument}"))),
            });
        }
        () => return None,
    };
    Some(format!("{flag} {}", quoted(argument)))
}

/// Returns true if `text` is a decimal number, optionally with an exponent.
pub fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
        && text.parse::<f64>().is_ok()
}

/// Returns true if an argument is a known flag, and so no value of the flag before it.
fn is_flag(argument: &str) -> bool {
    let name = argument.strip_prefix("--").map(|name| name.split('=').next().unwrap_or(name));
    name.is_some_and(|name| find(name).is_some())
}

/// A flag with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The flag's name.
    pub name: &'static str,
    /// Its value; `yes` or `no` for a switch.
    pub value: String,
}

/// Parses a command line into flags, in order. `None` if it asks for help.
///
/// # Errors
/// A flag is unknown or lacks its value.
pub fn parse(arguments: &[String]) -> Result<Option<Vec<Given>>> {
    let mut given = Vec::new();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        if argument == "--help" || argument == "-h" {
            return Ok(None);
        }
        let (dashed, inline) = match argument.split_once('=') {
            Some((dashed, value)) if argument.starts_with("--") => (dashed, Some(value.to_owned())),
            _ => (argument.as_str(), None),
        };
        let name = dashed.strip_prefix("--").filter(|name| !name.is_empty()).unwrap_or_default();
        let Some(flag) = find(name) else {
            let near = nearest(dashed.trim_start_matches('-'), all());
            let near = of_file(argument).or_else(|| near.map(|near| format!("--{near}")));
            let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
            return Err(Failure::usage(format!("unknown argument {dashed}"))
                .hint(format!("{near}run ./pipeline.sh --help for the list")));
        };
        let value = match (flag.kind, inline) {
            (Switch, None) => "yes".to_owned(),
            (Switch, Some(value)) if !["yes", "no"].contains(&value.as_str()) => {
                return Err(Failure::usage(format!("{dashed} {value}: not yes or no"))
                    .hint(format!("{dashed} alone is yes")));
            }
            (_, Some(value)) => value,
            (Optional(left_out), None) => match rest.next_if(|next| !next.starts_with('-')) {
                Some(value) => value.clone(),
                None => left_out.to_owned(),
            },
            (_, None) => rest.next_if(|next| !is_flag(next)).cloned().ok_or_else(|| {
                let as_in = match flag.value {
                    "" => String::new(),
                    value => format!(": {dashed} {value}"),
                };
                Failure::usage(format!("{dashed} needs a value{as_in}"))
                    .hint("run ./pipeline.sh --help for the list")
            })?,
        };
        given.push(Given { name: flag.name, value });
    }
    Ok(Some(given))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Option<Vec<Given>>> {
        parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_line_is_flags_in_order() {
        let given = parsed(&["--steps", "3", "--lr=1e-3", "--resident", "--keep-best=no", "--set", "a=b=c"]);
        let given = given.unwrap().unwrap();
        let pairs: Vec<_> = given.iter().map(|given| (given.name, given.value.as_str())).collect();
        let expected =
            [("steps", "3"), ("lr", "1e-3"), ("resident", "yes"), ("keep_best", "no"), ("set", "a=b=c")];
        assert_eq!(pairs, expected);
        assert_eq!(parsed(&["--steps", "3", "-h"]), Ok(None));
    }

    #[test]
    fn what_is_no_flag_names_the_nearest() {
        for (word, near) in [
            ("--stpes", "--steps"),
            ("--steppes", "--steps"),
            ("--learning_rate", "--lr"),
            ("--warmup-lr-othr", "--warmup-lr-other"),
        ] {
            let failure = parsed(&[word, "3"]).unwrap_err();
            assert_eq!((failure.code, failure.message), (2, format!("unknown argument {word}")));
            assert!(failure.hint.unwrap().contains(&format!("did you mean {near}?")), "{word}");
        }
        // A flag is no value of the flag before it.
        let failure = parsed(&["--evaluate", "--policies", "DIR"]).unwrap_err();
        assert_eq!(failure.message, "--evaluate needs a value: --evaluate STEP");
        for words in [&["--nonsense"][..], &["steps"], &["--"], &["--steps"], &["--resident=maybe"]] {
            assert_eq!(parsed(words).unwrap_err().code, 2, "{words:?}");
        }
    }

    #[test]
    fn a_name_has_one_flag_and_a_number_its_three_defaults() {
        let mut names: Vec<_> = all().map(|flag| flag.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in NUMBERS {
            assert!(flag.defaults.iter().all(|default| !default.is_empty()), "{}", flag.name);
        }
    }

    #[test]
    fn numbers_are_decimal() {
        for good in ["1", "1e-3", "-.5", "+2.", "0.7", "1E5"] {
            assert!(is_number(good), "{good}");
        }
        for bad in ["", "many", "1,5", "0x1", "inf", "nan", ".", "e3", "1e", "--1", " 1"] {
            assert!(!is_number(bad), "{bad}");
        }
    }
}
