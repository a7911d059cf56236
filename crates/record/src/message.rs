//! Lines on stderr: failures with their hints, and notes.

use std::io::{self, Write};
use std::sync::OnceLock;

use crate::address::hide;
use crate::failure::Failure;
use crate::installation::pipeline;

static NAME: OnceLock<&'static str> = OnceLock::new();

/// The name of this program, as its messages begin.
pub fn name() -> &'static str {
    NAME.get().copied().unwrap_or("troupe")
}

/// Names this program. A second call in one process keeps the first name.
pub(crate) fn set_name(name: &'static str) {
    let _ = NAME.set(name);
}

/// Prints a failure and its hint on stderr, as [`crate::stage::run`] does.
pub fn report(name: &str, failure: &Failure) {
    if failure.is_closed() {
        return;
    }
    let mut text = format!("{name}: {}\n", printable(&hide(&failure.message, &[])));
    if let Some(hint) = &failure.hint {
        let hint = hint.replace("./pipeline.sh", pipeline());
        text.push_str(&format!("hint: {}\n", printable(&hide(&hint, &[]))));
    }
    // A closed stderr leaves nobody to tell.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints `name: message` on stderr: information, not a failure. Programs skip it with `--quiet`.
pub fn note(name: &str, message: impl std::fmt::Display) {
    // A note is a courtesy: a closed stderr must not stop the work.
    let _ =
        io::stderr().lock().write_all(format!("{name}: {}\n", printable(&message.to_string())).as_bytes());
}

/// `text` with control characters escaped (`\u{1b}`), so that a name in a stream cannot steer a terminal,
/// reorder the output or start a new line.
pub fn printable(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let escaped = |c: char| if steers(c) { c.escape_default().to_string() } else { c.to_string() };
    if text.contains(steers) { text.chars().map(escaped).collect() } else { text.to_owned() }
}

/// `1 group`, `2 groups`.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
