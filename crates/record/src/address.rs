//! Addresses of servers, and keys that must not be written down: not into a record, a run's settings or a message.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::Value;

use crate::failure::{Failure, Result};

/// Beginnings of the keys of well-known services.
const BEGINNINGS: [&str; 12] =
    ["sk-", "sk_", "pk-", "hf_", "gsk_", "xai-", "ghp_", "github_pat_", "glpat-", "nvapi-", "aiza", "bearer"];
/// A row of letters and digits of this length is a key, not a word.
const RANDOM: usize = 20;
/// A cut key is recognized by a part of this length, in bytes.
const PART: usize = 10;
/// Shorter keys are words that texts may use, such as `none`.
const SHORTEST: usize = 8;

/// Returns true for the URL of a server.
pub fn is_server(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| scheme == "http" || scheme == "https")
}

/// Refuses a URL of another kind, and one that may hold a key. Texts that are no URL pass. The message does not quote it.
///
/// # Errors
/// Usage.
pub fn check(flag: &str, text: &str) -> Result<()> {
    let refuse = |cause: &str| {
        Err(Failure::usage(format!("{flag}: {cause}"))
            .hint("put the key into OPENAI_API_KEY, or name another variable: 'http://HOST:PORT/v1?api_key_var=NAME'"))
    };
    let is_scheme = |scheme: &str| scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
    let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
        return if text.contains('@') && !Path::new(text).exists() {
            refuse("a name or a key before an @")
        } else {
            Ok(())
        };
    };
    let scheme = scheme.to_ascii_lowercase();
    let is_url = rest.starts_with('/') || ["http", "https", "ws", "wss"].contains(&scheme.as_str());
    if scheme == "hf" || Path::new(text).exists() {
        return Ok(());
    }
    if rest.contains('@') || rest.contains("%40") {
        return refuse("a URL with a name or a key in it, which the record would hold");
    }
    if !is_url {
        return Ok(());
    }
    if !is_server(text) {
        return Err(Failure::usage(format!("{flag}: a URL that does not begin with http:// or https://"))
            .hint("servers are http://HOST:PORT/v1"));
    }
    if rest.contains('#') {
        return refuse("a URL with a # in it, and what follows may be a key");
    }
    // Model names have dots and dashes.
    let is_random = |word: &str| {
        let has = |is: fn(&u8) -> bool| word.as_bytes().iter().any(is);
        word.len() >= RANDOM && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic)
    };
    let is_key = |part: &str| {
        let part = part.to_ascii_lowercase();
        BEGINNINGS.iter().any(|begin| part.len() > begin.len() + 3 && part.starts_with(begin))
            || part.split(|c: char| !c.is_ascii_alphanumeric()).any(is_random)
    };
    match rest.split(['/', '?', '&', '=', ';', ':']).any(is_key) {
        true => refuse("a URL with something like a key in it, which the record would hold"),
        false => Ok(()),
    }
}

/// `text` with `***` in place of these keys and of names in URLs: as they are, escaped as JSON or with `%`, in base64, and cut.
pub fn hide(text: &str, keys: &[&str]) -> String {
    let forms: Vec<String> = keys
        .iter()
        .filter(|key| key.len() >= SHORTEST)
        .flat_map(|key| forms(key))
        .map(|form| form.to_ascii_lowercase())
        .collect();
    without_parts(&without_users(text), &forms)
}

/// How texts write a key.
fn forms(key: &str) -> Vec<String> {
    let percent = |byte: u8| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02x}"),
    };
    let json = Value::from(key).to_string();
    let mut forms = vec![key.to_owned(), json.trim_matches('"').to_owned(), key.replace('/', "\\/")];
    forms.push(key.bytes().map(percent).collect());
    for shift in 0..3 {
        // What stands before the key, such as a name, decides how its bytes are cut into letters.
        let letters = STANDARD_NO_PAD.encode([&vec![0; shift][..], key.as_bytes()].concat());
        let own = letters[shift + usize::from(shift > 0)..].to_owned();
        forms.push(own.replace('+', "-").replace('/', "_"));
        forms.push(own);
    }
    forms
}

