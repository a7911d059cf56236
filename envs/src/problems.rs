//! Problems from files: task lines, as `envs import` writes them, and the small sets that come with the program.
//!
//! The rules of a task (encoding, turns, limits) are those of the settings it is drawn with, whatever its line says. A
//! problem is known by its text, so that it has one name and one split wherever it comes from: the split that its line
//! names, and otherwise one by a hash of its text ([`crate::import`]). The test problems are taken in the file's order;
//! train problems in orders that the seed decides, each once before any comes again.

use std::collections::HashMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use record::read::{Kind, Reader};
use serde_json::Value;

use crate::environment::{Selection, Split, Tasks};
use crate::import::{self, Importer};

/// The name that selects the problems of our own.
const SHIPPED: &str = "shipped";

/// An environment's problems, as far as they are not drawn.
pub struct Problems {
    /// The environment's name.
    pub environment: &'static str,
    /// Problems of our own, as records that `envs import` knows.
    pub shipped: &'static str,
}

impl Problems {
    /// The problems of `file`, each once: the `spec` that its line holds and its split.
    ///
    /// # Errors
    /// A file that cannot be read: usage. A line that is no task of this environment, or a problem in both splits: data,
    /// naming the line.
    pub fn read(&self, file: &str, make: impl Fn(&Value, u64, Split) -> Result<Task>) -> Result<Vec<Task>> {
        let hint = "`envs import` writes this layout from public data sets";
        let place = |failure: Failure| failure.at(format!("--set data={file}"));
        let mut reader = Reader::new(file, std::io::Cursor::new(self.lines(file)?));
        let mut tasks = Vec::new();
        let mut known: HashMap<u64, Split> = HashMap::new();
        while let Some(line) = reader.next().map_err(place)? {
            if line.kind != Kind::Task {
                continue;
            }
            let fail = |cause: String| place(line.failure(cause));
            let written: Task = record::line::parse(&line).map_err(place)?;
            if written.env != self.environment {
                return Err(fail(format!("{} is a task of {}", written.task, written.env)));
            }
            let text = written.spec["problem"].as_str();
            let text = text.ok_or_else(|| fail("spec: problem: there is no text".to_owned()).hint(hint))?;
            let identity = import::identity(text);
            let split = match written.split.as_deref() {
                Some("train") => Split::Train,
                Some("test") => Split::Test,
                _ => import::split_of(text),
            };
            match known.insert(identity, split) {
                None => tasks.push(
                    make(&written.spec, identity, split)
                        .map_err(|failure| fail(failure.message.clone()).hint(hint))?,
                ),
                Some(before) if before == split => {}
                Some(_) => {
                    return Err(fail(format!("the problem of {} is in both splits", written.task))
                        .hint("`envs import` gives each problem one split"));
                }
            }
        }
        Ok(tasks)
    }

    /// The tasks of a selection from `file`, without end.
    ///
    /// # Errors
    /// As [`Problems::read`], or a split that is empty: usage.
    pub fn tasks(
        &self,
        file: &str,
        selection: &Selection,
        make: impl Fn(&Value, u64, Split) -> Result<Task>,
    ) -> Result<Tasks<'static>> {
        let (environment, split, seed) = (self.environment, selection.split, selection.seed);
        let own = |task: &Task| task.split.as_deref() == Some(split.name());
        let tasks: Arc<[Task]> = self.read(file, make)?.into_iter().filter(own).collect();
        if tasks.is_empty() {
            return Err(Failure::usage(format!("--set data={file}: it has no {} problem", split.name()))
                .hint("`envs import --split` decides where problems go"));
        }
        Ok(Box::new((0..).flat_map(move |round: u64| {
            let mut order: Vec<usize> = (0..tasks.len()).collect();
            if round > 0 || split == Split::Train {
                let name = [
                    Part::Text(environment),
                    Part::Text("data"),
                    Part::Text(split.name()),
                    Part::Number(round),
                ];
                Draws::new(Stream::named(seed, &name)).shuffle(&mut order);
            }
            let tasks = Arc::clone(&tasks);
            order.into_iter().map(move |index| Ok(tasks[index].clone()))
        })))
    }

    /// The file as it stands, or as `envs import` makes it of the problems of our own.
    fn lines(&self, file: &str) -> Result<String> {
        if file != SHIPPED {
            return std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("--set data={file}: {error}"))
                    .hint("`envs import` writes such a file; shipped is a small one of our own")
            });
        }
        let mut importer = Importer { source: Some(SHIPPED.to_owned()), ..Importer::default() };
        let mut lines = String::new();
        for record in self.shipped.lines() {
            let record = serde_json::from_str(record).map_err(Failure::work)?;
            if let Some(task) = importer.task(&record)? {
                lines.push_str(&serde_json::to_string(&task).map_err(Failure::work)?);
                lines.push('\n');
            }
        }
        Ok(lines)
    }
}
