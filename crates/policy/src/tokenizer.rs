//! Text to token ids and back: the checkpoint's `tokenizer.json`, chat template and stop tokens.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use record::failure::{Failure, Result};
use record::sample::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat::{self, ChatTemplate};
use crate::confined::{Confined, Death};
use crate::files::{read_text, show};
use crate::json::{LARGEST_JSON, read_json_if_present};
use crate::special_tokens::special_tokens;
use crate::token_bytes::{self, TokenBytes};
use crate::vocabulary;

pub(crate) const FILE: &str = "tokenizer.json";
pub(crate) const SIDE_FILE: &str = "tokenizer_config.json";
/// Larger than any tokenizer.json, in bytes.
pub(crate) const LARGEST: u64 = 256 << 20;
/// Hint for a file that is not a tokenizer.
const FAST: &str = "only fast tokenizers are read; make the file with AutoTokenizer.save_pretrained";

/// Hint for a policy without usable stop tokens.
const STOP: &str = "set eos_token_id in generation_config.json, or eos_token in tokenizer_config.json";

/// Hint for a tokenizer or a template that took too much.
const HOSTILE: &str =
    "tokenizer.json or the chat template is damaged or malicious: take both from the model's publisher";
/// Longest rendered prompt, in bytes: the limit of a line of the record.
const LONGEST_PROMPT: usize = 16 << 20;
/// Stands for a message whose tokens are known: characters that no template looks for.
const SPOKEN: &str = "\u{e000}spoken\u{e001}";
/// More stop tokens mean a damaged file.
const MOST_STOPS: usize = 1000;
/// Limit of loading, seconds of processor time; a tokenizer of 30 MB takes several without optimization.
const LOADING: u32 = 60;
/// Limit of any other request.
const ANSWERING: u32 = 10;

/// A policy's tokenizer and chat template. Threads may share it.
///
/// Both may come from an untrusted checkpoint, so they run in a child process ([`crate::confined`]); the pair
/// of [`crate::vocabulary`] runs here.
#[derive(Debug)]
pub struct Tokenizer {
    host: Host,
    directory: PathBuf,
    stop_ids: Vec<u32>,
    vocabulary_size: usize,
    /// By the stop strings.
    token_bytes: Mutex<HashMap<Vec<String>, Arc<TokenBytes>>>,
}

#[derive(Debug)]
enum Host {
    Here(Box<Text>),
    Child(Confined),
}

