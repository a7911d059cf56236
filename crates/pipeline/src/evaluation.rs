//! Evaluation on the test tasks, the best policies, and the report page of the run.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use record::child;
use record::failure::{Failure, Result};
use serde_json::Value;

use crate::claim::is_copy_of_best;
use crate::cut::{self, CutAnswers};
use crate::directory::RunFiles;
use crate::disk;
use crate::programs::{Programs, cannot_start, code_of};
use crate::settings::Settings;
use crate::shell::{EVALUATION, Shell};

/// Prints a line on stdout. Clears the progress line that a resident stage may have left on the terminal.
pub fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    let clear = output.is_terminal() && std::io::stderr().is_terminal();
    let line = format!("{}{line}\n", if clear { "\r\u{1b}[K" } else { "" });
    match output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(record::stage::unwritten(&error)),
        _ => Ok(()), // nobody reads stdout; the run directory has everything
    }
}

/// An evaluation that did better than all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// The share of test tasks solved.
    pub success: f64,
    /// The mean return, which decides between evaluations of equal success.
    pub returns: f64,
    /// The step after which it ran.
    pub step: u64,
}

impl Best {
    /// The best evaluation: most tasks solved, then the highest return; the earliest of equals.
    pub fn of(evaluations: impl IntoIterator<Item = Best>) -> Option<Best> {
        evaluations.into_iter().reduce(|best, next| if next.beats(&best) { next } else { best })
    }

    fn beats(&self, other: &Best) -> bool {
        (self.success, self.returns) > (other.success, other.returns)
    }

    /// The message about an evaluation, compared with earlier ones.
    fn said(before: Option<Best>, now: Best) -> String {
        match before {
            None => String::new(),
            Some(before) if now.beats(&before) => "; the best so far".to_owned(),
            Some(Best { success, returns, step }) if success == now.success && returns != now.returns => {
                format!("; best so far {success:.3}, return {returns:.2}, at step {step}")
            }
            Some(before) => format!("; best so far {:.3} at step {}", before.success, before.step),
        }
    }
}

/// Plays the test tasks after a step, if that has not been done, and says how many succeed. Returns the best evaluation of the run up to
/// this one; `before` is the best of the earlier ones.
pub fn evaluate(
    run: &RunFiles,
    (programs, settings): (&Programs, &Settings),
    shell: &mut Shell,
    step: u64,
    before: Option<Best>,
) -> Result<Option<Best>> {
    let file = run.path().join(format!("eval/step-{step:06}.jsonl"));
    if !file.is_file() {
        let command = settings.environment_command();
        shell.run(EVALUATION, step, &format!("evaluation after step {step}"), command)?;
        let new = run.path().join(format!("eval/step-{step:06}.jsonl.tmp"));
        disk::sync(&new)?;
        disk::rename(&new, &file)?;
        disk::sync(&run.path().join("eval"))?;
    }
    let path = file.display().to_string();
    let rate = programs.printed("report", &["evaluate", "--format", "line", "--quiet", &path]);
    let rate = rate.map_err(|mut failure| {
        failure.message = format!("{path} is no whole evaluation");
        failure.hint("remove it, and the same command plays it again")
    })?;
    let now = evaluations(programs, &[(step, file)]).pop();
    let beside = now.map_or(String::new(), |now| Best::said(before, now));
    let rate = rate.trim_end();
    // Cut-off answers are reported separately; if nothing is solved, they are the first thing to fix.
    let is_cut = rate.starts_with("0.000 ") && rate.contains("(0/") && rate.ends_with("of answers cut");
    let advice = if is_cut && !settings.begins_untrained() { ": raise --max-tokens first" } else { "" };
    say(&format!("step {step}: success on {} test tasks {rate}{advice}{beside}", settings.eval_tasks))?;
    let is_best = |now: &Best| before.is_none_or(|before| now.beats(&before));
    if let Some(now) = now.filter(|now| settings.keep_best && is_best(now)) {
        keep_if_best(run, programs, now)?;
    }
    Ok(Best::of(before.into_iter().chain(now)))
}

/// The evaluation files of steps before `step`, in order.
pub fn files_before(run: &Path, step: u64) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(run.join("eval")).into_iter().flatten().flatten();
    let mut files: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let of = name.to_str()?.strip_prefix("step-")?.strip_suffix(".jsonl")?.parse().ok()?;
            (of < step).then(|| (of, entry.path()))
        })
        .collect();
    files.sort();
    files
}

