//! The host's side of the CUDA path without a GPU: the programs run with `--device cuda` over a driver that computes nothing
//! (`stand_in/driver.c`) and keeps an account of all that a GPU is asked for.
//!
//! ONNX Runtime is the real one with its real CUDA provider: which nodes it takes, what it checks of shapes, types and
//! addresses, in which stream it works and how much memory it takes is what it does on a GPU. What kernels compute is not
//! seen here. Skipped, and said so, where `fetch-cuda.sh onnxruntime nvrtc` has fetched nothing.

use std::fmt::Write as _;
use std::io::Write as _;
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
struct Place {
    folder: TempDir,
    runtime: PathBuf,
}

impl Place {
    /// Nothing where there is nothing to run; that is said past the test harness, which would keep it to itself.
    fn new() -> Option<Place> {
        let Some(runtime) = fetched() else {
            let text = "SKIPPED: THE CUDA PATH WAS NOT RUN: ./fetch-cuda.sh onnxruntime nvrtc fetches what it needs\n";
            let _ = std::io::stderr().write_all(text.as_bytes());
            return None;
        };
        let place = Place { folder: tempfile::tempdir().expect("a folder"), runtime };
        let source = root().join("tests/tests/stand_in/driver.c");
        let stubs = place.path("stubs.c");
        let missing = missing(&place.runtime.join("libonnxruntime_providers_cuda.so"), &source);
        std::fs::write(&stubs, missing).expect("written");
        let library = place.path("stand-in.so");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut compile = Command::new(compiler);
        compile.args(["-std=c11", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library);
        assert!(compile.arg(&source).arg(&stubs).status().expect("a C compiler").success());
        for name in NAMES {
            std::os::unix::fs::symlink(&library, place.path(name)).expect("a link");
        }
        let (code, said) = place.run("policy init p --preset tiny --seed 1", &[]);
        assert_eq!(code, 0, "{said}");
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command beside the policy with the stand-in in the place of CUDA: its exit code and what it said.
    fn run(&self, command: &str, variables: &[(&str, &str)]) -> (i32, String) {
        let folder = self.folder.path();
        let mut shell = shell(command);
        shell.current_dir(folder).envs(variables.iter().copied());
        shell
            .env("CUDA_PATH", folder)
            .env("LD_LIBRARY_PATH", folder)
            .env("STAND_IN_ACCOUNT", self.path("account"));
        let library =
            std::fs::read_dir(&self.runtime).expect("a folder").filter_map(|entry| Some(entry.ok()?.path()));
        let library = library.filter(|path| path.to_string_lossy().contains("/libonnxruntime.so."));
        shell.env("ORT_DYLIB_PATH", library.last().expect("ONNX Runtime"));
        let output = shell.output().expect("bash runs");
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code().unwrap_or(-1), said.concat())
    }

    /// What a GPU was asked for since this was last called.
    fn account(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("account")).expect("an account");
        std::fs::remove_file(self.path("account")).expect("removed");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let wrong: Vec<&String> = lines.iter().filter(|line| line.starts_with("wrong")).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        lines
    }
}

/// C functions for all that the provider asks of CUDA and the stand-in does not have: they do nothing.
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
    // What is asked for by name while the programs run.
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
fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|own| *own != word);
    words.nth(1).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {word} in {line}"))
}

const ROLLOUT: &str = "rollout --policy p --branches 4 --turns 1 --seed 1 --step 1 --device cuda --quiet";

