//! The command: looks at the first task, opens the policies, plays, and writes `end`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Choice;
use envs::{Environment, External};
use record::failure::{Failure, Result};
use record::line::{self, End, Task};
use record::read::{Kind, Line, Reader};
use record::write::Writer;
use serde_json::{Map, Value, json};

use crate::arguments::{Arguments, Settings, Strategy};
use crate::engine::Options;
use crate::engine::paged::SEQUENCES;
use crate::feed::Shard;
use crate::lines::{Speaker, Stamp};
use crate::models::Models;
use crate::queue::Queue;
use crate::runtime;
use crate::stage::{self, MakeGenerators, Totals, Width};
use crate::trial::{Counts, Plan};
use crate::version;
use crate::worker::Shared;

/// Rows that a thread decodes together. The throughput of a small model on a CPU levels off at a few dozen
/// rows a thread; more would only push its keys and values out of the caches.
const ROWS: usize = 128;

/// Keys and values of all policies and threads together, at most; taken as needed. Groups that do not fit wait.
const CACHE_BYTES: usize = 2 << 30;

/// The whole program.
///
/// # Errors
/// As [`run`]; an unusable command line (2).
pub fn main() -> Result<()> {
    let arguments: Arguments = record::stage::parse();
    if arguments.version { version::print() } else { run(&arguments.resolve()?) }
}

/// The stage from stdin to stdout.
///
/// # Errors
/// As the exit codes say: a bad record or an incomplete stream (65), a missing library (69), an agent without a
/// policy (2), too many failed episodes or a model that fails to run (1).
pub fn run(settings: &Settings) -> Result<()> {
    let started = Instant::now();
    // What is missing for a GPU is said before anything is read.
    if matches!(settings.device, Choice::Cuda(_)) {
        runtime::open_cuda()?;
    }
    let mut writer = Writer::stdout();
    let (totals, load, outcome) = play(settings, &mut writer);
    let outcome = outcome.and_then(|()| judge(settings, &totals));
    if outcome.as_ref().is_err_and(Failure::is_closed) {
        return outcome;
    }
    let mut end = end(settings, totals, outcome.is_ok(), started.elapsed(), load);
    end.error = outcome.as_ref().err().map(|failure| failure.message.clone());
    let written = writer.object(&end).and_then(|()| writer.flush());
    outcome.and(written)
}

/// Opens and plays; what is opened here is closed when this returns.
fn play(settings: &Settings, writer: &mut Writer<impl std::io::Write>) -> (Totals, Duration, Result<()>) {
    let started = Instant::now();
    let mut reader = Reader::stdin();
    let opened = read_ahead(&mut reader).and_then(|(ahead, first)| {
        let external = settings
            .env_command
            .as_ref()
            .map(|(command, timeout)| Box::new(External::new(command, *timeout)) as Box<dyn Environment>);
        let environment = envs::environment_of(external.as_deref(), &first)?;
        let agents = environment.agents(&first, settings.workflow.as_deref())?;
        check_team(settings, &agents)?;
        let limit = match settings.device {
            Choice::Cpu => (ROWS / settings.branches as usize).max(2),
            // All threads share the device's rows; as many again wait, so that it never runs dry.
            _ => (2 * SEQUENCES / (settings.branches as usize * settings.threads)).max(2),
        };
        let rows = limit * settings.branches as usize * agents.len().max(1);
        let options = Options {
            threads: settings.threads,
            max_rows: rows,
            cache_bytes: CACHE_BYTES,
            stop_ids: Vec::new(),
            precision: settings.dtype,
        };
        let policies = settings.team.policies();
        let directories: Vec<&Path> = policies.iter().map(|policy| policy.directory.as_path()).collect();
        let loaded = Models::open(&directories, settings.device, &options)?;
        let shared = share(settings, &loaded, external, limit)?;
        Ok((ahead, loaded, shared))
    });
    let load = started.elapsed();
    let (ahead, loaded, shared) = match opened {
        Ok(opened) => opened,
        Err(failure) => return (Totals::default(), load, Err(failure)),
    };
    let make: MakeGenerators = Arc::new(move || loaded.generators());
    let shard = Shard { number: settings.shard, count: settings.shards };
    let width = Width { threads: settings.threads, shard, quiet: settings.quiet };
    let (totals, outcome) = stage::play(&shared, &make, ahead, reader, writer, width);
    (totals, load, outcome)
}

/// Reads up to the first task, which says who plays: what is wrong with the flags is then told before anything
/// is loaded.
fn read_ahead<R: std::io::Read>(reader: &mut Reader<R>) -> Result<(Vec<Line>, Task)> {
    let mut ahead = Vec::new();
    while let Some(line) = reader.next()? {
        let task = (line.kind == Kind::Task).then(|| line::parse(&line)).transpose()?;
        ahead.push(line);
        if let Some(task) = task {
            return Ok((ahead, task));
        }
    }
    Err(Failure::data("stdin holds no task")
        .hint("tasks come from the stage before: envs tasks plan-path --count 32 | rollout --policy DIR"))
}

