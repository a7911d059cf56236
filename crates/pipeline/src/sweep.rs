//! Several seeds, and `[sweep]`: runs that differ in some flags, each in a folder named after its values.

use std::collections::BTreeSet;

use record::failure::{Failure, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::file::{Line, in_order, line};

/// More runs than this are taken for a mistake.
const MOST_RUNS: usize = 1000;
/// Longest value in a folder's name, in characters.
const LONGEST_VALUE: usize = 60;
/// Longest folder name, in bytes; file systems allow 255.
const LONGEST_NAME: usize = 200;
/// Flags that are tables, whose keys are swept.
const TABLES: [&str; 3] = ["set", "flags", "stage"];

/// A swept flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepAxis {
    pub flag: String,
    /// The key in the flag's table, if it is one.
    pub key: Option<String>,
    /// Its name in folder names: the flag, or the key.
    pub name: String,
    /// The values as words of the command line, one entry per run.
    pub values: Vec<Vec<String>>,
}

/// The axis for `--seed 1,2,3`.
pub fn seeds(seeds: &[u64]) -> SweepAxis {
    let values = seeds.iter().map(|seed| vec![format!("--seed={seed}")]).collect();
    SweepAxis { flag: "seed".to_owned(), key: None, name: "seed".to_owned(), values }
}

/// Parses the table `[sweep]`. `place` formats an offset in the text for error messages.
///
/// # Errors
/// A name is not a flag of a run, or its values are not a list of valid values (exit 2).
pub fn parse(table: &DeTable<'_>, text: &str, place: &impl Fn(usize) -> String) -> Result<Vec<SweepAxis>> {
    let mut axes = Vec::new();
    for (name, value) in in_order(table) {
        let (at, name) = (place(name.span().start), name.get_ref().as_ref());
        match value.get_ref() {
            DeValue::Table(inner) if TABLES.contains(&name) => {
                for (key, value) in in_order(inner) {
                    let at = place(key.span().start);
                    axes.push(axis(name, Some(key.get_ref()), value, text, &at)?);
                }
            }
            _ => axes.push(axis(name, None, value, text, &at)?),
        }
    }
    Ok(axes)
}

fn axis(
    name: &str,
    key: Option<&str>,
    value: &Spanned<DeValue<'_>>,
    text: &str,
    place: &str,
) -> Result<SweepAxis> {
    let flag = name.replace('_', "-");
    let shown = key.unwrap_or(&flag);
    let refuse = |cause: &str| {
        Failure::usage(format!("{place}: {shown}: {cause}")).hint(match key {
            Some(key) => format!("[sweep.{flag}] has a line as {key} = [\"A\", \"B\"]"),
            None => "a line as lr = [1e-3, 2e-3] makes a run for each".to_owned(),
        })
    };
    if key.is_none() && TABLES.contains(&name) {
        return Err(refuse(&format!("a sweep over it is a table, [sweep.{flag}]")));
    }
    let all = match value.get_ref() {
        DeValue::Array(all) if all.is_empty() => return Err(refuse("no value")),
        DeValue::Array(all) => all,
        _ => return Err(refuse("not values in brackets")),
    };
    let mut values = Vec::new();
    for value in all {
        let lines = match key {
            // The value of a key is read as a table of one.
            Some(key) => {
                let mut table = DeTable::new();
                table.insert(Spanned::new(0..0, key.to_owned().into()), value.clone());
                line(name, &Spanned::new(value.span(), DeValue::Table(table)), text)
            }
            None => line(name, value, text),
        };
        let lines = lines.map_err(|mut failure| {
            failure.message = format!("{place}: {}", failure.message);
            failure
        })?;
        values.push(lines.into_iter().flat_map(|line: Line| line.words).collect());
    }
    Ok(SweepAxis { name: shown.to_owned(), flag, key: key.map(str::to_owned), values })
}

impl SweepAxis {
    /// A value as it appears in folder names.
    fn label(&self, words: &[String]) -> String {
        let skipped = self.key.as_ref().map_or(0, |key| key.len() + 1);
        let values = words.iter().filter_map(|word| word.split_once('=')?.1.get(skipped..));
        let text = values.collect::<Vec<_>>().join("+");
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '-' };
        let text: String = text.chars().map(plain).take(LONGEST_VALUE).collect();
        format!("{}={}", self.name, if text.is_empty() { "none" } else { &text })
    }
}

/// A word with each number of its value in one spelling: 1e-3 is 0.001.
fn as_number(word: &str) -> String {
    let one =
        |part: &str| part.parse::<f64>().map_or_else(|_| part.to_owned(), |number| format!("{number:?}"));
    word.split('=')
        .map(|value| value.split(',').map(one).collect::<Vec<_>>().join(","))
        .collect::<Vec<_>>()
        .join("=")
}

