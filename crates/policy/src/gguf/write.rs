//! `policy export --gguf`: a policy as a GGUF file, by the tables of the reader in the other direction.
//!
//! An adapter is merged. The file is read again before it gets its name, and refused if the reader finds another model or
//! another tokenizer in it: so what a family's keys cannot say needs no list here. As llama.cpp's converter does, vectors and
//! routers stay f32, and rows that blocks of 32 do not fill become f16. Left out: other quantizations (llama-quantize makes
//! them of an f32 file), and variables of the chat template, which the format has no key for.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use half::f16;
use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use super::architecture::{Architecture, LONG_ROPE, ROPE_FACTORS, factors};
use super::dequantize::Format;
use super::header::{self, Header};
use super::interleaved;
use super::pieces::Pieces;
use super::tensors::{self, Place};
use super::tokenizer::{self, BYTE, CONTROL, MERGES, NORMAL, TOKENS, UNKNOWN, UNUSED, USER_DEFINED};
use crate::chat;
use crate::checkpoint;
use crate::config::Config;
use crate::directory::Policy;
use crate::durable;
use crate::export::merged;
use crate::files::{io_failure, read_text, show};
use crate::json::{in_file, read_json, read_json_if_present};
use crate::mapping::Mapping;
use crate::modelfile;
use crate::rope::RopeScaling;
use crate::special_tokens::special_tokens;
use crate::tokenizer::{FILE, LARGEST, SIDE_FILE, Tokenizer};
use crate::weights::{ElementType, Weights};

const VERSION: u32 = 3;
const ALIGNMENT: usize = header::ALIGNMENT;
const HINT: &str = "export a directory instead, without --gguf";

/// Metadata on its way into the file.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    count: u64,
}

impl Keys {
    fn value(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.bytes.extend(text(key));
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
        self.count += 1;
    }

