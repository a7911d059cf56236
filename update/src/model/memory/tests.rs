use super::*;

/// An H200's memory, and an H100's, of which a context has taken half a gigabyte.
const H200: u64 = (143_771 << 20) - 500_000_000;
const H100: u64 = (81_559 << 20) - 500_000_000;

/// Qwen3-8B, whose figures are published with its checkpoint.
fn qwen3_8b() -> Config {
    let json = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
        "max_position_embeddings": 40_960, "rope_theta": 1e6, "tie_word_embeddings": false,
    });
    Config::from_value(&json, std::path::Path::new("config.json")).unwrap()
}

fn plan(config: &Config, free: u64, moments: Option<u64>, largest: usize) -> Result<MemoryPlan> {
    let request = MemoryRequest {
        tokens: 32_768,
        largest,
        rows: 32_768,
        part: 32_768,
        positions: 4096,
        moments,
        ranks: 1,
        waiting: 0,
        half: Half::BFloat16,
    };
    MemoryPlan::new(config, None, request, DeviceMemory { free, workspace: device::GEMM_WORKSPACE })
}

#[test]
fn all_of_qwen3_8b_trains_on_141_gigabytes_and_not_on_80() {
    let config = qwen3_8b();
    let weights = Layout::new(&config).len() as u64;
    assert_eq!(weights, 8_190_735_360);
    let memory = plan(&config, H200, Some(8), 4096).unwrap();
    assert!(memory.bytes.total + LEFT_ALONE <= H200, "{memory:?}");
    // 16 bytes a weight: 131.05 GB.
    assert_eq!(memory.bytes.state(), 16 * weights);
    assert!(!memory.recompute && memory.tokens >= 4096, "{memory:?}");
    // A tree of 16,384 tokens fits with its layers computed again.
    let long = plan(&config, H200, Some(8), 16_384).unwrap();
    assert!(long.recompute && long.tokens >= 16_384 && long.bytes.total + LEFT_ALONE <= H200, "{long:?}");
    // With room for it nothing is computed twice.
    let roomy = plan(&config, 400_000_000_000, Some(8), 8192).unwrap();
    assert_eq!((roomy.recompute, roomy.tokens), (false, 32_768));

    let failure = plan(&config, H100, Some(8), 4096).unwrap_err();
    assert_eq!(failure.code, record::failure::UNAVAILABLE);
    assert!(failure.message.contains("131.1 GB for weights, gradients and moments"), "{}", failure.message);
    assert!(failure.message.contains("of which 85.0 GB are free"), "{}", failure.message);
    // Without moments it fits there, and scoring alone takes two bytes a weight.
    assert!(plan(&config, H100, Some(0), 4096).is_ok());
    let scoring = plan(&config, H100, None, 4096).unwrap();
    assert_eq!((scoring.bytes.gradients, scoring.bytes.moments), (0, 0));
    assert!(scoring.bytes.weights < 2 * weights + (64 << 20), "{scoring:?}");
}

/// 2 bytes a weight, 14 by the ranks, and the gradient of a table and of a layer.
#[test]
fn all_of_qwen3_8b_takes_34_gigabytes_on_each_of_eight_cards() {
    let config = qwen3_8b();
    let of = |ranks: usize, part: usize| {
        let request = MemoryRequest {
            tokens: 32_768,
            largest: 4096,
            rows: 32_768,
            part,
            positions: 4096,
            moments: Some(8),
            ranks,
            waiting: 0,
            half: Half::BFloat16,
        };
        let memory = DeviceMemory { free: H100, workspace: device::GEMM_WORKSPACE };
        MemoryPlan::new(&config, None, request, memory)
    };
    let plan = of(8, 8192).unwrap();
    assert!(plan.windows, "{plan:?}");
    let weights = Layout::new(&config).len() as u64;
    let windows = 4 * (151_936 * 4096 + 4096) + 4 * (weights - 2 * 151_936 * 4096 - 4096) / 36;
    let expected = 2 * weights + 14 * weights / 8 + windows + 2 * STAGING as u64;
    assert!(plan.bytes.state().abs_diff(expected) < 20 << 20, "{plan:?} {expected}");
    assert!((33_900_000_000..34_200_000_000).contains(&plan.bytes.state()), "{plan:?}");
    assert!(plan.tokens >= 8192, "{plan:?}");
    // Parts of several micro-batches have the whole gradient on the card while it fits.
    let [eight, two] = [8, 2].map(|ranks| of(ranks, 1_000_000).unwrap());
    assert!(!eight.windows && eight.bytes.gradients == 4 * weights && two.windows, "{eight:?} {two:?}");
}

