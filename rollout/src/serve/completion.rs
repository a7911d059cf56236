//! One completion: the prompt of a call, its tokens as they come, and the answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use endpoint::Error;
use endpoint::chat::{ChatAnswer, ChatCall, ChatMessage, Head, ToolUse};
use policy::token_bytes::TokenBytes;
use policy::tokenizer::Conversation;
use policy::tools::reading;
use record::failure::{Failure, Result};
use record::philox::{Part, Stream};
use record::sample::Message;
use record::thoughts;
use serde_json::{Value, json};

use super::Models;
use super::text::Text;
use crate::engine::request::SampledToken;
use crate::engine::service::{Client, Inbox};
use crate::engine::stop::StopStrings;
use crate::engine::{Request, SamplingParams};
use crate::generator::encoded;

/// How often a call that waits for a token looks if its client has gone.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that a token has at most, on average: longer prompts are refused before they cost time.
const BYTES_PER_TOKEN: usize = 64;

/// A completion in progress. Dropping it ends generation.
pub struct PendingCompletion {
    models: Arc<Models>,
    /// The set of engines that it loads.
    set: usize,
    client: Client,
    tokens: Receiver<SampledToken>,
    text: Text,
    bytes: Arc<TokenBytes>,
    stop_ids: Vec<u32>,
    tools: Option<Value>,
    begins_thought: bool,
    prompt_tokens: usize,
    completion_tokens: usize,
    /// Entries of tokens that were not told yet, if they are wanted.
    logprobs: Option<Vec<Value>>,
}

