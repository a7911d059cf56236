//! The bytes of each token: a text is the bytes of its tokens, one after another.
//!
//! Tokens of byte-level vocabularies are bytes in an alphabet of visible characters (GPT-2's); SentencePiece spells a
//! space as `▁` and a single byte as `<0x0A>`. The decoder in `tokenizer.json` says which. Special tokens have no bytes,
//! except for marks of thoughts and tool calls and for tokens that a stop string names.
//! Left out: what a decoder does to a text as a whole, such as removing its first space.

use record::thoughts;
use serde_json::Value;

use crate::tools;

/// Returns true for a token that a text keeps, although it may be a special one: without it thoughts and calls of tools
/// cannot be found.
pub(crate) fn is_mark(token: &str) -> bool {
    tools::is_mark(token) || thoughts::is_mark(token)
}

/// The bytes of each token of a vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<u32>,
}

impl TokenBytes {
    /// The bytes of token 0, of token 1, and so on.
    pub fn new(tokens: &[impl AsRef<[u8]>]) -> TokenBytes {
        let mut all = TokenBytes::default();
        tokens.iter().for_each(|token| all.push(token.as_ref()));
        all
    }

    fn push(&mut self, token: &[u8]) {
        self.bytes.extend_from_slice(token);
        self.ends.push(self.bytes.len() as u32);
    }

    /// The bytes of a token. None for an id outside the vocabulary.
    pub fn of(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let begin = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[begin as usize..end as usize]
    }

    /// Spells the tokens of a tokenizer, special ones only if they are marks or are in one of `stops`.
    ///
    /// # Errors
    /// The kind of a decoder that is not known here.
    pub(crate) fn of_tokenizer(
        tokenizer: &tokenizers::Tokenizer,
        stops: &[String],
    ) -> Result<TokenBytes, String> {
        let decoder = tokenizer.get_decoder().and_then(|decoder| serde_json::to_value(decoder).ok());
        let mut steps = Vec::new();
        add_steps(&decoder.unwrap_or(Value::Null), &mut steps)?;
        let added = tokenizer.get_added_tokens_decoder();
        let largest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        let mut all = TokenBytes::default();
        for id in 0..=largest {
            let is_special = added.get(&id).is_some_and(|one| one.special);
            let is_spelled = |token: &String| {
                !is_special || is_mark(token) || stops.iter().any(|stop| stop.contains(token))
            };
            let token = tokenizer.id_to_token(id).filter(is_spelled);
            all.push(&token.map(|token| bytes(token, &steps)).unwrap_or_default());
        }
        Ok(all)
    }

    /// As ends and as a text with a character per byte, which JSON holds in about as many bytes.
    pub(crate) fn into_parts(self) -> (Vec<u32>, String) {
        (self.ends, self.bytes.into_iter().map(char::from).collect())
    }

    /// The reverse; `None` if the ends do not fit the text.
    pub(crate) fn from_parts(ends: Vec<u32>, text: &str) -> Option<TokenBytes> {
        let bytes = text.chars().map(u8::try_from).collect::<Result<Vec<u8>, _>>().ok()?;
        let whole = ends.is_sorted() && ends.last().is_none_or(|&end| end as usize == bytes.len());
        whole.then_some(TokenBytes { bytes, ends })
    }
}

/// A decoder's change of a token.
enum Step {
    /// Its characters are bytes.
    ByteLevel,
    /// `<0x0A>` is a byte.
    ByteFallback,
    Replace(String, String),
}

fn add_steps(decoder: &Value, steps: &mut Vec<Step>) -> Result<(), String> {
    let text = |key: &str| decoder[key].as_str().unwrap_or_default().to_owned();
    match decoder["type"].as_str() {
        Some("Sequence") => {
            return decoder["decoders"]
                .as_array()
                .into_iter()
                .flatten()
                .try_for_each(|one| add_steps(one, steps));
        }
        Some("ByteLevel") => steps.push(Step::ByteLevel),
        Some("ByteFallback") => steps.push(Step::ByteFallback),
        Some("Replace") if decoder["pattern"]["String"].is_string() => {
            let pattern = decoder["pattern"]["String"].as_str().unwrap_or_default();
            steps.push(Step::Replace(pattern.to_owned(), text("content")));
        }
        Some("Metaspace") => steps.push(Step::Replace(text("replacement"), " ".to_owned())),
        Some("Fuse" | "Strip") => {}
        // Without a decoder tokens are words with spaces between them.
        None => steps.push(Step::Replace(String::new(), String::new())),
        Some(other) => return Err(format!("a decoder of type {other}")),
    }
    Ok(())
}

fn bytes(mut token: String, steps: &[Step]) -> Vec<u8> {
    for step in steps {
        match step {
            Step::ByteLevel => return byte_level(&token).unwrap_or_else(|| token.into_bytes()),
            Step::ByteFallback => {
                let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                let byte =
                    digits.filter(|digits| digits.len() == 2).map(|digits| u8::from_str_radix(digits, 16));
                if let Some(Ok(byte)) = byte {
                    return vec![byte];
                }
            }
            Step::Replace(from, _) if from.is_empty() => token.insert(0, ' '),
            Step::Replace(from, to) => token = token.replace(from, to),
        }
    }
    token.into_bytes()
}

/// The bytes that GPT-2's alphabet writes as these characters; `None` if one is not in it.
fn byte_level(token: &str) -> Option<Vec<u8>> {
    let visible = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let byte = |character: char| match u8::try_from(character) {
        Ok(byte) if visible(&byte) => Some(byte),
        Ok(_) => None,
        // The others follow from 256 on, in their order.
        Err(_) => {
            let index = (character as usize).checked_sub(256)?;
            (0..=255).filter(|byte| !visible(byte)).nth(index)
        }
    };
    token.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(token: &str, decoder: &Value) -> Vec<u8> {
        let mut steps = Vec::new();
        add_steps(decoder, &mut steps).expect("a known decoder");
        bytes(token.to_owned(), &steps)
    }

    #[test]
    fn a_token_is_spelled_as_its_decoder_says() {
        let level = json!({"type": "ByteLevel"});
        assert_eq!(of("Ġa", &level), b" a");
        assert_eq!(of("Ċ", &level), b"\n");
        assert_eq!(of("ðŁ", &level), [0xf0, 0x9f], "half of a character");
        assert_eq!(of("<tool_call>", &level), b"<tool_call>");
        assert_eq!(of("日", &level), "日".as_bytes(), "an added token, as it is");
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let piece = json!({"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]});
        assert_eq!(of("▁the", &piece), b" the");
        assert_eq!(of("<0xE2>", &piece), [0xe2]);
        assert_eq!(of("<0xXY>", &piece), b"<0xXY>");
        assert_eq!(of("word", &Value::Null), b" word");
        assert!(add_steps(&json!({"type": "WordPiece"}), &mut Vec::new()).is_err());
    }

    #[test]
    fn parts_come_back() {
        let all = TokenBytes::new(&[&b"a\0"[..], b"", b"\xff\xfe"]);
        assert_eq!(
            (all.of(0), all.of(1), all.of(2), all.of(3)),
            (&b"a\0"[..], &b""[..], &b"\xff\xfe"[..], &b""[..])
        );
        let (ends, text) = all.clone().into_parts();
        assert_eq!(TokenBytes::from_parts(ends, &text), Some(all));
        assert_eq!(TokenBytes::from_parts(vec![1, 3], "ab"), None);
    }
}