    fn integer(&mut self, key: &str, value: u64) {
        // A larger number is found when the file is read again.
        self.value(key, 4, &u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn number(&mut self, key: &str, value: f32) {
        self.value(key, 6, &value.to_le_bytes());
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.value(key, 7, &[u8::from(value)]);
    }

    fn text(&mut self, key: &str, value: &str) {
        self.value(key, 8, &text(value));
    }

    fn list(&mut self, key: &str, kind: u32, values: &[impl AsRef<[u8]>]) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| bytes.extend(value.as_ref()));
        self.value(key, header::LIST, &bytes);
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A tensor of the file.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    format: Format,
    /// The checkpoint's tensors in it, one under the other.
    parts: Vec<String>,
    /// Values that are no weights.
    values: Vec<f32>,
}

/// Writes a version of a policy, [verified](Policy::verify), to a new GGUF file, and a Modelfile for Ollama next to it. `format`
/// is that of the matrices, by default the checkpoint's type.
///
/// # Errors
/// A file is there already (2); a model or a tokenizer that the format cannot describe, a weight out of range (65); I/O (74).
pub fn export(policy: &Policy, to: &Path, format: Option<Format>) -> Result<()> {
    let beside = to.with_extension("Modelfile");
    let building = durable::place_of_new(to)?;
    durable::place_of_new(&beside)?;
    policy.verify()?;
    let place = show(&policy.root);
    let json = read_json(&policy.model().join("config.json"))?;
    let config = &policy.config;
    let format = format.unwrap_or(match config.dtype {
        ElementType::F32 => Format::F32,
        ElementType::F16 => Format::F16,
        _ => Format::BF16,
    });
    let architecture = Architecture::of_model(&json).ok_or_else(|| {
        Failure::data(format!("{place}: GGUF files of the family {} are not written", config.family))
            .hint(HINT)
    })?;
    let mut keys = Keys::default();
    keys.text("general.architecture", architecture.name);
    keys.text("general.name", &to.file_stem().unwrap_or_default().to_string_lossy());
    keys.integer("general.file_type", numbers(format).1);
    keys.integer("general.quantization_version", 2);
    settings(&mut keys, architecture, config, &json);
    let files = TextFiles::read(policy.model())?;
    let spellings = vocabulary(&mut keys, config.vocab_size, &files).map_err(|failure| failure.at(&place))?;
    let ids = files.tokenizer.stop_ids().iter();
    let stops: Vec<&str> = ids.filter_map(|&id| Some(spellings.get(id as usize)?.as_str())).collect();
    let tensors = tensors(architecture, config, &json, format);
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let bos = if files.frame()[0] { files.special_text("bos_token") } else { "" };
    let modelfile = modelfile::text(&name, &files.tokenizer, &stops, bos);
    durable::remove(&building)?;
    let written = write(&building, &keys, &tensors, policy, architecture);
    let checked = written.and_then(|()| check(&building, architecture, config, &files.json));
    checked.map_err(|failure| in_file(failure, &policy.root, HINT)).inspect_err(|_| {
        // The first failure is the one to report.
        let _ = durable::remove(&building);
    })?;
    durable::write(&beside, modelfile.as_bytes())?;
    durable::rename(&building, to)
}

/// The numbers of a format: a tensor's, a file's.
fn numbers(format: Format) -> (u32, u64) {
    match format {
        Format::F16 => (1, 1),
        Format::Q8_0 => (8, 7),
        Format::BF16 => (30, 32),
        _ => (0, 0),
    }
}

/// The architecture's keys, from which [`Architecture::config`] reads the same configuration.
fn settings(keys: &mut Keys, architecture: &Architecture, config: &Config, json: &Value) {
    let (variant, key) = (&config.variant, |key: &str| architecture.key(key));
    let positions = json["max_position_embeddings"].as_u64().unwrap_or(config.max_positions as u64);
    let windows: Vec<usize> = variant.windows.iter().flatten().copied().collect();
    keys.integer(&key("context_length"), positions);
    for (name, size) in [
        ("vocab_size", config.vocab_size),
        ("block_count", config.num_layers),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", variant.rotary_dim.unwrap_or(config.head_dim)),
    ] {
        keys.integer(&key(name), size as u64);
    }
    keys.number(&key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    keys.number(&key("rope.freq_base"), config.rope_theta);
    if let Some(&window) = windows.first() {
        keys.integer(&key("attention.sliding_window"), window as u64);
    }
    if let Some(theta) = variant.local_rope_theta {
        keys.number(&key("rope.freq_base_swa"), theta);
    }
    if let Some(global) = variant.windows.iter().position(Option::is_none).filter(|_| !windows.is_empty()) {
        keys.integer(&key("attention.sliding_window_pattern"), global as u64 + 1);
    }
    if let Some(experts) = &variant.experts {
        keys.integer(&key("expert_count"), experts.count as u64);
        keys.integer(&key("expert_used_count"), experts.per_token as u64);
        keys.integer(&key("expert_feed_forward_length"), experts.width as u64);
    }
    let original =
        |keys: &mut Keys, positions| keys.integer(&key("rope.scaling.original_context_length"), positions);
    match &config.rope_scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } | RopeScaling::Yarn { factor, .. } => {
            let linear = matches!(config.rope_scaling, RopeScaling::Linear { .. });
            keys.text(&key("rope.scaling.type"), if linear { "linear" } else { "yarn" });
            keys.number(&key("rope.scaling.factor"), *factor);
            if let Some(positions) = rope(json)["original_max_position_embeddings"].as_u64() {
                original(keys, positions);
            }
        }
        // Its factors are a tensor.
        RopeScaling::Llama3 { original_max_positions, .. } => original(keys, *original_max_positions as u64),
        RopeScaling::LongRope { attention_factor, .. } => {
            keys.number(&key("rope.scaling.attn_factor"), *attention_factor);
            original(keys, config.max_positions as u64);
        }
    }
}

/// The rotary settings of a `config.json`, in either spelling.
fn rope(json: &Value) -> &Value {
    if json["rope_parameters"].is_object() { &json["rope_parameters"] } else { &json["rope_scaling"] }
}

