//! How named tokenizers cut a text before byte-level BPE: the `tokenizer.ggml.pre` of a GGUF file.
//!
//! A file only names the rule; these are the rules in the `tokenizer.json` of each model. Left out: names of
//! families that the decoder does not know. They are refused, because a wrong rule gives wrong tokens without
//! an error.

use record::failure::{Failure, Result};
use serde_json::{Value, json};

/// A named rule.
pub(super) struct Pieces {
    names: &'static [&'static str],
    cut: Cut,
    /// Texts are composed first (Unicode's NFC).
    composed: bool,
    /// A piece that is in the vocabulary is one token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Where the file does not say whether a text begins with the BOS token.
    pub(super) bos: bool,
}

enum Cut {
    /// GPT-2's rule, optionally after cutting off each digit.
    Gpt2 { digits: bool },
    /// An expression.
    Matches(&'static str),
}

/// Qwen2's expression: digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3's: up to three digits.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Tekken's: words are also cut before a capital letter.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const RULES: [Pieces; 6] = [
    Pieces {
        names: &["gpt-2"],
        cut: Cut::Gpt2 { digits: false },
        composed: false,
        ignore_merges: false,
        bos: false,
    },
    Pieces {
        names: &["smollm", "starcoder"],
        cut: Cut::Gpt2 { digits: true },
        composed: false,
        ignore_merges: false,
        bos: false,
    },
    Pieces {
        names: &["qwen2", "deepseek-r1-qwen"],
        cut: Cut::Matches(QWEN2),
        composed: true,
        ignore_merges: false,
        bos: false,
    },
    Pieces {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cut: Cut::Matches(LLAMA3),
        composed: false,
        ignore_merges: true,
        bos: true,
    },
    // SmolLM3's tokenizer is Llama 3's.
    Pieces {
        names: &["smaug-bpe"],
        cut: Cut::Matches(LLAMA3),
        composed: false,
        ignore_merges: true,
        bos: false,
    },
    Pieces { names: &["tekken"], cut: Cut::Matches(TEKKEN), composed: false, ignore_merges: true, bos: true },
];

impl Pieces {
    /// The rule of this name.
    pub(super) fn named(name: &str) -> Result<&'static Pieces> {
        RULES.iter().find(|rule| rule.names.contains(&name)).ok_or_else(|| {
            let known = RULES.iter().flat_map(|rule| rule.names).copied().collect::<Vec<_>>().join(", ");
            Failure::data(format!("tokenizer.ggml.pre is {name:?}, which is not implemented"))
                .hint(format!("rules: {known}; or use the model's Hugging Face directory"))
        })
    }

    /// The name of the rule by which a `tokenizer.json` cuts texts.
    pub(super) fn of(tokenizer: &Value) -> Option<&'static str> {
        let own = |value: &Value| {
            without_offsets(&match value["type"].as_str() {
                Some("ByteLevel") => json!({ "type": "Sequence", "pretokenizers": [value] }),
                _ => value.clone(),
            })
        };
        let same = |rule: &&Pieces| {
            own(&rule.pre_tokenizer()) == own(&tokenizer["pre_tokenizer"])
                && rule.normalizer() == tokenizer["normalizer"]
                && rule.ignore_merges == (tokenizer["model"]["ignore_merges"] == true)
        };
        RULES.iter().find(same).map(|rule| rule.names[0])
    }

    pub(super) fn normalizer(&self) -> Value {
        if self.composed { json!({ "type": "NFC" }) } else { Value::Null }
    }

    pub(super) fn pre_tokenizer(&self) -> Value {
        let (first, gpt2) = match self.cut {
            Cut::Gpt2 { digits: false } => (None, true),
            Cut::Gpt2 { digits: true } => {
                (Some(json!({ "type": "Digits", "individual_digits": true })), true)
            }
            Cut::Matches(expression) => {
                let pattern = json!({ "Regex": expression });
                let split =
                    json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false });
                (Some(split), false)
            }
        };
        let steps: Vec<Value> = first.into_iter().chain([byte_level(gpt2)]).collect();
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

/// Without what changes no token.
fn without_offsets(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(without_offsets).collect(),
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| *key != "trim_offsets");
            Value::Object(kept.map(|(key, value)| (key.clone(), without_offsets(value))).collect())
        }
        other => other.clone(),
    }
}

/// Bytes as characters, after cutting by GPT-2's rule or not; as a decoder the way back.
pub(super) fn byte_level(cut: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cut })
}
