//! The decoder graph: its references are found again by an independent reader of the protobuf.

use policy::adapter::{Adapter, Target};
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Arithmetic, Kind, Stack, fed_tensors, parameters};
use policy::weights::Weights;

/// A field of a protobuf message: its number and its bytes (empty for numbers).
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut all = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                varint(&mut message);
                0
            }
            5 => 4,
            2 => varint(&mut message) as usize,
            other => panic!("wire type {other}"),
        };
        let (field, rest) = message.split_at(length);
        all.push((key >> 3, field));
        message = rest;
    }
    all
}

fn texts(message: &[u8], field: u64) -> Vec<&str> {
    fields(message)
        .into_iter()
        .filter(|(number, _)| *number == field)
        .map(|(_, text)| str::from_utf8(text).unwrap())
        .collect()
}

fn graph_of(policy: &Policy, kind: Kind, stack: &Stack) -> Vec<u8> {
    let config = Config::load(&policy.files).unwrap();
    let weights = Weights::open(&policy.files).unwrap();
    let model = graph::adapted_decoder(&config, &weights, kind, stack).unwrap();
    fields(&model).into_iter().find(|(number, _)| *number == 7).unwrap().1.to_vec()
}

fn adapter(rank: usize, targets: &[Target]) -> Adapter {
    Adapter::new(rank, 1.0, targets.to_vec())
}

#[test]
fn every_value_is_made_before_it_is_used_and_every_initializer_points_to_its_tensor() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "tiny");
    let weights = Weights::open(&policy.files).unwrap();
    let paged =
        [Arithmetic::BF16, Arithmetic::F32].map(|of| [Kind::Paged(of), Kind::Prefill(of), Kind::Decode(of)]);
    let paged = paged.concat();
    let shared_prefix = [false, true].map(|adapted| Kind::SharedPrefix { adapted });
    let plain = shared_prefix.into_iter().chain([Kind::GroupQuery]);
    let none = Stack::new([]);
    let two = Stack::new(&[
        adapter(3, &[Target::Query, Target::Value, Target::Up]),
        adapter(8, &[Target::Query, Target::Key, Target::Value, Target::Output, Target::Gate, Target::Down]),
    ]);
    let one = Stack::new(&[adapter(4, &[Target::Down])]);
    let stacked = paged.into_iter().flat_map(|kind| [(kind, &none), (kind, &two), (kind, &one)]);
    for (kind, stack) in plain.map(|kind| (kind, &none)).chain(stacked) {
        let graph = graph_of(&policy, kind, stack);
        let (mut known, mut inputs): (Vec<String>, Vec<String>) = Default::default();
        let mut external = 0;
        for (number, message) in fields(&graph) {
            let name = |field| texts(message, field)[0].to_owned();
            match number {
                11 => {
                    inputs.push(name(1));
                    known.push(name(1));
                }
                5 => {
                    let entries: Vec<(&str, &str)> = fields(message)
                        .into_iter()
                        .filter(|(number, _)| *number == 13)
                        .map(|(_, entry)| (texts(entry, 1)[0], texts(entry, 2)[0]))
                        .collect();
                    if !entries.is_empty() {
                        external += 1;
                        let view = weights.tensor(&name(8)).unwrap();
                        let (offset, length) = (view.offset.to_string(), view.bytes.len().to_string());
                        let place =
                            [("location", "model.safetensors"), ("offset", &offset), ("length", &length)];
                        assert_eq!(entries, place);
                    }
                    known.push(name(8));
                }
                _ => {}
            }
        }
        let mut operators = Vec::new();
        for (_, node) in fields(&graph).into_iter().filter(|(number, _)| *number == 1) {
            for input in texts(node, 1).into_iter().filter(|input| !input.is_empty()) {
                assert!(
                    known.iter().any(|value| value == input),
                    "{kind:?}: {input} is not made before it is used"
                );
            }
            known.extend(texts(node, 2).into_iter().map(str::to_owned));
            operators.push(texts(node, 4)[0].to_owned());
        }
        let count = |operator: &str| operators.iter().filter(|name| *name == operator).count();
        let attention = match kind {
            Kind::SharedPrefix { .. } => "SharedPrefixAttention",
            Kind::GroupQuery => "GroupQueryAttention",
            Kind::Paged(_) => "PagedAttention",
            Kind::Prefill(_) => "PrefillAttention",
            Kind::Decode(_) => "DecodeAttention",
        };
        assert_eq!(count(attention), 3, "{kind:?}");
        let factors = stack.factors(&Config::load(&policy.files).unwrap());
        assert!(factors.iter().all(|factor| known.contains(&factor.name)));
        // Each layer has query, key and value together, the attention's output, gate and up together, down;
        // with adapters each of these also has their product, which takes one product with A and one with B.
        let sites = if *stack == two { 4 } else { usize::from(*stack == one) };
        assert_eq!(factors.len(), 3 * 2 * sites);
        assert_eq!(count("Mul"), if attention == "GroupQueryAttention" { 3 } else { 3 * sites }, "{kind:?}");
        assert_eq!(known.iter().any(|name| name == "adapter"), sites > 0);
        let own = attention == "SharedPrefixAttention";
        let paged = kind.arithmetic().is_some();
        let adapted = kind == Kind::SharedPrefix { adapted: true };
        assert_eq!(count("LowRank"), if adapted { 3 * 4 } else { 0 });
        let products = if own { 3 * 4 + 1 } else { 0 } + if paged { 3 * 4 + 3 * 2 * sites } else { 0 };
        assert_eq!(count("Linear") + count("ResidualLinear"), products);
        // Additions to the residual stream are made before it is rounded.
        let residual = 3 * 2 + if *stack == two { 3 * 2 } else { 3 * sites };
        assert_eq!(count("ResidualLinear"), if paged { residual } else { 0 });
        assert_eq!(count("SwiGlu"), if own || paged { 3 } else { 0 });
        // In bf16 the residual stream is f32: the embeddings are cast to it, and nothing else is.
        let in_bf16 = kind.arithmetic() == Some(Arithmetic::BF16);
        let casts = usize::from(in_bf16);
        assert_eq!(count("Cast"), casts, "{kind:?}");
        // The tied head is one initializer, used twice. The other graphs have none of weights: those are inputs or the state of
        // operators.
        assert_eq!(external, if own || paged { 0 } else { 35 });
        if paged {
            let config = Config::load(&policy.files).unwrap();
            let wanted = parameters(&config);
            // The embedding, four matrices and four norms a layer, and the last norm.
            assert_eq!(wanted.len(), 1 + 3 * (4 + 4) + 1);
            assert!(wanted.iter().all(|parameter| inputs.contains(&parameter.name)), "{inputs:?}");
        }
        let decoder = Config::load(&policy.files).unwrap().decoder();
        let fed: Vec<&str> = fed_tensors(&decoder).map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(fed.len(), 1 + 3 * 2 + 1);
        if own {
            assert_eq!(inputs[..2], ["input_ids", "last_idx"]);
            assert_eq!(inputs[2..], fed);
        }
    }
}

