//! Every program of a whole run, killed or refused at one system call after another. Each published version
//! is complete or absent, and the run that the same command resumes ends with the bytes of an undisturbed
//! one.
//!
//! Each run meets one fault, and the next run resumes from the result. Left out: power cuts, which also lose
//! unsynchronized data, and faults inside the loader, before `main`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use troupe_tests::{differences, pipeline, programs, skip, storm};

/// The smallest run that has a warm-up, an optimizer's state to resume from, and a version to prune.
const TINY: [&str; 12] = [
    "--warmup",
    "1",
    "--steps",
    "2",
    "--tasks",
    "1",
    "--branches",
    "2",
    "--eval-every",
    "0",
    "--stage",
    // A policy that knows nothing earns nothing, and would not change: a reward by the first token.
    "group=jq -c 'if .type == \"sample\" then .reward = .completion_ids[0] % 7 else . end' | group --quiet",
];

/// Faults that a run may meet.
const AT_ONCE: usize = 2;

/// The programs of a run; `bash` runs the pipes, and `troupe-pipeline` the whole.
const PROGRAMS: [&str; 10] =
    ["troupe-pipeline", "bash", "envs", "rollout", "group", "advantage", "update", "policy", "report", "tee"];

/// System calls that fail with their file or pipe. An injected `close` would leave a pipe open, as no real one does.
const FILES: &[&str] = &[
    "copy_file_range",
    "fdatasync",
    "flock",
    "fstat",
    "fsync",
    "ftruncate",
    "getdents64",
    "link",
    "lseek",
    "mkdir",
    "newfstatat",
    "openat",
    "pread64",
    "pwrite64",
    "read",
    "readlink",
    "rename",
    "renameat2",
    "statx",
    "symlink",
    "unlink",
    "unlinkat",
    "write",
    "writev",
];

const FAULTS: [&str; 6] =
    ["signal=KILL", "error=EIO", "signal=KILL", "error=ENOSPC", "signal=KILL", "error=EINTR"];

/// Programs that count their invocations in a folder, and meet the faults that the environment names.
struct Stage {
    folder: tempfile::TempDir,
}

/// An invocation of a program, such as `update.2`, and its fault in the syntax of `strace -e inject`.
type Fault = (String, String);

/// Outcome of one run.
struct Outcome {
    code: Option<i32>,
    stderr: String,
    /// The faults that came to pass.
    met: Vec<String>,
}

/// In place of faults: every call of every program is written down.
const TRACE: &str = "every";

