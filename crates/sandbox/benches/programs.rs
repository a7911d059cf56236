//! Benchmarks small programs: a warm sandbox, an input, an output.
//!
//! ```text
//! cargo bench -p sandbox --bench programs
//! ```
//!
//! The rate is wall time. One worker is worth one core, because the judge sleeps while a program runs. On a
//! busy machine read the processor time instead; it includes the judge, the fork server, the programs, and
//! setting up and tearing down each sandbox. The baseline is the usual way without a sandbox: a new `python3
//! -I -S` for each program.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use sandbox::{Entry, Program, Sandbox};

const COUNT: usize = 1000;
const ROUNDS: usize = 5;

const SUM: &str = "n = int(input())\nprint(sum(map(int, input().split())), n)\n";
const SORT: &str = "import collections, heapq\ndef f(items):\n    heap = list(items)\n    heapq.heapify(heap)\n    \
                    return [heapq.heappop(heap) for _ in range(len(heap))]\n";

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let script = Program::python(SUM, "5\n1 2 3 4 5\n");
    let function = Program { entry: Entry::Call("f"), ..Program::python(SORT, "[[5, 3, 9, 1, 7, 2]]") };
    let compile = Program { entry: Entry::Compile, ..script };
    let one = Sandbox::open(1).unwrap();
    println!("{}", one.description());
    for (name, program) in [("script", script), ("function", function), ("compile only", compile)] {
        report(&format!("{name}, 1 worker"), || many(&one, &program, 1));
    }
    let all = Sandbox::open(cores).unwrap();
    report(&format!("script, {cores} workers"), || many(&all, &script, cores));
    drop(all);
    let python = interpreter();
    report("new python3, 1 at a time", || fresh(&python, COUNT / 20));
}

/// Prints medians and ranges over [`ROUNDS`] rounds: programs per second, and per second of processor time.
/// `round` returns the number of programs it ran.
fn report(name: &str, round: impl Fn() -> usize) {
    round();
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (began, used) = (Instant::now(), processor_seconds());
        let count = round() as f64;
        rates.push(count / began.elapsed().as_secs_f64());
        costs.push(count / (processor_seconds() - used));
    }
    println!("{name:<26} {} programs/s {} programs/core-s", spread(&mut rates), spread(&mut costs));
}

fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:>6.0} ({:.0} to {:.0})", values[ROUNDS / 2], values[0], values[ROUNDS - 1])
}

/// Processor time of this process and its waited-for descendants.
fn processor_seconds() -> f64 {
    let this = std::process::id();
    let ticks: u64 = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            // After the name come state, parent, …; utime, stime, cutime and cstime are fields 14 to 17.
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let ours = id == this || fields.get(1)?.parse() == Ok(this);
            ours.then(|| fields[11..15].iter().filter_map(|field| field.parse::<u64>().ok()).sum::<u64>())
        })
        .sum();
    // User space always sees Linux's ticks as hundredths of a second.
    ticks as f64 / 100.0
}

fn many(sandbox: &Sandbox, program: &Program<'_>, threads: usize) -> usize {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..COUNT / threads {
                    let execution = sandbox.run(program).unwrap();
                    assert!(execution.is_success(), "{execution:?}");
                }
            });
        }
    });
    COUNT / threads * threads
}

/// The interpreter behind `python3`, which may be a wrapper script.
fn interpreter() -> String {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn fresh(python: &str, count: usize) -> usize {
    for _ in 0..count {
        let mut child = Command::new(python)
            .args(["-I", "-S", "-c", SUM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"5\n1 2 3 4 5\n").unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
    }
    count
}
