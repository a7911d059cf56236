//! Jinja as Python's `jinja2` renders it, where minijinja differs: newlines, numbers, white space, `tojson`, `generation` blocks.
//!
//! What minijinja lacks is an error of the template, which names it. What it only does otherwise would be another prompt, in silence;
//! that is done here as Python does it, or refused. Left out, since minijinja has no place for it: `'a' < 1`, an error in Python and
//! an order here, and the exponents of numbers joined by `~`.

mod text;

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use minijinja::value::{
    Enumerator, Kwargs, Object, ObjectRepr, Rest, Value as Jinja, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter};
use minijinja_contrib::pycompat;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// The widest indent of `tojson`, in spaces.
const WIDEST: i64 = 100;
/// The longest `range`, as in the sandbox of `jinja2`.
const LONGEST: i64 = 100_000;

type Result<T> = std::result::Result<T, Error>;

/// Brings an environment nearer to Python's.
pub(crate) fn prepare(environment: &mut Environment) {
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(print);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", |text: String, characters: Option<String>| match characters {
        Some(characters) => text.trim_matches(|c| characters.contains(c)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    });
    environment.add_filter("string", |value: &Jinja| match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => text_of(value).map(Jinja::from),
    });
    environment.add_filter("capitalize", |text: String| text::capitalized(&text).map_err(invalid));
    environment.add_filter("join", join);
    environment.add_function("range", range);
    environment.add_test("iterable", |value: &Jinja| {
        !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
    });
    // Python asks for a length and for items, which texts and dictionaries have, too.
    environment.add_test("sequence", |value: &Jinja| {
        // A part of a list is iterable here, with a length.
        let part = value.kind() == ValueKind::Iterable && value.len().is_some();
        part || matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
        )
    });
}

/// A template's source as the lexer of `jinja2` reads it, with the `generation` blocks of `transformers`, which only matter to its loss
/// masks, as blocks with a scope of their own, and Python's escapes in texts.
///
/// # Errors
/// An escape that is not known here.
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

fn invalid(cause: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, cause)
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

/// What `{{ value }}` prints.
fn print(output: &mut Output, state: &mut State, value: &Jinja) -> Result<()> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            Ok(output.write_str(&text_of(value)?)?)
        }
        _ => escape_formatter(output, state, value),
    }
}

/// Python's `str(value)`.
fn text_of(value: &Jinja) -> Result<String> {
    if let Some(number) = float(value) {
        return Ok(float_text(number));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => repr(value),
        _ => Ok(value.to_string()),
    }
}

/// Python's `repr(value)`, as in a list that is printed.
fn repr(value: &Jinja) -> Result<String> {
    if let Some(range) = value.downcast_object_ref::<PyRange>() {
        return Ok(range.to_string());
    }
    if let Some(text) = value.as_str() {
        return Ok(text::repr(text));
    }
    let mut items = Vec::new();
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                items.push(repr(&item)?);
            }
            Ok(format!("[{}]", items.join(", ")))
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                items.push(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            }
            Ok(format!("{{{}}}", items.join(", ")))
        }
        ValueKind::Undefined => Ok("Undefined".to_owned()),
        _ => text_of(value),
    }
}

/// `range(stop)`, `range(start, stop, step)`.
fn range(first: i64, second: Option<i64>, step: Option<i64>) -> Result<Jinja> {
    let (start, stop) = second.map_or((0, first), |stop| (first, stop));
    let range = PyRange { start, stop, step: step.unwrap_or(1) };
    match (range.step, range.count()) {
        (0, _) => Err(invalid("range() with a step of 0".to_owned())),
        (_, count) if count > LONGEST => Err(invalid(format!("range() of more than {LONGEST} numbers"))),
        _ => Ok(Jinja::from_object(range)),
    }
}

/// Python's `range`: a sequence that knows its bounds.
#[derive(Debug)]
struct PyRange {
    start: i64,
    stop: i64,
    step: i64,
}

