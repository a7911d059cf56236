//! Sampler and trainer agree: `update` computes the log-probabilities that `rollout` recorded, to the last bit where both
//! use one number format.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use troupe_tests::program::lines;
use troupe_tests::{must, run};

/// Mean and largest difference of log-probabilities, nats.
fn gap(check: &str) -> (f64, f64) {
    let (_, metrics, stderr) = run(check);
    let line = lines(&metrics).into_iter().find(|line| line["type"] == "metrics").expect(&stderr);
    let metric = |name: &str| line[format!("sampling/logp_difference_{name}")].as_f64().expect("a number");
    (metric("mean"), metric("max"))
}

#[test]
fn sampler_and_trainer_agree_in_each_number_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    must(&format!("policy init {dir}/p --preset tiny --seed 3 2>&1"));
    // A trained policy: random weights give nearly uniform distributions, which hide errors.
    must(&format!(
        "envs demo plan-path --count 240 --seed 1 | policy encode --policy {dir}/p 2>{dir}/log | \
         update --policy {dir}/p --objective nll --optimizer muon --lr 0.03 --lr-other 4e-3 --minibatches 30 --quiet"
    ));
    let mut gaps = Vec::new();
    for sampled in ["float32", "bfloat16"] {
        must(&format!(
            "envs tasks plan-path --count 8 --seed 5 | rollout --policy {dir}/p --branches 4 --turns 2 --max-tokens 8 \
             --dtype {sampled} --quiet | group --quiet | advantage --quiet > {dir}/samples"
        ));
        for trained in ["float32", "bfloat16"] {
            let found =
                gap(&format!("update --policy {dir}/p --check --dtype {trained} --quiet < {dir}/samples"));
            gaps.push((sampled, trained, found));
        }
        if sampled == "float32" {
            let on_device = |dtype: &str| {
                gap(&format!(
                    "update --policy {dir}/p --check --device sim --dtype {dtype} --quiet < {dir}/samples"
                ))
            };
            let (wide, narrow) = (on_device("bfloat16"), on_device("float16"));
            println!("from f32, mean and largest: bf16 {wide:?}, f16 {narrow:?}");
            // Three bits more are an eighth of the error; a policy that has learned, 0.003 and 0.05 nats.
            assert!(narrow.0 <= 0.003 && narrow.1 <= 0.05 && narrow.0 < wide.0 / 4.0, "{wide:?} {narrow:?}");
        }
    }
    // The kernels of a card in both programs.
    for (dtype, most) in [("bfloat16", (0.002, 0.05)), ("float16", (0.0005, 0.005))] {
        must(&format!(
            "envs tasks plan-path --count 3 --seed 5 | rollout --policy {dir}/p --branches 4 --turns 2 --max-tokens 8 \
             --device sim --dtype {dtype} --quiet | group --quiet | advantage --quiet > {dir}/samples"
        ));
        let found = gap(&format!(
            "update --policy {dir}/p --check --device sim --dtype {dtype} --quiet < {dir}/samples"
        ));
        println!("rollout and update in the simulator, {dtype}, mean and largest: {found:?}");
        assert!(found.0 <= most.0 && found.1 <= most.1, "{dtype}: {found:?}");
    }
    let of = |sampled: &str, trained: &str| {
        gaps.iter().find(|gap| gap.0 == sampled && gap.1 == trained).expect("measured").2
    };
    // To the last bit where both compute in one format.
    assert_eq!([of("float32", "float32"), of("bfloat16", "bfloat16")], [(0.0, 0.0); 2], "{gaps:?}");
    // Two formats differ by far more than one rounding.
    for mixed in [of("float32", "bfloat16"), of("bfloat16", "float32")] {
        assert!(mixed.0 > 1e-5 && mixed.0 < 1e-2, "{gaps:?}");
    }
}

