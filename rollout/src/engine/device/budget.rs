//! Device memory for the KV cache.
//!
//! Free memory, minus weights, adapters and a run's activations, is divided among the models still to come. A
//! device that cannot hold one sequence is refused at once, with the numbers.

use super::adapters::Adapters;
use super::config::{Activation, Capacity};
use super::runner::arena_bytes;
use policy::config::Config;
use policy::graph;
use record::failure::{Failure, Result};

/// The most sequences in one run: `PagedAttention` scans their lengths in one block of 256 threads.
pub const SEQUENCES: usize = 256;
/// The most prompt tokens in one run. Beyond a few thousand rows the products are as fast as they get.
pub const PROMPT_TOKENS: usize = 4096;
/// ONNX Runtime's arena doubles in size, in total up to this many times what a run needs at once.
const ARENA_FACTOR: u64 = 3;
/// Left to the driver, to CUDA graphs, and to libraries that load lazily.
const RESERVE: u64 = 1 << 30;

/// The capacity of a policy whose share is `free` bytes.
///
/// # Errors
/// 69: not even one sequence of full length fits.
pub fn capacity<T: Activation>(
    config: &Config,
    adapters: &Adapters,
    free: u64,
    at: &str,
) -> Result<Capacity> {
    let arena = |capacity: &Capacity| arena_bytes::<T>(config, adapters, capacity);
    let block_size = graph::block_size(config.head_dim);
    let longest = config.max_positions.div_ceil(block_size);
    let mut capacity =
        Capacity { rows: PROMPT_TOKENS + SEQUENCES, sequences: SEQUENCES, blocks: 0, block_size };
    let fixed = arena(&capacity) + ARENA_FACTOR * activations::<T>(config, adapters, capacity.rows) + RESERVE;
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
    use half::bf16;
    use policy::adapter::{Adapter, Target};
    use policy::graph::Stack;

    fn qwen3_8b() -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let text = r#"{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":4096,
            "intermediate_size":12288,"num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,
            "head_dim":128,"hidden_act":"silu","max_position_embeddings":40960,"rms_norm_eps":1e-6,
            "rope_theta":1000000,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":151936}"#;
        std::fs::write(folder.path().join("config.json"), text).expect("written");
        Config::load(folder.path()).expect("a configuration")
    }

    #[test]
    fn what_is_left_beside_the_weights_goes_to_blocks() {
        let config = qwen3_8b();
        // 141 GB less 16.4 GB of weights: 147,456 bytes a token.
        let free = 141_000_000_000;
        let capacity = capacity::<bf16>(&config, &Adapters::default(), free, "cuda:0").expect("capacity");
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
            capacity::<bf16>(&config, adapters, 40_000_000_000, "cuda:0").expect("capacity").blocks as u64
        };
        let fewer = blocks(&Adapters::default()) - blocks(&adapters);
        assert!(fewer * 128 * 147_456 >= bytes, "{fewer} blocks for {bytes} bytes");
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_the_numbers() {
        let failure =
            capacity::<bf16>(&qwen3_8b(), &Adapters::default(), 2 << 30, "cuda:0").expect_err("refused");
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
        assert!(failure.message.starts_with("cuda:0: 2048 MiB are free and "), "{}", failure.message);
    }
}
