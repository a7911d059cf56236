//! Dining philosophers: agents at once around a table, a fork between neighbors, and a meal for whoever holds both of its own.
//!
//! [`table`] has the rules. `reward=meals` pays the team the meals of a step over the most that are possible in an episode;
//! `reward=four` pays at the end a quarter each for no deadlock, fairness, the share of actions that did something, and meals over the
//! optimum: waiting earns 0.75 of it, the fault of such a reward (arXiv 2606.07845). A success is an episode without
//! deadlock in which each has two meals, which is possible at every table.
//!
//! Compact texts are of few tokens of the tiny tokenizer: `at 2 3 moves 5 ok 1 L 0 R 2 goal` tells philosopher 2 of 3 in step 5, who
//! has had 1 meal, that its left fork is free (1: taken) and that it holds the right one; ` L` and ` R` grab, ` D` puts down, ` none`
//! waits. Left out: talking to neighbors.

mod table;

use std::sync::{Arc, LazyLock};

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};
use record::sample::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use environment::demonstration::{Demonstration, sample};
use environment::settings::{Setting, Settings, choice};
use environment::spec::{self, checked, read, read_state, write};
use environment::streams;
use environment::workflow::{self, Workflow};
use environment::{Demonstrator, Environment, ExtractionCase, Outcome, Selection, Split, State, Tasks};
use table::{Action, Forks, OPTIMUM};

const NAME: &str = "philosophers";
/// Steps of an episode.
const TURNS: u32 = 12;
/// Meals of each philosopher that make a success.
const ENOUGH: u32 = 2;
/// One in this many tables is for testing. All of a size are alike.
const TEST_SHARE: u64 = 8;
/// Actions with their compact words and their names in prose.
const WORDS: [(Action, &str, &str); 4] = [
    (Action::GrabLeft, "L", "GRAB_LEFT"),
    (Action::GrabRight, "R", "GRAB_RIGHT"),
    (Action::Release, "D", "RELEASE"),
    (Action::Wait, "none", "WAIT"),
];
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Paid {
    Meals,
    Four,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    philosophers: u32,
    /// Which of many tables that are alike.
    table: u32,
    reward: Paid,
    /// An agent's meals are its local reward, too.
    own: bool,
    /// An agent is told its number.
    index: bool,
    encoding: Encoding,
}

/// How texts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Compact,
    Full,
}

/// The workflow of a table.
fn around(count: u32) -> Arc<Workflow> {
    let names: Vec<String> = (1..=count).map(|number| format!("philosopher-{number}")).collect();
    Workflow::parallel("team", &names.iter().map(String::as_str).collect::<Vec<&str>>())
}

/// The numbers of philosophers that are drawn from, and the rest of the `spec`.
fn rules(settings: &Settings) -> Result<(Vec<u32>, Spec)> {
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
    either("encoding", "compact", "full")?;
    let spec = Spec {
        philosophers: counts[0],
        table: 0,
        reward: if either("reward", "meals", "four")?.unwrap_or(false) { Paid::Four } else { Paid::Meals },
        own: either("local", "none", "own")?.unwrap_or(false),
        index: either("index", "off", "on")?.unwrap_or(true),
        encoding: if settings.is_prose() { Encoding::Full } else { Encoding::Compact },
    };
    Ok((counts, spec))
}

