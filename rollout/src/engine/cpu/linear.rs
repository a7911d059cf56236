//! Projections with packed weights.
//!
//! Weights go from the mapped checkpoint into the order in which the kernels read them, once for all threads; ONNX
//! Runtime never sees them. Projections of the same input (query, key and value; gate and up) are one product. With
//! [`Precision::BFloat16`] weights and inputs are rounded to bf16, sums stay f32. A row's result does not depend on how
//! many rows there are.

use gemm::{Onto, Packed, Packing, Precision, Scratch, View};
use policy::config::Config;
use policy::graph::SITES;
use policy::weights::{TensorView, Weights};
use record::failure::Result;

/// All projections of a decoder.
pub struct Linears {
    /// By layer and site.
    layers: Vec<[Linear; SITES.len()]>,
    head: Linear,
}

/// One projection.
pub struct Linear {
    weight: Packed,
    bias: Option<Vec<f32>>,
}

impl Linears {
    /// Packs the weights of a checkpoint that fits its configuration.
    ///
    /// # Errors
    /// A tensor is missing or of no floating type.
    pub fn load(config: &Config, weights: &Weights, precision: Precision) -> Result<Linears> {
        let mut numbers = Vec::new();
        let mut site = |layer: usize, site: usize| -> Result<Linear> {
            let modules: Vec<String> = SITES[site].iter().map(|target| target.module(layer)).collect();
            let names: Vec<String> = modules.iter().map(|module| format!("{module}.weight")).collect();
            let biased = site == 0 && config.attention_bias;
            let bias = |module: &String| weights.to_f32(&format!("{module}.bias"));
            let bias = biased.then(|| modules.iter().map(bias).collect::<Result<Vec<_>>>()).transpose()?;
            Ok(Linear {
                weight: pack(weights, &names, precision, &mut numbers)?,
                bias: bias.map(|parts| parts.concat()),
            })
        };
        let layer =
            |layer| -> Result<_> { Ok([site(layer, 0)?, site(layer, 1)?, site(layer, 2)?, site(layer, 3)?]) };
        let layers = (0..config.num_layers).map(layer).collect::<Result<_>>()?;
        let head = pack(weights, &[config.head_name().to_owned()], precision, &mut numbers)?;
        Ok(Linears { layers, head: Linear { weight: head, bias: None } })
    }

    /// The projection at a site of a layer; the head follows the last layer.
    pub fn find(&self, layer: usize, site: usize) -> Option<&Linear> {
        match self.layers.get(layer) {
            Some(sites) => sites.get(site),
            None => (layer == self.layers.len()).then_some(&self.head),
        }
    }
}

/// Tensors `[outputs, inputs]`, one under the other, as the right operand `[inputs, outputs]`. `numbers` is where they pass
/// through, a band at a time.
fn pack(weights: &Weights, names: &[String], precision: Precision, numbers: &mut Vec<f32>) -> Result<Packed> {
    let tensors: Vec<TensorView> = names.iter().map(|name| weights.tensor(name)).collect::<Result<_>>()?;
    let (inputs, outputs) = (tensors[0].shape[1], tensors.iter().map(|tensor| tensor.shape[0]).sum());
    let mut packing = Packing::new(precision, [inputs, outputs]);
    while let Some(band) = packing.wanted() {
        numbers.resize(band.len() * inputs, 0.0);
        let mut above = 0;
        for tensor in &tensors {
            let rows = band.start.max(above)..band.end.min(above + tensor.shape[0]);
            if !rows.is_empty() {
                let part = &mut numbers[(rows.start - band.start) * inputs..(rows.end - band.start) * inputs];
                tensor.read((rows.start - above) * inputs, part)?;
            }
            above += tensor.shape[0];
        }
        packing.push(View::new(numbers, inputs).transposed());
    }
    Ok(packing.finish())
}

impl Linear {
    /// Columns of its input.
    pub fn inputs(&self) -> usize {
        self.weight.inner()
    }

    /// Columns of its output.
    pub fn outputs(&self) -> usize {
        self.weight.columns()
    }

    /// `y = x · weightᵀ + bias` for `rows` rows.
    pub fn apply(&self, scratch: &mut Scratch, rows: usize, x: &[f32], y: &mut [f32]) {
        let outputs = self.weight.columns();
        let onto = match &self.bias {
            None => Onto::Zero,
            Some(bias) => {
                y.chunks_exact_mut(outputs).for_each(|row| row.copy_from_slice(bias));
                Onto::Result
            }
        };
        let x = View::new(x, self.weight.inner());
        gemm::multiply_packed(scratch, rows, x, &self.weight, onto, y, outputs);
    }
}
