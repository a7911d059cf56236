//! One thread that owns a device's engine, for any number of threads that play episodes.
//!
//! Their groups run together: while one thread steps an environment the others' groups go on. On a GPU a matrix product of
//! another size may sum in another order, so there the same bytes need the same batches, which threads do not guarantee.

use crate::engine::request::{Completion, Request};
use crate::engine::scheduler::{PhaseTimings, Runner, Scheduler, SchedulerConfig};
use crate::runtime::no_thread;
use record::failure::{Failure, Result};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a client waits for a group before its thread polls the other policies.
const POLL_TIMEOUT: Duration = Duration::from_millis(2);

/// Finished groups, by the client's request ids, or why there will be none any more.
type Answer = Result<Vec<(u64, Vec<Completion>)>>;

/// A request and where its answer goes.
struct Submission {
    adapter: Option<u32>,
    request: Request,
    answers: Sender<Answer>,
}

/// What the engine's thread shares with those that it serves.
#[derive(Clone)]
struct Handle {
    submissions: Sender<Submission>,
    limits: SchedulerConfig,
    life: Weak<()>,
    timings: Arc<Mutex<PhaseTimings>>,
}

/// The engine's thread. Dropping it waits for the thread, which ends when all clients are gone and frees device memory.
pub struct Service {
    handle: Handle,
    /// Behind the handle, which keeps the thread going.
    _thread: Thread,
}

/// A thread that is waited for.
struct Thread(Option<JoinHandle<()>>);

impl Drop for Thread {
    fn drop(&mut self) {
        // A panic in it was told to the clients as an end without an answer.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

impl Service {
    /// Starts the thread and opens the engine in it with `open`.
    ///
    /// # Errors
    /// As `open`; 69 where no thread can be started.
    pub fn start<R, F>(open: F) -> Result<Service>
    where
        R: Runner + 'static,
        F: FnOnce() -> Result<(R, SchedulerConfig)> + Send + 'static,
    {
        let (submissions, queue) = channel();
        let (opened, outcome) = channel();
        let alive = Arc::new(());
        let life = Arc::downgrade(&alive);
        let timings = Arc::new(Mutex::new(PhaseTimings::default()));
        let counted = timings.clone();
        let thread = std::thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || {
                // Gone when this thread ends, however it ends.
                let _alive = alive;
                // The receiver waits for exactly this.
                match open() {
                    Ok((runner, limits)) => {
                        let _ = opened.send(Ok(limits.clone()));
                        serve(Scheduler::new(runner, limits), &queue, &counted);
                    }
                    Err(failure) => drop(opened.send(Err(failure))),
                }
            })
            .map_err(|error| no_thread(&error))?;
        let ended = || Failure::work("the device's thread ended while it opened the policy");
        let limits = outcome.recv().map_err(|_| ended())??;
        Ok(Service { handle: Handle { submissions, limits, life, timings }, _thread: Thread(Some(thread)) })
    }

    /// What the scheduler may do.
    pub fn limits(&self) -> &SchedulerConfig {
        &self.handle.limits
    }

    /// A client for one thread and one of the engine's adapters, or the base model.
    pub fn client(&self, adapter: Option<u32>) -> Client {
        let (answers, results) = channel();
        Client { handle: self.handle.clone(), adapter, answers, results, pending: 0 }
    }
}

/// Accepts submissions while there are clients, and runs the model while there are groups.
fn serve<R: Runner>(
    mut scheduler: Scheduler<R>,
    queue: &Receiver<Submission>,
    timings: &Mutex<PhaseTimings>,
) {
    let mut pending_answers: HashMap<u64, (u64, Sender<Answer>)> = HashMap::new();
    let mut last_id = 0;
    loop {
        loop {
            let submission = if scheduler.is_idle() {
                match queue.recv() {
                    Ok(submission) => submission,
                    Err(_) => return,
                }
            } else {
                match queue.try_recv() {
                    Ok(submission) => submission,
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            };
            let Submission { adapter, mut request, answers } = submission;
            last_id += 1;
            let theirs = std::mem::replace(&mut request.id, last_id);
            match scheduler.submit(adapter, request) {
                Ok(()) => {
                    pending_answers.insert(last_id, (theirs, answers));
                }
                // Clients check before they submit; a client that is gone needs no answer.
                Err(failure) => drop(answers.send(Err(failure))),
            }
        }
        match scheduler.advance() {
            Ok(finished) => {
                // Before the groups go out: the client of the last one may ask for the sum.
                lock(timings).add(&scheduler.take_timings());
                for (id, completions) in finished {
                    if let Some((theirs, answers)) = pending_answers.remove(&id) {
                        let _ = answers.send(Ok(vec![(theirs, completions)]));
                    }
                }
            }
            Err(failure) => {
                for (_, answers) in pending_answers.into_values() {
                    let _ = answers.send(Err(failure.clone()));
                }
                return;
            }
        }
    }
}

/// One thread's access to the engine.
pub struct Client {
    handle: Handle,
    adapter: Option<u32>,
    answers: Sender<Answer>,
    results: Receiver<Answer>,
    pending: usize,
}

impl Client {
    /// Submits a group.
    ///
    /// # Errors
    /// As [`SchedulerConfig::check`]; 1 where the engine has ended.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        self.handle.limits.check(&request)?;
        let submission = Submission { adapter: self.adapter, request, answers: self.answers.clone() };
        self.handle.submissions.send(submission).map_err(|_| ended())?;
        self.pending += 1;
        Ok(())
    }

    /// The groups that finished since the last call; waits a moment for one.
    ///
    /// # Errors
    /// The model failed, or its logits are not numbers.
    pub fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        let mut finished = match self.results.recv_timeout(POLL_TIMEOUT) {
            Ok(answer) => answer?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
        };
        let alive = self.handle.life.strong_count() > 0;
        while let Ok(answer) = self.results.try_recv() {
            finished.extend(answer?);
        }
        if finished.is_empty() && !alive {
            return Err(ended());
        }
        self.pending -= finished.len();
        Ok(finished)
    }

    /// Where the engine's time went since any client last asked.
    pub fn take_timings(&self) -> PhaseTimings {
        std::mem::take(&mut *lock(&self.handle.timings))
    }

    /// Whether nothing is being generated for this client.
    pub fn is_idle(&self) -> bool {
        self.pending == 0
    }
}

/// A thread that panicked is reported elsewhere; the sums stay usable.
fn lock(timings: &Mutex<PhaseTimings>) -> MutexGuard<'_, PhaseTimings> {
    timings.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ended() -> Failure {
    Failure::work("the device's engine has ended").hint("an earlier message says why")
}
