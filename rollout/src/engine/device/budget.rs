//! Device memory for the KV cache.
//!
//! A device's free memory, or what `--device-memory` allows, is divided among its models. Each keeps weights, adapters, a run's
//! activations and a reserve; the rest is its KV cache. A device that cannot hold one sequence is refused at once, with the
//! numbers.

use super::adapters::Adapters;
use super::config::{Activation, Capacity};
use super::runner::arena_bytes;
use device::Memory;
use policy::config::Config;
use policy::graph;
use record::failure::{Failure, Result};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The most sequences in one run: `PagedAttention` scans their lengths in one block of 256 threads.
pub const SEQUENCES: usize = 256;
/// The most prompt tokens in one run. Beyond a few thousand rows the products are as fast as they get.
pub const PROMPT_TOKENS: usize = 4096;
/// ONNX Runtime's arena doubles in size, in total up to this many times what a run needs at once.
const ARENA_FACTOR: u64 = 3;
/// Left to the driver, to CUDA graphs, and to libraries that load lazily.
const RESERVE: u64 = 1 << 30;

/// The most that the models of a process may take of each device, as `--device-memory` names it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryLimit {
    Bytes(u64),
    /// Of all the memory of the device.
    Percent(f64),
}

impl MemoryLimit {
    const FLAG: &str = "--device-memory";

    /// Parses gigabytes (10^9 bytes), or a share as `50%`.
    pub fn parse(text: &str) -> Result<MemoryLimit> {
        let refuse = |cause: &str| {
            Err(Failure::usage(format!("{} {text}: {cause}", Self::FLAG))
                .hint("40 are 40 GB (10^9 bytes) of each device, 50% is half of it"))
        };
        let number =
            |digits: &str| digits.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
        match (text.strip_suffix('%').map(number), number(text)) {
            (Some(Some(percent)), _) if percent <= 100.0 => Ok(MemoryLimit::Percent(percent)),
            (Some(Some(_)), _) => refuse("more than the whole device"),
            (None, Some(gigabytes)) => Ok(MemoryLimit::Bytes((gigabytes * 1e9) as u64)),
            _ => refuse("neither gigabytes nor a share"),
        }
    }

    fn bytes(self, total: u64) -> u64 {
        match self {
            MemoryLimit::Bytes(bytes) => bytes,
            MemoryLimit::Percent(percent) => (total as f64 * percent / 100.0) as u64,
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Bytes(bytes) => write!(formatter, "{} {}", Self::FLAG, *bytes as f64 / 1e9),
            MemoryLimit::Percent(percent) => write!(formatter, "{} {percent}%", Self::FLAG),
        }
    }
}

/// A device's memory while its models are opened one after another.
pub struct DeviceBudget {
    limit: Option<MemoryLimit>,
    taken: Mutex<Taken>,
}

/// Memory of the opened models, and the number of models to come.
struct Taken {
    models: u64,
    /// Bytes that are allocated: they are no longer free.
    arenas: u64,
    /// Bytes that opened models will allocate when they run, and their reserves.
    later: u64,
}

impl DeviceBudget {
    /// The memory of a device for `models` models.
    pub fn new(limit: Option<MemoryLimit>, models: usize) -> DeviceBudget {
        let taken = Taken { models: models.max(1) as u64, arenas: 0, later: 0 };
        DeviceBudget { limit, taken: Mutex::new(taken) }
    }

    /// The next model's capacity, of an even part of the memory that no earlier model has or will need. `sessions` of its sessions
    /// run prompts.
    pub fn next<T: Activation>(
        &self,
        config: &Config,
        adapters: &Adapters,
        sessions: usize,
        memory: Memory,
        at: &str,
    ) -> Result<Capacity> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = memory.free.saturating_sub(taken.later);
        let limit =
            self.limit.map(|limit| limit.bytes(memory.total).saturating_sub(taken.arenas + taken.later));
        let own = limit.map_or(free, |limit| limit.min(free)) / taken.models;
        let is_limit = limit.is_some_and(|limit| limit < free);
        let named = match self.limit.filter(|_| is_limit) {
            Some(limit) => format!("{at}, {limit}"),
            None => at.to_owned(),
        };
        let capacity =
            capacity::<T>(config, adapters, sessions, own, &named).map_err(|failure| match is_limit {
                true => {
                    failure.hint("a higher --device-memory, a smaller policy, or one policy for all agents")
                }
                false => failure,
            })?;
        taken.models = (taken.models - 1).max(1);
        taken.arenas += arena_bytes::<T>(config, adapters, &capacity);
        taken.later += later::<T>(config, adapters, sessions, capacity.rows);
        Ok(capacity)
    }
}

/// Bytes outside the arena: a run's activations, and the reserve of each model.
fn later<T: Activation>(config: &Config, adapters: &Adapters, sessions: usize, rows: usize) -> u64 {
    // One session runs the newest token of each sequence.
    ARENA_FACTOR * activations::<T>(config, adapters, sessions * rows + SEQUENCES) + RESERVE
}

