//! The step protocol: an environment as lines of JSON, with one answer per request, in order.
//!
//! A request with `task` resets: the response holds the first `state`, the observations, the agents and their
//! order (`sequential`, `parallel`, or stages as arrays of agents). A request with `state`, `agent` and
//! `action` is answered with the next state and the action's reward. One with `state` and `actions`, an
//! object of texts by agent, executes the actions of a stage of several agents together, and `rewards.local`
//! has a number for each of them. The reset response has `together: true` if that is supported; otherwise
//! actions are executed one after another. It has `reward_range` if rewards leave [0, 1]. With `beside`, the
//! chosen actions of the others in the stage, `action` is scored together with them. A request with `state`,
//! `agent` and `"probe":true` changes nothing: it returns `probes` (test actions), `oracle` (an action that
//! no other outscores, or null) and `solved`; only `envs check` sends it. Thoughts in an action ([`thoughts`]) are no part
//! of it. A null observation means that its agent skips its turn. With `"draw":true` an answer has the `board` of its state as text, if the
//! environment draws one.
//!
//! `request`, of any type, is echoed; unknown fields are ignored. An invalid request is answered with
//! `error`, and the next one is read. The response is a pure function of the line: the same line gives the
//! same bytes, in any order and any process.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::thoughts;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use environment::{Environment, Outcome, State};

/// Answers one request line with one answer line, both without line feed.
pub fn answer(environment: &dyn Environment, line: &str) -> String {
    let parsed: std::result::Result<Map<String, Value>, _> = serde_json::from_str(line);
    let mut answer = Map::new();
    match parsed {
        Err(error) => {
            answer.insert("error".to_owned(), format!("the request is no JSON object: {error}").into());
        }
        Ok(mut request) => {
            if let Some(echo) = request.remove("request") {
                answer.insert("request".to_owned(), echo);
            }
            match respond(environment, &request) {
                Ok(Value::Object(fields)) => answer.extend(fields),
                Ok(other) => drop(answer.insert("answer".to_owned(), other)),
                Err(failure) => {
                    let hint = failure.hint.map_or(String::new(), |hint| format!(" ({hint})"));
                    answer.insert("error".to_owned(), format!("{}{hint}", failure.message).into());
                }
            }
        }
    }
    Value::Object(answer).to_string()
}

fn respond(environment: &dyn Environment, request: &Map<String, Value>) -> Result<Value> {
    match (request.get("task"), request.get("state")) {
        (Some(task), None) => reset(environment, task, request),
        (None, Some(state)) => step(environment, state, request),
        _ => {
            Err(Failure::data("a request has either `task`, which resets, or `state`, `agent` and `action`"))
        }
    }
}

fn reset(environment: &dyn Environment, task: &Value, request: &Map<String, Value>) -> Result<Value> {
    if ["agent", "action", "actions", "probe"].iter().any(|key| request.contains_key(*key)) {
        return Err(Failure::data(
            "`task` resets and takes neither `agent` nor `action`; an action needs `state`",
        ));
    }
    if let Some(env) = task.get("env").filter(|env| *env != environment.name()) {
        return Err(Failure::data(format!("task.env is {env}, not \"{}\"", environment.name())));
    }
    let spec = task.get("spec").ok_or_else(|| Failure::data("`task` has no `spec`"))?;
    let workflow = match request.get("workflow") {
        None => environment.default_workflow(),
        Some(name) => name.as_str().ok_or_else(|| Failure::data("`workflow` is no text"))?,
    };
    let state = environment.reset(spec, workflow)?;
    let mut answer = json!({
        "state": state.to_json(),
        "observations": observations(&*state),
        "agents": state.workflow().agents(),
        "order": state.workflow().order(),
        "turns": state.turn_limit(),
        "together": true,
    });
    if state.reward_range() != (0.0, 1.0) {
        answer["reward_range"] = json!(state.reward_range());
    }
    Ok(drawn(answer, &*state, request))
}

