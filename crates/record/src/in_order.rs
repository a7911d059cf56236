//! Reads samples whose keys are in field order and that have no white space, which is how the stages write
//! them.
//!
//! Every stage parses every sample, and with a small model that is a large part of a step. serde_json takes
//! keys in any order and explains errors. This parser takes half the instructions for the same values and
//! gives up without a reason; serde_json then parses the line. Left out: keys that are not fields, and the
//! rules of `check.rs`.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::Value;

use crate::text::Text;

/// Decimal digits that any u64 has room for.
const DIGITS: usize = 19;

/// The rest of a line.
pub(crate) struct Cursor<'a>(pub(crate) &'a str);

/// A value of a field.
pub(crate) trait Parse<'a>: Sized {
    /// Parses a value; `None` leaves the line to serde_json.
    fn parse(cursor: &mut Cursor<'a>) -> Option<Self>;

    /// Parses the value of a field, where null means absent.
    fn parse_field(cursor: &mut Cursor<'a>) -> Option<Option<Self>> {
        if cursor.accept("null") { Some(None) } else { Self::parse(cursor).map(Some) }
    }
}

impl<'a> Cursor<'a> {
    /// Takes `text` if it is next.
    #[inline(always)] // a comparison with a constant is a few instructions
    pub(crate) fn accept(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    #[inline(always)]
    pub(crate) fn expect(&mut self, text: &str) -> Option<()> {
        self.accept(text).then_some(())
    }

    /// Consumes one ASCII byte.
    #[inline(always)]
    fn accept_byte(&mut self, byte: u8) -> bool {
        let is_next = self.0.as_bytes().first() == Some(&byte);
        if is_next {
            self.0 = &self.0[1..];
        }
        is_next
    }

    /// Takes `text` and the value after it.
    pub(crate) fn parse_after<T: Parse<'a>>(&mut self, text: &str) -> Option<T> {
        self.expect(text)?;
        T::parse(self)
    }

    /// Takes a field after `text`, if it is there; null means absent.
    pub(crate) fn parse_optional<T: Parse<'a>>(&mut self, text: &str) -> Option<Option<T>> {
        if self.accept(text) { T::parse_field(self) } else { Some(None) }
    }

    fn split(&mut self, length: usize) -> Option<&'a str> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes items and commas up to `close`; the opening bracket was taken before.
    fn items(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if self.accept_byte(close) {
            return Some(());
        }
        loop {
            item(self)?;
            if self.accept_byte(close) {
                return Some(());
            }
            if !self.accept_byte(b',') {
                return None;
            }
        }
    }

    /// Digits alone. A fraction or an exponent after them is no comma and no bracket, so the line is serde_json's.
    fn integer(&mut self) -> Option<u64> {
        let digits = self.0.bytes().map(|byte| byte.wrapping_sub(b'0')).take_while(|&digit| digit < 10);
        let (length, value) = digits.fold((0, 0_u64), |(length, value), digit| {
            (length + 1, value.wrapping_mul(10).wrapping_add(u64::from(digit)))
        });
        let leading_zero = length > 1 && self.0.starts_with('0');
        self.split(length).filter(|_| (1..=DIGITS).contains(&length) && !leading_zero).map(|_| value)
    }

    /// Rounded once to the type that is asked for, as serde_json does.
    fn float<T: FromStr + Copy + Into<f64>>(&mut self) -> Option<T> {
        let length = number(self.0.as_bytes())?;
        self.split(length)?.parse().ok().filter(|&number: &T| number.into().is_finite())
    }
}

/// The length of the number of JSON that comes next.
fn number(bytes: &[u8]) -> Option<usize> {
    let digits = |from: usize| {
        let more = bytes.get(from..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
        (more > 0).then_some(from + more)
    };
    let is = |at: usize, any: &[u8]| bytes.get(at).is_some_and(|byte| any.contains(byte));
    let begin = usize::from(is(0, b"-"));
    let mut end = digits(begin)?;
    if is(begin, b"0") && end > begin + 1 {
        return None;
    }
    if is(end, b".") {
        end = digits(end + 1)?;
    }
    if is(end, b"eE") {
        end = digits(end + 1 + usize::from(is(end + 1, b"+-")))?;
    }
    Some(end)
}

/// How many bytes come before a quote, a backslash or a control character.
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    let mut count = 0;
    // Eight bytes a word: a byte's high bit says that it is 0, or below a space; exact up to the first such byte.
    while let Some(&eight) = bytes.get(count..).and_then(<[u8]>::first_chunk) {
        let eight = u64::from_le_bytes(eight);
        let zeros = |bytes: u64| bytes.wrapping_sub(ONES) & !bytes;
        let [quotes, backslashes] = [b'"', b'\\'].map(|end| zeros(eight ^ (ONES * u64::from(end))));
        let controls = eight.wrapping_sub(ONES * u64::from(b' ')) & !eight;
        let ends = (quotes | backslashes | controls) & (ONES << 7);
        if ends > 0 {
            return count + ends.trailing_zeros() as usize / 8;
        }
        count += 8;
    }
    let ends = |&byte: &u8| byte == b'"' || byte == b'\\' || byte < b' ';
    bytes[count..].iter().position(ends).map_or(bytes.len(), |more| count + more)
}

