//! Commands of `--stage`, checked without running them: a stage may have effects, and runs once per step.
//!
//! Left out: what only the shell knows, such as a variable in a program's name.

use std::path::Path;

use record::child;
use record::failure::{Failure, Result};

use crate::programs::{Programs, cannot_start};

/// Interpreters, which read the program that their first argument names.
const INTERPRETERS: [&str; 5] = ["python", "bash", "sh", "node", "perl"];

/// Checks a command's syntax, and that its first program and the script of an interpreter exist.
pub fn check(programs: &Programs, stage: &str, command: &str) -> Result<()> {
    let refused = |cause: String| {
        Err(Failure::usage(format!("--stage {stage}: {cause}"))
            .hint("the command is run by bash in this folder, and finds Troupe's programs"))
    };
    let bash = |arguments: &[&str]| {
        let output = child::output(programs.command("bash").args(arguments));
        output.map_err(|error| cannot_start("bash", &error))
    };
    let parsed = bash(&["-n", "-c", command])?;
    if !parsed.status.success() {
        let said = String::from_utf8_lossy(&parsed.stderr).into_owned();
        let cause = said.lines().next().unwrap_or_default().trim_start_matches("bash: -c: ");
        return refused(format!("bash cannot read its command: {cause}"));
    }
    let (program, script) = words(command);
    if let Some(program) = program
        && !bash(&["-c", "type -- \"$1\"", "bash", program])?.status.success()
    {
        return refused(format!("there is no program {program}"));
    }
    match script.filter(|script| !Path::new(script).exists()) {
        Some(script) => refused(format!("there is no file {script}")),
        None => Ok(()),
    }
}

/// The program that a command starts with, and the script that it reads if it is an interpreter. `None` where the shell makes the word.
fn words(command: &str) -> (Option<&str>, Option<&str>) {
    let is_plain = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || "_-+.,/@%:".contains(c));
    let is_assignment = |word: &&str| {
        let name = word.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut words = command.split_whitespace().skip_while(is_assignment);
    if command
        .split_whitespace()
        .take_while(is_assignment)
        .any(|word| word.contains(['\'', '"', '$', '`', '\\']))
    {
        return (None, None); // a value with blanks takes several words
    }
    let Some(program) = words.next().filter(is_plain) else { return (None, None) };
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if !INTERPRETERS.contains(&name) {
        return (Some(program), None);
    }
    // Other options may take the next word.
    let script = words.find(|word| *word != "-u");
    (Some(program), script.filter(|word| is_plain(word) && !word.starts_with('-')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_its_script_are_found_where_the_shell_does_not_make_them() {
        for (command, program, script) in [
            ("python3 mine.py --x 1", Some("python3"), Some("mine.py")),
            ("W=0.5 python3.11 -u examples/judge.py", Some("python3.11"), Some("examples/judge.py")),
            ("/usr/bin/python3 -c 'import x'", Some("/usr/bin/python3"), None),
            ("python3 -m mine", Some("python3"), None),
            ("perl -e print", Some("perl"), None),
            ("python3 \"$RUN/mine.py\"", Some("python3"), None),
            ("W='a b' python3 mine.py", None, None),
            ("jq -c 'if .type'", Some("jq"), None),
            ("cat >/dev/null; echo x", Some("cat"), None),
            ("trap '' TERM; sleep 60; :", Some("trap"), None),
            ("$HOME/mine", None, None),
            ("~/mine", None, None),
            ("(cd x && ./mine)", None, None),
            ("", None, None),
        ] {
            assert_eq!(words(command), (program, script), "{command}");
        }
    }
}
