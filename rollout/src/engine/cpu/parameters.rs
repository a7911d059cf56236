//! The parameters of a version as the operators read them. The graph holds no parameters, so a session
//! outlives the version that it was opened for, and a change of adapters replaces only the adapters.

use super::adapters::Adapter;
use super::experts::Experts;
use super::linear::Linears;
use crate::engine::onnx::{Memory, Tensor};
use gemm::{Isa, Precision};
use half::{bf16, f16};
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{fed_tensors, norm_values};
use policy::weights::{ElementType, TensorView, Weights};
use record::failure::{Failure, Result};
use std::ffi::CString;
use std::sync::Arc;

/// A model and adapters over it.
pub struct ModelParameters {
    /// The model.
    pub base: Arc<Base>,
    /// By index.
    pub adapters: Vec<Adapter>,
}

/// The parameters of a model.
pub struct Base {
    /// Projections and the head.
    pub linears: Linears,
    /// Experts by layer, for layers that have them.
    pub experts: Vec<Option<Experts>>,
    /// Norm weights of each layer's queries and keys, `[head_dim]` each; `None` without such norms.
    pub head_norms: Vec<Option<[Vec<f32>; 2]>>,
    /// The graph's inputs.
    pub fed: Vec<Fed>,
    /// The memory that `fed` points to.
    _norms: Vec<Vec<f32>>,
    weights: Arc<Weights>,
}

/// A tensor that is an input of the graph.
pub struct Fed {
    /// The input's name.
    pub name: CString,
    pub value: Tensor,
}

impl Base {
    /// Reads weights that fit the configuration.
    ///
    /// # Errors
    /// A tensor is missing or of no floating type.
    pub fn load(config: &Config, weights: Arc<Weights>, precision: Precision, isa: Isa) -> Result<Base> {
        let linears = Linears::load(config, &weights, precision, isa)?;
        let experts = Experts::load(config, &weights, precision, isa)?;
        let decoder = config.decoder();
        let values = |name: &str| norm_values(config, &weights, name);
        let head_norms = decoder.layers.iter().map(|layer| {
            let Some([query, key]) = &layer.qk_norm else { return Ok(None) };
            Ok(Some([values(&query.name)?, values(&key.name)?]))
        });
        let head_norms = head_norms.collect::<Result<_>>()?;
        let memory = Memory::host()?;
        let (mut fed, mut norms) = (Vec::new(), Vec::new());
        for (index, tensor) in fed_tensors(&decoder).enumerate() {
            let value = if index == 0 {
                over_mapped(&memory, &weights.tensor(&tensor.name)?)?
            } else {
                let mut values = values(&tensor.name)?;
                let value = Tensor::over(&memory, values.as_mut_ptr(), &tensor.shape)?;
                norms.push(values);
                value
            };
            let name = CString::new(tensor.name.as_str()).expect("a tensor's name has no zero byte");
            fed.push(Fed { name, value });
        }
        Ok(Base { linears, experts, head_norms, fed, _norms: norms, weights })
    }

    /// Returns true if these are what would be read from `weights`.
    pub fn is_of(&self, weights: &Weights) -> bool {
        self.weights.is_same_files(weights)
    }
}

/// A tensor over the mapped file, which must stay mapped as long.
fn over_mapped(memory: &Memory, tensor: &TensorView) -> Result<Tensor> {
    let at = tensor.bytes.as_ptr().cast_mut();
    match tensor.dtype {
        ElementType::F32 => Tensor::over(memory, at.cast::<f32>(), tensor.shape),
        ElementType::BF16 => Tensor::over(memory, at.cast::<bf16>(), tensor.shape),
        ElementType::F16 => Tensor::over(memory, at.cast::<f16>(), tensor.shape),
        other => Err(Failure::data(format!("{}: {other:?} is no type of weights", tensor.file.display()))),
    }
}

impl ModelParameters {
    /// Reads the adapters among policies over a model.
    pub fn over(
        base: Arc<Base>,
        policies: &[&Policy],
        config: &Config,
        precision: Precision,
        isa: Isa,
    ) -> Result<ModelParameters> {
        let adapted = policies.iter().filter(|policy| policy.base.is_some());
        let load = |policy: &&Policy| Adapter::load(policy, config, precision, isa);
        let adapters = adapted.map(load).collect::<Result<_>>()?;
        Ok(ModelParameters { base, adapters })
    }
}