fn tensors(architecture: &Architecture, config: &Config, json: &Value, format: Format) -> Vec<Tensor> {
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let extra = |name: &str, values: Vec<f32>| Tensor {
        name: name.to_owned(),
        shape: vec![values.len()],
        format: Format::F32,
        parts: Vec::new(),
        values,
    };
    match config.rope_scaling {
        RopeScaling::Llama3 { .. } => tensors.push(extra(ROPE_FACTORS, factors(config))),
        RopeScaling::LongRope { .. } => tensors.extend(LONG_ROPE.iter().map(|(key, name)| {
            let divisors = rope(json)[*key].as_array().into_iter().flatten().filter_map(Value::as_f64);
            extra(name, divisors.map(|divisor| divisor as f32).collect())
        })),
        _ => {}
    }
    for stored in config.decoder().stored() {
        let place = Place::of(&stored.name, architecture);
        if let Some(&index) = known.get(&place.name) {
            tensors[index].parts.push(stored.name);
            continue;
        }
        let mut shape = stored.shape;
        let format = match shape.last() {
            _ if shape.len() == 1 || place.name.contains("ffn_gate_inp") => Format::F32,
            Some(columns) if columns % format.values() != 0 => Format::F16,
            _ => format,
        };
        if place.expert.is_some() {
            shape.insert(0, config.experts(place.layer).map_or(0, |experts| experts.count));
        }
        known.insert(place.name.clone(), tensors.len());
        tensors.push(Tensor {
            name: place.name,
            shape,
            format,
            parts: vec![stored.name],
            values: Vec::new(),
        });
    }
    tensors
}

/// Writes the header, then one tensor of the checkpoint after the other; one at a time is in memory, as f32.
fn write(
    path: &Path,
    keys: &Keys,
    tensors: &[Tensor],
    policy: &Policy,
    architecture: &Architecture,
) -> Result<()> {
    let mut head = header::MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend(keys.count.to_le_bytes());
    head.extend(&keys.bytes);
    let mut offset = 0;
    for Tensor { name, shape, format, .. } in tensors {
        head.extend(text(name));
        head.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&extent| head.extend((extent as u64).to_le_bytes()));
        head.extend(numbers(*format).0.to_le_bytes());
        head.extend((offset as u64).to_le_bytes());
        let blocks = shape.iter().product::<usize>() / format.values();
        offset += (blocks * format.bytes()).next_multiple_of(ALIGNMENT);
    }
    let mut file = durable::create(path)?;
    let mut put = |bytes: &[u8]| file.write_all(bytes).map_err(|error| durable::failure(path, &error));
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    put(&head)?;
    let base = Weights::open(policy.model())?;
    let adapter = policy.adapter()?;
    let factors = adapter.as_ref().map(|(adapter, weights)| (*adapter, &**weights));
    for tensor in tensors {
        put(&encode(tensor.format, &tensor.values))?;
        for name in &tensor.parts {
            let sum = factors.map(|factors| merged(&base, factors, name)).transpose()?.flatten();
            let mut values = sum.map_or_else(|| base.to_f32(name), Ok)?;
            if let Some(head) = architecture.interleaved_rows(name, &policy.config) {
                values = turned(&values, head, tensor.shape[1]);
            }
            let plus = architecture.offset(&tensor.shape);
            if plus != 0.0 {
                values.iter_mut().for_each(|value| *value += plus);
            }
            let bytes = encode(tensor.format, &values);
            tensor.format.dequantize(&bytes, &mut values);
            if values.iter().any(|value| !value.is_finite()) {
                let cause = format!("tensor {name:?} has a value out of the range of {:?}", tensor.format);
                return Err(Failure::data(cause).hint("choose --dtype bfloat16 or float32"));
            }
            put(&bytes)?;
        }
        let blocks = tensor.shape.iter().product::<usize>() / tensor.format.values();
        let length = blocks * tensor.format.bytes();
        put(&vec![0; length.next_multiple_of(ALIGNMENT) - length])?;
    }
    file.sync_all().map_err(|error| durable::failure(path, &error))
}

/// Rows of heads in llama.cpp's order.
fn turned(values: &[f32], head: usize, columns: usize) -> Vec<f32> {
    let mut turned = vec![0.0; values.len()];
    for (row, values) in values.chunks_exact(columns).enumerate() {
        let at = interleaved(row, head) * columns;
        turned[at..at + columns].copy_from_slice(values);
    }
    turned
}

