//! The operator `Linear` of the decoder's graph: a projection's product with weights that were packed when the policy was
//! loaded.
//!
//! Weights go from the mapped checkpoint into the order in which the kernels read them, once and for all threads; ONNX
//! Runtime never sees them. Projections that read the same rows (query, key and value; gate and up) are one product.
//! With [`Precision::BFloat16`] weights and what they are multiplied with are rounded to bf16, sums stay f32.
//! A row's result does not depend on how many rows there are.

use super::custom::{Outcome, guarded};
use super::operator::{input, integer, lent, output};
use gemm::{Onto, Packed, Packing, Precision, Scratch, View};
use ort::sys::*;
use policy::config::Config;
use policy::graph::SITES;
use policy::weights::{TensorView, Weights};
use record::failure::Result;
use std::ffi::c_void;
use std::sync::Arc;

/// Everything that a decoder multiplies with.
pub struct Linears {
    /// By layer and site.
    layers: Vec<[Linear; SITES.len()]>,
    head: Linear,
}

/// One product.
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

    /// The product of a node with these attributes.
    fn find(&self, layer: usize, site: usize) -> Option<&Linear> {
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
    /// `y = x · weightᵀ + bias` for `rows` rows.
    fn apply(&self, scratch: &mut Scratch, rows: usize, x: &[f32], y: &mut [f32]) {
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

/// A node of the graph.
pub struct LinearNode {
    linears: Arc<Linears>,
    layer: usize,
    site: usize,
}

impl LinearNode {
    /// The node that is described by `info`.
    ///
    /// # Safety
    ///
    /// `info` is that of the node being made.
    pub unsafe fn new(linears: Option<&Arc<Linears>>, info: *const OrtKernelInfo) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let (layer, site) = unsafe { (integer(info, c"layer")?, integer(info, c"site")?) };
        let linears = linears.ok_or("the session was opened without weights")?;
        linears.find(layer, site).ok_or_else(|| format!("there is no site {site} of layer {layer}"))?;
        Ok(LinearNode { linears: linears.clone(), layer, site })
    }

    /// Runs the node.
    ///
    /// # Safety
    ///
    /// `context` is that of the running call.
    pub unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        // SAFETY: nodes of a run follow each other on this thread.
        let pass = unsafe { lent()? };
        let linear = self.linears.find(self.layer, self.site).ok_or("a product that is not loaded")?;
        // SAFETY: the caller's promise.
        let (rows, width, x) = unsafe { input(context, 0)? };
        let (inputs, outputs) = (linear.weight.inner(), linear.weight.columns());
        if width != inputs {
            return Err(format!("[{rows}, {width}] where rows of {inputs} are multiplied"));
        }
        // SAFETY: sizes are those of the tensors, which are two; no row at all may come with no address.
        unsafe {
            let y = output(context, rows, outputs)?;
            if rows > 0 {
                let x = std::slice::from_raw_parts(x, rows * inputs);
                let y = std::slice::from_raw_parts_mut(y, rows * outputs);
                linear.apply(&mut pass.products, rows, x, y);
            }
        }
        Ok(())
    }
}

/// See [`LinearNode::compute`].
pub unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut OrtKernelContext) -> OrtStatusPtr {
    // SAFETY: the kernel was made by the operator's `create` and is only ever read.
    guarded(|| unsafe { (*kernel.cast::<LinearNode>()).compute(context) })
}

/// Frees a node.
pub unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: made by the operator's `create`, destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<LinearNode>()) });
}