fn step(environment: &dyn Environment, state: &Value, request: &Map<String, Value>) -> Result<Value> {
    if request.contains_key("workflow") {
        return Err(Failure::data("`workflow` belongs to a reset; a state knows its own"));
    }
    let text = |key: &str| match request.get(key) {
        None => Err(Failure::data(format!("a request with `state` needs `{key}`"))),
        Some(value) => value.as_str().ok_or_else(|| Failure::data(format!("`{key}` is no text"))),
    };
    let mut state = environment.restore(state)?;
    if request.contains_key("probe") {
        return probe(&*state, text("agent")?, request);
    }
    let outcome = match (request.get("actions"), request.get("beside")) {
        (Some(actions), _) => together(&mut *state, request, actions)?,
        (None, others) => {
            let (agent, action) = (text("agent")?, text("action")?);
            let action = thoughts::answer(action, false);
            let others = others.map_or(Ok(BTreeMap::new()), |others| texts(&*state, "beside", others))?;
            if others.contains_key(agent) {
                return Err(Failure::data(format!(
                    "`beside` holds the others' actions, and none of '{agent}'"
                )));
            }
            let others: Vec<(&str, &str)> = others.iter().map(|(agent, text)| (&**agent, &**text)).collect();
            let joint = if others.is_empty() { None } else { state.apply_beside(agent, action, &others)? };
            joint.map_or_else(|| state.apply(agent, action), Ok)?
        }
    };
    let observations = if outcome.terminated { json!({}) } else { observations(&*state) };
    let mut answer = json!({
        "state": state.to_json(),
        "rewards": rewards(&outcome),
        "reward_components": outcome.components,
        "terminated": outcome.terminated,
        "success": outcome.success,
        "observations": observations,
    });
    if let Some(info) = outcome.info {
        answer["info"] = serde_json::from_str(&info).map_err(Failure::work)?;
    }
    Ok(drawn(answer, &*state, request))
}

/// Adds the board of `state`, if it has one and the request says `draw`.
fn drawn(mut answer: Value, state: &dyn State, request: &Map<String, Value>) -> Value {
    if let Some(board) = state.board().filter(|_| request.get("draw") == Some(&Value::Bool(true))) {
        answer["board"] = board.into();
    }
    answer
}

/// The rewards as the protocol writes them.
pub(crate) fn rewards(outcome: &Outcome) -> Value {
    match outcome.locals.is_empty() {
        true => json!(outcome.rewards),
        false => json!({"team": outcome.rewards.team, "local": outcome.locals}),
    }
}

/// Test actions and oracle; no oracle if the task is solved.
fn probe(state: &dyn State, agent: &str, request: &Map<String, Value>) -> Result<Value> {
    if request.contains_key("action") || request.contains_key("actions") || request["probe"] != true {
        return Err(Failure::data("`probe` is true, and takes the place of an action"));
    }
    state.workflow().check(agent)?;
    Ok(match state.is_solved() {
        true => json!({"probes": [], "oracle": null, "solved": true}),
        false => json!({"probes": state.test_actions(agent), "oracle": state.oracle(agent), "solved": false}),
    })
}

/// Executes `actions`, texts by agent, in the order of the workflow.
fn together(state: &mut dyn State, request: &Map<String, Value>, actions: &Value) -> Result<Outcome> {
    if request.contains_key("agent") || request.contains_key("action") {
        return Err(Failure::data("`actions` takes the place of `agent` and `action`"));
    }
    let texts = texts(state, "actions", actions)?;
    let workflow = Arc::clone(state.workflow());
    let actions: Vec<(&str, &str)> = workflow
        .agents()
        .iter()
        .filter_map(|agent| Some((agent.as_str(), texts.get(agent)?.as_str())))
        .collect();
    state.apply_together(&actions)
}

/// The answers by agent in the field `name`.
fn texts(state: &dyn State, name: &str, value: &Value) -> Result<BTreeMap<String, String>> {
    let texts: BTreeMap<String, String> = BTreeMap::deserialize(value)
        .map_err(|error| Failure::data(format!("`{name}` are no texts by agent: {error}")))?;
    texts.keys().try_for_each(|agent| state.workflow().check(agent))?;
    let answer = |(agent, text): (String, String)| (agent, thoughts::answer(&text, false).to_owned());
    Ok(texts.into_iter().map(answer).collect())
}

/// Each agent's observation; null for one that skips its turn.
fn observations(state: &dyn State) -> Value {
    let seen = |agent: &String| state.acts(agent).then(|| state.observe(agent));
    let agents = state.workflow().agents();
    agents.iter().map(|agent| (agent.clone(), json!(seen(agent)))).collect::<Map<_, _>>().into()
}
