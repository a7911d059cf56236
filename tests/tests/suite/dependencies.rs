//! `.cargo/deny.toml` holds without a network and without cargo-deny: linked crates come from crates.io alone, under
//! a license that the file allows.
//!
//! Left out: known vulnerabilities, for which `.ci/run` calls cargo-deny and cargo-audit if they are
//! installed.

use std::process::Command;

use serde_json::Value;
use troupe_tests::root;

/// The licenses that `.cargo/deny.toml` allows.
fn allowed(text: &str) -> Vec<&str> {
    let list = text.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).expect("a list");
    list.split('"').skip(1).step_by(2).collect()
}

/// Returns true if an SPDX expression can be met with the `allowed` licenses. `/` is the old spelling of OR.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words, allowed)
}

type Words<'a, I> = std::iter::Peekable<I>;

fn any<'a, I: Iterator<Item = &'a str>>(words: &mut Words<'a, I>, allowed: &[&str]) -> bool {
    let mut met = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed);
    }
    met
}

fn all<'a, I: Iterator<Item = &'a str>>(words: &mut Words<'a, I>, allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one<'a, I: Iterator<Item = &'a str>>(words: &mut Words<'a, I>, allowed: &[&str]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any(words, allowed);
        assert_eq!(words.next(), Some(")"), "an expression without its parenthesis");
        return met;
    }
    let license = words.next().expect("a license");
    // An exception only permits more.
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    allowed.contains(&license)
}

#[test]
fn licenses_and_sources_are_those_that_are_allowed() {
    let text = std::fs::read_to_string(root().join(".cargo/deny.toml")).expect("deny.toml");
    let host = Command::new("rustc").arg("-vV").output().expect("rustc runs").stdout;
    let host = String::from_utf8(host).expect("text");
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 50, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in packages {
        let (name, license) = (&package["name"], package["license"].as_str().unwrap_or("none"));
        if !is_met(license, &allowed(&text)) {
            wrong.push(format!("{name}: license {license}"));
        }
        match package["source"].as_str() {
            None | Some("registry+https://github.com/rust-lang/crates.io-index") => {}
            Some(source) => wrong.push(format!("{name}: from {source}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn expressions_are_read_as_spdx_has_them() {
    let met = |expression| is_met(expression, &["MIT", "Apache-2.0"]);
    for fine in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/GPL-3.0",
        "(GPL-3.0 OR MIT) AND Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(met(fine), "{fine}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-3.0) AND ISC", "none"] {
        assert!(!met(bad), "{bad}");
    }
}
