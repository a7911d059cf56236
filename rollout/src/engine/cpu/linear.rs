//! Projections with packed weights.
//!
//! Weights go from the mapped checkpoint into the order in which the kernels read them, once for all threads; ONNX
//! Runtime never sees them. Projections of the same input (query, key and value; gate and up) are one product. With
//! [`Precision::BFloat16`] weights and inputs are rounded to bf16, sums stay f32. A row's result does not depend on how
//! many rows there are.

use gemm::{Accumulate, Isa, Packed, Packing, Precision, Scratch, View, ViewMut};
use policy::config::Config;
use policy::decoder::{Decoder, Projection, SITES, Tensor};
use policy::weights::{ElementType, TensorView, Weights};
use record::failure::Result;

/// All projections of a decoder: every layer's sites, then the head.
pub struct Linears(Vec<Option<Linear>>);

/// One projection.
pub struct Linear {
    weight: Packed,
    /// Empty without a bias.
    bias: Vec<f32>,
}

impl Linears {
    /// Packs the weights of a checkpoint that fits its configuration.
    ///
    /// # Errors
    /// A tensor is missing or of no floating type.
    pub fn load(config: &Config, weights: &Weights, precision: Precision, isa: Isa) -> Result<Linears> {
        let decoder = Decoder::new(config);
        let mut numbers = Vec::new();
        let mut pack = |tensors: &[&Tensor]| {
            let packed = Linear::load(weights, tensors, precision, isa, &mut numbers);
            // It is not read again: the checkpoint would be in memory twice.
            weights.release();
            packed
        };
        let mut linears = Vec::with_capacity(decoder.layers.len() * SITES.len() + 1);
        for (layer, targets) in decoder.layers.iter().flat_map(|layer| SITES.map(|targets| (layer, targets)))
        {
            // Experts stand in place of the MLP's.
            if layer.experts.is_some() && targets.iter().all(|target| target.is_mlp()) {
                linears.push(None);
                continue;
            }
            let parts: Vec<&Projection> = targets.iter().map(|&target| layer.projection(target)).collect();
            let matrices: Vec<&Tensor> = parts.iter().map(|part| &part.weight).collect();
            let biases = parts.iter().filter_map(|part| part.bias.as_ref());
            let biases = biases.map(|bias| weights.to_f32(&bias.name)).collect::<Result<Vec<_>>>()?;
            linears.push(Some(Linear { bias: biases.concat(), ..pack(&matrices)? }));
        }
        linears.push(Some(pack(&[decoder.head()])?));
        Ok(Linears(linears))
    }

    /// The projection at a site of a layer; site 0 of the layer after the last is the head.
    pub fn find(&self, layer: usize, site: usize) -> Option<&Linear> {
        self.0.get(layer * SITES.len() + site)?.as_ref()
    }
}

/// Tensors `[outputs, inputs]`, one under the other, as the right operand `[inputs, outputs]`. `numbers` is where they pass
/// through, a band at a time.
fn pack(
    weights: &Weights,
    tensors: &[&Tensor],
    precision: Precision,
    isa: Isa,
    numbers: &mut Vec<f32>,
) -> Result<Packed> {
    let tensors: Vec<TensorView> =
        tensors.iter().map(|tensor| weights.tensor(&tensor.name)).collect::<Result<_>>()?;
    let (inputs, outputs) = (tensors[0].shape[1], tensors.iter().map(|tensor| tensor.shape[0]).sum());
    let exact = tensors.iter().all(|tensor| tensor.dtype == ElementType::BF16);
    let packing = if exact { Packing::of_halves } else { Packing::new };
    let mut packing = packing(isa, precision, [inputs, outputs]);
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
    /// Tensors `[outputs, inputs]` one under the other, without a bias.
    ///
    /// # Errors
    /// A tensor is missing or of no floating type.
    pub fn load(
        weights: &Weights,
        tensors: &[&Tensor],
        precision: Precision,
        isa: Isa,
        numbers: &mut Vec<f32>,
    ) -> Result<Linear> {
        Ok(Linear { weight: pack(weights, tensors, precision, isa, numbers)?, bias: Vec::new() })
    }

    /// Columns of its input.
    pub fn inputs(&self) -> usize {
        self.weight.inner()
    }

    /// Columns of its output.
    pub fn outputs(&self) -> usize {
        self.weight.columns()
    }

    /// `y = addend + x · weightᵀ + bias` for `rows` rows.
    pub fn apply(
        &self,
        scratch: &mut Scratch,
        rows: usize,
        x: &[f32],
        addend: Option<&[f32]>,
        y: &mut [f32],
    ) {
        let (x, onto) = (View::new(x, self.inputs()), addend.map_or(Accumulate::Zero, Accumulate::Other));
        gemm::multiply_packed(scratch, rows, x, &self.weight, onto, ViewMut::new(y, self.outputs()));
        if !self.bias.is_empty() {
            functional::add_bias(&self.bias, y);
        }
    }
}