/// Hides every part of the forms (in small letters) that is long enough. All are searched in the whole text, because
/// one form may match the middle of another.
fn without_parts(text: &str, forms: &[String]) -> String {
    let lower = text.to_ascii_lowercase().into_bytes();
    let mut hidden = vec![false; lower.len()];
    for form in forms.iter().map(|form| form.as_bytes()) {
        let least = PART.min(form.len());
        let windows: std::collections::HashSet<&[u8]> = form.windows(least).collect();
        for (at, window) in lower.windows(least).enumerate() {
            if windows.contains(window) {
                hidden[at..at + least].fill(true);
            }
        }
    }
    let mut shown = String::with_capacity(text.len());
    let mut before = false;
    for (at, letter) in text.char_indices() {
        match (hidden[at], before) {
            (false, _) => shown.push(letter),
            (true, false) => shown.push_str("***"),
            (true, true) => {}
        }
        before = hidden[at];
    }
    shown
}

/// URLs without what stands before their host.
fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "/?#\"'<>".contains(c)).unwrap_or(part.len());
        let (authority, rest) = part.split_at(end);
        let host = authority.rsplit_once('@').map_or(authority.to_owned(), |(_, host)| format!("***@{host}"));
        shown.push_str(&format!("://{host}{rest}"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_a_key_is_refused_however_it_is_written_and_never_quoted() {
        for url in [
            "http://user:S3CRET@h/v1",
            "HTTP://user:S3CRET@h/v1?model=m",
            "http:/user:S3CRET@h/v1",
            "https:user:S3CRET@h/v1",
            "ws://user:S3CRET@h/v1",
            "ws://h/S3CRET",
            "user:S3CRET@h/v1",
            "S3CRET@h/v1",
            "http://S3CRET%40h/v1",
            "http://h/v1#S3CRET",
            "Http://h/sk-S3CRET-1234/v1",
            "http://h/v1/hf_S3CRETabcdefgh",
            "http://h/S3CRETS3CRETS3CRET12/v1",
            "http://h/v1?model=sk-proj-S3CRET",
        ] {
            let failure = check("--policies tool", url).unwrap_err();
            assert!(failure.code == 2 && !format!("{failure:?}").contains("S3CRET"), "{url}: {failure:?}");
        }
        for text in [
            "http://localhost:8000/v1?model=Qwen/Qwen2.5-Coder-32B-Instruct-AWQ&max_tokens=512",
            "HTTPS://gateway.example/openai/deployments/gpt-4o-mini-2024-07-18?api_key_var=A_VARIABLE_OF_MINE",
            "http://[::1]:8000/v1",
            "hf:Qwen/Qwen3-0.6B@main",
            "runs/a/policies/tool",
            "dir:x/y",
            "/",
        ] {
            check("--policies tool", text).unwrap();
        }
        assert!(is_server("Http://h/v1") && !is_server("http:/h") && !is_server("ws://h"));
    }

    #[test]
    fn a_key_is_hidden_however_a_text_writes_it() {
        let key = "sk-a/B+c\"4711-xyz-8899";
        for (text, shown) in [
            (format!("key {key} is wrong"), "key *** is wrong".to_owned()),
            (format!("{{\"key\": {}}}", Value::from(key)), "{\"key\": \"***\"}".to_owned()),
            ("?k=sk-a%2FB%2Bc%224711-xyz-8899&x".to_owned(), "?k=***&x".to_owned()),
            ("?k=sk-a%2fB%2bc%224711-xyz-8899".to_owned(), "?k=***".to_owned()),
            ("cut: sk-a/B+c\"4711-x...".to_owned(), "cut: ***...".to_owned()),
            ("the end c\"4711-xyz-8899".to_owned(), "the end ***".to_owned()),
            (
                "http://me:pass@host:1/v1, https://host/@x".to_owned(),
                "http://***@host:1/v1, https://host/@x".to_owned(),
            ),
            ("sk-a/B and no more, ä".to_owned(), "sk-a/B and no more, ä".to_owned()),
        ] {
            assert_eq!(hide(&text, &[key, "none"]), shown);
        }
        for name in ["", "a", "me", "you"] {
            let basic = STANDARD_NO_PAD.encode(format!("{name}:{key}"));
            let shown = hide(&format!("Basic {basic}"), &[key]);
            assert!(shown.contains("***") && shown.len() < "Basic ".len() + 12, "{shown}");
        }
        assert_eq!(hide("none of them", &["none"]), "none of them");
    }
}
