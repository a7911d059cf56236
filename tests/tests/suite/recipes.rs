//! The recipes in docs/recipes, each carried out on a copy of the workspace exactly as it is written: a `diff` block is
//! applied, a block after "Create `FILE`:" becomes that file, an `sh` block is run, and a `text` block is its expected output.
//!
//! The copies lie in `target/recipes`, each with the artifacts of this build.

use std::path::{Path, PathBuf};
use std::process::Command;

use troupe_tests::{outside_cargo, root, runtime};

/// One thing that a recipe tells its reader to do.
#[derive(Debug, PartialEq)]
enum Step {
    /// A new file with this text.
    Create(String, String),
    /// Hunks of a file: the text to find, and its replacement.
    Patch(String, Vec<(String, String)>),
    /// A shell script, and its expected output if shown.
    Run(String, Option<String>),
}

/// The steps of a recipe.
fn steps(document: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut created = None;
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some((_, rest)) = line.split_once("Create `") {
            created = rest.split('`').next().map(str::to_owned);
        }
        let Some(language) = line.strip_prefix("```") else { continue };
        let block: String =
            lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
        match (language, created.take(), steps.last_mut()) {
            ("diff", _, _) => steps.push(patch(&block)),
            ("sh", _, _) => steps.push(Step::Run(block, None)),
            ("text", _, Some(Step::Run(_, expected @ None))) => *expected = Some(block),
            (_, Some(path), _) => steps.push(Step::Create(path, block)),
            _ => panic!("what should be done with this block?\n{block}"),
        }
    }
    steps
}

fn patch(block: &str) -> Step {
    let mut parts = block.split("@@\n");
    let path = parts.next().and_then(|head| head.trim().strip_prefix("--- ")).expect("--- FILE");
    let side = |hunk: &str, left_out: char| -> String {
        let kept = hunk.lines().filter(|line| !line.starts_with(left_out));
        kept.map(|line| format!("{}\n", line.get(1..).unwrap_or_default())).collect()
    };
    Step::Patch(path.to_owned(), parts.map(|hunk| (side(hunk, '+'), side(hunk, '-'))).collect())
}

/// Replaces the one place of `text` that reads as `before`.
fn replaced(path: &str, text: &str, (before, after): &(String, String)) -> String {
    let count = text.matches(before.as_str()).count();
    assert_eq!(count, 1, "{path} has this {count} times; the recipe must show it as it is, once:\n{before}");
    text.replacen(before.as_str(), after, 1)
}

/// The text of a file of `tree` with each hunk applied.
fn patched(tree: &Path, path: &str, hunks: &[(String, String)]) -> String {
    let text = std::fs::read_to_string(tree.join(path)).unwrap_or_else(|_| panic!("no {path}"));
    hunks.iter().fold(text, |text, hunk| replaced(path, &text, hunk))
}

/// The folder of this test's build, `target/PROFILE`.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    test.ancestors().nth(2).expect("target/PROFILE/deps").to_path_buf()
}

/// A copy of everything that git would commit, with the artifacts that are built already: only what the recipe changes is compiled.
fn copy(name: &str) -> PathBuf {
    let built = built();
    let tree = built.parent().expect("target").join("recipes").join(name);
    if tree.exists() {
        std::fs::remove_dir_all(&tree).expect("the last copy goes");
    }
    let own = tree.join("target").join(built.file_name().expect("a profile"));
    std::fs::create_dir_all(&own).expect("a folder");
    // Times of files are kept, by which cargo sees that nothing changed. Artifacts are replaced by renaming, so links will do;
    // fingerprints and the files of build scripts are written in place.
    let copied = Command::new("bash")
        .args(["-euo", "pipefail", "-c"])
        .arg(
            "git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do \
             if [ -e \"$file\" ]; then printf '%s\\0' \"$file\"; fi; done | xargs -0 cp -a --parents -t \"$1\" && \
             cp -al \"$2/deps\" \"$3/\" && find \"$3/deps\" -name '*.d' -delete && cp -a \"$2/.fingerprint\" \"$2/build\" \"$3/\"",
        )
        .arg("bash")
        .args([&tree, &built, &own])
        .current_dir(root())
        .output()
        .expect("bash runs");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    tree
}

