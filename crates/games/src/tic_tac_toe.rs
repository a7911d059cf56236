//! Tic-Tac-Toe: x and o take turns on one board. This is the smallest complete environment: start here to write one.
//!
//! The prompt `at 1 0 0 0 2 0 0 0 0 moves` lists the cells in reading order, 1 for the agent's marks and 2 for its
//! opponent's. The action ` b0` marks column b of row 0. [`perfect`] has rewards, oracle and demonstrations.

mod perfect;

use std::sync::{Arc, LazyLock};

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};
use record::sample::Message;
use serde_json::{Value, json};

use environment::{Demonstration, Demonstrator, Environment, ExtractionCase, Outcome, Selection, Setting};
use environment::{Split, State, Tasks, Workflow, spec::fail, streams};
use perfect::Reward;

const NAME: &str = "tic-tac-toe";
const CELLS: [&str; 9] = ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"];
const LINES: [[usize; 3]; 8] =
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];
/// Rotations and mirror images: the cell that each cell shows.
const IMAGES: &str = "012345678 630741852 876543210 258147036 210543876 852741630 678345012 036147258";
static TEAM: LazyLock<[Arc<Workflow>; 1]> = LazyLock::new(|| [Workflow::sequential("team", &["x", "o"])]);

/// The cells in reading order: `x`, `o`, or `.` where it is empty.
type Board = [u8; 9];

fn parse(board: &Value) -> Option<Board> {
    let cells: Board = board.as_str()?.as_bytes().try_into().ok()?;
    cells.iter().all(|cell| b"xo.".contains(cell)).then_some(cells)
}

fn write(board: &Board) -> String {
    board.map(char::from).iter().collect()
}

fn empty(board: &Board) -> Vec<usize> {
    (0..9).filter(|cell| board[*cell] == b'.').collect()
}

fn is_won(board: &Board) -> bool {
    LINES.iter().any(|line| [b"xxx", b"ooo"].contains(&&line.map(|cell| board[cell])))
}

fn is_over(board: &Board) -> bool {
    is_won(board) || !board.contains(&b'.')
}

/// One board in eight is for testing, together with its images.
fn split(board: &Board) -> Split {
    let shown = |image: &str| image.bytes().map(|cell| board[usize::from(cell - b'0')]).collect::<Vec<u8>>();
    streams::split_of(&IMAGES.split(' ').map(shown).min().unwrap_or_default(), 8)
}

/// A task: a board with up to four random marks, on which x moves next.
fn draw(split: Split, stream: Stream, reward: Reward) -> Result<Task> {
    let drawn = |draws: &mut Draws| {
        let mut board = *b".........";
        for mark in b"xoxo".iter().take(2 * draws.below(3) as usize) {
            board[*draws.choose(&empty(&board))?] = *mark;
        }
        let wanted = !is_over(&board) && self::split(&board) == split;
        wanted.then(|| streams::task(NAME, split, &write(&board), reward.spec(&board)))
    };
    streams::first_task(1000, split, stream, drawn, || (NAME.to_owned(), "try another seed"))
}

/// The environment.
pub struct TicTacToe;

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

    fn settings(&self) -> &'static [Setting] {
        &[perfect::REWARD]
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let reward = Reward::parse(selection.settings.text("reward"))?;
        Ok(streams::tasks(NAME, selection, move |split, stream| draw(split, stream, reward)))
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        self.workflow(workflow, spec)?;
        Ok(Box::new(Game::new(spec)?))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        self.workflow(state["workflow"].as_str().unwrap_or_default(), &state["spec"])?;
        let board = parse(&state["board"]).ok_or(Failure::data("state: board: not nine of x, o and ."))?;
        let (flawless, forfeit) = (state["flawless"] == true, state["forfeit"] == true);
        Ok(Box::new(Game { board, flawless, forfeit, ..Game::new(&state["spec"])? }))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        perfect::extraction_cases()
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        &[("opt", 0.3), ("random", 0.7)]
    }

    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        self.workflow(&demonstration.workflow, &Value::Null)?;
        Ok(perfect::demonstrator(demonstration.clone()))
    }
}

#[derive(Clone)]
struct Game {
    reward: Reward,
    start: Board,
    board: Board,
    /// True if no move has given value away.
    flawless: bool,
    /// True if an illegal move has lost the game.
    forfeit: bool,
}

impl Game {
    fn new(spec: &Value) -> Result<Game> {
        let start = parse(&spec["board"]).filter(|board| !is_over(board));
        let start = start.ok_or_else(|| fail("board: not nine of x, o and ., or already over"))?;
        Ok(Game { reward: Reward::of(spec)?, start, board: start, flawless: true, forfeit: false })
    }
}

impl State for Game {
    fn workflow(&self) -> &Arc<Workflow> {
        &TEAM[0]
    }

    fn turn_limit(&self) -> u32 {
        empty(&self.start).len().div_ceil(2) as u32
    }

    fn reward_range(&self) -> (f64, f64) {
        self.reward.range()
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let digit = |cell: &u8| match *cell {
            b'.' => " 0",
            own if own == agent.as_bytes()[0] => " 1",
            _ => " 2",
        };
        let board: String = self.board.iter().map(digit).collect();
        vec![Message { role: "user".to_owned(), content: format!("at{board} moves") }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.workflow().check(agent)?;
        match self.forfeit || is_over(&self.board) {
            true => Err(Failure::data("the episode is over: the game has ended")),
            false => Ok(self.play(agent, CELLS.iter().position(|name| *name == text.trim()))),
        }
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        let (spec, board, flawless) = (self.reward.spec(&self.start), write(&self.board), self.flawless);
        let state =
            json!({"env": NAME, "spec": spec, "workflow": "team", "board": board, "flawless": flawless});
        self.reward.state(state, self.forfeit)
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        perfect::best(&self.board, agent.as_bytes()[0]).first().map(|cell| format!(" {}", CELLS[*cell]))
    }

    fn is_solved(&self) -> bool {
        self.flawless && is_over(&self.board)
    }

    fn test_actions(&self, _agent: &str) -> Vec<String> {
        let malformed = ["", " ", " d0", " a3", "x", "\u{0}"].map(str::to_owned);
        CELLS.iter().map(|cell| format!(" {cell}")).chain(malformed).collect()
    }

    fn board(&self) -> Option<String> {
        Some(self.board.chunks(3).map(|row| format!("{}\n", String::from_utf8_lossy(row))).collect())
    }
}
