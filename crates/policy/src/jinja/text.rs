//! Texts as Python has them: which characters are letters, digits and printable, and their title case.

use std::sync::LazyLock;

use regex::Regex;

fn pattern(class: &str) -> Regex {
    // The patterns below are constants, and a test compiles all of them.
    Regex::new(&format!("^{class}+$")).unwrap_or_else(|error| unreachable!("{class}: {error}"))
}

static LETTERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\p{L}"));
static LETTERS_AND_NUMBERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"[\p{L}\p{N}]"));
static DECIMALS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\p{Nd}"));
/// Decimals, and what Unicode calls digits: superscripts, circles and the like.
static DIGITS: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"[\p{Nd}\x{b2}\x{b3}\x{b9}\x{1369}-\x{1371}\x{19da}\x{2070}\x{2074}-\x{2079}\x{2080}-\x{2089}\x{2460}-\x{2468}",
        r"\x{2474}-\x{247c}\x{2488}-\x{2490}\x{24ea}\x{24f5}-\x{24fd}\x{24ff}\x{2776}-\x{277e}\x{2780}-\x{2788}",
        r"\x{278a}-\x{2792}\x{10a40}-\x{10a43}\x{10e60}-\x{10e68}\x{11052}-\x{1105a}\x{1f100}-\x{1f10a}]"
    ))
});
static NUMBERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\p{N}"));
/// Some of these ideographs are numbers.
static PERHAPS_NUMBERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"[\p{N}\p{Han}]"));
static NOT_PRINTABLE: LazyLock<Regex> = LazyLock::new(|| pattern(r"[\p{C}\p{Z}&&[^ ]]"));

/// `str.isalpha` and its relatives.
///
/// # Errors
/// A text of which this cannot be said here.
pub(super) fn is(method: &str, text: &str) -> Result<bool, String> {
    Ok(match method {
        "isalpha" => LETTERS.is_match(text),
        "isalnum" => LETTERS_AND_NUMBERS.is_match(text),
        "isdecimal" => DECIMALS.is_match(text),
        "isdigit" => DIGITS.is_match(text),
        _ if NUMBERS.is_match(text) => true,
        _ if PERHAPS_NUMBERS.is_match(text) => {
            return Err(format!("{text:?}.{method}(): which ideographs are numbers is not known here"));
        }
        _ => false,
    })
}

pub(super) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut result = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => result.push_str("\\\\"),
            '\n' => result.push_str("\\n"),
            '\r' => result.push_str("\\r"),
            '\t' => result.push_str("\\t"),
            _ if c == quote => result.extend(['\\', c]),
            _ if !NOT_PRINTABLE.is_match(c.encode_utf8(&mut [0; 4])) => result.push(c),
            _ => match c as u32 {
                code @ ..0x100 => result.push_str(&format!("\\x{code:02x}")),
                code @ ..0x10000 => result.push_str(&format!("\\u{code:04x}")),
                code => result.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    result.push(quote);
    result
}

/// `str.title`: title case after whatever has no case, an apostrophe too.
///
/// # Errors
/// Letters whose case is not known here.
pub(super) fn titled(text: &str) -> Result<String, String> {
    let (mut result, mut within) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        match within {
            true if c == 'Σ' => return Err("the small letter of Σ at the end of a word".to_owned()),
            true => result.extend(c.to_lowercase()),
            false => push_title(&mut result, c)?,
        }
        within = c.is_lowercase() || c.is_uppercase() || !c.to_lowercase().eq([c]);
    }
    Ok(result)
}

/// `str.capitalize`.
pub(super) fn capitalized(text: &str) -> Result<String, String> {
    let mut result = String::with_capacity(text.len());
    if let Some(first) = text.chars().next() {
        push_title(&mut result, first)?;
        let small: usize = first.to_lowercase().map(char::len_utf8).sum();
        // Lowercased as a whole, because the form of a sigma depends on the letter before it.
        result.push_str(&text.to_lowercase()[small..]);
    }
    Ok(result)
}

fn push_title(result: &mut String, c: char) -> Result<(), String> {
    match c {
        'ß' => result.push_str("Ss"),
        // Two letters in one character, of which the first is large.
        '\u{1c4}'..='\u{1c6}' => result.push('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => result.push('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => result.push('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => result.push('\u{1f2}'),
        // Georgian is written in one case, except in all capitals.
        '\u{10d0}'..='\u{10ff}' => result.push(c),
        _ if c.to_uppercase().len() > 1 => return Err(format!("the title case of {c:?} is not known here")),
        _ => result.extend(c.to_uppercase()),
    }
    Ok(())
}
