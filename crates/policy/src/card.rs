//! The model card of an exported policy: a description, how to load it, and the numbers of its run.
//!
//! A run's directory holds `run.json` (its settings) and `eval/` (a record for each evaluation);
//! `trainer_state.json` next to the weights has the settings and metrics of the last update. The card leaves
//! out missing items.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::line::Episode;
use record::read::{Kind, Reader};
use record::sample::{Message, Sample};
use serde_json::{Map, Value};

use crate::chat;
use crate::directory::Policy;
use crate::files::{io_failure, show};
use crate::hub::HubModel;
use crate::json::read_json_if_present;
use crate::training_state::TRAINER_STATE;

/// Metrics of the last update that say how training stood.
const METRICS: [&str; 9] = [
    "reward",
    "frac_reward_zero_std",
    "loss",
    "kl",
    "entropy",
    "clip_ratio",
    "grad_norm",
    "completions/mean_length",
    "sampling/logp_difference_max",
];

/// The card's Markdown, with the header that hubs read. `run` is the run's directory, if it is not the one the policy lies in.
pub(crate) fn text(
    name: &str,
    policy: &Policy,
    base: Option<&HubModel>,
    is_adapter: bool,
    run: Option<&Path>,
) -> Result<String> {
    let mut card = String::from("---\n");
    let library = if is_adapter { "peft" } else { "transformers" };
    if let Some(base) = base {
        let _ = writeln!(card, "base_model: {}", base.name);
    }
    let _ = write!(
        card,
        "library_name: {library}\npipeline_tag: text-generation\ntags:\n- troupe\n- reinforcement-learning\n"
    );
    card.push_str(if is_adapter { "- lora\n---\n\n" } else { "---\n\n" });
    let version = &policy.version;
    let _ = write!(
        card,
        "# {name}\n\nTrained with Troupe: version `{version}`, after {} updates.",
        step_of(policy)?
    );
    if let Some(HubModel { name, revision, .. }) = base {
        let revision =
            revision.as_ref().map_or(String::new(), |revision| format!(" at revision `{revision}`"));
        let _ = write!(card, " The model before training was `{name}`{revision}.");
    }
    let run = run_of(policy, run)?;
    let example = match &run {
        Some(run) => example(policy, &run.join("eval"), step_of(policy)?)?,
        None => None,
    };
    usage(&mut card, name, policy, is_adapter, example.as_ref())?;
    if let Some(run) = run {
        if let Some(Value::Object(settings)) = read_json_if_present(&run.join("run.json"))? {
            table(&mut card, "The run", ["setting", "value"], &settings);
        }
        evaluations(&mut card, &run.join("eval"), step_of(policy)?)?;
    }
    let notes = read_json_if_present(&policy.files.join(TRAINER_STATE))?.unwrap_or_default();
    if let Value::Object(settings) = &notes["settings"] {
        table(&mut card, "The optimizer", ["setting", "value"], settings);
    }
    let figures =
        notes["figures"].as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    if let Some(figures) = figures {
        let metrics = METRICS.iter().filter_map(|&key| Some((key.to_owned(), figures.get(key)?.clone())));
        table(&mut card, "The last update", ["metric", "value"], &metrics.collect());
    }
    Ok(card)
}

/// The code that loads and prompts the model, with a prompt of the last evaluation.
fn usage(
    card: &mut String,
    name: &str,
    policy: &Policy,
    is_adapter: bool,
    example: Option<&(Vec<Message>, String)>,
) -> Result<()> {
    let imports = match is_adapter {
        true => "from peft import AutoPeftModelForCausalLM as Model\nfrom transformers import AutoTokenizer",
        false => "from transformers import AutoModelForCausalLM as Model, AutoTokenizer",
    };
    let hello = vec![Message { role: "user".to_owned(), content: "Hello!".to_owned() }];
    let messages =
        serde_json::to_value(example.map_or(&hello, |(prompt, _)| prompt)).map_err(Failure::work)?;
    // JSON's texts are Python's, too.
    let given = read_json_if_present(&policy.model().join(chat::ARGUMENTS))?;
    let variables: String = given
        .as_ref()
        .and_then(Value::as_object)
        .map(|variables| variables.iter().map(|(key, value)| format!(", {key}={}", python(value))).collect())
        .unwrap_or_default();
    let _ = write!(
        card,
        "\n\n```python\n{imports}\n\ntokenizer, model = AutoTokenizer.from_pretrained(\"{name}\"), Model.from_pretrained(\"{name}\")\n\
         messages = {messages}\nprompt = tokenizer.apply_chat_template(\n    messages, add_generation_prompt=True, return_tensors=\"pt\", \
         return_dict=True{variables}\n)\nanswer = model.generate(**prompt, max_new_tokens=256, do_sample=False)[0, prompt[\"input_ids\"].shape[1]:]\n\
         print(tokenizer.decode(answer, skip_special_tokens=True))\n```\n"
    );
    if let Some((_, completion)) = example {
        let _ = write!(
            card,
            "\nIn the run's last evaluation it answered that with:\n\n````text\n{completion}\n````\n"
        );
    }
    Ok(())
}

