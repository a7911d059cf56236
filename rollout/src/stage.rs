//! The stage: opens the policies, plays the tasks of stdin, and writes samples and one `end` line to stdout.
//!
//! Four kinds of threads: one reads the input ([`crate::reader`]), N play episodes ([`crate::worker`]),
//! others run the models for them ([`crate::engine::service`]), and the main thread writes in task order
//! ([`crate::writer`]). Only the writer decides when the run is over, so a signal or a closed pipe is noticed
//! even while the input is silent.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use device::DeviceKind;
use envs::{Environment, External};
use policy::ownership::Owner;
use record::failure::{Failure, Result};
use record::line::{self, End, Task};
use record::progress::Progress;
use record::read::{Kind, Line, Reader, Stdin};
use record::write::Writer;
use serde_json::{Map, Value, json};

use crate::arguments::CommandLine;
use crate::engine::device::SEQUENCES;
use crate::engine::{Options, PhaseTimings};
use crate::generator::Generator;
use crate::opponents::Opponents;
use crate::policies::{Policies, ResidentState, policy_of};
use crate::queue::Queue;
use crate::reader::TaskReader;
use crate::runtime;
use crate::sampling;
use crate::serve;
use crate::server;
use crate::settings::Settings;
use crate::stats::Stats;
use crate::task_run::RunContext;
use crate::version;
use crate::worker::{ThreadTimes, Worker};
use crate::writer::{Event, write_in_order};

/// Rows that a thread decodes together. A small model's throughput on a CPU levels off at a few dozen rows
/// per thread; more would only evict its keys and values from the processor's caches.
pub const ROWS: usize = 128;

/// Size of the KV caches of all policies and threads together, in bytes; allocated on demand.
/// Groups that do not fit wait.
pub const CACHE_BYTES: usize = 2 << 30;

/// Makes what plays on a thread, on that thread: one generator for each policy.
pub type MakeGenerators = Box<dyn Fn() -> Result<Vec<Box<dyn Generator>>> + Send + Sync>;

/// A run that is ready to start.
pub struct Run<L> {
    /// Shared by all tasks.
    pub context: Arc<RunContext>,
    /// The policies.
    pub generators: MakeGenerators,
    /// The input.
    pub lines: L,
    /// Tasks in progress on each thread, at most.
    pub tasks_per_thread: usize,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Totals {
    /// Tasks, episodes, groups and samples.
    pub stats: Stats,
    /// Time of all threads, by activity.
    pub times: ThreadTimes,
    /// Tasks read, including other shards'.
    pub tasks_read: u64,
    /// The `end` lines of the stages before this one.
    pub ends: Vec<End>,
}

/// The whole program.
///
/// # Errors
/// By exit code: an unusable command line or an agent without a policy (2), a bad record or an incomplete
/// stream (65), a missing library (69), too many failed episodes or a model that fails to run (1).
pub fn main() -> Result<()> {
    let CommandLine { arguments, version, format } = record::stage::parse();
    if version { version::print(format) } else { run(&arguments.resolve()?) }
}

fn run(settings: &Settings) -> Result<()> {
    // Report a missing GPU or library before reading anything.
    if matches!(settings.device, DeviceKind::Cuda(_)) {
        runtime::open_cuda()?;
        device::cuda::check_cards(&settings.placement.cards())?;
    }
    // Likewise a URL that contains a key, which a script would record.
    for owner in settings.team.owners().iter().filter(|owner| owner.is_server()) {
        server::check(&owner.directory.to_string_lossy(), settings.retry_policy)?;
    }
    record::stage::end_if_dry_run();
    if let Some(address) = &settings.flags.serve {
        return serve::run(settings, address);
    }
    let mut writer = Writer::stdout();
    let external = settings.env_command.as_ref().map(|(command, timeout)| External::new(command, *timeout));
    let reader = Arc::new(Mutex::new(Reader::stdin()));
    let mut settings = Arc::new(settings.clone());
    let mut kept = ResidentState::default();
    while !settings.flags.resident || lock(&reader).begin_part()? {
        run_part(&settings, external.clone(), (&reader, &mut kept), &mut writer)?;
        if !settings.flags.resident {
            break;
        }
        Arc::make_mut(&mut settings).metadata.step += 1;
    }
    Ok(())
}

/// Plays one part of the input, or all of it without `--resident`. `kept` stays in memory between parts.
fn run_part<W: Write>(
    settings: &Arc<Settings>,
    external: Option<External>,
    (reader, kept): (&Arc<Mutex<Reader<Stdin>>>, &mut ResidentState),
    writer: &mut Writer<W>,
) -> Result<()> {
    let started = Instant::now();
    let opened = open(settings, external, reader, settings.flags.resident.then_some(&mut *kept));
    let load = started.elapsed();
    let (totals, outcome) = match opened {
        Ok(run) => play(run, writer),
        Err(failure) => (Totals::default(), Err(failure)),
    };
    // Before the line that lets the next stage begin.
    kept.release();
    let outcome = outcome.and_then(|()| check_outcome(settings, &totals));
    if outcome.as_ref().is_err_and(Failure::is_closed) {
        return outcome;
    }
    let error = outcome.as_ref().err().map(|failure| failure.message.clone());
    let allowed =
        check_stream_complete(&totals).err().filter(|_| outcome.is_ok()).map(|failure| failure.message);
    let mut counts = totals.stats.counts();
    if let Some(fill) = &settings.fill {
        counts.insert("fill".to_owned(), fill.counts(&totals));
    }
    let timing = timing(settings, &totals.times, started.elapsed(), load);
    let end = End {
        stage: "rollout".to_owned(),
        ok: outcome.is_ok(),
        step: Some(settings.metadata.step),
        shard: Some(settings.metadata.shard.clone()),
        error,
        allowed,
        counts,
        after: totals.ends,
        timing,
        extra: Map::from_iter([("dtype".to_owned(), settings.dtype.name().into())]),
        ..End::default()
    };
    let written = writer.end(&end).and_then(|()| writer.flush());
    outcome.and(written)
}

/// Reads up to the first task, which names the agents, so that wrong flags are reported
/// before a policy is loaded.
fn open(
    settings: &Arc<Settings>,
    external: Option<External>,
    reader: &Arc<Mutex<Reader<Stdin>>>,
    kept: Option<&mut ResidentState>,
) -> Result<Run<impl Iterator<Item = Result<Line>> + Send + 'static>> {
    let (ahead, first) = read_ahead(&mut lock(reader), settings.flags.resident)?;
    let external = external.map(|external| Box::new(external) as Box<dyn Environment>);
    let environment = envs::environment_of(external.as_deref(), &first)?;
    let agents = environment.agents(&first, settings.flags.workflow.as_deref())?;
    check_team(settings, &agents)?;

