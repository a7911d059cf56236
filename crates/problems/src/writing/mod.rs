//! Writing together: two writers, one short text and one longer one, scored as one piece.
//!
//! From MAGRPO (arXiv 2508.04652): `tldr` summarizes a post, `arxiv` expands an abstract, and `write` is the same in a
//! language of a hundred words, for tiny policies. The published rewards are rules about form and never read the source: lengths,
//! vocabularies and connectives of the two texts have to fit each other. `write` counts words of its source, and by default
//! (`--set gates=earned`) `tldr` and `arxiv` ask what each text has to do with it ([`source`]).
//!
//! Workflows, the paper's baselines: `team` (at once, neither sees the other), `pipeline` (the second sees the first's
//! text), `discussion` (a second turn in which both see both), `single` (one writes both).
//!
//! [`score`]: gates and points; `connectives`: the words that they count; [`prose`]: `tldr` and `arxiv`; [`tiny`]: `write`.

mod connectives;
pub mod prose;
pub mod score;
pub mod source;
pub mod tiny;

use std::sync::{Arc, LazyLock};

use crate::joint::{Grade, workflows};
use environment::workflow::Workflow;
use score::Score;

/// Share of the greatest reward from which on a piece counts as a success.
const SUCCESS: f64 = 0.9;

static WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> =
    LazyLock::new(|| workflows(["writer-1", "writer-2"], "writer"));

/// The two texts of a piece; of one writer, those before and after `mark`. Without the mark there is no second.
fn pair<'a>(texts: &[&'a str], mark: &str) -> [&'a str; 2] {
    match texts {
        [first, second, ..] => [first, second],
        [both] => both.split_once(mark).map_or([both, ""], <[&str; 2]>::from),
        [] => [""; 2],
    }
}

fn grade(score: &Score, success: f64) -> Grade {
    Grade {
        team: score.total(),
        components: score.components(),
        success: score.total() >= success * score::MOST,
        feedback: Vec::new(),
    }
}
