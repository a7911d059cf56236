//! What a person would have seen: the board before each agent's turn, as `envs play` draws it.
//!
//! The record has texts, not states, so the executed actions are played again. Left out: environments whose state is no board, among them
//! those that run programs; parallel episodes and joint actions; programs of `--env-command`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use envs::{Selection, Settings, Split};
use record::line::{self, Task};
use record::read::{Kind, Reader};
use serde_json::{Map, Value};

use crate::episodes::EpisodeTree;

/// The environments whose state is a board.
const WITH_BOARDS: [&str; 4] = ["plan-path", "sokoban", "sudoku", "tic-tac-toe"];

/// Draws the boards of a stream's episodes.
#[derive(Default)]
pub struct Boards {
    workflow: Option<String>,
    /// Tasks of the stream, in order.
    tasks: Option<Box<dyn Iterator<Item = Task>>>,
    /// Specs of the tasks read so far, by name.
    specs: HashMap<String, Value>,
}

impl Boards {
    /// Boards of a training step, whose tasks are in a file.
    pub fn of_step(settings: &Map<String, Value>, tasks: &Path) -> Boards {
        let Some(mut reader) = record::file::regular(tasks).ok().map(|file| Reader::new("tasks", file))
        else {
            return Boards::default();
        };
        let lines = std::iter::from_fn(move || reader.next().ok().flatten());
        let tasks = lines.filter(|line| line.kind == Kind::Task).map_while(|line| line::parse(&line).ok());
        Boards::new(settings, Box::new(tasks))
    }

    /// Boards of an evaluation, whose tasks are drawn again.
    pub fn of_evaluation(settings: &Map<String, Value>) -> Boards {
        let text = |key| settings.get(key).and_then(Value::as_str).unwrap_or_default();
        let values: Vec<String> = text("settings").split_whitespace().map(str::to_owned).collect();
        let drawn = WITH_BOARDS.iter().find(|name| **name == text("env")).and_then(|name| {
            let environment = envs::find(name).ok()?;
            let settings = Settings::parse(&values, name, environment.settings()).ok()?;
            environment.tasks(&Selection { split: Split::Test, seed: 0, settings }).ok()
        });
        let count = text("eval_tasks").parse().unwrap_or(0);
        drawn.map_or_else(Boards::default, |tasks| {
            Boards::new(settings, Box::new(tasks.map_while(Result::ok).take(count)))
        })
    }

    fn new(settings: &Map<String, Value>, tasks: Box<dyn Iterator<Item = Task>>) -> Boards {
        let workflow = settings.get("workflow").and_then(Value::as_str).filter(|name| !name.is_empty());
        Boards { workflow: workflow.map(str::to_owned), tasks: Some(tasks), specs: HashMap::new() }
    }

    /// Adds its boards to an episode, where it has some: to each group the board that it saw if the group before saw another, and the last.
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
        if !WITH_BOARDS.contains(&&*episode.env) || !episode.joint.is_empty() {
            return None;
        }
        let environment = envs::find(&episode.env).ok()?;
        let spec = self.spec(&episode.task)?.clone();
        let workflow = self.workflow.as_deref().unwrap_or(environment.default_workflow());
        let mut state = environment.reset(&spec, workflow).ok()?;
        let workflow = Arc::clone(state.workflow());
        let (mut boards, mut solved) = (vec![None; episode.groups.len()], false);
        'turns: for turn in 0..ended.turns {
            for stage in 0..workflow.stages() {
                let mut actions = Vec::new();
                for agent in &workflow.agents()[workflow.stage(stage)] {
                    let place = episode
                        .groups
                        .iter()
                        .position(|group| group.turn == turn && group.agent == *agent)?;
                    boards[place] = Some(state.draw());
                    actions.push((&**agent, episode.groups[place].executed()?));
                }
                let outcome = match actions[..] {
                    [(agent, text)] => state.apply(agent, text),
                    _ => state.apply_together(&actions),
                };
                let outcome = outcome.ok()?;
                solved |= outcome.success;
                if outcome.terminated {
                    break 'turns;
                }
            }
        }
        // Otherwise the environment is another one today.
        (solved == ended.success).then(|| (boards, state.draw()))
    }

    fn spec(&mut self, name: &str) -> Option<&Value> {
        while !self.specs.contains_key(name) {
            let Task { task, spec, .. } = self.tasks.as_mut()?.next()?;
            self.specs.insert(task, spec);
        }
        self.specs.get(name)
    }
}
