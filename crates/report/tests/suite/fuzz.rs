//! `report` on damaged run folders: a page whose data can be read, or a refusal, never a panic, soon.
//!
//! `TROUPE_FUZZ_SECONDS=60 cargo test -p report --test suite fuzz` goes on for that long instead.

use std::fs;
use std::time::{Duration, Instant};

use troupe_tests::storm;

use crate::fixture::{self, report};

/// The files of a run that are damaged.
const FILES: [&str; 7] = [
    "run.json",
    "steps/000001/samples.jsonl",
    "steps/000001/metrics.jsonl",
    "steps/000002/samples.jsonl",
    "steps/000002/done",
    "steps/000003/samples.jsonl",
    "eval/step-000000.jsonl",
];
const TOKENS: [&str; 22] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\n",
    "\0",
    "\u{1b}[2J",
    "</script>",
    "<!--",
    "null",
    "true",
    "-1",
    "1e999",
    "0.5",
    "\\ud800",
    "18446744073709551615",
    "\"type\":\"episode\",",
    "\"step\":4294967296,",
    "\u{2028}",
];

#[test]
fn fuzz_run_folders() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fixture::run(folder.path());
    let sound: Vec<Vec<u8>> = FILES.iter().map(|file| fs::read(whole.join(file)).unwrap()).collect();
    let (mut made, mut all) = (0, 0);
    for number in storm::inputs(25) {
        let at = number as usize % FILES.len();
        let path = whole.join(FILES[at]);
        // Its own text more often than that of another file.
        let seeds = [vec![sound[at].clone(); 4], sound.clone()].concat();
        let bytes = storm::damaged(&seeds, &TOKENS, number);
        // Now and then it is gone, or a folder.
        match number % 23 {
            7 => fs::remove_file(&path).unwrap(),
            13 => fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).unwrap(),
            _ => fs::write(&path, &bytes).unwrap(),
        }
        let began = Instant::now();
        let output = report(folder.path(), &["made-by-hand", "--html", "page.html", "--csv", "table.csv"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown = || format!("input {number}, {}: {:?} {stderr}", FILES[at], output.status);
        assert!(began.elapsed() < Duration::from_secs(20), "{}", shown());
        assert!(matches!(output.status.code(), Some(0 | 1 | 2 | 65 | 74)), "{}", shown());
        assert!(
            !stderr.contains("panicked") && !stderr.contains(|c: char| c.is_control() && c != '\n'),
            "{}",
            shown()
        );
        let page = folder.path().join("page.html");
        match output.status.success() {
            true => {
                let page = fs::read_to_string(&page).expect("a page");
                assert_eq!(page.matches("</script>").count(), 3, "{}", shown());
                fixture::data(&page);
                made += 1;
            }
            false => assert!(stderr.contains("report: "), "{}", shown()),
        }
        all += 1;
        let _ = (fs::remove_dir(&path), fs::remove_file(folder.path().join("page.html")));
        let _ = (
            fs::remove_dir_all(whole.join("report.cache")),
            fs::remove_file(folder.path().join("table.csv")),
        );
        fs::write(&path, &sound[at]).unwrap();
    }
    eprintln!("{all} run folders, {made} pages");
}
