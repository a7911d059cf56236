//! The filter `tojson` with the layout of Python's `json.dumps`.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Rest, Value as Jinja, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use super::print::float_text;
use super::{Result, invalid};

/// The widest indent of `tojson`, in spaces.
const WIDEST: i64 = 100;
/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`: Python's `json.dumps`, nothing escaped for HTML.
pub(super) fn to_json(value: &Jinja, arguments: Rest<ValueOrKwargs>) -> Result<String> {
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
