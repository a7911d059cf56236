//! How much of a device's memory goes to keys and values.
//!
//! ONNX Runtime takes the weights first; what is free then is divided between the models still to come, less what adapters
//! take and what a run needs for its activations. A device that cannot hold one group's sequences is refused at once, with the sums.

use super::adapters::Adapters;
use super::runner::{Activation, Room, arena_bytes};
use policy::config::Config;
use policy::graph;
use record::failure::{Failure, Result};

/// Sequences in one run, at most: `PagedAttention` scans their lengths in one block of 256 threads.
pub const SEQUENCES: usize = 256;
/// Prompt tokens in one run, at most. Beyond a few thousand rows the products are as fast as they get.
pub const PROMPT_TOKENS: usize = 4096;
/// ONNX Runtime takes memory in pieces that double in size, all together up to so many times what a run needs at once.
const PIECES: u64 = 3;
/// Left to the driver, to what it keeps of recordings, and to libraries that load lazily.
const RESERVE: u64 = 1 << 30;

/// Room for a policy's runs in `free` bytes that are its share.
///
/// # Errors
/// 69: not even one sequence of full length fits.
pub fn room<T: Activation>(config: &Config, adapters: &Adapters, free: u64, at: &str) -> Result<Room> {
    let arena = |room: &Room| arena_bytes::<T>(config, adapters, room);
    let block_size = graph::block_size(config.head_dim);
    let longest = config.max_positions.div_ceil(block_size);
    let mut room = Room { rows: PROMPT_TOKENS + SEQUENCES, sequences: SEQUENCES, blocks: 0, block_size };
    let fixed = arena(&room) + PIECES * activations::<T>(config, adapters, room.rows) + RESERVE;
    let block = arena(&Room { blocks: 1, ..room }) - arena(&room);
    let fits = free.saturating_sub(fixed) / block;
    // A shorter limit than the model's positions is fine as long as prompts of a usual length fit.
    let least = longest.min(4096_usize.div_ceil(block_size)) as u64;
    if fits < least {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let loaded =
            if adapters.stack().is_empty() { " and the head" } else { ", the head and the adapters" };
        let message = format!(
            "{at}: {} MiB are free and {} are needed: {} for activations, logits{loaded}, {} for the keys and values of \
             one sequence",
            mib(free),
            mib(fixed + least * block),
            mib(fixed),
            mib(least * block)
        );
        return Err(Failure::unavailable(message)
            .hint("a smaller policy, one policy for all agents, or another device"));
    }
    room.blocks = fits.min((SEQUENCES * longest) as u64) as usize;
    Ok(room)
}

/// What ONNX Runtime takes for one run of `rows` rows: the residual stream and its norm, projections, attention, and the
/// feed-forward layer's three parts, all alive at their largest at about the same time; and what adapters add.
fn activations<T: Activation>(config: &Config, adapters: &Adapters, rows: usize) -> u64 {
    let heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
    let adapted = adapters.stack().activations(config);
    let row = 4 * config.hidden_size + heads + 4 * config.intermediate_size + adapted;
    (rows * row * size_of::<T>()) as u64
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
        let room = room::<bf16>(&config, &Adapters::default(), 124_000_000_000, "cuda:0").expect("room");
        assert_eq!(room.block_size, 128);
        let tokens = room.blocks * room.block_size;
        assert!((700_000..850_000).contains(&tokens), "{tokens}");
        let used = arena_bytes::<bf16>(&config, &Adapters::default(), &room);
        assert!(used < 124_000_000_000, "{used}");
    }

    #[test]
    fn adapters_take_their_part_of_what_is_left() {
        let config = qwen3_8b();
        let targets = Target::ALL.to_vec();
        let adapter = Adapter { rank: 64, alpha: 64.0, targets, rank_stabilized: false, base: String::new() };
        let adapters = Adapters::planned(Stack::new([&adapter, &adapter]));
        let bytes = adapters.bytes::<bf16>(&config);
        // Two of 87 million weights each.
        assert!((698_000_000..700_000_000).contains(&bytes), "{bytes}");
        let blocks = |adapters: &Adapters| {
            room::<bf16>(&config, adapters, 40_000_000_000, "cuda:0").expect("room").blocks as u64
        };
        let fewer = blocks(&Adapters::default()) - blocks(&adapters);
        assert!(fewer * 128 * 147_456 >= bytes, "{fewer} blocks for {bytes} bytes");
    }

    #[test]
    fn a_card_that_is_too_small_is_refused_with_the_sums() {
        let failure =
            room::<bf16>(&qwen3_8b(), &Adapters::default(), 2 << 30, "cuda:0").expect_err("refused");
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
        assert!(failure.message.starts_with("cuda:0: 2048 MiB are free and "), "{}", failure.message);
    }
}
