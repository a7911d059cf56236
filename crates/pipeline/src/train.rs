//! The loop: chooses the next action, and commits steps.

use std::fs;
use std::path::Path;
use std::time::Duration;

use record::failure::{Failure, Result};

use crate::collapse::{StepHealth, Watch};
use crate::cut::{self, CutAnswers};
use crate::directory::{RunFiles, Versions};
use crate::disk;
use crate::evaluation::{self, Best, Flat, Page, say};
use crate::frozen_settings;
use crate::processes;
use crate::quote::quoted;
use crate::rate;
use crate::settings::OnCollapse;
use crate::shards;
use crate::shell::{JUDGED_STEP, Place, STEP, Shell};
use crate::stages::Plan;
use crate::staying::{self, StayingStages};
use crate::values::joined;

/// The number of consecutive steps without anything to learn that ends a run.
const FLAT_STEPS: u64 = 3;
/// Share of successful episodes from which such a run counts as done.
const SOLVED: f64 = 0.5;
/// Minimum age of the report page before it is drawn again.
const PAGE_AGE: Duration = Duration::from_secs(10);

pub struct Training<'a> {
    pub plan: Plan<'a>,
    pub place: Place<'a>,
    pub run: RunFiles,
    pub shell: Shell,
    pub page: Page,
    /// The resident stages, while they run.
    resident: Option<StayingStages>,
    /// True if the tasks of the next step are drawn.
    has_drawn: bool,
    /// The end of the next step's tasks, if the tasks are in the pipe already.
    end: Option<Vec<u8>>,
    versions: Versions,
    flat_steps: u64,
    /// Tokens generated so far, counted only if `--token-budget` limits them.
    tokens: u64,
    best: Option<Best>,
    /// Recent steps, to detect a collapse.
    watch: Watch,
    step: u64,
}

