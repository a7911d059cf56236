//! The sandbox as its callers use it: what ordinary programs get, and how each ends.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use sandbox::{Entry, Execution, Limits, Program, Sandbox, Status};

fn run(source: &str, stdin: &str) -> Execution {
    Sandbox::shared().unwrap().run(&Program::python(source, stdin)).unwrap()
}

fn run_within(source: &str, limits: Limits) -> Execution {
    let program = Program { limits, ..Program::python(source, "") };
    Sandbox::shared().unwrap().run(&program).unwrap()
}

fn call(source: &str, function: &str, arguments: &str) -> Execution {
    let program = Program { entry: Entry::Call(function), ..Program::python(source, arguments) };
    Sandbox::shared().unwrap().run(&program).unwrap()
}

#[test]
fn a_script_reads_its_input_and_prints() {
    if support::sandbox().is_none() {
        return;
    }
    let execution = run("a, b = map(int, input().split())\nprint(a + b)\n", "40 2\n");
    assert_eq!((execution.stdout.as_str(), execution.status), ("42\n", Status::Exited(0)), "{execution:?}");
    assert!(execution.cpu_seconds < 1.0);
}

#[test]
fn text_beyond_ascii_survives() {
    if support::sandbox().is_none() {
        return;
    }
    let execution = run("print(input()[::-1])", "žluťoučký 馬\n");
    assert_eq!(execution.stdout, "馬 ýkčuoťulž\n");
}

#[test]
fn a_function_is_called_and_its_value_comes_back() {
    if support::sandbox().is_none() {
        return;
    }
    let execution = call("def add(a, b):\n    print('noise')\n    return [a + b, None]\n", "add", "[1, 2.5]");
    assert_eq!(execution.result.as_deref(), Some("[3.5, null]"), "{execution:?}");
    assert_eq!(execution.stdout, "noise\n");
    let method = "class Solution:\n    def twice(self, x):\n        return x * 2\n";
    assert_eq!(call(method, "twice", "[\"ab\"]").result.as_deref(), Some("\"abab\""));
    let missing = call("x = 1\n", "twice", "[1]");
    assert_eq!((missing.result, missing.status), (None, Status::Exited(1)));
    assert!(
        missing.stderr.ends_with("NameError: the program has no function 'twice'\n"),
        "{}",
        missing.stderr
    );
}

#[test]
fn compiling_runs_nothing() {
    if support::sandbox().is_none() {
        return;
    }
    let compile = |source| {
        let program = Program { entry: Entry::Compile, ..Program::python(source, "") };
        Sandbox::shared().unwrap().run(&program).unwrap()
    };
    let execution = compile("print('ran')\nraise SystemExit(3)\n");
    assert_eq!((execution.stdout.as_str(), execution.status), ("", Status::Exited(0)));
    let broken = compile("def f(:\n");
    assert_eq!(broken.status, Status::Exited(1));
    assert!(broken.stderr.contains("SyntaxError"), "{}", broken.stderr);
}

#[test]
fn programs_end_as_under_an_interpreter_of_their_own() {
    if support::sandbox().is_none() {
        return;
    }
    let cases = [
        ("raise SystemExit", Status::Exited(0)),
        ("import sys; sys.exit(3)", Status::Exited(3)),
        ("exit('bye')", Status::Exited(1)),
        ("1/0", Status::Exited(1)),
        ("import os; os._exit(7)", Status::Exited(7)),
        ("import os; os.kill(os.getpid(), 11)", Status::Exited(0)),
        ("import ctypes; ctypes.string_at(0)", Status::Signal(11)),
        (
            "assert __name__ == '__main__'; import __main__; assert __main__.__dict__ is globals()",
            Status::Exited(0),
        ),
        (
            "import sys; sys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nassert f(50000)",
            Status::Exited(0),
        ),
    ];
    for (source, status) in cases {
        let execution = run(source, "");
        assert_eq!(execution.status, status, "{source}: {execution:?}");
    }
    let failed = run("def f():\n    return {}['x']\nf()\n", "");
    assert_eq!(
        failed.stderr,
        "Traceback (most recent call last):\n  File \"program.py\", line 3, in <module>\n  File \"program.py\", line 2, \
         in f\nKeyError: 'x'\n"
    );
    let late = run(
        "import atexit, threading, time\natexit.register(print, 'last')\n\
                    threading.Thread(target=lambda: (time.sleep(.05), print('thread'))).start()\nprint('main')\n",
        "",
    );
    assert_eq!((late.stdout.as_str(), late.status), ("main\nthread\nlast\n", Status::Exited(0)));
}

#[test]
fn limits_end_a_program_and_are_named() {
    if support::sandbox().is_none() {
        return;
    }
    // On a busy machine a short time on the clock would come before any other limit.
    let patient = Limits { cpu_seconds: 0.3, wall_seconds: 120.0, ..Limits::default() };
    let hasty = Limits { wall_seconds: 1.0, ..patient };
    let slower = Limits { cpu_seconds: 60.0, ..patient };
    let cases = [
        ("while True: pass", patient, Status::CpuTime),
        ("import time; time.sleep(100)", hasty, Status::WallTime),
        ("x = bytearray(10**9)", slower, Status::Memory),
        ("x = []\nwhile True: x.append(bytearray(10**6))", slower, Status::Memory),
        ("while True: print('x' * 10**5)", slower, Status::Output),
        ("import sys\nwhile True: sys.stderr.write('x' * 10**5)", slower, Status::Output),
    ];
    for (source, limits, status) in cases {
        let execution = run_within(source, limits);
        assert_eq!(execution.status, status, "{source}: {execution:?}");
        assert!(execution.stdout.len() <= limits.output_bytes as usize);
    }
}
