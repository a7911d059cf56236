//! The tables of refusals and exit codes in `tests/tests/refusals` (its README has their form): the same situation has the same code
//! everywhere, one line that names the program, and a hint. Signals are in each stage's `process.rs`.

use std::path::Path;
use std::thread;

use troupe_tests::{root, run};

/// Exit code and stderr of a command in `folder`.
fn execute(folder: &Path, command: &str) -> (i32, String) {
    let command = format!("root=$PWD; export root; cd '{}'; {command}", folder.display());
    let limited = format!("timeout 60 bash -o pipefail -c '{}' < /dev/null", command.replace('\'', r"'\''"));
    let (code, _, said) = run(&limited);
    (code, said)
}

/// The rows that a row stands for.
fn expand(command: &str, lists: &[(String, Vec<String>)]) -> Vec<String> {
    let named = lists.iter().rev().find(|(name, _)| command.split(' ').any(|word| word == name));
    match named {
        Some((name, items)) => items.iter().map(|item| command.replace(name.as_str(), item)).collect(),
        None => vec![command.to_owned()],
    }
}

/// The program whose refusal a command is about.
fn program(command: &str) -> &str {
    let last = command.rsplit("; ").next().unwrap_or_default();
    let word = last.split(' ').find(|word| !word.contains('=')).unwrap_or_default();
    word.rsplit('/').next().unwrap_or_default()
}

/// Returns true if a refusal is one line of the program with its cause and a hint.
fn teaches(said: &str, program: &str, cause: &str) -> bool {
    let lines: Vec<&str> = said.lines().collect();
    let is_hint = |line: &str| {
        line.strip_prefix("hint: ").is_some_and(|hint| hint.trim_end().len() > 10 && !hint.ends_with(' '))
    };
    matches!(lines[..], [line, hint] if line.starts_with(&format!("{program}: ")) && is_hint(hint))
        && said.contains(cause)
}

/// The number of rows of a table, and those that do not hold.
fn check(table: &str) -> (usize, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut lists, mut rows, mut wrong) = (Vec::new(), 0, String::new());
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (kind, rest) = line.split_once(' ').expect("two words");
        if kind == "given" {
            let (code, said) = execute(folder.path(), rest);
            assert_eq!(code, 0, "{rest}\n{said}");
            continue;
        }
        if kind == "list" {
            let (name, items) = rest.split_once(' ').expect("a name");
            lists.push((name.to_owned(), items.split("; ").map(str::to_owned).collect()));
            continue;
        }
        let (command, cause) = rest.rsplit_once(" =>").expect("a command => its cause");
        for command in expand(command, &lists) {
            rows += 1;
            let (code, said) = execute(folder.path(), &command);
            let good = if code == 0 {
                !said.contains("hint: ")
            } else {
                teaches(&said, program(&command), cause.trim())
            };
            if code.to_string() != kind || !good {
                wrong += &format!("{command}\n  exit {code}, expected {kind} and {cause:?}: {said}\n");
            }
        }
    }
    (rows, wrong)
}

#[test]
fn refusals_have_their_codes_and_teach() {
    let tables = std::fs::read_dir(root().join("tests/tests/refusals")).expect("a folder");
    let tables = tables.map(|entry| entry.expect("an entry").path());
    let tables: Vec<_> = tables.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    let found: Vec<(usize, String)> = thread::scope(|scope| {
        let read = |path: &Path| std::fs::read_to_string(path).expect("a table");
        let started: Vec<_> = tables.iter().map(|path| scope.spawn(move || check(&read(path)))).collect();
        started.into_iter().map(|table| table.join().expect("a table that can be run")).collect()
    });
    let wrong: String = found.iter().map(|(_, wrong)| wrong.as_str()).collect();
    assert!(wrong.is_empty(), "{wrong}");
    assert!(found.iter().map(|(rows, _)| rows).sum::<usize>() > 300, "{found:?}");
}

#[test]
fn wrong_rows_are_found() {
    for (row, holds) in [
        ("2 group --nonsense => --nonsense", true),
        ("65 group --nonsense => --nonsense", false),
        ("2 group --nonsense => --sense", false),
        ("0 group --nonsense =>", false),
        ("0 group --help | false; true =>", true),
        ("2 echo 'group: --nonsense' >&2; exit 2 => --nonsense", false),
    ] {
        let (rows, wrong) = check(row);
        assert_eq!((rows, wrong.is_empty()), (1, holds), "{row}: {wrong}");
    }
}
