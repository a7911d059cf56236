//! Compares a program's output with the expected one.
//!
//! Printed output is compared word by word, whatever white space separates them. Returned values are compared as JSON.
//! Numbers with a point or an exponent are the same when they differ by at most 1e-6, or by one part in a million
//! (Stronger-MAS, arXiv 2510.11062, appendix A.1); whole numbers are the same when they are equal. Left out: problems
//! with several right answers, which need a checker of their own.

use serde_json::Value;

use super::spec::Style;

const TOLERANCE: f64 = 1e-6;

/// Whether `got` is the output `expected` of a problem of this style.
pub fn same(style: Style, expected: &str, got: &str) -> bool {
    let value = |text: &str| serde_json::from_str(text).ok();
    match style {
        Style::Stdin => same_text(expected, got),
        Style::Function => {
            value(expected).zip(value(got)).is_some_and(|(expected, got)| same_value(&expected, &got))
        }
    }
}

/// Whether `got` is the output `expected`, both printed.
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

fn same_word(expected: &str, got: &str) -> bool {
    if expected == got {
        return true;
    }
    let broken =
        |word: &str| word.contains(['.', 'e', 'E']) && word.contains(|sign: char| sign.is_ascii_digit());
    if !broken(expected) && !broken(got) {
        return false;
    }
    matches!((expected.parse(), got.parse()), (Ok(expected), Ok(got)) if near(expected, got))
}

/// Whether `got` is the value `expected`.
fn same_value(expected: &Value, got: &Value) -> bool {
    match (expected, got) {
        (Value::Number(one), Value::Number(two)) => {
            if one.is_f64() || two.is_f64() {
                matches!((one.as_f64(), two.as_f64()), (Some(one), Some(two)) if near(one, two))
            } else {
                one == two
            }
        }
        (Value::Array(one), Value::Array(two)) => {
            one.len() == two.len() && one.iter().zip(two).all(|(one, two)| same_value(one, two))
        }
        (Value::Object(one), Value::Object(two)) => {
            one.len() == two.len()
                && one.iter().all(|(key, one)| two.get(key).is_some_and(|two| same_value(one, two)))
        }
        _ => expected == got,
    }
}

/// Infinities and what is no number are near nothing.
fn near(expected: f64, got: f64) -> bool {
    let difference = (expected - got).abs();
    difference <= TOLERANCE * expected.abs().max(1.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn printed_outputs() {
        for (expected, got, same) in [
            ("1 2\n3\n", "1 2 3", true),
            ("", "\n", true),
            ("0.5", "0.5000000001", true),
            ("1000000.0", "1000000.5", true),
            ("100000.0", "100000.5", false),
            ("5", "5.0", true),
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
        assert!(same_value(&json!([1, [2.0], {"a": null}]), &json!([1, [2.0000001], {"a": null}])));
        assert!(same_value(&json!(2), &json!(2.0)));
        for (expected, got) in [
            (json!(1), json!(true)),
            (json!([1]), json!([1, 1])),
            (json!("1"), json!(1)),
            (json!({"a": 1}), json!({})),
        ] {
            assert!(!same_value(&expected, &got), "{expected} {got}");
        }
    }
}