/// Success and return of each evaluation, averaged over its environments. Empty if any file is incomplete.
pub fn evaluations(programs: &Programs, files: &[(u64, PathBuf)]) -> Vec<Best> {
    if files.is_empty() {
        return Vec::new();
    }
    let mut report = programs.command("report");
    report.args(["evaluate", "--format", "json", "--quiet"]).args(files.iter().map(|(_, file)| file));
    let told = child::output(&mut report).map(|output| output.stdout).unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    let lines: Vec<Value> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let measured = |(step, file): &(u64, PathBuf)| {
        let own = lines.iter().filter(|line| line["stream"].as_str().map(Path::new) == Some(file));
        let rates: Vec<(f64, f64)> = own
            .filter_map(|line| Some((line["success"].as_f64()?, line["reward"].as_f64().unwrap_or_default())))
            .collect();
        let mean = |of: fn(&(f64, f64)) -> f64| rates.iter().map(of).sum::<f64>() / rates.len() as f64;
        let (success, returns) = (mean(|rate| rate.0), mean(|rate| rate.1));
        (!rates.is_empty()).then_some(Best { success, returns, step: *step })
    };
    files.iter().filter_map(measured).collect()
}

/// Copies the policies if this is the best evaluation, and then moves the link `best` to the copy.
fn keep_if_best(run: &RunFiles, programs: &Programs, now: Best) -> Result<()> {
    let best = run.path().join("best");
    if best.is_file() {
        let target = fs::read_to_string(&best).unwrap_or_default(); // a copy that wrote links as text
        disk::link(target.trim(), &best)?;
    }
    // Success and return; earlier builds wrote success alone.
    let before = fs::read_to_string(best.join("success")).unwrap_or_default();
    let mut numbers = before.split_ascii_whitespace().map_while(|number| number.parse().ok());
    let mut next = || numbers.next().unwrap_or(f64::NEG_INFINITY);
    let before = Best { success: next(), returns: next(), step: now.step };
    if !now.beats(&before) {
        return Ok(());
    }
    let name = format!("best-{:06}", now.step);
    let new = run.path().join(&name);
    disk::remove(&new)?;
    for policy in run.policies() {
        let (to, from) = (new.join(policy).display().to_string(), run.policy(policy).display().to_string());
        programs.printed("policy", &["init", &to, "--from", &from, "--quiet"])?;
    }
    disk::write(&new.join("success"), &format!("{:?} {:?}\n", now.success, now.returns))?;
    disk::link(&name, &best)?;
    for other in disk::names(run.path())? {
        if is_copy_of_best(&other) && other != name {
            disk::remove(&run.path().join(other))?;
        }
    }
    Ok(())
}

/// Makes the page of a run from its files. A failure loses no data.
#[derive(Debug)]
pub struct Page {
    drawing: Option<Child>,
    drawn: Instant,
}

impl Page {
    pub fn new() -> Page {
        Page { drawing: None, drawn: Instant::now() }
    }

    /// Time since the last drawing began.
    pub fn age(&self) -> Duration {
        self.drawn.elapsed()
    }

    fn command(run: &RunFiles, programs: &Programs, settings: &Settings) -> Command {
        let mut report = programs.command("report");
        report.arg(run.path()).arg("--html").arg(run.path().join("report.html"));
        if let Some(folder) = &settings.tensorboard {
            report.args(["--tensorboard", folder]);
        }
        report.arg("--quiet");
        report
    }

    /// Draws the page and waits for it.
    pub fn draw(&mut self, run: &RunFiles, programs: &Programs, settings: &Settings) -> Result<()> {
        self.finish(run)?;
        self.begin(run, programs, settings)?;
        self.finish(run)
    }

    /// Starts drawing in the background, unless a drawing is in progress.
    pub fn draw_beside(&mut self, run: &RunFiles, programs: &Programs, settings: &Settings) -> Result<()> {
        if self.drawing.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return Ok(());
        }
        self.finish(run)?;
        self.begin(run, programs, settings)
    }

    fn begin(&mut self, run: &RunFiles, programs: &Programs, settings: &Settings) -> Result<()> {
        self.drawn = Instant::now();
        let child = Page::command(run, programs, settings).spawn();
        self.drawing = Some(child.map_err(|error| cannot_start("report", &error))?);
        Ok(())
    }

    /// Waits for the drawing in the background.
    pub fn finish(&mut self, run: &RunFiles) -> Result<()> {
        let Some(mut child) = self.drawing.take() else { return Ok(()) };
        if child.wait().map_or(1, code_of) == 0 {
            return Ok(());
        }
        disk::remove(&run.path().join("report.html.tmp"))?;
        say(&format!("{}/report.html was not written, see above", run.path().display()))
    }
}

