//! The tasks that wait, shared by the threads that work on them.
//!
//! Three bounds keep memory flat on an endless stream: few tasks wait here, each thread has a limited number
//! under way, and no task is handed out that is further than a window ahead of the oldest unwritten one
//! (the output is in task order, so everything behind a slow task has to be held).

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::trial::Work;

/// How long the first hand-out waits for the stream to fill, so that a handful of tasks is dealt evenly.
const PATIENCE: Duration = Duration::from_millis(50);

/// Tasks on their way from the reader to the threads.
pub struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
    threads: usize,
    /// Tasks that a thread may have under way.
    limit: usize,
    created: Instant,
}

struct Inner {
    waiting: VecDeque<Work>,
    under_way: usize,
    /// The sequence number that is written next.
    frontier: u64,
    closed: bool,
    stopped: bool,
    dealt: bool,
}

/// What a thread gets.
#[derive(Debug)]
pub enum Deal {
    /// Tasks to begin; maybe none just now.
    Tasks(Vec<Work>),
    /// There will be none any more.
    Over,
}

impl Queue {
    /// A queue for `threads` threads with at most `limit` tasks under way on each.
    pub fn new(threads: usize, limit: usize) -> Queue {
        let inner = Inner {
            waiting: VecDeque::new(),
            under_way: 0,
            frontier: 0,
            closed: false,
            stopped: false,
            dealt: false,
        };
        Queue { inner: Mutex::new(inner), changed: Condvar::new(), threads, limit, created: Instant::now() }
    }

    fn window(&self) -> u64 {
        4 * (self.threads * self.limit) as u64
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A thread that panicked is reported by its own join; the counters here stay usable.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task once there is room; false when nobody will work on it any more.
    pub fn push(&self, work: Work) -> bool {
        let mut inner = self.lock();
        while inner.waiting.len() >= 2 * self.threads * self.limit && !inner.stopped {
            inner = self.wait(inner);
        }
        inner.waiting.push_back(work);
        self.changed.notify_all();
        !inner.stopped
    }

    /// Waits until output with number `sequence` may be held back; false when nothing is written any more.
    pub fn admit(&self, sequence: u64) -> bool {
        let mut inner = self.lock();
        while sequence >= inner.frontier + self.window() && !inner.stopped {
            inner = self.wait(inner);
        }
        !inner.stopped
    }

    /// Says that no task follows.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Ends everything: threads get [`Deal::Over`], whatever waits.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Says that all output before `frontier` is written.
    pub fn written(&self, frontier: u64) {
        self.lock().frontier = frontier;
        self.changed.notify_all();
    }

    /// Says that a thread finished one of its tasks.
    pub fn finished(&self) {
        self.lock().under_way -= 1;
    }

    /// Tasks for a thread that has `own` under way: its even share, as far as its limit and the window allow.
    /// A thread without any waits until there is something.
    pub fn deal(&self, own: usize) -> Deal {
        let mut inner = self.lock();
        loop {
            if inner.stopped {
                return Deal::Over;
            }
            let ready = inner.dealt || inner.closed || inner.waiting.len() >= self.threads * self.limit;
            let patience = PATIENCE.saturating_sub(self.created.elapsed());
            if !ready && !patience.is_zero() && own == 0 {
                inner = self
                    .changed
                    .wait_timeout(inner, patience)
                    .map_or_else(|poisoned| poisoned.into_inner().0, |(inner, _)| inner);
                continue;
            }
            let tasks = self.share(&mut inner, own);
            if !tasks.is_empty() {
                inner.dealt = true;
                self.changed.notify_all();
                return Deal::Tasks(tasks);
            }
            if own > 0 {
                return Deal::Tasks(tasks);
            }
            if inner.closed && inner.waiting.is_empty() {
                return Deal::Over;
            }
            inner = self.wait(inner);
        }
    }

    fn share(&self, inner: &mut Inner, own: usize) -> Vec<Work> {
        let even = (inner.waiting.len() + inner.under_way).div_ceil(self.threads);
        let room = even.min(self.limit).saturating_sub(own);
        let end = inner.frontier + self.window();
        let mut tasks = Vec::new();
        while tasks.len() < room && inner.waiting.front().is_some_and(|work| work.sequence < end) {
            tasks.extend(inner.waiting.pop_front());
        }
        inner.under_way += tasks.len();
        tasks
    }
}

#[cfg(test)]
mod tests {
    use record::line::Task;

    use super::*;

    fn fill(queue: &Queue, sequences: std::ops::Range<u64>) {
        for sequence in sequences {
            assert!(queue.push(Work { sequence, index: sequence, occurrence: 0, task: Task::default() }));
        }
    }

    fn dealt(queue: &Queue, own: usize) -> Vec<u64> {
        match queue.deal(own) {
            Deal::Tasks(tasks) => tasks.iter().map(|work| work.sequence).collect(),
            Deal::Over => panic!("over"),
        }
    }

    #[test]
    fn a_handful_of_tasks_is_dealt_evenly() {
        let queue = Queue::new(2, 16);
        fill(&queue, 0..5);
        queue.close();
        assert_eq!(dealt(&queue, 0), [0, 1, 2]);
        assert_eq!(dealt(&queue, 3), [0; 0]);
        assert_eq!(dealt(&queue, 0), [3, 4]);
        assert!(matches!(queue.deal(0), Deal::Over));
    }

    #[test]
    fn a_thread_never_has_more_than_its_limit() {
        let queue = Queue::new(2, 3);
        fill(&queue, 0..10);
        assert_eq!(dealt(&queue, 0), [0, 1, 2]);
        assert_eq!(dealt(&queue, 2), [3]);
        assert_eq!(dealt(&queue, 3), [0; 0]);
    }

    #[test]
    fn nothing_runs_further_ahead_of_the_oldest_unwritten_task_than_the_window() {
        let queue = Queue::new(1, 2);
        let mut seen = Vec::new();
        let mut next = 0;
        for _ in 0..20 {
            while next < 4 + seen.len() as u64 && next < 12 {
                fill(&queue, next..next + 1);
                next += 1;
            }
            for sequence in dealt(&queue, 1) {
                seen.push(sequence);
                queue.finished();
            }
        }
        // Task 0 is under way all the time: a window of 4 x 1 thread x 2 tasks is open.
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
        queue.written(3);
        assert_eq!(dealt(&queue, 1), [8]);
    }

    #[test]
    fn a_stopped_queue_turns_everybody_away() {
        let queue = Queue::new(1, 1);
        queue.stop();
        assert!(matches!(queue.deal(0), Deal::Over));
        assert!(!queue.admit(1_000_000));
        let work = Work { sequence: 0, index: 0, occurrence: 0, task: Task::default() };
        assert!(!queue.push(work));
    }
}
