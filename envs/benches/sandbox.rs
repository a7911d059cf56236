//! Small programs judged a second: a warm sandbox, an input, an output.
//!
//! ```text
//! cargo bench -p envs --bench sandbox
//! ```
//!
//! One worker is one core's worth: the judge sleeps while a program runs. On a machine that does other work besides, the
//! processor time of a program, setting the sandbox up and tearing it down included, tells more than the rate. The yardstick beside it is what one does
//! without a sandbox: a new `python3 -I -S` for each program.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may fail")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use envs::sandbox::{Entry, Program, Sandbox};

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
    let seconds: f64 = (0..COUNT).map(|_| one.run(&script).unwrap().cpu_seconds).sum();
    println!(
        "{:<26} {:>7.2} ms of processor time a program",
        "script, 1 worker",
        1e3 * seconds / COUNT as f64
    );
    report("new python3, 1 at a time", || fresh(COUNT / 20));
}

/// Median and range of programs a second over [`ROUNDS`] rounds; `round` says how many it ran.
fn report(name: &str, round: impl Fn() -> usize) {
    round();
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            round() as f64 / began.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let (least, median, most) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
    println!("{name:<26} {median:>7.0} programs/s  ({least:.0} to {most:.0})");
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

fn fresh(count: usize) -> usize {
    for _ in 0..count {
        let mut child = Command::new("python3")
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