/// The Cartesian product of all axes: each combination's folder name and words. The last axis varies fastest.
///
/// # Errors
/// There are too many, or two have the same folder name (exit 2).
pub fn combinations(axes: &[SweepAxis]) -> Result<Vec<(String, Vec<String>)>> {
    let count = axes.iter().map(|axis| axis.values.len()).try_fold(1_usize, usize::checked_mul);
    if count.is_none_or(|count| count > MOST_RUNS) {
        return Err(Failure::usage(format!("a sweep of more than {MOST_RUNS} runs"))
            .hint("each line of [sweep] multiplies them: leave some out"));
    }
    // Axes with a single value stay out of the name, unless all axes have one.
    let is_named =
        |axis: &&SweepAxis| axis.values.len() > 1 || axes.iter().all(|axis| axis.values.len() == 1);
    let mut runs: Vec<(String, Vec<String>)> = vec![(String::new(), Vec::new())];
    for axis in axes {
        let mut longer = Vec::new();
        for (name, words) in &runs {
            for values in &axis.values {
                let label = if is_named(&axis) { axis.label(values) } else { String::new() };
                let comma = if name.is_empty() || label.is_empty() { "" } else { "," };
                longer.push((format!("{name}{comma}{label}"), [&words[..], values].concat()));
            }
        }
        runs = longer;
    }
    let mut names = BTreeSet::new();
    for (name, words) in &runs {
        if name.len() > LONGEST_NAME {
            return Err(Failure::usage(format!("no folder can be called {name}"))
                .hint("a run is named by what differs: sweep over fewer flags"));
        }
        let values: Vec<String> = words.iter().map(|word| as_number(word)).collect();
        if !names.insert(name.clone()) || !names.insert(values.join("\n")) {
            return Err(Failure::usage(format!("two runs of the sweep are called {name}, or are the same"))
                .hint("a value is given twice, perhaps in other words as 1e-3 and 0.001, or two differ only in characters that no folder's name has"));
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(text: &str) -> Result<Vec<SweepAxis>> {
        let table = DeTable::parse(text).unwrap();
        parse(table.get_ref(), text, &|at| format!("line {}", 1 + text[..at].matches('\n').count()))
    }

    fn names(text: &str) -> Vec<String> {
        let mut axes = axes(text).unwrap();
        axes.push(seeds(&[1, 2]));
        combinations(&axes).unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn runs_are_named_by_what_differs() {
        assert_eq!(names("lr = [1e-3]"), ["seed=1", "seed=2"]);
        let both = names("lr = [1e-3, 2e-3]\npolicies = [\"shared\"]");
        assert_eq!(both, ["lr=1e-3,seed=1", "lr=1e-3,seed=2", "lr=2e-3,seed=1", "lr=2e-3,seed=2"]);
        let of_a_stage = names("flags.advantage = [\"--estimator rloo\", \"\"]");
        assert_eq!(of_a_stage[0], "advantage=--estimator-rloo,seed=1");
        assert_eq!(of_a_stage[2], "advantage=none,seed=1");
        assert_eq!(combinations(&[seeds(&[7])]).unwrap()[0].0, "seed=7");
    }

    #[test]
    fn a_run_has_the_flags_of_its_values() {
        let text =
            "betas = [[0.9, 0.95]]\npolicies = [\"shared\", {a = \"x\", b = \"y\"}]\n[set]\nlevel = [1, 2_0]";
        let runs = combinations(&axes(text).unwrap()).unwrap();
        let (name, words) = &runs[3];
        assert_eq!(name, "policies=a-x+b-y,level=20");
        assert_eq!(words, &["--betas=0.9,0.95", "--policies=a=x", "--policies=b=y", "--set=level=20"]);
    }

    #[test]
    fn what_is_no_sweep_is_refused_in_its_line() {
        for (text, cause) in [
            ("lr = 1e-3", "line 1: lr: not values in brackets"),
            ("lr = []", "line 1: lr: no value"),
            (
                "\nlr = [1e-3, \"many\"]",
                "line 2: invalid value 'many' for '--lr <[AGENT=]X>': not a number from 0",
            ),
            ("run = [\"a\"]", "line 1: run has no place in a file"),
            ("set = [1]", "line 1: set: a sweep over it is a table, [sweep.set]"),
            ("set.level = 3", "line 1: level: not values in brackets"),
        ] {
            let failure = axes(text).unwrap_err();
            assert!(failure.code == 2 && failure.hint.is_some());
            assert_eq!(failure.message, cause);
        }
        assert!(axes("learning_rate = [1]").unwrap_err().hint.unwrap().contains("--lr"));
        assert!(combinations(&axes("lr = [1, 1]").unwrap()).unwrap_err().message.contains("are called lr=1"));
        for twice in ["lr = [1e-3, 0.001]", "betas = [[0.9, 0.95], [0.90, 0.95]]", "steps = [1, 1]"] {
            assert_eq!(combinations(&axes(twice).unwrap()).unwrap_err().code, 2, "{twice}");
        }
        let many = seeds(&(0..40).collect::<Vec<_>>());
        let many = [many.clone(), SweepAxis { flag: "lr".to_owned(), name: "lr".to_owned(), ..many }];
        assert!(combinations(&many).unwrap_err().message.contains("more than 1000"));
        let value = "x".repeat(LONGEST_VALUE);
        let long = |count: usize| -> Vec<SweepAxis> {
            let name = |at: usize| format!("flag-{at}");
            let axis = |at| SweepAxis {
                flag: name(at),
                name: name(at),
                ..axes(&format!("env = [\"a\", \"{value}\"]")).unwrap().remove(0)
            };
            (0..count).map(axis).collect()
        };
        assert!(combinations(&long(2)).is_ok());
        assert!(combinations(&long(3)).unwrap_err().message.starts_with("no folder can be called flag-0="));
    }
}