impl PyRange {
    fn count(&self) -> i64 {
        let (span, step) = match self.step {
            0 => return 0,
            1.. => (i128::from(self.stop) - i128::from(self.start), i128::from(self.step)),
            _ => (i128::from(self.start) - i128::from(self.stop), -i128::from(self.step)),
        };
        // As many as there are steps that begin before the end.
        i64::try_from((span.max(0) + step - 1) / step).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for PyRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(out, "range({}, {})", self.start, self.stop),
            step => write!(out, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

impl Object for PyRange {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let index = key.as_i64().filter(|index| (0..self.count()).contains(index))?;
        Some(Jinja::from(self.start + index * self.step))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.count() as usize)
    }

    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// `value | join(d='', attribute=None)`: items as `{{ item }}` prints them.
fn join(value: &Jinja, joiner: Option<Jinja>, attribute: Option<String>, named: Kwargs) -> Result<String> {
    let joiner = joiner.map_or_else(|| named.get("d"), |joiner| Ok(Some(joiner)))?;
    let attribute = attribute.map_or_else(|| named.get("attribute"), |name| Ok(Some(name)))?;
    named.assert_all_used()?;
    let mut texts = Vec::new();
    for mut item in value.try_iter()? {
        for name in attribute.iter().flat_map(|attribute| attribute.split('.')) {
            item = match name.parse::<usize>() {
                Ok(index) => item.get_item(&Jinja::from(index))?,
                Err(_) => item.get_attr(name)?,
            };
        }
        texts.push(text_of(&item)?);
    }
    Ok(texts.join(&joiner.map_or(Ok(String::new()), |joiner| text_of(&joiner))?))
}

/// A number with a point.
fn float(value: &Jinja) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok())?
}

/// Python's `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn float_text(number: f64) -> String {
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text.to_lowercase();
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

/// What Python's `str.strip` and `str.split` take away.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Python's methods of values, with Python's white space and ends of lines.
fn method(state: &mut State, value: &Jinja, method: &str, arguments: &[Jinja]) -> Result<Jinja> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, arguments);
    };
    let trimmed = match (method, arguments) {
        ("strip", []) => text.trim_matches(is_space),
        ("lstrip", []) => text.trim_start_matches(is_space),
        ("rstrip", []) => text.trim_end_matches(is_space),
        ("isspace", []) => return Ok(Jinja::from(!text.is_empty() && text.chars().all(is_space))),
        ("isalnum" | "isalpha" | "isdecimal" | "isdigit" | "isnumeric", []) => {
            return text::is(method, text).map(Jinja::from).map_err(invalid);
        }
        ("title", []) => return text::titled(text).map(Jinja::from).map_err(invalid),
        ("capitalize", []) => return text::capitalized(text).map(Jinja::from).map_err(invalid),
        ("join", [items]) => {
            let mut texts = Vec::new();
            for item in items.try_iter()? {
                let kind = item.kind();
                let own = item.as_str().map(str::to_owned);
                texts.push(
                    own.ok_or_else(|| invalid(format!("str.join of a value that is no text, but {kind}")))?,
                );
            }
            return Ok(Jinja::from(texts.join(text)));
        }
        ("split", []) => return Ok(text.split(is_space).filter(|part| !part.is_empty()).collect()),
        ("splitlines", _) => {
            let (keep,): (Option<bool>,) = from_args(arguments)?;
            return Ok(lines(text, keep.unwrap_or(false)).collect());
        }
        _ => return pycompat::unknown_method_callback(state, value, method, arguments),
    };
    Ok(Jinja::from(trimmed))
}