#[test]
fn a_step_asks_a_gpu_for_nothing_impossible_and_gives_all_back() {
    let Some(place) = Place::new() else { return };
    let tasks = "envs tasks plan-path --count 96 --seed 7";
    let (code, said) = place.run(&format!("{tasks} | {ROLLOUT} --max-tokens 12 >rollout"), &[]);
    assert_eq!(code, 0, "{said}");
    let account = place.account();
    let run = |line: &&String| line.starts_with("launch sample_rows") || line.starts_with("repeat ");
    let ours = account.iter().filter(run);
    let streams: Vec<&str> = ours.filter_map(|line| line.split_whitespace().last()).collect();
    assert!(streams.len() > 12, "no tokens were chosen");
    // All work is in the stream that the sampler is launched in: nothing has to be waited for but the answers.
    let elsewhere = |line: &&String| line.contains(" stream ") && !line.ends_with(streams[0]);
    assert_eq!(account.iter().find(elsewhere), None);
    let arena =
        account.iter().filter(|line| line.starts_with("take ")).max_by_key(|line| number(line, "take"));
    let arena = account.iter().position(|line| Some(line) == arena).expect("an arena");
    let waits = account[arena..].iter().filter(|line| *line == "wait").count();
    assert!(waits <= streams.len() + 2, "{waits} waits for {} runs", streams.len());
    // What activations take is taken in few pieces, however many more rows a run has than those before.
    let pieces = account[arena + 1..].iter().filter(|line| line.starts_with("take ")).count();
    assert!(pieces <= 8, "{pieces} pieces of memory");
    assert_eq!(account.last().map(String::as_str), Some("context left with 0"));

    // Decoding is recorded once a form, with all launches of all layers, and repeated from then on.
    let beginning = |word: &str| account.iter().filter(|line| line.starts_with(word)).collect::<Vec<_>>();
    let (recorded, repeated) = (beginning("recorded "), beginning("repeat "));
    assert!(!recorded.is_empty() && recorded.len() < 8, "{recorded:?}");
    assert!(repeated.len() > recorded.len(), "{} repeated of {}", repeated.len(), recorded.len());
    let launches = recorded.iter().map(|line| number(line, "recorded")).min().expect("a recording");
    assert!(launches > 3 * 8, "{launches} launches recorded");
    assert_eq!(beginning("noted sample_rows").len(), recorded.len());

    let reward = r#"awk '/"type":"sample"/ { match($0, /"branch":[0-9]+/); sub(/"reward":[^,}]*/, "\"reward\":" substr($0, RSTART + 9, RLENGTH - 9)) } { print }'"#;
    let learn = "group --quiet | advantage --quiet | update --policy p --device cuda --quiet >metrics";
    let (code, said) = place.run(&format!("{reward} rollout | {learn}"), &[]);
    assert_eq!(code, 0, "{said}");
    let account = place.account();
    let launched = |kernel: &str| account.iter().any(|line| line.starts_with(&format!("launch {kernel} ")));
    for kernel in ["rotate_backward", "attention_deltas", "score_rows_backward", "adamw", "join_masters"] {
        assert!(launched(kernel), "{kernel} was not launched");
    }
    assert!(account.iter().any(|line| line.starts_with("product ")), "no products");
    assert_eq!(account.last().map(String::as_str), Some("context left with 0"));
}

#[test]
fn what_cannot_be_recorded_is_run() {
    let Some(place) = Place::new() else { return };
    let tasks = "envs tasks plan-path --count 8 --seed 7";
    let samples = |variables: &[(&str, &str)]| {
        let (code, said) = place.run(&format!("{tasks} | {ROLLOUT} --max-tokens 12 >rollout"), variables);
        assert_eq!(code, 0, "{said}");
        let lines = std::fs::read_to_string(place.path("rollout")).expect("samples");
        let samples: Vec<String> =
            lines.lines().filter(|line| line.contains("\"type\":\"sample\"")).map(str::to_owned).collect();
        (samples, said, place.account())
    };
    let (wanted, said, account) = samples(&[]);
    assert!(!said.contains("slower"), "{said}");
    assert!(account.iter().any(|line| line.starts_with("repeat ")));
    let (found, said, account) = samples(&[("STAND_IN_GRAPHS", "none")]);
    assert_eq!(said.matches("decoding on this device is slower than it could be").count(), 1, "{said}");
    assert!(!account.iter().any(|line| line.starts_with("repeat ")));
    assert!(wanted.len() > 8 && wanted == found);
}

#[test]
fn what_a_card_cannot_do_is_a_sentence() {
    let Some(place) = Place::new() else { return };
    let command = format!("envs tasks plan-path --count 1 --seed 7 | {ROLLOUT} --max-tokens 4 >rollout");
    for (variables, wanted) in [
        (
            ("STAND_IN_MEMORY", "100000"),
            "the device's memory is used up while ONNX Runtime loads the weights",
        ),
        (("STAND_IN_MEMORY", "1000000000"), "MiB are free and"),
        (("STAND_IN_DRIVER", "12040"), "the driver serves CUDA 12.4, and NVRTC is of CUDA 13"),
    ] {
        let (code, said) = place.run(&command, &[variables]);
        assert_eq!(code, 69, "{variables:?}: {said}");
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("envs:")).collect();
        assert!(
            lines.len() == 2 && lines[0].contains(wanted) && lines[1].starts_with("hint: "),
            "{variables:?}: {said}"
        );
    }
}