/// Log-probabilities are of the whole distribution at the temperature of the sample, whatever truncation left of it.
#[test]
fn agents_of_one_policy_that_are_sampled_apart_have_the_ratio_one_at_the_first_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    must(&format!(
        "policy init {dir}/p --preset tiny --seed 3 2>&1; envs tasks plan-path --count 8 --seed 5 | \
         rollout --policy {dir}/p --branches 4 --turns 2 --max-tokens 8 --max-tokens planner=5 --temperature 0.7 \
         --temperature planner=1.3 --top-p 0.9 --min-p planner=0.05 --stop 'tool= ' --quiet | \
         group --quiet | advantage --quiet > {dir}/samples"
    ));
    let sampled = must(&format!(
        "jq -c 'select(.type == \"sample\") | [.agent, .sampling.temperature, .sampling.max_tokens]' {dir}/samples | sort -u"
    ));
    assert_eq!(sampled, "[\"planner\",1.3,5]\n[\"tool\",0.7,8]\n");
    assert_eq!(gap(&format!("update --policy {dir}/p --check --quiet < {dir}/samples")), (0.0, 0.0));
    let (code, _, stderr) = run(&format!("update --policy {dir}/p --quiet < {dir}/samples"));
    assert!(code == 65 && stderr.contains("truncated sampling (top-p, top-k or min-p)"), "{stderr}");
    let metrics = must(&format!(
        "update --policy {dir}/p --allow-truncated-sampling --minibatches 1 --quiet < {dir}/samples"
    ));
    let metrics: Value = serde_json::from_str(metrics.lines().next().expect("metrics")).expect("JSON");
    assert_eq!(metrics["sampling/importance_sampling_ratio_mean"], 1.0, "{metrics}");
    assert_eq!(metrics["sampling/logp_difference_max"], 0.0, "{metrics}");
}

/// Decoders that differ between their products: biases, norms, positions, windows, activations, experts,
/// heads that share keys, and widths that are no multiple of a vector.
fn decoders() -> Vec<Value> {
    let decoder = |family: &str, hidden: usize, heads: [usize; 3], more: Value| {
        let mut config = json!({
            "model_type": family, "hidden_size": hidden, "intermediate_size": hidden + 24, "num_hidden_layers": 3,
            "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": heads[2],
            "vocab_size": 512, "max_position_embeddings": 2048,
        });
        let more = more.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(more);
        config
    };
    vec![
        // Sums over more than one block of the inner dimension.
        decoder("llama", 400, [5, 1, 80], json!({ "attention_bias": true, "mlp_bias": true })),
        decoder("qwen2", 48, [4, 2, 16], json!({ "tie_word_embeddings": true })),
        decoder("qwen3", 72, [6, 2, 32], json!({})),
        decoder("mistral", 64, [4, 4, 64], json!({ "sliding_window": 30 })),
        decoder("smollm3", 64, [4, 1, 16], json!({ "no_rope_layers": [1, 0, 1] })),
        decoder(
            "phi3",
            64,
            [4, 2, 16],
            json!({
                "partial_rotary_factor": 0.5, "tie_word_embeddings": false, "pad_token_id": 0,
            }),
        ),
        decoder(
            "gemma3_text",
            48,
            [4, 2, 32],
            json!({
                "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 40,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            }),
        ),
        decoder(
            "qwen3_moe",
            48,
            [4, 2, 16],
            json!({
                "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true,
            }),
        ),
    ]
}

#[test]
fn training_recomputes_the_sampled_logprobs_to_the_last_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    // Prompts in prose, of two turns: of more keys than are multiplied at a time.
    let play = |policy: &str, flags: &str| {
        must(&format!(
            "envs tasks plan-path --count 2 --seed 5 --set encoding=full --set size=7 --quiet | \
             rollout --policy {policy} --branches 3 --turns 2 --max-tokens 16 --quiet {flags} | \
             group --quiet | advantage --quiet > {dir}/samples"
        ));
        fs::read_to_string(folder.path().join("samples")).expect("samples")
    };
    let mut longest = 0;
    for config in decoders() {
        let family = config["model_type"].as_str().expect("a family").to_owned();
        fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
        must(&format!("policy init {dir}/{family} --config {dir}/config.json --seed 3 2>&1"));
        must(&format!(
            "policy init {dir}/{family}-adapter --from {dir}/{family} --adapter rank=5,alpha=9 2>&1"
        ));
        for policy in [format!("{dir}/{family}"), format!("{dir}/{family}-adapter")] {
            if family == "qwen3_moe" && policy.ends_with("adapter") {
                continue;
            }
            // Random weights say nearly the same of every token, and an adapter without training nothing.
            let trained = must(&format!(
                "envs demo plan-path --count 24 --seed 1 --quiet | policy encode --policy {policy} 2>{dir}/log | \
                 update --policy {policy} --objective nll --minibatches 6 --lr 0.01 --quiet"
            ));
            let line: Value = serde_json::from_str(trained.lines().next().expect("metrics")).expect("JSON");
            assert_eq!(line["optimizer_steps"], 6, "{line}");
            for dtype in ["float32", "bfloat16"] {
                let samples = play(&policy, &format!("--dtype {dtype} --temperature 0.7 --threads 2"));
                let prompts = samples.lines().filter_map(|line| {
                    let line = serde_json::from_str::<Value>(line).expect("JSON");
                    Some(line["prompt_ids"].as_array()?.len())
                });
                longest = longest.max(prompts.max().expect("samples"));
                let check = format!("update --policy {policy} --check --dtype {dtype} --threads 2 --quiet");
                assert_eq!(gap(&format!("{check} < {dir}/samples")), (0.0, 0.0), "{policy}, {dtype}");
            }
        }
    }
    assert!(longest > 400, "the longest prompt has {longest} tokens");
}

/// Zeros for every router of a checkpoint, so that all experts are equally likely for every token.
fn clear_routers(weights: &Path) {
    let mut bytes = fs::read(weights).expect("weights");
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).expect("a header");
    let routers =
        header.as_object().expect("tensors").iter().filter(|(name, _)| name.ends_with("mlp.gate.weight"));
    let mut cleared = 0;
    for (_, tensor) in routers {
        let [start, end] = [0, 1].map(|at| tensor["data_offsets"][at].as_u64().expect("an offset") as usize);
        bytes[data + start..data + end].fill(0);
        cleared += 1;
    }
    assert_eq!(cleared, 2);
    fs::write(weights, bytes).expect("written");
}

