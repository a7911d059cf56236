//! The stage: tasks in, threads at work, lines out in task order, one `end`.
//!
//! Three kinds of threads: one reads the input, N generate and score, and the one that started them writes. The
//! writer alone decides when the run is over, so a signal or a closed pipe is noticed even while the input is
//! silent.
//!
//! Left out: opening policies, which is [`crate::run`]'s; nothing here knows what a generator is made of.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use record::failure::{Failure, Result};
use record::line::End;
use record::progress::Progress;
use record::read::Line;
use record::stage::interrupted;
use record::write::Writer;

use crate::account::Account;
use crate::feed::{Feed, Shard};
use crate::generator::Generator;
use crate::order::Reorder;
use crate::queue::Queue;
use crate::trial::{Counts, Finished};
use crate::worker::{Shared, Times, Worker};

/// How often the writer looks up from waiting, to see a signal.
const LOOK_UP: Duration = Duration::from_millis(100);

/// What the other threads tell the writer.
#[derive(Debug)]
pub enum Event {
    /// A task is finished.
    Finished(Finished),
    /// A line of a type that is not ours, at its place in the output.
    Foreign(u64, Line),
    /// The end of an earlier stage.
    End(Box<End>),
    /// The run cannot go on.
    Failed(Failure),
}

/// Makes the generators of a thread, on that thread: one for each policy.
pub type MakeGenerators = Arc<dyn Fn() -> Result<Vec<Box<dyn Generator>>> + Send + Sync>;

/// What a run came to.
#[derive(Debug, Default)]
pub struct Totals {
    /// Tasks played.
    pub tasks: u64,
    /// What they made.
    pub counts: Counts,
    /// What it adds up to.
    pub account: Account,
    /// Where the time of the threads went, summed.
    pub times: Times,
    /// The ends of the stages before this one.
    pub ends: Vec<End>,
}

/// How wide a run is.
#[derive(Clone, Copy, Debug)]
pub struct Width {
    /// Threads that generate.
    pub threads: usize,
    /// Which tasks are ours.
    pub shard: Shard,
    /// No progress on stderr.
    pub quiet: bool,
}

/// Plays everything that `reader` holds, after the lines that were read `ahead` of it, and writes what comes
/// of it. What was done until a failure is in the totals.
pub fn play<R: Read + Send + 'static, W: Write>(
    shared: &Arc<Shared>,
    make: &MakeGenerators,
    ahead: Vec<Line>,
    reader: record::read::Reader<R>,
    writer: &mut Writer<W>,
    width: Width,
) -> (Totals, Result<()>) {
    let (sender, receiver) = channel();
    let workers: Vec<JoinHandle<Times>> =
        (0..width.threads).map(|_| spawn_worker(shared.clone(), make.clone(), sender.clone())).collect();
    // Never joined: on a failure it may be waiting for a line that does not come.
    let feed = Feed::new(shared.clone(), sender, width.shard);
    std::thread::spawn(move || feed.run(ahead, reader));

    let mut totals = Totals::default();
    let mut outcome = write_all(&receiver, &shared.queue, writer, &mut totals, width.quiet);
    shared.queue.stop();
    for worker in workers {
        match worker.join() {
            Ok(times) => totals.times.add(&times),
            Err(_) => outcome = outcome.and(Err(Failure::work("a thread of the rollout panicked"))),
        }
    }
    (totals, outcome)
}

/// Stops the others when a thread panics: they would wait for its tasks for ever.
struct StopOnPanic<'a>(&'a Queue);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

fn spawn_worker(shared: Arc<Shared>, make: MakeGenerators, output: Sender<Event>) -> JoinHandle<Times> {
    std::thread::spawn(move || {
        let _stop = StopOnPanic(&shared.queue);
        let mut times = Times::default();
        let worked =
            make().and_then(|generators| Worker::new(&shared, generators, &output, &mut times).run());
        if let Err(failure) = worked {
            // Without a receiver the run is over already.
            let _ = output.send(Event::Failed(failure));
        }
        times
    })
}

fn write_all<W: Write>(
    receiver: &Receiver<Event>,
    queue: &Queue,
    writer: &mut Writer<W>,
    totals: &mut Totals,
    quiet: bool,
) -> Result<()> {
    enum Item {
        Task(Finished),
        Foreign(Line),
    }
    let mut progress = Progress::new("rollout", quiet, None);
    let mut order = Reorder::default();
    loop {
        if interrupted() {
            return Err(Failure::interrupted());
        }
        match receiver.recv_timeout(LOOK_UP) {
            // Whoever reads need not wait for a buffer to fill while the tasks come slowly.
            Err(RecvTimeoutError::Timeout) => {
                writer.flush()?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Failed(failure)) => return Err(failure),
            Ok(Event::End(end)) => totals.ends.push(*end),
            Ok(Event::Finished(finished)) => order.put(finished.sequence, Item::Task(finished)),
            Ok(Event::Foreign(sequence, line)) => order.put(sequence, Item::Foreign(line)),
        }
        let before = order.frontier();
        while let Some(item) = order.take() {
            match item {
                Item::Foreign(line) => writer.raw(&line.text)?,
                Item::Task(finished) => {
                    writer.raw(&finished.text)?;
                    totals.tasks += 1;
                    totals.counts.add(&finished.counts);
                    totals.account.add(&finished.account);
                    progress.inc(finished.counts.samples);
                    progress.set_message(format!("samples of {} tasks", totals.tasks));
                }
            }
        }
        if order.frontier() > before {
            queue.written(order.frontier());
        }
    }
    writer.flush()
}
