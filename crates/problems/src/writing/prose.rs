//! `tldr` and `arxiv`: two writers in prose, scored as published for MAGRPO (arXiv 2508.04652).
//!
//! By default both texts must be about the source ([`super::source`]), and connectives must be whole words.
//!
//! Counting follows the published rewards literally: words are separated by white space, lengths are
//! characters of the raw text, the vocabulary includes every word, and connectives are those of the second
//! text alone (`tldr`) or of both texts concatenated (`arxiv`). For the length of `arxiv` there are two
//! published ranges; this is the older one, 1.0 to 1.3 with edges at 0.8 and 1.5.
//!
//! Left out: demonstrations, which a pretrained policy does not need.

use std::fmt::Debug;

use record::failure::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::connectives::{Hits, content, kinds, words};
use super::score::{Counts, Gates, MOST, Ramp, Score, jaccard};
use super::{SUCCESS, grade, pair, source};
use crate::gates::{GATES, Gates as Kinds};
use crate::joint::{Grade, JointTask, Shown, turns};
use crate::{Problem, problem};
use environment::settings::{Setting, Settings, choice};
use environment::spec::{checked, fail, read, write};
use environment::workflow::Workflow;
use environment::{ExtractionCase, Metadata};

/// Separates the two texts of a single writer.
const MARK: &str = "[PARAGRAPH_SPLIT]";

const DATA: Setting =
    Setting::new("data", "shipped", "FILE of texts, as `envs import` writes it; shipped: some of our own");
const HITS: Setting = Setting::new(
    "hits",
    "word; substring with gates=published",
    "what counts as a connective: word, or substring (its letters, also inside a word, as published)",
);
const SHARE: Setting =
    Setting::new("success", "0.9", "share of the greatest reward, 3, from which on it is a success, 0 to 1");

/// The differences between the two kinds of prose.
#[derive(Debug)]
struct Kind {
    /// The shipped texts.
    shipped: &'static str,
    /// The conditions of the levels.
    gates: Gates,
    /// The required share of a text's content words that occur in the source.
    source: Ramp,
    /// True if connectives count in both texts, not only in the second.
    both: bool,
    /// The source, and the tasks of the first and the second writer.
    roles: [&'static str; 3],
    /// Texts with the largest reward under the published rules, 2.98, for any source.
    best: fn() -> [String; 2],
}

impl Kind {
    fn of(environment: &str) -> &'static Kind {
        if environment == ARXIV.name { &ARXIV_KIND } else { &TLDR_KIND }
    }
}

/// Summaries of posts.
pub static TLDR: problem::ProblemEnvironment<Prose> =
    environment("tldr", "two writers summarize a post, one shortly and one at more length");
/// Expanded abstracts.
pub static ARXIV: problem::ProblemEnvironment<Prose> =
    environment("arxiv", "two writers expand an abstract: background, then method");

const fn environment(name: &'static str, summary: &'static str) -> problem::ProblemEnvironment<Prose> {
    let metadata = Metadata {
        summary,
        workflows: &super::WORKFLOWS,
        settings: &[DATA, GATES, HITS, SHARE],
        demonstrators: &[],
        max_tokens: |settings| problem::max_tokens(settings, 256, 256),
    };
    problem::ProblemEnvironment::new(name, metadata)
}

/// Summaries of a post.
static TLDR_KIND: Kind = Kind {
    shipped: include_str!("../../data/tldr.jsonl"),
    gates: Gates {
        words: (8, 256),
        length: Ramp { from: 1.1, least: 1.6, most: 3.2, to: 5.0 },
        vocabulary: Ramp { from: 1.3, least: 2.0, most: f64::INFINITY, to: f64::INFINITY },
        kind: 0.05,
        overlap: 0.03,
    },
    source: Ramp { from: 0.25, least: 0.5, most: f64::INFINITY, to: f64::INFINITY },
    both: false,
    roles: [
        "post",
        "Summarize the post in one or two short sentences.",
        "Summarize the post in a paragraph two to three times as long as a short summary: use other and more words, and \
         connect the sentences with words such as however, because of this, for example or finally.",
    ],
    best: best_tldr,
};

