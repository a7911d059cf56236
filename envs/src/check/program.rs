//! The contract of a program that answers the step protocol, as far as its responses show it.
//!
//! The response is a pure function of the line, in any order and any process; a state survives a round trip; every text
//! has an outcome; rewards lie in their range; a success ends the episode; an empty action does not succeed; train and
//! test share no instance. If the program supports `probe`, its oracle is compared with every test action.
//!
//! Left out: whether the same seed gives the same tasks, because the program draws none here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use record::failure::{FAILED, Failure, Result};
use record::line::Task;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Effort, Finding, Ledger, episodes, explore, outcome_rules, place, unless_interrupted};
use crate::external::processes::Processes;
use crate::external::{External, MALFORMED};
use environment::{Environment, State};

/// How the program is run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The command, as `sh -c` runs it.
    pub command: String,
    /// How long it may take to answer.
    pub timeout: Duration,
    /// The workflows, at least one; `None`: its default.
    pub workflows: Vec<Option<String>>,
}

/// The results of all rules, and notes about rules that could not be tested.
#[derive(Clone, Debug)]
pub struct Report {
    /// The rules.
    pub findings: Vec<Finding>,
    /// What could not be tested, and why.
    pub notes: Vec<String>,
}

const HANDLES: &str =
    "every situation of a task, and the same answer in another process: states are handles of one";
/// A text as long as a policy at its token limit may write.
const LONG: usize = 1 << 16;
/// The number of every request sent here, so that equal requests are equal lines.
const NUMBER: u64 = 1 << 40;

/// A program whose answers are compared.
pub(super) struct Checker<'a> {
    external: External,
    /// The same environment in this process, if it is built in: it plays the episodes, and the program answers single requests.
    built_in: Option<&'a dyn Environment>,
    /// Processes that get only some of the requests, so that their internal state would differ.
    others: Processes,
    pub(super) workflows: Vec<Option<String>>,
}

/// Tests every rule on `tasks`; calls `advance` after each explored task and every hundred episodes.
pub fn check(
    program: &Program,
    tasks: &[Task],
    effort: &Effort,
    advance: &mut dyn FnMut(),
) -> Result<Report> {
    check_with(Ledger::default(), None, program, tasks, effort, advance)
}

/// [`check`], whose findings are added to `ledger`'s.
pub(super) fn check_with(
    mut ledger: Ledger,
    built_in: Option<&dyn Environment>,
    program: &Program,
    tasks: &[Task],
    effort: &Effort,
    advance: &mut dyn FnMut(),
) -> Result<Report> {
    let Program { command, timeout, workflows } = program.clone();
    let external = External::lenient(&command, timeout);
    let checker = Checker { external, built_in, others: Processes::new(&command, timeout), workflows };
    let mut notes = Vec::new();
    splits(tasks, &mut ledger, &mut notes);
    let explored: Vec<&Task> = ["train", "test"]
        .into_iter()
        .flat_map(|split| {
            tasks.iter().filter(move |task| split_of(task) == split).take(effort.tasks as usize)
        })
        .collect();
    for task in explored.iter().take(1) {
        let begun = checker.external.first_state(task, checker.workflows[0].as_deref());
        if let Some(failure) = begun.err().filter(is_silent) {
            answered(Err(failure), &task.task, &mut ledger)?;
            return Ok(Report { findings: ledger.findings, notes });
        }
        checker.try_probe(task, &mut notes);
        checker.malformed_requests(task, &mut ledger);
    }
    for task in explored {
        for workflow in checker.workflows.iter().map(Option::as_deref) {
            let handles = checker.external.first_state(task, workflow).is_ok_and(|state| state.is_handle());
            if handles && !notes.iter().any(|note| note == HANDLES) {
                notes.push(HANDLES.to_owned());
            }
            let explore = |ledger: &mut Ledger| match handles {
                true => checker.copies(task, workflow, ledger),
                false => {
                    checker.same(&numbered(External::reset_request(task, workflow)), ledger)?;
                    explore::explore(&checker, task, workflow, ledger)
                }
            };
            let tried = checker
                .first_turn(task, workflow, &mut ledger)
                .and_then(|()| explore(&mut ledger))
                .and_then(|()| checker.external.probe_failure().map_or(Ok(()), Err));
            if !answered(tried, &task.task, &mut ledger)? {
                return Ok(Report { findings: ledger.findings, notes });
            }
        }
        advance();
    }
    let episodes = episodes::play(&checker, effort, tasks, &mut ledger, advance)
        .and_then(|()| checker.external.probe_failure().map_or(Ok(()), Err));
    answered(episodes, "episodes", &mut ledger)?;
    Ok(Report { findings: ledger.findings, notes })
}