/// Counts of a step's flat groups: groups whose members all have the same score, so that advantages are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flat {
    /// Groups without anything to compare.
    pub flat: u64,
    pub groups: u64,
    /// True if a policy keeps its version because no samples were left to train on.
    pub is_skipped: bool,
}

impl Flat {
    /// Reads a step's metrics.
    pub fn count(metrics: &Path) -> Result<Flat> {
        let text = fs::read_to_string(metrics).map_err(|error| disk::failed("read", metrics, &error))?;
        let mut counts = Flat { flat: 0, groups: 0, is_skipped: false };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for line in lines.filter(|line| line["type"] == "metrics") {
            counts.flat += line["flat_groups"].as_u64().unwrap_or_default();
            counts.is_skipped |= line["skipped"] == true;
            counts.groups += line["groups"].as_u64().unwrap_or_default();
        }
        Ok(counts)
    }

    /// Returns true if there was nothing to learn from.
    pub fn is_flat(self) -> bool {
        self.groups > 0 && self.flat == self.groups
    }
}

/// Tokens that `rollout` generated in a step, from the `end` lines in its metrics.
pub fn tokens(metrics: &Path) -> Result<u64> {
    let tokens = |end: &Value| end["counts"]["completion_tokens"].as_u64().unwrap_or_default();
    Ok(cut::rollouts(metrics)?.iter().map(tokens).sum())
}

/// All groups of several steps are flat, since most episodes succeed.
pub fn nothing_left(step: u64, solved: f64) -> String {
    format!(
        "steps {} to {step}: all groups are flat, and {:.0} % of episodes succeed: the run ends here, since these tasks have \
         nothing left to learn; a harder task does",
        step - 2,
        100.0 * solved
    )
}

/// All groups of several steps are flat; `answers` come from the last step.
pub fn all_flat(step: u64, answers: &CutAnswers, settings: &Settings) -> Failure {
    let (cause, warmup) = match settings.begins_untrained() {
        true => {
            let cause = "the policies began with random weights and had no warm-up: another --run with --warmup 600; ";
            (cause.to_owned(), "")
        }
        false => (answers.advice(settings), ", or a --warmup"),
    };
    let has_levels = settings.env_command.is_none() && ["math", "code"].contains(&settings.env.as_str());
    let level = if has_levels { " (--set level=1)" } else { "" };
    Failure::work(format!(
        "steps {} to {step}: all groups are flat: the candidates of a group earn the same, so there is nothing to learn from",
        step - 2
    ))
    .hint(format!(
        "{cause}an easier task{level}, more --max-tokens, --branches or --temperature{warmup}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_groups_of_random_weights_come_from_those() {
        let hint = |words: &str| {
            let words: Vec<String> = words.split(' ').map(Into::into).collect();
            let settings = Settings::new(&words).unwrap();
            let answers = CutAnswers { agents: [("a".to_owned(), (8, 8))].into() };
            all_flat(3, &answers, &settings).hint.unwrap()
        };
        let untrained = hint("--env-command x --max-tokens 8");
        assert!(untrained.starts_with("the policies began with random weights"), "{untrained}");
        assert!(!untrained.contains("--set") && !untrained.contains("first"), "{untrained}");
        let trained = hint("--env math --warmup 5 --max-tokens 8");
        assert!(trained.starts_with("100 % of the last step's answers were cut at 8 tokens"), "{trained}");
        assert!(trained.contains("an easier task (--set level=1), more"), "{trained}");
    }

    #[test]
    fn an_evaluation_is_said_beside_the_best_before_it() {
        let best = |success, step| Best { success, returns: success, step };
        let paid = |returns, step| Best { success: 0.0, returns, step };
        assert_eq!(Best::said(None, best(0.5, 0)), "");
        assert_eq!(Best::said(Some(best(0.5, 0)), best(0.6, 20)), "; the best so far");
        assert_eq!(Best::said(Some(best(0.6, 20)), best(0.6, 40)), "; best so far 0.600 at step 20");
        assert_eq!(Best::of([best(0.1, 0), best(0.6, 20), best(0.6, 40)]), Some(best(0.6, 20)));
        assert_eq!(Best::of([]), None);
        // Where no task is solved yet, the return says which team has learned.
        assert_eq!(Best::of([paid(1.2, 0), paid(1.9, 4), paid(1.8, 8)]), Some(paid(1.9, 4)));
        assert_eq!(Best::said(Some(paid(1.2, 0)), paid(1.9, 4)), "; the best so far");
        let said = "; best so far 0.000, return 1.90, at step 4";
        assert_eq!(Best::said(Some(paid(1.9, 4)), paid(1.8, 8)), said);
    }
}