impl<'a> Training<'a> {
    /// Resumes after `step`.
    pub fn new(plan: Plan<'a>, place: Place<'a>, run: RunFiles, shell: Shell, step: u64) -> Training<'a> {
        Training {
            plan,
            place,
            run,
            shell,
            page: Page::new(),
            resident: None,
            has_drawn: false,
            end: None,
            versions: Versions::new(),
            flat_steps: 0,
            tokens: 0,
            best: None,
            watch: Watch::default(),
            step,
        }
    }

    /// Trains to the last step.
    ///
    /// # Errors
    /// The failed stage's failure. Complete steps are still committed.
    pub fn run(&mut self) -> Result<()> {
        let trained = self.steps();
        let ended = self.end_stages();
        let settled = if ended.is_ok() { self.run.settle() } else { Ok(()) };
        let settled = settled.and_then(|()| disk::remove(&staying::drawn(self.run.path())));
        let outcome = trained.and(ended).and(settled);
        let evaluates = self.plan.settings.eval_every > 0;
        let drawn =
            if outcome.is_err() || evaluates { self.page.finish(&self.run) } else { self.draw_page() };
        outcome.and(drawn)
    }

    fn steps(&mut self) -> Result<()> {
        let last = self.plan.settings.steps;
        self.compress(self.step)?; // a killed run may not have got to it
        (1..=self.step).try_for_each(|step| self.count_tokens(step))?;
        let halves = self.plan.settings.on_collapse == OnCollapse::Halve;
        let since_rate = frozen_settings::changed_before(self.run.path(), &["--lr ", "--on-collapse"]);
        let first = if halves { 1 } else { self.step.saturating_sub(Watch::STEPS).max(1) };
        for step in first..=self.step {
            let health = StepHealth::of(&self.run.step(step).join("metrics.jsonl"));
            let signs = health.and_then(|health| self.watch.step(health)); // printed before
            self.plan.halvings += i32::from(halves && step >= since_rate && signs.is_some());
        }
        if self.plan.halvings > 0 {
            self.halve(self.step + 1, "the learning rate was halved in this run")?;
        }
        let since = frozen_settings::changed_before(self.run.path(), &[""]);
        let is_flat =
            |step: &u64| Flat::count(&self.run.step(*step).join("metrics.jsonl")).is_ok_and(Flat::is_flat);
        self.flat_steps = (since..=self.step).rev().take_while(is_flat).count() as u64;
        self.evaluate_if_due(self.step)?;
        if self.flat_steps >= FLAT_STEPS {
            return self.end_flat(self.step); // as it ended before
        }
        for step in self.step + 1..=last {
            if self.are_tokens_used() {
                break;
            }
            self.step = step;
            processes::in_step(step);
            self.train(step)?;
            self.evaluate_if_due(step)?;
            if self.flat_steps >= FLAT_STEPS {
                return self.end_flat(step);
            }
        }
        Ok(())
    }

    /// Ends a run whose groups are all flat. It is done if most episodes succeed.
    fn end_flat(&self, step: u64) -> Result<()> {
        let metrics = self.run.step(step).join("metrics.jsonl");
        let solved = StepHealth::of(&metrics).map_or(0.0, |health| health.success());
        if solved >= SOLVED {
            return say(&evaluation::nothing_left(step, solved));
        }
        let answers = CutAnswers::count(&metrics)?;
        Err(evaluation::all_flat(step, &answers, self.plan.settings))
    }

    /// Returns true if a step ends with an evaluation. The last step does, also if the run stops because all groups are flat.
    fn is_due(&self, step: u64) -> bool {
        let every = self.plan.settings.eval_every;
        let is_last =
            step == self.plan.settings.steps || self.flat_steps >= FLAT_STEPS || self.are_tokens_used();
        every > 0 && (step.is_multiple_of(every) || is_last)
    }

    fn count_tokens(&mut self, step: u64) -> Result<()> {
        if self.plan.settings.token_budget.is_some() {
            self.tokens += evaluation::tokens(&self.run.step(step).join("metrics.jsonl"))?;
        }
        Ok(())
    }

    fn are_tokens_used(&self) -> bool {
        self.plan.settings.token_budget.is_some_and(|budget| self.tokens >= budget)
    }

    fn evaluate_if_due(&mut self, step: u64) -> Result<()> {
        if !self.is_due(step) {
            return Ok(());
        }
        let programs = self.plan.programs;
        if self.best.is_none() {
            let before = evaluation::files_before(self.run.path(), step);
            self.best = Best::of(evaluation::evaluations(programs, &before));
        }
        let with = (programs, self.plan.settings);
        self.best = evaluation::evaluate(&self.run, with, &mut self.shell, step, self.best)?;
        self.draw_page()
    }

    fn draw_page(&mut self) -> Result<()> {
        self.page.draw(&self.run, self.plan.programs, self.plan.settings)
    }

    fn train(&mut self, step: u64) -> Result<()> {
        let folder = self.run.step(step);
        disk::make(&folder)?;
        let is_resident = self.plan.settings.resident;
        if self.end.is_none() {
            self.versions = self.run.versions()?; // with tasks sent ahead, this step may already be done
        }
        if is_resident {
            self.pass_on(step)?
        } else {
            self.play_and_update(step)?
        }
        let before = std::mem::replace(&mut self.versions, self.run.versions()?);
        let flat = Flat::count(&folder.join("metrics.jsonl"))?;
        if self.versions == before && !flat.is_skipped {
            return Err(Failure::work(format!("step {step}: no policy has a new version"))
                .hint("update ended well and published nothing: see the command of --stage update"));
        }
        self.flat_steps = if flat.is_flat() { self.flat_steps + 1 } else { 0 };
        // `update` answers before it saves, so this answer means that the states of
        // earlier steps are on disk.
        let save_every = self.plan.settings.save_every;
        if is_resident && (step - 1).is_multiple_of(save_every) {
            self.run.settle()?;
        }
        self.run.commit(step, &self.versions, !is_resident)?;
        if let (Some(end), Some(resident)) = (self.end.as_ref(), &mut self.resident) {
            resident.pass(end); // completes the next step's tasks
        }
        let rate = rate::of_step(self.plan.programs, &folder);
        let settings = self.plan.settings;
        // Random weights answer until they are cut, whatever the limit is.
        let needs_advice = rate.contains("(0/") && !settings.begins_untrained();
        let cut = CutAnswers::count(&folder.join("metrics.jsonl"))?.said(settings, !needs_advice);
        say(&format!(
            "step {step}: success in training {rate}, {} of {} groups flat{cut}",
            flat.flat, flat.groups
        ))?;
        if step == 1 {
            self.warn_of_roles(&folder.join("metrics.jsonl"))?;
        }
        self.compress(step)?;
        self.heed_collapse(step)?;
        // TensorBoard events are appended, one process at a time, at every step. Otherwise the page is drawn
        // during the last step too, so that the final drawing has little left to read.
        if settings.tensorboard.is_some() {
            self.draw_page()
        } else if self.page.age() >= PAGE_AGE || step + 1 == settings.steps {
            self.page.draw_beside(&self.run, self.plan.programs, settings)
        } else {
            Ok(())
        }
    }

    /// Says which trained agents have nothing to learn from, and why.
    fn warn_of_roles(&self, metrics: &Path) -> Result<()> {
        let is_trained = |agent: &String| self.plan.team.trained.contains(agent);
        for agent in cut::without_choice(metrics)?.into_iter().filter(is_trained) {
            record::stage::note(
                "pipeline.sh",
                format!(
                    "{agent} has nothing to learn from: all of its groups are flat, since what it says earns nothing at that \
                     turn; --method trajectory or drmas compares whole episodes"
                ),
            );
        }
        Ok(())
    }

    /// Reports the signs of a collapse with a remedy: as a warning, or as the run's end.
    fn heed_collapse(&mut self, step: u64) -> Result<()> {
        let health = StepHealth::of(&self.run.step(step).join("metrics.jsonl"));
        let Some(signs) = health.and_then(|health| self.watch.step(health)) else { return Ok(()) };
        if self.plan.settings.on_collapse == OnCollapse::Halve {
            self.end_stages()?;
            self.run.settle()?;
            self.plan.halvings += 1;
            return self.halve(step + 1, &format!("step {step}: the run may be collapsing: {signs}"));
        }
        let run = quoted(&self.run.path().display().to_string());
        let best = match self.best.filter(|_| self.plan.settings.keep_best) {
            Some(best) => format!("; the best policies, of step {}, are in {run}/best", best.step),
            None => String::new(),
        };
        let lr = joined(&self.plan.settings.lr);
        let warning = Failure::work(format!("step {step}: the run may be collapsing: {signs}")).hint(format!(
            "begin again in another --run with a smaller --lr than {lr}, or go on with ./pipeline.sh --resume {run} --lr X{best}"
        ));
        if self.plan.settings.on_collapse == OnCollapse::Stop {
            return Err(warning);
        }
        record::stage::report("pipeline.sh", &warning);
        Ok(())
    }

    /// Trains with the halved learning rates from `step` on.
    fn halve(&self, step: u64, cause: &str) -> Result<()> {
        let rates = joined(&self.plan.rates());
        record::stage::note("pipeline.sh", format!("{cause}; from step {step} on --lr {rates}"));
        self.plan.write(&self.place.stages)
    }

    fn play_and_update(&mut self, step: u64) -> Result<()> {
        let folder = self.run.step(step);
        shards::forget(&folder, self.plan.settings.shards)?;
        let pipe = if self.plan.settings.replaces("reward") { JUDGED_STEP } else { STEP };
        self.shell.run(pipe, step, &format!("step {step}"), "")?;
        self.count_tokens(step)?;
        shards::forget(&folder, 1)
    }

    /// Sends a step to the resident stages, and meanwhile prepares the tasks of the next one.
    fn pass_on(&mut self, step: u64) -> Result<()> {
        if self.resident.is_none() {
            self.resident = Some(StayingStages::start(&self.place, step)?);
        }
        let is_own = self.plan.settings.has_own_tasks();
        let drawn = staying::drawn(self.run.path());
        let tasks = self.run.step(step).join("tasks.jsonl");
        if self.end.take().is_none() {
            if !std::mem::take(&mut self.has_drawn) {
                staying::draw(&self.place, step, is_own, &drawn)?;
            }
            disk::rename(&drawn, &tasks)?;
            let tasks = fs::read(&tasks).map_err(|error| disk::failed("read", &tasks, &error))?;
            self.pass(&tasks);
        }
        self.has_drawn = is_own && step < self.plan.settings.steps;
        if self.has_drawn {
            staying::draw(&self.place, step + 1, is_own, &drawn)?;
        }
        let Some(resident) = &mut self.resident else { return Ok(()) };
        if !resident.wait_for_step()? {
            self.end_stages()?;
            return Err(Failure::work(format!("step {step}: the stages ended before it was done"))
                .hint("the same command goes on from there"));
        }
        self.count_tokens(step)?;
        // Send the next tasks early only if nothing between the steps depends on the current versions: no
        // evaluation, no end of the run.
        if self.has_drawn
            && !self.are_tokens_used()
            && self.plan.settings.on_collapse != OnCollapse::Halve
            && !self.is_due(step)
            && self.flat_steps + 1 < FLAT_STEPS
        {
            self.has_drawn = false;
            disk::make(&self.run.step(step + 1))?;
            let tasks = self.run.step(step + 1).join("tasks.jsonl");
            disk::rename(&drawn, &tasks)?;
            let tasks = fs::read(&tasks).map_err(|error| disk::failed("read", &tasks, &error))?;
            let (tasks, end) = staying::without_end(&tasks);
            self.pass(tasks);
            self.end = Some(end.to_vec());
        }
        Ok(())
    }

    fn pass(&mut self, tasks: &[u8]) {
        if let Some(resident) = &mut self.resident {
            resident.pass(tasks);
        }
    }

    /// Stops the resident stages. If one failed, no states were saved, so pending steps are
    /// dropped and will be repeated.
    fn end_stages(&mut self) -> Result<()> {
        let Some(resident) = self.resident.take() else { return Ok(()) };
        let ended = resident.end(&self.place, &format!("step {}", self.step));
        if ended.is_err() {
            self.run.forget();
        }
        ended
    }

    /// Compresses files that later steps do not read.
    fn compress(&self, step: u64) -> Result<()> {
        let files = ["samples", "tasks"].map(|name| self.run.step(step).join(format!("{name}.jsonl")));
        let files: Vec<String> =
            files.iter().filter(|file| file.is_file()).map(|file| file.display().to_string()).collect();
        if files.is_empty() || !self.plan.settings.compress {
            return Ok(());
        }
        let words: Vec<&str> = files.iter().map(String::as_str).collect();
        match self.plan.programs.run("report", &[&["compress", "--quiet"], &words[..]].concat()) {
            Err(_) if files.iter().all(|file| !Path::new(file).exists()) => Ok(()), // done by another process
            compressed => compressed,
        }
    }
}
