//! Answers that `envs check` tries in every situation: every list of up to three moves, longer ones that
//! wander, and answers that are wrong in every way that matters.

use serde_json::json;

use super::map::Place;
use super::state::PlanPathState;
use crate::environment::ExtractionCase;
use crate::grid::{prose, test_actions};
use crate::settings::Encoding;

/// Every answer of up to three moves, and then some; malformed ones are at the end.
pub fn all(state: &PlanPathState, agent: &str) -> Vec<String> {
    let lists = test_actions::lists(&state.shortest(), state.instance().moves as usize);
    let mut answers: Vec<String> = lists.iter().map(|list| state.write(agent, list)).collect();
    if state.instance().encoding == Encoding::Compact {
        let goal = state.instance().map.place(state.instance().map.goal());
        let outside = Place { row: 25, column: 25 };
        let here = state.place();
        answers.push(format!(" {goal}"));
        answers.push(format!(" {here}"));
        answers.push(format!(" {outside}"));
        answers.push(format!(" {here} {goal}"));
    }
    answers.extend(["", " ", "L7", "####", "#### []", "goal", "walls at", "\u{0}", "[[["].map(str::to_owned));
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
    let spec = |encoding: &str| json!({"size": 3, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b1"], "goal": "c0", "start": "a2"});
    let full = prose::READABLE.iter().map(|(name, text)| (*name, *text, Some(prose::READABLE[0].1)));
    let full = full.chain(prose::UNREADABLE.iter().map(|(name, text)| (*name, *text, None)));
    let full = full.flat_map(|case| [("full", "tool", case), ("full", "planner", case)]);
    let compact = COMPACT.iter().map(|case| ("compact", "planner", *case));
    full.chain(compact)
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
