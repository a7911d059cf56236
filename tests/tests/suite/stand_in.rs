//! The host side of the CUDA path without a GPU: the programs run with `--device cuda` on a driver that computes nothing
//! (`stand_in/driver.c`) and logs what a GPU would be asked to do.
//!
//! ONNX Runtime and its CUDA provider are the real ones: the nodes they take, their checks of shapes, types
//! and addresses, their streams and their memory are the same as on a GPU. The results of kernels are not
//! tested here. Skipped, with a note, unless `scripts/fetch-cuda.sh onnxruntime nvrtc` has fetched the libraries.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use troupe_tests::{root, shell};

/// The names under which the stand-in is found.
const NAMES: [&str; 5] =
    ["libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10"];

/// ONNX Runtime with CUDA, if it was fetched and NVRTC too.
fn fetched() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?.join("troupe/cuda-13.0");
    let folders: Vec<PathBuf> =
        std::fs::read_dir(cache).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let beginning = |folder: &&PathBuf, name: &str| {
        folder.file_name().is_some_and(|own| own.to_string_lossy().starts_with(name))
    };
    folders.iter().find(|folder| beginning(folder, "nvidia-cuda-nvrtc-"))?;
    let folder = folders.iter().find(|folder| beginning(folder, "onnxruntime-gpu-"))?;
    folder.join("libonnxruntime_providers_cuda.so").is_file().then(|| folder.clone())
}

/// A folder with the stand-in, compiled for this provider, and a policy.
pub struct Fixture {
    folder: TempDir,
    runtime: PathBuf,
}

impl Fixture {
    /// None without the libraries.
    pub fn new() -> Option<Fixture> {
        let Some(runtime) = fetched() else {
            troupe_tests::skip::not_run(
                "the CUDA path: ./scripts/fetch-cuda.sh onnxruntime nvrtc fetches what it needs",
            );
            return None;
        };
        let fixture = Fixture { folder: tempfile::tempdir().expect("a folder"), runtime };
        let source = root().join("tests/tests/stand_in/driver.c");
        let stubs = fixture.path("stubs.c");
        let missing = missing(&fixture.runtime.join("libonnxruntime_providers_cuda.so"), &source);
        std::fs::write(&stubs, missing).expect("written");
        let library = fixture.path("stand-in.so");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut compile = Command::new(compiler);
        compile.args(["-std=c11", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library);
        assert!(compile.arg(&source).arg(&stubs).status().expect("a C compiler").success());
        for name in NAMES {
            std::os::unix::fs::symlink(&library, fixture.path(name)).expect("a link");
        }
        let (code, printed) = fixture.run("policy init p --preset tiny --seed 1", &[]);
        assert_eq!(code, 0, "{printed}");
        Some(fixture)
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command next to the policy with the stand-in as CUDA; its exit code, stdout and stderr.
    pub fn run(&self, command: &str, variables: &[(&str, &str)]) -> (i32, String) {
        let folder = self.folder.path();
        let mut shell = shell(command);
        // Whatever cuDNN this machine has is a real one.
        shell.current_dir(folder).env("TROUPE_SDPA_KERNEL", "3").env("TROUPE_PRODUCT_CHOICES", "off");
        shell.env("TROUPE_ATTENTION", "own");
        shell.envs(variables.iter().copied());
        shell.env("CUDA_PATH", folder).env("LD_LIBRARY_PATH", folder).env("STAND_IN_LOG", self.path("log"));
        let library =
            std::fs::read_dir(&self.runtime).expect("a folder").filter_map(|entry| Some(entry.ok()?.path()));
        let library = library.filter(|path| path.to_string_lossy().contains("/libonnxruntime.so."));
        shell.env("ORT_DYLIB_PATH", library.last().expect("ONNX Runtime"));
        let output = shell.output().expect("bash runs");
        let printed =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code().unwrap_or(-1), printed.concat())
    }

    /// The log since the last call.
    pub fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("log")).expect("a log");
        std::fs::remove_file(self.path("log")).expect("removed");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let wrong: Vec<&String> = lines.iter().filter(|line| line.starts_with("wrong")).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        lines
    }
}