impl Stage {
    fn new() -> Stage {
        let stage = Stage { folder: tempfile::tempdir().expect("a folder") };
        let bin = stage.path("bin");
        fs::create_dir(&bin).expect("a folder");
        for program in &PROGRAMS {
            let own = programs().join(program);
            let real = if own.exists() { own } else { which(program) };
            let real = real.display();
            // Two that start at once take different numbers: only one of them makes the folder. None does below a program
            // whose calls of mkdir fail. Signals without --seccomp-bpf, which is faster, but with it strace 6.1 injects
            // errors only.
            // What these start is traced by itself.
            let below = if ["bash", "troupe-pipeline"].contains(program) { "" } else { "-f" };
            let strace = format!("exec strace {below} -qq -o \"$SEEN/{program}.$n/log\"");
            let inject = format!("-e trace=\"${{fault%%:*}}\" -e inject=\"$fault\" {real} \"$@\"");
            let wrapper = format!(
                "#!/bin/sh\nn=1\nuntil /bin/mkdir \"$SEEN/{program}.$n\" 2>/dev/null || [ $n = 200 ]; do n=$((n+1)); done\n\
                 for fault in $FAULTS; do\n  name=${{fault%%=*}} fault=${{fault#*=}}\n  case $name:$fault in\n\
                 {TRACE}:*) {strace} {real} \"$@\" ;;\n  {program}.$n:*:signal=*) {strace} {inject} ;;\n\
                 {program}.$n:*) {strace} --seccomp-bpf {inject} ;;\n  esac\ndone\nexec {real} \"$@\"\n"
            );
            fs::write(bin.join(program), wrapper).expect("a wrapper");
            fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).expect("executable");
        }
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One run of pipeline.sh with faults.
    fn run(&self, run: &Path, faults: &[Fault]) -> Outcome {
        let seen = self.path("seen");
        let _ = fs::remove_dir_all(&seen);
        fs::create_dir_all(&seen).expect("a folder");
        let script = pipeline(run, &TINY);
        let mut command = Command::new(script.get_program());
        command.args(script.get_args());
        for (name, value) in script.get_envs() {
            command.env(name, value.expect("a value"));
        }
        let told = |(victim, fault): &Fault| {
            if fault.is_empty() { victim.clone() } else { format!("{victim}={fault}") }
        };
        let told = faults.iter().map(told).collect::<Vec<_>>().join(" ");
        let (bin, others) = (self.path("bin"), std::env::var("PATH").expect("a PATH"));
        command.env("PATH", format!("{}:{others}", bin.display()));
        command.env("TROUPE_BIN", bin).env("SEEN", &seen).env("FAULTS", &told);
        let (stdout, stderr) = (self.path("stdout"), self.path("stderr"));
        command.current_dir(troupe_tests::root()).stdin(Stdio::null()).process_group(0);
        command.stdout(File::create(&stdout).expect("a file")).stderr(File::create(&stderr).expect("a file"));
        let mut child = command.spawn().expect("it starts");
        let started = Instant::now();
        let code = loop {
            match child.try_wait().expect("its state") {
                Some(status) => break status.code(),
                None if started.elapsed() > Duration::from_secs(300) => {
                    let _ = Command::new("kill").args(["-9", "--", &format!("-{}", child.id())]).status();
                    panic!("{told}: no end; {}", text(&stderr));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // Stages of a killed pipeline.sh hold its lock until they end.
        if let Ok(lock) = File::open(run.join("lock")) {
            lock.lock().expect("the stages end");
        }
        let came_to_pass = |(victim, fault): &&Fault| {
            let log = text(&seen.join(victim).join("log"));
            !fault.is_empty() && (log.contains("(INJECTED)") || log.contains("killed by SIGKILL"))
        };
        let met =
            faults.iter().filter(came_to_pass).map(|(victim, fault)| format!("{victim}={fault}")).collect();
        Outcome { code, stderr: text(&stderr), met }
    }

    /// The system calls of each program's invocations, as counted in each thread.
    fn calls(&self) -> BTreeMap<String, Vec<(String, Calls)>> {
        let mut calls: BTreeMap<String, Vec<(String, Calls)>> = BTreeMap::new();
        for entry in fs::read_dir(self.path("seen")).expect("a folder") {
            let path = entry.expect("an entry").path();
            let victim = path.file_name().expect("a name").to_string_lossy().into_owned();
            let program = victim.rsplit_once('.').expect("a number").0.to_owned();
            calls.entry(program).or_default().push((victim, counted(&text(&path.join("log")))));
        }
        calls.values_mut().for_each(|invocations| invocations.sort_by(|a, b| a.0.cmp(&b.0)));
        calls
    }
}

/// By name of a system call, how many there were in the thread that made the most.
type Calls = BTreeMap<String, usize>;

fn counted(log: &str) -> Calls {
    let mut threads: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in log.lines() {
        let (thread, call) = match line.split_once(' ') {
            Some((pid, rest)) if pid.bytes().all(|byte| byte.is_ascii_digit()) => (pid, rest.trim_start()),
            _ => ("", line),
        };
        let Some((name, _)) = call.split_once('(') else { continue };
        if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            *threads.entry((thread.to_owned(), name.to_owned())).or_insert(0) += 1;
        }
    }
    let mut calls = Calls::new();
    for ((_, name), count) in threads {
        let most = calls.entry(name).or_insert(0);
        *most = count.max(*most);
    }
    // A program that was not started is not under test.
    calls.retain(|name, _| !["execve", "exit_group", "exit", "vfork"].contains(&name.as_str()));
    calls
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("a PATH");
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found.find(|file| file.is_file()).unwrap_or_else(|| panic!("{program} is not installed"))
}

/// Every version that `current` names is a whole directory that loads.
fn policies_are_whole(run: &Path, told: &str) {
    for name in ["shared", "../warmup/policy"] {
        let policy = run.join("policies").join(name);
        // One that is being made, or trained by the warm-up, is made again.
        if !run.join("policies/done").exists() || !policy.exists() {
            continue;
        }
        let (code, _, stderr) = troupe_tests::run(&format!("policy check '{}'", policy.display()));
        assert_eq!(code, 0, "{told}: {stderr}");
    }
}

#[test]
#[ignore = "storm"]
fn at_any_system_call_of_any_program_nothing_is_lost() {
    let traces = Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]).status();
    if !traces.is_ok_and(|status| status.success()) {
        skip!("strace is not here, or may not trace");
    }
    let wanted = storm::rounds(12, 1000);
    let stage = Stage::new();
    let (calm, stormy) = (stage.path("calm"), stage.path("stormy"));
    let whole = stage.run(&calm, &[(TRACE.to_owned(), String::new())]);
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let commits = [0, 1, 2].map(|step| calm.join(format!("steps/{step:06}/done")));
    let digests = commits.map(|done| text(&done).rsplit(':').next().unwrap_or_default().to_owned());
    assert!(digests[0] != digests[1] && digests[1] != digests[2], "{digests:?}: nothing is learned");
    let calls = stage.calls();
    assert_eq!(calls.len(), PROGRAMS.len(), "{:?}", calls.keys());

