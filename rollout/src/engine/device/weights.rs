//! The weights of a policy in device memory, bound to the sessions as inputs of their graphs.
//!
//! Another version of the same architecture is written over them, and everything that was captured goes on with it.

use super::config::{Activation, check_range};
use super::sessions::Sessions;
use device::{Buffer, Device, Slice, footprint};
use policy::config::Config;
use policy::graph::{self, Parameter};
use policy::weights::{TensorView, Weights};
use record::failure::Result;

/// Values that are converted at a time.
const CHUNK: usize = 1 << 22;

/// All weights of a policy.
pub struct DeviceWeights<T: Activation> {
    /// The first is the embedding, the last the head unless they are tied.
    buffers: Vec<(Parameter, Buffer<T>)>,
}

/// The inputs of the graph, then the head if it has separate weights.
fn all(config: &Config) -> Vec<Parameter> {
    let mut all = graph::parameters(config);
    let decoder = config.decoder();
    let head = decoder.head();
    if head.name != all[0].name {
        all.push(Parameter {
            name: head.name.clone(),
            shape: head.shape.clone(),
            parts: vec![head.name.clone()],
        });
    }
    all
}

impl<T: Activation> DeviceWeights<T> {
    /// Bytes of the device's arena.
    pub fn bytes(config: &Config) -> u64 {
        let bytes = |parameter: &Parameter| {
            footprint((parameter.shape.iter().product::<usize>() * size_of::<T>()) as u64)
        };
        all(config).iter().map(bytes).sum()
    }

    /// Memory for the weights, bound to the sessions.
    ///
    /// # Errors
    /// 69 where the arena is too small; 1 where ONNX Runtime refuses.
    pub fn new<D: Device>(
        config: &Config,
        device: &mut D,
        sessions: &mut Sessions,
    ) -> Result<DeviceWeights<T>> {
        let inputs = graph::parameters(config).len();
        let mut buffers = Vec::new();
        for (index, parameter) in all(config).into_iter().enumerate() {
            let buffer = device.allocate::<T>(parameter.shape.iter().product())?;
            if index < inputs {
                sessions.input::<T>(&parameter.name, buffer.address(), &parameter.shape)?;
            }
            buffers.push((parameter, buffer));
        }
        Ok(DeviceWeights { buffers })
    }

    /// Copies a checkpoint's weights to the device, rounded.
    ///
    /// # Errors
    /// A tensor that is missing or of no floating type; a device that fails.
    pub fn load<D: Device>(&self, device: &mut D, weights: &Weights) -> Result<()> {
        for (parameter, buffer) in &self.buffers {
            let mut first = 0;
            for part in &parameter.parts {
                let tensor = weights.tensor(part)?;
                let count = tensor.shape.iter().product::<usize>();
                write(device, part, &tensor, buffer.slice(first..first + count))?;
                first += count;
            }
        }
        Ok(())
    }

    /// The head, `[vocabulary, hidden]`.
    pub fn head(&self, config: &Config) -> &Buffer<T> {
        let tied = config.tie_word_embeddings;
        let at = if tied { 0 } else { self.buffers.len() - 1 };
        &self.buffers[at].1
    }
}

fn write<D: Device, T: Activation>(
    device: &mut D,
    name: &str,
    tensor: &TensorView<'_>,
    to: Slice<'_, T>,
) -> Result<()> {
    if let Some(stored) = T::stored(tensor) {
        return device.upload(stored, to);
    }
    let mut values = vec![0.0; to.len().min(CHUNK)];
    let mut rounded = Vec::with_capacity(values.len());
    for first in (0..to.len()).step_by(CHUNK) {
        let count = CHUNK.min(to.len() - first);
        tensor.read(first, &mut values[..count])?;
        check_range::<T>(name, &values[..count])?;
        rounded.clear();
        rounded.extend(values[..count].iter().map(|&value| T::round(value)));
        device.upload(&rounded, to.slice(first..first + count))?;
    }
    Ok(())
}
