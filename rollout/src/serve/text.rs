//! The text of a completion while its tokens come.

use std::sync::Arc;

use policy::token_bytes::TokenBytes;

/// Text of tokens so far.
pub struct Text {
    bytes: Arc<TokenBytes>,
    /// The first bytes of a character.
    rest: Vec<u8>,
    /// The text, up to the first of `stops`.
    pub all: String,
    /// How much of it was taken.
    pub taken: usize,
    /// Texts at which it is cut.
    stops: Vec<String>,
}

impl Text {
    pub fn new(bytes: Arc<TokenBytes>, stops: Vec<String>) -> Text {
        Text { bytes, rest: Vec::new(), all: String::new(), taken: 0, stops }
    }

    pub fn push(&mut self, id: u32) {
        self.rest.extend_from_slice(self.bytes.of(id));
        let ends = self.rest.utf8_chunks().last().is_some_and(|last| is_beginning(last.invalid()));
        let keep =
            if ends { self.rest.utf8_chunks().last().map_or(0, |last| last.invalid().len()) } else { 0 };
        let rest = self.rest.split_off(self.rest.len() - keep);
        self.all += &String::from_utf8_lossy(&std::mem::replace(&mut self.rest, rest));
        if let Some(end) = self.stops.iter().filter_map(|stop| self.all.find(stop.as_str())).min() {
            self.all.truncate(end);
        }
    }

    /// The end of the last character, if it lacks bytes.
    pub fn end(&mut self) {
        self.all += &String::from_utf8_lossy(&std::mem::take(&mut self.rest));
    }

    /// The text since the last call, less a beginning of a stop text; at the end all of it.
    pub fn take(&mut self, is_end: bool) -> String {
        let open = &self.all[self.taken..];
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&open[*at..]));
        let held = open.char_indices().map(|(at, _)| at).find(begins).filter(|_| !is_end);
        let end = self.taken + held.unwrap_or(open.len());
        let text = self.all[self.taken..end].to_owned();
        self.taken = end;
        text
    }
}

/// Returns true for the first bytes of a character that lacks others.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a text as they are taken after each token, and the rest.
    fn parts(tokens: &[&[u8]], stops: &[&str]) -> Vec<String> {
        let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut text = Text::new(Arc::new(TokenBytes::new(tokens)), stops);
        let part = |id: u32| {
            text.push(id);
            text.take(false)
        };
        let mut parts: Vec<String> = (0..tokens.len() as u32).map(part).collect();
        text.end();
        parts.push(text.take(true));
        parts
    }

    #[test]
    fn characters_come_whole_and_stop_texts_never() {
        let crab = "\u{1f980}".as_bytes();
        assert_eq!(
            parts(&[b"a", &crab[..1], &crab[1..3], &crab[3..], b"b"], &[]),
            ["a", "", "", "\u{1f980}", "b", ""]
        );
        assert_eq!(parts(&[&crab[..2], b"x"], &[]), ["", "\u{fffd}x", ""]);
        assert_eq!(parts(&[b"a", &crab[..2]], &[]), ["a", "", "\u{fffd}"]);
        assert_eq!(parts(&[b"ab<", b"/", b"a> c"], &["</a>"]), ["ab", "", "", ""]);
        assert_eq!(parts(&[b"ab<", b"/", b"b>"], &["</a>"]), ["ab", "", "</b>", ""]);
        assert_eq!(parts(&[b"ab<", b"/"], &["</a>", "c"]), ["ab", "", "</"]);
        assert_eq!(parts(&[b"one two"], &["two", "ne"]), ["o", ""]);
    }
}