fn run(tree: &Path, script: &str) -> String {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script])
        .current_dir(tree)
        .env("CARGO_NET_OFFLINE", "true")
        .env("ORT_DYLIB_PATH", runtime())
        .env("ORT_DISABLE_TELEMETRY", "1")
        .env_remove("CARGO_TARGET_DIR");
    let output = outside_cargo(&mut bash).output().expect("bash runs");
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn recipe(name: &str) -> Vec<Step> {
    steps(&std::fs::read_to_string(root().join(format!("docs/recipes/{name}.md"))).expect("a recipe"))
}

/// Carries out a recipe; it must change files and run something.
fn carry_out(name: &str) {
    let steps = recipe(name);
    assert!(steps.iter().any(|step| matches!(step, Step::Run(_, Some(_)))), "{name} shows nothing");
    let tree = copy(name);
    for step in &steps {
        match step {
            Step::Create(path, text) => {
                assert!(!tree.join(path).exists(), "{path} is there already");
                std::fs::create_dir_all(tree.join(path).parent().expect("a folder")).expect("a folder");
                std::fs::write(tree.join(path), text).expect("written");
            }
            Step::Patch(path, hunks) => {
                std::fs::write(tree.join(path), patched(&tree, path, hunks)).expect("written");
            }
            Step::Run(script, expected) => {
                let printed = run(&tree, script);
                if let Some(expected) = expected {
                    assert_eq!(&printed, expected, "{name}: {script}");
                }
            }
        }
    }
}

/// The storms build and run one recipe in a sample; this finds a place that has moved in any of them.
#[test]
fn recipes_show_the_files_as_they_are() {
    let mut patches = 0;
    for file in std::fs::read_dir(root().join("docs/recipes")).expect("recipes") {
        let name = file.expect("a recipe").path().file_stem().expect("a name").to_string_lossy().into_owned();
        for step in recipe(&name) {
            match step {
                Step::Create(path, _) => {
                    assert!(!root().join(&path).exists(), "{name}: {path} is there already")
                }
                Step::Patch(path, hunks) => {
                    patched(&root(), &path, &hunks);
                    patches += 1;
                }
                Step::Run(..) => {}
            }
        }
    }
    assert!(patches >= 4, "recipes change {patches} files");
}

#[test]
#[ignore = "storm"]
fn an_environment_is_added_as_the_recipe_says() {
    carry_out("environment");
}

#[test]
#[ignore = "storm"]
fn an_estimator_is_added_as_the_recipe_says() {
    carry_out("estimator");
}

#[test]
#[ignore = "storm"]
fn a_model_family_is_added_as_the_recipe_says() {
    carry_out("model-family");
}

#[test]
#[ignore = "storm"]
fn a_stage_is_added_as_the_recipe_says() {
    carry_out("stage");
}

#[test]
#[ignore = "storm"]
fn a_kernel_is_added_as_the_recipe_says() {
    carry_out("kernel");
}

#[test]
fn steps_are_read_as_a_reader_would() {
    let document = "# One\nCreate `a/b.rs`:\n```rust\nx\n```\nIn c:\n```diff\n--- c\n@@\n k\n-l\n+m\n```\n\
                    ```sh\nrun\n```\n```text\nout\n```\n";
    let hunk = ("k\nl\n".to_owned(), "k\nm\n".to_owned());
    assert_eq!(
        steps(document),
        [
            Step::Create("a/b.rs".into(), "x\n".into()),
            Step::Patch("c".into(), vec![hunk.clone()]),
            Step::Run("run\n".into(), Some("out\n".into())),
        ]
    );
    assert_eq!(replaced("c", "j\nk\nl\n", &hunk), "j\nk\nm\n");
}

#[test]
#[should_panic(expected = "c has this 2 times")]
fn a_place_that_is_there_twice_is_no_place() {
    replaced("c", "k\nk\n", &("k\n".to_owned(), "m\n".to_owned()));
}
