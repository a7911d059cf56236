//! The decoder graph: what it refers to, found again by reading the protobuf independently.

use policy::adapter::{Adapter, Target};
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Arithmetic, Kind, Products, Stack};
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
    let model = match kind {
        Kind::Paged(arithmetic) => graph::paged_decoder(&config, &weights, arithmetic, stack).unwrap(),
        _ => graph::decoder(&config, &weights, kind).unwrap(),
    };
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
    let paged = [Kind::Paged(Arithmetic::BF16), Kind::Paged(Arithmetic::F32)];
    let shared_prefix = [Products::OnnxRuntime, Products::Own]
        .into_iter()
        .flat_map(|products| [false, true].map(|adapted| Kind::SharedPrefix { products, adapted }));
    let plain = shared_prefix.chain([Kind::GroupQuery]);
    let none = Stack::new([]);
    let two = Stack::new(&[
        adapter(3, &[Target::Query, Target::Value, Target::Up]),
        adapter(8, &[Target::Query, Target::Key, Target::Value, Target::Output, Target::Gate, Target::Down]),
    ]);
    let one = Stack::new(&[adapter(4, &[Target::Down])]);
    let stacked = paged.into_iter().flat_map(|kind| [(kind, &none), (kind, &two), (kind, &one)]);
    for (kind, stack) in plain.map(|kind| (kind, &none)).chain(stacked) {
        let graph = graph_of(&policy, kind, stack);
        let mut known: Vec<String> = Vec::new();
        let mut external = 0;
        for (number, message) in fields(&graph) {
            let name = |field| texts(message, field)[0].to_owned();
            match number {
                11 => known.push(name(1)),
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
        };
        assert_eq!(count(attention), 3, "{kind:?}");
        let factors = stack.factors(&Config::load(&policy.files).unwrap());
        assert!(factors.iter().all(|factor| known.contains(&factor.name)));
        // Of each layer a product and a sum for each target of any adapter.
        let targets = if *stack == two { 7 } else { usize::from(*stack == one) };
        assert_eq!(count("Gemm"), 3 * targets, "{kind:?}");
        assert_eq!(factors.iter().filter(|factor| !factor.is_a).count(), 3 * targets);
        assert_eq!(known.iter().any(|name| name == "adapter"), targets > 0);
        let own = attention == "SharedPrefixAttention";
        // Of each layer: query, key and value together, the attention's output, gate and up together, down.
        let adapted = matches!(kind, Kind::SharedPrefix { adapted: true, .. });
        assert_eq!(count("LowRank"), if adapted { 3 * 4 } else { 0 });
        let products = matches!(kind, Kind::SharedPrefix { products: Products::Own, .. });
        assert_eq!(count("Linear"), if products { 3 * 4 + 1 } else { 0 });
        assert_eq!(count("SwiGlu"), if own { 3 } else { 0 });
        // The shared-prefix graph holds the q and k norms itself; the tied head is one initializer, used twice.
        // What our own operator multiplies with is not there at all; the embedding is, which is looked up.
        assert_eq!(
            external,
            if products {
                35 - 6 - 3 * 7
            } else if own {
                35 - 6
            } else {
                35
            }
        );
    }
}

#[test]
fn a_table_that_no_product_reads_is_not_cast_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let casts = |tied: bool, products: Products| {
        let geometry = serde_json::json!({
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e4, "hidden_act": "silu", "attention_bias": false,
            "max_position_embeddings": 64, "tie_word_embeddings": tied, "torch_dtype": "bfloat16",
        });
        let file = directory.path().join("config.json");
        std::fs::write(&file, geometry.to_string()).unwrap();
        let name = format!("{tied}-{products:?}");
        let policy = policy::initial::from_config(&directory.path().join(name), &file, 7).unwrap();
        let graph = graph_of(&policy, Kind::SharedPrefix { products, adapted: false }, &Stack::new([]));
        let of_node = |node: &[u8]| (texts(node, 4)[0] == "Cast").then(|| texts(node, 1)[0].to_owned());
        let nodes = fields(&graph).into_iter().filter(|(number, _)| *number == 1);
        nodes.filter_map(|(_, node)| of_node(node)).collect::<Vec<String>>()
    };
    let table = "model.embed_tokens.weight";
    for (tied, products) in [(true, Products::Own), (false, Products::Own), (false, Products::OnnxRuntime)] {
        let found = casts(tied, products);
        assert!(found.iter().any(|input| input == "x.0.stored"), "{tied} {products:?}: {found:?}");
        assert!(!found.iter().any(|input| input == table), "{tied} {products:?}: {found:?}");
    }
    // The head multiplies with it: one cast for both.
    let found = casts(true, Products::OnnxRuntime);
    assert_eq!(found.iter().filter(|input| *input == table).count(), 1);
    assert!(!found.iter().any(|input| input == "x.0.stored"), "{found:?}");
}
