//! The golden checkpoints: their contents, and the loss that PyTorch differentiated.

use policy::config::Config;
use policy::weights::Weights;
use serde_json::Value;
use std::path::{Path, PathBuf};
use update::model::{Model, Parameters, RowLoss};
use update::tree::{Sequence, Tree};

/// Checkpoints that have a file of this name; `TROUPE_GOLDEN` names another place for all of them.
pub fn checkpoints(with: &str) -> Vec<PathBuf> {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let folder = std::env::var_os("TROUPE_GOLDEN").map_or_else(here, PathBuf::from);
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join(with).exists()).collect();
    found.sort();
    found
}

/// A checkpoint's decoder and weights.
pub fn load(directory: &Path) -> (Model, Parameters) {
    let config = Config::load(directory).unwrap();
    let tensors = Weights::of_model(directory, &Config::load(directory).unwrap()).unwrap();
    let model = Model::new(config);
    let parameters = model.parameters(|entry, values| {
        let read = tensors.to_f32(&entry.name)?;
        assert_eq!(tensors.tensor(&entry.name)?.shape, entry.shape);
        values.copy_from_slice(&read);
        Ok::<(), record::failure::Failure>(())
    });
    (model, parameters.unwrap())
}

pub fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// PPO's clipped objective (arXiv 1707.06347, equation 7), averaged over tokens.
pub struct Clip {
    /// Behavior log-probabilities and advantage of each sample.
    samples: Vec<(Vec<f64>, f64)>,
    clip: f64,
    tokens: f64,
}

impl RowLoss for Clip {
    fn rows(&self, _: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]) {
        for ((row, &logprob), derivative) in tree.rows.iter().zip(logprobs).zip(derivative) {
            let (behavior, advantage) = &self.samples[row.sequence as usize];
            let ratio = (f64::from(logprob) - behavior[row.index as usize]).exp();
            let clipped = if *advantage > 0.0 { ratio > 1.0 + self.clip } else { ratio < 1.0 - self.clip };
            *derivative = if clipped { 0.0 } else { (-ratio * advantage / self.tokens) as f32 };
        }
    }
}

/// The slopes of [`Clip`] for given log-probabilities, so that rounding does not decide the clipping.
pub struct Slopes {
    clip: Clip,
    logprobs: Vec<Vec<f32>>,
}

impl RowLoss for Slopes {
    fn rows(&self, index: usize, tree: &Tree, _: &[f32], derivative: &mut [f32]) {
        let given = tree.rows.iter().map(|row| self.logprobs[row.sequence as usize][row.index as usize]);
        self.clip.rows(index, tree, &given.collect::<Vec<f32>>(), derivative);
    }
}

/// Completions with their log-probabilities.
pub struct Logprobs {
    samples: Vec<(Vec<u32>, Vec<u32>, Value)>,
}

/// `logprobs.json` of a checkpoint.
pub fn logprob_cases(directory: &Path) -> Logprobs {
    let cases = json(&directory.join("logprobs.json"));
    let samples = cases["cases"].as_array().unwrap().iter().flat_map(|case| {
        let completions = case["completions"].as_array().unwrap();
        completions.iter().map(|c| (ids(&case["prompt_ids"]), ids(&c["completion_ids"]), c.clone()))
    });
    Logprobs { samples: samples.collect() }
}

impl Logprobs {
    pub fn sequences(&self) -> Vec<Sequence<'_>> {
        self.samples.iter().map(|(prompt, completion, _)| Sequence { prompt, completion }).collect()
    }

    /// Temperatures, and the log-probabilities under each.
    pub fn truths(&self) -> Vec<(f32, Vec<f64>)> {
        [(1.0, "logprobs"), (0.7, "logprobs_temperature_0.7")]
            .map(|(temperature, field)| {
                (temperature, self.samples.iter().flat_map(|(_, _, case)| numbers(&case[field])).collect())
            })
            .to_vec()
    }
}

/// A stream of samples whose gradient PyTorch computed.
pub struct Case {
    tokens: Vec<(Vec<u32>, Vec<u32>)>,
    samples: Vec<(Vec<f64>, f64)>,
    clip: f64,
    count: f64,
    /// Temperature of the softmax.
    pub temperature: f32,
    /// Log-probabilities of all completion tokens.
    pub logprobs: Vec<f64>,
}

impl Case {
    /// The samples of a checkpoint.
    pub fn read(directory: &Path) -> Case {
        let golden = json(&directory.join("gradient.json"));
        let stream = std::fs::read_to_string(directory.join("samples.jsonl")).unwrap();
        let lines = stream.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines: Vec<Value> = lines.filter(|line| line["type"] == "sample").collect();
        Case {
            tokens: lines.iter().map(|l| (ids(&l["prompt_ids"]), ids(&l["completion_ids"]))).collect(),
            samples: lines
                .iter()
                .map(|line| (numbers(&line["completion_logprobs"]), line["advantage"].as_f64().unwrap()))
                .collect(),
            clip: golden["clip"].as_f64().unwrap(),
            count: golden["tokens"].as_f64().unwrap(),
            temperature: golden["temperature"].as_f64().unwrap() as f32,
            logprobs: golden["logprobs"].as_array().unwrap().iter().flat_map(numbers).collect(),
        }
    }

    pub fn sequences(&self) -> Vec<Sequence<'_>> {
        self.tokens.iter().map(|(prompt, completion)| Sequence { prompt, completion }).collect()
    }

    /// Its slopes at the log-probabilities that PyTorch found.
    pub fn slopes(&self) -> Slopes {
        let mut all = self.logprobs.iter().map(|&logprob| logprob as f32);
        let of = |(_, completion): &(Vec<u32>, Vec<u32>)| all.by_ref().take(completion.len()).collect();
        Slopes { clip: self.loss(), logprobs: self.tokens.iter().map(of).collect() }
    }

    /// The loss that was differentiated.
    pub fn loss(&self) -> Clip {
        Clip { samples: self.samples.clone(), clip: self.clip, tokens: self.count }
    }
}
