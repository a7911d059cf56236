//! What worlds in which somebody walks share: demonstrators, and the actions that `envs check` tries.

use record::philox::Draws;
use serde_json::Value;

use super::world::Episode;
use super::{Move, Position, compact, prose};
use environment::ExtractionCase;

/// A position on no board.
pub const OUTSIDE: Position = Position { row: 25, column: 25 };

/// The moves of a demonstrator in a turn, at least one: `lazy` makes one move and stops, `random` one to
/// `most`, every other kind up to its limit. `choices` lists the moves that the kind may make in a situation,
/// each with the next situation (`None` after an illegal move, which drops the rest); it is empty once the
/// world is solved.
///
/// A majority of lazy actions makes the warmed-up policy weak in a way that reinforcement can fix: greedy
/// decoding averages out rare mistakes, but not a majority habit.
pub fn demonstrate<S: Copy>(
    kind: &str,
    most: u32,
    start: S,
    draws: &mut Draws,
    choices: impl Fn(&S) -> Option<Vec<(Move, Option<S>)>>,
) -> Vec<Move> {
    let count = match kind {
        "lazy" => 1,
        "random" => 1 + draws.below(most),
        _ => most,
    };
    let mut situation = Some(start);
    let mut made = Vec::with_capacity(count as usize);
    while made.len() < count as usize
        && let Some(choices) = situation.as_ref().and_then(&choices)
        && let Some((step, next)) = draws.choose(&choices)
    {
        made.push(*step);
        situation = *next;
    }
    made
}

/// One of `starts` with their distances; each distance that occurs is equally likely.
pub fn even<T: Copy>(draws: &mut Draws, starts: &[(T, u16)]) -> Option<T> {
    let mut distances: Vec<u16> = starts.iter().map(|(_, distance)| *distance).collect();
    distances.sort_unstable();
    distances.dedup();
    let chosen = *draws.choose(&distances)?;
    let starts: Vec<T> =
        starts.iter().filter(|(_, distance)| *distance == chosen).map(|(start, _)| *start).collect();
    draws.choose(&starts).copied()
}

/// Every list of one to three moves, longer ones that go on after `shortest`, turn round and overshoot, the `routes` where
/// cells are written, and malformed actions; `word` is one of the prompt's.
pub fn test_actions(
    episode: &Episode,
    shortest: &[Move],
    routes: &[Vec<Position>],
    word: &str,
    write: &dyn Fn(&[Move]) -> String,
) -> Vec<String> {
    let mut actions: Vec<String> =
        lists(shortest, episode.steps as usize).iter().map(|list| write(list)).collect();
    if episode.is_compact() {
        actions.extend(routes.iter().map(|route| {
            let mut text = String::new();
            compact::push_positions(&mut text, route.iter().copied());
            text
        }));
    }
    actions.extend(["", " ", "L7", "####", "#### []", word, "walls at", "\u{0}", "[[["].map(str::to_owned));
    actions
}

fn lists(shortest: &[Move], most: usize) -> Vec<Vec<Move>> {
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

const COMPACT: [(&str, &str, Option<&str>); 6] = [
    ("compact", " U R", Some(" U R")),
    ("compact without first space", "U R", Some(" U R")),
    ("compact, a foreign word", " U goal", None),
    ("compact, too many moves", " U U U U", None),
    ("compact, empty", "", None),
    ("compact, lower case", " u", None),
];

/// How moves in every style are parsed; `spec` gives a task in an encoding.
pub fn extraction_cases(spec: impl Fn(&str) -> Value) -> Vec<ExtractionCase> {
    let (full, compact) = (spec("full"), spec("compact"));
    let readable = prose::READABLE.iter().map(|(name, text)| (*name, *text, Some(prose::READABLE[0].1)));
    let unreadable = prose::UNREADABLE.iter().map(|(name, text)| (*name, *text, None));
    let prose = readable.chain(unreadable).flat_map(|case| [(&full, "tool", case), (&full, "planner", case)]);
    let words = COMPACT.iter().map(|case| (&compact, "planner", *case));
    prose.chain(words).map(|(spec, agent, case)| ExtractionCase::new(spec, agent, case)).collect()
}
