//! Checks docs/stream-format.md against the code: its table of fields matches `Sample`, its recipes print the output that
//! it shows, and its examples are records.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use record::read::{Kind, Line, Reader};
use record::sample::{Field, Sample};
use record::stream::Stream;

const RECORD: &str = include_str!("../../../../docs/stream-format.md");
const GOLDEN: &str = include_str!("../golden/samples.jsonl");

/// The section under a heading.
fn section(heading: &str) -> &'static str {
    let start = RECORD.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let rest = &RECORD[start + heading.len() + 5..];
    rest.find("\n## ").map_or(rest, |end| &rest[..end])
}

/// The first column of the tables in a section, without backquotes.
fn first_column(heading: &str) -> Vec<&'static str> {
    let cells = section(heading).lines().filter_map(|line| line.strip_prefix("| `"));
    cells.filter_map(|rest| rest.split_once('`')).map(|(name, _)| name).collect()
}

/// The fenced blocks of a section: language and text.
fn blocks(heading: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut lines = section(heading).lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push((language, body.iter().map(|line| format!("{line}\n")).collect()));
        }
    }
    found
}

#[test]
fn the_table_of_fields_is_that_of_the_code() {
    let written: Vec<&str> =
        ["type", "v"].into_iter().chain(Field::ALL.iter().map(|field| field.key())).collect();
    assert_eq!(first_column("Fields of a sample"), written);
}

#[test]
fn the_table_of_exit_codes_is_that_of_the_code() {
    use record::failure::{DATA, DONE, FAILED, INTERRUPTED, IO, TERMINATED, UNAVAILABLE, USAGE};
    let table: String =
        section("Errors and exit codes").lines().filter(|line| line.starts_with("| ")).collect();
    for code in [DONE, FAILED, USAGE, DATA, UNAVAILABLE, IO] {
        assert!(table.contains(&format!("| {code} |")), "{code} is not in {table}");
    }
    assert!(table.contains(&format!("| {INTERRUPTED}, {TERMINATED} |")), "{table}");
}

#[test]
fn every_type_of_line_is_in_the_table() {
    for name in first_column("Types of lines") {
        let line = Line::parse("test", 1, format!("{{\"type\":\"{name}\",\"v\":1}}")).expect("a line");
        assert_ne!(line.kind, Kind::Other, "{name} is in the table but not in the code");
    }
}

#[test]
fn the_example_of_an_end_is_one() {
    let (_, text) = blocks("The end of a stream")
        .into_iter()
        .find(|(language, _)| *language == "json")
        .expect("an example");
    let line = Line::parse("docs/stream-format.md", 1, text.trim_end().to_owned()).expect("a line");
    let mut stream = Stream::new("test", false);
    stream.end(&line).expect("an end");
    stream.whole().expect("a whole stream");
}

/// The golden stream has every field of a sample but those that are rare, so the recipes run on something real.
#[test]
fn the_golden_stream_is_whole_and_complete() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reader = Reader::new("golden", GOLDEN.as_bytes());
    let mut stream = Stream::new("test", false).every_shard();
    while let Some(line) = reader.next().expect("a record") {
        match line.kind {
            Kind::Sample => {
                let sample = Sample::parse(&line).expect("a sample");
                stream.sample(&sample, &line).expect("a sample of its own");
                for field in Field::ALL.iter().filter(|field| field.is_in(&sample)) {
                    *seen.entry(field.key()).or_default() += 1;
                }
            }
            Kind::End => stream.end(&line).expect("an end"),
            _ => {}
        }
    }
    stream.whole().expect("a whole stream");
    let absent: Vec<&str> =
        Field::ALL.iter().map(|field| field.key()).filter(|key| !seen.contains_key(key)).collect();
    assert_eq!(absent, ["node", "sampling_mode", "tools", "info", "baseline", "anchor", "anchor_size"]);
}

#[test]
fn the_recipes_print_what_they_show() {
    if Command::new("jq").arg("--version").output().is_err() {
        println!("skipped: jq is not installed");
        return;
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let blocks = blocks("Cookbook");
    assert!(blocks.len() >= 20 && blocks.len().is_multiple_of(2), "{} blocks", blocks.len());
    let mut wrong = String::new();
    for pair in blocks.chunks(2) {
        let [(command_language, command), (output_language, expected)] = pair else { continue };
        assert_eq!((*command_language, *output_language), ("sh", "text"), "{command}");
        let output =
            Command::new("sh").arg("-c").arg(command).current_dir(&golden).output().expect("sh runs");
        let actual = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !output.stderr.is_empty() || actual != *expected {
            wrong += &format!(
                "{command}printed\n{actual}{}not\n{expected}\n",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
