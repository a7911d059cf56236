//! What the documents name exists (files, `file::name` pairs, links with their headings), and their commands run.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use troupe_tests::{must, root, shell};

/// Names with these endings are files of the repository, also without their folder.
const SOURCES: [&str; 9] = [".rs", ".cu", ".cuh", ".cpp", ".py", ".sh", ".md", ".toml", ".c"];

fn tracked() -> BTreeSet<String> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root()).output().expect("git runs");
    let names = String::from_utf8(output.stdout).expect("names");
    names.split_terminator('\0').filter(|name| root().join(name).exists()).map(str::to_owned).collect()
}

fn documents() -> Vec<String> {
    let named = |name: &String| name.ends_with(".md") && !name.starts_with("tests/golden/");
    tracked().into_iter().filter(named).collect()
}

/// The lines of a document outside its fenced blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut outside = |line: &&str| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    };
    text.lines().filter(|line| outside(line)).collect()
}

/// The words of the inline code of a line.
fn code(line: &str) -> Vec<&str> {
    let words = line.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
    words.map(|word| word.trim_matches(|at| ",;()'\"…".contains(at))).collect()
}

/// The targets of the links of a line.
fn links(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

/// The anchor of a heading as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|at| at.is_alphanumeric() || " -_".contains(*at));
    kept.map(|at| if at == ' ' { '-' } else { at }).collect()
}

/// The fault of a word of inline code in a document that names a file of the repository.
fn missing(word: &str, folder: &Path, files: &BTreeSet<String>, created: &BTreeSet<&str>) -> Option<String> {
    let (path, name) = match word.split_once("::") {
        Some((path, name)) => (path, Some(name.trim_end_matches("()"))),
        None => (word, None),
    };
    let path = path.trim_start_matches("./").trim_end_matches('/');
    let top = path.split('/').next().unwrap_or_default();
    let own_folder = path.contains('/') && files.iter().any(|file| file.starts_with(&format!("{top}/")));
    let source = SOURCES.iter().any(|end| path.ends_with(end) && path.len() > end.len());
    let generated = path.starts_with(['/', '~', '$', '*', '<'])
        || path.starts_with("my_")
        || path.contains(['*', '{', '=']);
    if !(own_folder || source) || generated || created.contains(path) {
        return None;
    }
    let is_there = |at: &Path| {
        let at = at.to_string_lossy();
        let below = |file: &String| file.starts_with(&format!("{at}/"));
        let named = |file: &String| !at.contains('/') && file.ends_with(&format!("/{at}"));
        files.contains(at.as_ref()) || files.iter().any(|file| below(file) || named(file))
    };
    let Some(found) = [folder.join(path), PathBuf::from(path)].into_iter().find(|at| is_there(at)) else {
        return Some(format!("there is no {path}"));
    };
    let text = std::fs::read_to_string(root().join(&found)).unwrap_or_default();
    let whole =
        |name: &str| text.split(|at: char| !at.is_alphanumeric() && at != '_').any(|word| word == name);
    let name = name.filter(|name| !name.split("::").all(whole))?;
    Some(format!("{path} has no {name}"))
}

