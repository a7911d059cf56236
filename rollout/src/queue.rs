//! The queue of tasks between the reader and the worker threads.
//!
//! Two bounds keep memory constant on an endless stream: each thread has a limited number of tasks in
//! progress, and no task enters that is further than a window ahead of the oldest unwritten one. Output is in
//! task order, so everything behind a slow task must be held.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::task_run::QueuedTask;

/// How long the first batch waits for the stream, so that a few tasks are spread evenly.
const FILL_TIMEOUT: Duration = Duration::from_millis(50);

/// Tasks on their way from the reader to the worker threads.
pub struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
    threads: usize,
    /// Tasks that a thread may have in progress.
    limit: usize,
    created: Instant,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<QueuedTask>,
    in_progress: usize,
    /// The next sequence number to write.
    next_written: u64,
    /// Written tasks that teach.
    teaching: u64,
    /// True once no more tasks follow.
    closed: bool,
    /// True once all work should stop.
    stopped: bool,
    /// True once the first batch was taken.
    started: bool,
}

impl Queue {
    /// A queue for `threads` threads with at most `limit` tasks in progress on each.
    pub fn new(threads: usize, limit: usize) -> Queue {
        let (inner, changed) = (Mutex::default(), Condvar::new());
        Queue { inner, changed, threads, limit, created: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic is reported by the thread's join; the counters here stay usable.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn has_room(&self, inner: &Inner, sequence: u64) -> bool {
        sequence < inner.next_written + 4 * (self.threads * self.limit) as u64
    }

    /// Waits until the output with number `sequence` is inside the window; false once the queue is stopped.
    pub fn wait_for_room(&self, sequence: u64) -> bool {
        let mut inner = self.lock();
        while !self.has_room(&inner, sequence) && !inner.stopped {
            inner = self.wait(inner);
        }
        !inner.stopped
    }

    /// Adds a task once it is inside the window; false once the queue is stopped.
    pub fn push(&self, task: QueuedTask) -> bool {
        let open = self.wait_for_room(task.sequence);
        self.update(|inner| inner.waiting.push_back(task));
        open
    }

    /// Marks the end of the tasks.
    pub fn close(&self) {
        self.update(|inner| inner.closed = true);
    }

    /// Stops everything: from now on [`Queue::take`] returns `None`.
    pub fn stop(&self) {
        self.update(|inner| inner.stopped = true);
    }

    /// Records that all output before `next` is written, with `teaching` tasks that teach.
    pub fn written(&self, next: u64, teaching: u64) {
        self.update(|inner| (inner.next_written, inner.teaching) = (next, teaching));
    }

    /// Waits until all output before `next` is written. Returns the number of tasks that teach; `None`
    /// once the queue is stopped.
    pub fn wait_for_wave(&self, next: u64) -> Option<u64> {
        let mut inner = self.lock();
        while inner.next_written < next && !inner.stopped {
            inner = self.wait(inner);
        }
        (!inner.stopped).then_some(inner.teaching)
    }

    /// Records that a thread finished one of its tasks.
    pub fn finished(&self) {
        self.lock().in_progress -= 1;
    }

    /// A batch of tasks for a thread with `own` in progress: an even share, up to its limit, possibly empty.
    /// A thread with nothing in progress waits for at least one. `None` if no task will come.
    pub fn take(&self, own: usize) -> Option<Vec<QueuedTask>> {
        let mut inner = self.lock();
        loop {
            if inner.stopped {
                return None;
            }
            let ready = inner.started || inner.closed || inner.waiting.len() >= self.threads * self.limit;
            let timeout = FILL_TIMEOUT.saturating_sub(self.created.elapsed());
            if !ready && !timeout.is_zero() && own == 0 {
                let waited = self.changed.wait_timeout(inner, timeout);
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let even_share = (inner.waiting.len() + inner.in_progress).div_ceil(self.threads);
            let count = even_share.min(self.limit).saturating_sub(own).min(inner.waiting.len());
            if count > 0 || own > 0 {
                inner.started |= count > 0;
                inner.in_progress += count;
                return Some(inner.waiting.drain(..count).collect());
            }
            if inner.closed && inner.waiting.is_empty() {
                return None;
            }
            inner = self.wait(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use record::line::Task;

    use super::*;

    fn task(sequence: u64) -> QueuedTask {
        QueuedTask { sequence, index: sequence, occurrence: 0, task: Task::default() }
    }

    fn fill(queue: &Queue, sequences: std::ops::Range<u64>) {
        assert!(sequences.map(task).all(|task| queue.push(task)));
    }

    fn take(queue: &Queue, own: usize) -> Vec<u64> {
        queue.take(own).expect("an open queue").iter().map(|task| task.sequence).collect()
    }

    #[test]
    fn a_few_tasks_are_spread_evenly() {
        let queue = Queue::new(2, 16);
        fill(&queue, 0..5);
        queue.close();
        assert_eq!(take(&queue, 0), [0, 1, 2]);
        assert_eq!(take(&queue, 3), [0; 0]);
        assert_eq!(take(&queue, 0), [3, 4]);
        assert!(queue.take(0).is_none());
    }

    #[test]
    fn a_thread_never_has_more_than_its_limit() {
        let queue = Queue::new(2, 3);
        fill(&queue, 0..10);
        assert_eq!(take(&queue, 0), [0, 1, 2]);
        assert_eq!(take(&queue, 2), [3]);
        assert_eq!(take(&queue, 3), [0; 0]);
    }

    #[test]
    fn nothing_runs_further_ahead_of_the_oldest_unwritten_task_than_the_window() {
        let queue = Queue::new(1, 2);
        // A window of 4 x 1 thread x 2 tasks; task 0 is in progress all the time.
        fill(&queue, 0..8);
        assert_eq!(take(&queue, 0), [0, 1]);
        for next in 2..8 {
            queue.finished();
            assert_eq!(take(&queue, 1), [next]);
        }
        queue.finished();
        assert!(!queue.has_room(&queue.lock(), 8));
        std::thread::scope(|scope| {
            scope.spawn(|| fill(&queue, 8..9));
            queue.written(1, 0);
        });
        assert_eq!(take(&queue, 1), [8]);
        assert!(!queue.has_room(&queue.lock(), 9));
    }

    #[test]
    fn a_stopped_queue_turns_everybody_away() {
        let queue = Queue::new(1, 1);
        queue.stop();
        assert!(queue.take(0).is_none());
        assert!(!queue.wait_for_room(1_000_000));
        assert!(!queue.push(task(0)));
    }
}