/// C stubs for the CUDA functions that the provider imports and the stand-in lacks.
fn missing(provider: &Path, source: &Path) -> String {
    let listed = Command::new("nm").args(["-D", "--undefined-only"]).arg(provider).output().expect("nm runs");
    let text = std::fs::read_to_string(source).expect("the stand-in");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut stubs = String::new();
    for line in listed.lines() {
        let name = line.split_whitespace().last().unwrap_or_default();
        let name = name.split('@').next().unwrap_or_default();
        let cuda = ["cu", "__cuda"].iter().any(|beginning| name.starts_with(beginning));
        if cuda && !text.contains(&format!("{name}(")) {
            let _ = writeln!(stubs, "int {name}(void) {{ return 0; }}");
        }
    }
    // Looked up by name at run time.
    for name in [
        "cuInit",
        "cuStreamDestroy_v2",
        "cuCtxSynchronize",
        "cublasLtDestroy",
        "cublasLtMatmulDescDestroy",
        "cublasLtMatrixLayoutDestroy",
        "cublasLtMatmulPreferenceDestroy",
        "cublasLtMatmulPreferenceSetAttribute",
    ] {
        if !stubs.contains(&format!("int {name}(")) {
            let _ = writeln!(stubs, "int {name}(void) {{ return 0; }}");
        }
    }
    stubs
}

/// The number that follows a word of a line.
pub fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|own| *own != word);
    words.nth(1).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {word} in {line}"))
}

/// Makes the branch number the reward: something to learn from policies that never solve a task.
pub const REWARD: &str = r#"awk '/"type":"sample"/ { match($0, /"branch":[0-9]+/); sub(/"reward":[^,}]*/, "\"reward\":" substr($0, RSTART + 9, RLENGTH - 9)) } { print }'"#;
pub const ROLLOUT: &str = "rollout --policy p --branches 4 --turns 1 --seed 1 --step 1 --device cuda --quiet";

