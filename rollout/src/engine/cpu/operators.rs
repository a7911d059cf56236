//! The custom operators of the CPU's decoder graph (`policy::graph`, the shared-prefix kind).

use super::adapters::Adapter;
use super::attention::{Layer, Tensors};
use super::context::current;
use super::isa::Kernels;
use super::linear::Linears;
use crate::engine::custom_op::{
    Domain, Kernel, Operator, Outcome, constant, float, input_rows, integer, output_rows,
};
use ort::sys::*;
use record::failure::Result;
use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

/// What the operators of a session share.
#[derive(Clone)]
pub struct Shared {
    /// Kernels for this processor.
    pub kernels: Kernels,
    /// Packed weights; none where ONNX Runtime multiplies.
    pub linears: Option<Arc<Linears>>,
    /// Adapters, by index.
    pub adapters: Arc<Vec<Adapter>>,
}

/// The operators.
pub fn domain(shared: &Shared) -> Result<Domain<Shared>> {
    Domain::new(vec![
        Operator::new::<Attention>(shared.clone()),
        Operator::new::<LinearProduct>(shared.clone()),
        Operator::new::<SwiGlu>(shared.clone()),
        Operator::new::<LowRank>(shared.clone()),
    ])
}

/// Attention over the KV cache.
struct Attention {
    layer: Layer,
    head_size: usize,
    kernels: Kernels,
}

impl Kernel for Attention {
    type Shared = Shared;
    const NAME: &'static CStr = c"SharedPrefixAttention";
    const INPUTS: usize = 3;

    unsafe fn new(shared: &Shared, info: *const OrtKernelInfo) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            let head_size = integer(info, c"head_dim")?;
            let normalized = integer(info, c"qk_norm")? == 1;
            let gain = |index| normalized.then(|| constant(info, index, head_size)).transpose();
            let layer = Layer {
                index: integer(info, c"layer")?,
                heads: integer(info, c"num_heads")?,
                kv_heads: integer(info, c"kv_num_heads")?,
                epsilon: float(info, c"epsilon")?,
                query_gain: gain(1)?,
                key_gain: gain(2)?,
            };
            Ok(Attention { layer, head_size, kernels: shared.kernels })
        }
    }

    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        let Layer { heads, kv_heads, .. } = self.layer;
        // SAFETY: the nodes of a run follow each other on this thread; the context is the running call's.
        let ((forward, batch), (rows, width, query)) = unsafe { (current()?, input_rows(context, 0)?) };
        if rows != batch.ids.len() || width != (heads + 2 * kv_heads) * self.head_size {
            return Err(format!("[{rows}, {width}] does not fit a batch of {} rows", batch.ids.len()));
        }
        let layout = forward.kv.layout();
        if (layout.head_size, layout.kv_heads) != (self.head_size, kv_heads)
            || self.layer.index >= layout.layers
        {
            return Err("the KV cache is another model's".to_owned());
        }
        // SAFETY: the sizes were checked above; the batch is within the cache by construction.
        unsafe {
            let output = output_rows(context, rows, heads * self.head_size)?;
            let key = query.add(heads * self.head_size);
            let value = key.add(kv_heads * self.head_size);
            let tensors = Tensors { query, key, value, width, output };
            (self.kernels.attention)(forward, batch, &self.layer, tensors);
        }
        Ok(())
    }
}

/// A projection with packed weights.
struct LinearProduct {
    linears: Arc<Linears>,
    layer: usize,
    site: usize,
}

impl Kernel for LinearProduct {
    type Shared = Shared;
    const NAME: &'static CStr = c"Linear";
    const INPUTS: usize = 1;

