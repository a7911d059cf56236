//! `write`: a small version of `tldr`, for policies of a few hundred thousand parameters.
//!
//! A post consists of some of a hundred words. The words are cells of a board, because each is one
//! token of the tiny tokenizer. The first writer names a few of them; the second names more,
//! including the first's, and uses connectives (`but`, `was`, `ok`, `none`). Words that are not in
//! the post only count for the length.
//!
//! ```text
//! at c3 f1 a0 j9 b2 e5 goal 1                                   =>  c3 f1 a0
//! at c3 f1 a0 j9 b2 e5 goal 2                                   =>  c3 f1 a0 j9 b2 but was ok none
//! at c3 f1 a0 j9 b2 e5 plan c3 f1 goal 2                        pipeline: the first's text
//! at c3 f1 a0 j9 b2 e5 plan c3 f1 route c3 goal 1               discussion: both, from the second turn on
//! at c3 f1 a0 j9 b2 e5 goal 0                                   =>  c3 f1 a0 : c3 f1 a0 j9 b2 but was ok none
//! ```
//!
//! Demonstrators: `opt`; `short` (one word, or as long as the other's text); `loose` (any words of the post,
//! at most one connective); `random`. Most are short, so that a warmed-up policy has a habit to lose.

use std::collections::HashSet;

use record::failure::Result;
use record::line::Task;
use record::philox::{Draws, Stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::score::{Counts, Gates, MOST, Ramp, Score, jaccard};
use super::{SUCCESS, grade, pair};
use crate::joint::{Grade, JointTask, Shown, turns};
use crate::{Problem, problem};
use environment::settings::{Setting, Settings};
use environment::spec::{checked, fail, read, write};
use environment::streams;
use environment::workflow::Workflow;
use environment::{ExtractionCase, Metadata, Split};

const CONNECTIVES: [&str; 4] = ["but", "was", "ok", "none"];
const MARK: &str = " :";
/// The environment's name.
const NAME: &str = "write";
/// The environment.
pub static WRITE: problem::ProblemEnvironment<Post> = problem::ProblemEnvironment::new(
    NAME,
    Metadata {
        summary: "two writers summarize a post in a language of a hundred words",
        workflows: &super::WORKFLOWS,
        settings: &[
            Setting::new("words", "6", "words in a post, 4 to 9"),
            Setting::new(
                "success",
                "0.9",
                "share of the greatest reward, 3, from which on it is a success, 0 to 1",
            ),
        ],
        demonstrators: &[("opt", 0.15), ("short", 0.45), ("loose", 0.3), ("random", 0.1)],
        max_tokens: |settings| problem::max_tokens(settings, 24, 24),
    },
);

/// One in this many posts is for testing.
const TEST_SHARE: u64 = 8;
const GATES: Gates = Gates {
    words: (2, 12),
    length: Ramp { from: 1.1, least: 1.6, most: 3.2, to: 5.0 },
    vocabulary: Ramp { from: 1.3, least: 2.0, most: f64::INFINITY, to: f64::INFINITY },
    kind: 0.2,
    overlap: 0.5,
};

/// The fields of a `spec`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    post: Vec<String>,
    success: f64,
}

/// Words per post, and the share of the largest reward that counts as success.
#[derive(Clone, Debug)]
pub struct Rules {
    words: u32,
    success: f64,
}

#[derive(Clone, Debug)]
pub struct Post(Spec);

fn is_word(word: &str) -> bool {
    matches!(word.as_bytes(), [b'a'..=b'j', b'0'..=b'9'])
}

fn spaced<T: AsRef<str>>(words: &[T]) -> String {
    words.iter().flat_map(|word| [" ", word.as_ref()]).collect()
}

impl Post {
    fn score(&self, texts: [&str; 2]) -> Score {
        let words = texts.map(|text| text.split_whitespace().count());
        let [first, second] = texts.map(|text| self.known(text).into_iter().collect::<HashSet<&str>>());
        let [one, two] = [&first, &second].map(|words| {
            words.iter().copied().filter(|word| !CONNECTIVES.contains(word)).collect::<HashSet<&str>>()
        });
        let counts = Counts {
            words,
            length: words,
            vocabulary: [first.len(), second.len()],
            kinds: second.len() - two.len(),
            overlap: if one.is_empty() && two.is_empty() { 0.0 } else { jaccard(&one, &two) },
        };
        Score::of(&counts, &GATES)
    }

    /// The words of a text that are in the post, or connectives.
    fn known<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let known = |word: &&str| CONNECTIVES.contains(word) || self.0.post.iter().any(|own| own == word);
        text.split_whitespace().filter(known).collect()
    }

    /// A summary with `first` words of the post for the first writer, and with more words and
    /// connectives for the second.
    fn texts(&self) -> [String; 2] {
        let first = spaced(&self.0.post[..3]);
        [first, spaced(&self.0.post[..self.0.post.len().min(5)]) + &spaced(&CONNECTIVES)]
    }

    fn said(&self, workflow: &Workflow, agent: &str, [first, second]: [String; 2]) -> String {
        match workflow.position(agent) {
            _ if workflow.name() == "single" => format!("{first}{MARK}{second}"),
            Some(0) => first,
            _ => second,
        }
    }
}