    let branches = settings.episodes.widths.most() as usize;
    let tasks_per_thread = match settings.device {
        DeviceKind::Cpu => ROWS / branches,
        // The threads of a device share its rows. As many tasks wait, so that it never runs dry.
        _ => 2 * SEQUENCES * settings.placement.most() / (branches * settings.threads),
    };
    let tasks_per_thread = tasks_per_thread.max(2);
    let options = Options {
        threads: settings.threads,
        max_rows: tasks_per_thread * branches * agents.len().max(1),
        cache_bytes: CACHE_BYTES,
        stop_ids: Vec::new(),
        precision: settings.precision(),
        dtype: settings.dtype,
        isa: settings.flags.isa,
    };
    let owners = settings.team.owners();
    let pool = settings.flags.opponents;
    let placed = (&settings.placement, pool);
    let policies = Policies::open(placed, &options, settings.retry_policy, kept)?;
    if settings.sampling.values().any(|sampling| !sampling.stop.is_empty()) {
        policies.check_stop_strings()?;
    }
    let labels = policies.labels(owners);
    let opponents = if pool.0 == 0 { Opponents::default() } else { policies.opponents(owners) };
    let context = Arc::new(RunContext { settings: settings.clone(), external, labels, opponents });
    let (reader, resident) = (reader.clone(), settings.flags.resident);
    let mut at_end = false;
    let rest = std::iter::from_fn(move || {
        let line = if at_end { Ok(None) } else { lock(&reader).next() };
        at_end |= matches!(&line, Ok(Some(line)) if resident && line.kind == Kind::End);
        line.transpose()
    });
    let lines = ahead.into_iter().map(Ok).chain(rest);
    Ok(Run { context, generators: Box::new(move || policies.generators()), lines, tasks_per_thread })
}

