//! Calls as Llama 3.2 writes them: a list of Python calls with named arguments, `[add(a=1, b=2), now()]`.
//!
//! Values are Python's literals, as JSON: texts in any quotes, raw ones and several side by side, numbers of any size, `True`,
//! `False`, `None`, lists, tuples, and dictionaries with texts as keys; JSON's `true`, `false` and `null` count, too. Anything
//! else is no call: positional arguments, a name given twice, expressions, characters by name (`\N{BULLET}`), bytes.

use serde_json::json;

use super::{Found, ToolCall};

/// How deep lists and dictionaries may lie in each other.
const DEEPEST: usize = 64;

/// The calls with which `text` begins: a list of at least one, or, if `alone` may be, one.
pub(super) fn calls(text: &str, alone: bool) -> Found<'_> {
    let mut cursor = Cursor(text);
    let calls = match cursor.accept("[") {
        false if alone => vec![cursor.call()?],
        false => return None,
        true => cursor.separated("]", Cursor::call)?.0,
    };
    (!calls.is_empty()).then_some((calls, cursor.0))
}

/// The literal that `text` is, as JSON.
pub(super) fn literal(text: &str) -> Option<String> {
    let mut cursor = Cursor(text.trim());
    cursor.value(0).filter(|_| cursor.0.is_empty())
}