/// The capacity of a policy that has `free` bytes.
///
/// # Errors
/// 69: not even one sequence of full length fits.
fn capacity<T: Activation>(
    config: &Config,
    adapters: &Adapters,
    sessions: usize,
    free: u64,
    at: &str,
) -> Result<Capacity> {
    let arena = |capacity: &Capacity| arena_bytes::<T>(config, adapters, capacity);
    let block_size = graph::block_size(config.head_dim);
    let longest = config.max_positions.div_ceil(block_size);
    let mut capacity =
        Capacity { rows: PROMPT_TOKENS + SEQUENCES, sequences: SEQUENCES, blocks: 0, block_size };
    let fixed = arena(&capacity) + later::<T>(config, adapters, sessions, capacity.rows);
    let block = arena(&Capacity { blocks: 1, ..capacity }) - arena(&capacity);
    let fits = free.saturating_sub(fixed) / block;
    // A shorter limit than the model's positions is fine as long as prompts of a usual length fit.
    let least = longest.min(4096_usize.div_ceil(block_size)) as u64;
    if fits < least {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let loaded = if adapters.stack().is_empty() { "weights" } else { "weights, adapters" };
        let message = format!(
            "{at}: {} MiB are free and {} are needed: {} for {loaded}, activations and logits, {} for the keys and values \
             of one sequence",
            mib(free),
            mib(fixed + least * block),
            mib(fixed),
            mib(least * block)
        );
        return Err(Failure::unavailable(message)
            .hint("a smaller policy, one policy for all agents, or another device"));
    }
    capacity.blocks = fits.min((SEQUENCES * longest) as u64) as usize;
    Ok(capacity)
}

