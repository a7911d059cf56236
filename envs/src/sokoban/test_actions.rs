//! Answers that `envs check` tries in every situation: every list of up to three moves, longer ones that wander,
//! and answers that are wrong in every way that matters.

use serde_json::json;

use super::state::SokobanState;
use crate::environment::ExtractionCase;
use crate::grid::{Place, prose, test_actions};
use crate::settings::Encoding;

/// Every answer of up to three moves, and then some; malformed ones are at the end.
pub fn all(state: &SokobanState, agent: &str) -> Vec<String> {
    let lists = test_actions::lists(&state.shortest(), state.instance().moves as usize);
    let mut answers: Vec<String> = lists.iter().map(|list| state.write(agent, list)).collect();
    if state.instance().encoding == Encoding::Compact {
        let level = &state.instance().level;
        let target = state.situation().boxes().iter().chain(level.goals()).map(|cell| level.place(*cell));
        answers.extend(target.map(|place| format!(" {place}")));
        answers.push(format!(" {}", state.place()));
        answers.push(format!(" {}", Place { row: 25, column: 25 }));
    }
    answers.extend(["", " ", "L7", "####", "#### []", "box", "walls at", "\u{0}", "[[["].map(str::to_owned));
    answers
}

const COMPACT: [(&str, &str, Option<&str>); 6] = [
    ("compact", " U R", Some(" U R")),
    ("compact without first space", "U R", Some(" U R")),
    ("compact, a foreign word", " U goal", None),
    ("compact, too many moves", " U U U U", None),
    ("compact, empty", "", None),
    ("compact, lower case", " u", None),
];

/// How answers in every style have to be read.
pub fn extraction_cases() -> Vec<ExtractionCase> {
    let spec = |encoding: &str| {
        json!({"size": 6, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b2"], "goals": ["d3"],
            "boxes": ["c3"], "player": "b4"})
    };
    let readable = prose::READABLE.iter().map(|(name, text)| (*name, *text, Some(prose::READABLE[0].1)));
    let unreadable = prose::UNREADABLE.iter().map(|(name, text)| (*name, *text, None));
    let full = readable.chain(unreadable);
    let full = full.flat_map(|case| [("full", "tool", case), ("full", "planner", case)]);
    full.chain(COMPACT.map(|case| ("compact", "planner", case)))
        .map(|(encoding, agent, (name, text, means))| ExtractionCase {
            name,
            spec: spec(encoding),
            workflow: "team",
            agent,
            text: text.to_owned(),
            means: means.map(str::to_owned),
        })
        .collect()
}
