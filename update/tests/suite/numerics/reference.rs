//! The decoder in f64, one sequence at a time, in the plainest loops there are.

use policy::config::Config;
use update::model::Parameters;

/// A decoder's tensors in f64.
pub struct Reference<'a> {
    config: &'a Config,
    parameters: &'a Parameters,
    values: Vec<f64>,
}

fn norm(x: &[f64], weight: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + epsilon).sqrt() * w).collect()
}

fn product(weight: &[f64], x: &[f64]) -> Vec<f64> {
    weight.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

impl<'a> Reference<'a> {
    pub fn new(config: &'a Config, parameters: &'a Parameters) -> Reference<'a> {
        Reference { config, parameters, values: parameters.values.iter().map(|&v| f64::from(v)).collect() }
    }

    /// The weights moved by `step` along `direction`.
    pub fn moved(&self, direction: &[f64], step: f64) -> Reference<'a> {
        let values = self.values.iter().zip(direction).map(|(value, d)| value + step * d).collect();
        Reference { config: self.config, parameters: self.parameters, values }
    }

    fn tensor(&self, name: &str) -> &[f64] {
        let entry = self.parameters.layout().entries.iter().find(|entry| entry.name == name).expect(name);
        &self.values[entry.range.clone()]
    }

    fn of_layer(&self, layer: usize, name: &str) -> &[f64] {
        self.tensor(&format!("model.layers.{layer}.{name}"))
    }

    fn heads(&self, layer: usize, kind: &str, x: &[f64], position: usize) -> Vec<f64> {
        let width = self.config.head_dim;
        let mut values = product(self.of_layer(layer, &format!("self_attn.{kind}_proj.weight")), x);
        if self.config.attention_bias {
            let bias = self.of_layer(layer, &format!("self_attn.{kind}_proj.bias"));
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        if kind == "v" {
            return values;
        }
        let frequencies = self.config.inverse_frequencies();
        let position = if self.config.rope_layers[layer] { position } else { 0 };
        for head in values.chunks_exact_mut(width) {
            if self.config.qk_norm {
                let weight = self.of_layer(layer, &format!("self_attn.{kind}_norm.weight"));
                head.copy_from_slice(&norm(head, weight, f64::from(self.config.rms_norm_eps)));
            }
            for pair in 0..width / 2 {
                let angle = f64::from(frequencies[pair]) * position as f64;
                let (a, b) = (head[pair], head[pair + width / 2]);
                head[pair] = a * angle.cos() - b * angle.sin();
                head[pair + width / 2] = b * angle.cos() + a * angle.sin();
            }
        }
        values
    }

    /// Log-probability and entropy of each completion token.
    pub fn score(&self, prompt: &[u32], completion: &[u32], temperature: f64) -> Vec<(f64, f64)> {
        let config = self.config;
        let (hidden, epsilon, width) = (config.hidden_size, f64::from(config.rms_norm_eps), config.head_dim);
        let tokens: Vec<u32> = prompt.iter().chain(completion).copied().collect();
        let table = self.tensor("model.embed_tokens.weight");
        let mut stream: Vec<Vec<f64>> =
            tokens.iter().map(|&id| table[id as usize * hidden..][..hidden].to_vec()).collect();
        for layer in 0..config.num_layers {
            let weight = self.of_layer(layer, "input_layernorm.weight");
            let normal: Vec<Vec<f64>> = stream.iter().map(|x| norm(x, weight, epsilon)).collect();
            let of = |kind: &str| -> Vec<Vec<f64>> {
                normal.iter().enumerate().map(|(place, x)| self.heads(layer, kind, x, place)).collect()
            };
            let (q, k, v) = (of("q"), of("k"), of("v"));
            for place in 0..tokens.len() {
                let mut mixed = vec![0.0; config.num_heads * width];
                for head in 0..config.num_heads {
                    let key_head = head / (config.num_heads / config.num_kv_heads) * width;
                    let query = &q[place][head * width..][..width];
                    let scores: Vec<f64> = (0..=place)
                        .map(|key| {
                            let key = &k[key][key_head..][..width];
                            (query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / (width as f64).sqrt())
                                .exp()
                        })
                        .collect();
                    let total: f64 = scores.iter().sum();
                    for (key, score) in scores.iter().enumerate() {
                        for i in 0..width {
                            mixed[head * width + i] += score / total * v[key][key_head + i];
                        }
                    }
                }
                let update = product(self.of_layer(layer, "self_attn.o_proj.weight"), &mixed);
                stream[place].iter_mut().zip(update).for_each(|(x, u)| *x += u);
                let weight = self.of_layer(layer, "post_attention_layernorm.weight");
                let normal = norm(&stream[place], weight, epsilon);
                let gate = product(self.of_layer(layer, "mlp.gate_proj.weight"), &normal);
                let up = product(self.of_layer(layer, "mlp.up_proj.weight"), &normal);
                let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let update = product(self.of_layer(layer, "mlp.down_proj.weight"), &inner);
                stream[place].iter_mut().zip(update).for_each(|(x, u)| *x += u);
            }
        }
        let head = self.tensor(if config.tie_word_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        });
        completion
            .iter()
            .enumerate()
            .map(|(index, &target)| {
                let x = norm(&stream[prompt.len() + index - 1], self.tensor("model.norm.weight"), epsilon);
                let logits: Vec<f64> = product(head, &x).iter().map(|logit| logit / temperature).collect();
                let total = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
                let entropy = logits.iter().map(|logit| -(logit - total).exp() * (logit - total)).sum();
                (logits[target as usize] - total, entropy)
            })
            .collect()
    }
}
