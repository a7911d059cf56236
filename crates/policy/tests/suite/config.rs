//! Configurations: both spellings, refusals by name, rotary frequencies against `transformers`.

use std::path::Path;

use policy::config::Config;
use policy::graph::for_device;
use policy::rope::RopeScaling;
use policy::weights::ElementType;
use serde_json::{Value, json};

fn base() -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "vocab_size": 512, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    })
}

/// The base with some keys set; `null` removes one.
fn with(changes: Value) -> Result<Config, String> {
    let mut value = base();
    for (key, change) in changes.as_object().unwrap() {
        match change {
            Value::Null => value.as_object_mut().unwrap().remove(key),
            other => value.as_object_mut().unwrap().insert(key.clone(), other.clone()),
        };
    }
    Config::from_value(&value, Path::new("config.json")).map_err(|failure| {
        assert_eq!(failure.code, 65);
        failure.message
    })
}

#[test]
fn families_decide_norms_and_biases() {
    let qwen3 = with(json!({})).unwrap();
    assert_eq!((qwen3.family, qwen3.qk_norm, qwen3.attention_bias), ("Qwen3", true, false));
    let qwen2 = with(json!({"model_type": "qwen2", "head_dim": null})).unwrap();
    assert_eq!(
        (qwen2.family, qwen2.qk_norm, qwen2.attention_bias, qwen2.head_dim),
        ("Qwen2", false, true, 16)
    );
    let llama =
        with(json!({"model_type": "llama", "num_key_value_heads": null, "tie_word_embeddings": true}))
            .unwrap();
    assert_eq!((llama.qk_norm, llama.attention_bias, llama.num_kv_heads), (false, false, 6));
    assert_eq!(llama.head_name(), "model.embed_tokens.weight");
    assert_eq!(qwen3.tensors().len(), 1 + 3 * 11 + 2);
    assert_eq!(qwen2.tensors().len(), 1 + 3 * 12 + 2);
}

#[test]
fn old_and_new_spellings_mean_the_same_and_frequencies_are_those_of_transformers() {
    let goldens: Value = serde_json::from_str(include_str!("../goldens/rope.json")).unwrap();
    let kinds: Vec<RopeScaling> = goldens
        .as_array()
        .unwrap()
        .iter()
        .map(|golden| {
            let place = Path::new("config.json");
            let new = Config::from_value(&golden["new"], place).unwrap();
            let old = Config::from_value(&golden["old"], place).unwrap();
            assert_eq!(old.dtype, ElementType::BF16);
            assert_eq!(Config { dtype: new.dtype, ..old }, new);
            let expected: Vec<f64> =
                golden["frequencies"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
            let actual = new.inverse_frequencies();
            let factor = golden["attention_factor"].as_f64().unwrap();
            assert!((f64::from(new.ropes()[0].attention_factor) - factor).abs() < 1e-7 * factor);
            assert_eq!(actual.len(), expected.len());
            let difference = actual.iter().zip(&expected).map(|(&a, &e)| ((f64::from(a) - e) / e).abs());
            let largest = difference.max_by(f64::total_cmp).unwrap();
            println!("{:?}: largest relative difference {largest:.1e}", new.rope_scaling);
            assert!(largest < 5e-7, "{largest}");
            let long = matches!(new.rope_scaling, RopeScaling::LongRope { .. });
            assert_eq!(new.max_positions, if long { 256 } else { 2048 });
            new.rope_scaling
        })
        .collect();
    assert!(matches!(
        kinds[..],
        [
            RopeScaling::None,
            RopeScaling::Linear { .. },
            RopeScaling::Llama3 { .. },
            RopeScaling::Yarn { .. },
            RopeScaling::Yarn { .. },
            RopeScaling::LongRope { .. },
            RopeScaling::LongRope { .. }
        ]
    ));
}

/// Dynamic frequencies change beyond `max_position_embeddings` only, where contexts end here.
#[test]
fn dynamic_positions_are_plain_as_far_as_a_context_goes() {
    let plain = with(json!({})).unwrap();
    let dynamic = with(json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})).unwrap();
    assert_eq!(dynamic, plain);
    let settings = json!({"rope_type": "linear", "factor": 2.0});
    let both = with(json!({"rope_scaling": settings, "rope_parameters": settings})).unwrap();
    assert_eq!(both, with(json!({"rope_scaling": settings})).unwrap());
    assert_eq!(both, with(json!({"rope_scaling": {}, "rope_parameters": settings})).unwrap());
}

