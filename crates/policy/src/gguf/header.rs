//! The header of a GGUF file: its metadata, and where each tensor lies. Read with limits.
//!
//! Versions 2 and 3, little-endian. A file may come from anywhere, so every count, length and offset is checked against the
//! file before it is used, and texts and lists stay where they are in the mapped file. By hand, as in [`crate::header`]:
//! every refusal names the key or the tensor. Left out: the tensors' values ([`super::dequantize`]).

use std::collections::BTreeMap;

use record::failure::{Failure, Result};

use super::dequantize::Format;

/// The first bytes of a GGUF file.
pub(super) const MAGIC: &[u8] = b"GGUF";
/// Metadata keys, and tensors; real files have a few dozen and a few thousand.
const MOST_ENTRIES: u64 = 1 << 16;
/// The longest key of the format, and longer than any tensor's name, in bytes.
const LONGEST_NAME: usize = (1 << 16) - 1;
/// Longer than any chat template, in bytes.
const LONGEST_TEXT: usize = 16 << 20;
/// The format's limit.
const MOST_EXTENTS: u32 = 4;
/// Where tensors begin, unless `general.alignment` says otherwise, in bytes.
pub(super) const ALIGNMENT: usize = 32;
const LARGEST_ALIGNMENT: u64 = 1 << 16;

/// Hint for a file that ends too early.
const TRUNCATED: &str = "the file is truncated: copy or download it again";

/// A file's metadata and tensors by name.
#[derive(Debug)]
pub(super) struct Header<'a> {
    pub(super) metadata: BTreeMap<&'a str, Metadata<'a>>,
    pub(super) tensors: BTreeMap<&'a str, Stored<'a>>,
}

/// A metadata value. Numbers of all widths are one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Metadata<'a> {
    Integer(i128),
    Number(f64),
    Flag(bool),
    Text(&'a str),
    List(List<'a>),
}

/// A list in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct List<'a> {
    kind: Kind,
    count: usize,
    bytes: &'a [u8],
}

/// A tensor in the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored<'a> {
    pub(super) format: Format,
    /// Extents, outermost first (the file has them innermost first).
    pub(super) shape: Vec<usize>,
    pub(super) bytes: &'a [u8],
}

/// A tensor as the header describes it.
struct Described<'a> {
    name: &'a str,
    format: Format,
    shape: Vec<usize>,
    /// Bytes from the first tensor.
    offset: u64,
}

/// Type of a value, but for lists.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Unsigned(usize),
    Signed(usize),
    F32,
    F64,
    Flag,
    Text,
}

/// The number of a list's type.
pub(super) const LIST: u32 = 9;

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        Some(match number {
            0 => Kind::Unsigned(1),
            1 => Kind::Signed(1),
            2 => Kind::Unsigned(2),
            3 => Kind::Signed(2),
            4 => Kind::Unsigned(4),
            5 => Kind::Signed(4),
            6 => Kind::F32,
            7 => Kind::Flag,
            8 => Kind::Text,
            10 => Kind::Unsigned(8),
            11 => Kind::Signed(8),
            12 => Kind::F64,
            _ => return None,
        })
    }

    /// Bytes of one value; of a text at least.
    fn size(self) -> usize {
        match self {
            Kind::Unsigned(size) | Kind::Signed(size) => size,
            Kind::F32 => 4,
            Kind::F64 | Kind::Text => 8,
            Kind::Flag => 1,
        }
    }

    fn read<'a>(self, reader: &mut Reader<'a>) -> Result<Metadata<'a>> {
        if self == Kind::Text {
            return reader.text(LONGEST_TEXT).map(Metadata::Text);
        }
        let mut wide = [0; 8];
        let bytes = reader.take(self.size())?;
        wide[..bytes.len()].copy_from_slice(bytes);
        let number = u64::from_le_bytes(wide);
        Ok(match self {
            Kind::Signed(size) => {
                let unused = 64 - 8 * size as u32;
                Metadata::Integer(i128::from((number << unused) as i64 >> unused))
            }
            Kind::F32 => Metadata::Number(shortest(f32::from_bits(number as u32))),
            Kind::F64 => Metadata::Number(f64::from_bits(number)),
            Kind::Flag if number > 1 => return Err(Failure::data(format!("{number} is not true or false"))),
            Kind::Flag => Metadata::Flag(number == 1),
            Kind::Unsigned(_) | Kind::Text => Metadata::Integer(i128::from(number)),
        })
    }
}