fn draw(counts: &[u32], spec: &Spec, split: Split, stream: Stream) -> Result<Task> {
    let drawn = |draws: &mut Draws| {
        let philosophers = *draws.choose(counts)?;
        let table = draws.below(1_000_000);
        let name = format!("{philosophers}-{table}");
        let wanted = streams::split_of(name.as_bytes(), TEST_SHARE) == split;
        wanted
            .then(|| streams::task(NAME, split, &name, write(&Spec { philosophers, table, ..spec.clone() })))
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
        let mut dinner = Dinner::new(&state["spec"])?;
        let played: Played = read_state(&state["played"])?;
        let count = dinner.played.meals.len();
        let whole = played.forks.len() == count && played.meals.len() == count && played.step <= TURNS;
        let in_reach = played.forks.iter().enumerate().all(|(fork, holder)| {
            holder.is_none_or(|holder| holder == fork || holder < count && (holder + 1) % count == fork)
        });
        if !whole || !in_reach {
            return Err(Failure::data("state: played: not of this table"));
        }
        dinner.played = played;
        Ok(Box::new(dinner))
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

/// A table in an episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Played {
    forks: Vec<Option<usize>>,
    meals: Vec<u32>,
    step: u32,
    /// Actions that did something, or said to wait.
    did: u32,
}

/// An episode in progress.
#[derive(Clone)]
struct Dinner {
    spec: Spec,
    workflow: Arc<Workflow>,
    played: Played,
}

impl Dinner {
    fn new(spec: &Value) -> Result<Dinner> {
        let spec: Spec = read(spec)?;
        checked("philosophers", spec.philosophers, 2, 15)?;
        let count = spec.philosophers as usize;
        let played = Played { forks: Forks::free(count).0, meals: vec![0; count], step: 0, did: 0 };
        Ok(Dinner { workflow: around(spec.philosophers), spec, played })
    }

    fn is_prose(&self) -> bool {
        self.spec.encoding == Encoding::Full
    }

    fn forks(&self) -> Forks {
        Forks(self.played.forks.clone())
    }

    fn is_over(&self) -> bool {
        self.played.step >= TURNS || self.forks().is_deadlock()
    }

    fn seat(&self, agent: &str) -> Result<usize> {
        self.workflow.check(agent)?;
        Ok(self.workflow.position(agent).unwrap_or_default())
    }

    /// The text of an action.
    fn say(&self, action: Action) -> String {
        let word = WORDS.iter().find(|(known, ..)| *known == action);
        word.map_or_else(
            String::new,
            |(_, short, long)| if self.is_prose() { (*long).to_owned() } else { format!(" {short}") },
        )
    }

    /// The action of a text, if it has one.
    fn read(&self, text: &str) -> Option<Action> {
        let said = match self.is_prose() {
            true => text.trim().trim_end_matches('.').to_uppercase().replace(' ', "_"),
            false => text.trim().to_owned(),
        };
        let says =
            |(_, short, long): &&(Action, &str, &str)| said == if self.is_prose() { *long } else { *short };
        WORDS.iter().find(says).map(|(action, ..)| *action)
    }

    /// What one who wants to eat could do next.
    fn hungry(&self, seat: usize) -> Vec<Action> {
        let forks = self.forks();
        let [left, right] = forks.sides(seat).map(|fork| forks.0[fork].is_none());
        match (left, right) {
            (true, true) => vec![Action::GrabLeft, Action::GrabRight],
            (true, false) => vec![Action::GrabLeft],
            (false, true) => vec![Action::GrabRight],
            (false, false) => vec![Action::Release, Action::Wait],
        }
    }

    /// One step of all: what the team earned, and of each whether it began to eat and whether it did something.
    fn step(&mut self, said: &[Option<Action>]) -> Result<Outcome> {
        if self.is_over() {
            return Err(Failure::data("the episode is over"));
        }
        let mut forks = self.forks();
        let step = forks.step(said);
        let (stuck, count) = (forks.is_deadlock(), said.len());
        let did: Vec<bool> =
            step.did.iter().zip(said).map(|(did, said)| *did || *said == Some(Action::Wait)).collect();
        let played = &mut self.played;
        played.forks = forks.0;
        played.step += 1;
        played.did += did.iter().filter(|did| **did).count() as u32;
        played.meals.iter_mut().zip(&step.begins).for_each(|(meals, begins)| *meals += u32::from(*begins));
        let over = stuck || played.step == TURNS;
        let best = f64::from(OPTIMUM[count - 2]);
        let begun = step.begins.iter().filter(|begins| **begins).count();
        let mut parts = Vec::new();
        let mut team = begun as f64 / best;
        if self.spec.reward == Paid::Four {
            let terms = [
                ("alive", f64::from(!stuck)),
                ("fairness", table::fairness(&played.meals)),
                ("effective", f64::from(played.did) / f64::from(count as u32 * played.step)),
                ("throughput", f64::from(played.meals.iter().sum::<u32>()) / best),
            ];
            parts.extend(over.then_some(terms).into_iter().flatten());
            team = parts.iter().map(|(_, value)| value).sum::<f64>() / 4.0;
        }
        let agents = self.workflow.agents().iter().map(String::as_str);
        let each: Vec<(&str, Outcome)> = agents
            .zip(step.begins.iter().zip(&did))
            .map(|(agent, (begins, did))| {
                let (ate, did) = (f64::from(u8::from(*begins)), f64::from(u8::from(*did)));
                (
                    agent,
                    Outcome::new(team, if self.spec.own { ate } else { 0.0 }, &[("ate", ate), ("did", did)]),
                )
            })
            .collect();
        let mut outcome = Outcome::together(team, &each);
        outcome.components.extend(parts.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let success = over && !stuck && self.played.meals.iter().all(|meals| *meals >= ENOUGH);
        Ok(Outcome { terminated: over, success, ..outcome })
    }

    /// A step in which those who are not in `actions` wait.
    fn step_of(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        let mut said = vec![Some(Action::Wait); self.workflow.agents().len()];
        for (agent, text) in actions {
            said[self.seat(agent)?] = self.read(text);
        }
        self.step(&said)
    }

    /// The outcome of a step for one agent.
    fn own(agent: &str, outcome: Outcome) -> Outcome {
        let local = outcome.local_of(agent);
        let start = format!("{agent}.");
        let components =
            outcome.components.iter().filter_map(|(name, value)| match name.strip_prefix(&start) {
                Some(own) => Some((own.to_owned(), *value)),
                None => (!name.contains('.')).then(|| (name.clone(), *value)),
            });
        let components = components.collect();
        let rewards = record::sample::Rewards { team: outcome.rewards.team, local };
        Outcome { rewards, components, locals: std::collections::BTreeMap::new(), ..outcome }
    }
}

impl State for Dinner {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        TURNS
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let (forks, count) = (self.forks(), self.spec.philosophers);
        let seat = self.workflow.position(agent).unwrap_or_default();
        let [left, right] = forks.sides(seat).map(|fork| match forks.0[fork] {
            None => 0,
            Some(holder) if holder == seat => 2,
            Some(_) => 1,
        });
        let (number, step, meals) = (seat + 1, self.played.step + 1, self.played.meals[seat]);
        let content = if self.is_prose() {
            let who =
                if self.spec.index { format!("philosopher {number} of {count}, ") } else { String::new() };
            let mood = if forks.eats(seat) { "eating" } else { "hungry" };
            let [left, right] = [left, right].map(|held| ["free", "taken", "yours"][held]);
            format!(
                "You are {who}{mood}. Step {step} of {TURNS}. Meals {meals}. Left fork {left}, right fork {right}. Say GRAB_LEFT, \
                 GRAB_RIGHT, RELEASE or WAIT."
            )
        } else {
            let who = if self.spec.index { format!("{number} {count} ") } else { String::new() };
            let step: Vec<String> = step.to_string().chars().map(String::from).collect();
            format!("at {who}moves {} ok {meals} L {left} R {right} goal", step.join(" "))
        };
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        Ok(Dinner::own(agent, self.step_of(&[(agent, text)])?))
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        self.step_of(actions)
    }

    fn apply_beside(&mut self, agent: &str, text: &str, others: &[(&str, &str)]) -> Result<Option<Outcome>> {
        let actions: Vec<(&str, &str)> = others.iter().copied().chain([(agent, text)]).collect();
        Ok(Some(Dinner::own(agent, self.step_of(&actions)?)))
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        Value::Object(spec::state(
            NAME,
            write(&self.spec),
            self.workflow.name(),
            &json!({"played": self.played}),
        ))
    }

    fn oracle(&self, _agent: &str) -> Option<String> {
        None
    }

    fn is_solved(&self) -> bool {
        self.played.step == TURNS
            && !self.forks().is_deadlock()
            && self.played.meals.iter().all(|meals| *meals >= ENOUGH)
    }

    fn test_actions(&self, _agent: &str) -> Vec<String> {
        let known = WORDS.map(|(action, ..)| self.say(action));
        known.into_iter().chain(["", " wait\n", "GRAB", " L R"].map(str::to_owned)).collect()
    }

    fn draw(&self) -> String {
        let forks = self.played.forks.iter().enumerate();
        let fork = |(fork, holder): (usize, &Option<usize>)| match holder {
            None => "|".to_owned(),
            Some(holder) if *holder == fork => ">".to_owned(),
            Some(_) => "<".to_owned(),
        };
        let around: Vec<String> =
            forks.zip(&self.played.meals).map(|(held, meals)| format!("{} {meals}", fork(held))).collect();
        format!("{}\n", around.join(" "))
    }
}
