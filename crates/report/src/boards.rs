//! The board before each agent's turn, as `envs play` draws it for a person.
//!
//! The record has texts, not states, so `envs step` plays the executed actions again and draws the boards.
//! Left out: environments that draw no board; parallel episodes and joint actions; programs of
//! `--env-command`, which a report does not run.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use record::line::{self, Task};
use record::read::{Kind, Reader};
use serde_json::{Map, Value, json};

use crate::episodes::EpisodeTree;

/// Draws the boards of a stream's episodes.
#[derive(Default)]
pub struct Boards {
    workflow: Option<String>,
    /// Tasks of the stream, in order.
    tasks: Option<Box<dyn Iterator<Item = Task>>>,
    /// Tasks read so far, by name.
    read: HashMap<String, Task>,
    /// Environments by name; `None` for one without boards.
    environments: HashMap<String, Option<Environment>>,
}

impl Boards {
    /// Boards of a training step, whose tasks are in a file.
    pub fn of_step(settings: &Map<String, Value>, tasks: &Path) -> Boards {
        let reader = record::file::regular(tasks).ok().map(|file| Reader::new("tasks", file));
        reader.map_or_else(Boards::default, |reader| Boards::new(settings, tasks_of(reader)))
    }

    /// Boards of an evaluation; its tasks are drawn again when the first board is needed.
    pub fn of_evaluation(settings: &Map<String, Value>) -> Boards {
        let text = |key| settings.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, count) = (text("env"), text("eval_tasks"));
        let mut command =
            vec!["tasks".to_owned(), name, "--split=test".to_owned(), format!("--count={count}")];
        command.extend(text("settings").split_whitespace().map(|setting| format!("--set={setting}")));
        let drawn = std::iter::once_with(move || envs(&command, Stdio::null()))
            .flatten()
            .filter_map(|mut child| child.stdout.take())
            .flat_map(|stdout| tasks_of(Reader::new("tasks", stdout)));
        Boards::new(settings, Box::new(drawn))
    }

    fn new(settings: &Map<String, Value>, tasks: Box<dyn Iterator<Item = Task>>) -> Boards {
        let workflow = settings.get("workflow").and_then(Value::as_str).filter(|name| !name.is_empty());
        Boards { workflow: workflow.map(str::to_owned), tasks: Some(tasks), ..Boards::default() }
    }

    /// Adds the boards of an episode: to each group the board before it, if the group before saw another one,
    /// and the last board.
    pub fn draw(&mut self, episode: &mut EpisodeTree) {
        let Some((boards, last)) = self.replay(episode) else { return };
        let mut shown = None;
        for (group, board) in episode.groups.iter_mut().zip(boards) {
            if board.is_some() && board != shown {
                shown.clone_from(&board);
                group.board = board;
            }
        }
        episode.board = Some(last);
    }

    /// The board before each group, and the last one.
    fn replay(&mut self, episode: &EpisodeTree) -> Option<(Vec<Option<String>>, String)> {
        let [ended] = &episode.ended[..] else { return None };
        if !episode.joint.is_empty() || matches!(self.environments.get(&*episode.env), Some(None)) {
            return None;
        }
        let mut request = json!({"task": self.task(&episode.task)?});
        if let Some(workflow) = &self.workflow {
            request["workflow"] = workflow.as_str().into();
        }
        let slot = self.environments.entry(episode.env.to_string());
        let slot = slot.or_insert_with(|| Environment::start(&episode.env));
        let start = slot.as_mut()?.ask(request)?;
        let Some(mut board) = text(&start, "board") else {
            *slot = None;
            return None;
        };
        let (environment, stages) = (slot.as_mut()?, stages(&start)?);
        let (mut boards, mut solved) = (vec![None; episode.groups.len()], false);
        let mut state = start["state"].clone();
        'turns: for turn in 0..ended.turns {
            for stage in &stages {
                let mut actions = Map::new();
                for agent in stage {
                    let place = episode
                        .groups
                        .iter()
                        .position(|group| group.turn == turn && group.agent == *agent)?;
                    boards[place] = Some(board.clone());
                    actions.insert(agent.clone(), episode.groups[place].executed()?.into());
                }
                let after = environment.ask(json!({"state": state, "actions": actions}))?;
                (board, state) = (text(&after, "board")?, after["state"].clone());
                solved |= after["success"] == true;
                if after["terminated"] == true {
                    break 'turns;
                }
            }
        }
        // Otherwise the environment is another one today.
        (solved == ended.success).then_some((boards, board))
    }

    fn task(&mut self, name: &str) -> Option<&Task> {
        while !self.read.contains_key(name) {
            let task = self.tasks.as_mut()?.next()?;
            self.read.insert(task.task.clone(), task);
        }
        self.read.get(name)
    }
}

fn tasks_of(mut reader: Reader<impl std::io::Read + 'static>) -> Box<dyn Iterator<Item = Task>> {
    let lines = std::iter::from_fn(move || reader.next().ok().flatten());
    Box::new(lines.filter(|line| line.kind == Kind::Task).map_while(|line| line::parse(&line).ok()))
}

/// Runs the program `envs` of this build; `None` if there is none.
fn envs(arguments: &[String], stdin: Stdio) -> Option<Child> {
    let program = std::env::current_exe().ok()?.with_file_name("envs");
    Command::new(program)
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

/// A process of `envs step`.
struct Environment {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Environment {
    fn start(name: &str) -> Option<Environment> {
        let mut child = envs(&["step".to_owned(), name.to_owned()], Stdio::piped())?;
        let (requests, answers) = (child.stdin.take(), BufReader::new(child.stdout.take()?));
        Some(Environment { child, requests, answers })
    }

    /// The answer to `request`, with the board of its state.
    fn ask(&mut self, mut request: Value) -> Option<Value> {
        request["draw"] = true.into();
        writeln!(self.requests.as_mut()?, "{request}").ok()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).ok()?;
        serde_json::from_str(&answer).ok()
    }
}

impl Drop for Environment {
    /// The process ends when its stdin does.
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}

fn text(answer: &Value, key: &str) -> Option<String> {
    answer[key].as_str().map(str::to_owned)
}

/// The agents that act at once, stage by stage.
fn stages(start: &Value) -> Option<Vec<Vec<String>>> {
    let agents: Vec<String> = serde_json::from_value(start["agents"].clone()).ok()?;
    match start["order"].as_str() {
        Some("sequential") => Some(agents.into_iter().map(|agent| vec![agent]).collect()),
        Some(_) => Some(vec![agents]),
        None => serde_json::from_value(start["order"].clone()).ok(),
    }
}