#[test]
fn sampler_and_trainer_take_the_same_experts_of_equals_with_any_number_of_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    let config = json!({
        "model_type": "qwen3_moe", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
        "max_position_embeddings": 512, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": true,
    });
    fs::write(folder.path().join("moe.json"), config.to_string()).expect("written");
    must(&format!("policy init {dir}/random --config {dir}/moe.json --seed 3 2>&1"));
    must(&format!("cp -rL {dir}/random/current {dir}/equal && chmod -R u+w {dir}/equal"));
    clear_routers(&folder.path().join("equal/model.safetensors"));
    for source in ["random/current", "equal"] {
        let mut found = Vec::new();
        for threads in [1, 3] {
            let policy = format!("{dir}/{threads}/p");
            must(&format!("rm -rf {dir}/{threads}; policy init {policy} --from {dir}/{source} 2>&1"));
            must(&format!(
                "envs tasks plan-path --count 4 --seed 5 | rollout --policy {policy} --branches 4 --turns 2 \
                 --max-tokens 8 --threads {threads} --quiet | group --quiet | advantage --quiet > {dir}/samples"
            ));
            let (_, largest) = gap(&format!("update --policy {policy} --check --quiet < {dir}/samples"));
            assert_eq!(largest, 0.0, "{source}");
            must(&format!(
                "update --policy {policy} --threads {threads} --minibatches 2 --lr 1e-2 --quiet < {dir}/samples"
            ));
            let digest = must(&format!("sha256sum < {policy}/current/model.safetensors"));
            found.push((must(&format!("grep '\"sample\"' {dir}/samples")), digest));
        }
        assert_eq!(found[0], found[1], "{source}");
        assert!(found[0].0.lines().count() > 16);
    }
}