/// Values in a format; Q8_0 as llama.cpp quantizes: blocks of 32 with the largest magnitude as 127.
fn encode(format: Format, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match format {
        Format::Q8_0 => {
            for block in values.chunks_exact(format.values()) {
                let scale = block.iter().fold(0.0, |most: f32, value| most.max(value.abs())) / 127.0;
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                bytes.extend(f16::from_f32(scale).to_le_bytes());
                bytes.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
            }
        }
        Format::F16 => drop(checkpoint::convert(values, ElementType::F16, &mut bytes)),
        Format::BF16 => drop(checkpoint::convert(values, ElementType::BF16, &mut bytes)),
        _ => drop(checkpoint::convert(values, ElementType::F32, &mut bytes)),
    }
    bytes
}

/// What a directory says of its text.
struct TextFiles {
    /// `tokenizer.json`.
    json: Value,
    special: Map<String, Value>,
    template: Option<String>,
    tokenizer: Tokenizer,
}

impl TextFiles {
    fn read(directory: &Path) -> Result<TextFiles> {
        let path = directory.join(FILE);
        let json = serde_json::from_str(&read_text(&path, LARGEST)?);
        let json = json.map_err(|error| Failure::data(format!("{}: not JSON: {error}", show(&path))))?;
        let side = read_json_if_present(&directory.join(SIDE_FILE))?.unwrap_or_default();
        let template = chat::source(directory, &side)?.map(|((default, _), _)| default);
        let special = special_tokens(directory, &side)?;
        Ok(TextFiles { json, special, template, tokenizer: Tokenizer::load(directory)? })
    }

    /// Whether a text begins, and ends, with a special token that the tokenizer adds.
    fn frame(&self) -> [bool; 2] {
        // A sequence may have other steps.
        let steps = self.json["post_processor"]["processors"].as_array().map_or(&[][..], Vec::as_slice);
        let mut steps = steps.iter().chain([&self.json["post_processor"]]);
        let frame = steps.find_map(|step| step["single"].as_array()).map_or(&[][..], Vec::as_slice);
        [frame.first(), frame.last()].map(|part| part.is_some_and(|part| part["SpecialToken"].is_object()))
    }

