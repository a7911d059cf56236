//! Maps tokens to parts of a text, from the vocabulary in a tokenizer.json.
//!
//! Covers only the parts of a completion, in byte-level and SentencePiece spellings. The result is checked
//! against the text; if the parts do not add up to it there is no result. Left out: encoding, which `policy`
//! does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The bytes of each token.
#[derive(Debug, Default)]
pub struct Vocabulary(HashMap<u32, Vec<u8>>);

/// The vocabularies of a run's policies, each read when it is first asked for.
#[derive(Debug, Default)]
pub struct Vocabularies {
    policies: Option<PathBuf>,
    known: HashMap<String, Option<Vocabulary>>,
}

impl Vocabularies {
    /// Vocabularies of the run in `directory`.
    pub fn of(directory: &Path) -> Vocabularies {
        Vocabularies { policies: Some(directory.join("policies")), known: HashMap::new() }
    }

    /// The vocabulary of a policy by its name in samples; `None` if its tokenizer is not in the run.
    pub fn get(&mut self, policy: &str) -> Option<&Vocabulary> {
        let policies = self.policies.as_deref()?;
        let read = || {
            // An adapter has its base's.
            [policy, "base"]
                .iter()
                .find_map(|name| Vocabulary::read(&policies.join(name).join("current/tokenizer.json")))
        };
        self.known.entry(policy.to_owned()).or_insert_with(read).as_ref()
    }
}

impl Vocabulary {
    fn read(path: &Path) -> Option<Vocabulary> {
        Vocabulary::parse(&serde_json::from_slice(&record::file::read(path).ok()?).ok()?)
    }

    fn parse(tokenizer: &Value) -> Option<Vocabulary> {
        let entries: Vec<(&str, u64)> = match &tokenizer["model"]["vocab"] {
            Value::Object(vocabulary) => {
                vocabulary.iter().map(|(token, id)| Some((&**token, id.as_u64()?))).collect::<Option<_>>()?
            }
            Value::Array(tokens) => {
                (0..).zip(tokens).map(|(id, token)| Some((token[0].as_str()?, id))).collect::<Option<_>>()?
            }
            _ => return None,
        };
        let byte_level = tokenizer["decoder"].to_string().contains("ByteLevel");
        let bytes = byte_of_characters();
        let spelled = |token: &str| match byte_level {
            true => {
                token.chars().map(|character| bytes.get(&character).copied()).collect::<Option<Vec<u8>>>()
            }
            false => {
                Some(byte_of(token).map_or_else(|| token.replace('▁', " ").into_bytes(), |byte| vec![byte]))
            }
        };
        let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
        let added = added.filter_map(|token| {
            Some((token["id"].as_u64()? as u32, token["content"].as_str()?.as_bytes().to_vec()))
        });
        let own = entries.into_iter().filter_map(|(token, id)| Some((id as u32, spelled(token)?)));
        Some(Vocabulary(own.chain(added).collect()))
    }

    /// The characters of `text` (as JavaScript counts them) for each of `ids`; 0 if a later token finishes
    /// the character. `None` if the tokens do not match the text, apart from a final stop token.
    pub fn lengths(&self, text: &str, ids: &[u32]) -> Option<Vec<usize>> {
        let (mut lengths, mut at, mut shown) = (Vec::with_capacity(ids.len()), 0, 0);
        for (place, id) in ids.iter().enumerate() {
            let piece = self.0.get(id)?;
            let rest = &text.as_bytes()[at..];
            if rest.is_empty() && place + 1 == ids.len() {
                lengths.push(0);
                break;
            }
            // SentencePiece drops the space before the first word.
            let piece =
                if place == 0 && !rest.starts_with(piece) { piece.strip_prefix(b" ")? } else { piece };
            at += rest.starts_with(piece).then_some(piece.len())?;
            let whole = text.is_char_boundary(at).then(|| text[shown..at].encode_utf16().count());
            lengths.push(whole.unwrap_or(0));
            shown = if whole.is_some() { at } else { shown };
        }
        (at == text.len() && lengths.len() == ids.len()).then_some(lengths)
    }
}

/// `<0x0A>` is a byte.
fn byte_of(token: &str) -> Option<u8> {
    u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// GPT-2's characters for bytes: the printable ones are themselves, the others follow from U+0100.
fn byte_of_characters() -> HashMap<char, u8> {
    let mut next = 0x100;
    let character = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        }
    };
    (0..=255).map(character).zip(0..=255).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_lengths_add_up_to_the_text_or_are_absent() {
        // The spaces of ids 1, and the two bytes of é in ids 3 and 4.
        let bytes = json!({"model": {"vocab": {"a": 0, "Ġb": 1, "<end>": 2, "Ã": 3, "©": 4}}, "decoder": {"type": "ByteLevel"},
            "added_tokens": [{"id": 2, "content": "<end>"}]});
        let vocabulary = Vocabulary::parse(&bytes).unwrap();
        assert_eq!(vocabulary.lengths("a b", &[0, 1, 2]), Some(vec![1, 2, 0]));
        assert_eq!(vocabulary.lengths("a b", &[0, 1]), Some(vec![1, 2]));
        assert_eq!(vocabulary.lengths("éa", &[3, 4, 0, 2]), Some(vec![0, 1, 1, 0]));
        assert_eq!(vocabulary.lengths("", &[2]), Some(vec![0]));
        for (text, ids) in
            [("a b", &[0][..]), ("a c", &[0, 1]), ("a", &[0, 9]), ("a", &[0, 2, 2]), ("é", &[3])]
        {
            assert_eq!(vocabulary.lengths(text, ids), None, "{text}");
        }
        let pieces = json!({"model": {"vocab": [["▁hi", -1.0], ["▁you", -2.0], ["<0x0A>", 0.0]]}, "decoder": {"type": "Replace"}});
        let vocabulary = Vocabulary::parse(&pieces).unwrap();
        assert_eq!(vocabulary.lengths("hi you\n", &[0, 1, 2]), Some(vec![2, 4, 1]));
        assert!(Vocabulary::parse(&json!({"model": {}})).is_none());
    }
}
