//! The state of an episode: the calls that were answered, those that wait, and perhaps the program that made them.
//!
//! A program cannot be copied, so a copy takes the running one, and whoever is asked next without one starts another and gives it the
//! recorded answers (replay). Answers go by the key of a call: calls at once may come in any order. Calls that wait at the same time
//! are a batch, which is sorted, asked one after another, and answered as a whole, so that the program cannot run ahead between them.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use endpoint::chat::ChatMessage;
use record::failure::{Failure, Result};
use record::sample::Message;
use record::stage::interrupted;
use serde_json::Value;

use super::call::{Answer, Asked, number_of};

/// How long a program rests, with calls that wait, before these are a batch.
const SETTLE: Duration = Duration::from_millis(20);
/// How long a program rests before a replay takes a recorded call for one that does not come.
const DIVERGE: Duration = Duration::from_secs(2);
/// How often a wait looks whether the program rests.
const LOOK: Duration = Duration::from_millis(5);
/// A program that computes on while its calls wait is taken to rest after this time.
const BUSY: Duration = Duration::from_secs(5);
/// How often a wait looks whether anyone still needs it.
const TICK: Duration = Duration::from_millis(100);
/// Most calls that wait at once; more are refused.
const WAITING: usize = 64;
/// Letters around the first difference of two calls.
const AROUND: usize = 30;

/// A call that waits for its answer.
pub struct Arrival {
    pub asked: Asked,
    /// True if its client says that it asks again.
    pub is_retry: bool,
    answer: Sender<Arc<Answer>>,
    client: Weak<()>,
}

/// The client's side of an [`Arrival`]; without it the call is gone.
pub struct Client {
    pub answer: Receiver<Arc<Answer>>,
    _here: Arc<()>,
}

impl Arrival {
    pub fn new(asked: Asked, is_retry: bool) -> (Arrival, Client) {
        let ((sender, answer), here) = (channel(), Arc::new(()));
        let client = Arc::downgrade(&here);
        (Arrival { asked, is_retry, answer: sender, client }, Client { answer, _here: here })
    }

    fn is_gone(&self) -> bool {
        self.client.strong_count() == 0
    }
}

/// How a program ended: why, if not by `exit(0)`, and the end of its stdout.
#[derive(Clone, Debug, Default)]
pub struct Exit {
    pub failed: Option<String>,
    pub output: Vec<u8>,
}

/// What a program does.
pub enum Event {
    Called(Box<Arrival>),
    Exited(Exit),
}

/// A program: its events and its processes.
pub struct Running {
    pub events: Receiver<Event>,
    pub processes: Box<dyn Processes>,
}

/// The processes of a program, which are ended when this is dropped.
pub trait Processes: Send {
    /// Returns true if one of them computes or reads a disk, so that more calls may follow without an answer.
    fn is_busy(&self) -> bool;
}

/// Starts the program on a task.
pub trait Start {
    /// # Errors
    /// It cannot be started: work.
    fn start(&mut self, spec: &Value) -> Result<Running>;
}

/// An answered call.
struct Answered {
    asked: Arc<Asked>,
    answer: Arc<Answer>,
}

/// A running program and its calls that have no answer yet.
struct Live {
    running: Running,
    waiting: Vec<Arrival>,
    exit: Option<Exit>,
}

/// An episode.
#[derive(Default)]
pub struct Episode {
    spec: Arc<Value>,
    log: Vec<Arc<Answered>>,
    batch: Vec<(Arc<Asked>, Option<Arc<Answer>>)>,
    live: Option<Live>,
    exit: Option<Exit>,
    silence: Duration,
}

impl Episode {
    /// Starts the program on `spec` and waits for its first call.
    ///
    /// # Errors
    /// It cannot be started, or is silent: work. It ends without a call: data.
    pub fn begin(start: &mut impl Start, spec: Value, silence: Duration) -> Result<Episode> {
        let mut episode = Episode { spec: Arc::new(spec), silence, ..Episode::default() };
        episode.live = Some(Live::new(start.start(&episode.spec)?));
        episode.advance()?;
        Ok(episode)
    }

    /// A copy, which takes the running program.
    pub fn fork(&mut self) -> Episode {
        let (log, batch, live) = (self.log.clone(), self.batch.clone(), self.live.take());
        Episode { spec: self.spec.clone(), log, batch, live, exit: self.exit.clone(), silence: self.silence }
    }

    /// The call to answer; `None` once the program has ended.
    pub fn asked(&self) -> Option<&Asked> {
        self.batch.iter().find(|(_, answer)| answer.is_none()).map(|(asked, _)| &**asked)
    }

    /// How the program ended.
    pub fn exit(&self) -> Option<&Exit> {
        self.exit.as_ref()
    }

