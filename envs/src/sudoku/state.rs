//! A situation in a Sudoku episode: the board, and what the tool has proposed.

use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use super::board::{self, Placement};
use super::rules::{Parts, progress};
use super::spec::Instance;
use super::{compact, full, solve, test_actions};
use crate::environment::{Checks, Outcome, State};
use crate::settings::Encoding;
use crate::workflow::Workflow;

/// A situation.
#[derive(Clone, Debug)]
pub struct SudokuState {
    instance: Arc<Instance>,
    workflow: Arc<Workflow>,
    board: Vec<u8>,
    proposal: Option<Arc<str>>,
}

/// [`SudokuState::to_json`], read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    #[serde(rename = "env")]
    _env: Option<&'a str>,
    spec: Value,
    workflow: &'a str,
    board: &'a str,
    proposal: Option<&'a str>,
}

impl SudokuState {
    /// The beginning of an episode.
    pub fn new(instance: Arc<Instance>, workflow: Arc<Workflow>) -> Self {
        SudokuState { board: instance.clues.clone(), instance, workflow, proposal: None }
    }

    /// A situation with these digits on the board; clues win where they differ.
    pub fn with_board(instance: Arc<Instance>, workflow: Arc<Workflow>, mut board: Vec<u8>) -> Self {
        for (digit, clue) in board.iter_mut().zip(&instance.clues).filter(|(_, clue)| **clue != 0) {
            *digit = *clue;
        }
        SudokuState { board, instance, workflow, proposal: None }
    }

    /// The state that `to_json` wrote; `find` looks a workflow up.
    pub fn restore(value: &Value, find: impl Fn(&str) -> Result<Arc<Workflow>>) -> Result<Self> {
        let fail = |cause: String| Failure::data(format!("state: {cause}"));
        let written = Written::deserialize(value).map_err(|error| fail(error.to_string()))?;
        let instance = Arc::new(Instance::parse(&written.spec)?);
        let shape = instance.shape;
        let board = shape.parse(written.board).ok_or_else(|| {
            fail(format!("board: '{}' is no board of {} cells", written.board, shape.cells()))
        })?;
        for (cell, digit) in board.iter().copied().enumerate() {
            if instance.clues[cell] != 0 && instance.clues[cell] != digit {
                return Err(fail(format!("board: cell {cell} is {digit}, and its clue is not")));
            }
            if digit != 0 && shape.clashes(&board, cell, digit).next().is_some() {
                return Err(fail(format!("board: the {digit} in cell {cell} clashes with another one")));
            }
        }
        let proposal = written.proposal.map(Arc::from);
        Ok(SudokuState { workflow: find(written.workflow)?, board, proposal, instance })
    }

    /// The puzzle played.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The digits on the board, 0 for an empty cell.
    pub fn board(&self) -> &[u8] {
        &self.board
    }

    /// The cells whose digit is not the solution's, those first in which the fewest digits fit. What a wrong digit
    /// rules out does not count.
    pub fn missing(&self) -> Vec<usize> {
        let solution = &self.instance.solution;
        let right: Vec<u8> = self
            .board
            .iter()
            .zip(solution)
            .map(|(digit, right)| if digit == right { *digit } else { 0 })
            .collect();
        let mut missing: Vec<usize> = (0..right.len()).filter(|cell| right[*cell] == 0).collect();
        missing.sort_by_cached_key(|cell| solve::candidates(self.instance.shape, &right, *cell).len());
        missing
    }

    /// As many right digits as a turn can place, the surest first.
    pub fn best(&self) -> Vec<Placement> {
        let cells = self.missing().into_iter().take(self.instance.fills as usize);
        cells.map(|cell| Placement { cell, digit: self.instance.solution[cell] }).collect()
    }

    /// An answer that stands for `placements`.
    pub fn write(&self, placements: &[Placement]) -> String {
        match self.instance.encoding {
            Encoding::Full => full::write_answer(self.instance.shape, placements),
            Encoding::Compact => compact::write(self.instance.shape, placements),
        }
    }

    fn read(&self, text: &str) -> Option<Vec<Placement>> {
        let Instance { shape, fills, .. } = *self.instance;
        match self.instance.encoding {
            Encoding::Full => full::read(shape, &self.board, text, fills),
            Encoding::Compact => compact::read(shape, text, fills),
        }
    }
}

impl State for SudokuState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.instance.turns
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let proposal = match self.workflow.name() {
            "team" if agent != "tool" => Some(self.proposal.as_deref().unwrap_or("")),
            _ => None,
        };
        let Instance { shape, clues, fills, turns, encoding, .. } = &*self.instance;
        let content = match encoding {
            Encoding::Compact => compact::prompt(clues, &self.board, proposal, agent),
            Encoding::Full => {
                let preamble = full::preamble(*shape, clues, *fills, *turns);
                full::prompt(&preamble, *shape, &self.board, proposal, agent)
            }
        };
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.workflow.check(agent)?;
        let instance = &*self.instance;
        if self.board == instance.solution {
            return Err(Failure::data("the episode is over: the puzzle is solved"));
        }
        // A proposal stays on paper, unless there is nobody else to carry it out.
        let proposes = agent == "tool" && self.workflow.agents().len() > 1;
        let outcome = |parts: Parts, solved: bool| Outcome {
            rewards: parts.rewards(solved),
            components: parts.components(agent),
            terminated: solved && !proposes,
            success: solved && !proposes,
        };
        let Some(placements) = self.read(text) else {
            self.proposal = None;
            return Ok(outcome(Parts::NONE, false));
        };
        let mut after = self.board.clone();
        let legal = board::place(instance.shape, &instance.clues, &mut after, &placements);
        let parts = Parts { format: true, legal, progress: progress(instance, &self.board, &after) };
        let outcome = outcome(parts, after == instance.solution);
        if proposes {
            self.proposal = Some(match instance.encoding {
                Encoding::Full => full::write_list(instance.shape, &placements).into(),
                Encoding::Compact => compact::write(instance.shape, &placements).into(),
            });
        } else {
            self.board = after;
            self.proposal = None;
        }
        Ok(outcome)
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        json!({
            "env": super::NAME,
            "spec": self.instance.spec,
            "workflow": self.workflow.name(),
            "board": board::write(&self.board),
            "proposal": self.proposal.as_deref(),
        })
    }

    fn checks(&self) -> Option<&dyn Checks> {
        Some(self)
    }
}

impl Checks for SudokuState {
    fn oracle(&self, _agent: &str) -> Option<String> {
        Some(self.write(&self.best()))
    }

    fn is_solved(&self) -> bool {
        let clues = self.instance.clues.iter().zip(&self.board);
        self.instance.shape.complete(&self.board)
            && clues.filter(|(clue, _)| **clue != 0).all(|(clue, digit)| clue == digit)
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        test_actions::all(self, agent)
    }

    fn draw(&self) -> String {
        full::draw(self.instance.shape, &self.board)
    }
}
