//! A thread that runs models for the threads that play episodes, while those score, step
//! environments and render prompts.
//!
//! On the CPU each playing thread has such a thread, which runs the models in turn. On a device one
//! thread runs a model for all of them, so that their groups share runs. On a GPU matrix products of
//! different sizes may sum in different orders, so identical bytes need identical batches, and
//! threads do not guarantee those.

use crate::engine::request::{Completion, Request};
use crate::engine::scheduler::{Runner, Scheduler, SchedulerConfig};
use crate::engine::timings::PhaseTimings;
use crate::runtime::spawn_failure;
use policy::directory::Policy;
use record::failure::{Failure, Result};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a client waits for a group before its thread looks for other work.
const POLL_TIMEOUT: Duration = Duration::from_millis(2);

/// A finished group, by its client and the client's request id, or why there will be none any more.
type Answer = Result<Finished>;

struct Finished {
    client: usize,
    id: u64,
    completions: Vec<Completion>,
}

/// A request, the index of its model, and the channel for its answer.
struct Submission {
    model: usize,
    adapter: Option<u32>,
    request: Request,
    client: usize,
    answers: Sender<Answer>,
}

/// A message to the thread.
enum Message {
    Submit(Submission),
    /// Free the device; answers whether to keep the thread.
    Release(Sender<Result<bool>>),
    /// Load other versions of its only model; answers whether that succeeded.
    Reload(Vec<Policy>, Vec<u32>, Sender<Result<bool>>),
}

/// The thread. Drop waits for the model run in progress and discards unfinished groups.
pub struct Service {
    messages: Sender<Message>,
    limits: Vec<SchedulerConfig>,
    timings: Arc<Mutex<Vec<PhaseTimings>>>,
    /// After `messages`, because the thread ends when that is dropped.
    thread: Thread,
}

/// A thread that is joined on drop.
struct Thread(Option<JoinHandle<()>>);

