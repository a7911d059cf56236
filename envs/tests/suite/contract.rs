//! Tests of `envs check`: each flaw, planted into a sound environment, breaks the rule about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use envs::check::{Effort, Finding, check, verdict};
use envs::{
    Demonstration, Demonstrator, Environment, ExtractionCase, Outcome, Selection, Setting, Settings, Split,
    State, Tasks, Workflow, find,
};
use games::grid::world::GridWorld;
use games::plan_path::Instance;
use games::plan_path::map::Position;
use record::failure::Result;
use record::sample::Message;
use serde_json::Value;

/// The planted flaw.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// The paper's printed rule: ground covered twice is paid twice.
    PaysForDawdling,
    /// One step short of the goal is good enough.
    EarlySuccess,
    /// Malformed answers get something for trying.
    PaysForNonsense,
    /// Rewards above 1.
    OutOfRange,
    /// JSON forgets how far the walker has come.
    ForgetfulJson,
    /// Repeating an action does not always earn the same.
    Moody,
    /// The test split depends on the seed.
    LooseTestSplit,
    /// Test tasks come from the train split.
    Leak,
    /// The oracle stays where it is.
    LazyOracle,
    /// A joint action earns something for whose text comes first.
    Ordered,
    /// In a joint action, the agent whose text comes first earns something locally.
    FirstEarns,
    /// A joint action says what one of its agents earned, and not what the other did.
    NamesOne,
    /// A tool is paid the same for everything.
    FlatTool,
}

struct Flawed(Flaw);

impl Flawed {
    fn sound(&self) -> &'static dyn Environment {
        let joint = matches!(self.0, Flaw::Ordered | Flaw::FirstEarns | Flaw::NamesOne);
        find(if joint { "write" } else { "plan-path" }).unwrap()
    }

    fn wrap(&self, state: Box<dyn State>) -> Box<dyn State> {
        Box::new(FlawedState { flaw: self.0, state })
    }
}

impl Environment for Flawed {
    fn name(&self) -> &str {
        self.sound().name()
    }
    fn summary(&self) -> &'static str {
        ""
    }
    fn workflows(&self) -> &[Arc<Workflow>] {
        self.sound().workflows()
    }
    fn settings(&self) -> &'static [Setting] {
        self.sound().settings()
    }
    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let mut selection = selection.clone();
        match self.0 {
            Flaw::Leak => selection.split = Split::Train,
            Flaw::LooseTestSplit if selection.split == Split::Test => {
                let skipped = selection.seed as usize;
                return Ok(Box::new(self.sound().tasks(&selection)?.skip(skipped)));
            }
            _ => {}
        }
        self.sound().tasks(&selection)
    }
    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        Ok(self.wrap(self.sound().reset(spec, workflow)?))
    }
    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        Ok(self.wrap(self.sound().restore(state)?))
    }
    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        self.sound().extraction_cases()
    }
    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        &[]
    }
    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        self.sound().demonstrator(demonstration)
    }
}

struct FlawedState {
    flaw: Flaw,
    state: Box<dyn State>,
}

static MOOD: AtomicU64 = AtomicU64::new(0);

impl FlawedState {
    /// The distance from the walker to the goal.
    fn distance(state: &dyn State) -> u16 {
        let json = state.to_json();
        let instance = Instance::parse(&json["spec"]).unwrap();
        let place = Position::parse(json["position"].as_str().unwrap()).unwrap();
        instance.map.distance(instance.map.cell(place))
    }
}

impl State for FlawedState {
    fn workflow(&self) -> &Arc<Workflow> {
        self.state.workflow()
    }
    fn turn_limit(&self) -> u32 {
        self.state.turn_limit()
    }
    fn observe(&self, agent: &str) -> Vec<Message> {
        self.state.observe(agent)
    }
    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        let before = if self.flaw == Flaw::PaysForDawdling { Self::distance(&*self.state) } else { 0 };
        let mut outcome = self.state.apply(agent, text)?;
        match self.flaw {
            Flaw::PaysForDawdling if agent == "planner" && !outcome.success => {
                let after = Self::distance(&*self.state);
                outcome.rewards.team = f64::from(before.saturating_sub(after)) / 9.0;
            }
            Flaw::EarlySuccess if outcome.rewards.team >= 0.75 => {
                outcome.terminated = true;
                outcome.success = true;
            }
            Flaw::PaysForNonsense if outcome.components["format"] == 0.0 => outcome.rewards.local = 0.05,
            Flaw::FlatTool if agent == "tool" => {
                outcome.rewards.team = 0.0;
                outcome.rewards.local = 0.5;
            }
            Flaw::OutOfRange => outcome.rewards.team *= 1.5,
            Flaw::Moody => {
                outcome.rewards.local *= 1.0 - (MOOD.fetch_add(1, Ordering::Relaxed) % 3) as f64 / 10.0
            }
            _ => {}
        }
        Ok(outcome)
    }
    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        let mut outcome = self.state.apply_together(actions)?;
        let first = actions[0].0;
        match self.flaw {
            Flaw::Ordered if first == "writer-2" => outcome.rewards.team /= 2.0,
            Flaw::FirstEarns => {
                outcome.locals = actions
                    .iter()
                    .map(|(agent, _)| ((*agent).to_owned(), if *agent == first { 0.2 } else { 0.0 }))
                    .collect();
                outcome.rewards.local = 0.1;
            }
            Flaw::NamesOne => outcome.locals = [("writer-1".to_owned(), 0.1)].into(),
            _ => {}
        }
        Ok(outcome)
    }
    fn reward_range(&self) -> (f64, f64) {
        self.state.reward_range()
    }
    fn clone_state(&self) -> Box<dyn State> {
        Box::new(FlawedState { flaw: self.flaw, state: self.state.clone_state() })
    }
    fn to_json(&self) -> Value {
        let mut json = self.state.to_json();
        if self.flaw == Flaw::ForgetfulJson {
            json["best"] = 0.into();
        }
        json
    }
    fn oracle(&self, agent: &str) -> Option<String> {
        if self.flaw == Flaw::LazyOracle { Some(" U D".to_owned()) } else { self.state.oracle(agent) }
    }
    fn is_solved(&self) -> bool {
        self.state.is_solved()
    }
    fn test_actions(&self, agent: &str) -> Vec<String> {
        self.state.test_actions(agent)
    }
    fn draw(&self) -> String {
        self.state.draw()
    }
}

