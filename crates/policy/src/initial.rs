//! New policies: random weights from a seed, or a copy of a Hugging Face directory.
//!
//! Every tensor draws from a random stream named after it, so its values depend on the seed and its name alone.

use std::path::Path;

use record::failure::{Failure, Result};
use record::philox::{Part, Stream};
use serde_json::{Value, json};

use crate::adapter::{self, Adapter};
use crate::chat;
use crate::checkpoint::{self, Data, NewTensor};
use crate::config::Config;
use crate::decoder::{Init, Stored, Target, Tensor};
use crate::directory::{FrozenBase, Policy};
use crate::durable;
use crate::files::{io_failure, show};
use crate::hub::HubModel;
use crate::json::read_json;
use crate::publish;
use crate::side_files;
use crate::tokenizer::Tokenizer;
use crate::vocabulary;
use crate::weights::{ElementType, SINGLE, Weights};

/// A model small enough to train on a laptop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// 0.35 million weights: learns small boards in minutes
    Tiny,
    /// 3.3 million weights: the model that speed is measured on
    Bench,
}

impl Preset {
    fn config(self) -> Value {
        let (hidden, intermediate, layers, heads, key_heads, head_dim) = match self {
            Preset::Tiny => (96, 256, 3, 6, 3, 16),
            Preset::Bench => (256, 768, 4, 4, 2, 64),
        };
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "use_sliding_window": false,
            "tie_word_embeddings": true,
            "torch_dtype": "float32",
            "vocab_size": vocabulary::SIZE,
        })
    }
}

/// Refuses to overwrite an existing path; creates the parent folder.
///
/// # Errors
/// `root` exists already (exit 2); I/O errors.
pub fn refuse_occupied(root: &Path) -> Result<()> {
    durable::place_of_new(root).map(drop)
}

/// A policy directory with random weights in a preset's sizes and the tokenizer of [`crate::vocabulary`].
///
/// # Errors
/// `root` exists already (exit 2); the disk's.
pub fn from_preset(root: &Path, preset: Preset, seed: u64) -> Result<Policy> {
    random(root, preset.config(), Path::new("preset"), seed)
}

/// A new policy in the sizes of a `config.json`, with the special tokens of the new tokenizer.
///
/// # Errors
/// A configuration that is not implemented or whose vocabulary is smaller than the tokenizer's.
pub fn from_config(root: &Path, config: &Path, seed: u64) -> Result<Policy> {
    random(root, read_json(config)?, config, seed)
}

/// A policy directory whose version 0 is a copy of a Hugging Face directory; weights that never change are linked. `template` holds further variables of the chat
/// template, such as `{"enable_thinking": false}` for Qwen3.
///
/// # Errors
/// The directory holds no policy that can be run; template variables that are not an object; the disk's.
pub fn from_directory(root: &Path, source: &Path, template: Option<&Value>) -> Result<Policy> {
    check_variables(template)?;
    let source = Policy::open(source)?;
    let weights = source.weights()?;
    Tokenizer::load(source.model())?;
    if let Some((adapter, weights)) = source.adapter()? {
        check_finite(&weights, &adapter.tensors(&source.config))?;
        if template.is_some() {
            return Err(Failure::usage("--chat-template-kwargs: an adapter uses its base's chat template"));
        }
        return publish::create(root, source.base.as_ref(), |files| {
            side_files::copy(&source.files, files)?;
            durable::copy(&source.files.join(adapter::WEIGHTS), &files.join(adapter::WEIGHTS))
        });
    }
    check_finite(&weights, &source.config.tensors())?;
    publish::create(root, None, |files| {
        side_files::copy(&source.files, files)?;
        if let Some((path, note)) = HubModel::note(&source.files, files)? {
            durable::write_json(&path, &note)?;
        }
        if let Some(variables) = template {
            let path = files.join(chat::ARGUMENTS);
            durable::remove(&path)?;
            durable::write_json(&path, variables)?;
        }
        for (path, _) in weights.files() {
            let to = files.join(path.file_name().unwrap_or_default());
            match is_kept(&source, path)? {
                true => durable::link(path, &to)?,
                false => durable::copy(path, &to)?,
            }
        }
        Ok(())
    })
}

