//! A GGUF file's tokenizer as the files of a Hugging Face directory: `tokenizer.json`, its configuration, the chat template.
//!
//! Two kinds are read: byte-level BPE (`gpt2`) with its merges, and SentencePiece's BPE with bytes for unknown characters
//! (`llama`), whose merges follow from its pieces and their scores. Left out: running them ([`crate::tokenizer`]).

use std::collections::{HashMap, HashSet};

use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

use super::header::Header;
use super::pieces::{self, Pieces};

/// More tokens or merges mean a damaged file; published vocabularies have up to 262,144.
const MOST_TOKENS: usize = 1 << 20;
/// The longest piece that SentencePiece makes is far shorter, in bytes; merges take its square.
const LONGEST_PIECE: usize = 256;
/// Limit on the total size of all pieces, in bytes.
const MOST_BYTES: usize = 16 << 20;
/// SentencePiece's space.
const SPACE: &str = "\u{2581}";

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// Types of tokens.
pub(super) const NORMAL: i128 = 1;
pub(super) const UNKNOWN: i128 = 2;
pub(super) const CONTROL: i128 = 3;
pub(super) const USER_DEFINED: i128 = 4;
pub(super) const UNUSED: i128 = 5;
pub(super) const BYTE: i128 = 6;

/// The files, and what `config.json` says of tokens.
pub(super) struct Files<'a> {
    pub(super) tokenizer: Value,
    pub(super) side: Value,
    pub(super) generation: Value,
    pub(super) special: Map<String, Value>,
    pub(super) template: Option<&'a str>,
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i128>,
}

/// Makes the tokenizer files for a model of `size` token ids and `positions` positions.
///
/// # Errors
/// A tokenizer of an unsupported kind, or one that contradicts itself.
pub(super) fn files<'a>(header: &Header<'a>, size: usize, positions: usize) -> Result<Files<'a>> {
    let vocabulary = Vocabulary::read(header, size)?;
    let kind = header.text("tokenizer.ggml.model")?;
    let (mut tokenizer, bos) = match kind {
        Some("gpt2") => byte_level(header, &vocabulary)?,
        Some("llama") => sentence_piece(header, &vocabulary)?,
        None => {
            return Err(Failure::data("no tokenizer: tokenizer.ggml.model is missing")
                .hint("take a file that was converted with its tokenizer"));
        }
        Some(other) => {
            return Err(Failure::data(format!("the tokenizer is {other:?}, which is not implemented"))
                .hint("kinds of tokenizers: gpt2 (byte-level BPE) and llama (SentencePiece's BPE)"));
        }
    };
    let id = |name: &str| vocabulary.id(header, name);
    let eos = id("eos")?.ok_or_else(|| Failure::data("tokenizer.ggml.eos_token_id is missing"))?;
    let mut stops = vec![eos];
    for name in ["eot", "eom"] {
        stops.extend(id(name)?.filter(|id| !stops.contains(id)));
    }
    let mut special = Map::new();
    let mut side = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": false,
    });
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("padding", "pad"), ("unknown", "unk")] {
        let Some(id) = id(name)? else { continue };
        side[format!("{key}_token")] = vocabulary.tokens[id].into();
        if key != "unk" {
            special.insert(format!("{key}_token_id"), json!(id));
        }
    }
    let mut generation = Value::Object(special.clone());
    generation["eos_token_id"] = json!(stops);
    let first = header.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(bos);
    let last = header.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let bos = if first { id("bos")? } else { None };
    tokenizer["post_processor"] = vocabulary.frame(bos, last.then_some(eos));
    tokenizer["added_tokens"] = vocabulary.added();
    Ok(Files { tokenizer, side, generation, special, template: header.text("tokenizer.chat_template")? })
}

impl<'a> Vocabulary<'a> {
    fn read(header: &Header<'a>, size: usize) -> Result<Vocabulary<'a>> {
        let tokens = header.texts(TOKENS, MOST_TOKENS)?;
        let count = tokens.len();
        if count == 0 || count > size {
            return Err(Failure::data(format!("{count} tokens for an embedding of {size}"))
                .hint("the tokenizer and the weights are of different models"));
        }
        let mut types = header.integers("tokenizer.ggml.token_type", MOST_TOKENS)?;
        if types.is_empty() {
            types = vec![NORMAL; count];
        }
        if types.len() != count {
            return Err(Failure::data(format!("{} types for {count} tokens", types.len())));
        }
        let vocabulary = Vocabulary { tokens, types };
        let mut seen = HashSet::with_capacity(count);
        if let Some((id, token)) = vocabulary.used().find(|(_, token)| !seen.insert(*token)) {
            return Err(Failure::data(format!("token {id} is {token:?}, as another one is")));
        }
        Ok(vocabulary)
    }

    /// Tokens by id, without those that only fill up the embedding.
    fn used(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let all = self.tokens.iter().copied().enumerate();
        all.filter(|(id, _)| self.types[*id] != UNUSED)
    }

    fn ids(&self) -> Map<String, Value> {
        self.used().map(|(id, token)| (token.to_owned(), json!(id))).collect()
    }

    /// The id of a special token, such as `eos`.
    fn id(&self, header: &Header, name: &str) -> Result<Option<usize>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = header.integer(&key)? else { return Ok(None) };
        let known =
            usize::try_from(id).ok().filter(|&id| self.types.get(id).is_some_and(|&kind| kind != UNUSED));
        known.map(Some).ok_or_else(|| Failure::data(format!("{key} is {id}, which is no token")))
    }