/// Reads from a position on; never beyond the end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| {
            Failure::data(format!(
                "{count} bytes at byte {} of the header, but the file has {}",
                self.at,
                self.bytes.len()
            ))
            .hint(TRUNCATED)
        })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn text(&mut self, longest: usize) -> Result<&'a str> {
        let (at, length) = (self.at, self.u64()?);
        let length = usize::try_from(length).ok().filter(|&length| length <= longest);
        let length = length
            .ok_or_else(|| Failure::data(format!("the text at byte {at} is longer than {longest} bytes")))?;
        std::str::from_utf8(self.take(length)?)
            .map_err(|_| Failure::data(format!("the text at byte {at} is not UTF-8")))
    }

    /// A count of entries that take at least some bytes each.
    fn count(&mut self, what: &str) -> Result<usize> {
        match self.u64()? {
            count if count <= MOST_ENTRIES => Ok(count as usize),
            count => Err(Failure::data(format!("{count} {what}, more than {MOST_ENTRIES}"))),
        }
    }

    fn value(&mut self) -> Result<Metadata<'a>> {
        let number = self.u32()?;
        if number == LIST {
            return self.list().map(Metadata::List);
        }
        let kind = Kind::of(number).ok_or_else(|| Failure::data(format!("a value of type {number}")))?;
        kind.read(self)
    }

    fn list(&mut self) -> Result<List<'a>> {
        let (number, count) = (self.u32()?, self.u64()?);
        let kind = Kind::of(number).ok_or_else(|| match number {
            LIST => Failure::data("a list of lists, which no model's metadata has"),
            _ => Failure::data(format!("a list of type {number}")),
        })?;
        let length = count.checked_mul(kind.size() as u64).and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|&length| length <= self.bytes.len() - self.at).ok_or_else(|| {
            Failure::data(format!("a list of {count} values is longer than the file")).hint(TRUNCATED)
        })?;
        let start = self.at;
        if kind == Kind::Text {
            for _ in 0..count {
                self.text(LONGEST_TEXT)?;
            }
        } else {
            self.take(length)?;
        }
        Ok(List { kind, count: count as usize, bytes: &self.bytes[start..self.at] })
    }

    fn tensor(&mut self) -> Result<Described<'a>> {
        let name = self.text(LONGEST_NAME)?;
        let extents = self.u32()?;
        if !(1..=MOST_EXTENTS).contains(&extents) {
            return Err(Failure::data(format!("tensor {name:?} has {extents} extents, not 1 to 4")));
        }
        let mut shape = (0..extents).map(|_| self.u64()).collect::<Result<Vec<u64>>>()?;
        shape.reverse();
        let format = Format::of(self.u32()?, name)?;
        let offset = self.u64()?;
        // So that sizes in f32 are below 2^63, too.
        let count = shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
        if count.is_none_or(|count| count == 0 || count > 1 << 60) {
            return Err(Failure::data(format!("tensor {name:?} has the impossible shape {shape:?}")));
        }
        let shape = shape.into_iter().map(|extent| extent as usize).collect();
        Ok(Described { name, format, shape, offset })
    }
}