    let mut random = storm::Random::new();
    let (mut met, mut runs, mut ended, mut codes) = (BTreeMap::new(), 0, 0, BTreeMap::new());
    let mut story = String::new();
    while met.values().sum::<usize>() < wanted {
        // Faults of several programs, of which the first to come to pass mostly ends the run.
        let faults: Vec<Fault> = (0..AT_ONCE)
            .map(|number| {
                let program = PROGRAMS[(runs + number * 6) % PROGRAMS.len()];
                let fault = FAULTS[random.below(FAULTS.len())];
                let fails = |name: &str| fault == "signal=KILL" || FILES.contains(&name);
                let of_one = |(victim, of): &'_ (String, Calls)| -> Vec<(String, String, usize)> {
                    let named = of.iter().filter(|(name, _)| fails(name));
                    named.map(|(name, count)| (victim.clone(), name.clone(), *count)).collect()
                };
                let all: Vec<_> = calls[program].iter().flat_map(of_one).collect();
                let (victim, call, count) = &all[random.below(all.len())];
                (victim.clone(), format!("{call}:{fault}:when={}", 1 + random.below(*count)))
            })
            .collect();
        let Outcome { code, stderr, met: now } = stage.run(&stormy, &faults);
        runs += 1;
        story += &format!("{now:?} -> {code:?}\n");
        for fault in &now {
            *met.entry(fault.split('.').next().unwrap_or_default().to_owned()).or_insert(0) += 1;
        }
        if !now.is_empty() {
            *codes.entry(code).or_insert(0) += 1;
            // Not what a disk that fails is called.
            if let Some(1 | 2) = code {
                println!("exit code {code:?} of {now:?}: {stderr}");
            }
        }
        assert!(!stderr.contains("panicked"), "{story}{stderr}");
        assert!(!now.is_empty() || code == Some(0), "it fails without a fault: {story}{stderr}");
        policies_are_whole(&stormy, &story);
        if code == Some(0) {
            let different = differences(&calm, &stormy);
            assert!(different.is_empty(), "{story}{stderr}{different:#?}");
            ended += 1;
            fs::remove_dir_all(&stormy).expect("the finished run");
            story.clear();
        }
        assert!(story.lines().count() < 200, "it never gets through: {story}{stderr}");
        if runs % 10 == 0 {
            println!("{runs} runs, {ended} ended with equal bytes; faults {met:?}; exit codes {codes:?}");
        }
    }
    println!("{runs} runs, {ended} ended with equal bytes; faults {met:?}; exit codes {codes:?}");
}
