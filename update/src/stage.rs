//! The stage from end to end: reads the stream, trains and publishes each policy, writes the metrics.
//!
//! Nothing is published for an incomplete stream, and nothing of a policy before all of its training has succeeded. All
//! policies are opened before the first is trained, so that a missing version is found while nothing has changed. They
//! are published one by one, with `--side-by-side` each by processes of its own, and a repeated call recognizes those that were.

use std::fs::File;
use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Instant;

use clap::CommandFactory;
use policy::config::Config;
use policy::directory::Policy;
use policy::ownership::Ownership;
use record::failure::{Failure, Result};
use record::read::{Reader, Stdin};
use record::splice;
use record::stage::{self, counted};
use record::stream::Stream;
use record::write::Writer;
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::checkpoint;
use crate::context::UpdateContext;
use crate::metrics;
use crate::output::Output;
use crate::overlap::Overlap;
use crate::plan::{self, ModelSpec, Planner};
use crate::plan_line::Plan;
use crate::policy_update::PolicyUpdate;
use crate::ranks::{self, Communicator, Input, PolicyRanks};
use crate::reader::{self, Arrival, SampleReader, Unbounded};
use crate::resident_policy::ResidentPolicy;
use crate::samples::Samples;
use crate::settings::{Settings, Work};
use crate::skipped::DroppedGroups;

/// Runs the stage.
///
/// # Errors
/// Whatever stops the stage, after an `end` line with `ok:false` where that could be written.
pub fn run() -> Result<()> {
    let ready = stage::try_parse::<Arguments>().and_then(|arguments| {
        let settings = arguments.settings()?;
        settings.policy_rates(&Ownership::of_directories("--policy", &settings.policies)?)?;
        stage::end_if_dry_run();
        Ok((ranks::start()?, settings))
    });
    let (ranks, settings) = ready.map_err(ranks::refused)?;
    let outcome = run_on(ranks.as_ref(), settings);
    ranks::end(ranks.as_ref(), outcome)
}

fn run_on(ranks: &dyn Communicator, mut settings: Settings) -> Result<()> {
    if ranks.count() > 1 {
        let command = Arguments::command();
        let matches = command.clone().try_get_matches().map_err(Failure::usage)?;
        ranks::flags::compare(ranks, &ranks::flags::of(&command, &matches))?;
    }
    let plans = matches!(settings.work, Work::Plan { .. });
    ranks::cards::assign(ranks, &mut settings.hardware, plans)?;
    let ownership = Ownership::of_directories("--policy", &settings.policies)?;
    settings.check_ranks(ranks.count(), ownership.owners().len())?;
    let references = Ownership::of_directories("--reference", &settings.references)?;
    check_directories(&settings.work, &ownership)?;

    if let Work::Check { per_token: Some(path) } = &settings.work {
        // Each policy appends its tokens.
        File::create(path).map_err(|error| Failure::io(format!("--check={}: {error}", path.display())))?;
    }
    let mut output = Output::new(Writer::stdout());
    if ranks.rank() > 0 {
        (output, settings.messages.quiet) = (Output::silent(), true);
    }
    let processes = PolicyRanks::new(ranks, ownership.owners().len(), settings.side_by_side);
    let call = UpdateContext {
        settings: &settings,
        ownership: &ownership,
        references: &references,
        processes: &processes,
    };
    each_part(&call, &mut output)
}

/// Updates with each part of the input, which is all of it unless with `--resident`.
fn each_part<W: Write>(call: &UpdateContext, output: &mut Output<W>) -> Result<()> {
    let UpdateContext { settings, processes, .. } = *call;
    let ranks = processes.all;
    let arrival = Rc::<Arrival>::default();
    let unbounded = || {
        let input = Unbounded::new(Stdin, arrival.clone());
        input.map_err(|error| Failure::io(format!("reading stdin: {error}")))
    };
    let input: Box<dyn Read> =
        if overlaps(call) && ranks.count() == 1 { Box::new(unbounded()?) } else { Box::new(Stdin) };
    let mut reader = Reader::stdin().map(|_| Input::of_stdin(ranks, input));
    let mut policies: Vec<ResidentPolicy> =
        call.ownership.owners().iter().map(|_| ResidentPolicy::default()).collect();
    reader.each_part(settings.reading.in_parts, |reader| {
        let step = run_part(call, reader, &arrival, output, &mut policies)?;
        // Nobody waits for this: the next part is being played.
        policies.iter_mut().try_for_each(ResidentPolicy::synchronize)?;
        match step.is_none_or(|step| step.is_multiple_of(settings.publishing.save_every)) {
            true => save(processes, &mut policies),
            false => Ok(()),
        }
    })?;
    save(processes, &mut policies)
}

/// Returns true if the first minibatch may begin while its samples still arrive.
fn overlaps(call: &UpdateContext) -> bool {
    let UpdateContext { settings, processes, .. } = *call;
    settings.publishing.resident && processes.own().count() == 1 && Overlap::is_allowed(&settings.training)
}

