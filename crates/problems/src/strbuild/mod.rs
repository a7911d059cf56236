//! `strbuild`: two builders draw a word with blocks, as text commands without a game.
//!
//! StrBuild of MAGRPO's successors (arXiv 2601.21972). Each builder has two kinds of blocks and half of the
//! commands. Adjacent blocks should look different, so that good walls need both builders. [`wall`] has
//! commands and score, [`font`] the letters.
//!
//! Every turn starts with an empty wall. Left out: the game itself, and walls of more than one layer.

pub mod font;
pub mod wall;

use std::sync::{Arc, LazyLock};

use record::failure::Result;
use record::line::Task;
use record::philox::{Draws, Stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::joint::{Grade, JointTask, Shown, turns, workflows};
use crate::{Problem, problem};
use environment::settings::{Setting, Settings, choice};
use environment::spec::{checked, fail, read, write};
use environment::streams;
use environment::workflow::Workflow;
use environment::{BuiltIn, ExtractionCase, Split};
use wall::{Blocks, PALETTES, RANGE, Score};

/// The environment's name.
pub const NAME: &str = "strbuild";
/// The environment.
pub static STRBUILD: BuiltIn = BuiltIn {
    name: NAME,
    summary: "two builders draw a word with blocks of different kinds",
    workflows: &WORKFLOWS,
    settings: &[
        Setting::new("letters", "4", "most letters of a word, 1 to 12; each number is as likely"),
        Setting::new("turns", "4", "turns in an episode, 1 to 99; discussion has at least 2"),
        Setting::new("commands", "300", "commands of both builders together, 2 to 2000"),
        Setting::new("feedback", "position", "what is told after a turn: plain (nothing), position or score"),
        Setting::new(
            "success",
            "0.9",
            "share of the greatest score, 2, from which on it is a success, 0 to 1",
        ),
    ],
    demonstrators: &[],
    max_tokens: |settings| problem::max_tokens(settings, 512, 512),
    functions: problem::functions::<Word>(),
};

static WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> =
    LazyLock::new(|| workflows(["builder-1", "builder-2"], "builder"));

/// One in this many words is for testing.
const TEST_SHARE: u64 = 8;

/// Feedback after a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Feedback {
    /// Only that there is another turn.
    Plain,
    /// All cells of the word, and how to divide them.
    #[default]
    Position,
    /// The parts of the score.
    Score,
}

/// The fields of a `spec`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    word: String,
    turns: u32,
    /// Commands of both builders together.
    commands: usize,
    feedback: Feedback,
    success: f64,
}

/// Most letters of a word, and the rest of a `spec`.
#[derive(Clone, Debug)]
pub struct Rules(u32, Spec);

/// A word to build.
#[derive(Clone, Debug)]
pub struct Word(Spec);

impl Word {
    /// Number of commands of the agent at `position`; the first gets the odd one.
    fn share(&self, agents: usize, position: usize) -> usize {
        self.0.commands / agents + if position == 0 { self.0.commands % agents } else { 0 }
    }

    fn score(&self, texts: &[&str]) -> Score {
        let mut blocks = Blocks::new();
        for (position, (text, palette)) in texts.iter().zip(&PALETTES).enumerate() {
            let most = self.share(texts.len(), position);
            wall::build(text, palette, most, wall::width(&self.0.word), &mut blocks);
        }
        Score::of(&self.0.word, &blocks, &PALETTES[..texts.len().min(2)])
    }

    fn told(&self, score: &Score) -> String {
        match self.0.feedback {
            Feedback::Plain => "This was not the last turn.".to_owned(),
            Feedback::Score => format!(
                "Your wall covers {:.0}% of the word; {:.0}% of the other cells have blocks; {:.0}% of neighboring blocks look \
                 alike; builders that left out a block of theirs: {}. Score {:.2} of 2.",
                100.0 * score.coverage,
                100.0 * score.extra,
                100.0 * score.adjacent,
                score.lazy,
                score.total()
            ),
            Feedback::Position => {
                let cells: Vec<String> =
                    wall::cells(&self.0.word).iter().map(|(x, y)| format!("({x}, {y}, 0)")).collect();
                format!(
                    "These are all cells of the word: {}. Take about half of them, no two side by side, and leave the others to \
                     your partner.",
                    cells.join(" ")
                )
            }
        }
    }

    fn picture(&self) -> String {
        let (cells, width) = (wall::cells(&self.0.word), wall::width(&self.0.word));
        let row = |y| (0..width).map(|x| if cells.contains(&(x, y)) { '#' } else { '.' }).collect::<String>();
        (0..font::SIDE as i64).rev().map(row).collect::<Vec<_>>().join("\n")
    }
}

impl Problem for Word {
    type Rules = Rules;

