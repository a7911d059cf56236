//! A template's source: `generation` blocks, and the escapes in its texts.

use super::{Result, invalid};

/// A template's source as the lexer of `jinja2` reads it, with the `generation` blocks of `transformers`, which only matter to its loss
/// masks, as blocks with a scope of their own, and Python's escapes in texts.
pub(crate) fn source(text: &str) -> Result<String> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (mut result, mut rest, mut raw) = (String::with_capacity(text.len()), text.as_str(), false);
    while let Some(start) = rest.find("{") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let length = match tag.as_bytes().get(1) {
            Some(b'%') if raw => tag.find("%}").map_or(tag.len(), |end| end + 2),
            Some(b'%') => end(tag, "%}"),
            Some(b'{') if !raw => end(tag, "}}"),
            Some(b'#') if !raw => tag.find("#}").map_or(tag.len(), |end| end + 2),
            _ => 1,
        };
        let (tag, after) = tag.split_at(length);
        let word = tag
            .trim_start_matches("{%")
            .trim_end_matches("%}")
            .trim_matches(['-', '+', ' ', '\t', '\n'])
            .to_owned();
        let is_block = tag.starts_with("{%");
        let is_code = !raw && (is_block || tag.starts_with("{{"));
        match word.as_str() {
            "generation" if is_block && !raw => result.push_str(&tag.replace("generation", "with")),
            "endgeneration" if is_block && !raw => result.push_str(&tag.replace("endgeneration", "endwith")),
            _ if is_code => push_code(&mut result, tag)?,
            _ => result.push_str(tag),
        }
        match word.as_str() {
            "raw" if is_block => raw = true,
            "endraw" if is_block => raw = false,
            _ => {}
        }
        rest = after;
    }
    Ok(result + rest)
}

/// Appends a tag, with those escapes of its texts that minijinja reads otherwise as characters.
fn push_code(result: &mut String, tag: &str) -> Result<()> {
    let (mut quote, mut characters) = (None, tag.chars());
    while let Some(c) = characters.next() {
        if quote.is_none() || c != '\\' {
            match quote {
                None if matches!(c, '"' | '\'') => quote = Some(c),
                Some(open) if c == open => quote = None,
                _ => {}
            }
            result.push(c);
            continue;
        }
        match characters.next() {
            Some('a') => result.push('\x07'),
            Some('v') => result.push('\x0b'),
            Some('/') => result.push_str("\\\\/"),
            Some('\n') => {}
            Some('N') => return Err(invalid("the escape \\N is not known".to_owned())),
            Some('U') => {
                let digits: String = characters.by_ref().take(8).collect();
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 8);
                let named = code.and_then(char::from_u32);
                result.push(named.ok_or_else(|| invalid(format!("\\U{digits} is no character")))?);
            }
            other => result.extend(['\\'].into_iter().chain(other)),
        }
    }
    Ok(())
}

/// Where a tag ends that may hold texts in quotes.
fn end(tag: &str, close: &str) -> usize {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in tag.char_indices().skip(2) {
        match quote {
            None if tag[at..].starts_with(close) => return at + close.len(),
            None if matches!(c, '"' | '\'') => quote = Some(c),
            Some(open) if c == open && !escaped => quote = None,
            _ => {}
        }
        escaped = quote.is_some() && c == '\\' && !escaped;
    }
    tag.len()
}
