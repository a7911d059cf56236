//! How `pipeline.sh --resident` keeps the streams of its steps: each part of a stream in the folder of its step, byte for byte, however
//! the pipe cuts it.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use troupe_tests::root;

/// The parts of two steps: one with lines that only look like an end, one that is nothing but its end.
const PARTS: [&str; 2] = [
    "{\"type\":\"sample\",\"completion\":\"{\\\"type\\\":\\\"end\\\"\"}\n{\"type\":\"other\",\"at\":{\"type\":\"end\"}}\n \
     {\"type\":\"end\"}\n{\"type\":\"end\",\"v\":1,\"ok\":true}\n",
    "{\"type\":\"end\",\"v\":1,\"ok\":true}\n",
];

#[test]
fn parts_are_kept_by_step_however_the_pipe_cuts_them() {
    // The last line is half of one, as of a stage that died.
    let whole = format!("{}{}{{\"type\":\"sam", PARTS[0], PARTS[1]);
    for piece in [1, 7, 40, whole.len()] {
        let folder = tempfile::tempdir().expect("a folder");
        for step in ["000004", "000005", "000006"] {
            fs::create_dir_all(folder.path().join("steps").join(step)).expect("a folder");
        }
        let script = root().join("pipeline/tee_steps.py");
        let mut command = Command::new("python3");
        command.args(["-IS".as_ref(), script.as_os_str(), folder.path().as_os_str()]).args(["4", "lines"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let mut input = child.stdin.take().expect("its stdin");
        let mut output = child.stdout.take().expect("its stdout");
        let bytes = whole.clone().into_bytes();
        let writing = thread::spawn(move || {
            bytes.chunks(piece).for_each(|piece| input.write_all(piece).expect("it reads"));
        });
        let mut passed = String::new();
        output.read_to_string(&mut passed).expect("its output");
        writing.join().expect("written");
        assert!(child.wait().expect("it ends").success());
        assert_eq!(passed, whole, "pieces of {piece} bytes");
        for (step, part) in [("000004", PARTS[0]), ("000005", PARTS[1]), ("000006", "{\"type\":\"sam")] {
            let kept = fs::read_to_string(folder.path().join("steps").join(step).join("lines"));
            assert_eq!(kept.expect("a file"), part, "step {step}, pieces of {piece} bytes");
        }
    }
}
