//! Threads that share the work of single operations, for models of which there is memory for one micro-batch only.
//!
//! An operation is cut into pieces that write to different places and whose results do not depend on the cut; the pool takes
//! them in any order and the operation ends with the last. Helpers sleep in between: on a shared machine a thread that spins
//! takes the time of one that computes. They are kept from one operation to the next, as long as their backend lives.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The helpers' work: called once by each of them, with its number.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

#[derive(Default)]
struct State {
    /// The work at hand; there is some while `running` is not 0.
    work: Option<Work<'static>>,
    /// Counts the works so far, so that a helper takes each once.
    generation: u64,
    /// Helpers that have not finished it.
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
    leave: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    started: Condvar,
    finished: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(condition: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        condition.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// A helper's life.
    fn help(&self, number: usize) {
        let mut done = 0;
        let mut state = self.lock();
        loop {
            if state.leave {
                return;
            }
            let Some(work) = state.work.filter(|_| state.generation != done) else {
                state = Shared::wait(&self.started, state);
                continue;
            };
            done = state.generation;
            drop(state);
            let outcome = catch_unwind(AssertUnwindSafe(|| work(number)));
            state = self.lock();
            state.panic = outcome.err().or(state.panic.take());
            state.running -= 1;
            if state.running == 0 {
                self.finished.notify_all();
            }
        }
    }
}

/// Waits for all helpers when dropped.
struct Finish<'a>(&'a Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        while state.running > 0 {
            state = Shared::wait(&self.0.finished, state);
        }
        state.work = None;
    }
}

/// The calling thread and its helpers.
#[derive(Default)]
pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// A pool of `threads` threads, including the caller; fewer if the system starts no more.
    pub(super) fn new(threads: usize) -> ThreadPool {
        let mut pool = ThreadPool::default();
        for number in 1..threads {
            let shared = pool.shared.clone();
            let Ok(helper) = Builder::new().spawn(move || shared.help(number)) else { break };
            pool.helpers.push(helper);
        }
        pool
    }

    /// Its threads.
    pub(super) fn size(&self) -> usize {
        1 + self.helpers.len()
    }

    /// Calls `work` with every piece, and with a per-thread value, one for each thread.
    pub(super) fn each<K: Send, P: Send>(
        &self,
        kept: &mut [K],
        pieces: Vec<P>,
        work: impl Fn(&mut K, P) + Sync,
    ) {
        if self.helpers.is_empty() || pieces.len() < 2 {
            return pieces.into_iter().for_each(|piece| work(&mut kept[0], piece));
        }
        let queue = Mutex::new(pieces.into_iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let kept: Vec<Mutex<&mut K>> = kept.iter_mut().map(Mutex::new).collect();
        self.run(&|number| {
            let mut kept = kept[number].lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(piece) = next() {
                work(&mut kept, piece);
            }
        });
    }

    /// Runs `work` on every thread, and returns when all are done.
    fn run(&self, work: Work<'_>) {
        // SAFETY: only the lifetime changes. Helpers call it between here and the end of `finish`, which is dropped before
        // this returns, or unwinds.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let finish = {
            let mut state = self.shared.lock();
            state.work = Some(work);
            state.generation += 1;
            state.running = self.helpers.len();
            self.shared.started.notify_all();
            Finish(&self.shared)
        };
        work(0);
        drop(finish);
        let panic = self.shared.lock().panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.lock().leave = true;
        self.shared.started.notify_all();
        for helper in self.helpers.drain(..) {
            // A panic of a helper's was the caller's already.
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_and_before_the_call_returns() {
        for threads in [1, 2, 5] {
            let pool = ThreadPool::new(threads);
            let mut counts = vec![0; pool.size()];
            for round in 0..200 {
                let mut values = vec![0; round % 17];
                let pieces: Vec<&mut i32> = values.iter_mut().collect();
                pool.each(&mut counts, pieces, |count, value| {
                    *value += 1;
                    *count += 1;
                });
                assert!(values.iter().all(|&value| value == 1));
            }
            assert_eq!(counts.iter().sum::<i32>(), (0..200).map(|round| round % 17).sum::<i32>());
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(3);
        let mut kept = [(); 3];
        let broken = catch_unwind(AssertUnwindSafe(|| {
            pool.each(&mut kept, (0..50).collect(), |(), piece: i32| assert!(piece != 33));
        }));
        assert!(broken.is_err());
        pool.each(&mut kept, (0..50).collect(), |(), _: i32| ());
    }
}