/// The thread that reads tasks holds it for a line at a time, and is done before the next part.
fn lock(reader: &Mutex<Reader<Stdin>>) -> MutexGuard<'_, Reader<Stdin>> {
    reader.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_ahead<R: std::io::Read>(reader: &mut Reader<R>, resident: bool) -> Result<(Vec<Line>, Task)> {
    let mut ahead = Vec::new();
    while let Some(line) = reader.next()? {
        let task = (line.kind == Kind::Task).then(|| line::parse(&line)).transpose()?;
        let is_over = resident && line.kind == Kind::End;
        ahead.push(line);
        if let Some(task) = task {
            return Ok((ahead, task));
        }
        if is_over {
            break;
        }
    }
    Err(Failure::data("no task on stdin")
        .hint("tasks come from the stage before: envs tasks plan-path --count 32 | rollout --policy DIR"))
}

/// Refuses an agent without a policy and a policy without an agent, if the agents are known.
fn check_team(settings: &Settings, agents: &[String]) -> Result<()> {
    for agent in agents {
        policy_of(&settings.team, agent)?;
    }
    let is_unknown = |named: &&str| !agents.is_empty() && agents.iter().all(|agent| agent != named);
    if let Some((flag, agent)) = sampling::unknown_agent(&settings.flags, |agent| is_unknown(&agent)) {
        let equals = if flag == "--stop" { "; --stop '=TEXT' for a text with = in it" } else { "" };
        return Err(Failure::usage(format!("{flag} {agent}=…: the workflow has no agent named {agent}"))
            .hint(format!("its agents are: {}{equals}", agents.join(", "))));
    }
    match settings.team.named().map(|(agent, _)| agent).find(is_unknown) {
        None => Ok(()),
        Some(agent) => {
            let owner = settings.team.of(agent).map(|owner| &settings.team.owners()[owner]);
            let is_absent = owner.is_some_and(|owner| owner.said.is_some());
            let flag = if is_absent { format!("--absent {agent}") } else { format!("--policy {agent}=…") };
            Err(Failure::usage(format!("{flag}: the workflow has no agent named {agent}"))
                .hint(format!("its agents are: {}", agents.join(", "))))
        }
    }
}

/// Plays all tasks of a run and writes their lines. After a failure the totals hold what was done.
pub fn play<W: Write>(
    run: Run<impl Iterator<Item = Result<Line>> + Send + 'static>,
    writer: &mut Writer<W>,
) -> (Totals, Result<()>) {
    let Run { context, generators, lines, tasks_per_thread } = run;
    let settings = &context.settings;
    let queue = Arc::new(Queue::new(settings.threads, tasks_per_thread));
    let (sender, events) = channel();
    let reader = TaskReader::new(queue.clone(), sender.clone(), settings.shard, settings.fill);
    // Never joined: after a failure it may be waiting for a line that never comes.
    if let Err(error) = thread::Builder::new().spawn(move || reader.run(lines)) {
        return (Totals::default(), Err(runtime::spawn_failure(&error)));
    }

    let work = |sender: Sender<Event>| {
        let _stop = StopOnPanic(&queue);
        let mut times = ThreadTimes::default();
        let worked =
            generators().and_then(|own| Worker::new(&context, &queue, own, &sender, &mut times).run());
        if let Err(failure) = worked {
            // Fails only if the run is already over.
            let _ = sender.send(Event::Failed(failure));
        }
        times
    };
    let mut totals = Totals::default();
    let outcome = thread::scope(|scope| {
        let _stop = StopOnPanic(&queue);
        let (mut workers, mut outcome) = (Vec::new(), Ok(()));
        for sender in vec![sender; settings.threads] {
            match thread::Builder::new().spawn_scoped(scope, move || work(sender)) {
                Ok(worker) => workers.push(worker),
                Err(error) => outcome = Err(runtime::spawn_failure(&error)),
            }
        }
        if outcome.is_ok() {
            let name = if settings.sampling.values().all(|sampling| sampling.params.greedy) {
                "evaluating"
            } else {
                "rollout"
            };
            let progress = Progress::new(name, settings.flags.quiet, None);
            outcome = write_in_order(&events, &queue, writer, progress, &mut totals);
        }
        queue.stop();
        for worker in workers {
            match worker.join() {
                Ok(times) => totals.times.add(&times),
                Err(_) => outcome = outcome.and(Err(Failure::work("a worker thread panicked"))),
            }
        }
        outcome
    });
    (totals, outcome)
}

