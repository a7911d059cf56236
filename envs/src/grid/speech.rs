//! Which words an agent puts moves into: the encoding, the workflow and the tool's language decide.

use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};

use super::{Move, Place, Reading, prose, words};
use crate::settings::{Encoding, Settings, choice};

/// What the tool of a team proposes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// The cells of a route.
    Cells,
    /// Moves, as the planner answers.
    Moves,
}

impl Language {
    /// What a `spec` without it means: cells in compact texts, moves in prose.
    pub fn default_of(encoding: Encoding) -> Language {
        match encoding {
            Encoding::Compact => Language::Cells,
            Encoding::Full => Language::Moves,
        }
    }

    /// The value of `--set proposal`.
    ///
    /// # Errors
    /// No such language, or cells in prose: usage.
    pub fn from_settings(settings: &Settings, encoding: Encoding) -> Result<Language> {
        match (settings.text("proposal"), encoding) {
            (None, _) => Ok(Language::default_of(encoding)),
            (Some("cells"), Encoding::Compact) => Ok(Language::Cells),
            (Some("cells"), Encoding::Full) => {
                Err(Failure::usage("--set proposal=cells: in prose the tool proposes moves")
                    .hint("leave out encoding=full or proposal=cells"))
            }
            (Some("moves"), _) => Ok(Language::Moves),
            (Some(other), _) => Err(choice("proposal", other, "cells or moves")),
        }
    }

    /// The language of a `spec`.
    ///
    /// # Errors
    /// Cells in prose: data.
    pub fn of_spec(written: Option<Language>, encoding: Encoding) -> Result<Language> {
        match (written, encoding) {
            (Some(Language::Cells), Encoding::Full) => {
                Err(Failure::data("spec: proposal: in prose the tool proposes moves"))
            }
            _ => Ok(written.unwrap_or(Language::default_of(encoding))),
        }
    }

    /// `cells` or `moves`.
    pub fn name(self) -> &'static str {
        match self {
            Language::Cells => "cells",
            Language::Moves => "moves",
        }
    }

    /// The word that a proposal has before it in compact texts.
    pub fn word(self) -> &'static str {
        match self {
            Language::Cells => "route",
            Language::Moves => "moves",
        }
    }
}

/// The ways of putting moves into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// Prose with a list of moves at its end.
    Prose,
    /// The cells of a route.
    Route,
    /// Moves.
    Moves,
    /// The cells of a route, and then the moves that carry it out.
    RouteMoves,
}

impl Speech {
    /// How `agent` speaks in a workflow; `language` is the tool's.
    pub fn of(encoding: Encoding, language: Language, agent: &str, workflow: &str) -> Speech {
        match (encoding, agent, workflow) {
            (Encoding::Full, ..) => Speech::Prose,
            (_, "tool", _) if language == Language::Cells => Speech::Route,
            (_, _, "route-moves") => Speech::RouteMoves,
            _ => Speech::Moves,
        }
    }

    /// An answer that stands for `moves` from `place` on.
    pub fn write(self, place: Place, moves: &[Move]) -> String {
        match self {
            Speech::Prose => prose::write_answer(moves),
            Speech::Route => words::write_route(place, moves),
            Speech::Moves => words::write_moves(moves),
            Speech::RouteMoves => words::write_route_moves(place, moves),
        }
    }

    /// Reads an answer of 1 to `most` moves from `place` on.
    pub fn read(self, place: Place, text: &str, most: u32) -> Option<Reading> {
        match self {
            Speech::Prose => prose::read_moves(text, most),
            Speech::Route => words::read_route(text, place, most),
            Speech::Moves => words::read_moves(text, most),
            Speech::RouteMoves => words::read_route_moves(text, place, most),
        }
    }

    /// What another agent is shown of an answer that could be read: its words without decoration, or the list.
    pub fn shown(self, text: &str, reading: &Reading) -> String {
        if self == Speech::Prose {
            return prose::write_moves(&reading.moves);
        }
        let mut shown = String::with_capacity(text.len() + 1);
        for word in text.split_ascii_whitespace() {
            shown.push(' ');
            shown.push_str(word);
        }
        shown
    }
}