#[test]
fn a_step_asks_a_gpu_for_nothing_impossible_and_frees_all_memory() {
    let Some(fixture) = Fixture::new() else { return };
    let tasks = "envs tasks plan-path --count 96 --seed 7";
    let (code, printed) = fixture.run(&format!("{tasks} | {ROLLOUT} --max-tokens 12 >rollout"), &[]);
    assert_eq!(code, 0, "{printed}");
    let log = fixture.log();
    let run = |line: &&String| line.starts_with("launch sample_rows") || line.starts_with("replay ");
    let ours = log.iter().filter(run);
    let streams: Vec<&str> = ours.filter_map(|line| line.split_whitespace().last()).collect();
    assert!(streams.len() > 12, "no tokens were chosen");
    // All work is in the sampler's stream: the host waits for results only.
    let in_other_stream = |line: &&String| line.contains(" stream ") && !line.ends_with(streams[0]);
    assert_eq!(log.iter().find(in_other_stream), None);
    let arena = log.iter().filter(|line| line.starts_with("alloc ")).max_by_key(|line| number(line, "alloc"));
    let arena = log.iter().position(|line| Some(line) == arena).expect("an arena");
    let waits = log[arena..].iter().filter(|line| *line == "wait").count();
    assert!(waits <= streams.len() + 2, "{waits} waits for {} runs", streams.len());
    // Activations take few allocations, however much larger a run is than those before.
    let allocations = log[arena + 1..].iter().filter(|line| line.starts_with("alloc ")).count();
    assert!(allocations <= 8, "{allocations} allocations");
    assert_eq!(log.last().map(String::as_str), Some("context left with 0"));

    // Decoding is captured once per batch shape, with all launches of all layers, and replayed from then on.
    // The shapes that occur, of 16 up to 256 rows, depend on when environments answer: mostly four, on a busy
    // machine more.
    let beginning = |word: &str| log.iter().filter(|line| line.starts_with(word)).collect::<Vec<_>>();
    let (captured, replayed) = (beginning("captured "), beginning("replay "));
    assert!(!captured.is_empty() && captured.len() <= 16, "{captured:?}");
    assert!(replayed.len() > captured.len(), "{} replays of {} graphs", replayed.len(), captured.len());
    // Kernels of each of three layers: four products, two norms, SwiGLU, the heads with the append, and attention's two; and the
    // embeddings, their cast, the last norm, the head and the two kernels of the sampler.
    let launches: Vec<u64> = captured.iter().map(|line| number(line, "captured")).collect();
    assert!(launches.iter().all(|&launches| launches == 3 * 10 + 6), "{launches:?}");
    for kernel in ["append_heads_bf16", "decode_attention_64", "merge_partials"] {
        assert_eq!(beginning(&format!("capture {kernel} ")).len(), 3 * captured.len(), "{kernel}");
    }
    // The grid fills a GPU and is the same however much is shared.
    let grids = beginning("launch decode_attention_64 grid ");
    assert!(grids.iter().all(|line| number(line, "grid") <= 6 * 132), "{grids:?}");
    assert_eq!(beginning("capture sample_rows").len(), captured.len());

    // Prompts have a kernel less in each layer; besides, in the last layer the rows to be scored are gathered from two tensors.
    let work = |line: &&String| line.starts_with("product ") || line.starts_with("launch ");
    let runs = log.split(|line| line.starts_with("launch sample_rows"));
    let prompts: Vec<usize> = runs
        .filter(|run| run.iter().any(|line| line.starts_with("launch prefill_attention_64 ")))
        .map(|run| run.iter().filter(work).filter(|line| !line.contains(" copy_blocks ")).count() + 1)
        .collect();
    assert!(!prompts.is_empty() && prompts.iter().all(|&launches| launches == 3 * 9 + 8), "{prompts:?}");
    assert_eq!(beginning("launch prefill_attention_64 ").len(), 3 * prompts.len());

    // Where branches part, their blocks are copied by one launch a run, for the keys and values of all three layers.
    let copied = beginning("launch copy_blocks ");
    assert!(!copied.is_empty() && copied.len() <= streams.len(), "{} launches of copies", copied.len());
    assert!(copied.iter().all(|line| line.contains(" 6 1 threads 256 ")), "{copied:?}");
    let blocks: u64 = copied.iter().map(|line| number(line, "grid")).sum();
    assert!(blocks > 2 * copied.len() as u64, "{blocks} blocks in {} launches", copied.len());
    assert_eq!(beginning("copy "), Vec::<&String>::new(), "copies of their own");

    // The stand-in computes nothing: a log-probability is what its memory holds.
    let learn = "group --quiet | advantage --quiet | update --policy p --device cuda --max-logprob-gap 0 --quiet >metrics";
    let (code, printed) = fixture.run(&format!("{REWARD} rollout | {learn}"), &[]);
    assert_eq!(code, 0, "{printed}");
    let log = fixture.log();
    let launched = |kernel: &str| log.iter().any(|line| line.starts_with(&format!("launch {kernel} ")));
    for kernel in
        ["qk_norm_rope_backward", "attention_deltas", "score_rows_backward", "adamw", "merge_masters"]
    {
        assert!(launched(kernel), "{kernel} was not launched");
    }
    assert!(log.iter().any(|line| line.starts_with("product ")), "no products");
    // A residual is added by the product that follows it, and never copied first.
    assert!(log.iter().filter(|line| line.contains(" plus ")).count() >= 2 * 3, "no residuals");
    assert!(!log.iter().any(|line| line.starts_with("copy ")), "a residual was copied");
    assert_eq!(log.last().map(String::as_str), Some("context left with 0"));
}

/// With `--dtype float16` the card is asked for no kernel of bf16, ONNX Runtime's included.
#[test]
fn a_step_in_float16_starts_kernels_of_float16_alone() {
    let Some(fixture) = Fixture::new() else { return };
    let tasks = "envs tasks plan-path --count 4 --seed 7";
    let rollout = format!("{tasks} | {ROLLOUT} --dtype float16 --max-tokens 12 >rollout");
    let learn = "group --quiet | advantage --quiet | update --policy p --device cuda --dtype float16 --max-logprob-gap 0 \
                 --quiet >metrics";
    for (command, attention, kernels) in [
        (&rollout, "onnxruntime", ["norm_rows_f16", "split_heads_f16", "glu_rows_f16"]),
        (&rollout, "own", ["append_heads_f16", "prefill_attention_64_f16", "decode_attention_64_f16"]),
        (
            &format!("{REWARD} rollout | {learn}"),
            "",
            ["split_masters_f16", "qk_norm_rope_backward_f16", "score_rows_backward_f16"],
        ),
    ] {
        let (code, printed) = fixture.run(command, &[("TROUPE_ATTENTION", attention)]);
        // The stand-in computes nothing: log-probabilities are what its memory holds, and an update may refuse them.
        assert!(code == 0 || printed.contains("log-probabilities are not finite"), "{printed}");
        let log = fixture.log();
        let launches: Vec<&String> = log
            .iter()
            .filter(|line| ["launch ", "capture "].iter().any(|word| line.starts_with(word)))
            .collect();
        for kernel in kernels {
            assert!(launches.iter().any(|line| line.contains(&format!(" {kernel} "))), "no {kernel}");
        }
        let other = |line: &&&String| line.contains("bf16") || line.contains("bfloat16");
        assert_eq!(launches.iter().find(other), None);
    }
    assert!(
        std::fs::read_to_string(fixture.path("rollout")).expect("samples").contains("\"dtype\":\"float16\"")
    );
}

