//! How an agent writes moves: the encoding, the workflow and the tool's action space decide.

use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};

use super::{Move, Parsed, Position, compact, prose, words};
use environment::settings::{Encoding, Setting, Settings, choice};

/// `proposal` of worlds in which somebody walks.
pub const PROPOSAL: Setting = Setting::new(
    "proposal",
    "cells; moves if full",
    "what the tool says: the cells of a route, or moves, the planner's own language",
);
/// What the tool of a team proposes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionSpace {
    /// The cells of a route.
    Cells,
    /// Moves, as the planner answers.
    Moves,
}

impl ActionSpace {
    /// Cells in the compact encoding, moves in prose.
    pub fn default_of(encoding: Encoding) -> ActionSpace {
        match encoding {
            Encoding::Compact => ActionSpace::Cells,
            Encoding::Full => ActionSpace::Moves,
        }
    }

    /// The value of `--set proposal`.
    pub fn from_settings(settings: &Settings, encoding: Encoding) -> Result<ActionSpace> {
        match (settings.text("proposal"), encoding) {
            (None, _) => Ok(ActionSpace::default_of(encoding)),
            (Some("cells"), Encoding::Compact) => Ok(ActionSpace::Cells),
            (Some("cells"), Encoding::Full) => {
                Err(Failure::usage("--set proposal=cells: in prose the tool proposes moves")
                    .hint("leave out encoding=full or proposal=cells"))
            }
            (Some("moves"), _) => Ok(ActionSpace::Moves),
            (Some(other), _) => Err(choice("proposal", other, "cells or moves")),
        }
    }

    /// The value for a `spec`; `None` for the default.
    pub fn to_spec(self, encoding: Encoding) -> Option<ActionSpace> {
        Some(self).filter(|space| *space != ActionSpace::default_of(encoding))
    }

    /// The word that precedes a proposal in compact prompts.
    pub fn word(self) -> &'static str {
        match self {
            ActionSpace::Cells => "route",
            ActionSpace::Moves => "moves",
        }
    }
}

/// How an action is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionFormat {
    /// Prose with a list of moves at its end.
    Prose,
    /// A word for each move.
    Words,
    /// The cells of a route.
    Route,
    Moves,
    /// The cells of a route, and then the moves that follow it.
    RouteMoves,
}

impl ActionFormat {
    /// The format of `agent` in a workflow; `space` is the tool's.
    pub fn of(encoding: Encoding, space: ActionSpace, agent: &str, workflow: &str) -> ActionFormat {
        match (encoding, agent, workflow) {
            (Encoding::Full, ..) => ActionFormat::Prose,
            (_, "tool", _) if space == ActionSpace::Cells => ActionFormat::Route,
            (_, _, "route-moves") => ActionFormat::RouteMoves,
            _ => ActionFormat::Moves,
        }
    }

    /// The action that makes `moves` from `position` on.
    pub fn write(self, position: Position, moves: &[Move]) -> String {
        match self {
            ActionFormat::Prose => prose::write_answer(moves),
            ActionFormat::Words => words::write(moves),
            ActionFormat::Route => compact::write_route(position, moves),
            ActionFormat::Moves => compact::write_moves(moves),
            ActionFormat::RouteMoves => compact::write_route_moves(position, moves),
        }
    }

    /// Parses an action of 1 to `most` moves from `position` on.
    pub fn read(self, position: Position, text: &str, most: u32) -> Option<Parsed> {
        match self {
            ActionFormat::Prose => prose::read_moves(text, most),
            ActionFormat::Words => words::read(text, most),
            ActionFormat::Route => compact::read_route(text, position, most),
            ActionFormat::Moves => compact::read_moves(text, most),
            ActionFormat::RouteMoves => compact::read_route_moves(text, position, most),
        }
    }

    /// What another agent is shown of a parsed action: its words without decoration, or the list.
    pub fn shown(self, text: &str, action: &Parsed) -> String {
        match self {
            ActionFormat::Prose => prose::write_moves(&action.steps),
            ActionFormat::Words => words::write(&action.steps),
            _ => text.split_ascii_whitespace().flat_map(|word| [" ", word]).collect(),
        }
    }
}