/// Python's `str.splitlines`.
fn lines(text: &str, keep: bool) -> impl Iterator<Item = &str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut rest = text;
    std::iter::from_fn(move || {
        let at = rest.find(ends).unwrap_or(rest.len());
        let end = match rest[at..].chars().next() {
            Some('\r') if rest[at..].starts_with("\r\n") => at + 2,
            Some(c) => at + c.len_utf8(),
            None if rest.is_empty() => return None,
            None => at,
        };
        let line = &rest[..if keep { end } else { at }];
        rest = &rest[end..];
        Some(line)
    })
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`: Python's `json.dumps`, nothing escaped for HTML.
fn to_json(value: &Jinja, arguments: Rest<ValueOrKwargs>) -> Result<String> {
    let invalid = |cause: String| invalid(format!("tojson: {cause}"));
    let arguments = arguments.into_values();
    let (places, named): (&[Jinja], Kwargs) = from_args(&arguments)?;
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if places.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut given = names.iter().enumerate().map(|(place, name)| -> Result<Option<Jinja>> {
        let named: Option<Jinja> = named.get(name)?;
        Ok(places.get(place).cloned().or(named).filter(|value| !value.is_none() && !value.is_undefined()))
    });
    let mut next = || given.next().unwrap_or(Ok(None));
    let (ascii, indent, separators, sort) = (next()?, next()?, next()?, next()?);
    named.assert_all_used()?;
    if value.is_undefined() {
        return Err(invalid("an undefined value is not JSON".to_owned()));
    }
    let indent = match indent {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width @ ..=WIDEST)) => " ".repeat(width.max(0) as usize),
            (None, _) => return Err(invalid(format!("indent is {indent}"))),
        }),
    };
    let [item, key] = match separators {
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
        Some(pair) => {
            let texts: Vec<String> =
                pair.try_iter()?.filter_map(|text| text.as_str().map(str::to_owned)).collect();
            texts.try_into().map_err(|_| invalid(format!("separators are {pair}, not two texts")))?
        }
    };
    let is_true = |value: Option<Jinja>| value.is_some_and(|value| value.is_true());
    let format = Python { indent, item, key, ascii: is_true(ascii), depth: 0, holds: false };
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, format);
    let written = match is_true(sort) {
        true => serde_json::to_value(value).and_then(|mut value| {
            sort_keys(&mut value);
            value.serialize(&mut serializer)
        }),
        false => value.serialize(&mut serializer),
    };
    written.map_err(|error| invalid(error.to_string()))?;
    String::from_utf8(text).map_err(|error| invalid(error.to_string()))
}

fn sort_keys(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(sort_keys),
        Value::Object(entries) => {
            entries.sort_keys();
            entries.values_mut().for_each(sort_keys);
        }
        _ => {}
    }
}

/// JSON as Python's `json.dumps` lays it out.
struct Python {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    depth: usize,
    /// True if the innermost list or object holds something.
    holds: bool,
}

impl Python {
    fn line<W: Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn open<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.holds = false;
        writer.write_all(bracket)
    }

    fn close<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.holds {
            self.line(writer)?;
        }
        self.holds = true;
        writer.write_all(bracket)
    }
}

impl Formatter for Python {
    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.line(writer)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.holds = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.holds = true;
        Ok(())
    }

    fn write_f64<W: Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float_text(value).as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return writer.write_all(text.as_bytes());
        }
        text.chars().try_for_each(|c| match c {
            ' '..='~' => writer.write_all(&[c as u8]),
            _ => c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use minijinja::value::{Serde, Value};
    use minijinja::{Environment, context};
    use serde_json::json;

    /// Templates and their output with `jinja2` in the environment of transformers; `None` if it fails there
    /// too or is refused.
    const CASES: &[(&str, Option<&str>)] = &[
        ("{{ d | tojson(ensure_ascii=True) }}", Some(r#"{"b": 1, "a": ["\u00e9\ud83d\ude00\u007f"]}"#)),
        ("{{ d.a | tojson(ensure_ascii=False) }}", Some("[\"é😀\u{7f}\"]")),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':')) }}", Some(r#"{"b":1,"a":2}"#)),
        (
            "{{ [1, {'b': 1, 'a': 2}] | tojson(separators=[';', '='], sort_keys=True) }}",
            Some(r#"[1;{"a"=2;"b"=1}]"#),
        ),
        ("{{ {'b': [], 'a': {}} | tojson(False, 2, none, True) }}", Some("{\n  \"a\": {},\n  \"b\": []\n}")),
        ("{{ {'a': [1, 2]} | tojson(indent=0) }}", Some("{\n\"a\": [\n1,\n2\n]\n}")),
        ("{{ [1, 2] | tojson(indent=1, separators=(', ', ':')) }}", Some("[\n 1, \n 2\n]")),
        (
            "{{ [1e20, 1e-7, 1e16, 0.0001, 100.0, 1.5e-10] | tojson }}",
            Some("[1e+20, 1e-07, 1e+16, 0.0001, 100.0, 1.5e-10]"),
        ),
        (
            "{{ 1e20 }} {{ 1e-5 }} {{ 1e22 }} {{ 123456789.125 }} {{ 1e15 }} {{ 0.1 + 0.2 }}",
            Some("1e+20 1e-05 1e+22 123456789.125 1000000000000000.0 0.30000000000000004"),
        ),
        ("{{ 1e20 | string }}{{ 2.0 | string }}{{ [2.0, 'a'] | string }}", Some("1e+202.0[2.0, 'a']")),
        ("{{ [1.5, 1e-7, none, true, nothing] }}", Some("[1.5, 1e-07, None, True, Undefined]")),
        (
            "{{ ['it\\'s', '\"', '\\'\"', 'a\u{200b}é\\n\x07😀', '\u{301}'] }}{{ {'a\\\\': [2.0]} }}",
            Some("[\"it's\", '\"', '\\'\"', 'a\\u200bé\\n\\x07😀', '\u{301}']{'a\\\\': [2.0]}"),
        ),
        ("{{ '\\a\\v\\/\\U0001f600\\101\\q' }}", Some("\x07\x0b\\/😀A\\q")),
        ("{{ '\\N{DIGIT ONE}' }}", None),
        ("{{ '\\U00110000' }}", None),
        ("\\a{# '\\a #}{% raw %}{{ '\\a' }}{% endraw %}", Some("\\a{{ '\\a' }}")),
        (
            "{{ '½'.isdigit() }}{{ '²'.isdigit() }}{{ '٣4'.isdecimal() }}{{ '½'.isnumeric() }}{{ ''.isdigit() }}",
            Some("FalseTrueTrueTrueFalse"),
        ),
        (
            "{{ '中é'.isalpha() }}{{ 'Ⅷ'.isalpha() }}{{ 'का'.isalpha() }}{{ 'Ⅷ²a'.isalnum() }}{{ 'a b'.isalnum() }}",
            Some("TrueFalseFalseTrueFalse"),
        ),
        ("{{ '一'.isnumeric() }}", None),
        (
            "{{ range(3) is sequence }}{{ [1, 2][1:] is sequence }}{{ range(5, 1, -2) }}{{ range(3) | list }}{{ range(2, 9, 3)[-1] }}",
            Some("TrueTruerange(5, 1, -2)[0, 1, 2]8"),
        ),
        (
            "{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}{{ range(0) | length }}{{ range(7)[3] }}",
            Some("5303"),
        ),
        ("{{ range(100001) }}", None),
        (
            "{{ [1, 1e-7, none, 'a'] | join('-') }}{{ [{'a': [1, 2]}] | join(attribute='a.1') }}",
            Some("1-1e-07-None-a2"),
        ),
        ("{{ ', '.join(['a', 'b']) }}", Some("a, b")),
        ("{{ ','.join([1, 2]) }}", None),
        (
            "{{ 'ǆ ßa 中a ა'.title() }}{{ 'ǆÀ ΑΣ'.capitalize() }}{{ 'ǆ' | capitalize }}",
            Some("ǅ Ssa 中A აǅà αςǅ"),
        ),
        ("{{ 'ﬁ'.title() }}", None),
        ("{{ nothing | tojson }}", None),
        ("{{ 1 | tojson(indents=2) }}", None),
        ("{{ none | tojson }}{{ true | tojson }}{{ 'a\\n' | tojson }}", Some(r#"nulltrue"a\n""#)),
        (
            "[{{ '\x1c\u{3000} a\x1f'.strip() }}][{{ '\x1ca\x1f' | trim }}][{{ 'xxax' | trim('x') }}]",
            Some("[a][a][a]"),
        ),
        ("{{ 'a\x1cb c '.split() }}{{ '\x1d'.isspace() }}", Some("['a', 'b', 'c']True")),
        (
            "{{ 'a\x0bb\u{2028}c\\r\\nd\\n'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}",
            Some("['a', 'b', 'c', 'd']['a\\n', 'b']"),
        ),
        (
            "{{ 'a' is sequence }}{{ d is sequence }}{{ [] is sequence }}{{ 1 is sequence }}",
            Some("TrueTrueTrueFalse"),
        ),
        (
            "{{ none is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}{{ d is iterable }}",
            Some("FalseTrueFalseTrue"),
        ),
        ("{{ \"it's a héLLO\".title() }}{{ \"it's\" | title }}", Some("It'S A HélloIt's")),
        (
            "{% for x in [1, 2] %}{% generation %}{% set y = x %}{{ y }}{% endgeneration %}[{{ y }}]{% endfor %}",
            Some("1[]2[]"),
        ),
        (
            "{{ '{% generation %}' }}{# {% generation %} #}{% raw %}it's {% generation %}{% endraw %}",
            Some("{% generation %}it's {% generation %}"),
        ),
        ("a\r\n{% if true %}\r\nb\rc\r\n{% endif %}\r\nd\r\n", Some("a\nb\nc\nd")),
        ("{%- generation -%} {{ '%}' }} {%- endgeneration +%}\n{{ '{%' ~ \"a'}}\" }}", Some("%}\n{%a'}}")),
    ];

    #[test]
    fn prints_what_python_prints() {
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.unwrap());
        super::prepare(&mut environment);
        let d = Value::from(Serde(json!({"b": 1, "a": ["é😀\u{7f}"]})));
        for (source, expected) in CASES {
            let printed = super::source(source)
                .and_then(|source| environment.render_str(&source, context! { d => d.clone() }));
            match expected {
                Some(expected) => {
                    assert_eq!(printed.as_deref().ok(), Some(*expected), "{source}: {printed:?}")
                }
                None => assert!(printed.is_err(), "{source}: {printed:?}"),
            }
        }
    }
}
