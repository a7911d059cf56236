//! The stage from end to end: read everything, decide whether it may be trained on, train each policy and publish,
//! then say so.
//!
//! Nothing is written to a policy before all of its training has succeeded, and nothing at all for a stream that is
//! not whole. Policies are opened before the first of them is trained, so that a missing version is found while
//! nothing has changed; they are published one after the other, and a repeated call recognises those that were.

use std::fmt::Display;
use std::io::Write;
use std::time::Instant;

use policy::config::Config;
use policy::directory::Policy;
use policy::ownership::Ownership;
use record::failure::{Failure, Result};
use record::read::Reader;
use record::stage;
use record::stream::Stream;
use record::write::Writer;
use serde_json::{Map, Value, json};

use crate::arguments::{Arguments, Objective};
use crate::checkpoint;
use crate::intake::Intake;
use crate::memory::{self, Subject};
use crate::metrics;
use crate::output::Output;
use crate::plan::Plan;
use crate::run::Run;
use crate::samples::Needs;

/// The body of the program.
///
/// # Errors
/// Whatever stops the stage; by then an `end` line that says `ok:false` has been written where that was possible.
pub fn run() -> Result<()> {
    let started = Instant::now();
    let arguments: Arguments = stage::parse();
    arguments.check()?;
    let ownership = Ownership::parse("--policy", &arguments.policy)?;
    let references = Ownership::parse("--reference", &arguments.reference)?;
    check_directories(&arguments, &ownership)?;

    let mut output = Output::new(Writer::stdout());
    let mut intake = Intake::new(&ownership);
    let mut stream = Stream::new("update", arguments.allow_incomplete).every_shard();
    let copy = arguments.pass_through.then_some(&mut output);
    let read = intake.read(&mut Reader::stdin(), &mut stream, &ownership, needs(&arguments), copy);
    let reading = started.elapsed().as_secs_f64();

    // A plan may be asked for before there is anything to train on.
    let geometry = arguments.dry_run && intake.read == 0 && stream.ends().is_empty();
    if geometry {
        stream = Stream::new("update", true);
    }
    let mut times = Map::new();
    let outcome = read.and_then(|()| match geometry {
        true => plan_geometry(&arguments, &ownership, &mut output),
        false => stream
            .whole()
            .and_then(|()| work(&arguments, &ownership, &references, &intake, &mut output, &mut times)),
    });
    let mut timing = stage::timing(started);
    timing.insert("reading_seconds".to_owned(), json!(reading));
    if !times.is_empty() {
        timing.insert("policies".to_owned(), Value::Object(times));
    }
    match output.into_writer() {
        Some(mut writer) => stream.close(&mut writer, outcome, counts(&intake, &ownership), timing),
        None => outcome,
    }
}

/// What the objective needs each sample to have.
fn needs(arguments: &Arguments) -> Needs {
    let clip = arguments.objective == Objective::Clip;
    Needs {
        logprobs: clip || arguments.check,
        advantage: clip && !arguments.check,
        whole_distribution: clip && !arguments.check && !arguments.allow_truncated_sampling,
    }
}

/// Refuses, before anything is read, directories that cannot be trained.
fn check_directories(arguments: &Arguments, ownership: &Ownership) -> Result<()> {
    for owned in ownership.owners() {
        if arguments.dry_run && owned.directory.join("config.json").exists() {
            continue;
        }
        let policy = Policy::open(&owned.directory)?;
        if !(arguments.check || arguments.dry_run || policy.is_writable_layout()) {
            let place = owned.directory.display();
            return Err(Failure::usage(format!(
                "--policy {place}: not a policy directory, so no version can be added"
            ))
            .hint(format!("policy init NEW --from {place} makes one of it; then --policy NEW")));
        }
    }
    Ok(())
}

