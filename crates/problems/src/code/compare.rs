//! Compares a program's output with the expected one.
//!
//! Printed output is compared word by word, ignoring white space. Returned values are compared as JSON, with
//! numbers as written. An expected integer must be met exactly, in any notation: 1e3 is 1000, but 1e9 is not
//! 1000000007. An expected fraction must be met within 1e-6, or one part in a million (Stronger-MAS, arXiv
//! 2510.11062, appendix A.1). An integer written with a point (`2.0`) is the result of a float computation:
//! it must be met within 1e-9, or one part in 1e9, but never more than 1e-6.
//!
//! Left out: problems with several right answers, which need a special checker, but for lists in any order.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::spec::Style;

/// Returns true if `got` is the output `expected` of a problem of this style.
pub fn same(style: Style, expected: &str, got: &str) -> bool {
    match style {
        Style::Stdin => same_text(expected, got),
        Style::Function => same_value(expected, got),
    }
}

/// Returns true if `got` is the output `expected`, both printed.
fn same_text(expected: &str, got: &str) -> bool {
    let (mut expected, mut got) = (expected.split_whitespace(), got.split_whitespace());
    loop {
        match (expected.next(), got.next()) {
            (None, None) => return true,
            (Some(expected), Some(got)) if same_word(expected, got) => {}
            _ => return false,
        }
    }
}

/// Two integers without point and exponent may be names: `007` is not `7`.
fn same_word(expected: &str, got: &str) -> bool {
    let plain = |word: &str| !word.contains(['.', 'e', 'E']);
    expected == got || !(plain(expected) && plain(got)) && same_number(expected, got)
}

/// Returns true if `got` is the value `expected`, both JSON.
fn same_value(expected: &str, got: &str) -> bool {
    // The comparison needs numbers as written.
    is_json(expected) && is_json(got) && same_json(expected.trim(), got.trim())
}

/// Returns true if the lists `expected` and `got`, both JSON, have the same members in any order.
pub fn same_members(expected: &str, got: &str) -> bool {
    let list = |text: &str| serde_json::from_str::<Vec<Box<RawValue>>>(text).ok();
    let (Some(expected), Some(mut got)) = (list(expected), list(got)) else { return false };
    let mut take = |wanted: &RawValue| {
        let at = got.iter().position(|one| same_value(wanted.get(), one.get()));
        at.map(|at| got.swap_remove(at)).is_some()
    };
    expected.iter().all(|wanted| take(wanted)) && got.is_empty()
}

/// Returns true if `text` is a JSON value of bounded depth, with integers of any length.
pub fn is_json(text: &str) -> bool {
    // The parser limits depth, and also the range of numbers, so digits are shortened for it.
    let mut short = String::with_capacity(text.len());
    let mut digits = 0;
    for sign in text.chars() {
        digits = if sign.is_ascii_digit() { digits + 1 } else { 0 };
        if digits < 300 {
            short.push(sign);
        }
    }
    serde_json::from_str::<Value>(&short).is_ok()
}

fn same_json(expected: &str, got: &str) -> bool {
    fn list(text: &str) -> Option<Vec<&RawValue>> {
        serde_json::from_str(text).ok()
    }
    fn object(text: &str) -> Option<BTreeMap<String, &RawValue>> {
        serde_json::from_str(text).ok()
    }
    let same = |(expected, got): (&&RawValue, &&RawValue)| same_json(expected.get(), got.get());
    let value = |text| serde_json::from_str::<Value>(text).ok();
    if let (Some(expected), Some(got)) = (list(expected), list(got)) {
        return expected.len() == got.len() && expected.iter().zip(&got).all(same);
    }
    if let (Some(expected), Some(got)) = (object(expected), object(got)) {
        return expected.keys().eq(got.keys()) && expected.values().zip(got.values()).all(same);
    }
    match (Decimal::read(expected), Decimal::read(got)) {
        (Some(_), Some(_)) => same_number(expected, got),
        (None, None) => value(expected) == value(got),
        _ => false,
    }
}

fn same_number(expected: &str, got: &str) -> bool {
    let (Some(exact), Some(other)) = (Decimal::read(expected), Decimal::read(got)) else { return false };
    if exact == other {
        return true;
    }
    let (least, most) = match (exact.exponent >= 0, expected.contains('.')) {
        (true, false) => return false,
        (true, true) => (1e-9, 1e-6),
        (false, _) => (1e-6, f64::INFINITY),
    };
    let (Ok(expected), Ok(got)) = (expected.parse::<f64>(), got.parse::<f64>()) else { return false };
    // Beyond 53 bits, f64 cannot distinguish integers.
    let told = most.is_infinite() || expected.abs() < 9e15;
    told && (expected - got).abs() <= (least * expected.abs().max(1.0)).min(most)
}

