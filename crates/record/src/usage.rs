//! A usage error in one line and a hint, in place of clap's paragraphs.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failure;

/// Names of types and policies elsewhere, and here.
const SYNONYMS: [(&str, &[&str]); 3] =
    [("float16", &["fp16", "f16", "half"]), ("bfloat16", &["bf16"]), ("float32", &["fp32", "f32", "float"])];

/// Flags that a program had before, or that other programs call so, and what to write here.
const OTHER_NAMES: [(&str, &str, &str); 37] = [
    ("pipeline.sh", "--learning-rate", "--lr"),
    ("pipeline.sh", "--batch-size", "--tasks"),
    ("pipeline.sh", "--num-generations", "--branches"),
    ("pipeline.sh", "--max-steps", "--steps"),
    ("pipeline.sh", "--max-new-tokens", "--max-tokens"),
    ("pipeline.sh", "--max-completion-length", "--max-tokens"),
    ("pipeline.sh", "--kl-coef", "--kl"),
    ("pipeline.sh", "--output-dir", "--run"),
    ("pipeline.sh", "--environment", "--env"),
    ("pipeline.sh", "--setup", "pipeline.sh setup"),
    ("pipeline.sh", "--runs", "pipeline.sh list"),
    ("pipeline.sh", "--evaluate", "pipeline.sh evaluate"),
    ("pipeline.sh", "--explain", "pipeline.sh explain"),
    ("pipeline.sh", "--completions", "pipeline.sh completions"),
    ("pipeline.sh", "--seeds", "--seed 1,2,3"),
    ("pipeline.sh", "--tokens", "--token-budget"),
    ("pipeline.sh", "--warmup-tasks", "--flags demo='--count N', the demonstrations of all steps"),
    ("pipeline.sh", "--warmup-optimizer", "--flags warm-up='--optimizer NAME'"),
    ("pipeline.sh", "--warmup-lr", "--flags warm-up='--lr X'"),
    ("pipeline.sh", "--warmup-lr-warmup", "--flags warm-up='--lr-warmup N'"),
    ("pipeline.sh", "--warmup-lr-other", "--flags warm-up='--lr-other X'"),
    ("rollout", "--greedy", "--temperature 0"),
    ("rollout", "--fill-by", "--fill N,by=success"),
    ("rollout", "--fill-wave", "--fill N,wave=W"),
    ("rollout", "--fill-strict", "--fill N,strict"),
    ("rollout", "--flat-below", "--fill N,flat-below=E"),
    ("rollout", "--num-generations", "--branches"),
    ("advantage", "--joint", "--combine"),
    ("advantage", "--count", "--count-by"),
    ("update", "--clip-high", "--clip LOW,HIGH"),
    ("update", "--warmup", "--lr-warmup"),
    ("update", "--max-tokens", "--aggregate constant=L"),
    ("update", "--importance-cap", "--importance C"),
    ("update", "--importance-level", "--importance C,level=sequence"),
    ("update", "--importance-outside", "--importance C,mask"),
    ("update", "--importance-floor", "--importance C,mask,floor=F"),
    ("update", "--per-token", "--check=FILE"),
];

/// The failure for an error of the program `name`, which users call as `called`.
pub fn failure(name: &str, called: &str, error: &clap::Error) -> Failure {
    let see = format!("see {called} --help");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing").hint(see);
    }
    let rendered = error.render().to_string();
    let mut paragraphs = rendered.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let message = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let message = of_number(error).unwrap_or(message);
    // The tip that a value may follow `--` is true but useless: no argument of ours begins with a dash.
    let tips = rendered.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let tip = tips.map(str::to_owned).find(|tip| !tip.starts_with("to pass "));
    let hint = match error.kind() {
        ErrorKind::InvalidValue => near(error).map(|near| format!("did you mean {near}?")),
        ErrorKind::UnknownArgument => flag(name, error).map(|flag| format!("did you mean {flag}? {see}")),
        _ => tip,
    };
    Failure::usage(message).hint(hint.unwrap_or(see))
}

/// The flag that an unknown one stands for: by another name, or with nearly the same letters.
fn flag(name: &str, error: &clap::Error) -> Option<String> {
    let unknown = text(error, ContextKind::InvalidArg)?.replace('_', "-");
    let other = OTHER_NAMES.iter().find(|(program, other, _)| *program == name && *other == unknown);
    other
        .map(|(.., here)| (*here).to_owned())
        .or_else(|| Some(text(error, ContextKind::SuggestedArg)?.to_owned()))
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// The message for a value that is no number, or outside its range, in place of the standard library's.
fn of_number(error: &clap::Error) -> Option<String> {
    let cause = std::error::Error::source(error)?.to_string();
    let (option, value) = (text(error, ContextKind::InvalidArg)?, text(error, ContextKind::InvalidValue)?);
    let option = option.split(' ').next().unwrap_or(option);
    let told = match cause.as_str() {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            format!("{option} {value}: not a whole number of 0 or more")
        }
        "invalid float literal" | "cannot parse float from empty string" => {
            format!("{option} {value}: not a number")
        }
        "number too large to fit in target type" => format!("{option} {value}: too large"),
        _ => match range(cause.split_once(" is not in ")?.1)? {
            (least, None) if value.parse::<i128>().is_ok_and(|value| value > least) => {
                format!("{option} {value}: too large")
            }
            (least, None) => format!("{option} must be at least {least}"),
            (least, Some(most)) => format!("{option} must be from {least} to {most}"),
        },
    };
    Some(told)
}