/// Trains, checks or plans every policy that has samples.
fn work<W: Write>(
    arguments: &Arguments,
    ownership: &Ownership,
    references: &Ownership,
    intake: &Intake,
    output: &mut Output<W>,
    times: &mut Map<String, Value>,
) -> Result<()> {
    refuse_nothing(arguments, ownership, intake)?;
    let mut runs = Vec::new();
    for (owned, samples) in ownership.owners().iter().zip(&intake.samples) {
        if samples.rows.is_empty() {
            remark(arguments, format_args!("{}: no samples, stays at its version", owned.name));
            continue;
        }
        runs.push(Run::open(arguments, owned, references, samples, intake.passed)?);
    }
    let mut failure = None;
    for run in &runs {
        if arguments.dry_run {
            output.object(&run.plan()?)?;
        } else if arguments.check {
            let (line, spent, agreement) = run.check()?;
            output.raw(&line)?;
            times.insert(run.name().to_owned(), json!(spent));
            // Every policy is checked before the first that disagrees fails the call.
            failure = failure.or(agreement.err());
        } else {
            let (line, spent) = run.train()?;
            output.raw(&line)?;
            times.insert(run.name().to_owned(), json!(spent));
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Plans for every policy without samples: its geometry is enough.
fn plan_geometry<W: Write>(
    arguments: &Arguments,
    ownership: &Ownership,
    output: &mut Output<W>,
) -> Result<()> {
    for owned in ownership.owners() {
        let bare = owned.directory.join("config.json").exists();
        let policy = if bare { None } else { Some(Policy::open(&owned.directory)?) };
        let config = Config::load(policy.as_ref().map_or(&owned.directory, |policy| policy.model()))?;
        let adapter = policy.map(|policy| checkpoint::adapter(&policy, &config)).transpose()?.flatten();
        let shape = checkpoint::shape(&config);
        let subject = Subject { shape: &shape, stored: config.dtype, adapter: adapter.as_ref() };
        let demand = memory::largest_demand(arguments, config.max_positions);
        let planned = memory::planned(arguments, subject, &demand)?;
        let settings = metrics::settings(arguments, None)?;
        output.object(&Plan::of_geometry(subject, planned, &owned.name, settings))?;
    }
    Ok(())
}

fn refuse_nothing(arguments: &Arguments, ownership: &Ownership, intake: &Intake) -> Result<()> {
    let owned: usize = intake.samples.iter().map(|samples| samples.rows.len()).sum();
    if owned == 0 {
        let flags: Vec<String> = arguments.policy.iter().map(|value| format!("--policy {value}")).collect();
        let cause = match intake.read {
            0 => "the stream holds no samples".to_owned(),
            read => format!("none of the {read} samples belongs to {}", flags.join(" ")),
        };
        let hint = match intake.unowned.as_slice() {
            [] => {
                "an update needs samples: envs tasks … | rollout … | group | advantage | update …".to_owned()
            }
            agents => format!("the stream's agents are: {}", agents.join(", ")),
        };
        return Err(Failure::data(cause).hint(hint));
    }
    if intake.passed > 0 {
        let agents = intake.unowned.join(", ");
        let named: Vec<&str> = ownership.owners().iter().map(|policy| policy.name.as_str()).collect();
        let (passed, read) = (intake.passed, intake.read);
        let text =
            format!("{passed} of {read} samples passed by: no policy of {} owns {agents}", named.join(", "));
        remark(arguments, text);
    }
    Ok(())
}

fn counts(intake: &Intake, ownership: &Ownership) -> Map<String, Value> {
    let mut counts = Map::new();
    let owned: usize = intake.samples.iter().map(|samples| samples.rows.len()).sum();
    counts.insert("samples".to_owned(), json!(intake.read));
    counts.insert("samples_owned".to_owned(), json!(owned));
    counts.insert("samples_passed_by".to_owned(), json!(intake.passed));
    let by_policy: Map<String, Value> = ownership
        .owners()
        .iter()
        .zip(&intake.samples)
        .map(|(policy, samples)| (policy.name.clone(), json!(samples.rows.len())))
        .collect();
    counts.insert("policies".to_owned(), Value::Object(by_policy));
    counts
}

/// A line on stderr that is not a failure.
pub fn remark(arguments: &Arguments, text: impl Display) {
    if !arguments.quiet {
        stage::note("update", text);
    }
}