/// The requests to a tokenizer.
#[derive(Debug, Serialize, Deserialize)]
enum Request<'a> {
    Load,
    /// Asks for the bytes of all tokens, special ones only if a text has them.
    Bytes(Cow<'a, [String]>),
    Encode(Cow<'a, str>),
    Decode(Cow<'a, [u32]>),
    Render(Conversation<'a>),
    Chat(Conversation<'a>),
    /// Asks for the tokens after the message of this index, which ended with this token.
    Continue(Conversation<'a>, usize, u32),
}

/// A conversation to be continued.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Conversation<'a> {
    pub messages: Cow<'a, [Message]>,
    /// Tools that the next message may call: a JSON array, as OpenAI's API lists them.
    pub tools: Option<Cow<'a, Value>>,
}

impl<'a> Conversation<'a> {
    /// Messages, and tools if there are any.
    pub fn new(messages: &'a [Message], tools: Option<&'a Value>) -> Conversation<'a> {
        Conversation { messages: messages.into(), tools: tools.map(Cow::Borrowed) }
    }
}

/// Its result: token ids (of `Load` the stop tokens, of `Bytes` where each token ends) or text.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Reply {
    ids: Vec<u32>,
    text: String,
    vocabulary_size: usize,
}

/// A [`Failure`] on its way between processes.
type Refusal = (u8, String, Option<String>);

impl Tokenizer {
    /// Reads `tokenizer.json`, the chat template, and the stop tokens of a Hugging Face directory.
    ///
    /// # Errors
    /// A missing or broken file, a template that does not compile, stop tokens that the tokenizer does not know, or what takes
    /// too much memory or time (65); no process can be started (69).
    pub fn load(directory: &Path) -> Result<Tokenizer> {
        let host = if is_builtin(directory) {
            Host::Here(Box::new(Text::load(directory)?))
        } else {
            let start = Confined::start(serve(directory));
            Host::Child(start.map_err(|error| {
                Failure::unavailable(format!("the tokenizer's process cannot be started: {error}"))
            })?)
        };
        let mut tokenizer = Tokenizer {
            host,
            directory: directory.to_owned(),
            stop_ids: Vec::new(),
            vocabulary_size: 0,
            token_bytes: Mutex::default(),
        };
        let Reply { ids, vocabulary_size, .. } = tokenizer.ask(Request::Load)?;
        (tokenizer.stop_ids, tokenizer.vocabulary_size) = (ids, vocabulary_size);
        Ok(tokenizer)
    }

    fn ask(&self, request: Request) -> Result<Reply> {
        let child = match &self.host {
            Host::Here(text) => return text.answer(request),
            Host::Child(child) => child,
        };
        let (what, seconds) = match request {
            Request::Load => ("reading the tokenizer and the chat template", LOADING),
            Request::Bytes(_) => ("spelling all tokens", LOADING),
            Request::Encode(_) => ("encoding a text", ANSWERING),
            Request::Decode(_) => ("decoding a text", ANSWERING),
            Request::Render(_) | Request::Chat(_) | Request::Continue(..) => {
                ("rendering and encoding a conversation", ANSWERING)
            }
        };
        let place = show(&self.directory);
        let broken = |error: serde_json::Error| Failure::work(format!("{place}: {what}: {error}"));
        let answer = child.ask(seconds, &serde_json::to_vec(&request).map_err(broken)?);
        let answer = answer.map_err(|death| {
            let cause = match death {
                Death::Time => format!("took longer than {seconds} s of processor time"),
                Death::Silence => "has no answer".to_owned(),
                Death::Memory => "took more than 1 GiB of memory or nested too deeply".to_owned(),
                Death::Gone => "failed: its process was ended by this or an earlier text".to_owned(),
            };
            Failure::data(format!("{place}: {what} {cause}")).hint(HOSTILE)
        })?;
        let answer: std::result::Result<Reply, Refusal> = serde_json::from_slice(&answer).map_err(broken)?;
        answer.map_err(|(code, message, hint)| Failure { code, message, hint })
    }

    /// Token ids of a text, with nothing added before or after. Special tokens spelled out in the text become
    /// those tokens, as in `transformers`.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ask(Request::Encode(text.into())).map(|reply| reply.ids)
    }

    /// The text of token ids, without special tokens that mark neither thoughts nor calls of tools. Bytes that are not
    /// UTF-8 become U+FFFD, so sampled text need not encode back to its ids: ids, not text, go to the loss.
    ///
    /// # Errors
    /// The tokenizer cannot decode the ids.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.ask(Request::Decode(ids.into())).map(|reply| reply.text)
    }

    /// The bytes of each token, which make up the text of [`Tokenizer::decode`], and of the special tokens that one of
    /// `stops` has; computed once.
    ///
    /// # Errors
    /// A decoder of a kind whose tokens are not bytes.
    pub fn token_bytes(&self, stops: &[String]) -> Result<Arc<TokenBytes>> {
        let mut known = self.token_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(stops) {
            return Ok(known.clone());
        }
        let Reply { ids, text, .. } = self.ask(Request::Bytes(stops.into()))?;
        let bytes = TokenBytes::from_parts(ids, &text).map(Arc::new);
        let bytes =
            bytes.ok_or_else(|| Failure::work(format!("{}: broken tokens", show(&self.directory))))?;
        Ok(known.entry(stops.to_vec()).or_insert(bytes).clone())
    }

    /// Token ids of a conversation, up to the opening of the assistant's next message.
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.encode_conversation(Conversation::new(messages, None))
    }

    /// [`Tokenizer::chat`] of a conversation that may have tools.
    pub fn encode_conversation(&self, conversation: Conversation) -> Result<Vec<u32>> {
        self.ask(Request::Chat(conversation)).map(|reply| reply.ids)
    }

    /// Token ids of what the template writes after the assistant's message number `spoken`, whose tokens are known and
    /// ended with `last`. No tokens if the template does not write that message as it is.
    pub fn continuation(&self, conversation: Conversation, spoken: usize, last: u32) -> Result<Vec<u32>> {
        self.ask(Request::Continue(conversation, spoken, last)).map(|reply| reply.ids)
    }

    /// The text that [`Tokenizer::chat`] encodes.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        self.render_conversation(Conversation::new(messages, None))
    }

    /// The text that [`Tokenizer::encode_conversation`] encodes.
    pub fn render_conversation(&self, conversation: Conversation) -> Result<String> {
        self.ask(Request::Render(conversation)).map(|reply| reply.text)
    }

    /// Tokens that end a completion: first the tokenizer's `eos_token`, which closes an assistant's message
    /// in training data, then the tokens listed in `generation_config.json` and `config.json`.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The largest token id plus 1, without tokens that were added to the trained ones: some stand for what a model without its
    /// other parts does not read, such as an image, and have no row in the embedding.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }
}