/// Records a request without an answer as a broken rule, which ends the test. Returns false if two processes
/// in a row gave no answer, because further requests would only take time.
fn answered(tried: Result<()>, what: &str, ledger: &mut Ledger) -> Result<bool> {
    unless_interrupted()?;
    let cause = tried.err();
    let goes_on = !cause.as_ref().is_some_and(is_silent);
    ledger.rule("every question has an answer", cause.is_none(), || {
        let hint = cause.as_ref().and_then(|failure| failure.hint.as_ref());
        let hint = hint.map_or(String::new(), |hint| format!(" ({hint})"));
        format!("{what}: {}{hint}", cause.as_ref().map_or("", |failure| &failure.message))
    });
    Ok(goes_on)
}

/// Returns true if two processes in a row gave no answer.
fn is_silent(failure: &Failure) -> bool {
    failure.code == FAILED
}

fn split_of(task: &Task) -> &str {
    task.split.as_deref().unwrap_or("")
}

/// Rules about tasks.
fn splits(tasks: &[Task], ledger: &mut Ledger, notes: &mut Vec<String>) {
    let mut specs: HashMap<&str, &Value> = HashMap::new();
    for task in tasks {
        let first = *specs.entry(task.task.as_str()).or_insert(&task.spec);
        ledger.rule("a task's name names one spec", *first == task.spec, || {
            format!("{}: {first} and {}", task.task, task.spec)
        });
        ledger.rule("a task's split is train or test", ["train", "test"].contains(&split_of(task)), || {
            format!("{}: '{}'", task.task, split_of(task))
        });
    }
    let of = |split: &'static str| tasks.iter().filter(move |task| split_of(task) == split);
    let mut held_out: HashMap<String, &str> = HashMap::new();
    for task in of("test") {
        held_out.insert(instance(&task.task).to_owned(), &task.task);
        held_out.insert(task.spec.to_string(), &task.task);
    }
    if held_out.is_empty() || of("train").next().is_none() {
        notes.push("train and test are disjoint: the tasks are all of one split".to_owned());
        return;
    }
    for task in of("train") {
        let other = held_out.get(instance(&task.task)).or_else(|| held_out.get(&task.spec.to_string()));
        ledger.rule("train and test are disjoint", other.is_none(), || {
            format!("{} is also {}", task.task, other.copied().unwrap_or_default())
        });
    }
}

/// A state in an answer, exactly as the program wrote it.
#[derive(Deserialize)]
struct RawState<'a> {
    #[serde(borrow)]
    state: &'a RawValue,
}

fn numbered(mut request: Value) -> String {
    request["request"] = NUMBER.into();
    request.to_string()
}

/// The part of a task's name that identifies the instance, without the split.
pub(super) fn instance(task: &str) -> &str {
    task.rsplit('/').next().unwrap_or(task)
}

