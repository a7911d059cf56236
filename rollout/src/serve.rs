//! `--serve ADDRESS`: each policy as a model of an OpenAI-compatible server, under the name of its agent.
//!
//! `/v1/chat/completions`, `/v1/models` and `/health`. Calls of all clients run together in the engines that play
//! episodes. A call that leaves out temperature, limits or stop texts gets the flags' values. Left out: several choices
//! per call, embeddings, text completions, and loading of other versions while it runs.

mod completion;
mod text;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use device::DeviceKind;
use endpoint::chat::{self, ChatCall, Head};
use endpoint::{Answer, Call, Error, Limits, Server};
use policy::token_bytes::TokenBytes;
use policy::tokenizer::Tokenizer;
use record::failure::{Failure, Result};
use record::stage;
use serde_json::{Value, json};

use crate::engine::Options;
use crate::engine::device::SEQUENCES;
use crate::engine::service::Service;
use crate::engine::stop::StopStrings;
use crate::opponents::Pool;
use crate::policies::Policies;
use crate::server;
use crate::settings::Settings;
use crate::stage::{CACHE_BYTES, ROWS};
use completion::PendingCompletion;

/// How often the main thread looks for a signal or a failure.
const LOOK: Duration = Duration::from_millis(50);

/// One policy.
struct Model {
    directory: PathBuf,
    version: String,
    adapter: Option<u32>,
    /// Its engine, of each set of engines.
    engines: Vec<(Arc<Service>, usize)>,
    /// Loaded again if a text ended its process.
    tokenizer: Mutex<Arc<Tokenizer>>,
    bytes: Arc<TokenBytes>,
}

