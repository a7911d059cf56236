//! Perfect play in Tic-Tac-Toe: the exact value of every position, rewards, and demonstrations.
//!
//! With `reward=shaped` each move earns its agent `.1 format + .1 legal + .8 value`, where value is the move's result under
//! perfect play: win 1, draw 1/2, loss 0. A game that ends without a move that gave value away is a success and earns
//! the team 1. After an illegal move the other agent moves next.
//!
//! With `reward=win` the agents are opponents. Only the last move pays: 1 to the winner and -1 to the loser, 0 to both for a
//! draw, and nothing to the team. An illegal move loses the game. The component `perfect` is 1 for a move that
//! gives no value away; its mean over the moves of a policy says how far the policy is from perfect play.

use std::cell::RefCell;
use std::collections::HashMap;

use record::failure::Result;
use record::sample::Rewards;
use serde_json::{Value, json};

use super::{Board, CELLS, Game, NAME, draw, empty, is_over, is_won, write};
use crate::grid::local_reward;
use environment::demonstration::{Demonstration, sample};
use environment::settings::{Setting, choice};
use environment::spec::fail;
use environment::{Demonstrator, ExtractionCase, Outcome, Split, State, streams};

pub const REWARD: Setting = Setting::new(
    "reward",
    "shaped",
    "shaped (a move's value under perfect play) or win (at the end 1 to the winner, -1 to the loser)",
);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reward {
    Shaped,
    Win,
}

impl Reward {
    pub fn parse(text: Option<&str>) -> Result<Reward> {
        match text {
            None | Some("shaped") => Ok(Reward::Shaped),
            Some("win") => Ok(Reward::Win),
            Some(other) => Err(choice("reward", other, "shaped or win")),
        }
    }

    /// # Errors
    /// `spec.reward` is neither `shaped` nor `win`: data.
    pub fn of(spec: &Value) -> Result<Reward> {
        match &spec["reward"] {
            Value::Null => Ok(Reward::Shaped),
            reward if reward == "shaped" => Ok(Reward::Shaped),
            reward if reward == "win" => Ok(Reward::Win),
            other => Err(fail(format!("reward: {other} is not shaped or win"))),
        }
    }

    pub fn spec(self, board: &Board) -> Value {
        match self {
            Reward::Shaped => json!({"board": write(board)}),
            Reward::Win => json!({"board": write(board), "reward": "win"}),
        }
    }

    /// State JSON; only a game that pays for winning can be forfeited.
    pub fn state(self, mut state: Value, forfeit: bool) -> Value {
        if self == Reward::Win {
            state["forfeit"] = forfeit.into();
        }
        state
    }

    pub fn range(self) -> (f64, f64) {
        if self == Reward::Win { (-1.0, 1.0) } else { (0.0, 1.0) }
    }
}

/// The value of a position to `mark`, who moves next, by minimax: 1 win, 0 draw, -1 loss.
pub fn value(board: &Board, mark: u8) -> i8 {
    thread_local!(static VALUES: RefCell<HashMap<(Board, u8), i8>> = RefCell::default());
    if let Some(known) = VALUES.with_borrow(|values| values.get(&(*board, mark)).copied()) {
        return known;
    }
    let moves = || empty(board).into_iter().map(|cell| value_of(board, cell, mark));
    // Only the opponent, who moved last, can have won.
    let value = if is_won(board) { -1 } else { moves().max().unwrap_or(0) };
    VALUES.with_borrow_mut(|values| values.insert((*board, mark), value));
    value
}

/// The value to `mark` of marking `cell`.
fn value_of(board: &Board, cell: usize, mark: u8) -> i8 {
    -value(&with(*board, cell, mark), if mark == b'x' { b'o' } else { b'x' })
}

fn with(mut board: Board, cell: usize, mark: u8) -> Board {
    board[cell] = mark;
    board
}

