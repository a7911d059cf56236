//! Runs that differ only in their seed, figures for papers, and methods compared.

use std::path::Path;

use serde_json::{Value, json};

use crate::fixture::{data, must, refused, report};
use crate::made::Made;

/// Three seeds of one method, and two of another.
fn runs(folder: &Path) -> [&'static str; 5] {
    let names = ["monday", "tuesday", "seed-9", "other", "another"];
    for (place, name) in names.into_iter().enumerate() {
        let seed = (place % 3 + 1).to_string();
        let lr = if place < 3 { "1e-3" } else { "1e-4" };
        let learns = place < 3;
        Made { settings: json!({"seed": seed, "lr": lr}), learns, ..Made::default() }.put(folder, name);
    }
    names
}

#[test]
fn seeds_are_one_curve_and_one_row() {
    let folder = tempfile::tempdir().unwrap();
    let names = runs(folder.path());
    must(folder.path(), &[&names[..], &["--quiet"]].concat());
    let data = data(&std::fs::read_to_string(folder.path().join("report.html")).unwrap());
    let methods = data["methods"].as_array().expect("methods");
    let rows: Vec<_> =
        methods.iter().map(|method| (&method["name"], &method["runs"], &method["seeds"])).collect();
    let (first, second) = ((json!("lr 1e-3"), json!([0, 1, 2])), (json!("lr 1e-4"), json!([3, 4])));
    assert_eq!(rows[0], (&first.0, &first.1, &json!(["1", "2", "3"])));
    assert_eq!(rows[1], (&second.0, &second.1, &json!(["1", "2"])));
    // 17, 18 and 19 of 20 after step 12: mean and sample deviation by hand.
    let now = &methods[0]["now"];
    let (mean, deviation) =
        (now["mean"].as_f64().expect("a mean"), now["deviation"].as_f64().expect("a deviation"));
    assert!((mean - 0.9).abs() < 1e-9 && (deviation - 0.05).abs() < 1e-9, "{now}");
    let interval = [0, 1].map(|end| now["interval"][end].as_f64().expect("an end"));
    assert!(
        (interval[0] - (0.9 - 4.302_653 * 0.05 / 3f64.sqrt())).abs() < 1e-6 && interval[1] == 1.0,
        "{now}"
    );
    let success = &data["success"][0]["series"];
    assert_eq!(success.as_array().map(Vec::len), Some(2));
    let last = |key: &str| success[0][key].as_array().expect("values").last().cloned();
    assert_eq!(
        (last("low"), last("y"), last("high")),
        (Some(json!(0.85)), Some(json!(0.9)), Some(json!(0.95)))
    );
}

#[test]
fn methods_are_compared_seed_by_seed() {
    let folder = tempfile::tempdir().unwrap();
    let names = runs(folder.path());
    let table = must(folder.path(), &[&["compare"], &names[..]].concat());
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("method") && lines[0].contains("at step 12"), "{table}");
    assert!(
        lines[1].starts_with("lr 1e-3") && lines[1].contains("  90.0 %  5.0  77.6 to 100.0 %"),
        "{table}"
    );
    // Over seeds 1 and 2: 0 - 0.85 and 0 - 0.9.
    assert_eq!(
        lines[3],
        "lr 1e-4 against lr 1e-3: -87.5 points, SD 3.5, 95 % interval -100.0 to -55.7, paired over seeds 1, 2"
    );
    let second = compared(folder.path(), &names)[1].clone();
    assert_eq!(
        (&second["method"], &second["step"], &second["against"]["seeds"]),
        (&json!("lr 1e-4"), &json!(12), &json!(["1", "2"]))
    );
    assert_eq!(
        second["runs"][1],
        json!({"seed": "2", "run": "another", "step": 12, "tokens": 576.0, "success": 0.0})
    );
    Made { steps: 0, ..Made::default() }.put(folder.path(), "begun");
    let stderr = refused(folder.path(), &["compare", "monday", "begun"], 65);
    assert!(stderr.starts_with("report: begun: the run has no evaluation\nhint: "), "{stderr}");
    Made { steps: 8, settings: json!({"seed": "7"}), ..Made::default() }.put(folder.path(), "shorter");
    let stderr = refused(folder.path(), &["compare", "monday", "shorter"], 0);
    assert!(stderr.contains("some runs go on after step 8"), "{stderr}");
}

