//! The models' thread: routing of answers, and the effect of a failing model or a
//! leaving client on the others.

use crate::engine::batch::Batch;
use crate::engine::block_pool::{CacheConfig, Fork};
use crate::engine::request::{SampledToken, SamplingParams};
use crate::engine::scheduler::{Runner, Scheduler, SchedulerConfig};
use crate::engine::service::{Client, Inbox, Service};
use crate::engine::{Completion, Request};
use record::failure::{Failure, Result};
use record::philox::{Part, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The token with which a model panics instead of failing.
const PANICS: u32 = 9;

/// A model that always emits one token and fails after `runs` runs.
struct Constant {
    token: u32,
    runs: Arc<AtomicUsize>,
    most: usize,
}

impl Runner for Constant {
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>> {
        thread::sleep(Duration::from_millis(1));
        if self.runs.fetch_add(1, Ordering::SeqCst) == self.most {
            assert_ne!(self.token, PANICS, "the model panicked");
            return Err(Failure::work("the model broke"));
        }
        Ok(vec![SampledToken { id: self.token, logprob: -1.0 }; batch.requests.len()])
    }
}

/// A thread with one model per token, and the number of runs.
fn service(tokens: [u32; 2], most: usize) -> (Arc<Service>, Arc<AtomicUsize>) {
    let runs = Arc::<AtomicUsize>::default();
    let counted = runs.clone();
    let model = move |token| {
        let config = SchedulerConfig {
            sequences: 64,
            prompt_tokens: 64,
            cache: CacheConfig { blocks: 4096, block_size: 4, fork: Fork::CopyOnWrite, lazy: false },
            separate: true,
            expandable: false,
            positions: 100_000,
            vocabulary: 50,
            stop_ids: vec![0],
        };
        Scheduler::new(Constant { token, runs: counted.clone(), most }, config)
    };
    let opened = Service::start(move || Ok(tokens.into_iter().map(model).collect()));
    (opened.expect("a thread"), runs)
}

fn request(id: u64, max_tokens: usize) -> Request {
    let streams = vec![Stream::named(5, &[Part::Number(id)])];
    Request {
        id,
        prompt: vec![1],
        streams,
        max_tokens,
        sampling: SamplingParams::PLAIN,
        stop: None,
        watch: None,
    }
}

/// The client, the id, the first token and the length of the completion of each group. Only the first client that is
/// not idle waits.
fn wait(clients: &mut [Client]) -> Vec<(usize, u64, u32, usize)> {
    let mut found = Vec::new();
    while !clients.iter().all(Client::is_idle) {
        let mut waits = true;
        for (number, client) in clients.iter_mut().enumerate().filter(|(_, client)| !client.is_idle()) {
            let groups = client.advance(waits).expect("answers");
            let of = |(id, completions): (u64, Vec<Completion>)| {
                (number, id, completions[0].ids[0], completions[0].ids.len())
            };
            found.extend(groups.into_iter().map(of));
            waits = false;
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn each_client_gets_its_own_answers_and_those_of_no_other_thread() {
    let (service, runs) = service([7, 8], usize::MAX);
    let playing = |offset: usize| {
        let service = service.clone();
        thread::spawn(move || {
            let inbox = Inbox::new();
            let mut clients = [0, 1].map(|model| service.client(model, None, &inbox));
            for (model, client) in clients.iter_mut().enumerate() {
                client.submit(request(model as u64, 3 + model + offset)).expect("a request that fits");
            }
            wait(&mut clients)
        })
    };
    for (offset, thread) in [0, 5].map(|offset| (offset, playing(offset))) {
        let found = thread.join().expect("a thread that ends");
        assert_eq!(found, [(0, 0, 7, 3 + offset), (1, 1, 8, 4 + offset)]);
    }
    let of = |model| {
        let taken = service.client(model, None, &Inbox::new()).take_timings();
        taken.prefill + taken.decode
    };
    let sums = [0, 1].map(of);
    assert!(sums.iter().all(|sum| *sum >= Duration::from_millis(8)), "{sums:?} of {runs:?} runs");
    assert!(of(0).is_zero(), "time that was taken is not counted again");
}

#[test]
fn a_model_that_fails_ends_all_that_wait_and_all_that_come() {
    let (service, _) = service([7, 8], 5);
    let inbox = Inbox::new();
    let mut client = service.client(1, None, &inbox);
    client.submit(request(1, 1000)).expect("a request that fits");
    let failure = loop {
        if let Err(failure) = client.advance(true) {
            break failure;
        }
    };
    assert_eq!(failure.message, "the model broke");
    let mut late = service.client(0, None, &Inbox::new());
    let ended = loop {
        if let Err(failure) = late.submit(request(2, 1)).and_then(|()| late.advance(true)) {
            break failure;
        }
    };
    assert_eq!(ended.message, "the models' thread has ended");
}

#[test]
fn waiting_callers_learn_that_the_thread_panicked() {
    let (service, _) = service([7, PANICS], 5);
    let mut client = service.client(1, None, &Inbox::new());
    client.submit(request(1, 1000)).expect("a request that fits");
    let failure = loop {
        if let Err(failure) = client.advance(true) {
            break failure;
        }
    };
    assert_eq!(failure.message, "the models' thread has ended");
}

#[test]
fn nothing_is_run_for_nobody() {
    let (service, runs) = service([7, 8], usize::MAX);
    let mut client = service.client(0, None, &Inbox::new());
    client.submit(request(1, 10_000)).expect("a request that fits");
    drop(client);
    drop(service);
    // The requests amount to ten seconds of runs.
    assert!(runs.load(Ordering::SeqCst) < 1000, "{runs:?} runs");
}

#[test]
fn models_that_cannot_be_opened_say_why() {
    let opened = Service::start(|| Err::<Vec<Scheduler<Constant>>, _>(Failure::data("no weights")));
    assert_eq!(opened.err().map(|failure| failure.message).as_deref(), Some("no weights"));
}
