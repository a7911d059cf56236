//! One word, one meaning, and it is the word of the field: no type or module has a name that the workspace gave up, two crates
//! define a type of the same name only where [`SHARED`] says why, and the spelling is American.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use troupe_tests::root;

/// Former private names of types, with the field's words.
const TYPES: &[(&str, &str)] = &[
    ("Recording Recordings", "CUDA graph"),
    ("Form", "batch shape, padding bucket"),
    ("Room", "KV cache config, workspace sizes"),
    ("Extent Demand Card Subject", "max batch shape, memory request, device memory, model spec"),
    ("Want Draw Turn", "sample request, sampled token, logits row"),
    ("Completes Share", "inference backend, decoder handle"),
    ("Pace", "phase timings"),
    ("Deal", "batch, closed"),
    ("Trial Ask", "task run, prompt request"),
    ("World Shipped Outside", "environment factory, built-in, external process"),
    ("Speaker Stamp About", "policy label, run metadata, task reference"),
    ("Account Accounts Count Tally Figures", "stats, metrics"),
    ("Speech Language", "action format, action space"),
    ("Said Standing Parts", "message, progress, reward components"),
    ("Written Began", "raw spec or state, reset response"),
    ("Held Masters Resident", "state kind, master weights, device model"),
    ("Others Terms Rotated", "reference log-probs, loss config, qk-norm + RoPE"),
    ("Intake Foreign", "reader, pass-through"),
];

/// Names of modules and files that once were private words.
const MODULES: &[&str] = &[
    "account",
    "accounts",
    "demand",
    "elsewhere",
    "enter",
    "extent",
    "figures",
    "foreign",
    "form",
    "intake",
    "outside",
    "pace",
    "probes",
    "recording",
    "recordings",
    "resident",
    "room",
    "speech",
    "tally",
    "trial",
];

/// Stems that British English continues with `is` and American English with `iz`.
const STEMS: &str = "author canonical categor central custom deserial discret emphas equal factor final general initial \
                     item local maxim memor minim neutral normal optim organ orthogonal parallel penal quant random real recogn \
                     regular serial special stabil standard summar synchron token util vector visual";

const ENDINGS: [&str; 8] = ["ise", "ised", "ises", "iser", "isers", "ising", "isation", "isations"];

/// Other British spellings, by their beginning.
const BRITISH: &[&str] = &[
    "artefact",
    "behaviour",
    "catalogue",
    "centre",
    "colour",
    "favour",
    "fulfils",
    "honour",
    "judgement",
    "labelled",
    "labelling",
    "learnt",
    "licence",
    "modelled",
    "modelling",
    "neighbour",
    "whilst",
];

/// Words that belong to the bytes of a run: a problem's statement and the name of a random stream.
const KEPT: [(&str, &str); 2] = [
    ("crates/problems/src/code/list.rs", "neighbours"),
    ("crates/problems/src/code/generate.rs", "behaviour"),
];

