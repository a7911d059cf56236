//! Actions that `envs check` tries in every situation of a world in which somebody walks.

use serde_json::Value;

use super::{Move, prose};
use crate::environment::ExtractionCase;

/// Every list of one to three moves, and longer ones that go on after `shortest`, turn round and overshoot. `most` is
/// how many moves a turn may have.
pub fn lists(shortest: &[Move], most: u32) -> Vec<Vec<Move>> {
    let most = most as usize;
    let mut last: Vec<Vec<Move>> = vec![Vec::new()];
    let mut found = Vec::new();
    for _ in 0..most.min(3) {
        last = last
            .iter()
            .flat_map(|list| Move::ALL.map(|step| list.iter().copied().chain([step]).collect()))
            .collect();
        found.extend(last.iter().cloned());
    }
    for step in Move::ALL {
        let mut longer = shortest.to_vec();
        longer.resize(most, step);
        found.push(longer.clone());
        found.push(vec![step; most]);
        longer.resize(most + 1, step);
        found.push(longer);
    }
    found
}

/// Malformed actions; `word` is one of the prompt's.
pub fn malformed(word: &str) -> impl Iterator<Item = String> {
    ["", " ", "L7", "####", "#### []", word, "walls at", "\u{0}", "[[["].map(str::to_owned).into_iter()
}

const COMPACT: [(&str, &str, Option<&str>); 6] = [
    ("compact", " U R", Some(" U R")),
    ("compact without first space", "U R", Some(" U R")),
    ("compact, a foreign word", " U goal", None),
    ("compact, too many moves", " U U U U", None),
    ("compact, empty", "", None),
    ("compact, lower case", " u", None),
];

/// How moves in every style have to be parsed; `spec` gives a task in an encoding.
pub fn extraction_cases(spec: impl Fn(&str) -> Value) -> Vec<ExtractionCase> {
    let (full, compact) = (spec("full"), spec("compact"));
    let readable = prose::READABLE.iter().map(|(name, text)| (*name, *text, Some(prose::READABLE[0].1)));
    let unreadable = prose::UNREADABLE.iter().map(|(name, text)| (*name, *text, None));
    let prose = readable.chain(unreadable).flat_map(|case| [(&full, "tool", case), (&full, "planner", case)]);
    let words = COMPACT.iter().map(|case| (&compact, "planner", *case));
    prose.chain(words).map(|(spec, agent, case)| ExtractionCase::new(spec, agent, case)).collect()
}
