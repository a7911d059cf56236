//! Hints for common mistakes: a file without its flag, a flag of a stage, and a method by another name.

use std::path::Path;

use record::failure::Failure;

use crate::quote::quoted;

/// Flags of stages that are tried as flags of a run.
const OF_STAGES: [(&str, &str); 6] = [
    ("sampling", "rollout"),
    ("expand", "rollout"),
    ("by", "group"),
    ("credit", "advantage"),
    ("estimator", "advantage"),
    ("objective", "update"),
];

/// A usage failure, with the flag that takes the file or folder that was named without one.
pub fn explain(failure: Failure, arguments: &[String]) -> Failure {
    if failure.message.to_lowercase().starts_with("invalid value 'grpo' for '--method") {
        return failure.hint(
            "GRPO of whole episodes is --method trajectory; at-grpo compares the candidates of each turn",
        );
    }
    let is_of =
        |(flag, _): &&(&str, &str)| failure.message.starts_with(&format!("unexpected argument '--{flag}'"));
    if let Some((flag, stage)) = OF_STAGES.iter().find(is_of) {
        return failure.hint(format!("it is a flag of {stage}: --flags {stage}='--{flag} …'"));
    }
    let is_named = |argument: &&String| failure.message.contains(&format!("'{argument}'"));
    match arguments.iter().filter(is_named).find_map(|argument| flag_of_file(argument)) {
        Some(flag) => failure.hint(format!("did you mean {flag}?")),
        None => failure,
    }
}

fn flag_of_file(argument: &str) -> Option<String> {
    let path = Path::new(argument);
    let is_weights = path.join("config.json").is_file() || argument.ends_with(".gguf") && path.is_file();
    let (flag, value) = match () {
        () if path.join("run.json").is_file() => ("--resume", argument.to_owned()),
        () if is_weights => ("--model", argument.to_owned()),
        () if argument.ends_with(".toml") && path.is_file() => ("--config", argument.to_owned()),
        () if argument.ends_with(".py") && path.is_file() => ("--env-command", format!("python3 {argument}")),
        () if !argument.ends_with(".sh") && path.is_file() => ("--env-command", format!("./{argument}")),
        () => return None,
    };
    Some(format!("{flag} {}", quoted(&value)))
}
