//! Hints for common mistakes: a file without its flag, and a method by another name.

use std::path::Path;

use record::failure::Failure;

use crate::quote::quoted;

/// A usage failure, with the flag that takes the file or folder that was named without one.
pub fn explain(failure: Failure, arguments: &[String]) -> Failure {
    if failure.message.to_lowercase().starts_with("invalid value 'grpo' for '--method") {
        return failure.hint(
            "GRPO of whole episodes is --method trajectory; at-grpo compares the candidates of each turn",
        );
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