impl<'a> Parse<'a> for Text<'a> {
    fn parse(cursor: &mut Cursor<'a>) -> Option<Self> {
        let quoted = cursor.0;
        cursor.expect("\"")?;
        let text = cursor.split(plain(cursor.0.as_bytes()))?;
        if cursor.accept("\"") {
            return Some(text.into());
        }
        let mut length = text.len();
        while quoted.as_bytes().get(1 + length) == Some(&b'\\') {
            length += 2;
            length += plain(quoted.as_bytes().get(1 + length..)?);
        }
        cursor.0 = quoted;
        let text: String = serde_json::from_str(cursor.split(length + 2)?).ok()?;
        Some(text.into())
    }
}

impl Parse<'_> for u64 {
    fn parse(cursor: &mut Cursor) -> Option<Self> {
        cursor.integer()
    }
}

impl Parse<'_> for u32 {
    fn parse(cursor: &mut Cursor) -> Option<Self> {
        cursor.integer()?.try_into().ok()
    }
}

impl Parse<'_> for f32 {
    fn parse(cursor: &mut Cursor) -> Option<Self> {
        cursor.float()
    }
}

impl Parse<'_> for f64 {
    fn parse(cursor: &mut Cursor) -> Option<Self> {
        cursor.float()
    }
}

impl Parse<'_> for bool {
    fn parse(cursor: &mut Cursor) -> Option<Self> {
        if cursor.accept("true") { Some(true) } else { cursor.expect("false").map(|()| false) }
    }
}

impl Parse<'_> for Option<f64> {
    fn parse(cursor: &mut Cursor) -> Option<Self> {
        f64::parse_field(cursor)
    }

    /// A null says something here: that nothing was scored.
    fn parse_field(cursor: &mut Cursor) -> Option<Option<Self>> {
        <Self as Parse>::parse(cursor).map(Some)
    }
}

impl<'a, T: Parse<'a>> Parse<'a> for Vec<T> {
    fn parse(cursor: &mut Cursor<'a>) -> Option<Self> {
        let mut items = Vec::with_capacity(8);
        cursor.expect("[")?;
        cursor.items(b']', |cursor| T::parse(cursor).map(|item| items.push(item)))?;
        Some(items)
    }
}

impl<'a> Parse<'a> for BTreeMap<Text<'a>, f64> {
    fn parse(cursor: &mut Cursor<'a>) -> Option<Self> {
        let mut entries = BTreeMap::new();
        cursor.expect("{")?;
        cursor.items(b'}', |cursor| {
            let key = Text::parse(cursor)?;
            let value = cursor.parse_after(":")?;
            entries.insert(key, value);
            Some(())
        })?;
        Some(entries)
    }
}