fn findings(flaw: Flaw) -> Vec<Finding> {
    let effort = Effort { tasks: 1, episodes: 200, seed: 1, settings: Settings::default() };
    check(&Flawed(flaw), &effort, &mut || ()).unwrap()
}

#[test]
fn a_sound_environment_keeps_every_rule() {
    let findings = findings(Flaw::None);
    verdict("plan-path", &findings).unwrap();
    assert!(findings.iter().all(|finding| finding.tried > 0) && findings.len() >= 16, "{findings:?}");
}

/// The shaped reward pays a planner in every turn without a mistake; a reward for success alone does not.
#[test]
fn environments_in_which_idling_pays_are_named() {
    for (environment, setting, pays) in [
        ("plan-path", "reward=shaped", true),
        ("plan-path", "reward=success", false),
        ("sokoban", "reward=shaped", true),
        ("sokoban", "reward=success", false),
        ("sudoku", "reward=success", false),
        ("math", "reward=shaped", true),
        ("math", "reward=success", false),
    ] {
        let environment = find(environment).unwrap();
        let texts = [setting.to_owned()];
        let settings = Settings::parse(&texts, environment.name(), environment.settings()).unwrap();
        let effort = Effort { tasks: 2, episodes: 20, seed: 1, settings };
        let findings = check(environment, &effort, &mut || ()).unwrap();
        verdict(environment.name(), &findings).unwrap();
        let advice = findings.iter().find(|finding| finding.advice).unwrap();
        assert_eq!(advice.rule, "idling pays nothing under --credit return");
        assert_eq!(advice.broken.is_some(), pays, "{} {setting}: {advice:?}", environment.name());
    }
}

#[test]
fn an_agent_that_earns_the_same_for_everything_is_named() {
    for (flaw, broken) in [
        (Flaw::None, None),
        (Flaw::FlatTool, Some("tool earned 0.5 in every turn: all of its groups will be flat")),
    ] {
        let findings = findings(flaw);
        let rule = "what an agent earns depends on what it says";
        let finding = findings.iter().find(|finding| finding.rule == rule).unwrap();
        assert!(finding.advice && finding.tried == 2, "{finding:?}");
        assert_eq!(finding.broken.as_deref(), broken);
    }
}

#[test]
fn each_flaw_breaks_its_rule() {
    for (flaw, rule) in [
        (Flaw::PaysForDawdling, "no path collects more team reward than the oracle's"),
        (Flaw::EarlySuccess, "a success is one to the oracle"),
        (Flaw::PaysForNonsense, "answers are read as a reader expects"),
        (Flaw::OutOfRange, "rewards stay in their range"),
        (Flaw::ForgetfulJson, "a state survives JSON"),
        (Flaw::Moody, "the same action has the same consequence"),
        (Flaw::LooseTestSplit, "no seed changes the test split"),
        (Flaw::Leak, "train and test are disjoint"),
        (Flaw::LazyOracle, "the oracle solves every task"),
        (Flaw::LazyOracle, "no action scores above the oracle's"),
        (Flaw::Ordered, "a joint action has no order"),
        (Flaw::FirstEarns, "a joint action has no order"),
        (Flaw::NamesOne, "a joint action says what each agent earned"),
    ] {
        let findings = findings(flaw);
        let broken: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.broken.is_some() && !finding.advice)
            .map(|finding| finding.rule)
            .collect();
        assert!(broken.contains(&rule), "{flaw:?} broke {broken:?}, not {rule:?}");
        assert_eq!(verdict("plan-path", &findings).unwrap_err().code, 1);
    }
}