/// The lines of `report compare --format json`.
fn compared(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let lines = must(folder, &[&["compare", "--quiet", "--format", "json"], arguments].concat());
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A step of a made run generates 48 tokens, and every fourth one is evaluated: 192 tokens apart. The wide
/// run generates 96 a step.
#[test]
fn compare_counts_tokens_up_to_the_compared_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, steps, wide, budget: Option<&str>| {
        let mut settings = json!({"branches": if wide { "4" } else { "2" }});
        settings["tokens"] = budget.map_or(Value::Null, Value::from);
        settings.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        Made { steps, wide, settings, ..Made::default() }.put(folder.path(), name);
    };
    let at = |arguments: &[&str]| -> Vec<(Value, Value)> {
        let lines = compared(folder.path(), arguments);
        lines.iter().map(|line| (line["runs"][0]["step"].clone(), line["tokens"].clone())).collect()
    };
    put("narrow", 12, false, None);
    put("wide", 8, true, None);
    // The narrow run generated 576 tokens in all, and 384 up to the last common step.
    assert_eq!(at(&["narrow", "wide"]), [(json!(8), json!(384.0)), (json!(8), json!(768.0))]);
    // The last evaluation after a step that begins below the limit, as `--tokens` ends a run.
    assert_eq!(
        at(&["narrow", "wide", "--at-tokens", "384"]),
        [(json!(8), json!(384.0)), (json!(4), json!(384.0))]
    );
    assert_eq!(
        at(&["narrow", "wide", "--at-tokens", "337"]),
        [(json!(8), json!(384.0)), (json!(4), json!(384.0))]
    );
    assert_eq!(
        at(&["narrow", "wide", "--at-tokens", "336"]),
        [(json!(4), json!(192.0)), (json!(4), json!(384.0))]
    );
    assert_eq!(
        refused(folder.path(), &["compare", "narrow", "wide", "--at-tokens", "577"], 2),
        "report: --at-tokens 577: narrow generated 576 tokens up to its last evaluation\nhint: the most that all runs have is --at-tokens 576\n"
    );
    // Runs with a budget are compared at it, wherever they ended.
    put("narrow-budget", 8, false, Some("350"));
    put("wide-budget", 4, true, Some("350"));
    let table = must(folder.path(), &["compare", "narrow-budget", "wide-budget"]);
    assert!(table.contains("  at 350 tokens  "), "{table}");
    assert_eq!(at(&["narrow-budget", "wide-budget"]), [(json!(8), json!(384.0)), (json!(4), json!(384.0))]);
}

#[test]
fn figures_are_drawn_with_their_data_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    Made::default().put(folder.path(), "one");
    let names =
        ["success.svg", "success.pdf", "agreement.pdf", "turns-plan.svg", "time.pdf", "success-cost.png"];
    let mut arguments = vec!["one", "--quiet"];
    names.iter().for_each(|name| arguments.extend(["--figure", name]));
    let drawn = report(folder.path(), &arguments);
    let stderr = String::from_utf8_lossy(&drawn.stderr);
    if drawn.status.code() == Some(69) {
        troupe_tests::skip::not_run(&format!("no figure was drawn: {stderr}"));
        return;
    }
    assert!(drawn.status.success(), "{stderr}");
    assert!(!folder.path().join("one/report.html").exists(), "only what was asked for");
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let starts = names.map(|name| read(name)[..4].to_vec());
    assert_eq!(starts.map(|start| start[1]), [b'?', b'P', b'P', b'?', b'P', b'P'], "SVG, PDF and PNG");
    let svg = String::from_utf8(read("success.svg")).unwrap();
    for part in [">held out<", ">in training<", ">step<", ">success<"] {
        assert!(svg.contains(part), "no {part} in {svg}");
    }
    let table = String::from_utf8(read("success.csv")).unwrap();
    assert!(table.starts_with("series,step,value,low,high\nheld out,0,0.25,0.11"), "{table}");
    let pdf = read("success.pdf");
    assert!(String::from_utf8_lossy(&pdf).contains("/FontFile2"), "a TrueType font is in the file");
    assert!(!String::from_utf8_lossy(&pdf).contains("/Type3"), "which publishers refuse");
    must(folder.path(), &["one", "--figure", "success.pdf", "--quiet"]);
    assert_eq!(read("success.pdf"), pdf, "the same run, the same bytes");
}

#[test]
fn figures_that_cannot_be_drawn_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    Made::default().put(folder.path(), "one");
    let python = folder.path().join("bin/python3");
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let script = "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'matplotlib'\" >&2\nexit 1\n";
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a program");
    let install = "hint: figures are drawn by matplotlib: pip install matplotlib";
    for (figure, path, code, message) in [
        (
            "succes.pdf",
            "",
            2,
            "there is no chart called succes\nhint: a figure is called by its chart: success, success-cost, return, ",
        ),
        ("success.eps", "", 2, "not .pdf, .svg or .png\nhint: "),
        ("success.pdf", "", 69, &format!("there is no python3\n{install}")),
        ("success.pdf", "bin", 69, &format!("No module named 'matplotlib'\n{install}")),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_report"))
            .args(["one", "--quiet", "--figure", figure])
            .env("PATH", folder.path().join(path).join(if path.is_empty() { "nothing" } else { "" }))
            .current_dir(&folder)
            .output()
            .expect("report runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.starts_with("report: --figure") && stderr.contains(message), "{stderr}");
    }
}