    /// Tokens that are found in a text before it is cut.
    fn added(&self) -> Value {
        let added = self.used().filter_map(|(id, token)| {
            let special = match self.types[id] {
                CONTROL | UNKNOWN => true,
                USER_DEFINED => false,
                _ => return None,
            };
            Some(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }))
        });
        added.collect()
    }

    /// The tokens that a text begins and ends with.
    fn frame(&self, first: Option<usize>, last: Option<usize>) -> Value {
        if first.is_none() && last.is_none() {
            return Value::Null;
        }
        let part = |id: usize| json!({ "SpecialToken": { "id": self.tokens[id], "type_id": 0 } });
        let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        let framed = |name: &str| {
            let parts = [first.map(part), Some(text(name)), last.map(part)];
            parts.into_iter().flatten().collect::<Vec<Value>>()
        };
        let described = first.into_iter().chain(last).map(|id| {
            let token = self.tokens[id];
            (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }))
        });
        json!({
            "type": "TemplateProcessing",
            "single": framed("A"),
            "pair": ([framed("A"), framed("B")].concat()),
            "special_tokens": described.collect::<Map<String, Value>>(),
        })
    }
}

/// `tokenizer.json` of byte-level BPE, and whether a text begins with the BOS token unless the file says otherwise.
fn byte_level(header: &Header, vocabulary: &Vocabulary) -> Result<(Value, bool)> {
    let rule = header.text("tokenizer.ggml.pre")?;
    let rule = rule.ok_or_else(|| {
        Failure::data("tokenizer.ggml.pre is missing: how texts are cut is unknown")
            .hint("take a file that was converted with a newer llama.cpp, or the Hugging Face directory")
    })?;
    let rule = Pieces::named(rule)?;
    let merges = header.texts(MERGES, MOST_TOKENS)?;
    if merges.is_empty() {
        return Err(Failure::data(format!("{MERGES} is missing")));
    }
    let known: HashSet<&str> = vocabulary.used().map(|(_, token)| token).collect();
    let pair = |merge: &str| {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            known.contains(left) && known.contains(right) && known.contains(format!("{left}{right}").as_str())
        });
        let pair = pair.ok_or_else(|| Failure::data(format!("merge {merge:?} is not of tokens")))?;
        Ok(json!([pair.0, pair.1]))
    };
    let merges = merges.into_iter().map(pair).collect::<Result<Vec<Value>>>()?;
    let mut model = bpe(vocabulary, merges);
    model["ignore_merges"] = json!(rule.ignore_merges);
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": null,
        "normalizer": rule.normalizer(),
        "pre_tokenizer": rule.pre_tokenizer(),
        "post_processor": null,
        "decoder": pieces::byte_level(true),
        "model": model,
    });
    Ok((tokenizer, rule.bos))
}

/// SentencePiece's BPE as a `tokenizer.json`.
fn sentence_piece(header: &Header, vocabulary: &Vocabulary) -> Result<(Value, bool)> {
    let prefix = header.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let space =
        |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut normalizers = vec![space(" ", SPACE)];
    let mut decoders = vec![space(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let mut model = bpe(vocabulary, merges(header, vocabulary)?);
    let unknown = vocabulary.used().find(|(id, _)| vocabulary.types[*id] == UNKNOWN);
    model["unk_token"] = unknown.map_or(Value::Null, |(_, token)| token.into());
    model["fuse_unk"] = json!(true);
    model["byte_fallback"] = json!(vocabulary.types.contains(&BYTE));
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": null,
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": model,
    });
    Ok((tokenizer, true))
}

fn bpe(vocabulary: &Vocabulary, merges: Vec<Value>) -> Value {
    json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": false,
        "vocab": vocabulary.ids(),
        "merges": merges,
    })
}

/// Every way to join two pieces to a third, by the score of that one. SentencePiece merges the neighbors with the best score,
/// the leftmost first, as BPE with these merges does.
fn merges(header: &Header, vocabulary: &Vocabulary) -> Result<Vec<Value>> {
    let scores = header.numbers("tokenizer.ggml.scores", MOST_TOKENS)?;
    if scores.len() != vocabulary.tokens.len() {
        let (scores, tokens) = (scores.len(), vocabulary.tokens.len());
        return Err(Failure::data(format!("{scores} scores for {tokens} tokens")));
    }
    let normal =
        || vocabulary.used().filter(|(id, _)| [NORMAL, USER_DEFINED].contains(&vocabulary.types[*id]));
    if let Some((id, token)) = normal().find(|(_, token)| token.len() > LONGEST_PIECE) {
        let length = token.len();
        return Err(Failure::data(format!("token {id} has {length} bytes, more than {LONGEST_PIECE}")));
    }
    if normal().map(|(_, token)| token.len()).sum::<usize>() > MOST_BYTES {
        return Err(Failure::data(format!("the tokens have more than {MOST_BYTES} bytes")));
    }
    let ids: HashMap<&str, usize> = normal().map(|(id, token)| (token, id)).collect();
    let mut merges = Vec::new();
    for (id, token) in normal().filter(|(id, _)| vocabulary.types[*id] == NORMAL) {
        if merges.len() > MOST_TOKENS {
            break;
        }
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let known = cuts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)));
        merges.extend(known.map(|(left, right)| (scores[id], left, right, id)));
    }
    if merges.len() > MOST_TOKENS {
        return Err(Failure::data(format!("the tokens merge in more than {MOST_TOKENS} ways")));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.3, a.1, a.2).cmp(&(b.3, b.1, b.2))));
    let texts = |(_, left, right, _)| json!([vocabulary.tokens[left], vocabulary.tokens[right]]);
    Ok(merges.into_iter().map(texts).collect())
}