    /// The text of `bos_token` and the like, empty if there is none.
    fn special_text(&self, name: &str) -> &str {
        self.special.get(name).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Writes the tokenizer's keys; returns the text of each token.
fn vocabulary(keys: &mut Keys, size: usize, files: &TextFiles) -> Result<Vec<String>> {
    let json = &files.json;
    let byte_level = Pieces::of(json);
    let sentence_piece = json["model"]["byte_fallback"] == true;
    if json["model"]["type"] != "BPE" || byte_level.is_none() && !sentence_piece {
        return Err(
            Failure::data("llama.cpp has no rule that cuts texts as its tokenizer.json does").hint(HINT)
        );
    }
    let mut tokens: Vec<(String, i128)> = (0..size).map(|id| (format!("[PAD{id}]"), UNUSED)).collect();
    let mut set = |token: &str, id: &Value, kind| {
        // Tokens beyond the embedding stand for images and the like.
        if let Some(place) = id.as_u64().and_then(|id| tokens.get_mut(id as usize)) {
            *place = (token.to_owned(), kind);
        }
    };
    for (token, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
        let is_byte = sentence_piece && token.len() == 6 && token.starts_with("<0x");
        set(token, id, if is_byte { BYTE } else { NORMAL });
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let token = added["content"].as_str().unwrap_or_default();
        set(token, &added["id"], if added["special"] == true { CONTROL } else { USER_DEFINED });
    }
    let ids: HashMap<&str, usize> =
        tokens.iter().zip(0..).map(|((token, _), id)| (token.as_str(), id)).collect();
    let id = |name: &str| ids.get(files.special_text(name)).copied();
    let mut kinds: Vec<i32> = tokens.iter().map(|(_, kind)| *kind as i32).collect();
    let merges = merges(json);
    if let Some(rule) = byte_level {
        keys.text("tokenizer.ggml.model", "gpt2");
        keys.text("tokenizer.ggml.pre", rule);
        let merges: Vec<Vec<u8>> =
            merges.iter().map(|(left, right)| text(&format!("{left} {right}"))).collect();
        keys.list(MERGES, 8, &merges);
    } else {
        keys.text("tokenizer.ggml.model", "llama");
        keys.text("tokenizer.ggml.pre", "default");
        keys.flag("tokenizer.ggml.add_space_prefix", json["normalizer"].to_string().contains("Prepend"));
        if let Some(unknown) = id("unk_token") {
            kinds[unknown] = UNKNOWN as i32;
        }
        let mut scores = vec![0_f32; size];
        for (rank, (left, right)) in merges.iter().enumerate() {
            if let Some(&id) = ids.get(format!("{left}{right}").as_str()).filter(|&&id| scores[id] == 0.0) {
                scores[id] = -(rank as f32) - 1.0;
            }
        }
        keys.list(
            "tokenizer.ggml.scores",
            6,
            &scores.iter().map(|score| score.to_le_bytes()).collect::<Vec<_>>(),
        );
    }
    let texts: Vec<Vec<u8>> = tokens.iter().map(|(token, _)| text(token)).collect();
    keys.list(TOKENS, 8, &texts);
    keys.list(
        "tokenizer.ggml.token_type",
        5,
        &kinds.iter().map(|kind| kind.to_le_bytes()).collect::<Vec<_>>(),
    );
    let stops =
        ["eos", "eot", "eom"].into_iter().zip(files.tokenizer.stop_ids().iter().map(|&id| id as usize));
    let others = [("bos", "bos_token"), ("padding", "pad_token"), ("unknown", "unk_token")];
    let others = others.into_iter().filter_map(|(name, key)| Some((name, id(key)?)));
    for (name, id) in stops.chain(others) {
        keys.integer(&format!("tokenizer.ggml.{name}_token_id"), id as u64);
    }
    let [begins, ends] = files.frame();
    keys.flag("tokenizer.ggml.add_bos_token", begins);
    keys.flag("tokenizer.ggml.add_eos_token", ends);
    if let Some(template) = &files.template {
        keys.text("tokenizer.chat_template", template);
    }
    Ok(tokens.into_iter().map(|(token, _)| token).collect())
}

/// The merges of a `tokenizer.json`, in either spelling.
fn merges(json: &Value) -> Vec<(&str, &str)> {
    let merges = json["model"]["merges"].as_array().into_iter().flatten();
    merges
        .filter_map(|merge| match merge.as_str() {
            Some(text) => text.split_once(' '),
            None => Some((merge[0].as_str()?, merge[1].as_str()?)),
        })
        .collect()
}

/// Refuses a file in which the reader finds another model or another tokenizer.
fn check(path: &Path, architecture: &Architecture, config: &Config, tokenizer: &Value) -> Result<()> {
    let file = File::open(path).map_err(|error| io_failure(path, &error))?;
    let map = Mapping::of(&file).map_err(|error| io_failure(path, &error))?;
    let header = Header::parse(&map)?;
    let found = Config::from_value(&architecture.config(&header, config.dtype)?, path)?;
    // Mistral's files are Llama's.
    let found = Config { family: config.family, ..found };
    let [found, expected] = [&found, config].map(|config| format!("{config:#?}"));
    if let Some((_, setting)) =
        found.lines().zip(expected.lines()).find(|(found, expected)| found != expected)
    {
        let (setting, name) = (setting.trim().trim_end_matches(','), architecture.name);
        return Err(Failure::data(format!("GGUF files of {name} cannot say {setting:?}")).hint(HINT));
    }
    tensors::sources(architecture, &header, config)?;
    let files = tokenizer::files(&header, config.vocab_size, config.max_positions)?;
    let [found, expected] =
        [&files.tokenizer, tokenizer].map(|json| merges(json).into_iter().collect::<HashSet<_>>());
    let known = files.tokenizer["model"]["vocab"].as_object();
    let missing = tokenizer["model"]["vocab"].as_object().into_iter().flatten().find(|(token, id)| {
        id.as_u64().is_some_and(|id| (id as usize) < config.vocab_size)
            && known.is_none_or(|known| known.get(*token) != Some(id))
    });
    match missing {
        Some((token, _)) => {
            Err(Failure::data(format!("tokenizer.json has the token {token:?} twice")).hint(HINT))
        }
        None if found != expected => {
            Err(Failure::data("its merges do not follow from scores of tokens, as llama.cpp's do").hint(HINT))
        }
        None => Ok(()),
    }
}