/// Returns true if tokenizer and template are, byte for byte, those that this crate gives to new policies.
fn is_builtin(directory: &Path) -> bool {
    let own = [chat::FILE, chat::ARGUMENTS].map(|name| directory.join(name));
    let tokenizer = read_text(&directory.join(FILE), LARGEST_JSON);
    let side = read_json_if_present(&directory.join(SIDE_FILE));
    own.iter().all(|path| fs::symlink_metadata(path).is_err())
        && tokenizer.is_ok_and(|text| text == format!("{:#}\n", vocabulary::tokenizer()))
        && side.is_ok_and(|side| side.is_some_and(|side| side[chat::NAME] == vocabulary::CHAT_TEMPLATE))
}

/// Answers requests in the child.
fn serve(directory: &Path) -> impl FnMut(&[u8]) -> Vec<u8> {
    let mut text = None;
    move |request| {
        let broken = |error: serde_json::Error| Failure::work(error);
        let answer = serde_json::from_slice(request).map_err(broken).and_then(|request| {
            let text = match &mut text {
                Some(text) => text,
                empty => empty.insert(Text::load(directory)?),
            };
            text.answer(request)
        });
        let answer = answer.map_err(|failure| (failure.code, failure.message, failure.hint));
        serde_json::to_vec::<std::result::Result<Reply, Refusal>>(&answer).unwrap_or_default()
    }
}

/// The tokenizer and the template themselves.
#[derive(Debug)]
struct Text {
    inner: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
    stop_ids: Vec<u32>,
    /// Special tokens that mark thoughts and calls of tools, without which a text cannot be read.
    marks: HashMap<u32, String>,
    directory: PathBuf,
}

