//! Paths that are no regular files: outputs are written through, inputs are refused, and no call waits for
//! ever.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{self, must, report, run};

fn fifo(path: &Path) -> PathBuf {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
    path.to_owned()
}

#[test]
fn outputs_go_through_links_devices_and_fifos() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let at = |name: &str| folder.path().join(name);
    let table = must(folder.path(), &["made-by-hand", "--csv", "-"]);
    assert_eq!(must(folder.path(), &["made-by-hand", "--csv", "/dev/stdout", "--quiet"]), table);
    fs::write(at("target"), "precious").unwrap();
    symlink("target", at("link")).expect("a link");
    symlink("/dev/null", at("null")).expect("a link");
    symlink("/proc/self/fd/1", at("stdout")).expect("a link");
    assert_eq!(must(folder.path(), &["made-by-hand", "--csv", "stdout", "--quiet"]), table);
    must(folder.path(), &["made-by-hand", "--csv", "link", "--html", "null", "--quiet"]);
    assert!(at("link").is_symlink() && at("null").is_symlink() && at("stdout").is_symlink());
    assert_eq!(fs::read_to_string(at("target")).expect("the table"), table);
    assert!(fs::metadata("/dev/null").expect("the device").file_type().is_char_device());
    let pipe = fifo(&at("fifo"));
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).expect("the table")
    });
    must(folder.path(), &["made-by-hand", "--csv", "fifo", "--quiet"]);
    assert_eq!(reader.join().expect("the reader"), table);
    assert!(fs::metadata(pipe).expect("the FIFO").file_type().is_fifo());
    // What a shell redirected is written where it stands, not replaced.
    let status = Command::new("sh")
        .args(["-c", "{ echo first; \"$0\" made-by-hand --csv /dev/stdout --quiet; echo last; } > all"])
        .arg(env!("CARGO_BIN_EXE_report"))
        .current_dir(&folder)
        .status();
    assert!(status.expect("sh").success());
    assert_eq!(fs::read_to_string(at("all")).unwrap(), format!("first\n{table}last\n"));
}

#[test]
fn fifo_in_a_run_is_refused_and_a_named_pipe_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    let refused = |arguments: &[&str], code: i32, place: &str| {
        let stderr = fixture::refused(folder.path(), arguments, code);
        assert!(stderr.contains(&format!("{place}: not a")), "{stderr}");
    };
    let events = folder.path().join("events/made-by-hand");
    fs::create_dir_all(&events).unwrap();
    fifo(&events.join("events.out.tfevents.0.troupe"));
    refused(&["made-by-hand", "--tensorboard", "events"], 74, "events.out.tfevents.0.troupe");
    fifo(&folder.path().join("pipe"));
    refused(&["compress", "pipe"], 2, "pipe");
    let stream = run.join("steps/000002/samples.jsonl");
    let text = fs::read(&stream).unwrap();
    fs::remove_file(&stream).unwrap();
    fifo(&stream);
    refused(&["made-by-hand"], 74, "steps/000002/samples.jsonl");
    fs::remove_file(&stream).unwrap();
    fs::write(&stream, &text).unwrap();
    for name in ["run.json", "report.cache/step-000002.json"] {
        let path = run.join(name);
        let _ = fs::create_dir(run.join("report.cache"));
        let text = fs::read(&path);
        let _ = fs::remove_file(&path);
        fifo(&path);
        let output = report(folder.path(), &["made-by-hand", "--quiet"]);
        // A summary that cannot be read costs time and nothing else.
        assert_eq!(output.status.success(), name != "run.json", "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, text.unwrap_or_default()).unwrap();
    }
    let evaluated = Command::new("bash")
        .args(["-c", "\"$0\" evaluate <(cat made-by-hand/eval/step-000000.jsonl) --format line"])
        .arg(env!("CARGO_BIN_EXE_report"))
        .current_dir(&folder)
        .output()
        .expect("bash");
    assert!(String::from_utf8_lossy(&evaluated.stdout).starts_with("1.000 (1/1)"), "{evaluated:?}");
}

/// Who waits for the other end of a FIFO is ended by the first signal.
#[test]
fn signal_ends_a_wait_for_a_fifo() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    fifo(&folder.path().join("pipe"));
    for arguments in [&["evaluate", "pipe"][..], &["made-by-hand", "--csv", "pipe"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_report"))
            .args(arguments)
            .current_dir(&folder)
            .stderr(Stdio::null())
            .spawn()
            .expect("report");
        std::thread::sleep(Duration::from_millis(200));
        assert!(child.try_wait().expect("its state").is_none(), "it waits");
        let kill = Command::new("kill").arg(child.id().to_string()).status();
        assert!(kill.expect("kill").success());
        let started = Instant::now();
        while child.try_wait().expect("its state").is_none() {
            assert!(started.elapsed() < Duration::from_secs(60), "one signal does not end it");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(child.wait().unwrap().code(), Some(143));
    }
}
