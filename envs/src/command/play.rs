//! `envs play`: a person in the place of the agents.

use std::io::Read;
use std::sync::Arc;

use envs::{Outcome, Split, State};
use record::failure::{Failure, Result};
use record::read::{Reader, Stdin};
use record::stage::printable;
use record::write;

use crate::arguments::Choice;

/// Plays one task in the terminal: shows the board, and reads the acting agent's answer from stdin.
///
/// An empty line gives the oracle's answer. `?` shows the agent's prompt. In a workflow with several agents,
/// --agent names the one that you play; the oracle plays the others.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs play plan-path
  envs play plan-path --seed 3 --workflow single --set size=8
  envs play plan-path --agent planner --task 5")]
pub struct Play {
    #[command(flatten)]
    choice: Choice,
    /// The split to draw from.
    #[arg(long, value_enum, default_value = "train")]
    split: Split,
    /// Index of the task in the split, from 0.
    #[arg(long, default_value_t = 0, value_name = "N")]
    task: u64,
    /// The workflow to play [default: the environment's first].
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// The agent that you play; the oracle plays the others [default: you play all].
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
}

/// A line before and after an answer of several lines.
const SEVERAL: &str = "\"\"\"";

/// What a line of the player asks for.
enum PlayerInput {
    Action(String),
    Quit,
}

impl Play {
    pub fn run(&self) -> Result<()> {
        let environment = self.choice.environment()?;
        let name = self.workflow.as_deref().unwrap_or(environment.default_workflow());
        let selection = self.choice.selection(self.split)?;
        let task = environment.tasks(&selection)?.nth(self.task as usize).unwrap_or_else(|| {
            Err(Failure::usage(format!("--task {}: the split ends before it", self.task)))
        })?;
        let mut state = environment.reset(&task.spec, name)?;
        let workflow = Arc::clone(state.workflow());
        if let Some(agent) = &self.agent
            && workflow.position(agent).is_none()
        {
            let agents: Vec<&str> = workflow.agents().iter().map(String::as_str).collect();
            return Err(Failure::usage(format!("--agent {agent}: workflow {name} has no such agent"))
                .hint(environment::settings::suggest(agent, &agents)));
        }
        say(&format!(
            "{}\nAn empty line plays the oracle's answer, ? shows the prompt, {SEVERAL} begins and ends an answer of \
             several lines.\n",
            task.task
        ))?;
        let mut reader = Reader::new("stdin", Stdin);
        let limit = state.turn_limit();
        for turn in 1..=limit {
            for stage in 0..workflow.stages() {
                let agents = &workflow.agents()[workflow.stage(stage)];
                let mut answers = Vec::with_capacity(agents.len());
                for agent in agents {
                    say(&format!("\nturn {turn} of {limit}, {agent}\n{}", state.draw()))?;
                    match self.turn(&mut reader, &*state, agent)? {
                        PlayerInput::Action(text) => answers.push((agent.as_str(), text)),
                        PlayerInput::Quit => return say("\nleft\n"),
                    }
                }
                if step(&mut *state, &answers)? {
                    return Ok(());
                }
            }
        }
        say(&format!("\n{}out of turns: not solved\n", state.draw()))
    }

    fn turn(&self, reader: &mut Reader<impl Read>, state: &dyn State, agent: &str) -> Result<PlayerInput> {
        let oracle = || state.oracle(agent).unwrap_or_default();
        if self.agent.as_deref().is_some_and(|own| own != agent) {
            return Ok(PlayerInput::Action(oracle()));
        }
        loop {
            say(&format!("{agent}> "))?;
            let Some(line) = read_line(reader)? else { return Ok(PlayerInput::Quit) };
            match line.trim() {
                "" => return Ok(PlayerInput::Action(oracle())),
                SEVERAL => {
                    let mut text = String::new();
                    while let Some(line) = read_line(reader)?.filter(|line| line.trim() != SEVERAL) {
                        text.extend([line.as_str(), "\n"]);
                    }
                    return Ok(PlayerInput::Action(text));
                }
                "?" => {
                    for message in state.observe(agent) {
                        say(&format!("[{}] {}\n", message.role, message.content))?;
                    }
                }
                _ => return Ok(PlayerInput::Action(line.trim_end_matches('\r').to_owned())),
            }
        }
    }
}

/// The next line; `None` after the last.
fn read_line(reader: &mut Reader<impl Read>) -> Result<Option<String>> {
    Ok(reader.next_bytes()?.map(|line| String::from_utf8_lossy(&line).into_owned()))
}

/// Applies the actions of a stage and prints their rewards; returns true if the episode is over.
fn step(state: &mut dyn State, answers: &[(&str, String)]) -> Result<bool> {
    let outcome = match answers {
        [(agent, text)] => {
            let outcome = state.apply(agent, text)?;
            say(&summary(text, &outcome))?;
            outcome
        }
        _ => {
            for (agent, text) in answers {
                // Alone, with the last actions of the others.
                let alone = state.clone_state().apply(agent, text)?;
                say(&format!("{agent} {}", summary(text, &alone)))?;
            }
            let actions: Vec<(&str, &str)> =
                answers.iter().map(|(agent, text)| (*agent, text.as_str())).collect();
            state.apply_together(&actions)?
        }
    };
    if outcome.terminated {
        say(&format!("\n{}{}\n", state.draw(), if outcome.success { "solved" } else { "over" }))?;
    }
    Ok(outcome.terminated)
}

/// An action and its reward.
fn summary(text: &str, outcome: &Outcome) -> String {
    let components: Vec<String> =
        outcome.components.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
    // Only the first of several lines: the player has just typed them.
    let mut lines = text.trim().lines();
    let (first, more) = (lines.next().unwrap_or_default(), if lines.next().is_some() { " …" } else { "" });
    format!(
        "{first:?}{more}: team {:.3}, local {:.3} ({})\n",
        outcome.rewards.team,
        outcome.rewards.local,
        components.join(", ")
    )
}

/// Prints `text`; what a problem or a name holds besides lines and tabs cannot steer the terminal.
fn say(text: &str) -> Result<()> {
    let parts = text.split_inclusive(['\n', '\t']).map(|part| {
        let (body, end) = part.split_at(part.len() - usize::from(part.ends_with(['\n', '\t'])));
        printable(body) + end
    });
    write::stdout(parts.collect::<String>().as_bytes())
}