fn best_tldr() -> [String; 2] {
    let first = "Someone tells what happened at home and asks for help.";
    let second = "Also, someone tells what happened; notably, that is likewise the point, so it was hard at first, but \
                      overall, although things went wrong, we should indeed act when we can.";
    [first.to_owned(), second.to_owned()]
}

/// An abstract, expanded.
static ARXIV_KIND: Kind = Kind {
    shipped: include_str!("../../data/arxiv.jsonl"),
    gates: Gates {
        words: (128, 256),
        length: Ramp { from: 0.8, least: 1.0, most: 1.3, to: 1.5 },
        vocabulary: Ramp { from: 0.5, least: 0.7, most: 1.3, to: 1.7 },
        kind: 0.05,
        overlap: 0.23,
    },
    source: Ramp { from: 0.15, least: 0.3, most: f64::INFINITY, to: f64::INFINITY },
    both: true,
    roles: [
        "abstract",
        "Write the paragraph on background and motivation of a paper with this abstract, in 130 to 200 words. Leave its method \
         to your partner.",
        "Write the paragraph on method and implications of a paper with this abstract, in 130 to 200 words. Leave its background \
         to your partner; keep the same style and the same terms.",
    ],
    best: best_arxiv,
};

fn best_arxiv() -> [String; 2] {
    let [_, connected] = best_tldr();
    let text = [connected.as_str(); 5].join(" ");
    [text.clone(), text]
}

/// The fields of a `spec`; others are kept and ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    /// The source.
    problem: String,
    #[serde(flatten)]
    rules: Rules,
}

/// The rules of an episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rules {
    #[serde(default)]
    gates: Kinds,
    /// How connectives are matched, if the gates do not decide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hits: Option<Hits>,
    #[serde(default = "success")]
    success: f64,
}

impl Rules {
    fn hits(&self) -> Hits {
        self.hits.unwrap_or(if self.gates.earned() { Hits::Word } else { Hits::Substring })
    }
}

fn success() -> f64 {
    SUCCESS
}

/// A source to write about.
#[derive(Clone, Debug)]
pub struct Prose {
    spec: Spec,
    kind: &'static Kind,
}

impl Prose {
    fn score(&self, [first, second]: [&str; 2]) -> Score {
        let (one, two) = (words(first), words(second));
        let connected = if self.kind.both { [first, second].concat() } else { second.to_owned() };
        let count = |text: &str| text.split(is_space).filter(|word| !word.is_empty()).count();
        let counts = Counts {
            words: [count(first), count(second)],
            length: [first.chars().count(), second.chars().count()],
            vocabulary: [one.len(), two.len()],
            kinds: kinds(&connected, self.spec.rules.hits()),
            overlap: jaccard(&content(&one), &content(&two)),
        };
        Score::of(&counts, &self.kind.gates)
    }
}

/// Returns true for white space as defined by Python's `split`.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

impl Problem for Prose {
    const DATA: Option<&'static str> = Some("shipped");

    type Rules = Rules;