/// Prompts and decode rows are never in one run, so decoding replays graphs also where episodes have several turns and end one
/// after another.
#[test]
fn a_rollout_of_two_turns_replays_graphs() {
    let Some(fixture) = Fixture::new() else { return };
    let rollout = ROLLOUT.replace("--turns 1", "--turns 2");
    let tasks = "envs tasks plan-path --count 24 --seed 7";
    let (code, printed) = fixture.run(&format!("{tasks} | {rollout} --max-tokens 48 >rollout"), &[]);
    assert_eq!(code, 0, "{printed}");
    let end = std::fs::read_to_string(fixture.path("rollout")).expect("samples");
    let end: serde_json::Value = serde_json::from_str(end.lines().last().expect("a line")).expect("JSON");
    let policies = end["timing"]["policies"].as_object().expect("policies");
    let count = |name: &str| -> u64 {
        policies.values().map(|of| of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"))).sum()
    };
    let (prompts, decode, replays) = (count("prefill_runs"), count("decode_runs"), count("replayed_runs"));
    assert!(prompts >= 2 && decode >= 2 * 47, "{prompts} runs of prompts, {decode} of decoding");
    assert_eq!(count("mixed_runs"), 0);
    assert!(10 * replays >= 9 * decode, "{replays} of {decode} runs of decoding are replays");
    assert_eq!(count("refused_shapes"), 0);
    // What the driver saw: a graph is replayed twice more when it is captured.
    let log = fixture.log();
    let beginning = |word: &str| log.iter().filter(|line| line.starts_with(word)).count() as u64;
    assert_eq!(beginning("replay "), replays + 2 * beginning("captured "));
    assert_eq!(beginning("launch sample_rows"), prompts + decode - replays);
}

/// `rollout` and `update` share one card from step to step (`--resident`). `update` gives all of it back when its part is over;
/// `rollout` keeps its session and graphs, and gives back weights and cache.
#[test]
fn stages_that_stay_leave_the_card_between_steps() {
    let Some(fixture) = Fixture::new() else { return };
    let tasks = "for seed in 7 8 9; do envs tasks plan-path --count 8 --seed $seed; done";
    let resident = format!("{ROLLOUT} --resident --max-tokens 12");
    let (code, printed) = fixture.run(&format!("({tasks}) | {resident} >rollout"), &[]);
    assert_eq!(code, 0, "{printed}");
    let log = fixture.log();
    let with = |beginning: &str| log.iter().filter(|line| line.starts_with(beginning)).collect::<Vec<_>>();
    assert_eq!(with("cublas handle").len(), 2, "the same two sessions for three steps");
    // The largest allocation holds weights and cache: it is there in each step, and not between them.
    let largest = with("alloc ").iter().map(|line| number(line, "alloc")).max().expect("allocations");
    let (taken, left) = (with(&format!("alloc {largest} ")), with(&format!("free {largest} ")));
    assert_eq!((taken.len(), left.len()), (3, 3));
    assert!(left.iter().all(|line| number(line, "used") < largest / 20), "{left:?}");
    assert_eq!(log.last().map(String::as_str), Some("context left with 0"));
    // The graphs of the first step are replayed in the others.
    let second = log.iter().skip_while(|line| !line.starts_with(&format!("free {largest} ")));
    let later = second.filter(|line| line.starts_with("replay ")).count();
    assert!(later > 2 * 10, "{later} replays");

    let learn = "group --quiet --resident | advantage --quiet --resident | \
                 update --policy p --device cuda --max-logprob-gap 0 --quiet --resident >metrics";
    let (code, printed) = fixture.run(&format!("{REWARD} rollout | {learn}"), &[]);
    assert_eq!(code, 0, "{printed}");
    let log = fixture.log();
    let left = log.iter().filter_map(|line| line.strip_prefix("context left with "));
    assert_eq!(left.collect::<Vec<_>>(), ["0"; 3]);
}

/// Graphs and bindings know addresses: where the memory of the step before is not to be had again, all is opened anew.
#[test]
fn an_engine_whose_memory_is_elsewhere_is_opened_anew() {
    let Some(fixture) = Fixture::new() else { return };
    let tasks = "for seed in 7 8; do envs tasks plan-path --count 2 --seed $seed; done";
    let resident = format!("{ROLLOUT} --resident --max-tokens 4");
    let samples = |variables: &[(&str, &str)], sessions: usize| {
        let (code, printed) = fixture.run(&format!("({tasks}) | {resident} >rollout"), variables);
        assert_eq!(code, 0, "{printed}");
        let log = fixture.log();
        assert_eq!(log.iter().filter(|line| *line == "cublas handle").count(), 2 * sessions);
        assert_eq!(log.last().map(String::as_str), Some("context left with 0"));
        let lines = std::fs::read_to_string(fixture.path("rollout")).expect("samples");
        lines
            .lines()
            .filter(|line| line.contains("\"type\":\"sample\""))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let stayed = samples(&[], 1);
    assert!(!stayed.is_empty() && stayed == samples(&[("STAND_IN_MOVES", "1")], 2));
}

#[test]
fn steps_that_cannot_be_captured_are_launched() {
    let Some(fixture) = Fixture::new() else { return };
    let tasks = "envs tasks plan-path --count 8 --seed 7";
    let samples = |variables: &[(&str, &str)]| {
        let (code, printed) =
            fixture.run(&format!("{tasks} | {ROLLOUT} --max-tokens 12 >rollout"), variables);
        assert_eq!(code, 0, "{printed}");
        let lines = std::fs::read_to_string(fixture.path("rollout")).expect("samples");
        let samples: Vec<String> =
            lines.lines().filter(|line| line.contains("\"type\":\"sample\"")).map(str::to_owned).collect();
        (samples, printed, fixture.log())
    };
    let (wanted, printed, log) = samples(&[]);
    assert!(!printed.contains("slower"), "{printed}");
    assert!(log.iter().any(|line| line.starts_with("replay ")));
    let (found, printed, log) = samples(&[("STAND_IN_GRAPHS", "none")]);
    assert_eq!(printed.matches("without a CUDA graph, which is slower").count(), 1, "{printed}");
    assert!(!log.iter().any(|line| line.starts_with("replay ")));
    assert!(wanted.len() > 8 && wanted == found);
}

#[test]
fn unsupported_settings_of_a_gpu_are_refused_with_a_hint() {
    let Some(fixture) = Fixture::new() else { return };
    let command = format!("envs tasks plan-path --count 1 --seed 7 | {ROLLOUT} --max-tokens 4 >rollout");
    for (variables, code, wanted) in [
        (("STAND_IN_MEMORY", "100000"), 69, "33554432 bytes are planned, but of 100000 only 100000 are free"),
        (
            ("STAND_IN_MEMORY", "33600000"),
            69,
            "the device is out of memory while ONNX Runtime opens the model",
        ),
        (("STAND_IN_MEMORY", "1000000000"), 69, "MiB are free and"),
        (("STAND_IN_DRIVER", "12040"), 69, "the driver supports CUDA 12.4, but NVRTC is of CUDA 13"),
        (("TROUPE_SDPA_KERNEL", "flash"), 2, "is no choice of attention"),
        (("TROUPE_ATTENTION", "flash"), 2, "\"flash\" is no attention"),
    ] {
        let (found, printed) = fixture.run(&command, &[variables]);
        assert_eq!(found, code, "{variables:?}: {printed}");
        let lines: Vec<&str> = printed.lines().filter(|line| !line.starts_with("envs:")).collect();
        assert!(
            lines.len() == 2 && lines[0].contains(wanted) && lines[1].starts_with("hint: "),
            "{variables:?}: {printed}"
        );
    }
}
