//! Stop strings: texts that end a completion.
//!
//! A completion is the bytes of its tokens, one after another; special tokens have none. It ends with the first token
//! that completes one of the strings, wherever the string begins. So a string may straddle tokens, begin or end inside
//! one, and its characters may be split into tokens of single bytes. The tokens stay whole and stay in the completion:
//! its text ends with the string, or goes on to the end of the token that completed it.

use policy::token_bytes::TokenBytes;
use std::sync::Arc;

/// The stop strings of an agent, for the tokens of a model.
#[derive(Debug)]
pub struct StopStrings {
    texts: Vec<Vec<u8>>,
    tokens: Arc<TokenBytes>,
    /// Bytes of the longest text.
    longest: usize,
}

impl StopStrings {
    /// Texts, none of them empty.
    pub fn new(texts: &[String], tokens: Arc<TokenBytes>) -> StopStrings {
        let texts: Vec<Vec<u8>> = texts.iter().map(|text| text.clone().into_bytes()).collect();
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        StopStrings { texts, tokens, longest }
    }

    /// Appends a token to the end of a completion, of which `tail` holds the bytes that may begin a text. Returns true
    /// if the token completes one.
    pub fn completed_by(&self, tail: &mut Vec<u8>, id: u32) -> bool {
        tail.extend_from_slice(self.tokens.of(id));
        let holds = |text: &Vec<u8>| tail.windows(text.len()).any(|window| window == text);
        let completed = self.texts.iter().any(holds);
        tail.drain(..tail.len().saturating_sub(self.longest - 1));
        completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of tokens after which a completion of these pieces ends.
    fn end(texts: &[&str], pieces: &[&[u8]]) -> Option<usize> {
        let tokens = Arc::new(TokenBytes::new(pieces));
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let (stop, mut tail) = (StopStrings::new(&texts, tokens), Vec::new());
        (0..pieces.len() as u32).find(|&id| stop.completed_by(&mut tail, id)).map(|id| id as usize + 1)
    }

    #[test]
    fn a_text_ends_a_completion_wherever_its_tokens_part() {
        assert_eq!(end(&["</a>"], &[b"x </", b"a", b"> more", b"y"]), Some(3));
        assert_eq!(end(&["</a>"], &[b"<", b"/", b"a", b">"]), Some(4));
        assert_eq!(end(&["</a>"], &[b"1</a>2</a>", b"3"]), Some(1));
        assert_eq!(end(&["</a>"], &[b"</", b"", b"a>"]), Some(3), "a special token has no bytes");
        assert_eq!(end(&["</a>"], &[b"</", b"b", b"a>"]), None);
        assert_eq!(end(&["aab"], &[b"aa", b"a", b"b"]), Some(3), "it begins inside a false beginning");
        assert_eq!(end(&["\n\n", "b"], &[b"a\n", b"c\n", b"\n", b"b"]), Some(3), "whichever is first");
        assert_eq!(end(&["x"], &[b"ab", b"cd"]), None);
    }

    #[test]
    fn characters_may_be_split_into_bytes() {
        let crab = "\u{1f980}".as_bytes();
        let bytes: Vec<&[u8]> = crab.chunks(1).collect();
        assert_eq!(end(&["\u{1f980}"], &bytes), Some(4));
        assert_eq!(end(&["\u{1f980}!"], &[&crab[..2], &crab[2..], b"!"]), Some(3));
        // The first bytes of another character do not count.
        assert_eq!(end(&["\u{1f981}"], &bytes), None);
    }
}