/// The text that is still to be read.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    /// Skips blanks, comments and continued lines.
    fn skip_blanks(&mut self) {
        loop {
            self.0 = self.0.trim_start();
            match (self.0.strip_prefix("\\\n"), self.0.starts_with('#')) {
                (Some(rest), _) => self.0 = rest,
                (None, true) => self.0 = self.0.find('\n').map_or("", |end| &self.0[end..]),
                (None, false) => return,
            }
        }
    }

    /// Takes a text and the blanks after it, if it comes next.
    fn accept(&mut self, text: &str) -> bool {
        let Some(rest) = self.0.strip_prefix(text) else { return false };
        self.0 = rest;
        self.skip_blanks();
        true
    }

    /// Items with commas between them, up to `end`, and whether a comma follows the last.
    fn separated<T>(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<(Vec<T>, bool)> {
        let (mut items, mut comma) = (Vec::new(), false);
        while !self.accept(end) {
            if !items.is_empty() && !comma {
                return None;
            }
            items.push(item(self)?);
            comma = self.accept(",");
        }
        Some((items, comma))
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
        self.accept("(").then_some(())?;
        let mut names = Vec::new();
        let (arguments, _) = self.separated(")", |cursor| {
            let name = cursor.name().filter(|name| !name.contains('.') && !names.contains(name))?;
            names.push(name);
            cursor.skip_blanks();
            cursor.accept("=").then_some(())?;
            Some(format!("{}:{}", json!(name), cursor.value(0)?))
        })?;
        Some(ToolCall { name, arguments: format!("{{{}}}", arguments.join(",")) })
    }

    /// A literal as JSON, and the blanks after it.
    fn value(&mut self, depth: usize) -> Option<String> {
        if depth > DEEPEST {
            return None;
        }
        let value = |cursor: &mut Self| cursor.value(depth + 1);
        if self.accept("[") {
            return Some(format!("[{}]", self.separated("]", value)?.0.join(",")));
        }
        if self.accept("(") {
            let (items, comma) = self.separated(")", value)?;
            return match &items[..] {
                [only] if !comma => Some(only.clone()),
                _ => Some(format!("[{}]", items.join(","))),
            };
        }
        if self.accept("{") {
            let entry = |cursor: &mut Self| {
                let key = cursor.texts()?;
                cursor.accept(":").then_some(())?;
                Some(format!("{key}:{}", cursor.value(depth + 1)?))
            };
            return Some(format!("{{{}}}", self.separated("}", entry)?.0.join(",")));
        }
        if let Some(texts) = self.texts() {
            return Some(texts);
        }
        let value = match self.0.chars().next()? {
            c if "+-.".contains(c) || c.is_ascii_digit() => self.number()?,
            _ => match self.name()? {
                "True" | "true" => "true".to_owned(),
                "False" | "false" => "false".to_owned(),
                "None" | "null" => "null".to_owned(),
                _ => return None,
            },
        };
        self.skip_blanks();
        Some(value)
    }

    fn number(&mut self) -> Option<String> {
        let minus = self.0.starts_with('-');
        let unsigned = self.0.strip_prefix(['+', '-']).unwrap_or(self.0).trim_start_matches(' ');
        // A sign belongs to the number at its beginning and after an exponent's letter.
        let mut before = ' ';
        let end = unsigned.find(|c: char| {
            let sign = "+-".contains(c) && "eE".contains(before);
            before = c;
            !(sign || c.is_ascii_alphanumeric() || "._".contains(c))
        });
        let (number, rest) = unsigned.split_at(end.unwrap_or(unsigned.len()));
        self.0 = rest;
        let between_digits = number.split('_').all(|part| !part.is_empty());
        let mut digits = between_digits.then(|| number.replace('_', ""))?.to_ascii_lowercase();
        if let Some((radix, part)) = [("0x", 16), ("0o", 8), ("0b", 2)]
            .iter()
            .find_map(|(prefix, radix)| Some((radix, digits.strip_prefix(prefix)?)))
        {
            digits = u128::from_str_radix(part, *radix).ok()?.to_string();
        }
        // JSON wants digits on both sides of the point.
        if digits.starts_with('.') {
            digits.insert(0, '0');
        }
        if let Some(point) =
            digits.find('.').filter(|point| !digits[point + 1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            digits.insert(point + 1, '0');
        }
        serde_json::from_str::<serde_json::Number>(&digits).ok()?;
        Some(if minus { format!("-{digits}") } else { digits })
    }

    /// Texts in quotes side by side, which are one, as JSON, and the blanks after them.
    fn texts(&mut self) -> Option<String> {
        let mut text = self.text()?;
        self.skip_blanks();
        while let Some(more) = self.text() {
            text.push_str(&more);
            self.skip_blanks();
        }
        Some(json!(text).to_string())
    }

    fn text(&mut self) -> Option<String> {
        let raw = self.0.strip_prefix(['r', 'R']);
        let rest = raw.or_else(|| self.0.strip_prefix(['u', 'U'])).unwrap_or(self.0);
        let quote = ["'''", "\"\"\"", "'", "\""].into_iter().find(|quote| rest.starts_with(quote))?;
        let mut rest = &rest[quote.len()..];
        let mut text = String::new();
        while !rest.starts_with(quote) {
            let mut characters = rest.chars();
            match characters.next()? {
                '\n' if quote.len() == 1 => return None,
                '\\' if raw.is_some() => text.extend(['\\', characters.next()?]),
                '\\' => escaped(&mut characters, &mut text)?,
                other => text.push(other),
            }
            rest = characters.as_str();
        }
        self.0 = &rest[quote.len()..];
        Some(text)
    }
}

/// Reads what follows a backslash.
fn escaped(characters: &mut std::str::Chars<'_>, text: &mut String) -> Option<()> {
    let c = characters.next()?;
    match c {
        '\n' => {}
        'a' => text.push('\x07'),
        'b' => text.push('\x08'),
        'f' => text.push('\x0c'),
        'n' => text.push('\n'),
        'r' => text.push('\r'),
        't' => text.push('\t'),
        'v' => text.push('\x0b'),
        '\\' | '\'' | '"' => text.push(c),
        '0'..='7' => {
            let mut code = c.to_digit(8)?;
            for _ in 0..2 {
                let Some(digit) = characters.clone().next().and_then(|c| c.to_digit(8)) else { break };
                code = 8 * code + digit;
                characters.next();
            }
            text.push(char::from_u32(code)?);
        }
        'x' => text.push(coded(characters, 2)?),
        'u' => text.push(coded(characters, 4)?),
        'U' => text.push(coded(characters, 8)?),
        'N' => return None,
        // Python keeps unknown escapes.
        other => text.extend(['\\', other]),
    }
    Some(())
}

/// The character with this code, of hexadecimal digits.
fn coded(characters: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let code: String = characters.take(digits).collect();
    let hexadecimal = code.len() == digits && code.bytes().all(|byte| byte.is_ascii_hexdigit());
    hexadecimal.then(|| u32::from_str_radix(&code, 16).ok().and_then(char::from_u32))?
}