/// Saves the training states of all policies that this process trains.
fn save(processes: &PolicyRanks, policies: &mut [ResidentPolicy]) -> Result<()> {
    policies
        .iter_mut()
        .try_for_each(|policy| policy.save(processes.own()))
        .map_err(|failure| processes.failed(failure))
}

/// Updates with one part of the input and answers it; returns its training step, if it names one. `policies` stay in memory.
fn run_part<R: Read, W: Write>(
    call: &UpdateContext,
    reader: &mut Reader<R>,
    arrival: &Arrival,
    output: &mut Output<W>,
    policies: &mut [ResidentPolicy],
) -> Result<Option<u64>> {
    let started = Instant::now();
    let UpdateContext { settings, ownership, .. } = *call;
    let mut input = SampleReader::new(ownership, settings.reading);
    let stream = Stream::new("update", settings.reading.allow_incomplete);
    let mut stream = stream.every_shard().every_sample().every_group();
    let copy = settings.reading.pass_through.then_some(&mut *output);
    let overlaps = overlaps(call);
    let begin = |samples: &[Samples]| {
        // Everything that has arrived is read first: only then would this stage wait.
        if arrival.has_more.get() {
            return Ok(());
        }
        let mut own = policies.iter_mut().zip(samples).filter(|_| overlaps);
        own.try_for_each(|(policy, samples)| policy.begin(&settings.training, samples))
    };
    let read = input.read(reader, &mut stream, copy, begin);
    if let Some(at) = arrival.last.get() {
        policies.iter_mut().for_each(|policy| policy.end_overlap(at));
    }
    input.samples.iter_mut().for_each(Samples::sort);
    input.sampled_in_f32 = reader::sampled_in_f32(stream.ends());
    let left_out = DroppedGroups::of(stream.ends());
    let reading = started.elapsed().as_secs_f64();

    // Without samples a dry run plans for the model's sizes alone.
    let geometry = matches!(settings.work, Work::Plan { .. }) && input.read == 0 && stream.ends().is_empty();
    if geometry {
        stream = Stream::new("update", true);
    }
    let mut times = Map::new();
    let outcome = read.and_then(|()| match geometry {
        true => plan_geometry(call, output),
        false => stream.whole().and_then(|()| work(call, &input, &left_out, output, policies, &mut times)),
    });
    let mut timing = stage::timing(started);
    timing.insert("reading_seconds".to_owned(), json!(reading));
    if !times.is_empty() {
        timing.insert("policies".to_owned(), Value::Object(times));
    }
    match output.writer() {
        Some(writer) => stream.close(writer, outcome, counts(&input, ownership), timing),
        None => outcome,
    }?;
    Ok(input.samples.iter().find_map(|samples| samples.step).or(left_out.step))
}

/// Fails, before anything is read, for directories that cannot be trained.
fn check_directories(work: &Work, ownership: &Ownership) -> Result<()> {
    for owned in ownership.owners() {
        if matches!(work, Work::Plan { .. }) && owned.directory.join("config.json").exists() {
            continue;
        }
        let policy = Policy::open(&owned.directory)?;
        if *work == Work::Train && !policy.is_writable_layout() {
            let place = owned.directory.display();
            return Err(Failure::usage(format!(
                "--policy {place}: not a policy directory, so no version can be added"
            ))
            .hint(format!("create one with policy init NEW --from {place}, then pass --policy NEW")));
        }
    }
    Ok(())
}

/// Trains, checks or plans every policy that has samples; adds the time of each to `times`.
fn work<W: Write>(
    call: &UpdateContext,
    input: &SampleReader,
    left_out: &DroppedGroups,
    output: &mut Output<W>,
    policies: &mut [ResidentPolicy],
    times: &mut Map<String, Value>,
) -> Result<()> {
    let UpdateContext { settings, ownership, processes, .. } = *call;
    let skipped = skip(call, input, left_out)?;
    check_ownership(call, input, !skipped.is_empty())?;
    // Each policy with samples, by its number.
    let trained: Vec<usize> =
        (0..ownership.owners().len()).filter(|&index| !input.samples[index].rows.is_empty()).collect();
    let mut updates = Vec::new();
    for (index, policy) in policies.iter_mut().enumerate() {
        if trained.contains(&index) && processes.trains(index) {
            let update = PolicyUpdate::open(call, index, input, policy);
            updates.push((update.map_err(|failure| processes.failed(failure))?, policy));
        }
    }
    processes.wait();
    skipped.iter().try_for_each(|line| output.raw(line))?;
    let (mut failure, mut own) = (None, String::new());
    for (update, policy) in updates {
        match settings.work {
            Work::Plan { .. } => output.object(&update.plan()?)?,
            Work::Check { .. } => {
                let (line, spent, agreement) = update.check()?;
                output.raw(&line)?;
                times.insert(update.name().to_owned(), json!(spent));
                // All policies are checked; the first that disagrees fails the call.
                failure = failure.or(agreement.err());
            }
            Work::Train => {
                let (line, spent) = update.train(policy).map_err(|failure| processes.failed(failure))?;
                if processes.is_split() {
                    own = splice::json(&(line, spent))?;
                } else {
                    output.raw(&line)?;
                    times.insert(update.name().to_owned(), json!(spent));
                }
            }
        }
    }
    if processes.is_split() {
        for index in trained {
            let name = &ownership.owners()[index].name;
            let text = processes.find_on_first(index, || Ok(std::mem::take(&mut own)))?;
            let (line, spent): (String, Value) = serde_json::from_str(&text)
                .map_err(|error| Failure::work(format!("the metrics of {name}: {error}")))?;
            output.raw(&line)?;
            times.insert(name.clone(), spent);
        }
    }
    failure.map_or(Ok(()), Err)
}

