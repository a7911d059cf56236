//! Text to token ids and back: the checkpoint's `tokenizer.json`, chat template and stop tokens.

use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::sample::Message;
use serde_json::Value;

use crate::chat::ChatTemplate;
use crate::json::{read_json_if_present, read_text, show};

/// Hint for a policy without usable stop tokens.
const STOP: &str = "set eos_token_id in generation_config.json, or eos_token in tokenizer_config.json";

/// A policy's tokenizer. Threads may share it.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
    stop_ids: Vec<u32>,
    directory: PathBuf,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, the chat template, and the stop tokens of a Hugging Face directory.
    ///
    /// # Errors
    /// A missing or broken file, a template that does not compile, stop tokens that the tokenizer does not know.
    pub fn load(directory: &Path) -> Result<Tokenizer> {
        let path = directory.join("tokenizer.json");
        if !path.exists() {
            return Err(Failure::data(format!("{}: no such file", show(&path)))
                .hint("only fast tokenizers are read; make the file with AutoTokenizer.save_pretrained"));
        }
        let fault = |error: tokenizers::Error| {
            Failure::data(format!("{}: {error}", show(&path)))
                .hint("only fast tokenizers are read; make the file with AutoTokenizer.save_pretrained")
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(read_text(&path)?.as_bytes()).map_err(fault)?;
        // Saved truncation and padding are ignored: a prompt must never be cut silently.
        inner.with_truncation(None).map_err(fault)?;
        inner.with_padding(None);

        let side = directory.join("tokenizer_config.json");
        let tokenizer_config = read_json_if_present(&side)?.unwrap_or(Value::Null);
        let template = ChatTemplate::load(directory, &tokenizer_config)?;
        let stop_ids = stop_ids(directory, &tokenizer_config, &inner)?;
        Ok(Tokenizer { inner, template, stop_ids, directory: directory.to_owned() })
    }

    /// Token ids of a text, with nothing added before or after. Special tokens spelled out in the text become those tokens,
    /// as in `transformers`.
    ///
    /// # Errors
    /// The tokenizer's own, if it cannot encode every text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding =
            self.inner.encode_fast(text, false).map_err(|error| self.fault("cannot encode", &error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids, without special tokens. Bytes that are not UTF-8 become U+FFFD, so sampled text need not encode
    /// back to its ids: ids, not text, go to the loss.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids, true).map_err(|error| self.fault("cannot decode", &error))
    }

    /// Token ids of a conversation, up to the opening of the assistant's next message.
    ///
    /// # Errors
    /// As [`Tokenizer::render`] and [`Tokenizer::encode`].
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.encode(&self.render(messages)?)
    }

    /// The text that [`Tokenizer::chat`] encodes.
    ///
    /// # Errors
    /// There is no chat template, or it refuses the conversation.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        match &self.template {
            Some(template) => template.render(messages),
            None => Err(Failure::data(format!("{}: no chat template", show(&self.directory)))
                .hint("base models have none: put a chat_template.jinja beside tokenizer.json")),
        }
    }

    /// Tokens that end a completion: first the tokenizer's `eos_token`, which closes an assistant's message in training data,
    /// then those of `generation_config.json` and `config.json`.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The largest token id plus 1, special tokens included.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |&largest| largest as usize + 1)
    }

    fn fault(&self, what: &str, error: &tokenizers::Error) -> Failure {
        Failure::data(format!("{}: {what}: {error}", show(&self.directory.join("tokenizer.json"))))
    }
}

fn stop_ids(directory: &Path, tokenizer_config: &Value, inner: &tokenizers::Tokenizer) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    let end = &tokenizer_config["eos_token"];
    if let Some(text) = end.as_str().or_else(|| end.get("content")?.as_str()) {
        ids.push(inner.token_to_id(text).ok_or_else(|| {
            let place = show(&directory.join("tokenizer_config.json"));
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