/// Stops the queue if a thread panics, because the others would wait for its tasks forever.
struct StopOnPanic<'a>(&'a Queue);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// Checks that all tasks written by the earlier stages have come.
fn check_stream_complete(totals: &Totals) -> Result<()> {
    if let Some(end) = totals.ends.iter().find_map(End::failed) {
        return Err(Failure::data(format!("stage {} before this one did not succeed", end.stage))
            .hint("its own message on stderr says why; --allow-incomplete plays the tasks that came"));
    }
    if totals.ends.is_empty() {
        return Err(Failure::data("stdin ended without an `end` line").hint(
            "the stage before died, or the tasks are hand-made: --allow-incomplete plays those that came",
        ));
    }
    let read = totals.tasks_read;
    let written: Option<u64> = totals.ends.iter().map(|end| end.counts.get("tasks")?.as_u64()).sum();
    match written.filter(|&written| read < written) {
        Some(written) => Err(Failure::data(format!(
            "stdin has {read} of the {written} tasks that the stages before this one wrote"
        ))
        .hint("if a filter drops tasks on purpose, say so: --allow-incomplete")),
        None => Ok(()),
    }
}

/// Says that an environment pays agents that do not act, where no sample gets this pay.
const UNPAID: &str = "warning: pay in `rewards.local` for agents that do not act counts in parallel sampling only; here no \
                      sample has it (rollout --sampling parallel | group --by agent | advantage --credit episode-own)";

/// Checks that the result may be trained on.
///
/// # Errors
/// The stream of tasks is incomplete (65), a group is unaccounted for or too many episodes could not be
/// scored (1).
pub fn check_outcome(settings: &Settings, totals: &Totals) -> Result<()> {
    if !settings.flags.allow_incomplete {
        check_stream_complete(totals)?;
    }
    let (expected, groups, dropped) = totals.stats.groups();
    if expected != groups + dropped {
        let message = format!("{expected} groups were begun, but {groups} written and {dropped} dropped");
        return Err(
            Failure::work(message).hint("this is a mistake in rollout: nothing should be trained on it")
        );
    }
    if let Some(fill) = &settings.fill {
        fill.judge(totals)?;
    }
    // Once in a run: its first step says it.
    if totals.stats.has_unpaid && settings.metadata.step <= 1 {
        record::stage::note("rollout", UNPAID);
    }
    if totals.stats.unread_calls > 0 {
        let count = totals.stats.unread_calls;
        let note =
            format!("{count} answers looked like calls of tools in a format that is not read, or broken");
        record::stage::note("rollout", note);
    }
    let (errors, episodes) = (totals.stats.errors(), totals.stats.episodes());
    if errors as f64 > settings.flags.max_error_rate * episodes as f64 {
        let first = totals.stats.first_error.as_deref().unwrap_or_default();
        return Err(Failure::work(format!(
            "{errors} of {episodes} episodes could not be scored, first {first}"
        ))
        .hint("each has an `error` line on stdout; --max-error-rate sets how many are accepted"));
    }
    Ok(())
}

fn timing(
    settings: &Settings,
    times: &ThreadTimes,
    elapsed: Duration,
    load: Duration,
) -> BTreeMap<String, Value> {
    // The sum over the threads that run models, while others step environments and render prompts.
    let model: Duration = times.phases.iter().map(|phases| phases.prefill + phases.decode).sum();
    let of_policy = |(owner, phases): (&Owner, &PhaseTimings)| {
        let [prefill, decode] = [phases.prefill, phases.decode].map(|time| time.as_secs_f64());
        let of_policy = json!({
            "prefill_seconds": prefill,
            "decode_seconds": decode,
            "prefill_runs": phases.prefill_runs,
            "decode_runs": phases.decode_runs,
            "mixed_runs": phases.mixed_runs,
            "replayed_runs": phases.graphs.replays,
            "refused_shapes": phases.graphs.refused,
        });
        (owner.name.clone(), of_policy)
    };
    let policies: Map<String, Value> =
        settings.team.owners().iter().zip(&times.phases).map(of_policy).collect();
    let timing: [(&str, Value); 9] = [
        ("seconds", elapsed.as_secs_f64().into()),
        ("load_seconds", load.as_secs_f64().into()),
        ("model_seconds", model.as_secs_f64().into()),
        ("environment_seconds", times.environment.as_secs_f64().into()),
        ("text_seconds", times.text.as_secs_f64().into()),
        ("waiting_seconds", times.waiting.as_secs_f64().into()),
        ("policies", policies.into()),
        ("threads", settings.threads.into()),
        ("build", record::stage::build().into()),
    ];
    timing.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