    fn shipped(name: &str) -> &'static str {
        Kind::of(name).shipped
    }

    fn rules(settings: &Settings) -> Result<Rules> {
        let hits = match settings.text("hits") {
            None => None,
            Some("substring") => Some(Hits::Substring),
            Some("word") => Some(Hits::Word),
            Some(other) => return Err(choice("hits", other, "substring or word")),
        };
        Ok(Rules {
            gates: Kinds::of(settings)?,
            hits,
            success: settings.number("success", SUCCESS, 0.0, 1.0)?,
        })
    }

    fn from_file(rules: &Rules, raw: &Value, _name: &str) -> Result<Value> {
        let problem = raw["problem"].as_str().unwrap_or_default().to_owned();
        Ok(write(&Spec { problem, rules: rules.clone() }))
    }

    fn question(rules: &Rules, text: &str) -> Option<Value> {
        Some(write(&Spec { problem: text.to_owned(), rules: rules.clone() }))
    }

    fn parse(name: &str, spec: &Value) -> Result<Self> {
        let spec: Spec = read(spec)?;
        if spec.problem.trim().is_empty() {
            return Err(fail("problem: there is no text"));
        }
        checked("success", spec.rules.success, 0.0, 1.0)?;
        Ok(Prose { spec, kind: Kind::of(name) })
    }

    fn turns(&self, workflow: &Workflow) -> u32 {
        turns(1, workflow)
    }

    fn reward_range(&self) -> (f64, f64) {
        (0.0, MOST)
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        let spec = json!({"problem": "My cat sits on the keyboard whenever I write."});
        vec![ExtractionCase::new(&spec, "writer-1", ("empty", "", None))]
    }
}

impl JointTask for Prose {
    fn prompt(&self, workflow: &Workflow, agent: &str, shown: &Shown<'_>) -> String {
        let [source, first, second] = self.kind.roles;
        let mut text = format!("This is the {source}:\n\n{}\n\n", self.spec.problem.trim());
        text.extend(shown.told(workflow, agent).flat_map(|told| [told, "\n\n".to_owned()]));
        if workflow.name() == "single" {
            let parts = format!("Write two texts. The first: {first} The second: {second}");
            return format!("{text}{parts}\n\nPut {MARK} between the two, and write nothing else.");
        }
        let own = if agent == "writer-1" { first } else { second };
        let again =
            if shown.turn > 0 { "Write your text again, so that both fit each other better. " } else { "" };
        format!(
            "{text}You are one of two writers; your partner writes the other part. {again}{own} Write nothing else."
        )
    }

    fn grade(&self, _workflow: &Workflow, texts: &[&str]) -> Result<Grade> {
        let texts = pair(texts, MARK);
        let Rules { gates, success, .. } = self.spec.rules;
        let mut grade = grade(&self.score(texts), success);
        if gates.earned() {
            let work = texts.map(|text| source::work(text, &self.spec.problem, self.kind.source));
            let least = work[0].min(work[1]);
            grade.team *= least;
            grade.success = grade.team >= success * MOST;
            grade.components.push(("source", least));
        }
        Ok(grade)
    }

    /// The best summary is unknown.
    fn best(&self, workflow: &Workflow, agent: &str) -> Option<String> {
        let texts = (!self.spec.rules.gates.earned()).then(self.kind.best)?;
        match workflow.position(agent) {
            _ if workflow.name() == "single" => Some(texts.join(MARK)),
            position => texts.get(position?).cloned(),
        }
    }

    fn test_actions(&self, workflow: &Workflow, agent: &str) -> Vec<String> {
        let source = &self.spec.problem;
        let long = "on ".repeat(300);
        let best = self.best(workflow, agent).unwrap_or_default();
        let twice = format!("{best} {best}");
        vec![best, twice, source.clone(), format!("{source} {MARK} {source}"), long, MARK.to_owned()]
    }

    fn picture(&self) -> String {
        self.spec.problem.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use environment::Environment;

    /// What the best texts earn, however connectives are found.
    #[test]
    fn the_best_texts_earn_what_is_published() {
        let environments: [(&dyn Environment, [String; 2]); 2] =
            [(&TLDR, best_tldr()), (&ARXIV, best_arxiv())];
        for (environment, [first, second]) in environments {
            for hits in ["substring", "word"] {
                let spec = json!({"problem": "text", "hits": hits, "gates": "published"});
                let mut state = environment.reset(&spec, "team").unwrap();
                let outcome = state.apply_together(&[("writer-1", &first), ("writer-2", &second)]).unwrap();
                assert!(
                    (outcome.rewards.team - 2.98).abs() < 1e-12,
                    "{} {hits}: {outcome:?}",
                    environment.name()
                );
            }
        }
    }
}