impl Drop for Thread {
    fn drop(&mut self) {
        // If it panicked, clients saw the end of the channel.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

impl Service {
    /// Starts the thread, which opens the models with `open`.
    ///
    /// # Errors
    /// `open` fails; 69: no thread can be started.
    pub fn start<R, F>(open: F) -> Result<Arc<Service>>
    where
        R: Runner + 'static,
        F: FnOnce() -> Result<Vec<Scheduler<R>>> + Send + 'static,
    {
        let (messages, queue) = channel();
        let (opened, outcome) = channel();
        let timings = Arc::new(Mutex::new(Vec::new()));
        let counted = timings.clone();
        let run = move || {
            // The receiver waits for exactly this.
            match open() {
                Ok(models) => {
                    *lock(&counted) = vec![PhaseTimings::default(); models.len()];
                    let limits: Vec<SchedulerConfig> =
                        models.iter().map(|model| model.config().clone()).collect();
                    let _ = opened.send(Ok(limits));
                    serve(models, &queue, &counted);
                }
                Err(failure) => drop(opened.send(Err(failure))),
            }
        };
        let thread = std::thread::Builder::new().name("models".to_owned()).spawn(run);
        let thread = Thread(Some(thread.map_err(|error| spawn_failure(&error))?));
        let ended = || Failure::work("the models' thread ended while it opened them");
        let limits = outcome.recv().map_err(|_| ended())??;
        Ok(Arc::new(Service { messages, limits, timings, thread }))
    }

    /// Frees the device for others. Returns false if the thread should end instead of waiting
    /// for [`Service::reload`].
    pub fn release(&self) -> Result<bool> {
        self.ask(Message::Release)
    }

    /// Loads other versions of the policies of its only model, with the same limits. Returns false if
    /// that needs a new thread.
    ///
    /// # Errors
    /// Files are missing, damaged or not supported; the device fails; or the thread has ended.
    pub fn reload(&self, policies: &[&Policy], stop_ids: &[u32]) -> Result<bool> {
        let policies = policies.iter().map(|&policy| policy.clone()).collect();
        self.ask(|answer| Message::Reload(policies, stop_ids.to_vec(), answer))
    }

    fn ask(&self, message: impl FnOnce(Sender<Result<bool>>) -> Message) -> Result<bool> {
        let (answer, outcome) = channel();
        self.messages.send(message(answer)).map_err(|_| ended())?;
        outcome.recv().map_err(|_| ended())?
    }

    /// The limits of a model's scheduler.
    pub fn limits(&self, model: usize) -> &SchedulerConfig {
        &self.limits[model]
    }

    /// A client for one of the models, with an adapter or without. Answers arrive in `inbox`.
    pub fn client(self: &Arc<Self>, model: usize, adapter: Option<u32>, inbox: &Rc<Inbox>) -> Client {
        let number = inbox.clients.borrow().len();
        inbox.clients.borrow_mut().push(Mailbox::default());
        Client { service: self.clone(), model, adapter, inbox: inbox.clone(), number }
    }

    /// Returns true if its thread has ended, after a failure.
    pub fn has_ended(&self) -> bool {
        self.thread.0.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// Accepts submissions while there are clients, and runs each model while it has groups.
fn serve<R: Runner>(
    mut models: Vec<Scheduler<R>>,
    queue: &Receiver<Message>,
    timings: &Mutex<Vec<PhaseTimings>>,
) {
    let mut pending_answers: HashMap<u64, (usize, u64, Sender<Answer>)> = HashMap::new();
    let mut last_id = 0;
    loop {
        loop {
            let next = match models.iter().all(Scheduler::is_idle) {
                true => queue.recv().map_err(|_| TryRecvError::Disconnected),
                false => queue.try_recv(),
            };
            let Submission { model, adapter, mut request, client, answers } = match next {
                Ok(Message::Submit(submission)) => submission,
                Ok(Message::Release(answer)) => {
                    // Their receivers are gone.
                    pending_answers.clear();
                    let kept = models.iter_mut().map(Scheduler::release).collect::<Result<Vec<bool>>>();
                    let _ = answer.send(kept.map(|kept| kept.into_iter().all(|kept| kept)));
                    continue;
                }
                Ok(Message::Reload(policies, stop_ids, answer)) => {
                    let outcome = match &mut models[..] {
                        [model] => model.reload(&policies, &stop_ids),
                        _ => Ok(false),
                    };
                    let _ = answer.send(outcome);
                    continue;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            };
            last_id += 1;
            let theirs = std::mem::replace(&mut request.id, last_id);
            match models[model].submit(adapter, request) {
                Ok(()) => {
                    pending_answers.insert(last_id, (client, theirs, answers));
                }
                // Clients check before they submit; a client that is gone needs no answer.
                Err(failure) => drop(answers.send(Err(failure))),
            }
        }
        for (index, model) in models.iter_mut().enumerate().filter(|(_, model)| !model.is_idle()) {
            match model.advance() {
                Ok(finished) => {
                    // Before the answers go out, because the last client may then ask for the total.
                    lock(timings)[index].add(&model.take_timings());
                    for (id, completions) in finished {
                        if let Some((client, id, answers)) = pending_answers.remove(&id) {
                            let _ = answers.send(Ok(Finished { client, id, completions }));
                        }
                    }
                }
                Err(failure) => {
                    for (.., answers) in pending_answers.into_values() {
                        let _ = answers.send(Err(failure.clone()));
                    }
                    return;
                }
            }
        }
    }
}

/// Where the answers for one thread come, whichever models they are from: whoever waits, waits for all of them.
pub struct Inbox {
    answers: Sender<Answer>,
    results: Receiver<Answer>,
    clients: RefCell<Vec<Mailbox>>,
}

/// One client's groups.
#[derive(Default)]
struct Mailbox {
    finished: Vec<(u64, Vec<Completion>)>,
    /// Groups that were submitted and not yet taken.
    pending: usize,
}

impl Inbox {
    pub fn new() -> Rc<Inbox> {
        let (answers, results) = channel();
        Rc::new(Inbox { answers, results, clients: RefCell::default() })
    }
}

/// A thread's access to a model.
pub struct Client {
    service: Arc<Service>,
    model: usize,
    adapter: Option<u32>,
    inbox: Rc<Inbox>,
    /// Its index in the inbox.
    number: usize,
}

impl Client {
    /// Submits a group.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        self.service.limits(self.model).check(&request)?;
        let (model, adapter, answers) = (self.model, self.adapter, self.inbox.answers.clone());
        let submission = Submission { model, adapter, request, client: self.number, answers };
        self.service.messages.send(Message::Submit(submission)).map_err(|_| ended())?;
        self.inbox.clients.borrow_mut()[self.number].pending += 1;
        Ok(())
    }

    /// The groups of this client that have finished; may `wait` a moment for one of any client of the inbox.
    ///
    /// # Errors
    /// A model failed, or its logits are not numbers.
    pub fn advance(&mut self, wait: bool) -> Result<Vec<(u64, Vec<Completion>)>> {
        let mut clients = self.inbox.clients.borrow_mut();
        let mut deliver = |answer: Answer| {
            let Finished { client, id, completions } = answer?;
            clients[client].finished.push((id, completions));
            Ok::<(), Failure>(())
        };
        if wait && let Ok(answer) = self.inbox.results.recv_timeout(POLL_TIMEOUT) {
            deliver(answer)?;
        }
        // The thread's last answers are still in the channel after it ended.
        let has_ended = self.service.has_ended();
        while let Ok(answer) = self.inbox.results.try_recv() {
            deliver(answer)?;
        }
        let own = &mut clients[self.number];
        if own.finished.is_empty() && has_ended {
            return Err(ended());
        }
        own.pending -= own.finished.len();
        Ok(std::mem::take(&mut own.finished))
    }

    /// The model's time by phase since any client last asked.
    pub fn take_timings(&self) -> PhaseTimings {
        std::mem::take(&mut lock(&self.service.timings)[self.model])
    }

    /// Returns true if all its groups were taken.
    pub fn is_idle(&self) -> bool {
        self.inbox.clients.borrow()[self.number].pending == 0
    }
}

/// A panic is reported elsewhere; the totals stay usable.
fn lock<T>(sums: &Mutex<T>) -> MutexGuard<'_, T> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ended() -> Failure {
    Failure::work("the models' thread has ended").hint("an earlier message says why")
}
