//! Plays for a policy on one thread: conversations in, candidates out.
//!
//! A local engine ([`EngineGenerator`]) and a server ([`crate::server::Client`]) are two implementations. Templates,
//! tokens and text are behind the trait, so everything around the model can be tested with a policy that is a few
//! lines of Rust.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use policy::tokenizer::{Conversation, Tokenizer};
use record::failure::Result;
use record::philox::Stream;
use record::sample::Message;
use record::{stage, thoughts};
use serde_json::Value;

use crate::engine::service::Client;
use crate::engine::stop::StopStrings;
use crate::engine::{Completion, PhaseTimings, Request};
use crate::episode::group::{Candidate, Spoken};
use crate::prompts::{Prompt, PromptCache};
use crate::sampling::AgentSampling;

/// One group to generate: a conversation and the branches that continue it.
#[derive(Debug)]
pub struct GroupRequest<'a> {
    /// Returned with the candidates; unique among the requests of a thread.
    pub id: u64,
    /// The conversation.
    pub messages: &'a [Message],
    /// Tools that may be called, as OpenAI's API lists them.
    pub tools: Option<&'a Value>,
    /// The action that the conversation goes on from, and the tokens of its prompt.
    pub after: Option<(&'a Spoken, &'a [u32])>,
    /// A random stream per branch.
    pub streams: Vec<Stream>,
    /// How completions are sampled and ended.
    pub sampling: &'a AgentSampling,
}

/// The id of a request and its candidates in branch order, or why its prompt has none.
pub type Generated = (u64, std::result::Result<Vec<Candidate>, String>);

/// Where a generator's time went.
#[derive(Clone, Debug, Default)]
pub struct GeneratorTimes {
    /// Chat templates and tokenizers, both ways.
    pub text: Duration,
    /// Waiting for a server; not for models, which work meanwhile.
    pub waiting: Duration,
    /// The model's time. Only the sum over all threads and policies of a model counts.
    pub phases: PhaseTimings,
}

/// One policy on one thread. It completes many prompts at once and returns each group when it finishes.
pub trait Generator {
    /// Submits a group and returns its prompt.
    ///
    /// # Errors
    /// A conversation that the policy's chat template refuses, or whose tokens leave no room for a completion. It
    /// ends the episode.
    fn submit(&mut self, request: GroupRequest<'_>) -> Result<Arc<Prompt>>;

    /// The groups of this policy that have finished; may `wait` a moment for one, of any policy of the thread.
    ///
    /// # Errors
    /// The run cannot go on: the model failed, or the server refuses everything.
    fn advance(&mut self, wait: bool) -> Result<Vec<Generated>>;

    /// Returns true if nothing is being generated.
    fn is_idle(&self) -> bool;

    /// Where its time went, asked once at the end.
    fn times(&self) -> GeneratorTimes {
        GeneratorTimes::default()
    }
}

/// Tokens that the longest mark of a thought has at most, with white space after it: a token may be one byte.
const MARK_TOKENS: usize = 40;
/// Said once if a chat template leaves out the tools.
const NO_TOOLS: &str = "the chat template does not print the tools that the environment offers, so the policy does not see them: \
                        use a template that prints `tools`, or put them into the system message";

/// The tokens of a prompt, and whether they end with the beginning of a thought.
pub fn encoded(tokenizer: &Tokenizer, ids: Vec<u32>) -> Result<(Vec<u32>, bool)> {
    let end = tokenizer.decode(&ids[ids.len().saturating_sub(MARK_TOKENS)..])?;
    let begins_thought = thoughts::is_begun_by(&end);
    Ok((ids, begins_thought))
}

/// Returns true if a prompt has the name of one of `tools`.
fn is_any_named(tools: &Value, prompt: &str) -> bool {
    let name = |tool: &Value| tool.get("function").unwrap_or(tool)["name"].as_str().map(str::to_owned);
    tools.as_array().into_iter().flatten().filter_map(name).any(|name| prompt.contains(&name))
}

/// A policy that an engine runs.
pub struct EngineGenerator {
    client: Client,
    /// Its vocabulary and chat template.
    tokenizer: Arc<Tokenizer>,
    prompts: PromptCache,
    /// By their texts.
    stops: HashMap<Vec<String>, Arc<StopStrings>>,
    text: Duration,
}

impl EngineGenerator {
    /// A generator over one thread's access to a model.
    pub fn new(client: Client, tokenizer: Arc<Tokenizer>) -> EngineGenerator {
        let (prompts, stops, text) = (PromptCache::default(), HashMap::new(), Duration::ZERO);
        EngineGenerator { client, tokenizer, prompts, stops, text }
    }

