//! Dining philosophers: agents at once around a table, a fork between neighbors, and a meal for whoever holds both of its own.
//!
//! [`table`] has the rules, [`dinner`] an episode. `reward=meals` pays the team the meals of a step over the most that are possible in an episode;
//! `reward=four` pays at the end a quarter each for no deadlock, fairness, the share of actions that did something, and meals over the
//! optimum: waiting earns 0.75 of it, the fault of such a reward (arXiv 2606.07845). A success is an episode without
//! deadlock in which each has two meals, which is possible at every table.
//!
//! Compact texts are of few tokens of the tiny tokenizer: `at 2 3 moves 5 ok 1 L 0 R 2 goal` tells philosopher 2 of 3 in step 5, who
//! has had 1 meal, that its left fork is free (1: taken) and that it holds the right one; ` L` and ` R` grab, ` D` puts down, ` none`
//! waits. Left out: talking to neighbors.

mod dinner;
mod table;

use std::sync::{Arc, LazyLock};

use record::failure::Result;
use record::line::Task;
use record::philox::{Draws, Stream};
use serde_json::{Value, json};

use dinner::{Dinner, NAME, Paid, TableSpec, WORDS, around};
use environment::demonstration::{Demonstration, sample};
use environment::settings::{Encoding, Setting, Settings, choice};
use environment::spec::write;
use environment::streams;
use environment::workflow::{self, Workflow};
use environment::{Demonstrator, Environment, ExtractionCase, Selection, Split, State, Tasks};
use table::Action;

/// One in this many tables is for testing. All of a size are alike.
const TEST_SHARE: u64 = 8;
const SETTINGS: &[Setting] = &[
    Setting::new("philosophers", "3", "how many sit at the table, 2 to 15; or several such numbers, 3,5"),
    Setting::new("encoding", "compact", "compact (few words) or full (prose)"),
    Setting::new(
        "reward",
        "meals",
        "meals (of a step, over the most of an episode) or four (terms at the end, which pay for waiting)",
    ),
    Setting::new("local", "none", "none, or own (an agent's own meals, too)"),
    Setting::new("index", "on", "on or off: whether an agent is told its number"),
];

/// The environment.
pub struct Philosophers;

static TEAM: LazyLock<[Arc<Workflow>; 1]> = LazyLock::new(|| [around(3)]);

/// The numbers of philosophers that are drawn from, and the rest of the `spec`.
fn rules(settings: &Settings) -> Result<(Vec<u32>, TableSpec)> {
    let text = settings.text("philosophers").unwrap_or("3");
    let counts: Option<Vec<u32>> =
        text.split(',').map(|part| part.parse().ok().filter(|count| (2..=15).contains(count))).collect();
    let counts = counts.ok_or_else(|| {
        choice("philosophers", text, "a number from 2 to 15, or several with commas between them")
    })?;
    let either = |key: &str, no: &str, yes: &str| match settings.text(key) {
        None => Ok(None),
        Some(text) if text == no => Ok(Some(false)),
        Some(text) if text == yes => Ok(Some(true)),
        Some(text) => Err(choice(key, text, &format!("{no} or {yes}"))),
    };
    let spec = TableSpec {
        philosophers: counts[0],
        table: 0,
        reward: if either("reward", "meals", "four")?.unwrap_or(false) { Paid::Four } else { Paid::Meals },
        own: either("local", "none", "own")?.unwrap_or(false),
        index: either("index", "off", "on")?.unwrap_or(true),
        encoding: Encoding::from_settings(settings)?,
    };
    Ok((counts, spec))
}

fn draw(counts: &[u32], spec: &TableSpec, split: Split, stream: Stream) -> Result<Task> {
    let drawn = |draws: &mut Draws| {
        let philosophers = *draws.choose(counts)?;
        let table = draws.below(1_000_000);
        let name = format!("{philosophers}-{table}");
        let wanted = streams::split_of(name.as_bytes(), TEST_SHARE) == split;
        wanted.then(|| {
            streams::task(NAME, split, &name, write(&TableSpec { philosophers, table, ..spec.clone() }))
        })
    };
    streams::first_task(1000, split, stream, drawn, || (NAME.to_owned(), "try another seed"))
}

impl Environment for Philosophers {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "philosophers around a table share forks, and eat with two"
    }

    fn workflows(&self) -> &[Arc<Workflow>] {
        &*TEAM
    }

    fn workflow(&self, name: &str, spec: &Value) -> Result<Arc<Workflow>> {
        let default = workflow::find(self.workflows(), NAME, name)?;
        Ok(if spec.is_null() { default } else { around(Dinner::new(spec)?.spec.philosophers) })
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let (counts, spec) = rules(&selection.settings)?;
        Ok(streams::tasks(NAME, selection, move |split, stream| draw(&counts, &spec, split, stream)))
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        workflow::find(self.workflows(), NAME, workflow)?;
        Ok(Box::new(Dinner::new(spec)?))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        Ok(Box::new(Dinner::restore(state)?))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        let compact = json!({"philosophers": 3, "table": 0, "reward": "meals", "own": false, "index": true, "encoding": "compact"});
        let mut prose = compact.clone();
        prose["encoding"] = json!("full");
        [
            (&compact, ("plain", " L", Some("L"))),
            (&compact, ("prose in place of a word", "GRAB_LEFT", None)),
            (&prose, ("lower case and a full stop", "grab left.", Some("GRAB_LEFT"))),
            (&prose, ("a word in place of prose", "L", None)),
        ]
        .map(|(spec, case)| ExtractionCase::new(spec, "philosopher-1", case))
        .to_vec()
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        &[("hungry", 0.5), ("random", 0.5)]
    }

    /// Whole episodes: `hungry` grabs a free fork at its side, and otherwise puts down or waits; `random` does anything.
    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let (counts, spec) = rules(&demonstration.tasks.settings)?;
        workflow::find(self.workflows(), NAME, &demonstration.workflow)?;
        let demonstration = demonstration.clone();
        Ok(Box::new(move |index| {
            let stream = streams::train_stream(NAME, demonstration.tasks.seed, index);
            let task = draw(&counts, &spec, Split::Train, stream)?;
            let mut draws = demonstration.draws(NAME, index);
            let mut samples = Vec::new();
            for number in 0..demonstration.states {
                let mut dinner = Dinner::new(&task.spec)?;
                while !dinner.is_over() {
                    let mut said = Vec::new();
                    for (seat, agent) in dinner.workflow.agents().iter().enumerate() {
                        let any = WORDS.map(|(action, ..)| action).to_vec();
                        let kind = demonstration.kind(&mut draws);
                        let actions = if kind == "hungry" { dinner.hungry(seat) } else { any };
                        let text = dinner.say(draws.choose(&actions).copied().unwrap_or(Action::Wait));
                        let episode = format!("{index}.{number}.{}", dinner.played.step);
                        samples.push(sample(&task, &episode, agent, dinner.observe(agent), text.clone()));
                        said.push(dinner.read(&text));
                    }
                    dinner.step(&said)?;
                }
            }
            Ok(samples)
        }))
    }
}