/// A number as significant digits and a power of ten, so that equal numbers are equal in every notation.
#[derive(PartialEq, Eq)]
struct Decimal {
    negative: bool,
    /// Without leading and trailing zeros.
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn read(word: &str) -> Option<Decimal> {
        let (mantissa, exponent) = word.split_once(['e', 'E']).unwrap_or((word, "0"));
        let negative = mantissa.starts_with('-');
        let mantissa = mantissa.strip_prefix(['-', '+']).unwrap_or(mantissa);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let exponent = exponent.parse::<i64>().ok()?.checked_sub(fraction.len() as i64)?;
        let significant = digits.trim_end_matches('0');
        if significant.trim_start_matches('0').is_empty() {
            return Some(Decimal { negative: false, digits: String::new(), exponent: 0 });
        }
        let exponent = exponent.checked_add((digits.len() - significant.len()) as i64)?;
        Some(Decimal { negative, digits: significant.trim_start_matches('0').to_owned(), exponent })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn printed_outputs() {
        for (expected, got, same) in [
            ("1 2\n3\n", "1 2 3", true),
            ("", "\n", true),
            ("0.5", "0.5000000001", true),
            ("1000000.1", "1000000.6", true),
            ("100000.1", "100000.6", false),
            ("1000000.0", "1000000.5", false),
            ("2.0", "1.9999999999999998", true),
            ("5", "5.0", true),
            ("5", "5.0000000001", false),
            ("1000", "1e3", true),
            ("1000000007", "1e9", false),
            ("7919", "7919.0004", false),
            ("7919.0", "7919.0004", false),
            ("123456789012345678", "1.23456789e17", false),
            ("123456789012345678", "1.23456789012345678e17", true),
            ("123456789012345678.0", "123456789012345680.0", false),
            ("8999999999999999.0", "8999999999999999.0000001", true),
            ("9000000000000000.0", "9000000000000000.0000001", false),
            ("0", "-0.0", true),
            ("0", "1e-400", false),
            ("1", "1e-99999999999999999999", false),
            ("1e5", "100000", true),
            ("007", "7", false),
            ("3", "٣", false),
            ("0.5", "5e-1", true),
            ("0.5", "nan", false),
            ("5", "6", false),
            ("123456789012345678", "123456789012345679", false),
            ("yes", "YES", false),
            ("1 2", "1", false),
            ("1", "1 2", false),
            ("nan", "nan.", false),
            ("inf", "1e999", false),
        ] {
            assert_eq!(same_text(expected, got), same, "{expected:?} {got:?}");
        }
    }

    #[test]
    fn returned_values() {
        for (expected, got, same) in [
            ("[1, [2.0], {\"a\": null}]", "[1,[2.0000000001],{\"a\":null}]", true),
            ("2", "2.0", true),
            ("1", "true", false),
            ("[1]", "[1, 1]", false),
            ("\"1\"", "1", false),
            ("{\"a\": 1}", "{}", false),
            ("{\"a\": 1}", "{\"b\": 1}", false),
            ("{\"b\": 1, \"a\": 2}", "{\"a\": 2, \"b\": 1}", true),
            ("\"1.0\"", "\"1\"", false),
            ("123456789012345678", "1.2345678901234568e+17", false),
            ("[[1000000007]]", "[[1e9]]", false),
            ("{\"x\": 7919}", "{\"x\": 7919.0004}", false),
            // More digits than fit in 64 bits.
            ("100000000000000000000000007", "100000000000000000000000008", false),
            ("0.5", "0.50000001", true),
            ("{\"x\": 0.5}", "{\"x\": 0.50000001}", true),
            ("[]", "{}", false),
            ("null", "[]", false),
            ("1", "NaN", false),
            ("1", "", false),
        ] {
            assert_eq!(same_value(expected, got), same, "{expected} {got}");
        }
        let deep = |depth| "[".repeat(depth) + &"]".repeat(depth);
        assert!(same_value(&deep(100), &deep(100)) && !same_value(&deep(100_000), &deep(100_000)));
    }

    /// The integer that is written with an exponent; `None` if it is not an integer.
    fn exact(text: &str) -> Option<i128> {
        let (mantissa, exponent) = text.split_once('e').unwrap();
        let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len()) as i32;
        let digits: i128 = mantissa.replace('.', "").parse().unwrap();
        let places = exponent.parse::<i32>().unwrap() - decimals;
        let power = 10_i128.pow(places.unsigned_abs());
        if places >= 0 { Some(digits * power) } else { (digits % power == 0).then(|| digits / power) }
    }

    /// The nearest float is a different number, which the shortest digits would hide.
    #[test]
    fn digits_count_and_not_the_float_they_are_read_as() {
        let (right, text) = (126_006_843_657_887_620_i64, "1.2600684365788762e17");
        assert_eq!(format!("{:e}", right as f64), text);
        assert!(same_text(&right.to_string(), text) && !same_text(&(right - 4).to_string(), text));
    }

    proptest! {
        /// In any notation, a different integer is never accepted.
        #[test]
        fn a_wrong_whole_number_never_passes(right: i64, other: i64, near in -9_i64..=9, notation in 0..7_usize) {
            for wrong in [other, right.wrapping_add(near)] {
                let text = |notation| match notation {
                    0 => wrong.to_string(),
                    1 => format!("{wrong}.0"),
                    2 => format!("{wrong}e0"),
                    3 => format!("{:e}", wrong as f64),
                    4 => format!("{wrong}0E-1"),
                    5 => format!("{:.6e}", wrong as f64),
                    _ => format!("{wrong}.000"),
                };
                let rounded = matches!(notation, 3 | 5);
                let (got, right_text) = (text(notation), right.to_string());
                for (expected, got) in [(right_text.clone(), got.clone()), (format!("[{right}]"), format!("[{got}]"))] {
                    let passes = if expected.starts_with('[') { same_value(&expected, &got) } else { same_text(&expected, &got) };
                    if wrong != right && !rounded {
                        prop_assert!(!passes, "{} {}", expected, got);
                    } else if !rounded {
                        prop_assert!(passes, "{} {}", expected, got);
                    } else {
                        // A rounded notation passes if it spells the number's digits, even if a float could
                        // not hold them.
                        prop_assert_eq!(passes, exact(got.trim_matches(['[', ']'])) == Some(i128::from(right)), "{} {}", expected, got);
                    }
                }
            }
        }

        #[test]
        fn hostile_output_is_no_panic(expected in "[-+0-9.eE\\[\\]{},\" ]{0,24}", got in "[-+0-9.eE\\[\\]{},\" ]{0,24}") {
            let _ = (same_text(&expected, &got), same_value(&expected, &got));
            prop_assert!(same_text(&expected, &expected));
        }
    }
}
