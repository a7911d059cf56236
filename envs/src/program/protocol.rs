//! The step protocol of a program: states are episodes that stay here (`handles`).

use std::collections::HashMap;

use record::failure::{Failure, Result};
use record::read::Reader;
use record::write::Writer;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::call::Answer;
use super::episode::{Episode, Start};
use super::outcome::outcome;
use super::roles::Settings;

#[derive(Deserialize)]
struct Request {
    task: Option<Task>,
    state: Option<u64>,
    #[serde(default)]
    fork: bool,
    #[serde(default)]
    drop: Vec<u64>,
    agent: Option<String>,
    action: Option<String>,
    #[serde(default)]
    tool_calls: Vec<Called>,
    #[serde(default)]
    generation: Generation,
}

#[derive(Deserialize)]
struct Task {
    spec: Value,
}

#[derive(Deserialize)]
struct Called {
    name: String,
    /// As text, because integers of any size keep their digits in it.
    arguments: Box<RawValue>,
}

#[derive(Default, Deserialize)]
struct Generation {
    finish_reason: Option<String>,
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
}

/// The episodes of this process.
pub struct States<'a, S> {
    /// By name; second: when the episode was last asked. Dropped before `start`, which serves their calls.
    episodes: HashMap<u64, (Episode, u64)>,
    start: S,
    settings: &'a Settings,
    last: u64,
    clock: u64,
}

/// Answers request lines on stdin.
///
/// # Errors
/// Reading or writing failed; a signal arrived. A fault of a request, or of the program, is its answer.
pub fn run(start: impl Start, settings: &Settings) -> Result<()> {
    let (mut reader, mut writer) = (Reader::stdin(), Writer::stdout());
    let mut states = States::new(start, settings);
    while let Some(line) = reader.next_bytes()? {
        writer.raw(&states.respond(&String::from_utf8_lossy(line.trim_ascii_end()))?)?;
        writer.flush()?;
    }
    Ok(())
}

