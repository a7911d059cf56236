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

use crate::arguments::{Arguments, Objective};
use crate::checkpoint;
use crate::kept::Kept;
use crate::metrics;
use crate::output::Output;
use crate::overlap::Overlap;
use crate::plan::{self, ModelSpec, Plan};
use crate::policy_update::PolicyUpdate;
use crate::ranks::{self, Input, PolicyRanks, Ranks};
use crate::reader::{self, Arrival, SampleReader, Unbounded};
use crate::samples::{Needs, Samples};
use crate::skipped::DroppedGroups;

/// Runs the stage.
///
/// # Errors
/// Whatever stops the stage, after an `end` line with `ok:false` where that could be written.
pub fn run() -> Result<()> {
    let ready = stage::try_parse::<Arguments>().and_then(|arguments| {
        arguments.check()?;
        stage::end_if_dry_run();
        Ok((ranks::start()?, arguments))
    });
    let (ranks, arguments) = ready.map_err(ranks::refused)?;
    let outcome = run_on(ranks.as_ref(), arguments);
    ranks::end(ranks.as_ref(), outcome)
}

fn run_on(ranks: &dyn Ranks, mut arguments: Arguments) -> Result<()> {
    if ranks.count() > 1 {
        let command = Arguments::command();
        let matches = command.clone().try_get_matches().map_err(Failure::usage)?;
        ranks::flags::compare(ranks, &ranks::flags::of(&command, &matches))?;
    }
    ranks::cards::assign(ranks, &mut arguments)?;
    let ownership = Ownership::of_directories("--policy", &arguments.policy)?;
    arguments.check_ranks(ranks.count(), ownership.owners().len())?;
    let references = Ownership::of_directories("--reference", &arguments.reference)?;
    check_directories(&arguments, &ownership)?;

    if let Some(path) = &arguments.per_token {
        // Each policy adds its own.
        File::create(path)
            .map_err(|error| Failure::io(format!("--per-token {}: {error}", path.display())))?;
    }
    let mut output = Output::new(Writer::stdout());
    if ranks.rank() > 0 {
        (output, arguments.quiet) = (Output::silent(), true);
    }
    let mut kept: Vec<Option<Kept>> = ownership.owners().iter().map(|_| None).collect();
    let processes = PolicyRanks::new(ranks, ownership.owners().len(), arguments.side_by_side);
    let overlaps = Overlap::is_allowed(&arguments) && ranks.count() == 1;
    let arrival = Rc::<Arrival>::default();
    let unbounded = || {
        let input = Unbounded::new(Stdin, arrival.clone());
        input.map_err(|error| Failure::io(format!("reading stdin: {error}")))
    };
    let input: Box<dyn Read> = if overlaps { Box::new(unbounded()?) } else { Box::new(Stdin) };
    let mut reader = Reader::stdin().map(|_| Input::of_stdin(ranks, input));
    reader.each_part(arguments.resident, |reader| {
        let input = (reader, &*arrival);
        let step =
            run_part((&arguments, &processes), (&ownership, &references), input, &mut output, &mut kept)?;
        // Nobody waits for this: the next part is being played.
        kept.iter_mut().flatten().try_for_each(Kept::retire)?;
        match step.is_none_or(|step| step.is_multiple_of(arguments.save_every)) {
            true => save(&processes, &mut kept),
            false => Ok(()),
        }
    })?;
    save(&processes, &mut kept)
}

/// Saves the training states of all policies that this process trains.
fn save(processes: &PolicyRanks, kept: &mut [Option<Kept>]) -> Result<()> {
    kept.iter_mut()
        .flatten()
        .try_for_each(|kept| kept.save(processes.own()))
        .map_err(|failure| processes.failed(failure))
}