#[test]
fn every_file_that_the_documents_name_exists() {
    let files = tracked();
    let mut wrong = String::new();
    for document in documents() {
        let text = std::fs::read_to_string(root().join(&document)).expect("a document");
        let folder = Path::new(&document).parent().expect("a folder");
        let created: BTreeSet<&str> =
            text.split("Create `").skip(1).filter_map(|rest| rest.split('`').next()).collect();
        for line in prose(&text) {
            for word in code(line) {
                if let Some(problem) = missing(word, folder, &files, &created) {
                    wrong += &format!("{document}: {problem}\n");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_link_leads_somewhere() {
    let mut wrong = String::new();
    for document in documents() {
        let text = std::fs::read_to_string(root().join(&document)).expect("a document");
        let folder = root().join(&document).parent().expect("a folder").to_path_buf();
        for link in prose(&text).into_iter().flat_map(links).filter(|link| !link.starts_with("http")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root().join(&document) } else { folder.join(file) };
            let linked = std::fs::read_to_string(&target).unwrap_or_default();
            let headings: Vec<String> =
                prose(&linked).into_iter().filter(|line| line.starts_with('#')).map(anchor).collect();
            if !target.exists() || !(heading.is_empty() || headings.iter().any(|known| known == heading)) {
                wrong += &format!("{document}: {link}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "these links lead nowhere:\n{wrong}");
}

/// A block that trains by comparing candidates starts from a policy that can learn: at most half of its groups are flat.
fn learns(page: &str, block: &str, metrics: &str) {
    let lines = metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let counts = |line: Value| Some((line["groups"].as_u64()?, line["flat_groups"].as_u64()?));
    let mut updates = 0;
    for (groups, flat) in lines.filter(|line| line["type"] == "metrics").filter_map(counts) {
        updates += usize::from(groups > 0);
        assert!(2 * flat <= groups, "{page}: {flat} of {groups} groups are flat in\n{block}");
    }
    let trains = block.contains("advantage | update") || block.contains("pipeline.sh");
    let evaluates = block.contains("pipeline.sh evaluate") || block.contains("pipeline.sh setup");
    assert!(updates > 0 || !trains || evaluates, "{page}: nothing was trained in\n{block}");
}

/// Flags that make a page's `./pipeline.sh` small. They come before the page's flags.
const SMALL: &str = "--steps 2 --tasks 8 --warmup 120 --eval-tasks 6";

/// Runs the `sh` blocks of a page in `folder`, one after another, but for those that `left_out` matches.
fn run_blocks(page: &str, folder: &Path, left_out: &[&str]) {
    let text = std::fs::read_to_string(root().join(page)).expect("a page");
    for file in text.split("```toml\n# ").skip(1).filter_map(|rest| rest.split("```").next()) {
        let (name, lines) = file.split_once('\n').expect("a file's name, then its lines");
        std::fs::write(folder.join(name), lines).expect("written");
    }
    let blocks: Vec<&str> =
        text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    // A pipe without a language is shown only; what trains is in a block that is run, too.
    for shown in text.split("```\n").filter(|shown| shown.starts_with("envs ")) {
        let is_run = blocks.iter().any(|block| block.contains(shown));
        assert!(is_run, "{page} shows this, and no block that is run has it:\n{shown}");
    }
    let here = folder.display().to_string();
    for block in blocks.into_iter().filter(|block| !left_out.iter().any(|part| block.contains(part))) {
        let trained = || must(&format!("cat '{here}'/runs/*/steps/*/metrics.jsonl 2>/dev/null || true"));
        let before = trained().len();
        let output = shell(&format!("set -e; {block}")).current_dir(folder).output().expect("bash runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}: {block}\n{said}");
        let more = if trained().len() > before { trained() } else { String::new() };
        learns(page, block, &(String::from_utf8_lossy(&output.stdout).into_owned() + &more));
    }
}

/// A folder like a checkout, as far as blocks can see.
fn checkout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(root().join("examples"), folder.path().join("examples")).expect("a link");
    let script = format!("#!/bin/bash\nexec '{}/pipeline.sh' \"$@\" {SMALL}\n", root().display());
    let path = folder.path().join("pipeline.sh");
    std::fs::write(&path, script).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    folder
}

#[test]
fn the_commands_about_adapters_and_scaling_run() {
    run_blocks("docs/lora.md", checkout().path(), &[]);
    run_blocks("docs/scaling.md", checkout().path(), &[]);
}

#[test]
fn the_commands_about_environments_run() {
    run_blocks("docs/environments.md", checkout().path(), &["envs fetch"]);
    run_blocks("docs/your-environment.md", checkout().path(), &[]);
    run_blocks("docs/grading.md", checkout().path(), &[]);
    run_blocks("docs/workflows.md", checkout().path(), &["smollm2"]);
}

#[test]
fn the_commands_about_collaboration_run() {
    run_blocks("docs/joint-reward.md", checkout().path(), &[]);
}

/// README from its first command on, and pages that go on with its run.
#[test]
fn commands_of_the_readme_run_and_learn() {
    let folder = checkout();
    run_blocks("README.md", folder.path(), &["smollm2"]);
    run_blocks("docs/README.md", folder.path(), &["scripts/package/package.py"]);
    // A study of 24 runs.
    run_blocks("docs/configuration.md", folder.path(), &["study.toml"]);
    run_blocks("docs/evaluation.md", folder.path(), &["steps/*/", "--watch"]);
    run_blocks("docs/gpu.md", folder.path(), &["cuda", "gpu_pack.sh"]);
}

#[test]
fn a_file_or_a_name_that_is_gone_is_noticed() {
    let files: BTreeSet<String> =
        ["README.md", "tests/tests/suite/documents.rs"].into_iter().map(str::to_owned).collect();
    let none = BTreeSet::new();
    let missing = |word: &str| missing(word, Path::new(""), &files, &none);
    for fine in [
        "README.md",
        "tests/tests/",
        "documents.rs",
        "tests/tests/suite/documents.rs",
        "tests/tests/suite/documents.rs::missing",
        "run/tool",
        "--policy",
    ] {
        assert_eq!(missing(fine), None, "{fine}");
    }
    for gone in ["GONE.md", "tests/gone", "gone.rs", "tests/tests/suite/documents.rs::no_such_function"] {
        // The last one is named here, so it is split to be nowhere else in this file.
        assert!(missing(&gone.replace("no_such", "nosuch")).is_some(), "{gone}");
    }
    assert_eq!(code("see `a b` and `c`"), ["a", "b", "c"]);
    assert_eq!(anchor("## An environment in another language"), "an-environment-in-another-language");
}
