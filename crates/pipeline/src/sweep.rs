//! `seeds` and `[sweep]`: runs that differ in some flags, each in a folder named after its values.

use std::collections::BTreeSet;

use record::failure::{Failure, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::file::{in_order, values};
use crate::flags::{self, Flag, Given, Kind};

/// More runs than this are taken for a mistake.
const MOST_RUNS: usize = 1000;
/// Longest value in a folder's name, in characters.
const LONGEST_VALUE: usize = 60;
/// Longest folder name, in bytes; file systems allow 255.
const LONGEST_NAME: usize = 200;

/// A swept flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepAxis {
    pub flag: &'static str,
    /// Its name in folder names: the flag, or the key in the flag's table.
    pub name: String,
    /// The values, one entry per run.
    pub values: Vec<Vec<Given>>,
}

/// The axis for `--seeds 1,2,3`.
pub fn seeds(text: &str) -> Result<SweepAxis> {
    let seed = |seed: &str| {
        let digits = (1..=12).contains(&seed.len()) && seed.bytes().all(|b| b.is_ascii_digit());
        let number = seed.parse::<u64>().ok().filter(|_| digits)?;
        Some(vec![Given { name: "seed", value: number.to_string() }]) // 01 is 1
    };
    let values: Option<Vec<Vec<Given>>> = text.split(',').map(|text| seed(text.trim())).collect();
    let values = values.ok_or_else(|| {
        Failure::usage(format!("--seeds {text}: not whole numbers with commas between them"))
            .hint("--seeds 1,2,3 makes a run for each")
    })?;
    Ok(SweepAxis { flag: "seed", name: "seed".to_owned(), values })
}

/// Parses the table `[sweep]`. `place` formats an offset in the text for error messages.
///
/// # Errors
/// A name is not a flag of a run, or its values are not a list of valid values (exit 2).
pub fn parse(table: &DeTable<'_>, text: &str, place: &impl Fn(usize) -> String) -> Result<Vec<SweepAxis>> {
    let mut axes = Vec::new();
    for (written, value) in in_order(table) {
        let (at, written) = (place(written.span().start), written.get_ref().as_ref());
        let of_a_run = |flag: &Flag| flag.is_of_a_run() && flag.kind != Kind::Seeds;
        let Some(flag) = flags::find(written).filter(|flag| of_a_run(flag)) else {
            let near = flags::nearest(written, flags::all().filter(|flag| of_a_run(flag)));
            return Err(Failure::usage(format!("{at}: there is no {written} to sweep over")).hint(
                near.map_or_else(
                    || "a sweep is over flags of a run: ./pipeline.sh --help lists all".to_owned(),
                    |near| format!("did you mean {near}?"),
                ),
            ));
        };
        match (flag.kind, value.get_ref()) {
            (Kind::Table, DeValue::Table(inner)) => {
                for (key, value) in in_order(inner) {
                    let name = key.get_ref().to_string();
                    axes.push(axis(flag, Some(&name), value, (text, &place(key.span().start)))?);
                }
            }
            _ => axes.push(axis(flag, None, value, (text, &at))?),
        }
    }
    Ok(axes)
}

fn axis(
    flag: &'static Flag,
    key: Option<&str>,
    value: &Spanned<DeValue<'_>>,
    (text, place): (&str, &str),
) -> Result<SweepAxis> {
    let name = key.map_or_else(|| flag.key(), str::to_owned);
    let refuse = |cause: String| {
        Err(Failure::usage(format!("{place}: {name}: {cause}")).hint(match key {
            Some(key) => format!("[sweep.{}] has a line as {key} = [\"A\", \"B\"]", flag.key()),
            None => "a line as lr = [1e-3, 2e-3] makes a run for each".to_owned(),
        }))
    };
    if key.is_none() && flag.kind == Kind::Table {
        return refuse(format!("a sweep over it is a table, [sweep.{}]", flag.key()));
    }
    let DeValue::Array(all) = value.get_ref() else { return refuse("not values in brackets".to_owned()) };
    if all.is_empty() {
        return refuse("no value".to_owned());
    }
    let mut found = Vec::new();
    for value in all {
        let written = || text.get(value.span()).unwrap_or_default();
        let given = match key {
            Some(key) => one(value, text).map(|value| vec![format!("{key}={value}")]),
            None => values(flag, value, text),
        };
        let Some(given) = given else {
            return refuse(format!("{} is not {}", written(), flag.kind.described()));
        };
        found.push(given.into_iter().map(|value| Given { name: flag.name, value }).collect());
    }
    Ok(SweepAxis { flag: flag.name, name, values: found })
}

/// A TOML value as command-line text.
fn one(value: &Spanned<DeValue<'_>>, text: &str) -> Option<String> {
    match value.get_ref() {
        DeValue::String(string) => Some(string.to_string()),
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) => {
            Some(text.get(value.span())?.replace('_', ""))
        }
        _ => None,
    }
}

impl SweepAxis {
    /// The key in the flag's table, if the flag is a table.
    pub fn key(&self) -> Option<&str> {
        let is_table = flags::find(self.flag).is_some_and(|flag| flag.kind == Kind::Table);
        is_table.then_some(self.name.as_str())
    }

