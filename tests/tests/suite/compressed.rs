//! Streams compressed with zstd: every program reads them, and a run that compresses its steps is the same run.

use std::fs;
use std::path::{Path, PathBuf};

use troupe_tests::{must, pipeline, run, without_timing};

fn play(run: &Path, more: &[&str]) {
    let small = "--tasks 8 --branches 4 --warmup 100 --eval-tasks 10 --eval-every 2";
    let flags: Vec<&str> = small.split(' ').chain(more.iter().copied()).collect();
    let output = pipeline(run, &flags).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn unpacked(path: &Path) -> String {
    let bytes = zstd::decode_all(fs::File::open(path).expect("a file")).expect("a zstd stream");
    String::from_utf8(bytes).expect("UTF-8")
}

fn of_step(run: &Path, step: u32, file: &str) -> PathBuf {
    run.join(format!("steps/{step:06}/{file}"))
}

#[test]
fn a_run_with_compressed_steps_is_the_same_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plain, packed) = (folder.path().join("plain"), folder.path().join("packed"));
    play(&plain, &["--steps", "3"]);
    play(&packed, &["--steps", "2", "--compress"]);
    // Killed between the commit of a step and its compression.
    let text = unpacked(&of_step(&packed, 2, "samples.jsonl.zst"));
    fs::write(of_step(&packed, 2, "samples.jsonl"), text).expect("written");
    fs::remove_file(of_step(&packed, 2, "samples.jsonl.zst")).expect("removed");
    play(&packed, &["--steps", "3", "--compress", "--resident"]);
    for step in 1..=3 {
        for name in ["samples.jsonl", "tasks.jsonl"] {
            let before = fs::read_to_string(of_step(&plain, step, name)).expect("a stream");
            assert!(!of_step(&packed, step, name).exists(), "{step} {name}");
            assert_eq!(
                without_timing(&unpacked(&of_step(&packed, step, &format!("{name}.zst")))),
                without_timing(&before),
                "{step} {name}"
            );
        }
    }
    let weights = "policies/shared/current/model.safetensors";
    assert_eq!(
        fs::read(plain.join(weights)).expect("weights"),
        fs::read(packed.join(weights)).expect("weights")
    );
    // The report has read them: the same curves but for times.
    let curves = |run: &Path| {
        let table = must(&format!(
            "report {} --csv - --quiet | cut -d, -f2- | grep -v 'timing\\|seconds\\|/s'",
            run.display()
        ));
        assert!(table.lines().count() > 50, "{table}");
        table
    };
    assert_eq!(curves(&plain), curves(&packed));

    // Its page has boards, drawn from the tasks, and the parts of texts, by the tokenizers of the policies.
    let page = fs::read_to_string(packed.join("report.html")).expect("a page");
    for part in ["\"board\":\"    a b c d e\\n  0 ", "\"pieces\":[["] {
        assert!(page.contains(part), "{part}");
    }

    // A file compressed later is still the same file.
    let told = run(&format!("report compress {}", plain.display())).2;
    assert!(told.starts_with("report: 6 files, "), "{told}");
    assert!(
        of_step(&plain, 1, "samples.jsonl.zst").exists() && !of_step(&plain, 1, "samples.jsonl").exists()
    );
    assert_eq!(
        run(&format!("report compress {}", plain.display())).2,
        "report: 0 files, 0.00 MB compressed to 0.00 MB\n"
    );
}