impl Checker<'_> {
    pub(super) fn begin(&self, task: &Task, workflow: Option<&str>) -> Result<Box<dyn State>> {
        match self.built_in {
            Some(environment) => environment.begin(task, workflow),
            None => self.external.begin(task, workflow),
        }
    }

    /// Tests whether the program supports `probe`, and if so uses it from then on.
    fn try_probe(&self, task: &Task, notes: &mut Vec<String>) {
        let Ok(state) = self.external.first_state(task, self.workflows[0].as_deref()) else { return };
        let Some(agent) = state.workflow().agents().iter().find(|agent| state.acts(agent)) else { return };
        match state.probe(agent) {
            Ok(probed) => {
                self.external.enable_probes();
                if probed.oracle.is_none() {
                    notes.push("nothing that needs an oracle: the program answers `probe` without one".to_owned());
                }
            }
            Err(failure) => notes.push(format!(
                "nothing that needs an oracle, and only the words of the observations as answers: the program does \
                 not answer `probe`, which is optional ({})",
                failure.message
            )),
        }
    }

    /// An invalid request must get an `error`, and must not stop the next one from being read.
    fn malformed_requests(&self, task: &Task, ledger: &mut Ledger) {
        for request in [json!({"nonsense": true}), json!({"state": null}), json!({"task": 3})] {
            let line = numbered(request);
            let answer = self.external.processes().exchange(&line, NUMBER);
            let read = answer.as_deref().ok().and_then(|text| serde_json::from_str::<Value>(text).ok());
            let holds = read.is_some_and(|answer| answer.get("error").is_some());
            ledger.rule("a request that makes no sense is answered with `error`", holds, || match answer {
                Ok(text) => format!("{line}: {text}"),
                Err(failure) => format!("{line}: {}", failure.message),
            });
        }
        let begun = self.external.first_state(task, self.workflows[0].as_deref());
        ledger.rule("after it the next request is read", begun.is_ok(), || {
            begun.err().map_or(String::new(), |failure| failure.message)
        });
    }

    /// Tests once per task and workflow: all kinds of malformed actions of every agent of the first turn.
    fn first_turn(&self, task: &Task, workflow: Option<&str>, ledger: &mut Ledger) -> Result<()> {
        let long = "so on ".repeat(LONG / 6);
        let mut state = self.begin(task, workflow)?;
        let workflow = Arc::clone(state.workflow());
        for stage in 0..workflow.stages() {
            let acting = state.acting(stage);
            let agents: Vec<&String> = acting.iter().map(|agent| &workflow.agents()[*agent]).collect();
            if agents.is_empty() {
                continue;
            }
            for &agent in &agents {
                let observed = state.observe(agent);
                let holds = observed.last().is_some_and(|message| !message.content.is_empty());
                ledger.rule("every agent sees something", holds, || format!("{agent} of {}", task.task));
                for text in MALFORMED.iter().copied().chain([long.as_str()]) {
                    let outcome = state.clone_state().apply(agent, text);
                    ledger.rule("every text has an outcome", outcome.is_ok(), || {
                        let shown: String = text.chars().take(40).collect();
                        let cause = outcome.as_ref().err().map_or("", |failure| &failure.message);
                        format!("{}: {cause}", place(&*state, agent, &shown))
                    });
                    if let Err(failure) = outcome
                        && is_silent(&failure)
                    {
                        return Err(failure);
                    }
                }
            }
            let texts: Vec<String> = agents
                .iter()
                .map(|agent| state.oracle(agent).or_else(|| state.test_actions(agent).into_iter().next()))
                .map(Option::unwrap_or_default)
                .collect();
            let actions: Vec<(&str, &str)> =
                agents.iter().map(|agent| agent.as_str()).zip(texts.iter().map(String::as_str)).collect();
            if state.apply_together(&actions)?.terminated {
                break;
            }
        }
        Ok(())
    }

    /// Copies of a state that stays in its process have the same future, and leave the original alone.
    fn copies(&self, task: &Task, workflow: Option<&str>, ledger: &mut Ledger) -> Result<()> {
        let mut state = self.begin(task, workflow)?;
        let workflow = Arc::clone(state.workflow());
        for stage in (0..state.turn_limit()).flat_map(|_| 0..workflow.stages()) {
            for agent in state.acting(stage).into_iter().map(|agent| &workflow.agents()[agent]) {
                let texts = state.test_actions(agent);
                let tried = |text: &String| {
                    let mut copy = state.clone_state();
                    copy.apply(agent, text).map(|outcome| (outcome, copy.to_json()))
                };
                let first = texts.iter().map(tried).collect::<Result<Vec<_>>>()?;
                let again = texts.iter().map(tried).collect::<Result<Vec<_>>>()?;
                ledger.rule("a copy of a state has the same future", first == again, || {
                    let differs = (0..texts.len()).find(|text| first[*text] != again[*text]).unwrap_or(0);
                    place(&*state, agent, &texts[differs])
                });
                if let Some((outcome, _)) = first.first() {
                    outcome_rules(state.reward_range(), outcome, ledger, || place(&*state, agent, &texts[0]));
                }
            }
            let acting: Vec<&String> =
                state.acting(stage).into_iter().map(|agent| &workflow.agents()[agent]).collect();
            let texts: Vec<String> =
                acting.iter().map(|agent| state.test_actions(agent).swap_remove(0)).collect();
            let actions: Vec<(&str, &str)> =
                acting.iter().map(|agent| agent.as_str()).zip(texts.iter().map(String::as_str)).collect();
            if !actions.is_empty() && state.apply_together(&actions)?.terminated {
                break;
            }
        }
        Ok(())
    }

    /// A line must get one answer: twice in a row, and from a process that was asked other things.
    fn same(&self, line: &str, ledger: &mut Ledger) -> Result<String> {
        let first = self.external.processes().exchange(line, NUMBER)?;
        let again = self.external.processes().exchange(line, NUMBER)?;
        ledger.rule("the same line has the same answer", first == again, || {
            format!("{line}: {first} and then {again}")
        });
        let other = self.others.exchange(line, NUMBER)?;
        ledger.rule("another process gives the same answer", first == other, || {
            format!("{line}: {first}, another process {other}")
        });
        Ok(first)
    }

    /// Tests that the outcome of `agent` saying `text` depends only on the state.
    pub(super) fn fidelity(
        &self,
        state: &dyn State,
        agent: &str,
        text: &str,
        ledger: &mut Ledger,
    ) -> Result<()> {
        let action = |state: &str| {
            let (agent, text) = (json!(agent), json!(text));
            format!("{{\"state\":{state},\"agent\":{agent},\"action\":{text},\"request\":{NUMBER}}}")
        };
        let answer = self.same(&action(&state.to_json().to_string()), ledger)?;
        let Ok(RawState { state: written }) = serde_json::from_str(&answer) else { return Ok(()) };
        let read: Value = serde_json::from_str(written.get()).unwrap_or_default();
        if serde_json::from_str::<Value>(&answer).is_ok_and(|answer| answer["terminated"] == true) {
            return Ok(());
        }
        let as_written = self.external.processes().exchange(&action(written.get()), NUMBER)?;
        let as_read = self.external.processes().exchange(&action(&read.to_string()), NUMBER)?;
        ledger.rule("a state survives JSON", as_written == as_read, || {
            format!("{written} and {read}: {as_written} and {as_read}")
        });
        Ok(())
    }
}