#[test]
fn a_window_that_no_layer_uses_is_accepted() {
    for unused in [
        json!({"sliding_window": 4096, "use_sliding_window": false}),
        json!({"sliding_window": null, "use_sliding_window": true}),
        json!({"sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 3}),
        json!({"sliding_window": 4096, "layer_types": ["full_attention", "full_attention", "full_attention"]}),
    ] {
        assert!(with(unused.clone()).unwrap().variant.windows.is_empty(), "{unused}");
    }
}

/// What the configuration classes of `transformers` do, which is not what the keys' names suggest.
#[test]
fn windows_are_those_of_the_family() {
    let windows = |changes: Value| with(changes).map(|config| config.variant.windows);
    let mistral = |window: Value| {
        let mut value = base();
        value["model_type"] = json!("mistral");
        value["sliding_window"] = window;
        let config = Config::from_value(&value, Path::new("config.json")).unwrap();
        (config.variant.windows.first().copied().flatten(), config.shortest_window(), config.max_positions)
    };
    assert_eq!(mistral(json!(128)), (Some(128), Some(128), 4096));
    assert_eq!(mistral(json!(4096)), (Some(4096), None, 4096));
    assert_eq!(mistral(Value::Null), (None, None, 4096));
    // The class's defaults: a window of 4,096 and 8 key heads.
    let absent = json!({"model_type": "mistral", "max_position_embeddings": 32768});
    assert_eq!(windows(absent), Ok(vec![Some(4096); 3]));
    let absent = json!({"model_type": "mistral", "num_key_value_heads": null, "num_attention_heads": 8});
    assert_eq!(with(absent).unwrap().num_kv_heads, 8);
    let wide = with(json!({"model_type": "mistral", "head_dim": null})).unwrap();
    assert_eq!((wide.head_dim, wide.qk_norm, wide.attention_bias), (16, false, false));
    for refused in [
        json!({"model_type": "mistral", "layer_types": ["sliding_attention"]}),
        json!({"model_type": "mistral", "sliding_window": 0}),
        json!({"model_type": "mistral", "sliding_window": "4k"}),
        json!({"model_type": "llama", "layer_types": vec!["sliding_attention"; 3], "sliding_window": 128}),
        json!({"model_type": "gemma3_text", "hidden_act": null, "layer_types": vec!["sliding_attention"; 2]}),
    ] {
        assert!(with(refused.clone()).is_err(), "{refused}");
    }
    // Qwen's default window is 4,096, and its layers have it from the 29th on.
    for family in ["qwen2", "qwen3"] {
        let every = json!({"model_type": family, "use_sliding_window": true, "max_window_layers": 0});
        assert_eq!(windows(every), Ok(vec![Some(4096); 3]), "{family}");
        let last = json!({"model_type": family, "use_sliding_window": true, "max_window_layers": 2, "sliding_window": 7});
        assert_eq!(windows(last), Ok(vec![None, None, Some(7)]), "{family}");
        let absent = json!({"model_type": family, "use_sliding_window": true, "sliding_window": 7});
        assert_eq!(windows(absent), Ok(vec![]), "{family}");
        let kinds = ["sliding_attention", "full_attention", "full_attention"];
        let listed = json!({"model_type": family, "use_sliding_window": true, "max_window_layers": 0, "layer_types": kinds});
        assert_eq!(windows(listed), Ok(vec![Some(4096), None, None]), "{family}");
    }
    let gemma = json!({"model_type": "gemma3_text", "hidden_act": null, "sliding_window_pattern": 3});
    assert_eq!(windows(gemma), Ok(vec![Some(4096), Some(4096), None]));
}

#[test]
fn a_device_takes_positions_up_to_the_shortest_window_and_no_parts_that_its_kernels_lack() {
    let on_device = |changes: Value| for_device(with(changes).unwrap());
    let mistral = json!({"model_type": "mistral", "sliding_window": 128});
    assert_eq!(on_device(mistral).unwrap().max_positions, 128);
    assert_eq!(on_device(json!({})).unwrap().max_positions, 4096);
    let yarn = json!({"rope_type": "yarn", "factor": 4.0});
    assert!(on_device(json!({"rope_parameters": yarn})).is_ok());
    for (changes, what) in [
        (json!({"model_type": "gemma3_text", "hidden_act": null}), "Gemma's norms and activation"),
        (json!({"model_type": "phi3", "partial_rotary_factor": 0.75}), "partial rotary positions"),
        (json!({"model_type": "llama", "attention_bias": true}), "a bias of the output projection"),
        (json!({"model_type": "llama", "mlp_bias": true}), "biases in the MLP"),
        (
            json!({"model_type": "smollm3", "rope_parameters": yarn, "no_rope_layer_interval": 2}),
            "yarn beside layers without rotary positions",
        ),
    ] {
        let failure = on_device(changes).unwrap_err();
        assert_eq!((failure.code, failure.hint.as_deref()), (2, Some("use --device cpu")));
        assert!(failure.message.contains(what), "{}", failure.message);
    }
}

#[test]
fn gemma_has_parts_of_its_own_and_two_kinds_of_rotary_positions() {
    let new = json!({
        "model_type": "gemma3_text", "hidden_act": null, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": null,
        "query_pre_attn_scalar": 64, "sliding_window_pattern": 2, "sliding_window": 12, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    });
    let mut old = new.clone();
    old.as_object_mut().unwrap().remove("rope_parameters");
    old["rope_scaling"] = json!({"rope_type": "linear", "factor": 8.0});
    old["rope_theta"] = json!(1e6);
    old["rope_local_base_freq"] = json!(2e4);
    let (new, old) = (with(new).unwrap(), with(old).unwrap());
    assert_eq!(new, old);
    assert_eq!((0..3).map(|layer| new.rope(layer)).collect::<Vec<_>>(), [Some(1), Some(0), Some(1)]);
    let ropes = new.ropes();
    assert_eq!(ropes.len(), 2);
    assert!((ropes[0].frequencies[1] - 1e6_f32.powf(-0.125) / 8.0).abs() < 1e-7);
    assert!((ropes[1].frequencies[1] - 2e4_f32.powf(-0.125)).abs() < 1e-7);
    assert_eq!((new.attention_scale(), new.variant.embedding_scale), (0.125, Some(96_f32.sqrt())));
    assert!(new.tie_word_embeddings);
    // Four norms a layer and two of heads.
    assert_eq!(new.tensors().iter().filter(|tensor| tensor.name.contains("norm")).count(), 3 * 6 + 1);
    let scaled = json!({"sliding_attention": {"rope_type": "linear", "factor": 8.0}});
    let refused = json!({"model_type": "gemma3_text", "hidden_act": null, "rope_parameters": scaled});
    assert!(with(refused).unwrap_err().contains("rope_type of sliding_attention is \"linear\""));
}

#[test]
fn some_layers_have_experts() {
    let moe = |changes: Value| {
        let mut value = changes;
        value["model_type"] = json!("qwen3_moe");
        with(value)
    };
    let settings = json!({
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [1], "attention_bias": false,
    });
    let config = moe(settings).unwrap();
    let experts = config.variant.experts.clone().unwrap();
    assert_eq!((experts.count, experts.per_token, experts.width, experts.normalized), (4, 2, 24, true));
    assert_eq!(experts.layers, [true, false, true]);
    // The head, a dense layer, two of a router and four experts.
    assert_eq!(config.tensors().len(), 2 + 11 + 2 * (8 + 1 + 12) + 1);
    assert_eq!(config.targets().len(), 4);
    assert!(for_device(config).unwrap_err().message.contains("experts"));
    let defaults = moe(json!({})).unwrap().variant.experts.unwrap();
    assert_eq!(
        (defaults.count, defaults.per_token, defaults.width, defaults.normalized),
        (128, 8, 768, false)
    );
    assert!(moe(json!({"decoder_sparse_step": 4})).unwrap().variant.experts.is_none());
    for (changes, expected) in [
        (json!({"num_experts": 4}), "config.json: num_experts_per_tok is 8, but there are 4 experts"),
        (json!({"num_experts": 100_000}), "config.json: 3 layers of 100000 experts are more than 65536"),
        (json!({"mlp_only_layers": "all"}), "config.json: mlp_only_layers is not a list of layers"),
    ] {
        assert_eq!(moe(changes).unwrap_err(), expected);
    }
    let every = moe(json!({"use_sliding_window": true, "sliding_window": 7})).unwrap();
    assert_eq!(every.variant.windows, [Some(7); 3]);
}

#[test]
fn layers_without_rotary_positions() {
    let smollm3 = |mut changes: Value| {
        changes["model_type"] = json!("smollm3");
        changes["num_hidden_layers"] = json!(5);
        with(changes)
    };
    let plain = smollm3(json!({"rope_theta": null, "head_dim": null})).unwrap();
    assert_eq!(plain.rope_layers, [true, true, true, false, true]);
    assert_eq!((plain.family, plain.rope_theta, plain.tie_word_embeddings), ("SmolLM3", 2e6, true));
    assert_eq!(plain.decoder().layers.iter().filter(|layer| layer.rope.is_some()).count(), 4);
    let every_other = smollm3(json!({"no_rope_layer_interval": 2, "tie_word_embeddings": false})).unwrap();
    assert_eq!(every_other.rope_layers, [true, false, true, false, true]);
    assert_eq!(every_other.decoder().head().name, "lm_head.weight");
    // The list may be longer than the layers, and wins over the interval.
    let listed = json!({"no_rope_layers": [0, 1, 1, 1, 0, 1], "no_rope_layer_interval": 2});
    assert_eq!(smollm3(listed).unwrap().rope_layers, [false, true, true, true, false]);
    for list in [json!([1, 1]), json!([1, 1, 1, 1, 2]), json!("all"), json!([1, 1, 1, 1, true])] {
        assert_eq!(
            smollm3(json!({"no_rope_layers": list})).unwrap_err(),
            "config.json: no_rope_layers is not a 0 or 1 for each of 5 layers"
        );
    }
    let windows = |changes: Value| smollm3(changes).map(|config| config.variant.windows);
    let nope = json!({"use_sliding_window": true, "sliding_window": 128});
    assert_eq!(windows(nope), Ok(vec![None, None, None, Some(128), None]));
    let kinds = ["sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"];
    let listed = json!({"use_sliding_window": true, "sliding_window": 128, "layer_types": kinds});
    assert_eq!(windows(listed), Ok(vec![Some(128), None, None, None, None]));
    for refused in [json!({"sliding_window": 128, "layer_types": kinds}), json!({"layer_types": kinds[..2]})]
    {
        assert!(smollm3(refused.clone()).is_err(), "{refused}");
    }
    // Other families do not know these keys.
    assert_eq!(with(json!({"no_rope_layers": [0, 0, 0]})).unwrap().rope_layers, [true; 3]);
}

#[test]
fn unimplemented_settings_are_refused_by_name() {
    let cases = [
        (
            json!({"model_type": "mixtral"}),
            r#"config.json: model_type is "mixtral", which is not implemented"#,
        ),
        (json!({"model_type": null}), "config.json: model_type is missing"),
        (json!({"head_dim": 24}), "config.json: head_dim is 24, which the attention kernels cannot run"),
        (json!({"head_dim": 512}), "config.json: head_dim is 512, which the attention kernels cannot run"),
        (
            json!({"num_key_value_heads": 4}),
            "config.json: num_attention_heads is 6, which is not a multiple of num_key_value_heads 4",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
            r#"config.json: layer_types has "sliding_attention", but there is no window"#,
        ),
        (
            json!({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}),
            r#"config.json: layer_types has "chunked_attention", which is not implemented"#,
        ),
        (json!({"layer_types": ["full_attention"]}), "config.json: layer_types has 1 entries for 3 layers"),
        (
            json!({"rope_scaling": {"type": "longrope", "factor": 4.0}}),
            r#"config.json: rope_type is "longrope", which is not implemented"#,
        ),
        (
            json!({"model_type": "phi3", "rope_scaling": {"type": "longrope", "long_factor": [1.0]}}),
            "config.json: short_factor of the rope settings is not 8 positive numbers",
        ),
        (
            json!({"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1, 1, 1, 1, 1, 1, 1, 0]}}),
            "config.json: short_factor of the rope settings is not 8 positive numbers",
        ),
        (
            json!({"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 4.0}}),
            r#"config.json: rope_type is "yarn", which is not implemented"#,
        ),
        (json!({"model_type": "gemma3"}), r#"config.json: model_type is "gemma3", which is not implemented"#),
        (
            json!({"model_type": "gemma3_text", "hidden_act": null, "final_logit_softcapping": 30.0}),
            "config.json: final_logit_softcapping is 30.0, which is not implemented",
        ),
        (
            json!({"model_type": "gemma3_text", "hidden_act": null, "use_bidirectional_attention": true}),
            "config.json: use_bidirectional_attention is true, which is not implemented",
        ),
        (
            json!({"model_type": "gemma3_text"}),
            r#"config.json: hidden_act is "silu"; only "gelu_pytorch_tanh" is implemented"#,
        ),
        (
            json!({"model_type": "phi3", "partial_rotary_factor": 0.2}),
            "config.json: partial_rotary_factor is 0.2, which is no even part of 16 elements",
        ),
        (json!({"rope_parameters": {"rope_type": "dynamic"}}), "config.json: factor is missing"),
        (
            json!({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
            "config.json: rope_scaling conflicts with rope_parameters",
        ),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "config.json: factor is missing"),
        (
            json!({"rope_scaling": {"factor": 2.0}}),
            "config.json: the rope settings have a factor but no rope_type",
        ),
        (
            json!({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}),
            "config.json: the rope settings differ between layers (sliding_attention), which is not implemented",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "config.json: partial_rotary_factor is 0.5; this family rotates whole heads",
        ),
        (json!({"hidden_act": "gelu"}), r#"config.json: hidden_act is "gelu"; only "silu" is implemented"#),
        (
            json!({"mlp_bias": true}),
            "config.json: mlp_bias is true, which is not implemented for this family",
        ),
        (
            json!({"model_type": "mistral", "attention_bias": true}),
            "config.json: attention_bias is true, which is not implemented for this family",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "config.json: the weights are quantized (gptq)",
        ),
        (json!({"hidden_size": -1}), "config.json: hidden_size is -1, not a whole number from 1 to 16777216"),
        (
            json!({"hidden_size": 1e30}),
            "config.json: hidden_size is 1e30, not a whole number from 1 to 16777216",
        ),
        (json!({"vocab_size": null}), "config.json: vocab_size is missing"),
        (json!({"num_hidden_layers": 100000}), "config.json: num_hidden_layers is 100000, more than 4096"),
        (json!({"rms_norm_eps": 0}), "config.json: rms_norm_eps is 0, not a positive number"),
        (
            json!({"dtype": "int8"}),
            r#"config.json: dtype is "int8"; float32, bfloat16 and float16 are implemented"#,
        ),
        (
            json!({"tie_word_embeddings": "yes"}),
            r#"config.json: tie_word_embeddings is "yes", not true or false"#,
        ),
    ];
    for (change, expected) in cases {
        let message = with(change.clone()).expect_err(&change.to_string());
        // serde_json may spell the number with a sign in the exponent.
        assert_eq!(message.replace("1e+30", "1e30"), expected);
    }
}