impl<'a> Header<'a> {
    /// Reads a file's header and finds its tensors.
    ///
    /// # Errors
    /// A breach of the format, with the name of the key or the tensor.
    pub(super) fn parse(file: &'a [u8]) -> Result<Header<'a>> {
        let mut reader = Reader { bytes: file, at: 0 };
        if file.get(..MAGIC.len()) != Some(MAGIC) {
            return Err(Failure::data("no GGUF file: it does not begin with \"GGUF\""));
        }
        reader.at = MAGIC.len();
        match reader.u32()? {
            2 | 3 => {}
            version if version.swap_bytes() < 256 => {
                return Err(Failure::data("a big-endian GGUF file, which is not read")
                    .hint("convert the model for a little-endian machine"));
            }
            version => {
                return Err(Failure::data(format!("version {version} of GGUF, which is not read"))
                    .hint("versions 2 and 3 are read: convert the model again with a newer llama.cpp"));
            }
        }
        let tensors = reader.count("tensors")?;
        let keys = reader.count("metadata keys")?;
        let mut metadata = BTreeMap::new();
        for _ in 0..keys {
            let key = reader.text(LONGEST_NAME)?;
            let value = reader.value().map_err(|failure| failure.at(format!("{key:?}")))?;
            if metadata.insert(key, value).is_some() {
                return Err(Failure::data(format!("{key:?} is there twice")));
            }
        }
        let mut header = Header { metadata, tensors: BTreeMap::new() };
        let order = (0..tensors).map(|_| reader.tensor()).collect::<Result<Vec<Described>>>()?;
        header.place(file, reader.at, order)?;
        Ok(header)
    }

    /// Finds the tensors: one after the other from the first aligned byte on, each padded, to the end of the file.
    fn place(&mut self, file: &'a [u8], end: usize, mut order: Vec<Described<'a>>) -> Result<()> {
        let alignment = match self.integer("general.alignment")? {
            None => ALIGNMENT,
            Some(number) if number.is_power_of_two() && number <= LARGEST_ALIGNMENT => number as usize,
            Some(number) => return Err(Failure::data(format!("general.alignment is {number}"))),
        };
        let start = end.next_multiple_of(alignment);
        let data = file.get(start..).unwrap_or_default();
        order.sort_by_key(|tensor| tensor.offset);
        let mut expected = 0;
        for Described { name, format, shape, offset } in order {
            let columns = shape.last().copied().unwrap_or_default();
            if columns % format.values() != 0 {
                let block = format.values();
                return Err(Failure::data(format!(
                    "tensor {name:?} has rows of {columns} values, which blocks of {block} do not fill"
                )));
            }
            if offset != expected as u64 {
                return Err(Failure::data(format!(
                    "tensor {name:?} starts at byte {offset} of the data, not at {expected} where the one before it ends"
                )));
            }
            let blocks = shape.iter().product::<usize>() / format.values();
            let stop = blocks.checked_mul(format.bytes()).and_then(|length| length.checked_add(expected));
            let bytes = stop.and_then(|stop| data.get(expected..stop)).ok_or_else(|| {
                let there = data.len();
                Failure::data(format!(
                    "tensor {name:?} of shape {shape:?} starts at byte {offset} of the data, which has {there}"
                ))
                .hint(TRUNCATED)
            })?;
            expected = (expected + bytes.len()).next_multiple_of(alignment);
            if self.tensors.insert(name, Stored { format, shape, bytes }).is_some() {
                return Err(Failure::data(format!("tensor {name:?} is there twice")));
            }
        }
        match data.len().checked_sub(expected) {
            Some(rest) if rest > 0 => {
                Err(Failure::data(format!("{rest} bytes after the last tensor belong to none")))
            }
            _ => Ok(()),
        }
    }

    fn wrong<T>(&self, key: &str, wanted: &str) -> Result<T> {
        let found = match self.metadata.get(key) {
            None => return Err(Failure::data(format!("{key} is missing"))),
            Some(Metadata::List(list)) => format!("a list of {} values", list.count),
            Some(Metadata::Text(text)) => format!("{:?}", text.chars().take(40).collect::<String>()),
            Some(Metadata::Integer(number)) => number.to_string(),
            Some(Metadata::Number(number)) => number.to_string(),
            Some(Metadata::Flag(flag)) => flag.to_string(),
        };
        Err(Failure::data(format!("{key} is {found}, not {wanted}")))
    }

    /// A tensor that must be there.
    pub(super) fn tensor(&self, name: &str) -> Result<&Stored<'a>> {
        self.tensors.get(name).ok_or_else(|| Failure::data(format!("tensor {name:?} is missing")))
    }

    /// A number from 0 on, if it is there.
    pub(super) fn integer(&self, key: &str) -> Result<Option<u64>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Metadata::Integer(number)) if u64::try_from(number).is_ok() => Ok(Some(number as u64)),
            Some(_) => self.wrong(key, "a whole number"),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Metadata::Number(number)) if number.is_finite() => Ok(Some(number)),
            Some(_) => self.wrong(key, "a number"),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Metadata::Flag(flag)) => Ok(Some(flag)),
            Some(_) => self.wrong(key, "true or false"),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Metadata::Text(text)) => Ok(Some(text)),
            Some(_) => self.wrong(key, "a text"),
        }
    }

    /// The values of a list of at most `most`; empty if there is none.
    fn list(&self, key: &str, most: usize, wanted: &str) -> Result<Vec<Metadata<'a>>> {
        let list = match self.metadata.get(key) {
            None => return Ok(Vec::new()),
            Some(Metadata::List(list)) if list.count <= most => *list,
            Some(Metadata::List(_)) => return self.wrong(key, &format!("at most {most} {wanted}")),
            Some(_) => return self.wrong(key, &format!("a list of {wanted}")),
        };
        let mut reader = Reader { bytes: list.bytes, at: 0 };
        (0..list.count).map(|_| list.kind.read(&mut reader)).collect()
    }

    pub(super) fn texts(&self, key: &str, most: usize) -> Result<Vec<&'a str>> {
        let list = self.list(key, most, "texts")?.into_iter();
        let text = |value| if let Metadata::Text(text) = value { Some(text) } else { None };
        list.map(text).collect::<Option<_>>().map_or_else(|| self.wrong(key, "a list of texts"), Ok)
    }

    pub(super) fn integers(&self, key: &str, most: usize) -> Result<Vec<i128>> {
        let list = self.list(key, most, "whole numbers")?.into_iter();
        let integer = |value| if let Metadata::Integer(number) = value { Some(number) } else { None };
        list.map(integer)
            .collect::<Option<_>>()
            .map_or_else(|| self.wrong(key, "a list of whole numbers"), Ok)
    }

    pub(super) fn numbers(&self, key: &str, most: usize) -> Result<Vec<f64>> {
        let list = self.list(key, most, "numbers")?.into_iter();
        let number = |value| match value {
            Metadata::Number(number) if number.is_finite() => Some(number),
            _ => None,
        };
        list.map(number).collect::<Option<_>>().map_or_else(|| self.wrong(key, "a list of numbers"), Ok)
    }
}

/// A number as its shortest decimal: 1e-5 stays 1e-5.
pub(super) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}