/// What all calls share.
struct Models {
    settings: Settings,
    /// In the order of the command line.
    models: Vec<Model>,
    /// Calls in progress in each set of engines.
    load: Vec<AtomicUsize>,
    /// Calls so far.
    calls: AtomicU64,
    started: Duration,
    /// Why the engines ended.
    failure: Mutex<Option<Failure>>,
    has_told: AtomicBool,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// 2: an agent that a server plays, or an address that is none; 69: the address is in use; otherwise as [`Policies::open`]
/// fails, or an engine.
pub fn run(settings: &Settings, address: &str) -> Result<()> {
    let owners = settings.team.owners();
    if let Some(owner) = owners.iter().find(|owner| !owner.has_weights()) {
        return Err(Failure::usage(format!(
            "--policy {}: --serve needs a directory",
            owner.directory.display()
        ))
        .hint("that server serves its model itself: leave it out, and give clients its URL"));
    }
    let key = server::key_in(endpoint::KEY_VARIABLE)?;
    let options = Options {
        threads: settings.threads,
        max_rows: if settings.device == DeviceKind::Cpu { ROWS } else { SEQUENCES },
        cache_bytes: CACHE_BYTES,
        stop_ids: Vec::new(),
        precision: settings.precision(),
        dtype: settings.dtype,
        isa: settings.flags.isa,
    };
    let policies = Policies::open((&settings.placement, Pool(0)), &options, settings.retry_policy, None)?;
    let models = Arc::new(Models::new(settings, &policies)?);
    let handler = models.clone();
    let server = Server::start(address, Limits::default(), key, move |call| handler.answer(call))?;
    let names = models.names().join(", ");
    stage::note("rollout", format!("http://{}/v1 serves {names}", server.address()));
    while !stage::interrupted() {
        if let Some(failure) = lock(&models.failure).clone() {
            return Err(failure);
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Models {
    fn new(settings: &Settings, policies: &Policies) -> Result<Models> {
        let sets = (0..settings.threads).map(|_| policies.services()).collect::<Result<Vec<_>>>()?;
        let model = |(owner, loaded): (usize, &crate::policies::LoadedModel)| {
            Ok(Model {
                directory: settings.team.owners()[owner].directory.clone(),
                version: loaded.version.clone(),
                adapter: loaded.adapter,
                engines: sets.iter().map(|set| set[loaded.engine].clone()).collect(),
                bytes: loaded.tokenizer.token_bytes(&[])?,
                tokenizer: Mutex::new(loaded.tokenizer.clone()),
            })
        };
        Ok(Models {
            settings: settings.clone(),
            models: policies.models().enumerate().map(model).collect::<Result<_>>()?,
            load: sets.iter().map(|_| AtomicUsize::new(0)).collect(),
            calls: AtomicU64::new(0),
            started: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
            failure: Mutex::default(),
            has_told: AtomicBool::new(false),
        })
    }

    /// The agents that flags name, and the policy of all others by its name.
    fn names(&self) -> Vec<String> {
        let team = &self.settings.team;
        let named = team.named().map(|(agent, _)| agent.to_owned());
        named.chain(team.of("").map(|owner| team.owners()[owner].name.clone())).collect()
    }

    fn answer(self: &Arc<Self>, call: &Call) -> Answer {
        let path = call.path.strip_prefix("/v1").unwrap_or(&call.path);
        match (call.is_get, path) {
            (true, "/health") if lock(&self.failure).is_none() => Answer::Json(json!({"status": "ok"})),
            (true, "/health") => Answer::Error(Error::new(503, "an engine has ended")),
            (true, "/models") => {
                let all: Vec<Value> = self.names().iter().filter_map(|name| self.describe(name)).collect();
                Answer::Json(json!({"object": "list", "data": all}))
            }
            (false, "/chat/completions") => self.complete(call).unwrap_or_else(Answer::Error),
            (true, _) => match path.strip_prefix("/models/").and_then(|name| self.describe(name)) {
                Some(model) => Answer::Json(model),
                None => Answer::Error(Error::no_path(call)),
            },
            _ => Answer::Error(Error::no_path(call)),
        }
    }

    fn describe(&self, name: &str) -> Option<Value> {
        let owner = self.settings.team.of(name)?;
        let (created, version) = (self.started.as_secs(), &self.models[owner].version);
        Some(
            json!({"id": name, "object": "model", "created": created, "owned_by": "troupe", "version": version}),
        )
    }

    fn complete(self: &Arc<Self>, call: &Call) -> std::result::Result<Answer, Error> {
        let chat = chat::parse(&call.body)?;
        let owner = self.settings.team.of(&chat.model).ok_or_else(|| {
            Error::new(404, format!("no model {:?}; they are {}", chat.model, self.names().join(", ")))
                .code("model_not_found")
        })?;
        if !chat.unheeded.is_empty() && !self.has_told.swap(true, Ordering::Relaxed) {
            let fields = chat.unheeded.join(", ");
            stage::note("rollout", format!("calls set {fields}, which has no effect here (said once)"));
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = self.started.as_nanos();
        let head = Head {
            id: format!("chatcmpl-{nanoseconds:x}-{number}"),
            model: chat.model.clone(),
            created: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs(),
        };
        let failed = |error: Error| {
            let ended = self.models[owner].engines.iter().any(|(service, _)| service.has_ended());
            if error.status == 500 && ended {
                *lock(&self.failure) = Some(Failure::work(&error.message));
            }
            error
        };
        let ChatCall { stream, include_usage, .. } = chat;
        let mut completion = PendingCompletion::begin(self, owner, chat, number).map_err(failed)?;
        if stream && completion.is_told_by_token() {
            return Ok(Answer::Events(Box::new(completion.chunks(head, include_usage))));
        }
        while completion.next(|| call.is_gone()).is_some() {}
        if call.is_gone() {
            return Err(Error::new(499, "the client has gone"));
        }
        let said = completion.said(&head).map_err(failed)?;
        Ok(match stream {
            true => Answer::Events(Box::new(head.chunks(&said, include_usage).into_iter())),
            false => Answer::Json(head.completion(&said)),
        })
    }
}

impl Model {
    /// The stop texts of the flags.
    fn stop(&self, texts: &[String]) -> Result<Option<Arc<StopStrings>>> {
        if texts.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(StopStrings::new(texts, self.tokenizer()?.token_bytes(texts)?))))
    }

    /// Its tokenizer, a new one if a text ended the last one's process.
    fn tokenizer(&self) -> Result<Arc<Tokenizer>> {
        let mut tokenizer = lock(&self.tokenizer);
        if tokenizer.encode("a").is_err() {
            *tokenizer =
                Arc::new(Tokenizer::load(policy::directory::Policy::open(&self.directory)?.model())?);
        }
        Ok(tokenizer.clone())
    }
}