    unsafe fn new(shared: &Shared, info: *const OrtKernelInfo) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let (layer, site) = unsafe { (integer(info, c"layer")?, integer(info, c"site")?) };
        let linears = shared.linears.clone().ok_or("the session was opened without weights")?;
        linears.find(layer, site).ok_or_else(|| format!("there is no site {site} of layer {layer}"))?;
        Ok(LinearProduct { linears, layer, site })
    }

    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        let linear = self.linears.find(self.layer, self.site).ok_or("a projection that is not loaded")?;
        // SAFETY: the nodes of a run follow each other on this thread; the context is the running call's.
        let ((forward, _), (rows, width, x)) = unsafe { (current()?, input_rows(context, 0)?) };
        if width != linear.inputs() {
            return Err(format!("[{rows}, {width}] where rows of {} are multiplied", linear.inputs()));
        }
        // SAFETY: the sizes are those of the two tensors; an empty one may have no address.
        unsafe {
            let y = output_rows(context, rows, linear.outputs())?;
            if rows > 0 {
                let x = std::slice::from_raw_parts(x, rows * width);
                let y = std::slice::from_raw_parts_mut(y, rows * linear.outputs());
                linear.apply(&mut forward.products, rows, x, y);
            }
        }
        Ok(())
    }
}

/// Adds to each row of a projection what its adapter contributes.
struct LowRank {
    layer: usize,
    site: usize,
    /// Whether the rows are those whose logits are needed, and not all.
    scored: bool,
    kernels: Kernels,
    adapters: Arc<Vec<Adapter>>,
}

impl Kernel for LowRank {
    type Shared = Shared;
    const NAME: &'static CStr = c"LowRank";
    const INPUTS: usize = 2;

    unsafe fn new(shared: &Shared, info: *const OrtKernelInfo) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let [layer, site, scored] = [c"layer", c"site", c"scored"].map(|name| unsafe { integer(info, name) });
        let Shared { kernels, adapters, .. } = shared.clone();
        Ok(LowRank { layer: layer?, site: site?, scored: scored? == 1, kernels, adapters })
    }

    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        // SAFETY: the nodes of a run follow each other on this thread; the context is the running call's.
        let ((_, batch), (rows, inputs, x), (same, outputs, y)) =
            unsafe { (current()?, input_rows(context, 0)?, input_rows(context, 1)?) };
        let expected = if self.scored { batch.logit_rows.len() } else { batch.ids.len() };
        if rows != same || rows != expected {
            return Err(format!("{rows} and {same} rows do not fit a batch of {expected}"));
        }
        // SAFETY: the sizes are those of the tensors; each part is compared with them before it is used.
        unsafe {
            let result = output_rows(context, rows, outputs)?;
            if !ptr::eq(result, y) {
                ptr::copy_nonoverlapping(y, result, rows * outputs);
            }
            for row in 0..rows {
                let of = if self.scored { batch.logit_rows[row] as usize } else { row };
                // Counted from 1; 0 is the base model.
                let Some(index) = (batch.adapters[of] as usize).checked_sub(1) else { continue };
                let adapter = self.adapters.get(index).ok_or("a row of an adapter that is not loaded")?;
                for part in adapter.parts(self.layer, self.site) {
                    if !part.fits(adapter.rank(), inputs, outputs) {
                        return Err(format!("an adapter does not fit {inputs} inputs and {outputs} outputs"));
                    }
                    let (x, y) = (x.add(row * inputs), result.add(row * outputs));
                    (self.kernels.low_rank)(part, adapter.rank(), x, y);
                }
            }
        }
        Ok(())
    }
}

/// `silu(gate) * up` of rows that hold both, one after the other.
struct SwiGlu {
    kernels: Kernels,
}

impl Kernel for SwiGlu {
    type Shared = Shared;
    const NAME: &'static CStr = c"SwiGlu";
    const INPUTS: usize = 1;

    unsafe fn new(shared: &Shared, _: *const OrtKernelInfo) -> Outcome<Self> {
        Ok(SwiGlu { kernels: shared.kernels })
    }

    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        // SAFETY: the sizes are those of the tensors.
        unsafe {
            let (rows, width, gates) = input_rows(context, 0)?;
            let half = width / 2;
            let output = output_rows(context, rows, half)?;
            for row in 0..rows {
                let gate = gates.add(row * width);
                (self.kernels.swiglu)(gate, gate.add(half), half, output.add(row * half));
            }
        }
        Ok(())
    }
}