/// The least and the greatest number of `1..=1024`; no greatest if it is the type's.
fn range(range: &str) -> Option<(i128, Option<i128>)> {
    let (least, most) = range.split_once("..")?;
    let most: i128 = most.strip_prefix('=').unwrap_or(most).parse().ok()?;
    let types = [i128::from(u32::MAX), i128::from(i64::MAX), i128::from(u64::MAX)];
    Some((least.parse().ok()?, Some(most).filter(|most| !types.contains(most))))
}

/// The valid value that an invalid one stands for: another name of it, or nearly the same letters.
fn near(error: &clap::Error) -> Option<String> {
    let value = text(error, ContextKind::InvalidValue)?;
    let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue) else { return None };
    let lower = value.to_lowercase();
    let synonym = SYNONYMS.iter().find(|(_, names)| names.contains(&lower.as_str())).map(|(name, _)| *name);
    if let Some(name) = synonym.filter(|name| valid.iter().any(|valid| valid == name)) {
        return Some(name.to_owned());
    }
    let likeness = |valid: &&String| strsim::normalized_damerau_levenshtein(&lower, valid);
    let nearest = valid.iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(&nearest) >= 0.6).then(|| nearest.clone())
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use crate::command_line::with_negative_numbers;

    #[derive(Clone, Copy, Debug, ValueEnum)]
    enum Preset {
        Tiny,
        Smollm2,
    }

    #[derive(Parser, Debug)]
    #[command(name = "demo")]
    #[allow(dead_code, reason = "only its command line is read")]
    struct Demo {
        #[arg(long, value_name = "N", default_value_t = 1)]
        count: u64,
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        epochs: u64,
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
        size: u32,
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=20))]
        tries: u32,
        #[arg(long, default_value_t = 1.0)]
        lr: f64,
        #[arg(long, value_parser = ["float32", "bfloat16", "float16"])]
        dtype: Option<String>,
        #[arg(long)]
        preset: Option<Preset>,
        #[arg(short)]
        quiet: bool,
    }

    /// The message and the hint.
    fn told(line: &str) -> (String, String) {
        let command = with_negative_numbers(<Demo as clap::CommandFactory>::command());
        let error = command.try_get_matches_from(format!("demo {line}").split(' ')).unwrap_err();
        let failure = super::failure("demo", "demo", &error);
        (failure.message, failure.hint.unwrap())
    }

    #[test]
    fn a_value_that_is_no_number_is_named_with_its_option() {
        for (line, message) in [
            ("--count -3", "--count -3: not a whole number of 0 or more"),
            ("--count=-3", "--count -3: not a whole number of 0 or more"),
            ("--count abc", "--count abc: not a whole number of 0 or more"),
            ("--count 99999999999999999999", "--count 99999999999999999999: too large"),
            ("--epochs 0", "--epochs must be at least 1"),
            ("--size 1", "--size must be at least 2"),
            ("--size -1", "--size must be at least 2"),
            ("--size 4294967296", "--size 4294967296: too large"),
            ("--tries 21", "--tries must be from 0 to 20"),
            ("--lr many", "--lr many: not a number"),
            ("--quit -3", "unexpected argument '--quit' found"),
        ] {
            assert_eq!(told(line).0, message);
        }
        let command = with_negative_numbers(<Demo as clap::CommandFactory>::command());
        let matches = command.try_get_matches_from(["demo", "--lr", "-0.001", "-q"]).unwrap();
        assert_eq!(matches.get_one::<f64>("lr"), Some(&-1e-3));
    }

    #[test]
    fn a_hint_names_the_value_that_was_meant() {
        for (line, hint) in [
            ("--dtype fp16", "did you mean float16?"),
            ("--dtype BF16", "did you mean bfloat16?"),
            ("--dtype flaot32", "did you mean float32?"),
            ("--dtype int8", "see demo --help"),
            ("--preset small", "see demo --help"),
            ("--preset smollm", "did you mean smollm2?"),
        ] {
            assert_eq!(told(line).1, hint, "{line}");
        }
    }
}