/// Public types that several crates define under one name, and why.
const SHARED: &[(&str, &str)] = &[
    ("Arguments", "the command line of each program"),
    ("Check", "the `check` command of two programs"),
    ("Command", "the commands of each program"),
    ("Attention", "attention: of a decoder's description, and its kernels' arguments"),
    ("Operator", "an operator: of a formula, of ONNX Runtime"),
    ("Stats", "what a stage counts"),
    ("AgentStats", "the same numbers, counted by rollout and recounted by report"),
    ("Output", "what a stage writes: lines, or metrics"),
    ("Data", "what a decorating stage remembers of a sample; in policy the data of a checkpoint file"),
    ("Episode", "an episode: as it is played, and its line in the record"),
    ("Group", "the candidates of one prompt: in the record, in an episode, and as one request to the engine"),
    ("Member", "one of a group"),
    ("Cell", "a cell of a board, a cell of a wall"),
    ("Instance", "a task with everything that stays the same in its episodes, of each environment"),
    ("Problem", "a problem: of a data set, and as an environment"),
    ("Report", "the results of a check, the results of a test run"),
    ("Rules", "how tasks are drawn, of each environment"),
    ("Situation", "the state of an episode, of each environment"),
    ("Tasks", "a stream of tasks, and the command that writes one"),
    ("SamplingMode", "the flag of rollout, and the field of a sample"),
    ("Settings", "what a user sets: of an environment, of a request, of an optimizer"),
    ("Step", "one step of a loop: a program's, a graph's, an optimizer's"),
    ("Run", "one execution of a program or a stage"),
    ("Answer", "what a program or a policy answers"),
    ("Program", "a program that somebody else wrote"),
    ("Worker", "a thread or process that takes work"),
    ("Progress", "how far something has come"),
    ("Adapter", "a low-rank adapter: as a file, and as it is applied"),
    ("Backend", "what computes: the decoder's forward pass, or a training step"),
    ("Decoder", "the decoder: its description, and one that runs"),
    ("Rope", "rotary positions: their settings, and their tables"),
    ("Activation", "the type of activations on a device; in training the activation function"),
    ("Experts", "experts in place of an MLP: their description, in inference, in training"),
    ("Layer", "a layer of the decoder: its description, and one that runs"),
    ("Linear", "a linear layer: in inference, in training"),
    ("Model", "a model: in inference, in training"),
    ("Tensor", "a tensor: its description, and its data in ONNX Runtime"),
    ("Weights", "the weights of a policy: in files, and in training"),
    ("Parameter", "a parameter of a kernel, at run time and at build time"),
    ("Kernel", "what a device or an operator runs"),
    ("Element", "the type of a tensor's elements"),
    ("Memory", "memory: of a device, of ONNX Runtime"),
    ("Isa", "an instruction set, for the kernels of each crate"),
    ("Shape", "the shape of a launch, the shape of a board"),
    ("Layout", "the layout of a table of problems, the layout of parameters in memory"),
    ("Source", "where something comes from: a kernel's text, a parameter's values"),
    ("Sequence", "tokens in their order: one that grows in the engine, one packed for training"),
    ("Kind", "a kind of line, a kind of graph"),
    ("Part", "a part of something larger, always beside it"),
    ("Entry", "an entry of a table or a folder"),
    ("Plan", "what is to be run, or trained, and what it takes"),
    ("Outcome", "what came of an action or a call"),
    ("Answers", "the answers of a math episode; counts of answers in an evaluation"),
    ("Asked", "a request to a test server; the flags of a command line"),
    ("Axis", "an axis of a chart, an axis of a sweep"),
    ("Change", "a changed flag of a run, the changes of a new version"),
    ("Counts", "counts of words in a text, or an axis of counts"),
    ("Method", "a training method, or an optimization method"),
    ("Parameters", "the parameters of a model: in inference, in training"),
    ("Prepared", "work prepared in advance: a run, a micro-batch"),
    ("Unit", "a unit of measurement: in an answer, on a chart"),
];

fn type_is_private(name: &str) -> Option<&'static str> {
    TYPES.iter().find(|(private, _)| private.split(' ').any(|word| word == name)).map(|(_, field)| *field)
}

/// The name that a line of Rust declares after one of `keywords`.
fn declared<'a>(line: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let mut words =
        line.trim_start().split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    let mut word = words.next()?;
    while ["pub", "crate", "super", "in"].contains(&word) {
        word = words.next()?;
    }
    if keywords.contains(&word) { words.next() } else { None }
}

fn is_british(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    BRITISH.iter().any(|british| word.starts_with(british))
        || ENDINGS.iter().any(|ending| {
            let Some(stem) = word.strip_suffix(ending) else { return false };
            let known = |stem: &str| STEMS.split_whitespace().any(|known| known == stem);
            known(stem)
                || ["un", "de", "re", "pre"].iter().any(|prefix| stem.strip_prefix(prefix).is_some_and(known))
        })
}

/// The faults of a file, line by line.
fn offenses(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let stem = path.rsplit('/').next().and_then(|file| file.split_once('.')).map(|(stem, _)| stem);
    if path.ends_with(".rs") && stem.is_some_and(|stem| MODULES.contains(&stem)) {
        found.push(format!("{path}: the name of the file"));
    }
    for (line, number) in text.lines().zip(1..) {
        if path.ends_with(".rs") {
            if let Some(name) = declared(line, &["mod"]).filter(|name| MODULES.contains(name)) {
                found.push(format!("{path}:{number}: module {name}"));
            }
            let name = declared(line, &["struct", "enum", "trait", "type", "union"]);
            if let Some((name, field)) = name.and_then(|name| Some((name, type_is_private(name)?))) {
                found.push(format!("{path}:{number}: type {name}; the field says {field}"));
            }
        }
        let words = line.split(|c: char| !c.is_ascii_alphabetic());
        let words = words.filter(|word| is_british(word) && !KEPT.contains(&(path, *word)));
        found.extend(words.map(|word| format!("{path}:{number}: {word}")));
    }
    found
}