impl<S: Start> States<'_, S> {
    pub fn new(start: S, settings: &Settings) -> States<'_, S> {
        States { episodes: HashMap::new(), start, settings, last: 0, clock: 0 }
    }

    /// The line that answers `line`.
    ///
    /// # Errors
    /// Nobody reads answers any more, or a signal arrived.
    pub fn respond(&mut self, line: &str) -> Result<String> {
        let request: Option<Map<String, Value>> = serde_json::from_str(line).ok();
        let echo = request.as_ref().and_then(|request| request.get("request")).cloned();
        let read = serde_json::from_str(line).map_err(|error| Failure::data(format!("no request: {error}")));
        let mut answer = match read.and_then(|request| self.answer(request)) {
            Ok(answer) => answer,
            Err(failure) if failure.is_closed() || failure.is_interruption() => return Err(failure),
            Err(Failure { message, hint: None, .. }) => json!({"error": message}),
            Err(Failure { message, hint: Some(hint), .. }) => json!({"error": format!("{message} ({hint})")}),
        };
        answer["request"] = echo.unwrap_or_default();
        Ok(answer.to_string())
    }

    fn answer(&mut self, request: Request) -> Result<Value> {
        for name in &request.drop {
            self.episodes.remove(name);
        }
        let Request { task, state, fork, agent, action, tool_calls, generation, .. } = request;
        if let Some(Task { spec }) = task {
            return self.begin(spec);
        }
        let (Some(name), Some(agent), Some(action)) = (state, agent, action) else {
            return Err(Failure::data("a request has a task, or a state, an agent and an action"));
        };
        let calls = tool_calls.into_iter();
        let answer = Answer {
            number: 0,
            text: action,
            calls: calls.map(|Called { name, arguments }| (name, arguments.get().to_owned())).collect(),
            is_cut: generation.finish_reason.as_deref() == Some("length"),
            prompt_tokens: generation.prompt_tokens.unwrap_or(0),
            completion_tokens: generation.completion_tokens.unwrap_or(0),
        };
        self.step(name, fork, &agent, answer)
    }

    fn begin(&mut self, spec: Value) -> Result<Value> {
        self.make_room();
        let episode = Episode::begin(&mut self.start, spec, self.settings.silence())?;
        if let Some(exit) = episode.exit() {
            let cause = exit.failed.as_ref().map_or_else(String::new, |failed| format!(": {failed}"));
            return Err(Failure::data(format!("the program ended before it called a model{cause}"))
                .hint("is its address of the API another than OPENAI_BASE_URL?"));
        }
        let mut answer = self.seen(&episode);
        let name = self.keep(episode);
        answer["state"] = name.into();
        answer["agents"] = self.settings.names().into();
        answer["order"] = "sequential".into();
        answer["turns"] = self.settings.max_calls.into();
        answer["handles"] = true.into();
        if self.settings.no_copies {
            answer["copies"] = false.into();
        }
        Ok(answer)
    }

    fn step(&mut self, name: u64, fork: bool, agent: &str, answer: Answer) -> Result<Value> {
        self.clock += 1;
        let clock = self.clock;
        let found = self.episodes.get_mut(&name).map(|(episode, used)| {
            *used = clock;
            &*episode
        });
        let Some(episode) = found else { return Err(Failure::data(format!("there is no state {name}"))) };
        match episode.asked() {
            Some(asked) if asked.role != agent => {
                return Err(Failure::data(format!("{} is asked, and not {agent}", asked.role)));
            }
            None => return Err(Failure::data("this episode is over: its program has ended")),
            Some(_) => {}
        }
        if !episode.is_live() && self.settings.no_copies {
            return Err(
                Failure::data("--no-copies: this program is not copied").hint("rollout --sampling parallel")
            );
        }
        if !episode.is_live() {
            self.make_room();
        }
        let name = match (fork, self.episodes.get_mut(&name)) {
            (true, Some((episode, _))) => {
                let copy = episode.fork();
                self.keep(copy)
            }
            _ => name,
        };
        let Some((mut episode, used)) = self.episodes.remove(&name) else {
            return Err(Failure::work("no state"));
        };
        let answered = episode.answer(&mut self.start, answer).and_then(|()| match episode.exit() {
            None => {
                let mut answer = self.seen(&episode);
                answer["rewards"] = json!({"team": 0.0, "local": 0.0});
                (answer["terminated"], answer["success"]) = (false.into(), false.into());
                Ok(answer)
            }
            Some(exit) => outcome(exit, episode.spec(), self.settings),
        });
        self.episodes.insert(name, (episode, used));
        let mut answer = answered?;
        answer["state"] = name.into();
        Ok(answer)
    }

    /// What the role that is asked sees.
    fn seen(&self, episode: &Episode) -> Value {
        let Some(asked) = episode.asked() else { return json!({}) };
        let messages = episode.prompt();
        let observation = match &asked.call.tools {
            None => json!(messages),
            Some(tools) => json!({"messages": messages, "tools": tools}),
        };
        let observations: Map<String, Value> = [(asked.role.clone(), observation)].into_iter().collect();
        json!({"observations": observations, "turn": [asked.role]})
    }

    fn keep(&mut self, episode: Episode) -> u64 {
        (self.last, self.clock) = (self.last + 1, self.clock + 1);
        self.episodes.insert(self.last, (episode, self.clock));
        self.last
    }

    /// Ends the program that was needed least recently if one more would be too many.
    fn make_room(&mut self) {
        let live = self.episodes.values_mut().filter(|(episode, _)| episode.is_live());
        let mut live: Vec<_> = live.collect();
        if live.len() >= self.settings.alive as usize
            && let Some((episode, _)) = live.iter_mut().min_by_key(|(_, used)| *used)
        {
            episode.cool();
        }
    }
}
