//! The reader of the input: numbers the tasks, counts how often each comes, and passes on what is not a task.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use record::failure::Result;
use record::line;
use record::read::{Kind, Line, Reader};
use record::sample::Sample;

use crate::stage::Event;
use crate::streams::shard_of;
use crate::trial::Work;
use crate::worker::Shared;

/// One of several shares of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

/// Turns lines into work.
pub struct Feed {
    shared: Arc<Shared>,
    output: Sender<Event>,
    shard: Shard,
    /// Position among all tasks of the stream, so that an episode's name does not depend on the shard.
    index: u64,
    /// Position among what this shard writes.
    sequence: u64,
    seen: HashMap<String, u64>,
}

impl Feed {
    /// A feed of the queue in `shared`; the rest goes to `output`.
    pub fn new(shared: Arc<Shared>, output: Sender<Event>, shard: Shard) -> Feed {
        Feed { shared, output, shard, index: 0, sequence: 0, seen: HashMap::new() }
    }

    /// Reads until the input ends, fails, or nobody works any more.
    pub fn run<R: Read>(mut self, ahead: Vec<Line>, mut reader: Reader<R>) {
        let mut ahead = ahead.into_iter();
        loop {
            let line = match ahead.next() {
                Some(line) => Ok(Some(line)),
                None => reader.next(),
            };
            let went_on = match line {
                Ok(Some(line)) => self.take(line),
                Ok(None) => Ok(false),
                Err(failure) => Err(failure),
            };
            match went_on {
                Ok(true) => {}
                Ok(false) => break,
                Err(failure) => {
                    // Without a receiver the run is over already.
                    let _ = self.output.send(Event::Failed(failure));
                    break;
                }
            }
        }
        self.shared.queue.close();
    }

    /// Whether to go on reading.
    fn take(&mut self, line: Line) -> Result<bool> {
        match line.kind {
            Kind::Task => self.take_task(&line),
            Kind::End => Ok(self.output.send(Event::End(Box::new(line::parse(&line)?))).is_ok()),
            kind => {
                if kind == Kind::Sample {
                    Sample::parse(&line)?;
                }
                // The first of several shards passes foreign lines on; from all of them `cat` would repeat them.
                if self.shard.number > 0 {
                    return Ok(true);
                }
                let sequence = self.next_sequence();
                Ok(self.shared.queue.admit(sequence)
                    && self.output.send(Event::Foreign(sequence, line)).is_ok())
            }
        }
    }

    fn take_task(&mut self, line: &Line) -> Result<bool> {
        let task: line::Task = line::parse(line)?;
        if task.task.is_empty() {
            return Err(line
                .failure("task is empty")
                .hint("a task's name tells its samples apart from those of others"));
        }
        let index = self.index;
        self.index += 1;
        if shard_of(&task.task, self.shard.count) != self.shard.number {
            return Ok(true);
        }
        let times = self.seen.entry(task.task.clone()).or_insert(0);
        let occurrence = *times;
        *times += 1;
        let sequence = self.next_sequence();
        Ok(self.shared.queue.push(Work { sequence, index, occurrence, task }))
    }

    fn next_sequence(&mut self) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        sequence
    }
}
