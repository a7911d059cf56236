//! Readers of a policy's files on damaged files: an answer or a refusal (65), never a panic, soon.
//!
//! Deterministic mutations of the goldens and of `tests/corpus/`, where an input that once did harm is kept.
//! `TROUPE_FUZZ_SECONDS=60 cargo test -p policy --test suite fuzz` runs each reader for that long instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use policy::adapter::Adapter;
use policy::config::Config;
use policy::gguf;
use policy::tokenizer::Tokenizer;
use policy::weights::{ElementType, Weights};
use record::failure::Result;
use record::philox::{Draws, Part, Stream};
use record::sample::Message;
use troupe_tests::{golden, storm};

/// Goldens and kept inputs of a file.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folders = |path: PathBuf| fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        folders(golden("")).chain(folders(golden("adapters"))).map(|path| path.join(name)).collect();
    paths.extend(folders(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)));
    if name == "model.gguf" {
        paths
            .extend(folders(golden("gguf")).filter(|path| path.extension().is_some_and(|end| end == "gguf")));
    }
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().filter_map(|path| fs::read(path).ok()).collect();
    assert!(!seeds.is_empty(), "{name}");
    seeds
}

/// Some damage to one of the seeds.
fn mutated(seeds: &[Vec<u8>], draws: &mut Draws) -> Vec<u8> {
    const NUMBERS: [&str; 10] =
        ["0", "-1", "1e999", "9999999999", "18446744073709551616", "4294967296", "0.5", "null", "[]", "\"\""];
    let mut bytes = seeds[draws.below(seeds.len() as u32) as usize].clone();
    let damages = 1 + draws.below(2) * draws.below(6);
    for _ in 0..damages {
        let length = bytes.len() as u32;
        // The beginning of a file describes the rest.
        let within = if draws.below(2) == 0 { length.min(2000) } else { length };
        let at = draws.below(within + 1) as usize;
        let end = (at + 1 + draws.below(40) as usize).min(bytes.len()).max(at);
        match draws.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
            1 if at < bytes.len() => bytes[at] = draws.below(256) as u8,
            2 => drop(bytes.drain(at..end)),
            3 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part.repeat(1 + draws.below(100) as usize));
            }
            4 => {
                let other = &seeds[draws.below(seeds.len() as u32) as usize];
                let from = draws.below(other.len() as u32 + 1) as usize;
                let part = other[from..(from + 200).min(other.len())].to_vec();
                bytes.splice(at..end, part);
            }
            5 => {
                // A number or a text of a JSON file becomes another.
                let number = NUMBERS[draws.below(NUMBERS.len() as u32) as usize];
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit).map(|digit| at + digit) {
                    let rest = bytes[digit..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    bytes.splice(digit..digit + rest, number.bytes());
                }
            }
            _ => bytes.truncate(at),
        }
    }
    bytes
}

/// Writes damaged versions of a file into an otherwise sound folder and uses them.
fn fuzz(name: &str, runs: u64, mut read: impl FnMut(&Path) -> Result<()>) {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().to_owned();
    for entry in fs::read_dir(golden("qwen3-4-2-bf16")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, files.join(path.file_name().unwrap())).unwrap();
    }
    let (seeds, path) = (seeds(name), files.join(name));
    let time = storm::fuzz_time();
    let (started, mut taken, mut number) = (Instant::now(), 0, 0);
    while time.map_or(number < runs, |time| started.elapsed() < time) {
        let mut draws = Draws::new(Stream::named(number, &[Part::Text(name), Part::Number(storm::seed())]));
        let bytes = mutated(&seeds, &mut draws);
        fs::write(&path, &bytes).unwrap();
        let began = Instant::now();
        match read(&files) {
            Ok(()) => taken += 1,
            Err(failure) => assert_eq!(failure.code, 65, "{name}, input {number}: {}", failure.message),
        }
        assert!(began.elapsed() < Duration::from_secs(70), "{name}, input {number}: {:?}", began.elapsed());
        number += 1;
    }
    eprintln!("{name}: {number} inputs, {taken} taken, {:.1?}", started.elapsed());
}

fn use_tokenizer(files: &Path) -> Result<()> {
    let tokenizer = Tokenizer::load(files)?;
    let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let ids = tokenizer.chat(&[
        message("system", "é ﷺ"),
        message("user", " walls a0\n\n12 "),
        message("assistant", ""),
    ])?;
    tokenizer.decode(&ids).map(drop)
}

#[test]
fn fuzz_safetensors() {
    fuzz("model.safetensors", 2000, |files| {
        let weights = Weights::open_file(&files.join("model.safetensors"))?;
        let _ = weights.check(&Config::load(files)?);
        Ok(())
    });
}

#[test]
fn fuzz_gguf() {
    fuzz("model.gguf", 300, |files| {
        let made = files.join("made");
        let result = gguf::policy(&made, &files.join("model.gguf"), ElementType::BF16, None);
        fs::remove_dir_all(&made).ok();
        let left = fs::read_dir(files)
            .unwrap()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().contains("made"));
        assert!(!left, "half a policy");
        result.map(drop)
    });
}

#[test]
fn fuzz_index() {
    fuzz("model.safetensors.index.json", 1000, |files| {
        fs::rename(files.join("model.safetensors"), files.join("model-00001-of-00003.safetensors")).ok();
        Weights::open(files).map(drop)
    });
}

#[test]
fn fuzz_config() {
    fuzz("config.json", 2000, |files| Config::load(files).map(|config| drop(config.tensors())));
}

#[test]
fn fuzz_adapter_config() {
    fuzz("adapter_config.json", 2000, |files| Adapter::load(files).map(drop));
}

#[test]
fn fuzz_tokenizer() {
    fuzz("tokenizer.json", 150, use_tokenizer);
}

#[test]
fn fuzz_generation_config() {
    fuzz("generation_config.json", 150, use_tokenizer);
}

#[test]
fn fuzz_chat_template() {
    fuzz("chat_template.jinja", 150, use_tokenizer);
}
