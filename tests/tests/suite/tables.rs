//! The tables of `tests/tests/tables` (its README has their form): refusals with their exit codes, and commands and runs that leave the
//! same bytes. Signals are in each stage's `process.rs`.

use std::collections::BTreeMap;
use std::path::Path;

use troupe_tests::{contents, root, run, update_mpi, without_timing};

/// Exit code, stdout and stderr of a command in `folder`.
fn execute(folder: &Path, command: &str, seconds: u32) -> (i32, String, String) {
    let command = format!("root=$PWD; export root; cd '{}'; {command}", folder.display());
    let command = command.replace('\'', r"'\''");
    run(&format!("timeout {seconds} bash -o pipefail -c '{command}' < /dev/null"))
}

/// The rows that a row stands for.
fn expand(command: &str, lists: &[(String, Vec<String>)]) -> Vec<String> {
    let named = lists.iter().rev().find(|(name, _)| command.split(' ').any(|word| word == name));
    let Some((name, items)) = named else { return vec![command.to_owned()] };
    items.iter().flat_map(|item| expand(&command.replace(name.as_str(), item), lists)).collect()
}

/// The program whose refusal a command is about.
fn program(command: &str) -> &str {
    let last = command.rsplit("; ").next().unwrap_or_default();
    let word = last.split(' ').find(|word| !word.contains('=')).unwrap_or_default();
    word.rsplit('/').next().unwrap_or_default()
}

/// Returns true if a refusal is one line of the program with its cause, and a hint.
fn teaches(said: &str, program: &str, cause: &str) -> bool {
    let lines: Vec<&str> = said.lines().collect();
    let is_hint = |line: &str| {
        line.strip_prefix("hint: ").is_some_and(|hint| hint.trim_end().len() > 10 && !hint.ends_with(' '))
    };
    let [line, hint] = lines[..] else { return false };
    let speaks = line.starts_with(&format!("{program}: ")) || !cause.is_empty() && line.starts_with(cause);
    speaks && is_hint(hint) && said.contains(cause)
}

/// Standard output and the folder `made` of a command, without times.
type Made = (String, BTreeMap<String, Vec<u8>>);

struct Table<'a> {
    folder: &'a Path,
    lists: Vec<(String, Vec<String>)>,
    /// The first of the commands that are compared.
    first: Option<Made>,
    rows: usize,
    wrong: String,
}

impl Table<'_> {
    fn read(&mut self, line: &str) {
        if line.is_empty() {
            self.first = None;
        }
        let Some((kind, rest)) = line.split_once(' ').filter(|_| !line.starts_with('#')) else { return };
        match kind {
            "given" => {
                let (code, _, said) = execute(self.folder, rest, 60);
                assert_eq!(code, 0, "{rest}\n{said}");
            }
            "list" => {
                let (name, items) = rest.split_once(' ').expect("a name");
                self.lists.push((name.to_owned(), items.split("; ").map(str::to_owned).collect()));
            }
            "same" | "other" => {
                expand(rest, &self.lists).iter().for_each(|command| self.compare(command, kind == "same"));
            }
            code => {
                let (command, cause) = rest.rsplit_once(" =>").expect("a command => its cause");
                expand(command, &self.lists)
                    .iter()
                    .for_each(|command| self.refuse(command, code, cause.trim()));
            }
        }
    }

    fn refuse(&mut self, command: &str, expected: &str, cause: &str) {
        self.rows += 1;
        let (code, _, said) = execute(self.folder, command, 60);
        let good = if code == 0 { !said.contains("hint: ") } else { teaches(&said, program(command), cause) };
        if code.to_string() != expected || !good {
            self.wrong += &format!("{command}\n  exit {code}, expected {expected} and {cause:?}: {said}\n");
        }
    }

    fn compare(&mut self, command: &str, same: bool) {
        self.rows += 1;
        let folder = self.folder.join("made");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).expect("removed");
        }
        let (code, printed, said) = execute(self.folder, command, 600);
        assert!(code == 0 && !printed.is_empty(), "{command}\n{printed}{said}");
        let files = if folder.exists() { contents(&folder) } else { BTreeMap::new() };
        let made = (without_timing(&printed), files);
        let Some(first) = &self.first else {
            self.first = Some(made);
            return;
        };
        if (made == *first) != same {
            let names = first.1.keys().chain(made.1.keys());
            let mut differ: Vec<&String> =
                names.filter(|name| first.1.get(*name) != made.1.get(*name)).collect();
            differ.dedup();
            let outputs = if made.0 == first.0 { "equal" } else { "different" };
            self.wrong +=
                &format!("{command}\n  the same: {}, expected {same}; {outputs} output; {differ:?}\n", !same);
        }
    }
}

/// The number of rows of a table, and those that do not hold.
fn check(text: &str) -> (usize, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let lists = Vec::new();
    let mut table = Table { folder: folder.path(), lists, first: None, rows: 0, wrong: String::new() };
    text.lines().for_each(|line| table.read(line));
    (table.rows, table.wrong)
}

fn holds(name: &str, rows: usize) {
    let path = root().join("tests/tests/tables").join(name).with_extension("txt");
    let (found, wrong) = check(&std::fs::read_to_string(path).expect("a table"));
    assert!(wrong.is_empty(), "{wrong}");
    assert!(found >= rows, "{found} rows");
}

#[test]
fn slips_of_the_command_line_are_refused() {
    holds("command-line", 75);
}

#[test]
fn broken_streams_are_refused() {
    holds("streams", 60);
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    holds("files", 50);
}

#[test]
fn damaged_policies_are_refused() {
    holds("policies", 40);
}

#[test]
fn hostile_checkpoints_are_refused() {
    holds("damage", 110);
}

#[test]
fn samples_that_cannot_be_trained_on_are_refused() {
    holds("samples", 40);
}

#[test]
fn stages_leave_the_same_bytes() {
    holds("same-stages", 50);
}

#[test]
fn runs_leave_the_same_bytes() {
    holds("same-runs", 11);
}

#[test]
fn ranks_leave_the_same_bytes() {
    if update_mpi().is_some() {
        holds("same-ranks", 100);
    }
}

#[test]
fn wrong_rows_are_found() {
    for (table, holds) in [
        ("2 group --nonsense => --nonsense", true),
        ("65 group --nonsense => --nonsense", false),
        ("2 group --nonsense => --sense", false),
        ("0 group --nonsense =>", false),
        ("0 group --help =>", true),
        ("2 echo 'group: --nonsense' >&2; exit 2 => --nonsense", false),
        ("same echo 1\nsame echo 1\nother echo 2\n\nsame echo 3", true),
        ("same echo 1\nsame echo 2", false),
        ("same echo 1\nother echo 1", false),
        ("same mkdir made; touch made/x; echo 1\nsame mkdir made; touch made/x; echo 1", true),
        ("same mkdir made; touch made/x; echo 1\nsame mkdir made; touch made/y; echo 1", false),
        ("same mkdir made; echo 1 > made/x; echo 1\nsame mkdir made; echo 2 > made/x; echo 1", false),
    ] {
        let (_, wrong) = check(table);
        assert_eq!(wrong.is_empty(), holds, "{table}: {wrong}");
    }
}
