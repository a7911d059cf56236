//! Tic-Tac-Toe: two agents, x and o, take turns on one board. This is the smallest complete environment:
//! start here to write one.
//!
//! The agents are opponents, so each has a local reward: `.1 format + .1 legal + .8 value`, where value is
//! its move's result under perfect play (win 1, draw 1/2, loss 0). The team's reward is for a well-played
//! game: 1 when the game ends and no move gave value away, which also counts as success. A malformed or
//! illegal move places nothing, and the other agent moves next.
//!
//! Every word is one token of the tiny tokenizer. The prompt `at 1 0 0 0 2 0 0 0 0 moves` lists the cells
//! in reading order, 1 for the agent's marks and 2 for its opponent's, and the action ` b0` marks the
//! cell in column b of row 0.

mod board;

use std::sync::{Arc, LazyLock};

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};
use record::sample::Message;
use serde_json::{Value, json};

use crate::grid::{Position, local_reward};
use board::{Board, cell_at, position};
use environment::demonstration::{Demonstration, sample};
use environment::streams;
use environment::workflow::Workflow;
use environment::{Demonstrator, Environment, ExtractionCase, Outcome, Selection, Split, State, Tasks};

const NAME: &str = "tic-tac-toe";
/// One board in this many is for testing, together with its mirror images and rotations.
const TEST_SHARE: u64 = 8;

/// The environment.
pub struct TicTacToe;

static TEAM: LazyLock<[Arc<Workflow>; 1]> = LazyLock::new(|| [Workflow::sequential("team", &["x", "o"])]);

impl Environment for TicTacToe {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "x and o take turns, and neither gives anything away"
    }

    fn workflows(&self) -> &[Arc<Workflow>] {
        &*TEAM
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        Ok(streams::tasks(NAME, selection, draw))
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        Ok(Box::new(Game::new(spec, self.workflow(workflow, spec)?)?))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        let workflow = self.workflow(state["workflow"].as_str().unwrap_or_default(), &state["spec"])?;
        let board = state["board"].as_str().and_then(Board::parse);
        let board = board.ok_or_else(|| Failure::data("state: board: not nine of x, o and ."))?;
        let game = Game::new(&state["spec"], workflow)?;
        Ok(Box::new(Game { board, flawless: state["flawless"] == true, ..game }))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        [("plain", " b0", Some("b0")), ("outside", " d0", None)]
            .map(|case| ExtractionCase::new(&json!({"board": "x...o...."}), "x", case))
            .to_vec()
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        &[("opt", 0.3), ("random", 0.7)]
    }

    /// Complete games: `opt` plays perfectly, `random` marks any empty cell.
    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let workflow = self.workflow(&demonstration.workflow, &Value::Null)?;
        let demonstration = demonstration.clone();
        Ok(Box::new(move |index| {
            let stream = streams::train_stream(NAME, demonstration.tasks.seed, index);
            let task = draw(Split::Train, stream)?;
            let mut draws = demonstration.draws(NAME, index);
            let mut samples = Vec::new();
            for number in 0..demonstration.states {
                let mut game = Game::new(&task.spec, Arc::clone(&workflow))?;
                for (agent, place) in workflow.agents().iter().cycle().zip(0..game.start.empty().len()) {
                    let is_expert = demonstration.kind(&mut draws) == "opt";
                    let cells = if is_expert { game.board.best(mark(agent)) } else { game.board.empty() };
                    let Some(cell) = draws.choose(&cells).filter(|_| !game.board.is_over()) else { break };
                    let episode = format!("{index}.{number}.{place}");
                    let text = format!(" {}", position(*cell));
                    samples.push(sample(&task, &episode, agent, game.observe(agent), text.clone()));
                    game.apply(agent, &text)?;
                }
            }
            Ok(samples)
        }))
    }
}

/// A task: a board with up to four random marks, on which x moves next.
fn draw(split: Split, stream: Stream) -> Result<Task> {
    let drawn = |draws: &mut Draws| {
        let mut board = Board(*b".........");
        for _ in 0..draws.below(3) {
            for mark in *b"xo" {
                board = board.with(*draws.choose(&board.empty())?, mark);
            }
        }
        let wanted = !board.is_over() && streams::split_of(&board.canonical().0, TEST_SHARE) == split;
        wanted.then(|| streams::task(NAME, split, &board.write(), json!({"board": board.write()})))
    };
    streams::first_task(1000, split, stream, drawn, || (NAME.to_owned(), "try another seed"))
}

fn mark(agent: &str) -> u8 {
    agent.as_bytes()[0]
}

/// A game in progress.
#[derive(Clone)]
struct Game {
    workflow: Arc<Workflow>,
    start: Board,
    board: Board,
    /// True if no move has given value away.
    flawless: bool,
}

impl Game {
    fn new(spec: &Value, workflow: Arc<Workflow>) -> Result<Game> {
        let start = spec["board"].as_str().and_then(Board::parse).filter(|board| !board.is_over());
        let start =
            start.ok_or_else(|| Failure::data("spec: board: not nine of x, o and ., or already over"))?;
        Ok(Game { workflow, start, board: start, flawless: true })
    }
}

impl State for Game {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.start.empty().len().div_ceil(2) as u32
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let digit = |cell: &u8| match *cell {
            b'.' => " 0",
            own if own == mark(agent) => " 1",
            _ => " 2",
        };
        let board: String = self.board.0.iter().map(digit).collect();
        vec![Message { role: "user".to_owned(), content: format!("at{board} moves") }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.workflow.check(agent)?;
        if self.board.is_over() {
            return Err(Failure::data("the episode is over: the game has ended"));
        }
        let (before, mark) = (self.board, mark(agent));
        let cell = Position::parse(text.trim()).filter(|at| at.row < 3 && at.column < 3).map(cell_at);
        let legal = cell.filter(|cell| before.0[*cell] == b'.');
        let value = legal.map(|cell| before.value_of(cell, mark));
        self.flawless &= value == Some(before.value(mark));
        self.board = legal.map_or(before, |cell| before.with(cell, mark));
        let value = value.map_or(0.0, |value| f64::from(value + 1) / 2.0);
        let (format, legal, success) = (cell.is_some(), legal.is_some(), self.is_solved());
        let components = [("format", f64::from(format)), ("legal", f64::from(legal)), ("value", value)];
        let outcome = Outcome::new(f64::from(success), local_reward(format, legal, value), &components);
        Ok(Outcome { terminated: self.board.is_over(), success, ..outcome })
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        let (spec, workflow) = (json!({"board": self.start.write()}), self.workflow.name());
        json!({"env": NAME, "spec": spec, "workflow": workflow, "board": self.board.write(), "flawless": self.flawless})
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        self.board.best(mark(agent)).first().map(|cell| format!(" {}", position(*cell)))
    }

    fn is_solved(&self) -> bool {
        self.flawless && self.board.is_over()
    }

    fn test_actions(&self, _agent: &str) -> Vec<String> {
        let malformed = ["", " ", " d0", " a3", "x", "\u{0}"].map(str::to_owned);
        (0..9).map(|cell| format!(" {}", position(cell))).chain(malformed).collect()
    }

    fn draw(&self) -> String {
        let board = self.board.write();
        format!("{}\n{}\n{}\n", &board[..3], &board[3..6], &board[6..])
    }
}