/// Returns true if a weight file never changes: a published version's, or a file of a hub's cache, named by its content.
fn is_kept(source: &Policy, path: &Path) -> Result<bool> {
    let canonical = path.canonicalize().map_err(|error| io_failure(path, &error))?;
    let is_blob = canonical.parent().and_then(Path::file_name).is_some_and(|folder| folder == "blobs");
    Ok(is_blob || source.is_writable_layout())
}

fn check_finite(weights: &Weights, tensors: &[Tensor]) -> Result<()> {
    tensors.iter().try_for_each(|tensor| weights.check_finite(&tensor.name))
}

/// Refuses variables of the chat template that are not an object.
pub(crate) fn check_variables(template: Option<&Value>) -> Result<()> {
    match template.and_then(|variables| chat::check_arguments(variables).err()) {
        None => Ok(()),
        Some(cause) => Err(Failure::usage(format!("--chat-template-kwargs: {cause}"))
            .hint("for example --chat-template-kwargs '{\"enable_thinking\": false}'")),
    }
}

/// A policy directory whose version 0 is a new adapter over the model in `base`. Until it is trained, it computes the same as
/// the base.
///
/// # Errors
/// `base` holds no policy that can be run, or is an adapter itself (2); the disk's.
pub fn from_base(root: &Path, base: &Path, adapter: &Adapter, seed: u64) -> Result<Policy> {
    let base = Policy::open(base)?;
    if base.base.is_some() {
        return Err(Failure::usage(format!("{}: is an adapter itself", show(&base.root)))
            .hint("the base of an adapter is a whole model: name the base of this one"));
    }
    base.weights()?;
    let config = &base.config;
    Tokenizer::load(&base.files)?;
    let mut adapter = Adapter { base: show(&base.files), ..adapter.clone() };
    // All modules, whatever they are called in this family.
    if adapter.targets == Target::ALL {
        adapter.targets = config.targets().to_vec();
    }
    adapter.check_targets(config)?;
    let canonical = base.files.canonicalize().map_err(|error| io_failure(&base.files, &error))?;
    let frozen = FrozenBase { files: canonical, digest: base.digest.clone() };
    publish::create(root, Some(&frozen), |files| {
        durable::write_json(&files.join(adapter::CONFIG), &adapter.to_json())?;
        let tensors = adapter.tensors(config);
        let whole = |tensor| Stored::from(tensor);
        write(
            &files.join(adapter::WEIGHTS),
            &Vec::from_iter(tensors.iter().map(whole)),
            ElementType::F32,
            seed,
        )
    })
}

fn random(root: &Path, mut json: Value, path: &Path, seed: u64) -> Result<Policy> {
    if let Some(object) = json.as_object_mut() {
        object.insert("pad_token_id".to_owned(), json!(vocabulary::PAD));
        object.insert("eos_token_id".to_owned(), json!(vocabulary::END));
        object.insert("bos_token_id".to_owned(), Value::Null);
    }
    let config = Config::from_value(&json, path)?;
    if config.vocab_size < vocabulary::SIZE {
        let size = vocabulary::SIZE;
        return Err(Failure::usage(format!(
            "{}: vocab_size is {}, fewer than {size}",
            show(path),
            config.vocab_size
        ))
        .hint(format!("the tokenizer that comes with a new policy has {size} tokens")));
    }
    let tensors = config.tensors();
    refuse_more_than_memory(&tensors, path)?;
    publish::create(root, None, |files| {
        let side_files = [
            ("config.json", json),
            ("generation_config.json", vocabulary::generation_config()),
            ("tokenizer.json", vocabulary::tokenizer()),
            ("tokenizer_config.json", vocabulary::tokenizer_config(config.max_positions)),
        ];
        for (name, value) in side_files {
            durable::write_json(&files.join(name), &value)?;
        }
        write(&files.join(SINGLE), &config.decoder().stored(), config.dtype, seed)
    })
}