/// The crate of a source file, and the public types that it declares at its top.
fn public_types<'a>(path: &'a str, text: &'a str) -> Option<(&'a str, impl Iterator<Item = &'a str>)> {
    let (owner, _) = path.split_once("/src/").filter(|_| path.ends_with(".rs"))?;
    let declared = text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("pub ")?.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        ["struct", "enum", "trait", "type", "union"].contains(&words.next()?).then(|| words.next())?
    });
    Some((owner, declared))
}

/// Types that several crates define and [`SHARED`] does not explain.
fn ambiguous(files: &[(String, String)]) -> Vec<String> {
    let mut owners = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (path, text) in files {
        let Some((owner, declared)) = public_types(path, text) else { continue };
        declared.for_each(|name| _ = owners.entry(name).or_default().insert(owner));
    }
    let explained = |name: &str| SHARED.iter().any(|(shared, _)| *shared == name);
    let several = owners.into_iter().filter(|(name, owners)| owners.len() > 1 && !explained(name));
    several.map(|(name, owners)| format!("{name} is a type of {owners:?}")).collect()
}

/// Returns true unless `path` is quoted data: problems, or the answers of other programs. This file names the
/// forbidden words.
fn is_checked(path: &str) -> bool {
    let data = [
        ".jsonl",
        ".safetensors",
        ".lock",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "tests/tests/suite/vocabulary.rs",
    ];
    !data.iter().any(|ending| path.ends_with(ending))
        && (!path.starts_with("tests/golden/") || path.ends_with(".py") || path.ends_with(".md"))
}

#[test]
fn names_and_spelling_are_those_of_the_field() {
    let listed = Command::new("git").arg("ls-files").current_dir(root()).output().expect("git runs");
    let listed = String::from_utf8(listed.stdout).expect("names");
    let files: Vec<&str> = listed.lines().filter(|path| is_checked(path)).collect();
    assert!(files.len() > 200, "git ls-files lists {} files", files.len());
    // A file that is deleted and not committed yet, or binary, has nothing to say.
    let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(root().join(path)).ok()?));
    let files: Vec<_> = files.into_iter().filter_map(read).collect();
    let mut found: Vec<_> = files.iter().flat_map(|(path, text)| offenses(path, text)).collect();
    found.extend(ambiguous(&files));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_forbidden_is_found() {
    for (line, offense) in [
        ("pub(crate) struct Trial {", "a.rs:1: type Trial; the field says task run, prompt request"),
        (
            "    enum Draw<'a> {",
            "a.rs:1: type Draw; the field says sample request, sampled token, logits row",
        ),
        ("mod recordings;", "a.rs:1: module recordings"),
        ("/// The Optimiser's state.", "a.rs:1: Optimiser"),
        ("let x = unsynchronised;", "a.rs:1: unsynchronised"),
        ("// neighbouring cells", "a.rs:1: neighbouring"),
    ] {
        assert_eq!(offenses("a.rs", line), [offense]);
    }
    assert_eq!(offenses("engine/pace.rs", ""), ["engine/pace.rs: the name of the file"]);
    let fine = "struct TaskRun; // optimizer, a realistic promise, otherwise precise, organism, finalist, optimistic";
    assert_eq!(offenses("a.rs", fine), [""; 0]);
    assert_eq!(offenses("a.py", "class Trial: pass"), [""; 0]);
    let files = ["a/src/x.rs", "b/src/y.rs", "b/src/deep/z.rs"];
    let files =
        files.map(|path| (path.to_owned(), "pub struct Twice<T>;\npub enum Data {\nstruct Own;".to_owned()));
    assert_eq!(ambiguous(&files[1..]), [""; 0]);
    assert_eq!(ambiguous(&files), ["Twice is a type of {\"a\", \"b\"}"]);
}
