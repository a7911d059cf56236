//! What agents are told of a turn, from nothing to every finding.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::judge::Report;

/// How much agents are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feedback {
    /// Only that there is another turn.
    Plain,
    /// True if every shown assertion holds.
    Passed,
    /// True if each level was passed.
    LevelPassed,
    /// The findings at each level.
    #[default]
    LevelFeedback,
}

impl Feedback {
    pub const NAMES: &'static str = "plain, passed, level-passed or level-feedback";

    /// The one called `name`.
    pub fn named(name: &str) -> Option<Feedback> {
        serde_json::from_value(name.into()).ok()
    }

    /// The words for a report; `shown` assertions are told of, 0: all.
    pub fn told(self, report: &Report, shown: usize) -> String {
        let most = if shown == 0 { report.tests.len() } else { shown };
        let tests = &report.tests[..most.min(report.tests.len())];
        let held = tests.iter().filter(|(_, cause)| cause.is_none()).count();
        let all = report.runs() && !tests.is_empty() && held == tests.len();
        let says = |holds: bool| if holds { "yes" } else { "no" };
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match self {
            Feedback::Plain => write!(text, "This was not the last turn."),
            Feedback::Passed if all => write!(text, "All tests passed."),
            Feedback::Passed => write!(text, "Not all tests passed."),
            Feedback::LevelPassed => write!(
                text,
                "aux is there and returns: {}\nmain function is there and returns: {}\nsyntax is right: {}\nall tests passed: {}\n\
                 main function {} aux: {}\nmain function adds to aux: {}",
                says(report.helper_returns),
                says(report.main),
                says(report.runs()),
                says(all),
                uses(report),
                says(report.uses),
                says(!report.wrapper),
            ),
            Feedback::LevelFeedback => findings(&mut text, report, tests, held),
        };
        text
    }
}

/// What `Report::uses` says.
fn uses(report: &Report) -> &'static str {
    if report.gates.earned() { "needs" } else { "calls" }
}

fn findings(
    text: &mut String,
    report: &Report,
    tests: &[(String, Option<String>)],
    held: usize,
) -> std::fmt::Result {
    let found = |there: bool, returns: bool| match (there, returns) {
        (false, _) => "missing",
        (true, false) => "there, but it returns nothing",
        (true, true) => "there",
    };
    writeln!(text, "aux: {}", found(report.helper, report.helper_returns))?;
    writeln!(
        text,
        "main function: {}",
        if report.main { "there" } else { "missing, or it returns nothing" }
    )?;
    if !report.main {
        return write!(text, "Nothing was run.");
    }
    if let Some(cause) = &report.syntax {
        return write!(text, "syntax: wrong: {cause}");
    }
    write!(text, "syntax: right\ntests: {held} of {} passed", tests.len())?;
    for (assertion, cause) in tests.iter().filter_map(|(test, cause)| Some((test, cause.as_ref()?))) {
        write!(text, "\n  {assertion}: {cause}")?;
    }
    write!(text, "\nmain function {} aux: {}", uses(report), if report.uses { "yes" } else { "no" })?;
    if report.uses && report.wrapper {
        write!(text, "\nmain function only hands on what aux gives: let it do a part of the work")?;
    }
    Ok(())
}
