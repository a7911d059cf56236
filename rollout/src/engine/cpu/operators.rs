//! The custom operators of the CPU's decoder graph (`policy::graph`, shared-prefix kind).

use super::attention::{self, Layer, Tensors};
use super::context::{ForwardContext, current};
use super::isa::Kernels;
use crate::engine::custom_op::{Call, Domain, Kernel, Node, Operator, Outcome};
use record::failure::Result;
use std::ffi::CStr;

/// The operators. Their weights are the parameters of the current context.
pub fn domain(kernels: Kernels) -> Result<Domain<Kernels>> {
    Domain::new(vec![
        Operator::new::<Attention>(kernels),
        Operator::new::<LinearProduct>(kernels),
        Operator::new::<RmsNorm>(kernels),
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
            attention::forward(forward, batch, &self.layer, tensors, self.kernels.passes(layout.precision));
        }
        Ok(())
    }
}

/// An input or output of a call as a slice.
///
/// # Safety
/// The tensor outlives the call and has `count` values.
unsafe fn values<'a>(tensor: *const f32, count: usize) -> &'a [f32] {
    // SAFETY: promised by the caller.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(tensor, count) } }
}

/// The output `[rows, width]`. It overlaps no input, because these operators do not compute in place.
fn output<'a>(call: &Call, rows: usize, width: usize) -> Outcome<&'a mut [f32]> {
    let tensor = call.output_rows(rows, width)?;
    if rows * width == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the output belongs to this call and has `rows * width` values.
    Ok(unsafe { std::slice::from_raw_parts_mut(tensor, rows * width) })
}

/// The optional second input, which must be `[rows, width]`.
fn addend<'a>(call: &Call, rows: usize, width: usize) -> Outcome<Option<&'a [f32]>> {
    let Some((shape, tensor)) = call.input::<f32>(1)? else { return Ok(None) };
    if shape != [rows as i64, width as i64] {
        return Err(format!("an addend of shape {shape:?} to [{rows}, {width}]"));
    }
    // SAFETY: the shape was checked.
    Ok(Some(unsafe { values(tensor, rows * width) }))
}

/// A projection with packed weights.
struct LinearProduct {
    layer: usize,
    site: usize,
}

impl Kernel for LinearProduct {
    type Shared = Kernels;
    const NAME: &'static CStr = c"Linear";
    const INPUTS: usize = 2;

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
        let addend = addend(call, rows, linear.outputs())?;
        // SAFETY: rows and width are the tensor's shape.
        let x = unsafe { values(x, rows * width) };
        linear.apply(products, rows, x, addend, output(call, rows, linear.outputs())?);
        Ok(())
    }
}

/// Root mean square norm of each row.
struct RmsNorm {
    epsilon: f32,
}

impl Kernel for RmsNorm {
    type Shared = Kernels;
    const NAME: &'static CStr = c"RmsNorm";
    const INPUTS: usize = 2;

    fn new(_: &Kernels, node: &Node) -> Outcome<Self> {
        Ok(RmsNorm { epsilon: node.float(c"epsilon")? })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let (rows, width, x) = call.input_rows(0)?;
        let (shape, weight) = call.input::<f32>(1)?.ok_or("a norm without its weight")?;
        if shape != [width as i64] {
            return Err(format!("a norm of shape {shape:?} for rows of {width}"));
        }
        // SAFETY: the sizes are the tensors' shapes.
        let (x, weight) = unsafe { (values(x, rows * width), values(weight, width)) };
        functional::rms_norm(x, weight, self.epsilon, output(call, rows, width)?);
        Ok(())
    }
}

/// Experts in place of a layer's MLP.
struct LayerExperts {
    layer: usize,
}

impl Kernel for LayerExperts {
    type Shared = Kernels;
    const NAME: &'static CStr = c"Experts";
    const INPUTS: usize = 2;

    fn new(_: &Kernels, node: &Node) -> Outcome<Self> {
        Ok(LayerExperts { layer: node.integer(c"layer")? })
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
        let residual = addend(call, rows, width)?.ok_or("experts without the stream to add to")?;
        // SAFETY: rows and width are the tensor's shape.
        let x = unsafe { values(x, rows * width) };
        experts.apply(products, rows, x, residual, output(call, rows, width)?);
        Ok(())
    }
}

/// Adds each row's adapter to a projection.
struct LowRank {
    layer: usize,
    site: usize,
    /// True if the rows are only those whose logits are needed.
    scored: bool,
}

impl Kernel for LowRank {
    type Shared = Kernels;
    const NAME: &'static CStr = c"LowRank";
    const INPUTS: usize = 2;

    fn new(_: &Kernels, node: &Node) -> Outcome<Self> {
        let (layer, site) = (node.integer(c"layer")?, node.integer(c"site")?);
        Ok(LowRank { layer, site, scored: node.integer(c"scored")? == 1 })
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        // SAFETY: the nodes of a run follow each other on this thread.
        let (ForwardContext { parameters, products, low_rank, .. }, batch) = unsafe { current()? };
        let linear = parameters.base.linears.find(self.layer, self.site);
        let outputs = linear.ok_or("a projection that is not loaded")?.outputs();
        let (rows, inputs, x) = call.input_rows(0)?;
        let expected = if self.scored { batch.logit_rows.len() } else { batch.ids.len() };
        if rows != expected {
            return Err(format!("{rows} rows do not fit a batch of {expected}"));
        }
        // SAFETY: rows and inputs are the tensor's shape.
        let x = unsafe { values(x, rows * inputs) };
        let (addend, result) = (addend(call, rows, outputs)?, output(call, rows, outputs)?);
        match addend {
            Some(addend) => result.copy_from_slice(addend),
            None => result.fill(0.0),
        }
        // Adapters are numbered from 1; 0 is the base model.
        let of = |row: usize| {
            batch.adapters[if self.scored { batch.logit_rows[row] as usize } else { row }] as usize
        };
        let mut first = 0;
        while first < rows {
            let index = of(first);
            let count = (first..rows).take_while(|&row| of(row) == index).count();
            if let Some(index) = index.checked_sub(1) {
                let adapter =
                    parameters.adapters.get(index).ok_or("a row of an adapter that is not loaded")?;
                if let Some(factors) = adapter.factors(self.layer, self.site) {
                    if !factors.fits(inputs, outputs) {
                        return Err(format!("an adapter does not fit {inputs} inputs and {outputs} outputs"));
                    }
                    let (x, y) = (&x[first * inputs..], &mut result[first * outputs..]);
                    factors.add(products, low_rank, count, x, y, outputs);
                }
            }
            first += count;
        }
        Ok(())
    }
}

/// `silu(gate) * up`, or `gelu(gate) * up`, for rows `[gate, up]`.
struct Glu<const GELU: bool>;

impl<const GELU: bool> Kernel for Glu<GELU> {
    type Shared = Kernels;
    const NAME: &'static CStr = if GELU { c"GeGlu" } else { c"SwiGlu" };
    const INPUTS: usize = 1;

    fn new(_: &Kernels, _: &Node) -> Outcome<Self> {
        Ok(Glu)
    }

    fn compute(&self, call: &Call) -> Outcome<()> {
        let (rows, width, gates) = call.input_rows(0)?;
        // SAFETY: rows and width are the tensor's shape.
        let gates = unsafe { values(gates, rows * width) };
        let glu = if GELU { functional::geglu } else { functional::swiglu };
        glu(width / 2, gates, output(call, rows, width / 2)?);
        Ok(())
    }
}