    /// The calls that were answered.
    pub fn calls(&self) -> impl Iterator<Item = &Asked> {
        self.log.iter().map(|turn| &*turn.asked)
    }

    pub fn spec(&self) -> &Value {
        &self.spec
    }

    pub fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Ends the program; the episode starts another one when it needs it.
    pub fn cool(&mut self) {
        self.live = None;
    }

    /// What the policy is asked: the messages, an assistant's calls as the text that the policy wrote.
    pub fn prompt(&self) -> Vec<Message> {
        let message = |turn: &ChatMessage| {
            let mut message = turn.message();
            let number = turn.calls.first().and_then(|call| number_of(&call.id));
            if let Some(own) = number.and_then(|number| self.log.get(number)) {
                message.content.clone_from(&own.answer.text);
            }
            message
        };
        self.asked().map_or(&[][..], |asked| &asked.call.turns).iter().map(message).collect()
    }

    /// Answers the call that is asked, and waits for the next one or the end.
    ///
    /// # Errors
    /// The program is silent: work. It is not deterministic: data.
    pub fn answer(&mut self, start: &mut impl Start, answer: Answer) -> Result<()> {
        let Some(place) = self.batch.iter().position(|(_, answer)| answer.is_none()) else {
            return Err(Failure::data("the episode is over: the program has ended"));
        };
        self.batch[place].1 = Some(Arc::new(Answer { number: self.log.len() + place, ..answer }));
        if self.asked().is_some() {
            return Ok(());
        }
        if self.live.is_none() {
            self.live = Some(self.replay(start)?);
        }
        let Some(live) = &mut self.live else { return Ok(()) };
        live.listen(&self.log);
        for (asked, answer) in self.batch.drain(..) {
            let Some(answer) = answer else { continue };
            live.answer(&asked.key, &answer);
            self.log.push(Arc::new(Answered { asked, answer }));
        }
        self.advance()
    }

    /// Waits until calls wait, and no more come, or the program has ended.
    fn advance(&mut self) -> Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        while live.exit.is_none() {
            live.waiting.retain(|arrival| !arrival.is_gone());
            let is_heard = match live.waiting.is_empty() {
                true => live.hear(self.silence, &self.log)?,
                false => live.hear_unless_at_rest(SETTLE, &self.log)?,
            };
            if is_heard {
                continue;
            }
            if live.waiting.is_empty() {
                return Err(silent(self.silence));
            }
            live.waiting.sort_by(|a, b| (&a.asked.role, &a.asked.key).cmp(&(&b.asked.role, &b.asked.key)));
            self.batch = live.waiting.iter().map(|arrival| (Arc::new(arrival.asked.clone()), None)).collect();
            return Ok(());
        }
        self.exit = live.exit.take();
        self.live = None;
        Ok(())
    }

    /// Starts the program anew and gives it the recorded answers, until the calls of the batch wait.
    fn replay(&self, start: &mut impl Start) -> Result<Live> {
        let mut live = Live::new(start.start(&self.spec)?);
        let mut missing: Vec<&Arc<Answered>> = self.log.iter().collect();
        loop {
            while let Some(place) = missing.iter().position(|turn| live.answer(&turn.asked.key, &turn.answer))
            {
                missing.remove(place);
            }
            let (absent, _) = self.differences(&live);
            if missing.is_empty() && absent.is_empty() {
                return Ok(live);
            }
            let is_heard = live.exit.is_none()
                && match live.waiting.is_empty() {
                    true => live.hear(self.silence, &[])?,
                    false => live.hear_unless_at_rest(DIVERGE, &[])?,
                };
            if is_heard {
                continue;
            }
            if live.exit.is_none() && live.waiting.is_empty() {
                return Err(silent(self.silence));
            }
            let (absent, mut unmatched) = self.differences(&live);
            if !missing.is_empty() {
                unmatched = live.waiting.iter().map(|arrival| &arrival.asked).collect();
            }
            let was = missing.first().map(|answered| &*answered.asked).or(absent.first().copied());
            // The same role's, if it calls: with calls at once, others may be early.
            let same = unmatched.iter().find(|call| was.is_some_and(|was| was.role == call.role));
            let number = self.log.len() - missing.len() + 1;
            return Err(divergence(number, was, same.or(unmatched.first()).copied()));
        }
    }

    /// The calls of the batch that do not wait, and those that wait beside the batch.
    fn differences<'a>(&'a self, live: &'a Live) -> (Vec<&'a Asked>, Vec<&'a Asked>) {
        let mut unmatched: Vec<&Asked> = live.waiting.iter().map(|arrival| &arrival.asked).collect();
        let mut absent = Vec::new();
        for (asked, _) in &self.batch {
            match unmatched.iter().position(|call| call.key == asked.key) {
                Some(place) => _ = unmatched.remove(place),
                None => absent.push(&**asked),
            }
        }
        (absent, unmatched)
    }
}