/// A template variable in Python.
fn python(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Null => "None".to_owned(),
        other => other.to_string(),
    }
}

/// This policy's first prompt in the last evaluation up to this step, and its answer.
fn example(policy: &Policy, folder: &Path, last: u64) -> Result<Option<(Vec<Message>, String)>> {
    let Some((_, path)) = streams(folder, last).pop() else { return Ok(None) };
    let name = policy.root.file_name().and_then(|name| name.to_str());
    let file = File::open(&path).map_err(|error| io_failure(&path, &error))?;
    let mut reader = Reader::new(&path.to_string_lossy(), file);
    while let Some(line) = reader.next()? {
        if line.kind == Kind::Sample {
            let sample = Sample::parse(&line)?;
            let of_this = sample.policy.is_none() || sample.policy.as_deref() == name;
            if let (true, Some(prompt), Some(completion)) = (of_this, sample.prompt, sample.completion) {
                return Ok(Some((prompt, completion.to_string())));
            }
        }
    }
    Ok(None)
}

/// The evaluations up to this step, in order.
fn streams(folder: &Path, last: u64) -> Vec<(u64, PathBuf)> {
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let step =
            name.to_str().and_then(|name| name.strip_prefix("step-")?.strip_suffix(".jsonl")?.parse().ok());
        files.extend(step.filter(|&step| step <= last).map(|step| (step, entry.path())));
    }
    files.sort_unstable();
    files
}

/// The directory of the run: the one that was named, or `RUN` of `RUN/policies/NAME`.
fn run_of(policy: &Policy, named: Option<&Path>) -> Result<Option<PathBuf>> {
    if let Some(run) = named {
        if !run.is_dir() {
            return Err(Failure::usage(format!("--run {}: no such directory", show(run))));
        }
        let file = run.join("run.json");
        fs::metadata(&file)
            .map_err(|error| io_failure(&file, &error).hint("--run takes the directory of a run"))?;
        return Ok(Some(run.to_owned()));
    }
    let root = policy.root.canonicalize().map_err(|error| io_failure(&policy.root, &error))?;
    let run = root.parent().and_then(Path::parent).filter(|run| run.join("run.json").is_file());
    Ok(run.map(Path::to_owned))
}

/// After which update of the run the policy's weights are: its version says so, and the folder of a copy of the best,
/// `best-NNNNNN`. A copy of the run may have made the link `best` to it a folder.
fn step_of(policy: &Policy) -> Result<u64> {
    let root = policy.root.canonicalize().map_err(|error| io_failure(&policy.root, &error))?;
    let step =
        |folder: &Path| -> Option<u64> { folder.file_name()?.to_str()?.strip_prefix("best-")?.parse().ok() };
    let of_best = root.parent().and_then(|folder| match folder.ends_with("best") {
        true => fs::read_dir(folder.parent()?).ok()?.flatten().find_map(|entry| step(&entry.path())),
        false => step(folder),
    });
    Ok(of_best.unwrap_or(policy.version.step))
}

/// A table of settings or metrics, without empty values.
fn table(card: &mut String, title: &str, [key, value]: [&str; 2], entries: &Map<String, Value>) {
    let shown = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.replace('\n', ", ")).filter(|text| !text.is_empty()),
        other => Some(other.to_string()),
    };
    let mut rows = entries.iter().filter_map(|(key, value)| Some((key, shown(value)?))).peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = write!(card, "\n## {title}\n\n| {key} | {value} |\n|---|---|\n");
    for (key, value) in rows {
        let _ = writeln!(card, "| {key} | {} |", value.replace('|', "\\|"));
    }
}

/// Success and mean return of each evaluation up to this step. The best has the highest success, of equals the highest return.
fn evaluations(card: &mut String, folder: &Path, last: u64) -> Result<()> {
    let files = streams(folder, last);
    if files.is_empty() {
        return Ok(());
    }
    let mut best: Option<((f64, f64), u64)> = None;
    card.push_str(
        "\n## Success on test tasks\n\n| update | success | return | episodes |\n|---|---|---|---|\n",
    );
    for (step, path) in files {
        let (mut solved, mut all, mut earned) = (0_u32, 0_u32, 0.0);
        let file = File::open(&path).map_err(|error| io_failure(&path, &error))?;
        let mut reader = Reader::new(&path.to_string_lossy(), file);
        while let Some(line) = reader.next()? {
            if line.kind == Kind::Episode {
                let episode = record::line::parse::<Episode>(&line)?;
                all += 1;
                solved += u32::from(episode.success);
                earned += episode.reward.unwrap_or_default();
            }
        }
        let of_all = |sum: f64| sum / f64::from(all.max(1));
        let now = (of_all(f64::from(solved)), of_all(earned));
        let _ = writeln!(card, "| {step} | {:.3} | {:.2} | {solved} of {all} |", now.0, now.1);
        if best.is_none_or(|(before, _)| now > before) {
            best = Some((now, step));
        }
    }
    if let Some(((success, _), step)) = best {
        let this = if step == last { ": these weights" } else { "" };
        let _ = writeln!(card, "\nThe best is {success:.3}, after update {step}{this}.");
    }
    Ok(())
}