/// Bytes that ONNX Runtime takes for one run of `rows` rows: the residual stream in f32 and its norm, projections,
/// attention, and the feed-forward layer's three parts, all alive at about the same time; and what adapters add.
fn activations<T: Activation>(config: &Config, adapters: &Adapters, rows: usize) -> u64 {
    let heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
    let adapted = adapters.stack().activations(config);
    let (stream, row) = (4 * config.hidden_size, heads + 4 * config.intermediate_size + adapted);
    (rows * (stream * size_of::<f32>() + (stream + row) * size_of::<T>())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::device::weights::DeviceWeights;
    use half::bf16;
    use policy::adapter::{Adapter, Target};
    use policy::graph::Stack;

    /// A model of Qwen3's sizes.
    fn qwen3([hidden, inner, layers, heads]: [usize; 4], tied: bool) -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let text = format!(
            r#"{{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":{hidden},
            "intermediate_size":{inner},"num_hidden_layers":{layers},"num_attention_heads":{heads},"num_key_value_heads":8,
            "head_dim":128,"hidden_act":"silu","max_position_embeddings":40960,"rms_norm_eps":1e-6,
            "rope_theta":1000000,"tie_word_embeddings":{tied},"torch_dtype":"bfloat16","vocab_size":151936}}"#
        );
        std::fs::write(folder.path().join("config.json"), text).expect("written");
        Config::load(folder.path()).expect("a configuration")
    }

    fn qwen3_8b() -> Config {
        qwen3([4096, 12288, 36, 32], false)
    }

    fn arena(config: &Config, capacity: &Capacity) -> u64 {
        arena_bytes::<bf16>(config, &Adapters::default(), capacity)
    }

    /// The capacities of models that are opened one after another on one card.
    fn opened(configs: &[Config], limit: Option<&str>, total: u64) -> Result<Vec<Capacity>> {
        let limit = limit.map(|text| MemoryLimit::parse(text).expect("a limit"));
        let budget = DeviceBudget::new(limit, configs.len());
        let mut free = total;
        let open = |config: &Config| {
            let capacity =
                budget.next::<bf16>(config, &Adapters::default(), 1, Memory { free, total }, "cuda:0")?;
            free -= arena(config, &capacity);
            Ok(capacity)
        };
        configs.iter().map(open).collect()
    }

    /// All the bytes that they will need, with the reserve of each.
    fn needed(configs: &[Config], capacities: &[Capacity]) -> u64 {
        let all = configs.iter().zip(capacities);
        all.map(|(config, capacity)| {
            arena(config, capacity) + later::<bf16>(config, &Adapters::default(), 1, capacity.rows)
        })
        .sum()
    }

    #[test]
    fn each_model_of_a_card_has_its_activations_and_its_reserve() {
        let both = [qwen3([2048, 6144, 28, 16], true), qwen3_8b()];
        for total in [60_000_000_000, 80_000_000_000] {
            let capacities = opened(&both, None, total).expect("capacities");
            let needed = needed(&both, &capacities);
            assert!(needed <= total && needed > total * 9 / 10, "{needed} of {total}");
        }
    }

    #[test]
    fn a_limit_bounds_all_models_together() {
        let both = [qwen3([2048, 6144, 28, 16], true), qwen3([2048, 6144, 28, 16], true)];
        let total = 80_000_000_000;
        for (limit, bytes) in [("30", 30_000_000_000), ("50%", 40_000_000_000), ("100", total)] {
            let needed = needed(&both, &opened(&both, Some(limit), total).expect("capacities"));
            assert!(needed <= bytes && needed > bytes * 9 / 10, "{needed} of {bytes}");
        }
        let failure = opened(&both, Some("8"), total).expect_err("refused");
        let wanted = "cuda:0, --device-memory 8: 3815 MiB are free and ";
        assert!(failure.message.starts_with(wanted), "{}", failure.message);
        assert!(failure.hint.is_some_and(|hint| hint.contains("--device-memory")));
    }

    #[test]
    fn limits_are_gigabytes_or_shares() {
        assert_eq!(MemoryLimit::parse("12.5"), Ok(MemoryLimit::Bytes(12_500_000_000)));
        assert_eq!(MemoryLimit::parse("50%"), Ok(MemoryLimit::Percent(50.0)));
        for text in ["", "0", "-1", "x", "nan", "inf", "%", "0%", "101%", "40GB", "5 %"] {
            let failure = MemoryLimit::parse(text).expect_err(text);
            assert!(failure.code == record::failure::USAGE && failure.hint.is_some(), "{text}: {failure}");
        }
    }

    /// docs/scaling.md says what fits on a card.
    #[test]
    fn the_plan_in_the_documents_is_this() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scaling.md");
        let document = std::fs::read_to_string(path).expect("a document");
        let mut lacking = Vec::new();
        for (name, sizes, tied) in [
            ("0.6B", [1024, 3072, 28, 16], true),
            ("1.7B", [2048, 6144, 28, 16], true),
            ("4B", [2560, 9728, 36, 32], true),
            ("8B", [4096, 12288, 36, 32], false),
            ("14B", [5120, 17408, 40, 40], false),
            ("32B", [5120, 25600, 64, 64], false),
        ] {
            let config = qwen3(sizes, tied);
            let tokens = |models: usize, gigabytes: u64| {
                let models = vec![config.clone(); models];
                opened(&models, None, gigabytes * 1_000_000_000).map_or("-".to_owned(), |capacities| {
                    let least = capacities.iter().map(|capacity| capacity.blocks * capacity.block_size).min();
                    format!("{}k", least.unwrap_or_default() / 1000)
                })
            };
            let weights = DeviceWeights::<bf16>::bytes(&config) as f64 / 1e9;
            let cells = [24, 48, 80, 141].map(|gigabytes| tokens(1, gigabytes)).join(" | ");
            let row = format!("| {name} | {weights:.1} | {cells} | {} |", tokens(2, 80));
            lacking.extend((!document.contains(&row)).then_some(row));
        }
        assert!(lacking.is_empty(), "docs/scaling.md lacks\n{}", lacking.join("\n"));
    }

    #[test]
    fn memory_left_by_the_weights_goes_to_blocks() {
        let config = qwen3_8b();
        // 141 GB less 16.4 GB of weights: 147,456 bytes a token.
        let free = 141_000_000_000;
        let capacity = capacity::<bf16>(&config, &Adapters::default(), 1, free, "cuda:0").expect("capacity");
        assert_eq!(capacity.block_size, 128);
        let tokens = capacity.blocks * capacity.block_size;
        assert!((700_000..850_000).contains(&tokens), "{tokens}");
        let used = arena_bytes::<bf16>(&config, &Adapters::default(), &capacity);
        assert!(used < free, "{used}");
    }

    #[test]
    fn adapters_take_their_part_of_what_is_left() {
        let config = qwen3_8b();
        let adapter = Adapter::new(64, 64.0, Target::ALL.to_vec());
        let adapters = Adapters::planned(Stack::new([&adapter, &adapter]));
        let bytes = adapters.bytes::<bf16>(&config);
        // Two with 87 million weights each, plus zeros in B if projections share a product.
        assert!((1_035_000_000..1_040_000_000).contains(&bytes), "{bytes}");
        let blocks = |adapters: &Adapters| {
            capacity::<bf16>(&config, adapters, 1, 40_000_000_000, "cuda:0").expect("capacity").blocks as u64
        };
        let fewer = blocks(&Adapters::default()) - blocks(&adapters);
        assert!(fewer * 128 * 147_456 >= bytes, "{fewer} blocks for {bytes} bytes");
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_the_numbers() {
        let failure =
            capacity::<bf16>(&qwen3_8b(), &Adapters::default(), 1, 2 << 30, "cuda:0").expect_err("refused");
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
        assert!(failure.message.starts_with("cuda:0: 2048 MiB are free and "), "{}", failure.message);
    }
}