/// Updates with one part of the input, which is all of it unless with `--resident`, and answers it; returns its training step, if it
/// names one. `kept` is what stays in memory.
fn run_part<R: Read, W: Write>(
    (arguments, processes): (&Arguments, &PolicyRanks),
    (ownership, references): (&Ownership, &Ownership),
    (reader, arrival): (&mut Reader<R>, &Arrival),
    output: &mut Output<W>,
    kept: &mut [Option<Kept>],
) -> Result<Option<u64>> {
    let started = Instant::now();
    let mut input = SampleReader::new(ownership);
    let stream = Stream::new("update", arguments.allow_incomplete);
    let mut stream = stream.every_shard().every_sample().every_group();
    let copy = arguments.pass_through.then_some(&mut *output);
    let overlaps = Overlap::is_allowed(arguments) && processes.own().count() == 1;
    let begin = |samples: &[Samples]| {
        // What is there is read first: only then would this stage wait.
        if arrival.has_more.get() {
            return Ok(());
        }
        let mut kept = kept.iter_mut().zip(samples).filter(|_| overlaps);
        kept.try_for_each(|(kept, samples)| {
            kept.as_mut().map_or(Ok(()), |kept| kept.begin(arguments, samples))
        })
    };
    let read =
        input.read(reader, &mut stream, ownership, (needs(arguments), arguments.resident), copy, begin);
    if let Some(at) = arrival.last.get() {
        kept.iter_mut().flatten().for_each(|kept| kept.overlap.end(at));
    }
    input.samples.iter_mut().for_each(Samples::sort);
    input.sampled_in_f32 = reader::sampled_in_f32(stream.ends());
    let left_out = DroppedGroups::of(stream.ends());
    let reading = started.elapsed().as_secs_f64();

    // Without samples a dry run plans for the model's sizes alone.
    let geometry = arguments.dry_run && input.read == 0 && stream.ends().is_empty();
    if geometry {
        stream = Stream::new("update", true);
    }
    let mut times = Map::new();
    let outcome = read.and_then(|()| match geometry {
        true => plan_geometry(arguments, ownership, output),
        false => stream.whole().and_then(|()| {
            let input = (&input, &left_out);
            work((arguments, processes), (ownership, references), input, output, kept, &mut times)
        }),
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

/// The fields that the objective requires of each sample.
fn needs(arguments: &Arguments) -> Needs {
    let clip = arguments.objective != Objective::Nll;
    Needs {
        logprobs: clip || arguments.check,
        advantage: clip && !arguments.check,
        full_distribution: clip && !arguments.check && !arguments.allow_truncated_sampling,
    }
}

/// Fails, before anything is read, for directories that cannot be trained.
fn check_directories(arguments: &Arguments, ownership: &Ownership) -> Result<()> {
    for owned in ownership.owners() {
        if arguments.dry_run && owned.directory.join("config.json").exists() {
            continue;
        }
        let policy = Policy::open(&owned.directory)?;
        if !(arguments.check || arguments.dry_run || policy.is_writable_layout()?) {
            let place = owned.directory.display();
            return Err(Failure::usage(format!(
                "--policy {place}: not a policy directory, so no version can be added"
            ))
            .hint(format!("create one with policy init NEW --from {place}, then pass --policy NEW")));
        }
    }
    Ok(())
}

/// Trains, checks or plans every policy that has samples.
fn work<W: Write>(
    (arguments, processes): (&Arguments, &PolicyRanks),
    (ownership, references): (&Ownership, &Ownership),
    (input, left_out): (&SampleReader, &DroppedGroups),
    output: &mut Output<W>,
    kept: &mut [Option<Kept>],
    times: &mut Map<String, Value>,
) -> Result<()> {
    let skipped = skip((arguments, ownership), input, left_out)?;
    check_ownership(arguments, ownership, input, !skipped.is_empty())?;
    let (mut updates, mut names) = (Vec::new(), Vec::new());
    for (index, ((owned, samples), kept)) in
        ownership.owners().iter().zip(&input.samples).zip(&mut *kept).enumerate()
    {
        if samples.rows.is_empty() {
            continue;
        }
        names.push((index, &owned.name));
        if processes.trains(index) {
            let ranks = processes.own();
            let update =
                PolicyUpdate::open((arguments, ranks), owned, references, samples, input, kept.as_ref());
            updates.push((update.map_err(|failure| processes.failed(failure))?, kept));
        }
    }
    processes.wait();
    skipped.iter().try_for_each(|line| output.raw(line))?;
    let (mut failure, mut own) = (None, String::new());
    for (update, kept) in updates {
        if arguments.dry_run {
            output.object(&update.plan()?)?;
        } else if arguments.check {
            let (line, spent, agreement) = update.check()?;
            output.raw(&line)?;
            times.insert(update.name().to_owned(), json!(spent));
            // All policies are checked; the first that disagrees fails the call.
            failure = failure.or(agreement.err());
        } else {
            let (line, spent) = update.train(kept).map_err(|failure| processes.failed(failure))?;
            if processes.is_split() {
                own = splice::json(&(line, spent))?;
            } else {
                output.raw(&line)?;
                times.insert(update.name().to_owned(), json!(spent));
            }
        }
    }
    if processes.is_split() {
        for (index, name) in names {
            let told = processes.told(index, || Ok(std::mem::take(&mut own)))?;
            let (line, spent): (String, Value) = serde_json::from_str(&told)
                .map_err(|error| Failure::work(format!("what the ranks of {name} say: {error}")))?;
            output.raw(&line)?;
            times.insert(name.clone(), spent);
        }
    }
    failure.map_or(Ok(()), Err)
}

/// The metrics lines of the policies whose groups were all left out on purpose; says of every policy without samples that it keeps its
/// version.
fn skip(
    (arguments, ownership): (&Arguments, &Ownership),
    input: &SampleReader,
    left_out: &DroppedGroups,
) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (index, (owned, samples)) in ownership.owners().iter().zip(&input.samples).enumerate() {
        if !samples.rows.is_empty() {
            continue;
        }
        let groups = left_out.groups(ownership, index);
        if groups == 0 || arguments.check || arguments.dry_run {
            arguments.log(format_args!("{}: no samples, keeps its version", owned.name));
            continue;
        }
        let (all, why) = (counted(groups, "group"), left_out.why());
        arguments.log(format_args!(
            "{}: nothing to learn from, keeps its version: the stages before left out all of its {all} ({why})",
            owned.name
        ));
        lines.push(left_out.line(&owned.name, &Policy::open(&owned.directory)?.version, groups)?);
    }
    Ok(lines)
}

/// Plans for every policy without samples, from the model's sizes.
fn plan_geometry<W: Write>(
    arguments: &Arguments,
    ownership: &Ownership,
    output: &mut Output<W>,
) -> Result<()> {
    for owned in ownership.owners() {
        let bare = owned.directory.join("config.json").exists();
        let policy = if bare { None } else { Some(Policy::open(&owned.directory)?) };
        let config = match &policy {
            Some(policy) => policy.config.clone(),
            None => Config::load(&owned.directory)?,
        };
        let adapter = policy.map(|policy| checkpoint::adapter(&policy, &config)).transpose()?.flatten();
        let spec = ModelSpec { config: &config, stored: config.dtype, adapter: adapter.as_ref() };
        let request = plan::largest_request(arguments, config.max_positions);
        let estimate = plan::estimate(arguments, spec, &request)?;
        let settings = metrics::settings(arguments, None)?;
        output.object(&Plan::new(spec, estimate, &owned.name, settings))?;
    }
    Ok(())
}

/// Fails if no sample belongs to a policy of this call, unless they were left out on purpose, and logs how many do not.
fn check_ownership(
    arguments: &Arguments,
    ownership: &Ownership,
    input: &SampleReader,
    skips: bool,
) -> Result<()> {
    if input.owned() == 0 && !skips {
        let flags: Vec<String> = arguments.policy.iter().map(|value| format!("--policy {value}")).collect();
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
        arguments.log(format_args!("ignored {passed} of {read} samples: no policy of {named} owns {agents}"));
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