/// The perfect moves of `mark`, those first that end the game.
pub fn best(board: &Board, mark: u8) -> Vec<usize> {
    let mut best = empty(board);
    best.retain(|cell| value_of(board, *cell, mark) == value(board, mark));
    best.sort_by_key(|cell| !is_over(&with(*board, *cell, mark)));
    best
}

impl Game {
    /// Marks `cell`; `None` is a malformed move.
    pub fn play(&mut self, agent: &str, cell: Option<usize>) -> Outcome {
        let (before, mark) = (self.board, agent.as_bytes()[0]);
        let legal = cell.filter(|cell| before[*cell] == b'.');
        let value_after = legal.map(|cell| value_of(&before, cell, mark));
        let perfect = value_after == Some(value(&before, mark));
        self.board = legal.map_or(before, |cell| with(before, cell, mark));
        self.flawless &= perfect;
        self.forfeit = self.reward == Reward::Win && legal.is_none();
        let value = value_after.map_or(0.0, |value| f64::from(value + 1) / 2.0);
        let (format, legal, success) = (cell.is_some(), legal.is_some(), self.is_solved());
        let components = [("format", f64::from(format)), ("legal", f64::from(legal)), ("value", value)];
        let mut outcome = Outcome::new(f64::from(success), local_reward(format, legal, value), &components);
        outcome.terminated = self.forfeit || is_over(&self.board);
        outcome.success = success;
        if self.reward == Reward::Win {
            let own = if self.forfeit { -1.0 } else { f64::from(is_won(&self.board)) };
            outcome.rewards = Rewards { team: 0.0, local: own };
            outcome.components.insert("perfect".to_owned(), f64::from(perfect));
            if outcome.terminated {
                let earned = |other: &String| (other.clone(), if other == agent { own } else { 0.0 - own });
                outcome.locals = self.workflow().agents().iter().map(earned).collect();
            }
        }
        outcome
    }
}

pub fn extraction_cases() -> Vec<ExtractionCase> {
    [("plain", " b0", Some("b0")), ("outside", " d0", None)]
        .map(|case| ExtractionCase::new(&json!({"board": "x...o...."}), "x", case))
        .to_vec()
}

/// Complete games: `opt` plays perfectly, `random` marks any empty cell.
pub fn demonstrator(demonstration: Demonstration) -> Demonstrator {
    Box::new(move |index| {
        let stream = streams::train_stream(NAME, demonstration.tasks.seed, index);
        let task = draw(Split::Train, stream, Reward::Shaped)?;
        let mut draws = demonstration.draws(NAME, index);
        let mut samples = Vec::new();
        for number in 0..demonstration.states {
            let mut game = Game::new(&task.spec)?;
            let agents = game.workflow().agents().to_vec();
            for (agent, place) in agents.iter().cycle().zip(0..empty(&game.start).len()) {
                let is_expert = demonstration.kind(&mut draws) == "opt";
                let mark = agent.as_bytes()[0];
                let cells = if is_expert { best(&game.board, mark) } else { empty(&game.board) };
                let Some(cell) = draws.choose(&cells).filter(|_| !is_over(&game.board)) else { break };
                let (episode, text) = (format!("{index}.{number}.{place}"), format!(" {}", CELLS[*cell]));
                samples.push(sample(&task, &episode, agent, game.observe(agent), text));
                game.play(agent, Some(*cell));
            }
        }
        Ok(samples)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tic_tac_toe::parse;

    fn board(text: &str) -> Board {
        parse(&text.into()).unwrap()
    }

    #[test]
    fn values_are_those_of_the_known_game() {
        assert_eq!((value(&board("........."), b'x'), best(&board("........."), b'x').len()), (0, 9));
        assert_eq!((value(&board("xx.oo...."), b'o'), best(&board("xx.oo...."), b'o')[0]), (1, 5));
        let blunder = board("xo.......");
        assert_eq!((value(&blunder, b'x'), value_of(&blunder, best(&blunder, b'x')[0], b'x')), (1, 1));
        assert_eq!(value(&board("x.x......"), b'o'), -1);
    }
}
