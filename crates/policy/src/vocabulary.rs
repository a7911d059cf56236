//! The tokenizer of new policies: single bytes, and the words of the environments' compact texts.
//!
//! Every byte has a token, so any UTF-8 text is encoded without loss. A text is split into runs of letters and digits, or of
//! other characters, each with the space before it. A run that is in the vocabulary is one token, any other is its bytes. So
//! ` a0` is one token, which GPT-2's rule would split.
//!
//! To add a word, append it to [`ADDED`]: words take the reserved ids in order, so existing ids stay and trained policies
//! remain valid.

use serde_json::{Map, Value, json};

/// Tokens of the vocabulary, reserved ones included.
pub(crate) const SIZE: usize = 512;
/// Special tokens, first in the vocabulary.
const SPECIAL: [&str; 5] = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];
/// Index in [`SPECIAL`] of the padding token.
pub(crate) const PAD: usize = 0;
/// Index in [`SPECIAL`] of the stop token.
pub(crate) const END: usize = 4;

/// Cells of boards up to 10 by 10 are a column's letter and a row's digit.
const COLUMNS: &str = "abcdefghij";
const ROWS: &str = "0123456789";
/// Words inside a text, each with a space before it.
const SPACED: &[&str] = &[
    "U", "D", "L", "R", "walls", "goal", "at", "plan", "route", "tool", "planner", "moves", "ok", "blocked",
    "none", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9",
];
/// Words that can begin a text, without the space.
const BARE: &[&str] = &["walls", "goal", "at", "plan", "route", "tool", "planner", "moves"];
/// Words added later, with their spaces.
const ADDED: &[&str] = &[
    // Math: a story, its operations, who speaks, signs.
    "has",
    " gets",
    " buys",
    " loses",
    " gives",
    " times",
    " shares",
    " ask",
    " reasoner",
    " judge",
    " =",
    " +",
    " -",
    " *",
    " /",
    // Sudoku: the beginning of a board, digits that were filled in, a proposal.
    "sudoku",
    " x1",
    " x2",
    " x3",
    " x4",
    " x5",
    " x6",
    " x7",
    " x8",
    " x9",
    " fill",
    // Sokoban: where boxes are.
    " box",
    // Code: who speaks, the last expression and where it failed, brackets.
    "coder",
    "tester",
    " was",
    " but",
    " x",
    " (",
    " )",
    " :",
];

/// Each message is its role's token and its text; an assistant's message ends with the stop token.
pub(crate) const CHAT_TEMPLATE: &str = "\
{%- for message in messages -%}
    {%- if message.role not in ['system', 'user', 'assistant'] -%}
        {{- raise_exception('roles are system, user and assistant') -}}
    {%- endif -%}
    {{- '<|' + message.role + '|>' + message.content -}}
    {%- if message.role == 'assistant' -%}{{- '<|end|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
";

/// Runs of letters and digits or of other characters, each with one space before it; then white space.
const RUNS: &str = r" ?[\p{L}\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+";

/// Every token in the order of the ids: special, bytes, words, reserved.
fn tokens() -> Vec<String> {
    let mut all: Vec<String> = SPECIAL.iter().map(|&token| token.to_owned()).collect();
    all.extend((0..=255).map(|byte| spelling(&[byte])));
    let cells = COLUMNS.chars().flat_map(|column| ROWS.chars().map(move |row| format!(" {column}{row}")));
    let spaced = SPACED.iter().map(|word| format!(" {word}"));
    let bare = BARE.iter().map(|&word| word.to_owned());
    let added = ADDED.iter().map(|&word| word.to_owned());
    all.extend(cells.chain(spaced).chain(bare).chain(added).map(|word| spelling(word.as_bytes())));
    let words = all.len();
    all.extend((words..SIZE).map(|id| format!("<|reserved_{id}|>")));
    all
}

/// Bytes in the alphabet of byte-level tokenizers (GPT-2's `bytes_to_unicode`): printable ones stand for themselves,
/// the others for characters from U+0100 on, in their order.
fn spelling(bytes: &[u8]) -> String {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let stand_in = |byte: u8| {
        let before = (0..byte).filter(|&other| !printable(other)).count();
        char::from_u32(0x100 + before as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    bytes.iter().map(|&byte| if printable(byte) { char::from(byte) } else { stand_in(byte) }).collect()
}

pub(crate) fn tokenizer() -> Value {
    let tokens = tokens();
    let special = |id: &usize| *id < SPECIAL.len() || tokens[*id].starts_with("<|reserved_");
    let added: Vec<Value> = (0..SIZE)
        .filter(special)
        .map(|id| {
            json!({
                "id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let vocabulary: Map<String, Value> =
        tokens.iter().zip(0..).map(|(token, id)| (token.clone(), json!(id))).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": RUNS}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            ],
        },
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            // A run in the vocabulary is taken whole, so words need no merges.
            "ignore_merges": true,
            "vocab": vocabulary,
            "merges": [],
        },
    })
}

/// `tokenizer_config.json`; `max_positions` is the longest context in tokens.
pub(crate) fn tokenizer_config(max_positions: usize) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": false,
        "pad_token": SPECIAL[PAD],
        "eos_token": SPECIAL[END],
        "chat_template": CHAT_TEMPLATE,
    })
}

pub(crate) fn generation_config() -> Value {
    json!({ "do_sample": true, "temperature": 1.0, "pad_token_id": PAD, "eos_token_id": [END] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_vocabulary_has_its_size_and_no_token_twice() {
        let tokens = tokens();
        assert_eq!(tokens.len(), SIZE);
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), SIZE);
    }

    #[test]
    fn bytes_are_spelled_as_gpt2_spells_them() {
        assert_eq!(spelling(b" a\n\x00~\x7f\xad\xff"), "ĠaĊĀ~ġŃÿ");
    }
}