    /// Stop strings over the tokens of this policy.
    fn stop(&mut self, texts: &[String]) -> Result<Option<Arc<StopStrings>>> {
        if texts.is_empty() {
            return Ok(None);
        }
        if let Some(known) = self.stops.get(texts) {
            return Ok(Some(known.clone()));
        }
        let stop = Arc::new(StopStrings::new(texts, self.tokenizer.token_bytes(texts)?));
        self.stops.insert(texts.to_vec(), stop.clone());
        Ok(Some(stop))
    }

    /// The prompt of a request. What the agent said before keeps its tokens.
    fn prompt(&mut self, request: &GroupRequest<'_>) -> Result<Arc<Prompt>> {
        let GroupRequest { messages, tools, .. } = *request;
        let conversation = Conversation::new(messages, tools);
        if let Some((spoken, prompt)) = request.after
            && let Some(&last) = spoken.candidate.ids.last()
        {
            let more = self.tokenizer.continuation(conversation.clone(), spoken.messages.len(), last)?;
            if !more.is_empty() {
                let ids = [prompt, &spoken.candidate.ids[..], &more[..]].concat();
                return Prompt::continuing(messages, tools, encoded(&self.tokenizer, ids)?).map(Arc::new);
            }
        }
        // The first conversation with tools shows if the template prints them.
        static CHECKED: AtomicBool = AtomicBool::new(false);
        if let Some(tools) = tools.filter(|_| !CHECKED.swap(true, Ordering::Relaxed))
            && !is_any_named(tools, &self.tokenizer.render_conversation(conversation.clone())?)
        {
            stage::note("rollout", NO_TOOLS);
        }
        let tokenizer = &*self.tokenizer;
        self.prompts.get(messages, tools, || encoded(tokenizer, tokenizer.encode_conversation(conversation)?))
    }

    fn candidate(&self, completion: Completion) -> Result<Candidate> {
        let Completion { ids, logprobs, stopped } = completion;
        let text = self.tokenizer.decode(&ids)?;
        Ok(Candidate { text, ids, logprobs, stopped, ..Candidate::default() })
    }
}

impl Generator for EngineGenerator {
    fn submit(&mut self, request: GroupRequest<'_>) -> Result<Arc<Prompt>> {
        let started = Instant::now();
        let prompt = self.prompt(&request);
        self.text += started.elapsed();
        let prompt = prompt?;
        let GroupRequest { id, streams, sampling, .. } = request;
        let stop = self.stop(&sampling.stop)?;
        self.client.submit(Request {
            id,
            prompt: prompt.ids.clone(),
            streams,
            max_tokens: sampling.max_tokens as usize,
            sampling: sampling.params,
            stop,
            watch: None,
        })?;
        Ok(prompt)
    }

    fn advance(&mut self, wait: bool) -> Result<Vec<Generated>> {
        let finished = self.client.advance(wait)?;
        let started = Instant::now();
        let candidates = |completions: Vec<Completion>| {
            let candidates = completions.into_iter().map(|completion| self.candidate(completion));
            candidates.collect::<Result<Vec<Candidate>>>().map_err(|failure| failure.message)
        };
        let finished = finished.into_iter().map(|(id, completions)| (id, candidates(completions))).collect();
        self.text += started.elapsed();
        Ok(finished)
    }

    fn is_idle(&self) -> bool {
        self.client.is_idle()
    }

    fn times(&self) -> GeneratorTimes {
        GeneratorTimes { text: self.text, waiting: Duration::ZERO, phases: self.client.take_timings() }
    }
}
