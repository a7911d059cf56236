//! Tasks from a file of JSON objects, each the `spec` of a task and what its program reads.

use std::collections::HashSet;
use std::path::Path;

use clap::{Parser, Subcommand};
use environment::{Split, streams};
use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use record::write::Writer;
use serde_json::{Map, Value, json};

use super::call::canonical;

/// One in this many tasks is for testing, by digest.
const TEST_SHARE: u64 = 8;

/// What the command is asked by the words after the program's words.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
pub struct Tail {
    #[command(subcommand)]
    pub word: Word,
}

#[derive(Subcommand)]
pub enum Word {
    /// Prints task lines.
    Tasks {
        #[arg(long, value_enum, default_value = "train")]
        split: Split,
        #[arg(long, default_value_t = 1)]
        count: u64,
        #[arg(long, default_value_t = 0)]
        seed: u64,
        #[arg(long)]
        ask: Vec<String>,
    },
    /// Runs the program with fixed answers, and says how it can be trained.
    Check,
    /// There are none.
    Demo {
        #[arg(allow_hyphen_values = true)]
        rest: Vec<String>,
    },
}

impl Tail {
    /// Splits our words off `command`: the last `tasks`, `check` or `demo` after which nothing but its flags follows.
    pub fn split(command: &mut Vec<String>) -> Option<Word> {
        let words = ["tasks", "check", "demo"];
        let place =
            command.iter().rposition(|word| words.contains(&word.as_str())).filter(|place| *place > 0)?;
        let tail = Tail::try_parse_from(&command[place..]).ok()?;
        command.truncate(place);
        Some(tail.word)
    }
}

/// The tasks of `file`, each once.
///
/// # Errors
/// It cannot be read: usage. A line is no JSON object: data.
pub fn read(file: &Path) -> Result<Vec<Task>> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::named_file(file, &error))?;
    let name =
        file.file_stem().map_or_else(|| "tasks".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let (mut tasks, mut seen) = (Vec::new(), HashSet::new());
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("{}:{}", file.display(), number + 1);
        let spec: Value =
            serde_json::from_str(line).map_err(|error| Failure::data(format!("{place}: {error}")))?;
        if !spec.is_object() {
            return Err(Failure::data(format!("{place}: a task is a JSON object, which the program reads"))
                .hint("one object a line, for example {\"question\": \"6 + 7\", \"answer\": \"13\"}"));
        }
        let bytes = canonical(&spec).to_string().into_bytes();
        let digest = streams::first_word(&bytes);
        if seen.insert(digest) {
            let split = streams::split_of(&bytes, TEST_SHARE);
            tasks.push(streams::task(&name, split, &format!("{digest:016x}"), spec));
        }
    }
    match tasks.is_empty() {
        true => Err(Failure::data(format!("{}: there is no task in it", file.display()))
            .hint("one JSON object a line, for example {\"question\": \"6 + 7\", \"answer\": \"13\"}")),
        false => Ok(tasks),
    }
}

/// The task of a question of the user, to which no answer is known: a JSON object, or the text that `file` has in its place.
///
/// # Errors
/// As [`read`].
pub fn question(file: &Path, text: &str) -> Result<Task> {
    let like = read(file)?.swap_remove(0);
    let is_text = |(name, value): &(&String, &Value)| value.is_string() && *name != "answer";
    let field = like.spec.as_object().and_then(|spec| spec.iter().find(is_text));
    let field = field.map_or("question", |(name, _)| name);
    let given: Option<Map<String, Value>> = serde_json::from_str(text).ok();
    let mut spec = given.map_or_else(|| json!({field: text}), Value::Object);
    spec.as_object_mut().into_iter().for_each(|spec| {
        spec.entry("answer").or_insert(Value::Null);
    });
    let task = format!("{}/{}/{:016x}", like.env, streams::ASKED, streams::first_word(text.as_bytes()));
    Ok(Task { env: like.env, task, split: Some(streams::ASKED.to_owned()), spec, ..Task::default() })
}

/// Writes `count` tasks of `split`: those for testing in the file's order, those for training shuffled by `seed`, again and again.
///
/// # Errors
/// The split is empty: data.
pub fn write(
    writer: &mut Writer<impl std::io::Write>,
    file: &Path,
    split: Split,
    count: u64,
    seed: u64,
) -> Result<()> {
    let mut tasks = read(file)?;
    let all = tasks.len();
    tasks.retain(|task| task.split.as_deref() == Some(split.name()));
    if tasks.is_empty() && count > 0 {
        return Err(Failure::data(format!(
            "{}: none of its {all} tasks is for {}",
            file.display(),
            split.name()
        ))
        .hint("one in eight, by a digest of its line, is for testing: add lines"));
    }
    let mut written = 0;
    for round in 0_u64.. {
        let mut order: Vec<&Task> = tasks.iter().collect();
        if split == Split::Train {
            let name = [Part::Text("program"), Part::Text("tasks"), Part::Number(round)];
            Draws::new(Stream::named(seed, &name)).shuffle(&mut order);
        }
        for task in order {
            if written == count {
                return Ok(());
            }
            writer.object(task)?;
            written += 1;
        }
    }
    Ok(())
}
