//! The model through ONNX Runtime's `GroupQueryAttention`: one sequence, all positions at once.

use ort::session::Session;
use ort::value::Tensor;
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Kind};
use policy::weights::Weights;

/// A session over the portable graph.
pub struct Oracle {
    session: Session,
    config: Config,
}

impl Oracle {
    pub fn open(policy: &Policy) -> Self {
        let config = Config::load(&policy.files).expect("a configuration");
        let weights = Weights::of_model(&policy.files, &config).expect("weights");
        let graph = graph::decoder(&config, &weights, Kind::GroupQuery).expect("a graph");
        let environment = crate::runtime::environment().expect("ONNX Runtime");
        let folder = weights.folder().expect("one folder").to_str().expect("UTF-8");
        let builder = Session::builder(environment)
            .expect("a builder")
            .with_intra_threads(1)
            .expect("an option")
            .with_config_entry("session.model_external_initializers_file_folder_path", folder)
            .expect("an option");
        let session = crate::runtime::open_session(builder, &graph).expect("a session");
        Oracle { session, config }
    }

    /// Logits after each position of the sequence from `first` on, `[positions][vocab_size]`.
    pub fn logits(&mut self, ids: &[u32], first: usize) -> Vec<Vec<f32>> {
        let count = ids.len();
        let numbers: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
        let rows: Vec<i64> = (first as i64..count as i64).collect();
        let wanted = rows.len();
        let mut inputs: Vec<(String, ort::session::SessionInputValue)> = vec![
            ("input_ids".into(), Tensor::from_array(([1, count], numbers)).expect("a tensor").into()),
            ("seqlens_k".into(), Tensor::from_array(([1], vec![count as i32 - 1])).expect("a tensor").into()),
            (
                "total_len".into(),
                Tensor::from_array((Vec::<i64>::new(), vec![count as i32])).expect("a tensor").into(),
            ),
            ("last_idx".into(), Tensor::from_array(([wanted], rows)).expect("a tensor").into()),
        ];
        let Config { num_layers, num_kv_heads, head_dim, .. } = self.config;
        for layer in 0..num_layers {
            for side in ["k", "v"] {
                let past = vec![0.0_f32; num_kv_heads * count * head_dim];
                let past = Tensor::from_array(([1, num_kv_heads, count, head_dim], past)).expect("a tensor");
                inputs.push((format!("past_{side}.{layer}"), past.into()));
            }
        }
        let outputs = self.session.run(inputs).expect("a run");
        let (_, logits) = outputs["logits"].try_extract_tensor::<f32>().expect("logits");
        logits.chunks_exact(self.config.vocab_size).map(<[f32]>::to_vec).collect()
    }
}