/// Refuses sizes whose random weights, which are generated in memory, do not fit there.
fn refuse_more_than_memory(tensors: &[Tensor], path: &Path) -> Result<()> {
    let weights = |tensor: &Tensor| tensor.shape.iter().map(|&extent| extent as u128).product::<u128>();
    let bytes = 4 * tensors.iter().map(weights).sum::<u128>();
    // Linux's estimate of what can be allocated without swapping.
    let information = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u128>().ok());
    match available.map(|kibibytes| kibibytes * 1024).filter(|&available| bytes > available) {
        None => Ok(()),
        Some(available) => Err(Failure::work(format!(
            "{}: random weights of this size take {} MiB, and {} MiB are free",
            show(path),
            bytes >> 20,
            available >> 20
        ))
        .hint("choose a smaller model, or start from a checkpoint with --from")),
    }
}

/// Writes tensors with their initial values.
fn write(path: &Path, tensors: &[Stored], dtype: ElementType, seed: u64) -> Result<()> {
    let of =
        |stored: &Stored| -> Vec<f32> { stored.parts.iter().flat_map(|part| values(part, seed)).collect() };
    let values: Vec<Vec<f32>> = tensors.iter().map(of).collect();
    let new = tensors.iter().zip(&values);
    let new =
        new.map(|(Stored { name, shape, .. }, values)| NewTensor { name, shape, data: Data::F32(values) });
    checkpoint::write(path, &new.collect::<Vec<NewTensor>>(), |_| dtype).map(drop)
}

fn values(tensor: &Tensor, seed: u64) -> Vec<f32> {
    let (count, name) = (tensor.count(), Part::Text(&tensor.name));
    match tensor.init {
        Init::Ones => vec![1.0; count],
        Init::Zeros => vec![0.0; count],
        Init::Normal(deviation) => {
            let stream = Stream::named(seed, &[Part::Text("initial weights"), name]);
            let blocks = 0..count.div_ceil(4) as u64;
            blocks.flat_map(|block| normals(stream.block(block), deviation)).take(count).collect()
        }
        Init::Uniform(bound) => {
            let stream = Stream::named(seed, &[Part::Text("initial adapter"), name]);
            (0..count as u64).map(|index| (2.0 * stream.uniform(index) - 1.0) * bound).collect()
        }
    }
}

/// Four normal values from four random words, by the transform of Box and Muller (1958).
fn normals(words: [u32; 4], deviation: f64) -> [f32; 4] {
    let pair = |first: u32, second: u32| {
        // In (0, 1]: the logarithm of 0 is no number.
        let radius = (-2.0 * ((f64::from(first) + 1.0) / 4_294_967_296.0).ln()).sqrt() * deviation;
        let angle = std::f64::consts::TAU * f64::from(second) / 4_294_967_296.0;
        [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
    };
    let [first, second] = pair(words[0], words[1]);
    let [third, fourth] = pair(words[2], words[3]);
    [first, second, third, fourth]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_their_moments() {
        let stream = Stream::named(1, &[]);
        let values: Vec<f64> =
            (0..50_000).flat_map(|at| normals(stream.block(at), 0.5)).map(f64::from).collect();
        let count = values.len() as f64;
        let moment = |power: i32| values.iter().map(|value| value.powi(power)).sum::<f64>() / count;
        println!("mean {} variance {} fourth {}", moment(1), moment(2), moment(4));
        // Five standard errors of each estimate.
        assert!(moment(1).abs() < 5.0 * 0.5 / count.sqrt());
        assert!((moment(2) - 0.25).abs() < 5.0 * 0.25 * (2.0 / count).sqrt());
        assert!((moment(4) - 3.0 / 16.0).abs() < 5.0 * (96.0 / 256.0 / count).sqrt());
        assert!(normals([0; 4], 1.0).iter().all(|value| value.is_finite()));
    }
}