impl Live {
    fn new(running: Running) -> Live {
        Live { running, waiting: Vec::new(), exit: None }
    }

    /// Answers a call that waits; false if none with this key does.
    fn answer(&mut self, key: &str, answer: &Arc<Answer>) -> bool {
        let place = self.waiting.iter().position(|arrival| arrival.asked.key == key);
        // A client that is gone asks again, and gets it then.
        place.map(|place| self.waiting.remove(place).answer.send(answer.clone())).is_some()
    }

    /// Takes the events that have come, without waiting.
    fn listen(&mut self, log: &[Arc<Answered>]) {
        while let Ok(event) = self.running.events.try_recv() {
            self.take(event, log);
        }
    }

    /// Waits for an event; false if none comes in `patience`.
    fn hear(&mut self, patience: Duration, log: &[Arc<Answered>]) -> Result<bool> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.running.events.recv_timeout(left.min(TICK)) {
                Ok(event) => {
                    self.take(event, log);
                    return Ok(true);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::work("the program's process is lost"));
                }
                Err(RecvTimeoutError::Timeout) if interrupted() => return Err(Failure::interrupted()),
                Err(RecvTimeoutError::Timeout) if is_unread() => return Err(Failure::closed()),
                Err(RecvTimeoutError::Timeout) if left <= TICK => return Ok(false),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for an event; false if the program rests for `patience` before one comes. Time alone does not tell: on a loaded machine
    /// a thread gets its turn late, and its call would miss the batch.
    fn hear_unless_at_rest(&mut self, patience: Duration, log: &[Arc<Answered>]) -> Result<bool> {
        let began = Instant::now();
        let mut rest = began;
        loop {
            if self.hear(LOOK, log)? {
                return Ok(true);
            }
            if began.elapsed() < BUSY.max(patience) && self.running.processes.is_busy() {
                rest = Instant::now();
            } else if rest.elapsed() >= patience {
                return Ok(false);
            }
        }
    }

    /// A call that is asked again replaces the one that waits, or gets the answer that its client missed.
    fn take(&mut self, event: Event, log: &[Arc<Answered>]) {
        let arrival = match event {
            Event::Exited(exit) => return self.exit = Some(exit),
            Event::Called(arrival) => *arrival,
        };
        let Asked { key, role, .. } = &arrival.asked;
        let again =
            |waiting: &&mut Arrival| waiting.asked.key == *key && (arrival.is_retry || waiting.is_gone());
        if let Some(waiting) = self.waiting.iter_mut().find(again) {
            *waiting = arrival;
            return;
        }
        let last = log.iter().rfind(|turn| turn.asked.role == *role).filter(|turn| turn.asked.key == *key);
        if let Some(turn) = last.filter(|_| arrival.is_retry) {
            let _ = arrival.answer.send(turn.answer.clone());
        } else if self.waiting.len() < WAITING {
            self.waiting.push(arrival);
        }
    }
}

fn silent(silence: Duration) -> Failure {
    Failure::data(format!("the program neither called a model nor ended in {} s", silence.as_secs()))
        .hint("--silence SECONDS waits longer; rollout's --timeout must be above it")
}

/// Returns true if the reader of our stdout is gone.
fn is_unread() -> bool {
    let mut entry = libc::pollfd { fd: 1, events: 0, revents: 0 };
    // SAFETY: the pointer is to one entry, which outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, 0) };
    entry.revents & libc::POLLERR != 0
}

/// The failure of a program that does not repeat itself: `was` it called, or ended it, and what `is` it now?
pub fn divergence(number: usize, was: Option<&Asked>, is: Option<&Asked>) -> Failure {
    let role = was.or(is).map_or("", |asked| &asked.role);
    let difference = match (was, is) {
        (Some(was), Some(is)) if was.role == is.role => {
            let start = was.key.bytes().zip(is.key.bytes()).take_while(|(was, is)| was == is).count();
            let part = |key: &str| {
                let bytes = &key.as_bytes()[start.saturating_sub(AROUND)..key.len().min(start + AROUND)];
                String::from_utf8_lossy(bytes).into_owned()
            };
            format!("differs here: was \"…{}…\", is \"…{}…\"", part(&was.key), part(&is.key))
        }
        (Some(_), Some(is)) => format!("was due, and {} called", is.role),
        (Some(_), None) => "was due, and did not come".to_owned(),
        (None, _) => "came where the program had ended before".to_owned(),
    };
    Failure::data(format!("the program is not deterministic: call {number} ({role}) {difference}")).hint(
        "--no-copies with rollout --sampling parallel needs no copies; or take dates, random numbers and ids out of prompts",
    )
}

#[cfg(test)]
#[path = "episode_tests.rs"]
mod tests;