#[test]
fn a_plan_grows_with_the_card_and_never_beyond_it() {
    let config = Config { num_layers: 2, ..qwen3_8b() };
    let mut before = 0;
    for free in (0..40).map(|step| (20 + step) * 1_000_000_000) {
        let Ok(plan) = plan(&config, free, Some(8), 512) else {
            assert_eq!(before, 0, "{free}");
            continue;
        };
        assert!(plan.bytes.total + LEFT_ALONE <= free, "{plan:?}");
        assert!(plan.tokens >= before.min(USEFUL_TOKENS as usize), "{plan:?} after {before} tokens");
        before = plan.tokens;
    }
    assert_eq!(before, 32_768);
}

#[test]
fn sizes_beyond_32_bits_are_counted() {
    // 2 million tokens of a wide decoder: every product here is beyond 2^32.
    let config = Config { num_layers: 1, ..qwen3_8b() };
    let request = MemoryRequest {
        tokens: 2 << 20,
        largest: 2 << 20,
        rows: 2 << 20,
        part: 2 << 20,
        positions: 4096,
        moments: Some(8),
        ranks: 1,
        waiting: 0,
        half: Half::BFloat16,
    };
    let plan = MemoryPlan::new(&config, None, request, DeviceMemory { free: 1 << 42, workspace: 0 }).unwrap();
    assert_eq!(plan.tokens, 2 << 20);
    let gate_up = (2u64 << 20) * 2 * 12_288 * 2;
    assert!(gate_up > 1 << 32 && plan.bytes.activations > gate_up, "{plan:?}");
    // Logits stay a chunk however many tokens there are.
    assert!(plan.bytes.logits <= (1 << 30) + (1 << 20), "{plan:?}");
}

#[test]
fn threads_share_a_micro_batch_of_a_large_model_and_have_their_own_of_a_small_one() {
    let shared = |config: &Config, tokens: usize, batches: usize, threads: usize| {
        let Parallelism { streams, threads } =
            Parallelism::new(config, tokens, batches, false, Some(Layout::new(config).len()), threads);
        (streams, threads)
    };
    let small =
        Config { num_layers: 2, hidden_size: 64, intermediate_size: 128, vocab_size: 512, ..qwen3_8b() };
    let small = Config { num_heads: 4, num_kv_heads: 2, head_dim: 16, ..small };
    assert_eq!([1, 2, 8].map(|threads| shared(&small, 500, 100, threads)), [(1, 1), (2, 1), (8, 1)]);
    // With fewer micro-batches than threads, they are shared.
    assert_eq!([1, 2, 5].map(|batches| shared(&small, 500, batches, 8)), [(1, 8), (2, 4), (4, 2)]);
    let large = qwen3_8b();
    assert_eq!(
        [1, 2, 16, 192].map(|threads| shared(&large, 500, 100, threads)),
        [(1, 1), (1, 2), (1, 16), (1, 16)]
    );
    // Only the packing buffers grow with the threads.
    let [one, many] =
        [1, 192].map(|threads| on_host(&large, 5000, 500, threads, Some(8_000_000_000)).0.summed().total);
    assert!(many - one < 16 * (32 << 20), "{one} {many}");
}