/// Says which agent has no policy, and which policy has no agent, as far as the agents are known.
fn check_team(settings: &Settings, agents: &[String]) -> Result<()> {
    settings.team.covers(agents)?;
    if agents.is_empty() {
        return Ok(());
    }
    if let Some(stranger) = settings.team.stranger(agents) {
        return Err(Failure::usage(format!("--policy {stranger}=…: the workflow has no agent {stranger}"))
            .hint(format!("its agents are: {}", agents.join(", "))));
    }
    Ok(())
}

fn share(
    settings: &Settings,
    loaded: &Models,
    external: Option<Box<dyn Environment>>,
    limit: usize,
) -> Result<Arc<Shared>> {
    let speakers = settings
        .team
        .policies()
        .iter()
        .zip(loaded.versions())
        .map(|(policy, version)| Speaker { policy: policy.name.as_str().into(), version: version.into() })
        .collect();
    Ok(Arc::new(Shared {
        queue: Queue::new(settings.threads, limit),
        external,
        workflow: settings.workflow.clone(),
        team: settings.team.clone(),
        plan: Arc::new(plan(settings, speakers)?),
        sampling: settings.sampling,
        max_tokens: settings.max_tokens,
    }))
}

/// What all trials of a run have in common.
///
/// # Errors
/// None that checked settings can cause.
pub fn plan(settings: &Settings, speakers: Vec<Speaker>) -> Result<Plan> {
    let stamp = Stamp::new(
        settings.step,
        format!("{}/{}", settings.shard, settings.shards),
        settings.branches,
        settings.strategy == Strategy::Parallel,
        &settings.sampling_line(),
    )?;
    Ok(Plan { rules: Arc::new(settings.rules.clone()), stamp, speakers, seed: settings.seed })
}

/// Whether what was played may be trained on.
///
/// # Errors
/// 65 when a stage before this one failed, 1 when too many episodes could not be scored.
pub fn judge(settings: &Settings, totals: &Totals) -> Result<()> {
    if let Some(end) = totals.ends.iter().find(|end| !end.ok) {
        return Err(Failure::data(format!("the stage before, {}, did not succeed", end.stage))
            .hint("its own message on stderr says why"));
    }
    let Counts { episodes, failed, .. } = totals.counts;
    if failed as f64 > settings.max_error_rate * episodes as f64 {
        return Err(Failure::work(format!("{failed} of {episodes} episodes could not be scored"))
            .hint("the `error` lines say why; --max-error-rate says how many are accepted"));
    }
    Ok(())
}

fn end(settings: &Settings, totals: Totals, ok: bool, elapsed: Duration, load: Duration) -> End {
    let Totals { tasks, counts, account, times, ends } = totals;
    let counted = [
        ("tasks", tasks),
        ("episodes", counts.episodes),
        ("solved", counts.solved),
        ("errors", counts.failed),
        ("groups_expected", account.expected),
        ("groups", counts.groups),
        ("samples", counts.samples),
        ("prompt_tokens", counts.prompt_tokens),
        ("completion_tokens", counts.completion_tokens),
    ];
    let seconds = [
        ("seconds", elapsed),
        ("load_seconds", load),
        ("model_seconds", times.model),
        ("environment_seconds", times.environment),
        ("text_seconds", times.text),
        ("waiting_seconds", times.waiting),
    ];
    let mut timing: BTreeMap<String, Value> =
        seconds.into_iter().map(|(name, time)| (name.to_owned(), json!(time.as_secs_f64()))).collect();
    // Of the model's seconds, added over threads; on a device those of the one thread that runs it.
    let policies: Map<String, Value> = settings
        .team
        .policies()
        .iter()
        .zip(&times.timings)
        .map(|(policy, timings)| {
            let [prefill, decode] = [timings.prefill, timings.decode].map(|time| time.as_secs_f64());
            (policy.name.clone(), json!({"prefill_seconds": prefill, "decode_seconds": decode}))
        })
        .collect();
    timing.insert("policies".to_owned(), policies.into());
    timing.insert("threads".to_owned(), settings.threads.into());
    timing.insert("build".to_owned(), record::stage::build().into());
    let mut counts: Map<String, Value> =
        counted.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
    counts.insert("dropped_groups".to_owned(), account.dropped_fields());
    counts.insert("environments".to_owned(), account.environment_fields());
    counts.insert("agents".to_owned(), account.agent_fields());
    End {
        stage: "rollout".to_owned(),
        ok,
        step: Some(settings.step),
        shard: Some(format!("{}/{}", settings.shard, settings.shards)),
        counts,
        after: ends,
        timing,
        extra: Map::from_iter([("dtype".to_owned(), settings.dtype.name().into())]),
        ..End::default()
    }
}
