//! Jinja as Python's `jinja2` renders it, where minijinja differs: newlines, numbers, white space, `tojson`, `generation` blocks.
//!
//! What minijinja lacks is an error of the template, which names it. What it only does otherwise would be another prompt, in silence;
//! that is done here as Python does it, or refused.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Rest, Value as Jinja, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter};
use minijinja_contrib::pycompat;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// The widest indent of `tojson`, in spaces.
const WIDEST: i64 = 100;

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
    environment.add_test("iterable", |value: &Jinja| {
        !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
    });
    // Python asks for a length and for items, which texts and dictionaries have, too.
    environment.add_test("sequence", |value: &Jinja| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
}

/// A template's source as the lexer of `jinja2` reads it. The `generation` blocks of `transformers`, which
/// only affect its loss masks, become scoped blocks.
pub(crate) fn source(text: &str) -> String {
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
        match word.as_str() {
            "generation" if is_block && !raw => result.push_str(&tag.replace("generation", "with")),
            "endgeneration" if is_block && !raw => result.push_str(&tag.replace("endgeneration", "endwith")),
            _ => result.push_str(tag),
        }
        match word.as_str() {
            "raw" if is_block => raw = true,
            "endraw" if is_block => raw = false,
            _ => {}
        }
        rest = after;
    }
    result + rest
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
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => Ok(output.write_str(&text_of(value)?)?),
        _ => escape_formatter(output, state, value),
    }
}

/// Python's `str(value)`.
fn text_of(value: &Jinja) -> Result<String> {
    if let Some(number) = float(value) {
        return Ok(float_text(number));
    }
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        refuse_exponents(value)?;
    }
    Ok(value.to_string())
}

/// Numbers in lists are printed by minijinja, with other exponents than Python's.
fn refuse_exponents(value: &Jinja) -> Result<()> {
    if let Some(number) = float(value).filter(|number| float_text(*number).contains(['e', 'n'])) {
        let cause =
            format!("the number {number:e} in a list or a dictionary is not printed as Python prints it");
        return Err(Error::new(ErrorKind::InvalidOperation, cause));
    }
    let items = match value.kind() {
        ValueKind::Seq | ValueKind::Map => value.try_iter()?,
        _ => return Ok(()),
    };
    for item in items {
        match value.kind() {
            ValueKind::Map => refuse_exponents(&value.get_item(&item)?)?,
            _ => refuse_exponents(&item)?,
        }
    }
    Ok(())
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
        ("title", []) => return Ok(Jinja::from(title(text))),
        ("split", []) => return Ok(text.split(is_space).filter(|part| !part.is_empty()).collect()),
        ("splitlines", _) => {
            let (keep,): (Option<bool>,) = from_args(arguments)?;
            return Ok(lines(text, keep.unwrap_or(false)).collect());
        }
        _ => return pycompat::unknown_method_callback(state, value, method, arguments),
    };
    Ok(Jinja::from(trimmed))
}

/// Python's `str.title`: upper case after whatever is no letter, an apostrophe too.
fn title(text: &str) -> String {
    let (mut result, mut within) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        match within {
            true => result.extend(c.to_lowercase()),
            false => result.extend(c.to_uppercase()),
        }
        within = c.is_alphabetic();
    }
    result
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
    let invalid = |cause: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {cause}"));
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
        ("{{ [1.5, 1e-7] }}", None),
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
            let printed = environment.render_str(&super::source(source), context! { d => d.clone() });
            match expected {
                Some(expected) => {
                    assert_eq!(printed.as_deref().ok(), Some(*expected), "{source}: {printed:?}")
                }
                None => assert!(printed.is_err(), "{source}: {printed:?}"),
            }
        }
    }
}
