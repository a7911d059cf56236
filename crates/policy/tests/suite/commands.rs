//! The program as a user sees it.

use std::io::Write;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use troupe_tests::program::{self, lines, run_on};

use crate::{command, told};

fn run(directory: &Path, arguments: &[&str], input: &str) -> Output {
    run_on(&mut command(directory, arguments), input)
}

const SAMPLE: &str = r#"{"type":"sample","v":1,"id":"d/0","agent":"tool","prompt":[{"role":"user","content":"walls a0 at e3 tool"}],"completion":" d3 c3","extra":1.50}"#;
const END: &str = r#"{"type":"end","v":1,"stage":"envs","ok":true}"#;

#[test]
fn encode_adds_ids_and_leaves_the_rest_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "p");
    let other = r#"{"type":"note","v":1,"text":"é  "}"#;
    let known = r#"{"type":"sample","v":1,"id":"d/1","agent":"tool","prompt_ids":[1],"completion_ids":[2]}"#;
    let cut = SAMPLE.replace("d/0", "d/2").replace(r#","extra""#, r#","finish_reason":"length","extra""#);
    let input = format!("{other}\n{SAMPLE}\n{known}\n{cut}\n{END}\n");
    let output = run(directory.path(), &["encode", "--policy", "p"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    assert_eq!(told(&output), "policy: 2 of 3 samples encoded\n");

    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let text: Vec<&str> = text.lines().collect();
    assert_eq!((text[0], text[2]), (other, known));
    let added = format!(
        r#","prompt_ids":[2,386,261,367,304,370,3],"completion_ids":[294,284,4],"policy_version":"{}"}}"#,
        policy.version
    );
    assert_eq!(text[1], format!("{}{added}", SAMPLE.strip_suffix('}').unwrap()));
    let lines = lines(&program::text(&output.stdout));
    assert_eq!(
        lines[3]["completion_ids"],
        json!([294, 284]),
        "a completion that was cut short has no stop token"
    );
    assert_eq!((&lines[4]["stage"], &lines[4]["ok"]), (&json!("encode"), &json!(true)));
    assert_eq!(lines[4]["counts"], json!({"samples": 3, "encoded": 2}));
    assert_eq!(lines[4]["after"][0]["stage"], "envs");
}

#[test]
fn encode_serves_each_agent_with_its_policy_and_passes_the_others() {
    let directory = tempfile::tempdir().unwrap();
    crate::tiny(directory.path(), "a");
    let planner = SAMPLE.replace("tool\",\"prompt", "planner\",\"prompt").replace("d/0", "d/1");
    let input = format!("{SAMPLE}\n{planner}\n{END}\n");
    let output = run(directory.path(), &["encode", "--quiet", "--policy", "planner=a"], &input);
    assert_eq!((output.status.code(), told(&output).as_str()), (Some(0), ""));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with(&format!("{SAMPLE}\n")));
    assert_eq!(lines(&program::text(&output.stdout))[1]["completion_ids"], json!([294, 284, 4]));
}

#[test]
fn encode_refuses_with_the_place_and_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    crate::tiny(directory.path(), "p");
    let sample = |change: fn(String) -> String| format!("{}\n{END}\n", change(SAMPLE.to_owned()));
    let cases = [
        (SAMPLE.to_owned(), 65, "stdin ended without an `end` line"),
        (sample(|s| s.replace(r#""agent":"tool","#, "")), 65, "policy: stdin:1: d/0: `agent` is missing"),
        (sample(|s| s.replace("completion", "answer")), 65, "policy: stdin:1: d/0: `completion` is missing"),
        (sample(|s| s.replace("\"user\"", "\"judge\"")), 65, "roles are system, user and assistant"),
        (
            sample(|s| s.replace("\"extra\":1.50", "\"prompt_ids\":[1]")),
            65,
            "has only one of prompt_ids and completion_ids",
        ),
        (
            sample(|s| s.replace("\"extra\":1.50", "\"policy_version\":\"1:00000000\"")),
            65,
            "`policy_version` is already present",
        ),
        (sample(|s| format!("{s}\n{s}")), 65, "this id was already on line 1"),
    ];
    for (input, code, expected) in cases {
        let output = run(directory.path(), &["encode", "--policy", "p"], &input);
        assert_eq!(output.status.code(), Some(code), "{}", told(&output));
        assert!(told(&output).contains(expected), "{} instead of {expected}", told(&output));
        let last = String::from_utf8(output.stdout).unwrap().lines().last().map(str::to_owned);
        let end: Value = serde_json::from_str(&last.expect("an `end` line")).unwrap();
        assert_eq!((&end["type"], &end["ok"]), (&json!("end"), &json!(false)));
        assert!(
            end["error"]
                .as_str()
                .is_some_and(|error| error.contains(expected.trim_start_matches("policy: ")))
        );
    }
    let output = run(directory.path(), &["encode", "--policy", "p", "--allow-incomplete"], SAMPLE);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    assert_eq!(
        run(directory.path(), &["encode", "--policy", "x=p", "--policy", "x=p"], "").status.code(),
        Some(2)
    );
    assert_eq!(run(directory.path(), &["encode", "--policy", "absent"], "").status.code(), Some(2));
}

#[test]
fn init_check_and_graph() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let made = run(here, &["init", "p", "--preset", "tiny", "--seed", "7"], "");
    assert_eq!(made.status.code(), Some(0), "{}", told(&made));
    let version = crate::tiny(here, "same").version.to_string();
    assert_eq!(String::from_utf8_lossy(&made.stdout), format!("p {version}\n"));
    let checked = run(here, &["check", "p"], "");
    assert_eq!(checked.status.code(), Some(0), "{}", told(&checked));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("Qwen3, 354048 weights, F32"));
    let copied = run(here, &["init", "copy", "--from", "p"], "");
    assert_eq!(String::from_utf8_lossy(&copied.stdout), format!("copy {version}\n"));
    assert_eq!(told(&copied), "");
    let stray = here.join("copy/step-000000");
    std::fs::write(stray.join("model.gguf"), "").unwrap();
    std::fs::write(stray.join("pytorch_model.bin"), "").unwrap();
    std::fs::write(stray.join(".gitattributes"), "").unwrap();
    let copied = run(here, &["init", "copied", "--from", "copy"], "");
    let expected = "policy: copy: left out: .gitattributes (hidden); model.gguf, pytorch_model.bin (weights or \
                    training state that is not read)\n";
    assert_eq!((copied.status.code(), told(&copied).as_str()), (Some(0), expected));

    let graph = run(here, &["graph", "p", "--output", "out.onnx", "--kind", "shared-prefix"], "");
    assert_eq!(String::from_utf8_lossy(&graph.stdout), "out.onnx\n", "{}", told(&graph));
    let model = std::fs::read(here.join("out.onnx")).unwrap();
    assert!(model.windows(21).any(|window| window == b"SharedPrefixAttention"));

    for (arguments, code) in [
        (&["init", "p", "--preset", "tiny"][..], 2),
        (&["init", "q", "--preset", "huge"], 2),
        (&["init", "q"], 2),
        (&["init", "q", "--preset", "tiny", "--from", "p"], 2),
        (&["init", "q", "--from", "absent"], 2),
        (&["check", "absent"], 2),
        (&["graph", "p", "--output", "/nowhere/out.onnx"], 74),
        (&["nonsense"], 2),
        (&[], 2),
    ] {
        let output = run(here, arguments, "");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", told(&output));
        assert!(told(&output).starts_with("policy: "), "{}", told(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(!here.join("q").exists());
}

#[test]
fn every_golden_checkpoint_is_checked_and_copied() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut families = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(goldens).unwrap() {
        let golden = entry.unwrap().path();
        if !golden.join("config.json").exists() {
            continue;
        }
        let (source, name) = (golden.to_str().unwrap(), golden.file_name().unwrap().to_str().unwrap());
        let checked = run(here, &["check", source], "");
        assert_eq!(checked.status.code(), Some(0), "{name}: {}", told(&checked));
        let text = String::from_utf8(checked.stdout).unwrap();
        let (version, family) = (text.lines().next().unwrap(), text.lines().nth(2).unwrap());
        families.insert(family.split_whitespace().nth(1).unwrap().trim_end_matches(',').to_owned());
        let copied = run(here, &["init", name, "--from", source], "");
        assert_eq!(copied.status.code(), Some(0), "{name}: {}", told(&copied));
        let again = String::from_utf8(run(here, &["check", name], "").stdout).unwrap();
        assert_eq!(again.lines().next(), Some(version), "{name}");
        assert_eq!(again.lines().skip(2).collect::<Vec<_>>(), text.lines().skip(2).collect::<Vec<_>>());
    }
    assert_eq!(
        Vec::from_iter(families),
        ["Gemma3", "Llama", "Mistral", "Phi3", "Qwen2", "Qwen3", "Qwen3MoE", "SmolLM3"]
    );
}

/// A run over a policy directory costs no second copy of its weights; a directory that may be edited does.
#[test]
fn weights_that_never_change_are_linked() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let version = crate::tiny(here, "base").files;
    let links = |policy: &str| {
        let weights = here.join(policy).join("step-000000/model.safetensors");
        std::fs::metadata(weights).unwrap().nlink()
    };
    assert_eq!(run(here, &["init", "again", "--from", "base"], "").status.code(), Some(0));
    assert_eq!((links("again"), links("base")), (2, 2));
    // A plain Hugging Face directory with these files, which is not ours to change.
    std::fs::create_dir(here.join("found")).unwrap();
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ] {
        std::fs::copy(version.join(name), here.join("found").join(name)).unwrap();
    }
    assert_eq!(run(here, &["init", "copy", "--from", "found"], "").status.code(), Some(0));
    assert_eq!(links("copy"), 1);
    // A hub's cache names a file by its content.
    std::fs::create_dir_all(here.join("hub/blobs")).unwrap();
    std::fs::rename(here.join("found/model.safetensors"), here.join("hub/blobs/abc")).unwrap();
    std::os::unix::fs::symlink("../hub/blobs/abc", here.join("found/model.safetensors")).unwrap();
    assert_eq!(run(here, &["init", "cached", "--from", "found"], "").status.code(), Some(0));
    assert_eq!(links("cached"), 2);
}

#[test]
fn check_finds_values_that_are_no_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "p");
    let path = policy.files.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    std::fs::remove_file(policy.files.join("version.json")).unwrap();
    let output = run(directory.path(), &["check", "p"], "");
    assert_eq!(output.status.code(), Some(65));
    assert!(told(&output).contains("is not finite at element"), "{}", told(&output));
    for arguments in [&["init", "q", "--from", "p"][..], &["init", "q", "--from", "p/step-000000"]] {
        let output = run(directory.path(), arguments, "");
        assert_eq!(output.status.code(), Some(65));
        assert!(told(&output).contains("is not finite at element"), "{}", told(&output));
    }
    assert!(!directory.path().join("q").exists() && !directory.path().join(".q.new").exists());
}

