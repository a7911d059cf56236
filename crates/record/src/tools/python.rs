//! Calls as Llama 3.2 writes them: a list of Python calls with named arguments, `[add(a=1, b=2), now()]`.
//!
//! Values are Python's literals: texts in either quotes, numbers, `True`, `False`, `None`, lists and dictionaries with texts
//! as keys; JSON's `true`, `false` and `null` count, too. Anything else is no call: positional arguments, a name given twice,
//! expressions.

use serde_json::{Map, Value};

use super::ToolCall;

/// How deep lists and dictionaries may lie in each other.
const DEEPEST: usize = 64;

/// The calls that `text` is: a list of at least one, or one alone; `None` if it is anything else.
pub(super) fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut cursor = Cursor(text.trim());
    let calls = match cursor.accept('[') {
        false => vec![cursor.call()?],
        true => cursor.separated(']', Cursor::call)?,
    };
    (cursor.0.is_empty() && !calls.is_empty()).then_some(calls)
}

/// The text that is still to be read.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn skip_blanks(&mut self) {
        self.0 = self.0.trim_start();
    }

    /// Takes a character and the blanks after it, if it comes next.
    fn accept(&mut self, character: char) -> bool {
        let Some(rest) = self.0.strip_prefix(character) else { return false };
        self.0 = rest;
        self.skip_blanks();
        true
    }

    /// Items with commas between them, up to `end`; a comma may also follow the last.
    fn separated<T>(&mut self, end: char, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        loop {
            if self.accept(end) {
                return Some(items);
            }
            items.push(item(self)?);
            if !self.accept(',') {
                return self.accept(end).then_some(items);
            }
        }
    }

    /// A name, which may have dots in it.
    fn name(&mut self) -> Option<&'a str> {
        let is_part = |c: char| c == '_' || c == '.' || c.is_alphanumeric();
        let end = self.0.find(|c: char| !is_part(c)).unwrap_or(self.0.len());
        let (name, rest) = self.0.split_at(end);
        let starts = |part: &str| part.starts_with(|c: char| c == '_' || c.is_alphabetic());
        name.split('.').all(starts).then_some(())?;
        self.0 = rest;
        Some(name)
    }

    fn call(&mut self) -> Option<ToolCall> {
        let name = self.name()?.to_owned();
        self.skip_blanks();
        if !self.accept('(') {
            return None;
        }
        let named = self.separated(')', |cursor| {
            let name = cursor.name().filter(|name| !name.contains('.'))?.to_owned();
            cursor.skip_blanks();
            cursor.accept('=').then_some(())?;
            Some((name, cursor.value(0)?))
        })?;
        let count = named.len();
        let arguments = Map::from_iter(named);
        (arguments.len() == count).then_some(ToolCall { name, arguments })
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        let value = match self.0.chars().next()? {
            '\'' | '"' => Value::String(self.text()?),
            '[' => {
                self.accept('[');
                return self.separated(']', |cursor| cursor.value(depth + 1)).map(Value::Array);
            }
            '{' => {
                self.accept('{');
                let entries = self.separated('}', |cursor| {
                    let key = cursor.text()?;
                    cursor.skip_blanks();
                    cursor.accept(':').then_some(())?;
                    Some((key, cursor.value(depth + 1)?))
                });
                return entries.map(|entries| Value::Object(Map::from_iter(entries)));
            }
            c if c == '-' || c.is_ascii_digit() => {
                let end = self.0.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
                let (number, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
                self.0 = rest;
                Value::Number(serde_json::from_str(number).ok()?)
            }
            _ => match self.name()? {
                "True" | "true" => true.into(),
                "False" | "false" => false.into(),
                "None" | "null" => Value::Null,
                _ => return None,
            },
        };
        self.skip_blanks();
        Some(value)
    }

    /// A text in quotes, on one line.
    fn text(&mut self) -> Option<String> {
        let quote = self.0.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
        let mut characters = self.0[1..].chars();
        let mut text = String::new();
        loop {
            match characters.next()? {
                '\n' => return None,
                end if end == quote => break,
                '\\' => match characters.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    same @ ('\\' | '\'' | '"') => text.push(same),
                    'x' => text.push(coded(&mut characters, 2)?),
                    'u' => text.push(coded(&mut characters, 4)?),
                    'U' => text.push(coded(&mut characters, 8)?),
                    // Python keeps unknown escapes.
                    other => text.extend(['\\', other]),
                },
                other => text.push(other),
            }
        }
        self.0 = characters.as_str();
        Some(text)
    }
}

/// The character with this code, of hexadecimal digits.
fn coded(characters: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let code: String = characters.take(digits).collect();
    let hexadecimal = code.len() == digits && code.bytes().all(|byte| byte.is_ascii_hexdigit());
    hexadecimal.then(|| u32::from_str_radix(&code, 16).ok().and_then(char::from_u32))?
}
