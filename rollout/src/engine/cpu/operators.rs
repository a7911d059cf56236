//! The custom operators of the CPU's decoder graph (`policy::graph`, the shared-prefix kind).

use super::attention::{Layer, Tensors};
use super::isa::Kernels;
use super::runner::{ForwardContext, current};
use crate::engine::custom_op::{Call, Domain, Kernel, Node, Operator, Outcome};
use record::failure::Result;
use std::ffi::CStr;
use std::ptr;

/// The operators. What they multiply with is the parameters of the current context.
pub fn domain(kernels: Kernels) -> Result<Domain<Kernels>> {
    Domain::new(vec![
        Operator::new::<Attention>(kernels),
        Operator::new::<LinearProduct>(kernels),
        Operator::new::<Glu<false>>(kernels),
        Operator::new::<Glu<true>>(kernels),
        Operator::new::<LayerExperts>(kernels),
        Operator::new::<LowRank>(kernels),
    ])
}

/// Attention over the KV cache.
struct Attention {
    layer: Layer,
    head_size: usize,
    kernels: Kernels,
}

impl Kernel for Attention {
    type Shared = Kernels;
    const NAME: &'static CStr = c"SharedPrefixAttention";
    const INPUTS: usize = 1;

    fn new(&kernels: &Kernels, node: &Node) -> Outcome<Self> {
        let head_size = node.integer(c"head_dim")?;
        let layer = Layer {
            index: node.integer(c"layer")?,
            heads: node.integer(c"num_heads")?,
            kv_heads: node.integer(c"kv_num_heads")?,
            epsilon: node.float(c"epsilon")?,
            scale: node.float(c"scale")?,
            window: Some(node.integer(c"window")?).filter(|&window| window > 0),
        };
        Ok(Attention { layer, head_size, kernels })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let Layer { heads, kv_heads, .. } = self.layer;
        let (rows, width, query) = call.input_rows(0)?;
        // SAFETY: the nodes of a run follow each other on this thread.
        let (forward, batch) = unsafe { current()? };
        if rows != batch.ids.len() || width != (heads + 2 * kv_heads) * self.head_size {
            return Err(format!("[{rows}, {width}] does not fit a batch of {} rows", batch.ids.len()));
        }
        let layout = forward.kv.layout();
        if (layout.head_size, layout.kv_heads) != (self.head_size, kv_heads)
            || self.layer.index >= layout.layers
            || forward.parameters.base.head_norms.len() != layout.layers
        {
            return Err("the KV cache or the weights are another model's".to_owned());
        }
        let output = call.output_rows(rows, heads * self.head_size)?;
        // SAFETY: the sizes were checked above; the batch is within the cache by construction.
        unsafe {
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
    layer: usize,
    site: usize,
}

impl Kernel for LinearProduct {
    type Shared = Kernels;
    const NAME: &'static CStr = c"Linear";
    const INPUTS: usize = 1;

    fn new(_: &Kernels, node: &Node) -> Outcome<Self> {
        Ok(LinearProduct { layer: node.integer(c"layer")?, site: node.integer(c"site")? })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        // SAFETY: the nodes of a run follow each other on this thread.
        let (ForwardContext { parameters, products, .. }, _) = unsafe { current()? };
        let linear = parameters.base.linears.find(self.layer, self.site);
        let linear = linear.ok_or("a projection that is not loaded")?;
        let (rows, width, x) = call.input_rows(0)?;
        if width != linear.inputs() {
            return Err(format!("[{rows}, {width}] where rows of {} are multiplied", linear.inputs()));
        }
        let y = call.output_rows(rows, linear.outputs())?;
        if rows > 0 {
            // SAFETY: the sizes are those of the two tensors.
            unsafe {
                let x = std::slice::from_raw_parts(x, rows * width);
                let y = std::slice::from_raw_parts_mut(y, rows * linear.outputs());
                linear.apply(products, rows, x, y);
            }
        }
        Ok(())
    }
}

/// Experts in place of a layer's MLP.
struct LayerExperts {
    layer: usize,
    kernels: Kernels,
}

impl Kernel for LayerExperts {
    type Shared = Kernels;
    const NAME: &'static CStr = c"Experts";
    const INPUTS: usize = 1;

    fn new(&kernels: &Kernels, node: &Node) -> Outcome<Self> {
        Ok(LayerExperts { layer: node.integer(c"layer")?, kernels })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        // SAFETY: the nodes of a run follow each other on this thread.
        let (ForwardContext { parameters, products, .. }, _) = unsafe { current()? };
        let experts = parameters.base.experts.get(self.layer).and_then(Option::as_ref);
        let experts = experts.ok_or("a layer whose experts are not loaded")?;
        let (rows, width, x) = call.input_rows(0)?;
        if width != experts.width() {
            return Err(format!("[{rows}, {width}] where rows of {} are taken", experts.width()));
        }
        let y = call.output_rows(rows, width)?;
        if rows > 0 {
            // SAFETY: the sizes are those of the two tensors; a row of gates is twice as long as a row of what becomes of it.
            unsafe {
                let x = std::slice::from_raw_parts(x, rows * width);
                let y = std::slice::from_raw_parts_mut(y, rows * width);
                let swiglu = |gates: &[f32], out: &mut [f32]| {
                    let (gate, up) = gates.split_at(out.len());
                    (self.kernels.swiglu)(gate.as_ptr(), up.as_ptr(), out.len(), out.as_mut_ptr());
                };
                experts.apply(products, rows, x, swiglu, y);
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
}

impl Kernel for LowRank {
    type Shared = Kernels;
    const NAME: &'static CStr = c"LowRank";
    const INPUTS: usize = 2;

    fn new(&kernels: &Kernels, node: &Node) -> Outcome<Self> {
        let (layer, site) = (node.integer(c"layer")?, node.integer(c"site")?);
        Ok(LowRank { layer, site, scored: node.integer(c"scored")? == 1, kernels })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let ((rows, inputs, x), (same, outputs, y)) = (call.input_rows(0)?, call.input_rows(1)?);
        // SAFETY: the nodes of a run follow each other on this thread.
        let (ForwardContext { parameters, .. }, batch) = unsafe { current()? };
        let expected = if self.scored { batch.logit_rows.len() } else { batch.ids.len() };
        if rows != same || rows != expected {
            return Err(format!("{rows} and {same} rows do not fit a batch of {expected}"));
        }
        let result = call.output_rows(rows, outputs)?;
        // SAFETY: the sizes are those of the tensors; each part is compared with them before it is used.
        unsafe {
            if !ptr::eq(result, y) {
                ptr::copy_nonoverlapping(y, result, rows * outputs);
            }
            for row in 0..rows {
                let of = if self.scored { batch.logit_rows[row] as usize } else { row };
                // Counted from 1; 0 is the base model.
                let Some(index) = (batch.adapters[of] as usize).checked_sub(1) else { continue };
                let adapter =
                    parameters.adapters.get(index).ok_or("a row of an adapter that is not loaded")?;
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

/// `silu(gate) * up`, or `gelu(gate) * up`, of rows that hold both, one after the other.
struct Glu<const GELU: bool> {
    kernels: Kernels,
}

impl<const GELU: bool> Kernel for Glu<GELU> {
    type Shared = Kernels;
    const NAME: &'static CStr = if GELU { c"GeGlu" } else { c"SwiGlu" };
    const INPUTS: usize = 1;

    fn new(&kernels: &Kernels, _: &Node) -> Outcome<Self> {
        Ok(Glu { kernels })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let (rows, width, gates) = call.input_rows(0)?;
        let half = width / 2;
        let output = call.output_rows(rows, half)?;
        let glu = if GELU { self.kernels.geglu } else { self.kernels.swiglu };
        for row in 0..rows {
            // SAFETY: the sizes are those of the tensors.
            unsafe {
                let gate = gates.add(row * width);
                glu(gate, gate.add(half), half, output.add(row * half));
            }
        }
        Ok(())
    }
}