    fn rules(settings: &Settings) -> Result<Rules> {
        let feedback = match settings.text("feedback") {
            None | Some("position") => Feedback::Position,
            Some("plain") => Feedback::Plain,
            Some("score") => Feedback::Score,
            Some(other) => return Err(choice("feedback", other, "plain, position or score")),
        };
        let spec = Spec {
            word: String::new(),
            turns: settings.whole("turns", 4, 1, 99)?,
            commands: settings.whole("commands", 300, 2, 2000)?,
            feedback,
            success: settings.number("success", 0.9, 0.0, 1.0)?,
        };
        Ok(Rules(settings.whole("letters", 4, 1, 12)?, spec))
    }

    fn draw(Rules(letters, spec): &Rules, split: Split, stream: Stream) -> Result<Task> {
        let draw = |draws: &mut Draws| {
            let count = 1 + draws.below(*letters);
            let word: String = (0..count).map(|_| char::from(b'A' + draws.below(26) as u8)).collect();
            let wanted = streams::split_of(word.as_bytes(), TEST_SHARE) == split;
            let spec = write(&Spec { word: word.clone(), ..spec.clone() });
            wanted.then(|| streams::task(NAME, split, &word, spec))
        };
        streams::first_task(1000, split, stream, draw, || (NAME.to_owned(), "more letters leave more room"))
    }

    fn parse(_name: &str, spec: &Value) -> Result<Self> {
        let spec: Spec = read(spec)?;
        if !(1..=12).contains(&spec.word.len())
            || !spec.word.bytes().all(|letter| letter.is_ascii_uppercase())
        {
            return Err(fail("word: not 1 to 12 letters from A to Z"));
        }
        checked("turns", spec.turns, 1, 99)?;
        checked("commands", spec.commands, 2, 2000)?;
        checked("success", spec.success, 0.0, 1.0)?;
        Ok(Word(spec))
    }

    fn turns(&self, workflow: &Workflow) -> u32 {
        turns(self.0.turns, workflow)
    }

    fn reward_range(&self) -> (f64, f64) {
        RANGE
    }

    fn extraction_cases() -> Vec<ExtractionCase> {
        let spec = json!({"word": "HI", "turns": 1, "commands": 300, "feedback": "plain", "success": 0.9});
        vec![ExtractionCase::new(&spec, "builder-1", ("empty", "", None))]
    }
}

impl JointTask for Word {
    fn prompt(&self, workflow: &Workflow, agent: &str, shown: &Shown<'_>) -> String {
        let agents = workflow.agents().len();
        let position = workflow.position(agent).unwrap_or_default();
        let [one, two] = PALETTES[position.min(1)];
        let partner = if agents == 2 {
            "Your partner builds the same word with other blocks; yours lie below. "
        } else {
            ""
        };
        let mut text = format!(
            "Build the word {} as a wall of blocks. # is a cell of the word; the lower left cell is 0 0 0, the upper right cell \
             {} {} 0:\n\n{}\n\n{partner}Cover every cell of the word and no other one, let no two neighboring blocks look alike, and use \
             both of your blocks: {one} and {two}. Write at most {} lines, each of the form\n\n/setblock x y 0 block\n\nand nothing \
             else.",
            self.0.word,
            wall::width(&self.0.word) - 1,
            font::SIDE - 1,
            Word::picture(self),
            self.share(agents, position),
        );
        text.extend(shown.told(workflow, agent).flat_map(|told| ["\n\n".to_owned(), told]));
        if let Some(feedback) = shown.feedback {
            text.push_str(&format!("\n\n{feedback} Write all commands again: the wall is empty."));
        }
        text
    }

    fn grade(&self, workflow: &Workflow, texts: &[&str]) -> Result<Grade> {
        let score = self.score(texts);
        let agents = workflow.agents().len();
        Ok(Grade {
            team: score.total(),
            components: vec![
                ("coverage", score.coverage),
                ("extra", score.extra),
                ("adjacent", score.adjacent),
                ("palettes", (agents - score.lazy) as f64 / agents as f64),
                ("iou", score.iou),
            ],
            success: score.total() >= self.0.success * RANGE.1,
            feedback: vec![self.told(&score); agents],
        })
    }

    fn best(&self, workflow: &Workflow, agent: &str) -> Option<String> {
        let agents = workflow.agents().len();
        let texts = wall::best(&self.0.word, agents);
        let fits = texts.iter().enumerate().all(|(at, text)| text.lines().count() <= self.share(agents, at));
        texts.into_iter().nth(workflow.position(agent)?).filter(|_| fits)
    }

    fn test_actions(&self, workflow: &Workflow, agent: &str) -> Vec<String> {
        let best = self.best(workflow, agent).unwrap_or_default();
        let [one, two] = PALETTES[workflow.position(agent).unwrap_or_default().min(1)];
        let all = |block: &str| -> String {
            (0..wall::width(&self.0.word)).map(|x| format!("/setblock {x} 0 0 {block}\n")).collect()
        };
        vec![
            format!("```\n{best}```"),
            best.replace(one, two),
            best.replace("/setblock", "/fill"),
            all(one),
            format!("{best}{}", all("air")),
            "/setblock 99999999999999999999 0 0 stone\n/setblock -1 0 0 stone".to_owned(),
        ]
    }

    fn picture(&self) -> String {
        Word::picture(self)
    }
}