impl Problem for Post {
    type Rules = Rules;

    fn rules(settings: &Settings) -> Result<Rules> {
        let words = settings.whole("words", 6, 4, 9)?;
        Ok(Rules { words, success: settings.number("success", SUCCESS, 0.0, 1.0)? })
    }

    fn draw(rules: &Rules, split: Split, stream: Stream) -> Result<Task> {
        let draw = |draws: &mut Draws| {
            let mut post: Vec<String> = Vec::new();
            while post.len() < rules.words as usize {
                let word = format!("{}{}", char::from(b'a' + draws.below(10) as u8), draws.below(10));
                if !post.contains(&word) {
                    post.push(word);
                }
            }
            let name = post.concat();
            let wanted = streams::split_of(name.as_bytes(), TEST_SHARE) == split;
            let spec = write(&Spec { post, success: rules.success });
            wanted.then(|| streams::task(NAME, split, &name, spec))
        };
        streams::first_task(1000, split, stream, draw, || (NAME.to_owned(), "try another seed"))
    }

    fn parse(_name: &str, spec: &Value) -> Result<Self> {
        let spec: Spec = read(spec)?;
        let post: HashSet<&String> = spec.post.iter().collect();
        if !(4..=9).contains(&post.len())
            || post.len() != spec.post.len()
            || !spec.post.iter().all(|word| is_word(word))
        {
            return Err(fail("post: not 4 to 9 different words from a0 to j9"));
        }
        checked("success", spec.success, 0.0, 1.0)?;
        Ok(Post(spec))
    }

    fn turns(&self, workflow: &Workflow) -> u32 {
        turns(1, workflow)
    }

    fn reward_range(&self) -> (f64, f64) {
        (0.0, MOST)
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        let spec = json!({"post": ["c3", "f1", "a0", "j9"], "success": 0.9});
        vec![ExtractionCase::new(&spec, "writer-1", ("empty", "", None))]
    }
}

impl JointTask for Post {
    fn prompt(&self, workflow: &Workflow, agent: &str, shown: &Shown<'_>) -> String {
        let mut text = format!("at{}", spaced(&self.0.post));
        for (position, said) in &shown.texts {
            let known = self.known(said);
            text.push_str(if *position == 0 { " plan" } else { " route" });
            text.push_str(&spaced(&known[..known.len().min(GATES.words.1)]));
        }
        let role = workflow.position(agent).filter(|_| workflow.name() != "single").map_or(0, |at| at + 1);
        format!("{text} goal {role}")
    }

    fn grade(&self, _workflow: &Workflow, texts: &[&str]) -> Result<Grade> {
        Ok(grade(&self.score(pair(texts, MARK)), self.0.success))
    }

    fn best(&self, workflow: &Workflow, agent: &str) -> Option<String> {
        Some(self.said(workflow, agent, self.texts()))
    }

    fn test_actions(&self, workflow: &Workflow, agent: &str) -> Vec<String> {
        let post = spaced(&self.0.post);
        let best = self.said(workflow, agent, self.texts());
        let pairs = [["a0", "a0 a0"], [&post, &post]].map(|pair| pair.map(str::to_owned));
        let texts = pairs.map(|pair| self.said(workflow, agent, pair));
        let others = [format!("{post}{post}"), format!("{best} but"), " but was".to_owned(), " :".to_owned()];
        [best].into_iter().chain(texts).chain(others).collect()
    }

    fn picture(&self) -> String {
        self.0.post.join(" ")
    }

    fn demonstrate(&self, workflow: &Workflow, agent: &str, kind: &str, draws: &mut Draws) -> String {
        let mut post = self.0.post.clone();
        let texts = match kind {
            "opt" => self.texts(),
            "short" => {
                [spaced(&post[..1 + draws.below(2) as usize]), spaced(&post[..2 + draws.below(2) as usize])]
            }
            "loose" => {
                let mut some = |least: u32, draws: &mut Draws| {
                    draws.shuffle(&mut post);
                    spaced(&post[..(least + draws.below(2)) as usize])
                };
                let connective = CONNECTIVES[draws.below(4) as usize];
                let first = some(2, draws);
                let second = some(3, draws);
                [first, if draws.below(2) == 0 { second } else { format!("{second} {connective}") }]
            }
            _ => [3, 6].map(|most| {
                let count = 1 + draws.below(most);
                (0..count)
                    .map(|_| format!(" {}{}", char::from(b'a' + draws.below(10) as u8), draws.below(10)))
                    .collect()
            }),
        };
        self.said(workflow, agent, texts)
    }
}