impl Parse<'_> for Value {
    /// Any JSON: left to serde_json.
    fn parse(_cursor: &mut Cursor) -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sample, Sampling, SamplingMode};
    use serde::Deserialize;
    use std::fmt::Debug;

    /// Returns true if `text` is taken to its end, and then as serde_json takes it.
    fn is_taken<'a, T: Parse<'a> + Deserialize<'a> + PartialEq + Debug>(text: &'a str) -> bool {
        let mut cursor = Cursor(text);
        let taken = T::parse(&mut cursor).filter(|_| cursor.0.is_empty());
        if let Some(value) = &taken {
            assert_eq!(serde_json::from_str::<T>(text).ok().as_ref(), Some(value), "{text}");
        }
        taken.is_some()
    }

    #[test]
    fn numbers_are_those_of_serde_json() {
        for number in [
            "0",
            "-0",
            "7",
            "4294967295",
            "9007199254740993",
            "18446744073709551615",
            "1e5",
            "-1.5E-3",
            "0.1",
            "1.17549435e-38",
            "0.333333333333333333333",
            "123456789012345678901234567890",
            "16777217.5",
            "2e-46",
        ] {
            assert!(is_taken::<f64>(number) && is_taken::<f32>(number), "{number}");
        }
        assert!(is_taken::<u64>("9007199254740993") && is_taken::<u32>("4294967295") && is_taken::<u32>("0"));
        for wrong in
            ["", "-", "01", "-00", "1.", ".5", "1e", "1e+", "+1", "1e999", "NaN", "inf", "1 ", "0x1", "--1"]
        {
            assert!(!is_taken::<f64>(wrong) && !is_taken::<f32>(wrong) && !is_taken::<u64>(wrong), "{wrong}");
        }
        for wrong in ["4294967296", "1.0", "-1", "1e0"] {
            assert!(!is_taken::<u32>(wrong), "{wrong}");
        }
        assert!(!is_taken::<f32>("1e39"), "infinite as f32");
    }

    #[test]
    fn texts_are_those_of_serde_json() {
        for length in 0..20 {
            for end in ["", "é", "\\n", "\\u00e9\\\\", "\\\"x", "\\n\\n"] {
                assert!(is_taken::<Text>(&format!("\"{}{end}\"", "x".repeat(length))), "{length} {end}");
            }
            for wrong in ["\n", "\\", "\\x", "\\ud800", "\"", "\0", "\\nx\n"] {
                assert!(!is_taken::<Text>(&format!("\"{}{wrong}\"", "x".repeat(length))), "{wrong:?}");
            }
        }
        for wrong in ["", "\"", "\"x", "x", "\"\\", "\"\\\""] {
            assert!(!is_taken::<Text>(wrong), "{wrong}");
        }
    }

    #[test]
    fn every_field_is_taken() {
        for line in include_str!("../tests/golden/samples.jsonl").lines() {
            let is_sample = line.starts_with("{\"type\":\"sample\"");
            assert_eq!(Sample::in_order(line).is_some(), is_sample, "{line}");
        }
        let text = "{\"type\":\"sample\",\"v\":1,\"node\":\"3.0\",\"sampling_mode\":\"tree\",\"reward\":null,\"baseline\":0.5}";
        let sample = Sample::in_order(text).expect("the fields that the golden stream lacks");
        assert_eq!(
            (sample.node.as_deref(), sample.reward, sample.baseline),
            (Some("3.0"), Some(None), Some(0.5))
        );
    }

    #[test]
    fn sampling_is_that_of_serde_json() {
        let start = "{\"temperature\":0.7,\"top_p\":1.0,\"top_k\":0,\"greedy\":false,\"seed\":7";
        for more in
            ["", ",\"min_p\":0.05", ",\"stop\":[\"</a>\",\"\\n\"],\"max_tokens\":64", ",\"min_p\":null"]
        {
            assert!(is_taken::<Sampling>(&format!("{start}{more}}}")), "{more}");
        }
        for left in [",\"max_tokens\":64,\"stop\":[]", ",\"min_p\":", ",\"stop\":\"x\""] {
            assert!(!is_taken::<Sampling>(&format!("{start}{left}}}")), "{left}");
        }
    }

    #[test]
    fn what_is_inside_brackets_is_that_of_serde_json() {
        assert!(is_taken::<Vec<u32>>("[]") && is_taken::<Vec<bool>>("[true,false]"));
        for wrong in ["", "[", "[1", "[1,", "[1,]", "[,1]", "[1 ]", "[1}", "[1]]", "[1,2", "[1 2]"] {
            assert!(!is_taken::<Vec<u32>>(wrong), "{wrong}");
        }
        assert!(is_taken::<BTreeMap<Text, f64>>("{\"a\":1,\"a\":2,\"\\u0062\":-3.5}"));
        for wrong in ["{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{1:2}", "{\"a\":1]", "{,}"] {
            assert!(!is_taken::<BTreeMap<Text, f64>>(wrong), "{wrong}");
        }
        assert!(is_taken::<Option<f64>>("null") && !is_taken::<Option<f64>>("nul"));
        assert!(is_taken::<SamplingMode>("\"parallel\"") && !is_taken::<SamplingMode>("\"other\""));
    }
}