#[test]
fn a_shared_prefix_graph_depends_on_no_weights_and_casts_only_the_rows_that_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut graphs = Vec::new();
    for (seed, tied, dtype) in
        [(7, true, "bfloat16"), (8, true, "bfloat16"), (7, false, "bfloat16"), (7, true, "float32")]
    {
        let geometry = serde_json::json!({
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e4, "hidden_act": "silu", "attention_bias": false,
            "max_position_embeddings": 64, "tie_word_embeddings": tied, "torch_dtype": dtype,
        });
        let file = directory.path().join("config.json");
        std::fs::write(&file, geometry.to_string()).unwrap();
        let name = format!("{seed}-{tied}-{dtype}");
        let policy = policy::initial::from_config(&directory.path().join(name), &file, seed).unwrap();
        let graph = graph_of(&policy, Kind::SharedPrefix { adapted: false }, &Stack::new([]));
        let of_node = |node: &[u8]| (texts(node, 4)[0] == "Cast").then(|| texts(node, 1)[0].to_owned());
        let nodes = fields(&graph).into_iter().filter(|(number, _)| *number == 1);
        let casts: Vec<String> = nodes.filter_map(|(_, node)| of_node(node)).collect();
        let expected: &[&str] = if dtype == "bfloat16" { &["x.0.stored"] } else { &[] };
        assert_eq!(casts, expected);
        graphs.push(graph);
    }
    assert!(graphs[1..3].iter().all(|other| *other == graphs[0]));
    assert_ne!(graphs[3], graphs[0]);
}

/// The matrices of a site are one, in any order of a checkpoint's tensors.
#[test]
fn the_parameters_of_a_paged_graph_are_each_tensor_once() {
    let directory = tempfile::tempdir().unwrap();
    let policy = crate::tiny(directory.path(), "tiny");
    let config = Config::load(&policy.files).unwrap();
    let decoder = config.decoder();
    let all = parameters(&config);
    let mut parts: Vec<&str> =
        all.iter().flat_map(|parameter| parameter.parts.iter().map(String::as_str)).collect();
    let mut wanted: Vec<&str> = decoder.tensors().map(|tensor| tensor.name.as_str()).collect();
    parts.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(parts, wanted);
    let packed = all.iter().find(|parameter| parameter.name == "weight.qkv.1").unwrap();
    let module = |part: &str| format!("model.layers.1.self_attn.{part}_proj.weight");
    assert_eq!(packed.parts, ["q", "k", "v"].map(module));
    assert_eq!(packed.shape, [config.query_width() + 2 * config.key_width(), config.hidden_size]);
}