impl Text {
    fn load(directory: &Path) -> Result<Text> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Err(Failure::data(format!("{}: no such file", show(&path))).hint(FAST));
        }
        let fault = |error: tokenizers::Error| Failure::data(format!("{}: {error}", show(&path))).hint(FAST);
        let text = read_text(&path, LARGEST)?;
        let mut inner = tokenizers::Tokenizer::from_bytes(text.as_bytes()).map_err(fault)?;
        if inner.get_vocab_size(true) == 0 {
            return Err(Failure::data(format!("{}: the vocabulary is empty", show(&path))).hint(FAST));
        }
        // Saved truncation and padding are ignored: a prompt must never be cut silently.
        inner.with_truncation(None).map_err(fault)?;
        inner.with_padding(None);

        let side = read_json_if_present(&directory.join(SIDE_FILE))?.unwrap_or(Value::Null);
        let special = special_tokens(directory, &side)?;
        let template = ChatTemplate::load(directory, &side, &special)?;
        let stop_ids = stop_ids(directory, special.get("eos_token"), &inner)?;
        let added = inner.get_added_tokens_decoder().into_iter();
        let marks = added.filter(|(_, token)| token.special && token_bytes::is_mark(&token.content));
        let marks = marks.map(|(id, token)| (id, token.content)).collect();
        Ok(Text { inner, template, stop_ids, marks, directory: directory.to_owned() })
    }

    fn answer(&self, request: Request) -> Result<Reply> {
        Ok(match request {
            Request::Load => {
                let largest = self.inner.get_vocab(false).into_values().max();
                let vocabulary_size = largest.map_or(0, |largest| largest as usize + 1);
                Reply { ids: self.stop_ids.clone(), vocabulary_size, ..Reply::default() }
            }
            Request::Bytes(stops) => {
                let bytes = TokenBytes::of_tokenizer(&self.inner, &stops).map_err(|cause| {
                    Failure::data(format!("{}: {cause}", show(&self.directory.join(FILE))))
                        .hint("stop strings need tokens that are bytes: leave out --stop for this policy")
                })?;
                let (ids, text) = bytes.into_parts();
                Reply { ids, text, ..Reply::default() }
            }
            Request::Encode(text) => Reply { ids: self.encode(&text)?, ..Reply::default() },
            Request::Chat(Conversation { messages, tools }) => {
                Reply { ids: self.encode(&self.render(&messages, tools.as_deref())?)?, ..Reply::default() }
            }
            Request::Continue(conversation, spoken, last) => {
                Reply { ids: self.continuation(conversation, spoken, last)?, ..Reply::default() }
            }
            Request::Render(Conversation { messages, tools }) => {
                Reply { text: self.render(&messages, tools.as_deref())?, ..Reply::default() }
            }
            Request::Decode(ids) => {
                let fault = |error| self.fault("cannot decode", &error);
                let mut text = String::new();
                for piece in ids.split_inclusive(|id| self.marks.contains_key(id)) {
                    text += &self.inner.decode(piece, true).map_err(fault)?;
                    text += piece.last().and_then(|last| self.marks.get(last)).map_or("", String::as_str);
                }
                Reply { text, ..Reply::default() }
            }
        })
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false);
        Ok(encoding.map_err(|error| self.fault("cannot encode", &error))?.get_ids().to_vec())
    }

    fn continuation(&self, conversation: Conversation, spoken: usize, last: u32) -> Result<Vec<u32>> {
        let Conversation { messages, tools } = conversation;
        let mut messages = messages.into_owned();
        let Some(message) = messages.get_mut(spoken) else { return Ok(Vec::new()) };
        message.content = SPOKEN.to_owned();
        // Some templates refuse a tool's result after a message without calls.
        let Ok(text) = self.render(&messages, tools.as_deref()) else { return Ok(Vec::new()) };
        let parts: Vec<&str> = text.split(SPOKEN).collect();
        let [_, mut rest] = parts[..] else { return Ok(Vec::new()) };
        // The stop token may be there already, also where the template would end the message with another one. An anchor
        // keeps the rest from being the beginning of a text, which some tokenizers treat in a special way.
        let anchor = if self.stop_ids.contains(&last) { last } else { self.stop_ids[0] };
        let anchor_text = self.inner.id_to_token(anchor).unwrap_or_default();
        if anchor == last {
            let ends = self.stop_ids.iter().filter_map(|id| self.inner.id_to_token(*id));
            let after = ends.filter_map(|end| rest.trim_start().strip_prefix(&*end).map(str::len)).min();
            rest = &rest[rest.len() - after.unwrap_or(rest.len())..];
        }
        let ids = self.encode(&format!("{anchor_text}{rest}"))?;
        match ids.split_first() {
            Some((first, ids)) if *first == anchor => Ok(ids.to_vec()),
            _ => self.encode(rest),
        }
    }

    fn render(&self, messages: &[Message], tools: Option<&Value>) -> Result<String> {
        let Some(template) = &self.template else {
            return Err(Failure::data(format!("{}: no chat template", show(&self.directory)))
                .hint("base models have none: put a chat_template.jinja next to tokenizer.json"));
        };
        let text = template.render(messages, tools)?;
        if text.len() <= LONGEST_PROMPT {
            return Ok(text);
        }
        Err(Failure::data(format!("{}: a prompt of {} bytes", show(&self.directory), text.len()))
            .hint(format!("chat templates may print up to {LONGEST_PROMPT} bytes")))
    }

    fn fault(&self, what: &str, error: &tokenizers::Error) -> Failure {
        Failure::data(format!("{}: {what}: {error}", show(&self.directory.join(FILE))))
    }
}

fn stop_ids(directory: &Path, end: Option<&Value>, inner: &tokenizers::Tokenizer) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    if let Some(text) = end.and_then(Value::as_str) {
        ids.push(inner.token_to_id(text).ok_or_else(|| {
            let place = show(&directory.join(SIDE_FILE));
            Failure::data(format!("{place}: eos_token {text:?} is not in tokenizer.json")).hint(STOP)
        })?);
    }
    for name in ["generation_config.json", "config.json"] {
        let path = directory.join(name);
        let Some(config) = read_json_if_present(&path)? else { continue };
        let value = config.get("eos_token_id").unwrap_or(&Value::Null);
        let listed: &[Value] = match value {
            Value::Null => &[],
            Value::Array(several) => several,
            one => std::slice::from_ref(one),
        };
        if listed.len() > MOST_STOPS {
            let count = listed.len();
            return Err(Failure::data(format!("{}: eos_token_id lists {count} tokens", show(&path)))
                .hint(format!("a policy has at most {MOST_STOPS} stop tokens")));
        }
        for id in listed {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| {
                Failure::data(format!("{}: eos_token_id is {value}", show(&path))).hint(STOP)
            })?;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    if ids.is_empty() {
        return Err(Failure::data(format!("{}: no stop token", show(directory))).hint(STOP));
    }
    Ok(ids)
}
