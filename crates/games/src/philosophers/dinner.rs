//! An episode at a table: what philosophers see, say and earn.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::{Message, Rewards};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::table::{self, Action, Forks, OPTIMUM};
use environment::settings::Encoding;
use environment::spec::{self, checked, read, read_state, write};
use environment::workflow::Workflow;
use environment::{Outcome, State};

pub const NAME: &str = "philosophers";
/// Steps of an episode.
pub const TURNS: u32 = 12;
/// Meals of each philosopher that make a success.
const ENOUGH: u32 = 2;
/// Actions with their compact words and their names in prose.
pub const WORDS: [(Action, &str, &str); 4] = [
    (Action::GrabLeft, "L", "GRAB_LEFT"),
    (Action::GrabRight, "R", "GRAB_RIGHT"),
    (Action::Release, "D", "RELEASE"),
    (Action::Wait, "none", "WAIT"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paid {
    Meals,
    Four,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    pub philosophers: u32,
    /// Which of many tables that are alike.
    pub table: u32,
    pub reward: Paid,
    /// An agent's meals are its local reward, too.
    pub own: bool,
    /// An agent is told its number.
    pub index: bool,
    pub encoding: Encoding,
}

/// The workflow of a table.
pub fn around(count: u32) -> Arc<Workflow> {
    let names: Vec<String> = (1..=count).map(|number| format!("philosopher-{number}")).collect();
    Workflow::parallel("team", &names.iter().map(String::as_str).collect::<Vec<&str>>())
}

/// A table in an episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Played {
    forks: Vec<Option<usize>>,
    meals: Vec<u32>,
    pub step: u32,
    /// Actions that did something, or said to wait.
    did: u32,
}

/// An episode in progress.
#[derive(Clone)]
pub struct Dinner {
    pub spec: TableSpec,
    pub workflow: Arc<Workflow>,
    pub played: Played,
}

impl Dinner {
    pub fn new(spec: &Value) -> Result<Dinner> {
        let spec: TableSpec = read(spec)?;
        checked("philosophers", spec.philosophers, 2, 15)?;
        let count = spec.philosophers as usize;
        let played = Played { forks: Forks::free(count).0, meals: vec![0; count], step: 0, did: 0 };
        Ok(Dinner { workflow: around(spec.philosophers), spec, played })
    }

    pub fn restore(state: &Value) -> Result<Dinner> {
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
        Ok(dinner)
    }

    fn is_prose(&self) -> bool {
        self.spec.encoding == Encoding::Full
    }

    fn forks(&self) -> Forks {
        Forks(self.played.forks.clone())
    }

    pub fn is_over(&self) -> bool {
        self.played.step >= TURNS || self.forks().is_deadlock()
    }

    fn seat(&self, agent: &str) -> Result<usize> {
        self.workflow.check(agent)?;
        Ok(self.workflow.position(agent).unwrap_or_default())
    }

    /// The text of an action.
    pub fn say(&self, action: Action) -> String {
        let word = WORDS.iter().find(|(known, ..)| *known == action);
        word.map_or_else(
            String::new,
            |(_, short, long)| if self.is_prose() { (*long).to_owned() } else { format!(" {short}") },
        )
    }

    pub fn read(&self, text: &str) -> Option<Action> {
        let said = match self.is_prose() {
            true => text.trim().trim_end_matches('.').to_uppercase().replace(' ', "_"),
            false => text.trim().to_owned(),
        };
        let says =
            |(_, short, long): &&(Action, &str, &str)| said == if self.is_prose() { *long } else { *short };
        WORDS.iter().find(says).map(|(action, ..)| *action)
    }

    /// What one who wants to eat could do next.
    pub fn hungry(&self, seat: usize) -> Vec<Action> {
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
    pub fn step(&mut self, said: &[Option<Action>]) -> Result<Outcome> {
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
        let rewards = Rewards { team: outcome.rewards.team, local };
        Outcome { rewards, components, locals: BTreeMap::new(), ..outcome }
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
