//! Writes the output of the worker threads in the order of the tasks.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use record::failure::{Failure, Result};
use record::line::End;
use record::progress::Progress;
use record::stage::interrupted;
use record::write::Writer;

use crate::queue::Queue;
use crate::stage::Totals;
use crate::task_run::Output;

/// How long the writer waits for an event before it looks for a signal.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Messages of the other threads to the writer.
#[derive(Debug)]
pub enum Event {
    /// The lines of a finished task, or a line that passes through.
    Output(Output),
    /// The `end` line of an earlier stage.
    End(Box<End>),
    /// The input has ended after this many tasks, including other shards'.
    Tasks {
        /// All of them.
        read: u64,
        /// Tasks of this shard.
        own: u64,
    },
    /// The run cannot go on.
    Failed(Failure),
}

/// Writes until all senders are gone. Early output is held; the queue bounds its amount.
///
/// # Errors
/// [`Event::Failed`], a signal, a closed or full output. `totals` hold the counts so far.
pub fn write_in_order<W: Write>(
    events: &Receiver<Event>,
    queue: &Queue,
    writer: &mut Writer<W>,
    mut progress: Progress,
    totals: &mut Totals,
) -> Result<()> {
    let mut has_all = false;
    let mut held: BTreeMap<u64, Output> = BTreeMap::new();
    let mut next = 0;
    loop {
        if interrupted() {
            return Err(Failure::interrupted());
        }
        let mut event = events.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        if event.is_err() {
            // Finished tasks must not wait for unfinished ones.
            writer.flush()?;
            event = events.recv_timeout(POLL_TIMEOUT);
        }
        match event {
            Err(RecvTimeoutError::Disconnected) => return writer.flush(),
            // With --resident, a part whose tasks are still to come has not begun.
            Err(RecvTimeoutError::Timeout) if has_all => progress.tick(),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::Failed(failure)) => return Err(failure),
            Ok(Event::End(end)) => totals.ends.push(*end),
            Ok(Event::Tasks { read, own }) => {
                totals.tasks_read = read;
                progress.set_total(own);
                has_all = true;
            }
            Ok(Event::Output(output)) => drop(held.insert(output.sequence, output)),
        }
        let first = next;
        while let Some(output) = held.remove(&next) {
            writer.raw(&output.text)?;
            next += 1;
            totals.stats.add(&output.stats);
            progress.inc(output.stats.tasks);
            progress.set_message(format!("tasks played, {} samples", totals.stats.samples()));
        }
        if next > first {
            queue.written(next, totals.stats.teaching);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Stats;
    use std::io;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    fn silent() -> Progress {
        Progress::new("rollout", true, None)
    }

    #[test]
    fn output_leaves_in_order_whatever_order_it_comes_in() {
        let (sender, receiver) = channel();
        for sequence in [2, 0, 3, 1, 5, 4] {
            let output = Output { sequence, text: sequence.to_string(), stats: Stats::default() };
            sender.send(Event::Output(output)).expect("a receiver");
        }
        drop(sender);
        let mut writer = Writer::new(Vec::new());
        let queue = Queue::new(1, 1);
        write_in_order(&receiver, &queue, &mut writer, silent(), &mut Totals::default())
            .expect("a writable buffer");
        assert_eq!(writer.into_inner().expect("a writable buffer"), b"0\n1\n2\n3\n4\n5\n");
    }

    /// A writer that sends its bytes on.
    struct Sent(Sender<Vec<u8>>);

    impl Write for Sent {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn finished_episodes_do_not_wait_for_unfinished_ones() {
        let ((sender, receiver), (sent, written)) = (channel(), channel());
        let writing = thread::spawn(move || {
            let mut writer = Writer::new(Sent(sent));
            write_in_order(&receiver, &Queue::new(1, 1), &mut writer, silent(), &mut Totals::default())
        });
        let output = Output { sequence: 0, text: "first".to_owned(), stats: Stats::default() };
        sender.send(Event::Output(output)).expect("a receiver");
        assert_eq!(written.recv_timeout(Duration::from_secs(20)).expect("a line"), b"first\n");
        drop(sender);
        writing.join().expect("a thread that ends").expect("an output that takes all");
    }
}