/// The metrics lines of the policies whose groups were all left out on purpose; says of every policy without samples that it keeps its
/// version.
fn skip(call: &UpdateContext, input: &SampleReader, left_out: &DroppedGroups) -> Result<Vec<String>> {
    let UpdateContext { settings, ownership, .. } = *call;
    let mut lines = Vec::new();
    for (index, (owned, samples)) in ownership.owners().iter().zip(&input.samples).enumerate() {
        if !samples.rows.is_empty() {
            continue;
        }
        let groups = left_out.groups(ownership, index);
        if groups == 0 || settings.work != Work::Train {
            settings.messages.print(format_args!("{}: no samples, keeps its version", owned.name));
            continue;
        }
        let (all, why) = (counted(groups, "group"), left_out.why());
        settings.messages.print(format_args!(
            "{}: nothing to learn from, keeps its version: the stages before left out all of its {all} ({why})",
            owned.name
        ));
        lines.push(left_out.line(&owned.name, &Policy::open(&owned.directory)?.version, groups)?);
    }
    Ok(lines)
}

/// Plans for every policy without samples, from the model's sizes.
fn plan_geometry<W: Write>(call: &UpdateContext, output: &mut Output<W>) -> Result<()> {
    let Settings { hardware, work, .. } = call.settings;
    let ranks = match work {
        Work::Plan { ranks: Some(ranks) } => *ranks,
        _ => 1,
    };
    for (index, owned) in call.ownership.owners().iter().enumerate() {
        let bare = owned.directory.join("config.json").exists();
        let policy = if bare { None } else { Some(Policy::open(&owned.directory)?) };
        let config = match &policy {
            Some(policy) => policy.config.clone(),
            None => Config::load(&owned.directory)?,
        };
        let adapter = policy.map(|policy| checkpoint::adapter(&policy, &config)).transpose()?.flatten();
        let training = &call.settings.training_of(call.ownership, index, &config, adapter.is_some())?;
        let spec = ModelSpec { config: &config, stored: config.dtype, adapter: adapter.as_ref() };
        let request = plan::largest_request(training, config.max_positions, ranks);
        let estimate = Planner { hardware, training, spec }.estimate(&request)?;
        let record = metrics::settings(training, hardware.dtype, None);
        output.object(&Plan::new(spec, estimate, &owned.name, record))?;
    }
    Ok(())
}

/// Fails if no sample belongs to a policy of this call, unless they were left out on purpose, and logs how many do not.
fn check_ownership(call: &UpdateContext, input: &SampleReader, skips: bool) -> Result<()> {
    let UpdateContext { settings, ownership, .. } = *call;
    if input.owned() == 0 && !skips {
        let flags: Vec<String> = settings.policies.iter().map(|value| format!("--policy {value}")).collect();
        let cause = match input.read {
            0 => "the stream holds no samples".to_owned(),
            read => format!("none of the {read} samples belongs to {}", flags.join(" ")),
        };
        let hint = match input.unowned.as_slice() {
            [] => {
                "an update needs samples: envs tasks … | rollout … | group | advantage | update …".to_owned()
            }
            agents => format!("the stream's agents are: {}", agents.join(", ")),
        };
        return Err(Failure::data(cause).hint(hint));
    }
    if input.passed > 0 {
        let agents = input.unowned.join(", ");
        let named: Vec<&str> = ownership.owners().iter().map(|policy| policy.name.as_str()).collect();
        let (passed, read) = (input.passed, input.read);
        let named = named.join(", ");
        settings
            .messages
            .print(format_args!("ignored {passed} of {read} samples: no policy of {named} owns {agents}"));
    }
    Ok(())
}

fn counts(input: &SampleReader, ownership: &Ownership) -> Map<String, Value> {
    let policies = ownership.owners().iter().zip(&input.samples);
    let policies: Map<String, Value> =
        policies.map(|(policy, samples)| (policy.name.clone(), json!(samples.rows.len()))).collect();
    let counts = [
        ("samples", json!(input.read)),
        ("samples_owned", json!(input.owned())),
        ("samples_passed_by", json!(input.passed)),
        ("policies", Value::Object(policies)),
    ];
    counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect()
}