/// Gemma 3 1B as published has a token for images and no row for it.
#[test]
fn a_token_that_was_added_may_lie_beyond_the_embedding() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "p");
    let path = policy.files.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut token = tokenizer["added_tokens"][0].clone();
    (token["id"], token["content"]) = (json!(512), json!("<image_soft>"));
    tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let output = run(directory.path(), &["check", "p/step-000000"], "");
    assert!(output.status.success(), "{}", told(&output));
    tokenizer["model"]["vocab"]["another"] = json!(513);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let output = run(directory.path(), &["check", "p/step-000000"], "");
    assert_eq!(output.status.code(), Some(65));
    assert!(told(&output).contains("token 513 of tokenizer.json is outside"), "{}", told(&output));
}

#[test]
fn large_weights_are_hashed_once() {
    let directory = tempfile::tempdir().unwrap();
    let plain = crate::tiny(directory.path(), "p").files;
    std::os::unix::fs::symlink("p/step-000000", directory.path().join("plain")).unwrap();
    std::fs::rename(directory.path().join("p/current"), directory.path().join("p/unlinked")).unwrap();
    std::fs::remove_file(plain.join("version.json")).unwrap();
    // One more tensor, which no model asks for, makes the file large.
    let old = std::fs::read(plain.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let (text, data) = old[8..].split_at(length);
    let (mut header, size) = (serde_json::from_slice::<Value>(text).unwrap(), 70 << 20);
    header["a"] = json!({"dtype": "U8", "shape": [size], "data_offsets": [data.len(), data.len() + size]});
    let mut bytes = header.to_string().into_bytes();
    bytes.splice(..0, (bytes.len() as u64).to_le_bytes());
    bytes.extend(data);
    std::fs::remove_file(plain.join("model.safetensors")).unwrap();
    let mut file = std::fs::File::create(plain.join("model.safetensors")).unwrap();
    file.write_all(&bytes).unwrap();
    file.set_len((bytes.len() + size) as u64).unwrap();
    let expected =
        blake3::Hasher::new().update(&bytes).update(&vec![0; size]).finalize().to_hex().to_string();

    let cache = directory.path().join("cache/troupe/digests");
    let remembered = || {
        let output = run(directory.path(), &["check", "plain"], "");
        assert!(output.status.success(), "{}", told(&output));
        let entries = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (std::fs::read_to_string(&path).unwrap(), path)).collect::<Vec<_>>()
    };
    let first = remembered();
    assert_eq!(first.iter().map(|(digest, _)| digest.as_str()).collect::<Vec<_>>(), [expected.as_str()]);
    assert_eq!(remembered(), first);
    std::fs::write(&first[0].1, "damaged").unwrap();
    assert_eq!(remembered(), first, "a damaged entry is made again");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(remembered().len(), 2, "a changed file is hashed again");
}

#[test]
fn help_begins_with_examples_and_version_works() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [
        &["--help"][..],
        &["init", "--help"],
        &["encode", "--help"],
        &["check", "--help"],
        &["export", "--help"],
        &["graph", "--help"],
    ] {
        let output = run(directory.path(), arguments, "");
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        let (examples, usage) = (text.find("Examples:\n  "), text.find("Usage:"));
        assert!(examples.is_some() && examples < usage, "{text}");
        assert!(text.lines().count() < 44, "{text}");
    }
    let output = run(directory.path(), &["--quiet", "init", "p", "--preset", "tiny"], "");
    assert_eq!(
        (output.status.code(), told(&output)),
        (Some(0), String::new()),
        "every program takes --quiet"
    );
    let output = run(directory.path(), &["--version"], "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("policy {}\n", env!("CARGO_PKG_VERSION")));
}