impl Drop for PendingCompletion {
    fn drop(&mut self) {
        self.models.load[self.set].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a call has no completion. Wrong texts are the client's fault.
fn refused(failure: Failure) -> Error {
    let status = if failure.code == record::failure::DATA || failure.code == record::failure::USAGE {
        400
    } else {
        500
    };
    let hint = failure.hint.map_or(String::new(), |hint| format!("; {hint}"));
    Error::new(status, format!("{}{hint}", failure.message))
}

impl PendingCompletion {
    /// Renders the call for the policy `owner` and submits it.
    ///
    /// # Errors
    /// 400: the conversation is too long, or its template or tokenizer refuses it; 500: the engine has ended.
    pub fn begin(
        models: &Arc<Models>,
        owner: usize,
        call: ChatCall,
        number: u64,
    ) -> std::result::Result<PendingCompletion, Error> {
        let (model, defaults) = (&models.models[owner], models.settings.sampling.of(&call.model));
        let set =
            (0..models.load.len()).min_by_key(|&set| models.load[set].load(Ordering::Relaxed)).unwrap_or(0);
        let (service, engine) = &model.engines[set];
        let positions = service.limits(*engine).positions;
        let messages: Vec<Message> = call.turns.iter().map(ChatMessage::message).collect();
        let too_long = |tokens: String| {
            Error::invalid(format!("the messages have {tokens} tokens, the model {positions} positions"))
                .code("context_length_exceeded")
        };
        let length: usize = messages.iter().map(|message| message.content.len()).sum();
        if length > positions.saturating_mul(BYTES_PER_TOKEN) {
            return Err(too_long(format!("more than {}", length / BYTES_PER_TOKEN)));
        }
        let prompt = model.tokenizer().and_then(|tokenizer| {
            let ids = tokenizer.encode_conversation(Conversation::new(&messages, call.tools.as_ref()))?;
            encoded(&tokenizer, ids)
        });
        let (prompt, begins_thought) = prompt.map_err(refused)?;
        let prompt_tokens = prompt.len();
        if prompt_tokens >= positions {
            return Err(too_long(prompt_tokens.to_string()));
        }
        let max_tokens = call.max_tokens.unwrap_or(defaults.max_tokens) as usize;
        let stop = match &call.stop {
            Some(texts) => {
                (!texts.is_empty()).then(|| Arc::new(StopStrings::new(texts, model.bytes.clone())))
            }
            None => model.stop(&defaults.stop).map_err(refused)?,
        };
        let (sender, tokens) = channel();
        let request = Request {
            id: number,
            prompt,
            streams: vec![match call.seed {
                Some(seed) => Stream::named(seed, &[Part::Text("serve")]),
                None => {
                    let start = models.started.as_nanos() as u64;
                    let seed = models.settings.flags.seed;
                    Stream::named(seed, &[Part::Text("serve"), Part::Number(start), Part::Number(number)])
                }
            }],
            max_tokens: max_tokens.min(positions - prompt_tokens),
            sampling: sampling(&call, defaults.params),
            stop,
            watch: Some(sender),
        };
        let mut client = service.client(*engine, model.adapter, &Inbox::new());
        models.load[set].fetch_add(1, Ordering::Relaxed);
        let submitted = client.submit(request);
        let completion = PendingCompletion {
            models: models.clone(),
            set,
            client,
            tokens,
            text: Text::new(model.bytes.clone(), call.stop.unwrap_or_default()),
            bytes: model.bytes.clone(),
            stop_ids: service.limits(*engine).stop_ids.clone(),
            tools: call.tools,
            begins_thought,
            prompt_tokens,
            completion_tokens: 0,
            logprobs: call.logprobs.then(Vec::new),
        };
        submitted.map_err(refused).map(|()| completion)
    }

    /// Returns true if its text can be told token by token: calls of tools and thoughts are known at the end.
    pub fn is_told_by_token(&self) -> bool {
        self.tools.is_none() && !self.begins_thought
    }

    /// Waits for the next token. `None` at the end, or if nobody waits for it.
    pub fn next(&mut self, is_gone: impl Fn() -> bool) -> Option<SampledToken> {
        loop {
            match self.tokens.recv_timeout(LOOK) {
                Ok(token) => {
                    self.completion_tokens += 1;
                    if !self.stop_ids.contains(&token.id) {
                        self.text.push(token.id);
                        self.note(token);
                    }
                    return Some(token);
                }
                Err(RecvTimeoutError::Timeout) if !is_gone() => {}
                Err(_) => return None,
            }
        }
    }

    fn note(&mut self, token: SampledToken) {
        let Some(entries) = &mut self.logprobs else { return };
        let bytes = self.bytes.of(token.id);
        let text = String::from_utf8_lossy(bytes);
        // Its shortest decimal, as in the record.
        let logprob: f64 = token.logprob.to_string().parse().unwrap_or_default();
        entries.push(json!({"token": text, "logprob": logprob, "bytes": bytes, "top_logprobs": []}));
    }

    /// The log-probabilities of the tokens since it was last asked.
    fn take_logprobs(&mut self) -> Value {
        self.logprobs
            .as_mut()
            .map_or(Value::Null, |entries| json!({"content": std::mem::take(entries), "refusal": null}))
    }

    /// The answer, once there are no more tokens.
    ///
    /// # Errors
    /// 500: the engine failed.
    pub fn said(&mut self, head: &Head) -> std::result::Result<ChatAnswer, Error> {
        let stopped = self.has_stopped().map_err(|failure| Error::new(500, failure.message))?;
        self.text.end();
        let content = thoughts::answer(&self.text.all, self.begins_thought);
        let found = self.tools.as_ref().map(|tools| reading(content, Some(tools))).unwrap_or_default();
        let call = |(index, call): (usize, policy::tools::ToolCall)| ToolUse {
            id: format!("call_{}_{index}", head.id.trim_start_matches("chatcmpl-")),
            name: call.name,
            arguments: call.arguments,
        };
        let calls: Vec<ToolUse> = found.calls.into_iter().enumerate().map(call).collect();
        let ended = if stopped { "stop" } else { "length" };
        Ok(ChatAnswer {
            content: if calls.is_empty() { content.to_owned() } else { found.said.trim().to_owned() },
            finish: if calls.is_empty() { ended } else { "tool_calls" },
            calls,
            logprobs: self.take_logprobs(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
        })
    }

    /// The chunks of a stream, each when its text is known: the beginning of an answer waits while it may be a thought.
    pub fn chunks(mut self, head: Head, include_usage: bool) -> impl Iterator<Item = Value> {
        let first = head.chunk(json!({"role": "assistant", "content": ""}), Value::Null, None);
        let mut ready = VecDeque::from([first]);
        let mut is_over = false;
        std::iter::from_fn(move || {
            while ready.is_empty() && !is_over {
                if self.next(|| false).is_some() {
                    let waits = self.text.taken == 0 && thoughts::may_begin(&self.text.all);
                    let text = if waits { String::new() } else { self.text.take(false) };
                    if !text.is_empty() {
                        let logprobs = self.take_logprobs();
                        ready.push_back(head.chunk(json!({ "content": text }), logprobs, None));
                    }
                    continue;
                }
                is_over = true;
                match self.said(&head) {
                    Ok(said) => {
                        let rest =
                            if self.text.taken == 0 { said.content.clone() } else { self.text.take(true) };
                        if !rest.is_empty() || said.logprobs["content"][0].is_object() {
                            ready.push_back(head.chunk(
                                json!({ "content": rest }),
                                said.logprobs.clone(),
                                None,
                            ));
                        }
                        ready.extend(head.last_chunks(&said, include_usage));
                    }
                    Err(error) => ready.push_back(error.to_json()),
                }
            }
            ready.pop_front()
        })
    }

    /// Returns true if a stop token or a stop text ended it.
    fn has_stopped(&mut self) -> Result<bool> {
        loop {
            if let Some((_, completions)) = self.client.advance(true)?.pop() {
                return Ok(completions.first().is_some_and(|completion| completion.stopped));
            }
        }
    }
}

/// The parameters of a call over those of the flags.
fn sampling(call: &ChatCall, defaults: SamplingParams) -> SamplingParams {
    let temperature = call.temperature.unwrap_or(if defaults.greedy { 0.0 } else { defaults.temperature });
    let greedy = temperature == 0.0;
    SamplingParams {
        temperature: if greedy { 1.0 } else { temperature },
        top_p: call.top_p.unwrap_or(defaults.top_p),
        top_k: call.top_k.unwrap_or(defaults.top_k),
        min_p: call.min_p.unwrap_or(defaults.min_p),
        greedy,
    }
}
