//! The reader thread: numbers the tasks of the input, counts how often each recurs, and passes other lines through.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use record::failure::Result;
use record::line;
use record::read::{Kind, Line};
use record::sample::Sample;

use crate::fill::FillConfig;
use crate::queue::Queue;
use crate::settings::Shard;
use crate::stats::Stats;
use crate::task_run::{Output, QueuedTask};
use crate::writer::Event;

/// Puts tasks into the queue; the rest goes to the writer.
pub struct TaskReader {
    queue: Arc<Queue>,
    writer: Sender<Event>,
    shard: Shard,
    fill: Option<FillConfig>,
    /// Enough tasks teach: those that follow are not played.
    filled: bool,
    /// Position among all tasks of the stream, so that an episode's name does not depend on the shard.
    index: u64,
    /// Tasks of this shard.
    own: u64,
    /// Position among the output of this shard.
    sequence: u64,
    seen: HashMap<String, u64>,
}

impl TaskReader {
    /// A reader of the tasks of `shard`, until as many teach as `fill` asks for.
    pub fn new(
        queue: Arc<Queue>,
        writer: Sender<Event>,
        shard: Shard,
        fill: Option<FillConfig>,
    ) -> TaskReader {
        let (index, own, sequence, seen) = (0, 0, 0, HashMap::new());
        TaskReader { queue, writer, shard, fill, filled: false, index, own, sequence, seen }
    }

    /// Reads until the input ends or fails, or nobody works any more.
    pub fn run(mut self, lines: impl Iterator<Item = Result<Line>>) {
        let stopped = lines.map(|line| self.handle(line?)).find(|handled| !matches!(handled, Ok(true)));
        // Without a receiver the run is already over.
        let _ = match stopped {
            Some(Err(failure)) => self.writer.send(Event::Failed(failure)),
            _ => self.writer.send(Event::Tasks { read: self.index, own: self.own }),
        };
        self.queue.close();
    }

    /// Returns true if to go on reading.
    fn handle(&mut self, line: Line) -> Result<bool> {
        match line.kind {
            Kind::Task => return self.handle_task(&line),
            Kind::End => return Ok(self.writer.send(Event::End(Box::new(line::parse(&line)?))).is_ok()),
            Kind::Sample => drop(Sample::parse(&line)?),
            Kind::Joint => drop(line::Joint::parse(&line)?),
            _ => {}
        }
        // Only the first of several shards passes lines through: `cat` of all shards would repeat them.
        if self.shard.number > 0 {
            return Ok(true);
        }
        let output = Output { sequence: self.next_sequence(), text: line.text, stats: Stats::default() };
        Ok(self.queue.wait_for_room(output.sequence) && self.writer.send(Event::Output(output)).is_ok())
    }

    fn handle_task(&mut self, line: &Line) -> Result<bool> {
        let task: line::Task = line::parse(line)?;
        if task.task.is_empty() {
            return Err(line
                .failure("task is empty")
                .hint("samples are told apart by the name of their task"));
        }
        let index = self.index;
        self.index += 1;
        let seen = self.seen.entry(task.task.clone()).or_insert(0);
        let occurrence = *seen;
        *seen += 1;
        // Dealt in turn, once occurrences are counted: neither names nor random numbers depend on the shard.
        if index % u64::from(self.shard.count) != u64::from(self.shard.number) {
            return Ok(true);
        }
        if !self.is_played() {
            return Ok(true);
        }
        self.own += 1;
        let sequence = self.next_sequence();
        Ok(self.queue.push(QueuedTask { sequence, index, occurrence, task }))
    }

    /// Whether another task is played: after each wave, not if enough of those before teach.
    fn is_played(&mut self) -> bool {
        if let Some(FillConfig { wave, wanted, .. }) = self.fill
            && !self.filled
            && self.own > 0
            && self.own.is_multiple_of(wave)
        {
            // A queue that is stopped takes nothing more.
            self.filled = self.queue.wait_for_wave(self.sequence).is_none_or(|teaching| teaching >= wanted);
        }
        !self.filled
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }
}