    /// A value as it appears in folder names.
    fn label(&self, values: &[Given]) -> String {
        let own = |given: &Given| match self.key() {
            Some(_) => given.value.split_once('=').map_or("", |(_, value)| value).to_owned(),
            None => given.value.clone(),
        };
        let text = values.iter().map(own).collect::<Vec<_>>().join("+");
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '-' };
        let text: String = text.chars().map(plain).take(LONGEST_VALUE).collect();
        format!("{}={}", self.name, if text.is_empty() { "none" } else { &text })
    }
}

/// A value, or each number of a list, in one spelling: 1e-3 is 0.001.
fn as_number(text: &str) -> String {
    let one =
        |word: &str| word.parse::<f64>().map_or_else(|_| word.to_owned(), |number| format!("{number:?}"));
    text.split(',').map(one).collect::<Vec<_>>().join(",")
}

/// The Cartesian product of all axes, each combination with its folder's name. The last axis varies fastest.
///
/// # Errors
/// There are too many, or two have the same folder name (exit 2).
pub fn combinations(axes: &[SweepAxis]) -> Result<Vec<(String, Vec<Given>)>> {
    let count = axes.iter().map(|axis| axis.values.len()).try_fold(1_usize, usize::checked_mul);
    if count.is_none_or(|count| count > MOST_RUNS) {
        return Err(Failure::usage(format!("a sweep of more than {MOST_RUNS} runs"))
            .hint("each line of [sweep] multiplies them: leave some out"));
    }
    // Axes with a single value stay out of the name, unless all axes have one.
    let is_named =
        |axis: &&SweepAxis| axis.values.len() > 1 || axes.iter().all(|axis| axis.values.len() == 1);
    let mut runs = vec![(String::new(), Vec::new())];
    for axis in axes {
        let mut longer = Vec::new();
        for (name, given) in &runs {
            for values in &axis.values {
                let label = if is_named(&axis) { axis.label(values) } else { String::new() };
                let comma = if name.is_empty() || label.is_empty() { "" } else { "," };
                longer.push((format!("{name}{comma}{label}"), [&given[..], values].concat()));
            }
        }
        runs = longer;
    }
    let mut names = BTreeSet::new();
    for (name, given) in &runs {
        if name.len() > LONGEST_NAME {
            return Err(Failure::usage(format!("no folder can be called {name}"))
                .hint("a run is named by what differs: sweep over fewer flags"));
        }
        let values: Vec<String> = given.iter().map(|given| as_number(&given.value)).collect();
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
        axes.push(seeds("1,2").unwrap());
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
        assert_eq!(combinations(&[seeds("7").unwrap()]).unwrap()[0].0, "seed=7");
    }

    #[test]
    fn a_run_has_the_flags_of_its_values() {
        let text =
            "betas = [[0.9, 0.95]]\npolicies = [\"shared\", {a = \"x\", b = \"y\"}]\n[set]\nlevel = [1, 2_0]";
        let runs = combinations(&axes(text).unwrap()).unwrap();
        let (name, given) = &runs[3];
        assert_eq!(name, "policies=a-x+b-y,level=20");
        let pairs: Vec<_> = given.iter().map(|given| (given.name, given.value.as_str())).collect();
        assert_eq!(
            pairs,
            [("betas", "0.9,0.95"), ("policies", "a=x"), ("policies", "b=y"), ("set", "level=20")]
        );
    }

    #[test]
    fn what_is_no_sweep_is_refused_in_its_line() {
        for (text, cause) in [
            ("lr = 1e-3", "line 1: lr: not values in brackets"),
            ("lr = []", "line 1: lr: no value"),
            ("\nlr = [1e-3, \"many\"]", "line 2: lr: \"many\" is not a number"),
            ("run = [\"a\"]", "line 1: there is no run to sweep over"),
            ("seeds = [[1]]", "line 1: there is no seeds to sweep over"),
            ("set = [1]", "line 1: set: a sweep over it is a table, [sweep.set]"),
            ("set.level = 3", "line 1: level: not values in brackets"),
        ] {
            let failure = axes(text).unwrap_err();
            assert!(failure.code == 2 && failure.hint.is_some());
            assert_eq!(failure.message, cause);
        }
        let hint = axes("learning_rate = [1]").unwrap_err().hint;
        assert_eq!(hint.as_deref(), Some("did you mean lr?"));
        assert!(combinations(&axes("lr = [1, 1]").unwrap()).unwrap_err().message.contains("are called lr=1"));
        for twice in ["lr = [1e-3, 0.001]", "betas = [[0.9, 0.95], [0.90, 0.95]]", "steps = [1, 1]"] {
            assert_eq!(combinations(&axes(twice).unwrap()).unwrap_err().code, 2, "{twice}");
        }
        assert!(combinations(&[seeds("1,01").unwrap()]).is_err());
        let many: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let many = seeds(&many.join(",")).unwrap();
        let many = [many.clone(), SweepAxis { flag: "lr", name: "lr".to_owned(), ..many }];
        assert!(combinations(&many).unwrap_err().message.contains("more than 1000"));
        for bad in ["", "1,", "a", "-1", "1234567890123"] {
            assert_eq!(seeds(bad).unwrap_err().code, 2, "{bad}");
        }
    }
}
